"""The named image data sets: files, preprocessing, splits, licence and citation."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from importlib.resources import files as package_files
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from metavrf.errors import UserError
from metavrf.joined import Joined
from metavrf.registry import Registry
from metavrf.tasks.bank import Bank
from metavrf.tasks.images import ParquetSource, Preprocessing, cache_folder, read_bank, rotated_names
from metavrf.tasks.splits import PARTS, Split, divide

Divide = Callable[[Sequence[str], int], Split]


def data_folders(data: str) -> list[Path]:
    """Where data is looked for: in ``data``, METAVRF_DATA and the cache, in this order."""
    if data and not Path(data).is_dir():
        raise UserError(f"the data folder {data} does not exist")
    named = [data, os.environ.get("METAVRF_DATA", "")]
    return [Path(folder) for folder in named if folder] + [cache_folder() / "data"]


@dataclass(frozen=True)
class NamedSet:
    """A data set known by name."""

    name: str
    files: tuple[str, ...]
    preprocessing: Preprocessing
    splits: Mapping[str, Divide]
    """How its classes can be split, the default first."""
    size: str
    licence: str
    citation: str
    archive: str | None = None
    """What :mod:`metavrf.tasks.download` fetches it by; None if its licence forbids passing it on."""
    kind: str = "photographs"
    """Which presets of learners its pictures take: "photographs" or "drawings"."""
    preset: Mapping[str, Any] = field(default_factory=dict)
    """Where settings start for it."""
    paper: Mapping[str, Any] = field(default_factory=dict)
    """What the paper says of them (Table opt, and the dropout of the CNN tables)."""

    def locate(self, data: str) -> dict[str, Path | None]:
        """Where each file is: in ``data``, METAVRF_DATA or the cache, in this order."""
        folders = data_folders(data)
        return {
            file: next((folder / file for folder in folders if (folder / file).is_file()), None) for file in self.files
        }

    def find(self, data: str, *, quiet: bool = False) -> list[Path]:
        """Its files, fetched into the cache where they are missing."""
        found = self.locate(data)
        if all(found.values()):
            return [path for path in found.values() if path]
        missing = [file for file, path in found.items() if path is None]
        where = cache_folder() / "data"
        advice = (
            f"put {', '.join(missing)} into {where}, or name the folder that holds them with --data or METAVRF_DATA"
        )
        if self.archive is None:
            raise UserError(f"{self.name} cannot be downloaded freely ({self.licence}): {advice}")
        from metavrf.tasks.download import DOWNLOADS

        try:
            DOWNLOADS[self.archive](where, quiet=quiet)
        except UserError as error:
            raise UserError(f"{error}; or {advice}") from error
        return [path or where / file for file, path in found.items()]

    def read(self, data: str, *, quiet: bool = False) -> tuple[Bank, str]:
        """All its classes, and the SHA-256 of what was read."""
        return read_bank(ParquetSource(self.find(data, quiet=quiet)), self.preprocessing, cache_folder(), quiet=quiet)

    def counts(self, data: str) -> dict[str, int]:
        """How many pictures each class has; decodes none."""
        counts = ParquetSource(self.find(data)).counts()
        return rotated_names(counts) if self.preprocessing.rotations else counts


def _alphabets(bank: Bank) -> Bank:
    """Group characters by alphabet and rotation, for tasks within one alphabet."""
    keys = [(name.split("/")[0], name.partition("@")[2]) for name in bank.names]
    number = {key: index for index, key in enumerate(dict.fromkeys(keys))}
    return replace(bank, groups=torch.tensor([number[key] for key in keys]))


@dataclass(frozen=True)
class Omniglot(NamedSet):
    """Omniglot has alphabets."""

    def read(self, data: str, *, quiet: bool = False) -> tuple[Bank, str]:
        """All characters and rotations, grouped by alphabet."""
        bank, key = super().read(data, quiet=quiet)
        return _alphabets(bank), key


@dataclass(frozen=True)
class Cifar100(NamedSet):
    """CIFAR-100 has superclasses, of five classes each; a split may leave fewer of them in a part."""

    def read(self, data: str, *, quiet: bool = False) -> tuple[Bank, str]:
        """All classes, grouped by superclass."""
        bank, key = super().read(data, quiet=quiet)
        superclasses = _listed("cifar100.json")["superclasses"].values()
        number = {name: index for index, names in enumerate(superclasses) for name in names}
        return replace(bank, groups=torch.tensor([number.get(name, -1) for name in bank.names])), key


@dataclass(frozen=True)
class Mixture(NamedSet):
    """Several data sets as one: the sets are the groups of its classes, and a task is of one set, never of two.

    A class is named ``set/class``. Each set is split as is usual for it; grey pictures are repeated in three channels.
    """

    sets: tuple[NamedSet, ...] = ()

    def find(self, data: str, *, quiet: bool = False) -> list[Path]:
        """The files of all sets; those that cannot be fetched are looked for first."""
        found: dict[str, list[Path]] = {}
        for named in sorted(self.sets, key=lambda named: named.archive is not None):
            found[named.name] = named.find(data, quiet=quiet)
        return [path for named in self.sets for path in found[named.name]]

    def read(self, data: str, *, quiet: bool = False) -> tuple[Bank, str]:
        """The classes of all sets, grouped by set; each set is decoded and cached by itself."""
        self.find(data, quiet=quiet)
        banks, keys = zip(*(named.read(data, quiet=quiet) for named in self.sets), strict=True)
        joined = Bank.join([replace(bank, inputs=Joined([(bank.inputs, self._in_colour)])) for bank in banks])
        names = [_within(named, name) for named, bank in zip(self.sets, banks, strict=True) for name in bank.names]
        groups = torch.arange(len(banks)).repeat_interleave(torch.tensor([len(bank.names) for bank in banks]))
        key = hashlib.sha256(" ".join(keys).encode()).hexdigest()
        return replace(joined, names=names, groups=groups), key

    def _in_colour(self, images: Tensor) -> Tensor:
        """Grey pictures in three channels."""
        return images.expand(-1, *self.preprocessing.shape)

    def counts(self, data: str) -> dict[str, int]:
        """How many pictures each class of each set has; decodes none."""
        return {_within(named, name): n for named in self.sets for name, n in named.counts(data).items()}


def _within(named: NamedSet, name: str) -> str:
    """The name of a class of one of several data sets."""
    return f"{named.name}/{name}"


def _usual(*sets: NamedSet) -> Divide:
    """Each set's classes as its first split divides them."""

    def divided(names: Sequence[str], seed: int) -> Split:
        split: Split = {part: [] for part in PARTS}
        for named in sets:
            own = [name.removeprefix(_within(named, "")) for name in names if name.startswith(_within(named, ""))]
            for part, classes in next(iter(named.splits.values()))(own, seed).items():
                split[part] += [_within(named, name) for name in classes]
        return split

    return divided


