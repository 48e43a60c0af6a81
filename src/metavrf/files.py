"""Files that survive a crash: each is written beside its place and renamed into it. Nothing here is a pickle.

A safetensors file carries the SHA-256 sum of its tensors and metadata, which is compared when it is read. One that may
be larger than memory is written row by row and mapped: only the rows that are looked at are read.
"""

from __future__ import annotations

import ctypes
import glob
import hashlib
import json
import math
import os
import secrets
import shutil
import time
import warnings
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import numpy as np
import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor

from metavrf.errors import UserError

PathLike = str | os.PathLike[str]
STALE_SECONDS = 86_400  # after which a temporary file is taken for one that a killed process left
_HERE, _EXCHANGE = -100, 2  # AT_FDCWD and RENAME_EXCHANGE of Linux
SUM_KEY = "sha256"
_TYPES = {
    "U8": torch.uint8,
    "I32": torch.int32,
    "I64": torch.int64,
    "F16": torch.float16,
    "F32": torch.float32,
    "F64": torch.float64,
}
METADATA_KEY = "metavrf"  # one key: the order of several is random in the file, and equal runs should be equal bytes


def write_atomically(path: Path, data: bytes | str, ready: Callable[[], None] | None = None) -> None:
    """Replace ``path`` by ``data`` in one step: after a crash the file holds the old or the new, never a part.

    ``ready`` is called once the data is on the disk, before it takes its place.
    """
    temporary = _unique(path)
    try:
        _sweep(path)
        with temporary.open("xb") as file:
            file.write(data.encode() if isinstance(data, str) else data)
            file.flush()
            os.fsync(file.fileno())
        if ready is not None:
            ready()
        temporary.replace(path)
    except OSError as error:
        raise UserError(f"cannot write {path}: {error.strerror or error}; what was there before is unharmed") from error
    finally:
        with suppress(OSError):
            temporary.unlink(missing_ok=True)


def second_name(path: Path, other: Path) -> None:
    """Give a file another name too, in place of what has it; where files have one name only, move it there."""
    linked = _unique(other)
    try:
        linked.hardlink_to(path)
    except OSError:
        linked = path
    linked.replace(other)


@contextmanager
def beside(folder: Path, replacing: Collection[str] = ()) -> Iterator[Path]:
    """A new folder beside ``folder`` that takes its place in the end; where anything fails, it is removed.

    What is there must be empty, or hold no other files than those named in ``replacing``.
    """
    folder = folder.absolute()
    unfinished = _unique(folder)
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        _sweep(folder)
        if folder.is_dir() and any(entry.name not in replacing for entry in folder.iterdir()):
            raise UserError(f"{folder} is not empty: choose another folder")
        unfinished.mkdir()
        yield unfinished
        if folder.is_dir() and any(folder.iterdir()):
            _exchange(unfinished, folder)
        elif folder.is_dir():  # and empty; it stays the same folder, as someone may stand in it
            # The manifest goes first: a folder that lacks what its manifest names is not taken for a whole one.
            for file in sorted(unfinished.iterdir(), key=lambda file: file.name != "manifest.json"):
                file.replace(folder / file.name)
        else:
            unfinished.replace(folder)
    except OSError as error:
        raise UserError(f"cannot write {folder}: {error.strerror or error}") from error
    finally:
        shutil.rmtree(unfinished, ignore_errors=True)


def _exchange(new: Path, old: Path) -> None:
    """Let two folders change places in one step; where the system cannot, in two."""
    try:
        at_once = ctypes.CDLL(None, use_errno=True).renameat2
        if at_once(_HERE, os.fsencode(new), _HERE, os.fsencode(old), _EXCHANGE) == 0:
            return
    except (OSError, AttributeError, TypeError):  # not Linux
        pass
    aside = _unique(old)
    old.replace(aside)
    new.replace(old)
    aside.replace(new)


