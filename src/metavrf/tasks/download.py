"""Fetching the official archives, and turning them into the Parquet files that the rest of the package reads.

A download that breaks goes on where it stopped. Nothing is used before its size and SHA-256 are right, archives are
read in place and never unpacked to disk, and no pickle is loaded: of CIFAR-100 the binary version is taken.
"""

from __future__ import annotations

import hashlib
import io
import json
import re
import struct
import tarfile
import zipfile
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from http.client import HTTPException, HTTPResponse
from itertools import islice
from pathlib import Path
from urllib.error import HTTPError, URLError
from urllib.request import Request, urlopen

import numpy as np
from numpy.typing import NDArray

from metavrf.errors import UserError
from metavrf.files import write_with_sum

TIMEOUT = 30.0  # seconds without a byte
CHUNK = 1 << 16
ROW_GROUP = 2000
MOST_BYTES_OF_A_DRAWING = 1 << 16  # the official ones have a few hundred
MOST_BYTES_OF_A_MEMBER = 1 << 28  # CIFAR's train.bin has 154 MB
CIFAR_ROW = 2 + 3 * 32 * 32  # coarse label, fine label, then the red, green and blue plane

Row = tuple[bytes, str | None, int]  # an encoded picture, its path in the archive if it has one, its label


@dataclass(frozen=True)
class RemoteFile:
    """A file on the web that must be exactly this one."""

    url: str
    size: int
    sha256: str


# Sizes and hashes: TensorFlow Datasets, url_checksums/omniglot.txt and cifar100.txt.
OFFICIAL: Mapping[str, RemoteFile] = {
    "images_background.zip": RemoteFile(
        "https://github.com/brendenlake/omniglot/raw/master/python/images_background.zip",
        9_464_212,
        "ad41ab679c8b5d90b271ef46be6987cc81211774a695c29dcc5367b2b26ee640",
    ),
    "images_evaluation.zip": RemoteFile(
        "https://github.com/brendenlake/omniglot/raw/master/python/images_evaluation.zip",
        6_462_886,
        "1f61a8f3366785b057fc117d9228e78a16e3d976c8953b2a10fcc74cf0609cee",
    ),
    "cifar-100-binary.tar.gz": RemoteFile(
        "https://www.cs.toronto.edu/~kriz/cifar-100-binary.tar.gz",
        168_513_733,
        "58a81ae192c23a4be8b1804d68e518ed807d710a4eb253b1f2a199162a40d8ec",
    ),
}


def fetch(file: RemoteFile, folder: Path, *, quiet: bool = False) -> Path:
    """``file`` in ``folder``, downloaded if it is not there; what a broken download left is used."""
    path = folder / file.url.rpartition("/")[2]
    part = path.with_name(f"{path.name}.part")
    try:
        folder.mkdir(parents=True, exist_ok=True)
        if path.exists() and not _difference(path, file):
            return path
        _receive(file, part, quiet=quiet)
        if difference := _difference(part, file):
            part.unlink()
            raise UserError(f"{file.url} is not the file it should be ({difference}), so what came was deleted")
        part.replace(path)
    except (OSError, HTTPException) as error:
        reason = error.reason if type(error) is URLError else error  # a URLError only wraps
        raise UserError(
            f"cannot download {file.url} into {folder} ({reason}); "
            "what was received so far is kept, and the next try goes on from there"
        ) from error
    return path


def _difference(path: Path, file: RemoteFile) -> str:
    """What keeps ``path`` from being ``file``; empty if nothing does."""
    if (size := path.stat().st_size) != file.size:
        return f"{size} bytes instead of {file.size}"
    with path.open("rb") as content:
        digest = hashlib.file_digest(content, "sha256").hexdigest()
    return "" if digest == file.sha256 else f"SHA-256 {digest} instead of {file.sha256}"


def _receive(file: RemoteFile, part: Path, *, quiet: bool) -> None:
    """Bring ``part`` to its full length, asking only for what it lacks."""
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn

    start = part.stat().st_size if part.exists() else 0
    if start == file.size:  # killed after the last byte, before the check
        return
    console = Console(stderr=True)
    named = TextColumn("{task.description}", markup=False)
    columns = (named, BarColumn(bar_width=24), DownloadColumn(), TimeRemainingColumn())
    with (
        _open(file.url, start if start < file.size else 0) as response,
        part.open("ab" if response.status == 206 else "wb") as out,  # 200: the server sends all of it again
        Progress(*columns, console=console, disable=quiet or not console.is_terminal) as bar,
    ):
        task = bar.add_task(part.stem, total=file.size, completed=out.tell())
        while out.tell() <= file.size and (chunk := response.read(CHUNK)):
            out.write(chunk)
            bar.update(task, completed=out.tell())
        if response.length and out.tell() < file.size:  # read() does not say that bytes are missing
            raise ConnectionError(f"the connection broke after {out.tell()} of {file.size} bytes")


def _open(url: str, start: int) -> HTTPResponse:
    """The content of ``url`` from byte ``start`` on, or all of it where the server cannot do that."""
    headers = {"User-Agent": "metavrf"} | ({"Range": f"bytes={start}-"} if start else {})
    try:
        response: HTTPResponse = urlopen(Request(url, headers=headers), timeout=TIMEOUT)
    except HTTPError as error:
        error.close()
        if error.code != 416 or not start:
            raise
        return _open(url, 0)
    return response