def _listed(file: str) -> dict[str, Any]:
    """A list of classes that comes with the package."""
    return dict(json.loads(package_files("metavrf.tasks.splits").joinpath(file).read_text()))


def _vinyals(_names: Sequence[str], _seed: int) -> Split:
    """1028 / 172 / 423 characters: what published figures use."""
    lists = _listed("omniglot-vinyals.json")
    return _with_rotations(
        {
            part: [
                f"{alphabet}/character{number:02d}"
                for alphabet, ranges in lists[part].items()
                for first, last in ranges
                for number in range(first, last + 1)
            ]
            for part in ("train", "val", "test")
        }
    )


def _lake(names: Sequence[str], _seed: int) -> Split:
    """The 30 background alphabets, the last 5 of them for validation, and the 20 evaluation alphabets."""
    characters = [name for name in names if "@" not in name]
    background, evaluation = characters[:964], characters[964:]
    alphabets = list(dict.fromkeys(name.split("/")[0] for name in background))
    held_out = set(alphabets[-5:])
    return _with_rotations(
        {
            "train": [name for name in background if name.split("/")[0] not in held_out],
            "val": [name for name in background if name.split("/")[0] in held_out],
            "test": evaluation,
        }
    )


def _random_characters(names: Sequence[str], seed: int) -> Split:
    """1100 / 100 / 423 characters by seed (the paper's, mended)."""
    return _with_rotations(divide([name for name in names if "@" not in name], (1100, 100, 423), seed))


def _with_rotations(split: Split) -> Split:
    return {part: list(rotated_names(dict.fromkeys(names, 0))) for part, names in split.items()}


def _cifar(name: str) -> Divide:
    def listed(_names: Sequence[str], _seed: int) -> Split:
        return dict(_listed("cifar100.json")[name])

    return listed


