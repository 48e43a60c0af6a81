"""Reading pictures: Parquet files and folders of class folders, decoded once in parallel and cached on disk.

A cached bank is one safetensors file, named by a hash of its source and preprocessing, and is memory-mapped: pictures
are read when they are drawn, and all of them may be more than fits into memory. It is written picture by picture beside
its place and renamed, and one that is damaged is made anew: its SHA-256 sum is compared when it is first opened again.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
import warnings
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager, suppress
from dataclasses import asdict, dataclass, replace
from functools import partial
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from metavrf.errors import Caution, UserError
from metavrf.files import compared_sum, map_tensors, write_atomically, write_rows
from metavrf.joined import Joined, as_it_is
from metavrf.tasks.bank import Bank

if TYPE_CHECKING:
    from PIL import Image
    from pyarrow import Table
    from pyarrow.parquet import ParquetFile

FORMAT = 1  # of the cache; a change makes old files unused
AT_ONCE = 256  # pictures that are held encoded while they are decoded
MOST_PIXELS = 50_000_000  # of a picture before it is resized: more is a mistake or an attack
ENDINGS = {".png", ".jpg", ".jpeg", ".webp", ".bmp", ".gif", ".tif", ".tiff", ".ppm", ".pgm"}


@dataclass(frozen=True)
class Preprocessing:
    """What becomes of a picture: its size, its channels, and whether ink is bright."""

    size: int
    channels: int = 3
    invert: bool = False
    rotations: bool = False
    """Rotations by 90° as classes of their own."""

    @property
    def shape(self) -> tuple[int, int, int]:
        """Channels, height, width."""
        return (self.channels, self.size, self.size)

    def decode(self, source: bytes | Path, name: str) -> np.ndarray[Any, Any]:
        """One picture as uint8 ``[channels, size, size]``; ``name`` names it in errors."""
        with open_picture(source, name, "RGB" if self.channels == 3 else "L", self.size) as picture:
            return self.pixels(picture)

    def pixels(self, picture: Image.Image) -> np.ndarray[Any, Any]:
        """An open picture as uint8 ``[channels, size, size]``: upright, and cut to the square in its middle."""
        from PIL import ImageOps

        upright = ImageOps.exif_transpose(picture)
        pixels = np.asarray(_resize(_flatten(upright, self.channels), self.size))
        pixels = pixels[None] if pixels.ndim == 2 else pixels.transpose(2, 0, 1)
        return 255 - pixels if self.invert else pixels


@contextmanager
def open_picture(source: bytes | Path, name: str, mode: str, size: int) -> Iterator[Image.Image]:
    """An encoded picture, opened; what goes wrong with it, while it is used too, is one sentence.

    ``mode`` and ``size`` say what is wanted of it: a large JPEG is decoded at the least resolution above twice that.
    """
    from PIL import Image

    try:
        with Image.open(io.BytesIO(source) if isinstance(source, bytes) else source) as picture:
            if picture.width * picture.height > MOST_PIXELS:
                raise UserError(
                    f"{name} has {picture.width} x {picture.height} pixels, more than {MOST_PIXELS:,}: "
                    "make it smaller or remove it"
                )
            picture.draft(mode, (2 * size, 2 * size))
            yield picture
    except UserError:
        raise
    except Exception as error:  # Pillow's readers raise errors of all kinds, struct.error among them
        reason = " ".join(str(error).split()) or type(error).__name__
        raise UserError(f"{name} is not a picture that can be read ({reason}): mend or remove it") from error


def _flatten(picture: Image.Image, channels: int) -> Image.Image:
    """8 bits a channel, grey or RGB; what is transparent becomes white."""
    from PIL import Image

    if picture.mode.startswith(("I", "F")):  # 16 or 32 bits
        values = np.asarray(picture, dtype=np.float64)
        deep = picture.mode.startswith("I;16") or (picture.mode == "I" and values.max(initial=0) > 255)
        top = 65535.0 if deep else 255.0
        picture = Image.fromarray(np.clip(values * (255 / top), 0, 255).round().astype(np.uint8))
    if picture.has_transparency_data:
        picture = picture.convert("RGBA")
        page = Image.new("RGBA", picture.size, "white")
        picture = Image.alpha_composite(page, picture)
    return picture.convert("L" if channels == 1 else "RGB")


def _resize(picture: Image.Image, size: int) -> Image.Image:
    """Cut to the square in the middle, then resize with a filter that does not alias."""
    from PIL import Image, ImageOps

    if picture.size == (size, size):
        return picture
    return ImageOps.fit(picture, (size, size), Image.Resampling.LANCZOS)


class Source:
    """Encoded pictures with class numbers, before they are decoded."""

    names: list[str]
    labels: list[int]

    def digest(self) -> str:
        """SHA-256 of what is there."""
        raise NotImplementedError

    def read_labels(self) -> None:
        """Set ``names`` and ``labels``, where that is not done yet; decodes nothing."""

    def pictures(self) -> Iterator[tuple[bytes | Path, str]]:
        """Each picture, and its name for errors."""
        raise NotImplementedError


class ParquetSource(Source):
    """Parquet files in the layout of the Hugging Face hub: ``image.bytes``, ``label``, names in the schema."""

    def __init__(self, files: Sequence[Path]) -> None:
        self.files = [Path(file) for file in files]
        self._digest = hashlib.sha256()
        for file in self.files:
            if not file.is_file():
                raise UserError(f"{file} does not exist")
            self._digest.update(compared_sum(file, "download it again, or remove that file to use it unverified"))

    def digest(self) -> str:
        """SHA-256 of the files."""
        return self._digest.hexdigest()

    def read_labels(self) -> None:
        """Of all files: classes of equal name are one class."""
        self.names, self.labels = [], []
        for file in self.files:
            self._read_labels(file, _table(file, ["label"]))
        if not self.labels:
            raise UserError(f"there is not a single picture in {', '.join(map(str, self.files))}")

    def counts(self) -> dict[str, int]:
        """How many pictures each class has; decodes none."""
        self.read_labels()
        counted = Counter(self.labels)
        return {name: counted[number] for number, name in enumerate(self.names)}

    def pictures(self) -> Iterator[tuple[bytes | Path, str]]:
        """The rows of all files, a few of which are in memory at a time."""
        import pyarrow

        for file in self.files:
            with _reading(file, ["image"]) as opened:
                kind = opened.schema_arrow.field("image").type
                fields = {field.name: field.type for field in kind} if pyarrow.types.is_struct(kind) else {}
                if fields.get("bytes") not in (pyarrow.binary(), pyarrow.large_binary()):
                    raise UserError(
                        f"the column 'image' of {file} is {kind}: it must be a struct with the binary field 'bytes'"
                    )
                batches = opened.iter_batches(AT_ONCE, columns=["image"])
                for row, entry in enumerate(entry for batch in batches for entry in batch["image"]):
                    data = entry["bytes"].as_py() if entry.is_valid else None
                    if data is None:
                        raise UserError(f"row {row} of {file} has no image")
                    yield data, f"row {row} of {file}"

    def _read_labels(self, file: Path, table: Table) -> None:
        import pyarrow

        label = table["label"].combine_chunks()
        if not pyarrow.types.is_integer(label.type) or label.null_count:
            raise UserError(f"the column 'label' of {file} must hold whole numbers, and no empty rows")
        labels = label.to_pylist()
        names = _class_names(table.schema.metadata, labels, file)
        known = {name: index for index, name in enumerate(self.names)}
        for name in names.values():
            known.setdefault(name, len(known))
        self.names = list(known)
        self.labels += [known[names[number]] for number in labels]


def _table(file: Path, columns: list[str]) -> Table:
    """Some columns of a Parquet file, all of which must be there."""
    with _reading(file, columns) as opened:
        return opened.read(columns)


@contextmanager
def _reading(file: Path, columns: list[str]) -> Iterator[ParquetFile]:
    """A Parquet file that has these columns, opened; what goes wrong with it, while it is read too, is one sentence."""
    import pyarrow
    import pyarrow.parquet

    try:
        with pyarrow.parquet.ParquetFile(file) as opened:
            there = opened.schema_arrow.names
            for column in columns:
                if column not in there:
                    raise UserError(f"{file} has no column {column!r}: it has {', '.join(there)}")
            yield opened
    except (pyarrow.ArrowException, OSError) as error:
        reason = " ".join(str(error).split())
        raise UserError(f"{file} is not a Parquet file that can be read ({reason})") from error


def _class_names(metadata: dict[bytes, bytes] | None, labels: list[int], file: Path) -> dict[int, str]:
    """Names of the labels that occur: from the ``huggingface`` metadata, or the numbers themselves."""
    used = sorted(set(labels))
    if used and used[0] < 0:
        raise UserError(f"the column 'label' of {file} holds the negative number {used[0]}")
    try:
        info = json.loads((metadata or {})[b"huggingface"])
        names = [str(name) for name in info["info"]["features"]["label"]["names"]]
    except (KeyError, TypeError, ValueError):
        return {number: str(number) for number in used}
    if used and used[-1] >= len(names):
        raise UserError(f"the column 'label' of {file} holds {used[-1]}, but there are {len(names)} class names")
    return {number: names[number] for number in used}


class FolderSource(Source):
    """A folder with one sub-folder of pictures per class; other files, and hidden ones, are left out."""

    def __init__(self, folder: Path) -> None:
        self.folder = Path(folder)
        classes = sorted(entry for entry in self.folder.iterdir() if entry.is_dir() and not entry.name.startswith("."))
        if len(classes) < 2:
            raise UserError(
                f"{folder} has {len(classes)} sub-folders with pictures: it must have one for each class, two or more"
            )
        self.names = [entry.name for entry in classes]
        self.files: list[Path] = []
        self.labels = []
        for number, entry in enumerate(classes):
            found = _pictures_in(entry)
            if not found:
                raise UserError(f"the class folder {entry} holds no pictures: add some, or remove it")
            self.files += found
            self.labels += [number] * len(found)

    def digest(self) -> str:
        """SHA-256 of names and contents."""
        digest = hashlib.sha256()
        for file in self.files:
            digest.update(os.fsencode(file.relative_to(self.folder)) + b"\0")
            with file.open("rb") as opened:
                digest.update(hashlib.file_digest(opened, "sha256").digest())
        return digest.hexdigest()

    def pictures(self) -> Iterator[tuple[bytes | Path, str]]:
        """The files, class by class."""
        return ((file, str(file)) for file in self.files)


def _pictures_in(folder: Path) -> list[Path]:
    """The picture files in a folder and the folders in it, but for hidden ones."""
    return sorted(
        file
        for file in folder.rglob("*")
        if file.suffix.lower() in ENDINGS
        and not any(part.startswith(".") for part in file.relative_to(folder).parts)
        and file.is_file()
    )


def picture_files(paths: Sequence[Path]) -> list[Path]:
    """Files as they are named, and of folders the pictures in them."""
    files: list[Path] = []
    for path in paths:
        if not path.exists():
            raise UserError(f"{path} does not exist")
        found = _pictures_in(path) if path.is_dir() else [path]
        if not found:
            raise UserError(f"the folder {path} holds no pictures")
        files += found
    return files


def read_bank(source: Source, how: Preprocessing, cache: Path, *, quiet: bool = False) -> tuple[Bank, str]:
    """The bank of a source, and the SHA-256 of source and preprocessing; decoded only if the cache has it not."""
    key = hashlib.sha256(f"{FORMAT} {source.digest()} {asdict(how)}".encode()).hexdigest()
    file = cache / "banks" / f"{key[:32]}.safetensors"
    if file.exists():
        with suppress(UserError, KeyError):  # damaged: made anew below
            bank = _cached(file)
            if bank.inputs.shape[1:] == how.shape and len(bank.names) == len(bank.starts) == len(bank.counts):
                return bank, key
    source.read_labels()
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        _decode_into(file, source, how, quiet=quiet)
        return _mapped(file), key
    except OSError as error:  # a full or read-only disk is no reason to stop: there may be memory
        warnings.warn(f"the decoded pictures are not cached ({error})", Caution, stacklevel=2)
    return _decode(source, how, quiet=quiet), key


def _cached(file: Path) -> Bank:
    """A bank of the cache. Its sum is compared once for each version of the file: it may be of gigabytes."""
    status, checked = file.stat(), file.with_suffix(".checked")
    version = f"{status.st_size} {status.st_mtime_ns} {status.st_ino}"
    known = checked.is_file() and checked.read_bytes() == version.encode()
    bank = _mapped(file, verify=not known)
    if not known:
        with suppress(UserError):  # a cache that cannot be written to is compared each time
            write_atomically(checked, version)
    return bank


def _mapped(file: Path, *, verify: bool = False) -> Bank:
    tensors, metadata = map_tensors(file, "inputs", verify=verify)
    return Bank(tensors["inputs"], tensors["starts"], tensors["counts"], metadata["names"])


def _decode_into(file: Path, source: Source, how: Preprocessing, *, quiet: bool) -> None:
    """Write the bank of a source picture by picture; no more than a few are in memory."""
    bank = _layout(source, how)
    others, metadata = {"starts": bank.starts, "counts": bank.counts}, {"names": list(bank.names)}
    with write_rows(
        file, "inputs", torch.uint8, (len(bank.inputs), *how.shape), tensors=others, metadata=metadata
    ) as writer:
        for row, images in _decoded(source, how, quiet=quiet):
            writer.put(row, images)


def _decode(source: Source, how: Preprocessing, *, quiet: bool) -> Bank:
    """The bank of a source, in memory."""
    bank = _layout(source, how)
    inputs = torch.empty(len(bank.inputs), *how.shape, dtype=torch.uint8)
    for row, images in _decoded(source, how, quiet=quiet):
        inputs[row] = images
    return replace(bank, inputs=inputs)


def _layout(source: Source, how: Preprocessing) -> Bank:
    """The bank of a source with pictures of no size."""
    labels = torch.tensor(source.labels)
    bank = Bank.of_labels(torch.empty(len(labels), *how.shape[:1], 0, 0), labels, source.names)
    return rotated(bank) if how.rotations else bank


def _decoded(source: Source, how: Preprocessing, *, quiet: bool) -> Iterator[tuple[int, Tensor]]:
    """The pictures of a source in its own order, each with its row in the bank, and in all rotations."""
    from rich.console import Console
    from rich.progress import track

    console = Console(stderr=True)
    hidden = quiet or not console.is_terminal
    size, turns = len(source.labels), range(4 if how.rotations else 1)
    rows = torch.argsort(torch.argsort(torch.tensor(source.labels), stable=True)).tolist()
    with (
        warnings.catch_warnings(action="ignore"),  # of odd metadata; not in decode(), for it is not safe in threads
        ThreadPoolExecutor(min(8, os.cpu_count() or 1)) as pool,
        closing(source.pictures()) as pictures,  # type: ignore[type-var]
    ):
        decoded = (image for some in _chunks(pictures) for image in pool.map(lambda item: how.decode(*item), some))
        shown = track(decoded, "decoding pictures", size, console=console, disable=hidden, transient=True)
        for row, image in zip(rows, shown, strict=True):
            for turn in turns:
                turned = np.ascontiguousarray(np.rot90(image, turn, (1, 2)))
                yield row + turn * size, torch.from_numpy(turned)


def _chunks(pictures: Iterator[tuple[bytes | Path, str]]) -> Iterator[list[tuple[bytes | Path, str]]]:
    """A few at a time: a pool takes in all that it is given."""
    while some := list(islice(pictures, AT_ONCE)):
        yield some


def rotated(bank: Bank) -> Bank:
    """The bank with rotations by 0°, 90°, 180°, 270° as classes of their own: ``name@90``; nothing is copied."""
    turns = range(4)
    size = len(bank.inputs)
    return Bank(
        Joined([(bank.inputs, partial(torch.rot90, k=turn, dims=(2, 3))) for turn in turns]),
        torch.cat([bank.starts + turn * size for turn in turns]),
        bank.counts.repeat(4),
        list(rotated_names(dict.fromkeys(bank.names, 0))),
        _repeated_groups(bank, 4),
    )


def mirrored(bank: Bank) -> Bank:
    """The bank with mirror images as classes of their own: ``name@mirror``; nothing is copied."""
    return Bank(
        Joined([(bank.inputs, as_it_is), (bank.inputs, partial(torch.flip, dims=(3,)))]),
        torch.cat([bank.starts, bank.starts + len(bank.inputs)]),
        bank.counts.repeat(2),
        [*bank.names, *(f"{name}@mirror" for name in bank.names)],
        _repeated_groups(bank, 2),
    )


def _repeated_groups(bank: Bank, times: int) -> Tensor | None:
    """Groups of a bank whose classes are repeated in other views: an alphabet turned is another alphabet."""
    if bank.groups is None:
        return None
    return torch.cat([bank.groups + view * (int(bank.groups.max()) + 1) for view in range(times)])


def rotated_names(counts: dict[str, int]) -> dict[str, int]:
    """Counts by class with the rotated classes: first all upright ones, then all turned by 90°, and so on."""
    return {name + turn: count for turn in ("", "@90", "@180", "@270") for name, count in counts.items()}


def cache_folder() -> Path:
    """Where decoded pictures and downloads are kept: METAVRF_CACHE, or metavrf in the user's cache folder."""
    named = os.environ.get("METAVRF_CACHE")
    base = os.environ.get("XDG_CACHE_HOME")
    return Path(named) if named else (Path(base) if base else Path.home() / ".cache") / "metavrf"