def _unique(path: Path) -> Path:
    """A name beside ``path`` that no other process, thread or run writes to."""
    return path.with_name(f".{path.name}.{secrets.token_hex(6)}.tmp")


def _sweep(path: Path) -> None:
    """Remove what killed processes left half written beside ``path``."""
    for left in path.parent.glob(f".{glob.escape(path.name)}.*.tmp"):
        with suppress(OSError):
            if time.time() - left.stat().st_mtime > STALE_SECONDS:
                shutil.rmtree(left) if left.is_dir() else left.unlink()


def write_json(path: Path, value: Any) -> None:
    """Write ``value`` as readable JSON, atomically."""
    write_atomically(path, as_json(value))


def write_summed_json(path: Path, values: Mapping[str, Any]) -> None:
    """Write an object as JSON with its own sum, for a file that no manifest names."""
    write_json(path, {SUM_KEY: _json_sum(values), **values})


def read_summed_json(path: Path, advice: str) -> dict[str, Any] | None:
    """What :func:`write_summed_json` wrote, or None where there is no such file."""
    values = read_json(path, advice)
    if values is None:
        return None
    expected = values.pop(SUM_KEY, None)
    if expected is None:  # of an older version, or the very name of the sum was changed
        raise UserError(f"{path} carries no SHA-256 sum, so that nothing tells whether it was changed; {advice}")
    if expected != _json_sum(values):
        raise UserError(
            f"{path} is damaged or was changed: its SHA-256 sum is not the one it was written with; {advice}"
        )
    return values


def _json_sum(values: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(dict(values), sort_keys=True).encode()).hexdigest()


def as_json(value: Any) -> str:
    """The text of a JSON file."""
    return json.dumps(value, indent=2) + "\n"


