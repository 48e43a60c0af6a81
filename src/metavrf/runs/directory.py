"""The run directory: where a training run keeps everything, written so that a crash loses nothing.

    config.toml         the settings
    data.json           what a task looks like; of classes which were trained, validated and tested on, and their hash
    model.safetensors   the best model by validation: weights, context state, ε and b
    state.safetensors   all that --resume needs: weights, optimiser, every rank's context state, step
    metrics.jsonl       one line per validation
    result.json         what came out, once the run has ended
    start.json          of a run that started from another: which
    curves.parquet      of curves that were given as a data frame: a copy
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

from torch import Tensor

from metavrf.config import Config
from metavrf.errors import UserError
from metavrf.files import read_json, read_metadata, read_tensors, write_atomically, write_json, write_tensors
from metavrf.runs import hub
from metavrf.spec import TaskSpec
from metavrf.tasks.curves import FRAME_FILE

SHIPPED = Path(__file__).parent.parent / "models"


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
        self.start_file = self.path / "start.json"
        self.frame_file = self.path / FRAME_FILE
        self.files = (
            self.config_file,
            self.data_file,
            self.model_file,
            self.state_file,
            self.metrics_file,
            self.result_file,
        )

    @classmethod
    def create(
        cls,
        path: str | os.PathLike[str],
        config: Config[Any],
        spec: TaskSpec,
        *,
        start: Mapping[str, Any] | None = None,
        frame: Any = None,
    ) -> Run:
        """Start a run directory; refuses one that holds a run already.

        ``start`` says what it starts from, ``frame`` is a table of curves to keep.
        """
        run = cls(path)
        run.refuse_if_held()
        try:
            run.path.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise UserError(
                f"cannot make the run directory {run.path}: {error.strerror}; choose another --out"
            ) from error
        if frame is not None:
            from pyarrow import BufferOutputStream, parquet

            parquet.write_table(frame, buffer := BufferOutputStream())
            write_atomically(run.frame_file, buffer.getvalue().to_pybytes())
        write_json(run.data_file, spec.to_dict())
        if start is not None:
            write_json(run.start_file, dict(start))
        write_atomically(run.config_file, config.to_toml())
        return run

    def refuse_if_held(self) -> None:
        """Refuse a folder that holds a run, or a part of one, already."""
        try:
            held = [file.name for file in self.files if file.exists() and file != self.data_file]  # written first
        except OSError as error:
            raise UserError(f"cannot use {self.path} as a run directory: {error.strerror}") from error
        if held:
            whole = self.config_file.name in held
            advice = "continue it with --resume, or choose another --out" if whole else "choose another --out"
            raise UserError(f"{self.path} holds {'a run' if whole else held[0]} already: {advice}")

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

    def discard(self) -> None:
        """Take back a start that came to nothing: what :meth:`create` wrote, and the folder if that was all."""
        for file in (self.config_file, self.data_file, self.start_file, self.metrics_file, self.frame_file):
            file.unlink(missing_ok=True)
        with suppress(OSError):
            self.path.rmdir()

    def config(self) -> Config[Any]:
        """The settings of the run."""
        try:
            text = self.config_file.read_text()
        except (OSError, UnicodeDecodeError) as error:
            raise UserError(f"cannot read {self.config_file}: {error}") from error
        return Config.from_toml(text, str(self.config_file))

    def start(self) -> dict[str, Any] | None:
        """Which run this one started from, if from one."""
        return read_json(self.start_file, "remove it, or take it from a copy of the run")

    def spec(self) -> TaskSpec:
        """What the run's tasks look like; runs on functions of format 1 have no such file."""
        values = read_json(self.data_file, "it says what the model was trained on; take it from a copy of the run")
        try:
            return TaskSpec() if values is None else TaskSpec.from_dict(values)
        except (KeyError, TypeError) as error:
            raise UserError(f"{self.data_file} was not written by this version of metavrf ({error})") from error

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

    def step(self) -> int:
        """How far the training has come: the step of the last checkpoint, or 0."""
        return int(read_metadata(self.state_file).get("step", 0)) if self.state_file.exists() else 0

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
        return read_json(self.result_file, "move it away, and resume the run to write it")

    def card(self) -> dict[str, Any] | None:
        """What a packed model was tested to do, or None if this is a run that was not packed."""
        return read_json(self.card_file, "take it from a copy of the model")

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
