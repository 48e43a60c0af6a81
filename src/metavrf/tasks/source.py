"""Where a run's tasks come from: a family of functions, or the classes of an image data set. One interface."""

from __future__ import annotations

import math
import re
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from metavrf.episodes import Episodes
from metavrf.errors import UserError
from metavrf.files import map_tensors
from metavrf.memory import check_room
from metavrf.registry import unknown
from metavrf.settings import DataSettings, EpisodeSettings
from metavrf.spec import TaskSpec
from metavrf.tasks.augment import AUGMENTATIONS
from metavrf.tasks.bank import Bank
from metavrf.tasks.datasets import DATASETS, Mixture, data_folders
from metavrf.tasks.functions import FAMILIES, family
from metavrf.tasks.images import FolderSource, ParquetSource, Preprocessing, cache_folder, mirrored, read_bank, rotated
from metavrf.tasks.splits import PARTS, Split, divide

ROWS_AT_ONCE = 4096  # of a feature file, which may be larger than memory
OWN_SIDE = 84  # of pictures of one's own, as of miniImageNet
FLOATS = 12  # bytes in which a number is held at least while it is drawn, augmented and embedded


class Tasks(ABC):
    """A source of training tasks and of held-out ones."""

    spec: TaskSpec

    @abstractmethod
    def training(self, shape: EpisodeSettings, generator: torch.Generator) -> Episodes:
        """The tasks of a training step."""

    @abstractmethod
    def held_out(
        self,
        part: str,
        tasks: int,
        shape: EpisodeSettings,
        generator: torch.Generator,
        *,
        within_group: bool = False,
    ) -> Episodes:
        """Tasks to validate or test on: ``part`` is "val" or "test", ``shape`` gives way, shot and query.

        Tasks of streams are whole streams: as many as there are in ``tasks``, but at least one.
        """

    def groups(
        self,
        part: str,
        tasks: int,
        shape: EpisodeSettings,
        generator: torch.Generator,
        *,
        fixed_shot: bool = False,
    ) -> list[Episodes]:
        """Tasks to validate or test on, as several Episodes where tasks are of unequal size.

        ``fixed_shot`` asks for the shots of ``shape`` where the tasks would have shots of their own.
        """
        return [self.held_out(part, tasks, shape, generator)]

    def fitted(self, shape: EpisodeSettings) -> EpisodeSettings:
        """The shape of the tasks as far as there are samples for it."""
        return shape


def training_shot(shape: EpisodeSettings, generator: torch.Generator) -> int:
    """Support samples (per class) of a step's training tasks: as set, or drawn where the setting is a range."""
    least = shape.train_shot or shape.shot
    if not shape.most_shot:
        return least
    return int(torch.randint(least, shape.most_shot + 1, (), generator=generator))