def read_tensors(path: Path, *, verify: bool = True) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Tensors and metadata of a safetensors file that a run wrote; ``verify`` compares their sum, if it has one."""
    try:
        with safe_open(path, framework="pt") as file:
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 - it is no mapping
            metadata = dict(json.loads((file.metadata() or {})[METADATA_KEY]))
    except FileNotFoundError as error:
        raise UserError(f"{path} does not exist") from error
    except (SafetensorError, OSError) as error:
        raise UserError(f"{path} is damaged or not a safetensors file ({error})") from error
    except (KeyError, ValueError, TypeError, RecursionError) as error:
        raise UserError(f"{path} was not written by metavrf: its metadata has no {METADATA_KEY!r}") from error
    expected = metadata.pop(SUM_KEY, None)
    if verify and expected is not None and expected != _sum(tensors, metadata):
        raise UserError(f"{path} is damaged or was changed: its SHA-256 sum is not the one it was written with")
    return tensors, metadata


def map_tensors(path: Path, large: str, *, verify: bool = True) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """What :func:`read_tensors` gives, but the tensor ``large`` stays in the file, which may be larger than memory.

    Its memory is a read-only map of the file: the rows that are looked at are read, and the system may forget them
    again. To write to it is a fault. A private map, as safetensors makes one, is refused where it exceeds the memory.
    """
    try:
        with safe_open(path, framework="np") as file:
            names = list(file.keys())
            tensors = {name: torch.from_numpy(file.get_tensor(name)) for name in names if name != large}
            metadata = dict(json.loads((file.metadata() or {})[METADATA_KEY]))
        if large in names:
            tensors[large] = _mapped(path, large)
    except FileNotFoundError as error:
        raise UserError(f"{path} does not exist") from error
    except (SafetensorError, OSError) as error:
        raise UserError(f"{path} is damaged or not a safetensors file ({error})") from error
    except (KeyError, ValueError, TypeError, RecursionError) as error:
        raise UserError(f"{path} was not written by metavrf ({type(error).__name__}: {error})") from error
    expected = metadata.pop(SUM_KEY, None)
    if verify and expected is not None and expected != _sum(tensors, metadata):
        raise UserError(f"{path} is damaged or was changed: its SHA-256 sum is not the one it was written with")
    return tensors, metadata


def _mapped(path: Path, name: str) -> Tensor:
    """A tensor of a safetensors file whose header was found to be sound."""
    with path.open("rb") as file:
        size = int.from_bytes(file.read(8), "little")
        entry = json.loads(file.read(size))[name]
    first, last = entry["data_offsets"]
    kind, shape = _TYPES[entry["dtype"]], entry["shape"]
    if first == last:
        return torch.empty(shape, dtype=kind)
    values = np.memmap(path, np.uint8, "r", 8 + size + first, (last - first,))
    with warnings.catch_warnings(action="ignore"):  # that it cannot be written to, as is meant
        return torch.from_numpy(values).view(kind).view(shape)


def sum_file(path: Path) -> Path:
    """Where the sum of a file stands that another program may have written too: as ``sha256sum`` writes it."""
    return path.with_name(f"{path.name}.sha256")


def write_with_sum(path: Path, data: bytes) -> None:
    """Write a file, and its sum beside it."""
    with suppress(OSError):
        sum_file(path).unlink(missing_ok=True)  # first: a kill leaves a file without a sum, not one with another's
    write_atomically(path, data)
    write_atomically(sum_file(path), f"{hashlib.sha256(data).hexdigest()}  {path.name}\n")


def compared_sum(path: Path, advice: str) -> bytes:
    """SHA-256 of a file; one that is not the sum beside it is refused. Without a sum there it is as it is."""
    beside = sum_file(path)
    try:
        with path.open("rb") as opened:
            found = hashlib.file_digest(opened, "sha256")
        known = beside.read_bytes() if beside.is_file() else None
    except OSError as error:
        raise UserError(f"cannot read {path}: {error.strerror}") from error
    if known is not None and known != f"{found.hexdigest()}  {path.name}\n".encode():
        raise UserError(f"{path} is damaged or was changed: its SHA-256 sum is not the one in {beside.name}; {advice}")
    return found.digest()


def read_json(path: Path, advice: str) -> dict[str, Any] | None:
    """A JSON object, or None where there is no such file."""
    if not path.exists():
        return None
    try:
        return dict(json.loads(path.read_text()))
    except (OSError, ValueError, TypeError, RecursionError) as error:
        raise UserError(f"{path} is damaged ({error}): {advice}") from error


def write_tensors(path: Path, tensors: Mapping[str, Tensor], metadata: Mapping[str, Any]) -> None:
    """Write a safetensors file with metadata, atomically."""
    write_atomically(path, tensors_as_bytes(tensors, metadata))


def tensors_as_bytes(tensors: Mapping[str, Tensor], metadata: Mapping[str, Any]) -> bytes:
    """A safetensors file with metadata and the sum of both."""
    on_cpu = {name: tensor.detach().to("cpu", copy=False).contiguous() for name, tensor in tensors.items()}
    summed = dict(metadata) | {SUM_KEY: _sum(on_cpu, metadata)}
    return save(on_cpu, {METADATA_KEY: json.dumps(summed, sort_keys=True)})


@dataclass
class RowWriter:
    """Writes the rows of the large tensor of a file, in any order. ``metadata`` may be set until the end."""

    metadata: Mapping[str, Any]
    _file: IO[bytes]
    _start: int
    _row_size: int

    def put(self, row: int, values: Tensor) -> None:
        """Write some rows, from number ``row`` on."""
        self._file.seek(self._start + row * self._row_size)
        self._file.write(memoryview(values.contiguous().view(-1).view(torch.uint8).numpy()))  # type: ignore[arg-type]


@contextmanager
def write_rows(
    path: Path,
    large: str,
    dtype: torch.dtype,
    shape: Sequence[int],
    *,
    tensors: Mapping[str, Tensor],
    metadata: Mapping[str, Any],
) -> Iterator[RowWriter]:
    """Write what :func:`write_tensors` writes, the tensor ``large`` row by row: it may be larger than memory.

    The file takes its place at the end, if nothing failed. An OSError is passed on.

    Metadata that is set later must be as long as the first: the place before the tensors is theirs.
    """
    kind = next(name for name, known in _TYPES.items() if known == dtype)
    others = {name: tensor.contiguous() for name, tensor in sorted(tensors.items())}
    entries, end = {}, 0
    for name, tensor in others.items():
        of = next(name for name, known in _TYPES.items() if known == tensor.dtype)
        entries[name] = {"dtype": of, "shape": list(tensor.shape), "data_offsets": [end, end + tensor.nbytes]}
        end += tensor.nbytes
    row_size = math.prod(shape[1:]) * dtype.itemsize
    entries[large] = {"dtype": kind, "shape": list(shape), "data_offsets": [end, end + shape[0] * row_size]}

    def header(metadata: Mapping[str, Any], digest: str) -> bytes:
        summed = json.dumps(dict(metadata) | {SUM_KEY: digest}, sort_keys=True)
        text = json.dumps({"__metadata__": {METADATA_KEY: summed}} | entries, separators=(",", ":")).encode()
        text += b" " * (-len(text) % 8)
        return len(text).to_bytes(8, "little") + text

    temporary = _unique(path)
    try:
        _sweep(path)
        with temporary.open("xb") as file:
            before = header(metadata, "0" * 64)
            file.write(before)
            for tensor in others.values():
                file.write(tensor.numpy().tobytes())
            writer = RowWriter(metadata, file, len(before) + end, row_size)
            yield writer
            file.truncate(len(before) + end + shape[0] * row_size)
            file.flush()
            digest = _sum(others | {large: _mapped(temporary, large)}, writer.metadata)
            after = header(writer.metadata, digest)
            if len(after) != len(before):
                raise ValueError("the metadata became longer or shorter while rows were written")
            file.seek(0)
            file.write(after)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    finally:
        with suppress(OSError):
            temporary.unlink(missing_ok=True)


def _sum(tensors: Mapping[str, Tensor], metadata: Mapping[str, Any]) -> str:
    """SHA-256 of names, types, shapes, values and metadata."""
    digest = hashlib.sha256(json.dumps(dict(metadata), sort_keys=True).encode())
    for name, tensor in sorted(tensors.items()):
        digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode())
        digest.update(memoryview(tensor.reshape(-1).view(torch.uint8).numpy()))  # type: ignore[arg-type]
    return digest.hexdigest()


def load_weights(module: torch.nn.Module, tensors: Mapping[str, Tensor], where: str) -> dict[str, Tensor]:
    """Load ``tensors`` into ``module``, and return them as loaded; one sentence if they do not fit.

    What a module calls ``once_one_number``, older files may hold as one number.
    """
    own = module.state_dict()
    grown = [name for name in getattr(module, "once_one_number", ()) if name in tensors and tensors[name].ndim == 0]
    tensors = {**tensors, **{name: tensors[name].expand_as(own[name]).clone() for name in grown}}
    if missing := sorted(own.keys() ^ tensors.keys()):
        raise UserError(f"{where} does not belong to this configuration: {missing[0]!r} stands on one side only")
    for name, tensor in tensors.items():
        if tensor.shape != own[name].shape:
            raise UserError(
                f"{where} does not belong to this configuration: {name!r} is {tuple(tensor.shape)}, "
                f"not {tuple(own[name].shape)}"
            )
        if tensor.dtype != own[name].dtype and not (tensor.is_floating_point() and own[name].is_floating_point()):
            raise UserError(f"{where} is damaged: {name!r} is {tensor.dtype}, not {own[name].dtype}")
        if not torch.isfinite(tensor).all():
            raise UserError(f"{where} is damaged: {name!r} holds NaN or infinity")
    module.load_state_dict(tensors)
    return tensors
