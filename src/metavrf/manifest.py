"""What a folder of ours holds: its kind, and the SHA-256 sum of each file, compared whenever one is read.

A file that changes while its folder is in use, as those of a run do, is announced before it is renamed into place: the
manifest then names the sum it had and the one it will have, and after a kill at any moment the file has one of the two.
``None`` among the sums says that the file may not be there yet. A folder without a manifest is from an older version,
or the user has removed it after a change of their own: it is read as it is, unverified.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path

from metavrf.errors import UserError
from metavrf.files import read_json, write_atomically, write_json
from metavrf.schema import check_shape

NAME = "manifest.json"
FORMAT = 1
KINDS = ("run", "packed model", "fitted model")
_SHAPE = {"format": int, "kind": str, "files": {str: [(str, None)]}}


@dataclass(frozen=True)
class Manifest:
    """The kind of a folder, and the sums that each of its files may have."""

    kind: str
    files: dict[str, list[str | None]]
    format: int = FORMAT

    @classmethod
    def of(cls, folder: Path) -> Manifest | None:
        """That of a folder, or None where it has none."""
        file = folder / NAME
        values = read_json(file, "take the folder from a copy, or remove this file to use the folder unverified")
        if values is None:
            return None
        check_shape(values, _SHAPE, file)
        if values["kind"] not in KINDS or values["format"] != FORMAT:
            raise UserError(f"{file} is damaged, or of a later version of metavrf: take the folder from a copy")
        return cls(**values)

    @classmethod
    def taken(cls, files: Iterable[Path], kind: str) -> Manifest:
        """Of the files as they are; those that are not there are left out."""
        return cls(kind, {file.name: [_sum_of(file)] for file in files if file.is_file()})

    def write(self, folder: Path) -> None:
        """Put it into its folder."""
        write_json(folder / NAME, asdict(self))


def seal(folder: Path, kind: str, files: Iterable[Path]) -> None:
    """Write the manifest of a folder whose files are done."""
    Manifest.taken(files, kind).write(folder)


def replace_file(file: Path, data: bytes | str, kind: str, others: Iterable[Path]) -> None:
    """Announce and write a file of a folder in use.

    The first file of a new folder makes the manifest. One that has files, ``others``, and no manifest is unverified,
    and stays so until it is sealed.
    """
    data = data.encode() if isinstance(data, str) else data
    manifest = Manifest.of(file.parent)
    if manifest is not None or not any(other.is_file() for other in others):
        manifest = manifest or Manifest(kind, {})
        before = _sum_of(file) if file.is_file() else None
        manifest.files[file.name] = [before, hashlib.sha256(data).hexdigest()]
        manifest.write(file.parent)
    write_atomically(file, data)


def forget(file: Path) -> None:
    """Let a file change unannounced, if the manifest beside it names it."""
    manifest = Manifest.of(file.parent)
    if manifest is not None and manifest.files.pop(file.name, None) is not None:
        manifest.write(file.parent)


def check(file: Path) -> Path:
    """The file itself, once its sum was compared with the manifest beside it."""
    manifest = Manifest.of(file.parent)
    while manifest is not None:
        sums = manifest.files.get(file.name, [None])
        found = _sum_of(file) if file.is_file() else None
        if found in sums:
            return file
        latest = Manifest.of(file.parent)
        if latest == manifest:  # else the folder is in use, and was changed meanwhile
            if found is None:
                raise UserError(f"{file} is missing, but {NAME} names it: take it from a copy")
            raise UserError(
                f"{file} is damaged or was changed: its SHA-256 sum is not the one in {NAME}; take it from a copy, "
                f"or remove {NAME} to use the folder unverified"
            )
        manifest = latest
    return file


def check_all(folder: Path) -> None:
    """Compare every file that the manifest names."""
    manifest = Manifest.of(folder)
    for name in {} if manifest is None else manifest.files:
        check(folder / name)


def _sum_of(file: Path) -> str:
    try:
        with file.open("rb") as opened:
            return hashlib.file_digest(opened, "sha256").hexdigest()
    except OSError as error:
        raise UserError(f"cannot read {file}: {error.strerror}") from error