class FunctionTasks(Tasks):
    """Regression tasks of a family of functions."""

    def __init__(self, name: str) -> None:
        self.family = family(name)
        self.spec = TaskSpec((self.family.inputs,), self.family.outputs)

    def training(self, shape: EpisodeSettings, generator: torch.Generator) -> Episodes:
        """Points drawn at random; as many streams as hold a batch, and new sizes each step where a family has such."""
        if self.family.unequal and not shape.train_shot:
            shot, query = self.family.sizes(generator)
        else:
            shot, query = training_shot(shape, generator), shape.query
        streams = math.ceil(shape.batch / shape.stream)
        return self.family.sample(streams * shape.stream, shot, query, generator, shape.stream)

    def held_out(
        self,
        part: str,
        tasks: int,
        shape: EpisodeSettings,
        generator: torch.Generator,
        *,
        within_group: bool = False,
    ) -> Episodes:
        """Queries on an even grid; as many whole streams as ``tasks`` hold, at least one."""
        if within_group:
            raise UserError("--within-alphabet is for omniglot")
        streams = max(1, tasks // shape.stream)
        return self.family.sample_grid(streams * shape.stream, shape.shot, generator, shape.stream)

    def groups(
        self,
        part: str,
        tasks: int,
        shape: EpisodeSettings,
        generator: torch.Generator,
        *,
        fixed_shot: bool = False,
    ) -> list[Episodes]:
        """Groups of the sizes that the family draws, where its tasks are of unequal size."""
        if self.family.unequal and not fixed_shot:
            return self.family.sample_groups(tasks, generator)
        return super().groups(part, tasks, shape, generator)


class ClassTasks(Tasks):
    """Classification tasks on a bank of images or features whose classes are split in three.

    ``mixed`` says that the groups are data sets: every task is of one of them, all equally likely.
    """

    def __init__(
        self,
        bank: Bank,
        split: Split,
        spec: TaskSpec,
        *,
        augment: str = "none",
        rotate: bool = False,
        mirror: bool = False,
        mixed: bool = False,
    ) -> None:
        self.bank = bank
        self.mixed = mixed
        self.banks = {part: bank.select(split[part], f"the {spec.split} split") for part in PARTS}
        if rotate:
            self.banks["train"] = rotated(self.banks["train"])
        if mirror:
            self.banks["train"] = mirrored(self.banks["train"])
        self.spec = replace(spec, train_classes=len(self.banks["train"].names))
        self.augment = augment

    def training(self, shape: EpisodeSettings, generator: torch.Generator) -> Episodes:
        """Tasks on the training classes, augmented where asked for; a batch of streams is rounded up to whole ones."""
        way, shot = self._train_way(shape), training_shot(shape, generator)
        self._check_sets("train", way)
        batch = -(-shape.batch // shape.stream) * shape.stream
        samples = batch * way * (shot + shape.query)
        check_room(FLOATS * samples * math.prod(self.spec.inputs), f"a training step of {samples:,} samples")
        episodes = self.banks["train"].sample(
            batch, way, shot, shape.query, generator, within_group=self.mixed, stream=shape.stream
        )
        if self.augment == "none":
            return episodes.looked_up()
        augment = AUGMENTATIONS[self.augment]
        return episodes.embedded(lambda images: augment(images, generator))

    def held_out(
        self,
        part: str,
        tasks: int,
        shape: EpisodeSettings,
        generator: torch.Generator,
        *,
        within_group: bool = False,
    ) -> Episodes:
        """Tasks on the classes of ``part``, as row numbers of the bank."""
        if within_group and self.mixed:
            raise UserError("--within-alphabet is not for mixed data sets: each task is of one set in any case")
        self._check_sets(part, shape.way)
        tasks = max(1, tasks // shape.stream) * shape.stream
        episodes = self.banks[part].sample(
            tasks,
            shape.way,
            shape.shot,
            shape.test_query,
            generator,
            within_group=within_group or self.mixed,
            stream=shape.stream,
        )
        return replace(episodes, classes=None)  # they are no training classes

    def _check_sets(self, part: str, way: int) -> None:
        """Refuse tasks that not all of the mixed data sets have the classes for: the others would drop out."""
        if self.mixed and way > (least := int(self.banks[part].group_sizes().min())):
            raise UserError(f"{way=} exceeds the {least} {part} classes of the smallest of the mixed data sets")

    def _train_way(self, shape: EpisodeSettings) -> int:
        """Classes of a training task. Where there are fewer than --train-way, as many as there are.

        In a stream that is as many as all groups have that are large enough for --way; of mixed data sets, as many as
        the smallest has.
        """
        bank, way = self.banks["train"], shape.train_way
        if not way:
            return shape.way
        if self.mixed:
            return min(way, int(bank.group_sizes().min()))
        if shape.stream == 1:
            return min(way, len(bank.names))
        sizes = bank.group_sizes()
        if way <= sizes.max():
            return way
        enough = sizes[sizes >= shape.way]
        return int(enough.min()) if len(enough) else shape.way


def open_tasks(
    task: str,
    settings: DataSettings,
    *,
    quiet: bool = False,
    trained_on: TaskSpec | None = None,
    frame: Any = None,
) -> Tasks:
    """The tasks of that name: a family of functions, a named data set, a Parquet file, a folder, features, curves.

    ``trained_on`` is what a run says of its tasks; other tasks are refused. ``frame`` is a table of curves that is not
    in a file yet.
    """
    if settings.group:
        from metavrf.tasks.curves import open_curves

        curves = open_curves(settings.data or task if frame is None else frame, settings, trained_on)
        if trained_on is not None:
            curves.spec.check_same(trained_on, task)
        return curves
    if task in FAMILIES:
        functions = FunctionTasks(task)
        if trained_on is not None:
            functions.spec.check_same(trained_on, task)
        return functions
    if task in DATASETS:
        tasks = _named(task, settings, quiet=quiet)
    elif Path(task).suffix == ".safetensors":
        tasks = _features(_feature_file(task, settings.data, trained_on))
    else:
        task_kinds(task)  # an unknown name is an error
        tasks = _at(Path(task), settings, quiet=quiet)
    if trained_on is not None:
        tasks.spec.check_same(trained_on, task)
    return tasks


def task_kinds(task: str, group: str = "") -> tuple[str, ...]:
    """What a task is, from the broadest kind to its own name: presets are given by these.

    A registered name goes before a file or folder that is called the same. With a ``group`` it is a file of curves.
    """
    if group:
        return ("all", "functions", "curves")
    if task in FAMILIES:
        return ("all", "functions", task)
    if task in DATASETS:
        return ("all", "classes", DATASETS[task].kind, task)
    path = Path(task)
    if path.suffix == ".csv":
        raise UserError(f"{task} is a table of curves: say with --group which column tells them apart")
    if path.name == task and not path.suffix and not path.exists():
        advice = "give a path, or name the file that adds it with --plugin"
        raise UserError(unknown("task", task, [*FAMILIES, *DATASETS], f"or {advice}"))
    return ("all", "classes", "features" if path.suffix == ".safetensors" else "photographs")


def _at(path: Path, settings: DataSettings, *, quiet: bool) -> ClassTasks:
    """Pictures of one's own at a path."""
    if not path.exists():
        raise UserError(f"{path} does not exist: give a Parquet file, a folder or a feature file that is there")
    if not path.is_file() and not path.is_dir():
        raise UserError(f"{path} is neither a file nor a folder: give a Parquet file, a folder or a feature file")
    return _own(path, settings, quiet=quiet)


def _named(task: str, settings: DataSettings, *, quiet: bool) -> ClassTasks:
    how = preprocessing(task, settings)
    named = replace(DATASETS[task], preprocessing=how)
    split_name = settings.split or next(iter(named.splits))
    if split_name not in named.splits:
        raise UserError(f"split {split_name!r} is unknown for {task}: choose from {', '.join(named.splits)}")
    if settings.rotate and isinstance(named, Mixture):
        raise UserError(f"--rotate is not for {task}: some of its classes are rotations already")
    bank, key = named.read(settings.data, quiet=quiet)
    split = named.splits[split_name](bank.names, settings.split_seed)
    spec = TaskSpec(how.shape, None, split_name, key, "", split)
    rotate = settings.rotate and not how.rotations
    return ClassTasks(
        bank,
        split,
        spec,
        augment=settings.augment,
        rotate=rotate,
        mirror=settings.mirror,
        mixed=isinstance(named, Mixture),
    )


def preprocessing(task: str, settings: DataSettings) -> Preprocessing:
    """What becomes of the pictures of a named data set, or of a path."""
    side = settings.image_size
    if task not in DATASETS:
        return Preprocessing(side or OWN_SIDE, 1 if settings.grey else 3)
    named = DATASETS[task]
    if side and isinstance(named, Mixture):
        raise UserError(f"--image-size is not for {task}: its sets are resized to one size already")
    return replace(named.preprocessing, size=side or named.preprocessing.size)


def _own(path: Path, settings: DataSettings, *, quiet: bool) -> ClassTasks:
    """Pictures of one's own: a Parquet file, a folder of class folders, or either in parts train, val, test."""
    how = preprocessing(str(path), settings)
    parts = _parts(path)
    banks = {
        part: read_bank(
            ParquetSource(files) if files[0].is_file() else FolderSource(files[0]), how, cache_folder(), quiet=quiet
        )
        for part, files in parts.items()
    }
    if set(banks) == set(PARTS):
        bank, split = _joined({part: bank for part, (bank, _) in banks.items()})
        name = "given"
    else:
        bank = banks["all"][0]
        split = _random_split(bank, settings.split_seed, str(path))
        name = f"random, seed {settings.split_seed}"
    key = "-".join(key for _, key in banks.values())
    return ClassTasks(
        bank,
        split,
        TaskSpec(how.shape, None, name, key, "", split),
        augment=settings.augment,
        rotate=settings.rotate,
        mirror=settings.mirror,
    )


_PART_NAMES = {"train": {"train"}, "val": {"val", "valid", "validation"}, "test": {"test"}}


def _parts(path: Path) -> dict[str, list[Path]]:
    """The files or folders of each part, or of "all" where the data is not in parts."""
    if path.is_file():
        return {"all": [path]}
    entries = [entry for entry in sorted(path.iterdir()) if not entry.name.startswith(".")]
    tables = [entry for entry in entries if entry.suffix == ".parquet"]
    folders = [entry for entry in entries if entry.is_dir()]
    found = {
        part: [entry for entry in tables or folders if names & set(re.split(r"[\W_]+", entry.stem))]
        for part, names in _PART_NAMES.items()
    }
    if all(found.values()) and (tables or len(folders) == len(PARTS)):
        return found
    return {"all": tables or [path]}


def _joined(banks: Mapping[str, Bank]) -> tuple[Bank, Split]:
    """One bank of the three parts, whose classes must differ."""
    split = {part: list(bank.names) for part, bank in banks.items()}
    names = [name for part in PARTS for name in split[part]]
    if len(set(names)) < len(names):
        twice = next(name for name in names if names.count(name) > 1)
        raise UserError(
            f"the class {twice!r} is in more than one of train, val and test: few-shot tests need new classes"
        )
    return Bank.join([banks[part] for part in PARTS]), split


def _random_split(bank: Bank, seed: int, where: str) -> Split:
    """60 / 20 / 20 of the classes, at least two in each part."""
    classes = len(bank.names)
    held = max(2, round(0.2 * classes))
    if classes < 3 * 2:
        raise UserError(
            f"{where} has {classes} classes: training needs at least 6, two each to train, validate and test on"
        )
    return divide(bank.names, (classes - 2 * held, held, held), seed)


def _feature_file(task: str, data: str, trained_on: TaskSpec | None) -> Path:
    """Where a feature file is: ``data`` itself, or of the task's name in the data folders, or where the task says."""
    if Path(data).suffix == ".safetensors" and Path(data).is_file():
        return Path(data)
    places = [folder / Path(task).name for folder in data_folders(data)]
    places.insert(1 if data else 0, Path(task))
    found = next((place for place in places if place.is_file()), None)
    if found is not None:
        return found
    command = (trained_on or TaskSpec()).embed_command(task)
    raise UserError(f"the feature file {task} is not there: make it with '{command}', or say where it is with --data")


def _features(path: Path) -> ClassTasks:
    """A feature file that ``metavrf embed`` wrote."""
    tensors, metadata = map_tensors(path, "inputs")
    try:
        features = tensors["inputs"]
        bank = Bank(features, tensors["starts"], tensors["counts"], metadata["names"], tensors.get("groups"))
        spec = TaskSpec.from_dict(metadata["description"], path)
        split = {part: list(spec.classes[part]) for part in PARTS}
    except (KeyError, TypeError, ValueError) as error:
        raise UserError(f"{path} is not a feature file: make it with 'metavrf embed'") from error
    matched = len(bank.names) == len(bank.starts) == len(bank.counts)
    if not matched or (bank.starts < 0).any() or (bank.starts + bank.counts > len(bank.inputs)).any():
        raise UserError(f"{path} is damaged: its classes do not match its features")
    if features.ndim != 2 or not all(torch.isfinite(rows).all() for rows in features.split(ROWS_AT_ONCE)):
        raise UserError(f"{path} is damaged: its features are not a finite matrix")
    return ClassTasks(bank, split, spec, mixed=isinstance(DATASETS.get(spec.pictures), Mixture))
