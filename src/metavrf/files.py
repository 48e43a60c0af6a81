"""Files that survive a crash: each is written beside its place and renamed into it. Nothing here is a pickle."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor

from metavrf.errors import UserError

PathLike = str | os.PathLike[str]
METADATA_KEY = "metavrf"  # one key: the order of several is random in the file, and equal runs should be equal bytes


def write_atomically(path: Path, data: bytes | str) -> None:
    """Replace ``path`` by ``data`` in one step: after a crash the file holds the old or the new, never a part."""
    temporary = path.with_name(f".{path.name}.tmp")  # one name: what a killed run left is overwritten, not collected
    try:
        with temporary.open("wb") as file:
            file.write(data.encode() if isinstance(data, str) else data)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    except OSError as error:
        raise UserError(f"cannot write {path}: {error.strerror or error}; what was there before is unharmed") from error
    finally:
        with suppress(OSError):
            temporary.unlink(missing_ok=True)


@contextmanager
def beside(folder: Path) -> Iterator[Path]:
    """A new folder beside ``folder`` that takes its place in the end; where anything fails, it is removed."""
    folder = folder.absolute()
    unfinished = folder.with_name(f".{folder.name}.{os.getpid()}.tmp")
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        if folder.is_dir() and any(folder.iterdir()):
            raise UserError(f"{folder} is not empty: choose another folder")
        unfinished.mkdir()
        yield unfinished
        if folder.is_dir():  # and empty; it stays the same folder, as someone may stand in it
            for file in unfinished.iterdir():
                file.replace(folder / file.name)
        else:
            unfinished.replace(folder)
    except OSError as error:
        raise UserError(f"cannot write {folder}: {error.strerror or error}") from error
    finally:
        shutil.rmtree(unfinished, ignore_errors=True)


def write_json(path: Path, value: Any) -> None:
    """Write ``value`` as readable JSON, atomically."""
    write_atomically(path, json.dumps(value, indent=2) + "\n")


def read_metadata(path: Path) -> dict[str, Any]:
    """The metadata of a safetensors file that a run wrote, without its tensors."""
    try:
        with safe_open(path, framework="pt") as file:
            return dict(json.loads((file.metadata() or {})[METADATA_KEY]))
    except (SafetensorError, OSError, KeyError, ValueError, TypeError) as error:
        raise UserError(f"{path} is damaged or was not written by metavrf ({error})") from error


def read_tensors(path: Path) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Tensors and metadata of a safetensors file that a run wrote."""
    try:
        with safe_open(path, framework="pt") as file:
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 - it is no mapping
            metadata = json.loads((file.metadata() or {})[METADATA_KEY])
            return tensors, metadata
    except FileNotFoundError as error:
        raise UserError(f"{path} does not exist") from error
    except (SafetensorError, OSError) as error:
        raise UserError(f"{path} is damaged or not a safetensors file ({error})") from error
    except (KeyError, json.JSONDecodeError) as error:
        raise UserError(f"{path} was not written by metavrf: its metadata has no {METADATA_KEY!r}") from error


def read_json(path: Path, advice: str) -> dict[str, Any] | None:
    """A JSON object, or None where there is no such file."""
    if not path.exists():
        return None
    try:
        return dict(json.loads(path.read_text()))
    except (OSError, ValueError, TypeError) as error:
        raise UserError(f"{path} is damaged ({error}): {advice}") from error


def write_tensors(path: Path, tensors: Mapping[str, Tensor], metadata: Mapping[str, Any]) -> None:
    """Write a safetensors file with metadata, atomically."""
    on_cpu = {name: tensor.detach().to("cpu", copy=False).contiguous() for name, tensor in tensors.items()}
    write_atomically(path, save(on_cpu, {METADATA_KEY: json.dumps(dict(metadata), sort_keys=True)}))


def load_weights(module: torch.nn.Module, tensors: Mapping[str, Tensor], where: str) -> None:
    """Load ``tensors`` into ``module``; one sentence if they do not fit."""
    own = module.state_dict()
    if missing := sorted(own.keys() ^ tensors.keys()):
        raise UserError(f"{where} does not belong to this configuration: {missing[0]!r} stands on one side only")
    for name, tensor in tensors.items():
        if tensor.shape != own[name].shape:
            raise UserError(
                f"{where} does not belong to this configuration: {name!r} is {tuple(tensor.shape)}, "
                f"not {tuple(own[name].shape)}"
            )
        if not torch.isfinite(tensor).all():
            raise UserError(f"{where} is damaged: {name!r} holds NaN or infinity")
    module.load_state_dict(dict(tensors))
