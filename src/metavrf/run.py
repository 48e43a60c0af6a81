"""The run directory: where a training run keeps everything, written so that a crash loses nothing.

    config.toml         the settings
    data.json           of a run on classes: which were trained, validated and tested on, and the data's hash
    model.safetensors   the best model by validation: weights, context state, ε and b
    state.safetensors   all that --resume needs: weights, optimiser, every rank's context state, step
    metrics.jsonl       one line a validation
    result.json         what came out, once the run has ended
    card.json           of a packed model: what it was tested to do

Each file is written beside itself and renamed into place. Nothing here is a pickle.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor

from metavrf import hub
from metavrf.config import Config
from metavrf.errors import UserError

SHIPPED = Path(__file__).parent / "models"
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


def write_json(path: Path, value: Any) -> None:
    """Write ``value`` as readable JSON, atomically."""
    write_atomically(path, json.dumps(value, indent=2) + "\n")


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


class Run:
    """A run directory; knows the names and formats of its files, nothing of how to train."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)
        self.config_file = self.path / "config.toml"
        self.model_file = self.path / "model.safetensors"
        self.state_file = self.path / "state.safetensors"
        self.metrics_file = self.path / "metrics.jsonl"
        self.result_file = self.path / "result.json"
        self.data_file = self.path / "data.json"
        self.card_file = self.path / "card.json"
        self.files = (
            self.config_file,
            self.data_file,
            self.model_file,
            self.state_file,
            self.metrics_file,
            self.result_file,
        )

    @classmethod
    def create(cls, path: str | os.PathLike[str], config: Config, data: Mapping[str, Any] | None = None) -> Run:
        """Start a run directory; refuses one that holds a run already."""
        run = cls(path)
        try:
            held = [file.name for file in run.files if file.exists()]
        except OSError as error:
            raise UserError(f"cannot use {run.path} as a run directory: {error.strerror}") from error
        if held:
            whole = run.config_file.name in held
            advice = "continue it with --resume, or choose another --out" if whole else "choose another --out"
            raise UserError(f"{run.path} holds {'a run' if whole else held[0]} already: {advice}")
        try:
            run.path.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise UserError(
                f"cannot make the run directory {run.path}: {error.strerror}; choose another --out"
            ) from error
        if data is not None:
            write_json(run.data_file, data)
        write_atomically(run.config_file, config.to_toml())
        return run

    @classmethod
    def open(cls, path: str | os.PathLike[str]) -> Run:
        """An existing run directory; or a model that comes with the package, by its name; or hf://owner/name."""
        run = cls(hub.fetch(path) if hub.is_address(path) else path)
        try:
            there = run.config_file.is_file()
            if not there and (SHIPPED / str(path) / "config.toml").is_file():
                return cls(SHIPPED / str(path))
        except OSError as error:
            raise UserError(f"cannot read {run.path}: {error.strerror}") from error
        if not there:
            raise UserError(f"{run.path} is not a run: it has no config.toml; give the --out of a 'metavrf train'")
        return run

    def config(self) -> Config:
        """The settings of the run."""
        try:
            text = self.config_file.read_text()
        except (OSError, UnicodeDecodeError) as error:
            raise UserError(f"cannot read {self.config_file}: {error}") from error
        return Config.from_toml(text, str(self.config_file))

    def data(self) -> dict[str, Any] | None:
        """What is known of the classes, or None where tasks are functions."""
        return _read_json(self.data_file, "it says what the model was trained on; take it from a copy of the run")

    def save_model(self, tensors: Mapping[str, Tensor], metadata: Mapping[str, Any]) -> None:
        """Write model.safetensors."""
        write_tensors(self.model_file, tensors, metadata)

    def save_state(self, tensors: Mapping[str, Tensor], metadata: Mapping[str, Any]) -> None:
        """Write state.safetensors: one file, so that a resumed run never sees two halves of different age."""
        write_tensors(self.state_file, tensors, metadata)

    def load_model(self) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """Tensors and metadata of the best model."""
        if not self.model_file.exists():
            raise UserError(f"{self.path} has no trained model yet: let its training reach a first validation")
        return read_tensors(self.model_file)

    def metrics(self) -> list[dict[str, Any]]:
        """Validation records, oldest first. A last line cut off by a crash is left out."""
        if not self.metrics_file.exists():
            return []
        try:
            lines = self.metrics_file.read_text().splitlines(keepends=True)
            records = [json.loads(line) for line in lines if line.endswith("\n")]
            if all(isinstance(record["step"], int) for record in records):
                return records
        except (OSError, ValueError, KeyError, TypeError):
            pass
        raise UserError(f"{self.metrics_file} is damaged: move it away; it is a record of the run, not needed to go on")

    def result(self) -> dict[str, Any] | None:
        """What came out, or None while the run has not ended."""
        return _read_json(self.result_file, "move it away, and resume the run to write it")

    def card(self) -> dict[str, Any] | None:
        """What a packed model was tested to do, or None if this is a run that was not packed."""
        return _read_json(self.card_file, "take it from a copy of the model")

    def append_metrics(self, record: Mapping[str, Any]) -> None:
        """Add a validation record."""
        try:
            with self.metrics_file.open("a") as file:
                file.write(json.dumps(record) + "\n")
        except OSError as error:
            raise UserError(f"cannot write {self.metrics_file}: {error.strerror}") from error

    def rewind_metrics(self, step: int) -> None:
        """Drop records after ``step``: a resumed run writes them again."""
        kept = [json.dumps(record) + "\n" for record in self.metrics() if record["step"] <= step]
        if self.metrics_file.exists():
            write_atomically(self.metrics_file, "".join(kept))


def _read_json(path: Path, advice: str) -> dict[str, Any] | None:
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