def _ravi(names: Sequence[str], _seed: int) -> Split:
    """64 / 16 / 20: the three files, in this order."""
    return {"train": list(names[:64]), "val": list(names[64:80]), "test": list(names[80:])}


_CIFAR_FILES = ("cifar100-train.parquet", "cifar100-test.parquet")
_CIFAR_LICENCE = "free for research; cite Krizhevsky 2009"

_PAPER_CIFAR: dict[str, Any] = {"iterations": 200_000, "batch": 8, "dropout": 0.5}

DATASETS: Registry[NamedSet] = Registry("data set")


def register_dataset(named: NamedSet) -> NamedSet:
    """Make a data set of your own known by its name: files, preprocessing, splits, presets."""
    return DATASETS.add(named.name, named)


for _named in (
    Omniglot(
        "omniglot",
        ("omniglot-background.parquet", "omniglot-evaluation.parquet"),
        Preprocessing(28, channels=1, invert=True, rotations=True),
        {"vinyals": _vinyals, "random": _random_characters, "lake": _lake},
        "1,623 characters x 20 drawers, x 4 rotations",
        "MIT",
        "Lake, Salakhutdinov, Tenenbaum: Human-level concept learning, Science 2015",
        archive="omniglot",
        kind="drawings",
        preset={"augment": "affine", "mirror": True, "dropout": 0.05, "iterations": 6500},
        paper={"iterations": 100_000, "batch": 6, "dropout": 0.1},
    ),
    Cifar100(
        "cifar-fs",
        _CIFAR_FILES,
        Preprocessing(32),
        {"bertinetto": _cifar("cifar-fs")},
        "100 classes x 600 images",
        _CIFAR_LICENCE,
        "Bertinetto et al.: Meta-learning with differentiable closed-form solvers, ICLR 2019",
        archive="cifar100",
        paper=_PAPER_CIFAR,
    ),
    Cifar100(
        "fc100",
        _CIFAR_FILES,
        Preprocessing(32),
        {"oreshkin": _cifar("fc100")},
        "100 classes x 600 images",
        _CIFAR_LICENCE,
        "Oreshkin, Rodriguez, Lacoste: TADAM, NeurIPS 2018",
        archive="cifar100",
        paper=_PAPER_CIFAR,
    ),
    NamedSet(
        "mini-imagenet",
        tuple(f"miniimagenet-{part}.parquet" for part in ("train", "val", "test")),
        Preprocessing(84),
        {"ravi": _ravi},
        "100 classes x 600 images, or a part of them",
        "ImageNet's terms: non-commercial research and education",
        "Vinyals et al.: Matching networks, NeurIPS 2016; Ravi & Larochelle, ICLR 2017",
        preset={"embedding": "conv5", "query": 3, "iterations": 5000},
        paper={"iterations": 150_000, "batch": 8, "dropout": 0.5, "embedding": "conv5"},
    ),
):
    register_dataset(_named)


def _mixture(name: str, size: int, *names: str) -> Mixture:
    """Data sets as one, in colour and at one size."""
    sets = tuple(replace(DATASETS[own], preprocessing=replace(DATASETS[own].preprocessing, size=size)) for own in names)
    return Mixture(
        name,
        tuple(file for named in sets for file in named.files),
        Preprocessing(size),
        {"usual": _usual(*sets)},
        f"{', '.join(names)} at {size} x {size} pixels; a task is of one of them",
        "; ".join(f"{named.name}: {named.licence}" for named in sets),
        "; ".join(named.citation for named in sets),
        paper=_PAPER_CIFAR,
        sets=sets,
    )


register_dataset(_mixture("mixed-images", 32, "omniglot", "cifar-fs", "mini-imagenet"))
DATASETS.seal()


def listing(named: NamedSet, data: str) -> dict[str, Any]:
    """What is known of a data set, and where its files are; counts where all are there."""
    found = named.locate(data)
    entry: dict[str, Any] = {
        "name": named.name,
        "contents": named.size,
        "files": {file: None if path is None else str(path) for file, path in found.items()},
        "complete": all(found.values()),
        "splits": list(named.splits),
        "licence": named.licence,
        "citation": named.citation,
    }
    if entry["complete"]:
        counts = named.counts(data)
        split = next(iter(named.splits.values()))(list(counts), 0)
        entry["classes"] = {part: len(names) for part, names in split.items()}
        entry["images"] = {part: sum(counts.get(name, 0) for name in names) for part, names in split.items()}
    return entry