def download_omniglot(folder: Path, *, quiet: bool = False, files: Mapping[str, RemoteFile] = OFFICIAL) -> list[Path]:
    """Make omniglot-background.parquet and omniglot-evaluation.parquet in ``folder``; the archives stay beside them."""
    written = []
    for part in ("background", "evaluation"):
        archive = fetch(files[f"images_{part}.zip"], folder, quiet=quiet)
        with _damage_reported(archive):
            drawings = _read_drawings(archive)
        names = sorted({path.rpartition("/")[0] for path, _ in drawings})
        label = {name: index for index, name in enumerate(names)}
        rows = ((png, path, label[path.rpartition("/")[0]]) for path, png in drawings)
        written.append(_write(folder / f"omniglot-{part}.parquet", rows, names))
    return written


def _read_drawings(archive: Path) -> list[tuple[str, bytes]]:
    """``alphabet/character/drawing.png`` and content of every drawing, in the order of the paths."""
    pattern = re.compile(r"images_\w+/([^/]+/character\d+/\d+_\d+\.png)")
    with zipfile.ZipFile(archive) as file:
        found = {match[1]: member for member in file.infolist() if (match := pattern.fullmatch(member.filename))}
        if not found:
            raise ValueError("it holds no drawings")
        for path, member in found.items():
            if member.file_size > MOST_BYTES_OF_A_DRAWING:
                raise ValueError(f"{path} would take {member.file_size} bytes")
        return [(path, file.read(found[path])) for path in sorted(found)]


def download_cifar100(folder: Path, *, quiet: bool = False, files: Mapping[str, RemoteFile] = OFFICIAL) -> list[Path]:
    """Make cifar100-train.parquet and cifar100-test.parquet in ``folder``; the archive stays beside them."""
    archive = fetch(files["cifar-100-binary.tar.gz"], folder, quiet=quiet)
    with _damage_reported(archive):
        names, parts = _read_cifar(archive)
    return [_write(folder / f"cifar100-{part}.parquet", _encode(rows), names) for part, rows in parts.items()]


def _read_cifar(archive: Path) -> tuple[list[str], dict[str, NDArray[np.uint8]]]:
    """Names of the fine labels, and the rows ``[n, 3074]`` of both parts."""
    content = dict.fromkeys(("train.bin", "test.bin", "fine_label_names.txt"), b"")
    with tarfile.open(archive, "r:gz") as file:
        for member in file:
            name = member.name.rpartition("/")[2]
            if name in content and member.isreg() and (stream := file.extractfile(member)):
                if member.size > MOST_BYTES_OF_A_MEMBER:
                    raise ValueError(f"{name} would take {member.size} bytes")
                content[name] = stream.read()
    names = content["fine_label_names.txt"].decode("ascii").split()
    parts = {}
    for part in ("train", "test"):
        data = content[f"{part}.bin"]
        if not data or len(data) % CIFAR_ROW:
            raise ValueError(f"{part}.bin has {len(data)} bytes, not a multiple of {CIFAR_ROW}")
        parts[part] = np.frombuffer(data, np.uint8).reshape(-1, CIFAR_ROW)
        if parts[part][:, 1].max() >= len(names):
            raise ValueError(f"{part}.bin has labels without a name")
    return names, parts


def _encode(rows: NDArray[np.uint8]) -> Iterator[Row]:
    """CIFAR rows as PNG, class by class, within a class in the official order."""
    from PIL import Image

    for row in rows[rows[:, 1].argsort(kind="stable")]:
        png = io.BytesIO()
        Image.fromarray(np.ascontiguousarray(row[2:].reshape(3, 32, 32).transpose(1, 2, 0))).save(png, "PNG")
        yield png.getvalue(), None, int(row[1])


@contextmanager
def _damage_reported(archive: Path) -> Iterator[None]:
    """One sentence for all that can be wrong with an archive."""
    kinds = (OSError, ValueError, LookupError, EOFError, RuntimeError, struct.error, zlib.error)
    try:
        yield
    except (*kinds, zipfile.BadZipFile, tarfile.TarError) as error:
        raise UserError(f"{archive} is damaged ({error}): delete it and download it again") from error


def _write(path: Path, rows: Iterable[Row], names: Sequence[str]) -> Path:
    """Write ``rows`` in the layout of the Hugging Face hub's image sets, in one step, and their sum beside them."""
    import pyarrow as pa
    from pyarrow.parquet import ParquetWriter

    features = {"image": {"_type": "Image"}, "label": {"names": list(names), "_type": "ClassLabel"}}
    image = pa.struct([("bytes", pa.binary()), ("path", pa.string())])
    schema = pa.schema([("image", image), ("label", pa.int64())])
    schema = schema.with_metadata({"huggingface": json.dumps({"info": {"features": features}})})
    rows, sink = iter(rows), io.BytesIO()
    with ParquetWriter(sink, schema, compression="zstd") as writer:
        while group := list(islice(rows, ROW_GROUP)):
            images = [{"bytes": data, "path": where} for data, where, _ in group]
            writer.write_table(pa.table([images, [label for _, _, label in group]], schema=schema))
    write_with_sum(path, sink.getvalue())
    return path


DOWNLOADS: dict[str, Callable[..., list[Path]]] = {"omniglot": download_omniglot, "cifar100": download_cifar100}
