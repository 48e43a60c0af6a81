"""The run directory: where a training run keeps everything, written so that a crash loses nothing.

    config.toml         the settings
    data.json           what a task looks like; of classes which were trained, validated and tested on, and their hash
    model.safetensors   the best model by validation: weights, context state, ε and b
    state.safetensors   all that --resume needs: weights, optimiser, every rank's context state, step
    state-1.safetensors, state-2.safetensors   the checkpoints before it, while the run has not ended
    metrics.jsonl       one line per validation
    result.json         what came out, once the run has ended
    start.json          of a run that started from another: which
    curves.parquet      of curves that were given as a data frame: a copy
    card.json           of a packed model: what it was tested to do
    manifest.json       the kind of the folder, and the SHA-256 sums of its files; checkpoints carry their own, and
                        the last one is named here once the run has ended

Each file is written beside itself and renamed into place. Nothing here is a pickle.
"""

from __future__ import annotations

import hashlib
import json
import os
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from torch import Tensor

from metavrf.config import Config
from metavrf.errors import Caution, UserError
from metavrf.files import (
    as_json,
    read_json,
    read_tensors,
    second_name,
    tensors_as_bytes,
    write_atomically,
    write_json,
)
from metavrf.manifest import NAME as MANIFEST
from metavrf.manifest import Manifest, check, forget, replace_file, seal
from metavrf.runs import hub
from metavrf.runs.locking import lock
from metavrf.schema import check_shape
from metavrf.spec import TaskSpec
from metavrf.tasks.curves import FRAME_FILE

SHIPPED = Path(__file__).parent.parent / "models"
CHECKPOINTS = 3  # that are kept of a run which has not ended
_RESULT: dict[str, Any] = {
    "task": str,
    "steps": int,
    "best_step": int,
    "validation": {str: float},
    "seed": int,
    "train_seconds": float,
}
_RESULT |= {"command?": str, "commit?": (str, None)}
_TEST: dict[str, Any] = {
    "metric": str,
    "mean": float,
    "ci95": float,
    "tasks": int,
    "nll": float,
    "protocol": str,
    "seed": int,
}
_TEST |= {"shot?": (int, None), "way?": int, "query?": int, "ece?": float, "coverage90?": float, "views?": str}
_TEST |= {"adaptivity?": dict}
_CARD = {
    "task": str,
    "tests": [_TEST],
    "training": {"command": str, "commit": (str, None), "steps": int, "train_seconds": float},
    "provenance": {"command": str, "commit": (str, None)},
}


class Run:
    """A run directory; knows the names and formats of its files, nothing of how to train.

    ``kind`` is what its manifest will call it, where it has none yet.
    """

    def __init__(self, path: str | os.PathLike[str], kind: str = "run") -> None:
        self.path, self.kind = Path(path), kind
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

        named = [file for file in self.files if file != self.state_file]  # checkpoints carry sums of their own
        self.summed = (*named, self.start_file, self.frame_file, self.card_file, self.path / "README.md")

    @property
    def checkpoints(self) -> list[Path]:
        """Where the last checkpoints are, the newest first."""
        older = (f"state-{age}.safetensors" for age in range(1, CHECKPOINTS))
        return [self.state_file, *(self.path / name for name in older)]

    @classmethod
    def create(
        cls,
        path: str | os.PathLike[str],
        config: Config[Any],
        spec: TaskSpec,
        kind: str = "run",
        *,
        start: Mapping[str, Any] | None = None,
        frame: Any = None,
    ) -> Run:
        """Start a run directory; refuses one that holds a run already.

        ``start`` says what it starts from, ``frame`` is a table of curves to keep.
        """
        run = cls(path, kind)
        run.refuse_if_held()
        run.make_folder()
        if frame is not None:
            from pyarrow import BufferOutputStream, parquet

            parquet.write_table(frame, buffer := BufferOutputStream())
            write_atomically(run.frame_file, buffer.getvalue().to_pybytes())
        write_json(run.data_file, spec.to_dict())
        if start is not None:
            write_json(run.start_file, dict(start))
        write_atomically(run.config_file, config.to_toml())
        run.seal()
        return run

    def make_folder(self) -> None:
        """Make the directory, where it is not there."""
        if not self.path.name:
            raise UserError("the run directory has no name: give --out a folder of its own")
        try:
            self.path.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise UserError(
                f"cannot make the run directory {self.path}: {error.strerror}; choose another --out"
            ) from error

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Keep every other training out; the lock goes with the process, however it ends."""
        with lock(self.path, f"another process is training in {self.path}: wait for it, or choose another --out"):
            for left in self.path.glob(".*.tmp"):  # nobody else writes here
                left.unlink(missing_ok=True)
            yield

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
        begun = (self.config_file, self.data_file, self.start_file, self.frame_file, self.metrics_file)
        for file in (*begun, self.path / MANIFEST):
            file.unlink(missing_ok=True)
        with suppress(OSError):
            self.path.rmdir()

    def refuse_if_not_resumable(self) -> None:
        """Refuse what has no checkpoint to go on from and is not a run that was stopped before its first."""
        if any(file.exists() for file in self.checkpoints):
            return
        manifest = Manifest.of(self.path)
        later = [self.result_file, self.card_file] if manifest is not None else [self.model_file]
        if (manifest is not None and manifest.kind != "run") or any(file.exists() for file in later):
            what = "a run" if manifest is None else f"a {manifest.kind}"
            raise UserError(f"{self.path} is {what} without a checkpoint: there is nothing to resume")

    def config(self) -> Config[Any]:
        """The settings of the run."""
        try:
            text = check(self.config_file).read_text()
        except (OSError, UnicodeDecodeError) as error:
            raise UserError(f"cannot read {self.config_file}: {error}") from error
        return Config.from_toml(text, str(self.config_file))

    def config_sum(self) -> str:
        """SHA-256 of config.toml: a checkpoint says which settings it is of."""
        return hashlib.sha256(self.config_file.read_bytes()).hexdigest()

    @property
    def verified(self) -> bool:
        """Whether files are compared with sums: not in folders of older versions, or after a change by hand."""
        return (self.path / MANIFEST).exists()

    def start(self) -> dict[str, Any] | None:
        """Which run this one started from, if from one."""
        return read_json(check(self.start_file), "remove it, or take it from a copy of the run")

    def spec(self) -> TaskSpec:
        """What the run's tasks look like; runs on functions of format 1 have no such file."""
        advice = "it says what the model was trained on; take it from a copy of the run"
        values = read_json(check(self.data_file), advice)
        return TaskSpec() if values is None else TaskSpec.from_dict(values, self.data_file)

    def save_model(self, tensors: Mapping[str, Tensor], metadata: Mapping[str, Any]) -> None:
        """Write model.safetensors."""
        self.write(self.model_file, tensors_as_bytes(tensors, metadata))

    def save_state(self, tensors: Mapping[str, Tensor], metadata: Mapping[str, Any]) -> None:
        """Write state.safetensors: one file, so that a resumed run never sees two halves of different age.

        Those before it are kept, each under the name of the next older one.
        """
        newest, *older = self.checkpoints
        forget(newest)  # of a run that had ended, and goes on

        def keep_older() -> None:
            for file, to in zip(older[-2::-1], older[:0:-1], strict=True):
                if file.exists():
                    file.replace(to)
            if newest.exists():
                second_name(newest, older[0])

        write_atomically(newest, tensors_as_bytes(tensors, metadata), keep_older)

    def save_result(self, result: Mapping[str, Any]) -> None:
        """Write result.json: the run has ended, and its older checkpoints go."""
        self.write(self.result_file, as_json(result))
        for file in self.checkpoints[1:]:
            file.unlink(missing_ok=True)
        seal(self.path, self.kind, (*self.summed, self.state_file))

    def seal(self) -> None:
        """Write the manifest of what is there: nothing of it is going to change."""
        seal(self.path, self.kind, self.summed)

    def write(self, file: Path, data: bytes | str) -> None:
        """Write one of its files, announced in the manifest."""
        replace_file(file, data, self.kind, self.summed)

    def load_model(self) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """Tensors and metadata of the best model."""
        if not check(self.model_file).exists():
            raise UserError(f"{self.path} has no trained model yet: let its training reach a first validation")
        return read_tensors(self.model_file)

    def step(self) -> int:
        """How far the training has come: the step of the last checkpoint, or 0."""
        there = [file for file in self.checkpoints if file.exists()]
        if not there:
            return 0
        if there[0] != self.state_file:
            warnings.warn(missing_checkpoint(self, there[0]), Caution, stacklevel=2)
        _, values = read_tensors(there[0])
        check_shape(values, {"step": int}, there[0])
        return int(values["step"])

    def metrics(self) -> list[dict[str, Any]]:
        """Validation records, oldest first. A last line cut off by a crash is left out."""
        if not self.metrics_file.exists():
            return []
        try:
            lines = check(self.metrics_file).read_text().splitlines(keepends=True)
            records = [json.loads(line) for line in lines if line.endswith("\n")]
            if all(isinstance(record["step"], int) for record in records):
                return records
        except (OSError, ValueError, KeyError, TypeError, RecursionError):
            pass
        raise UserError(f"{self.metrics_file} is damaged: move it away; it is a record of the run, not needed to go on")

    def result(self) -> dict[str, Any] | None:
        """What came out, or None while the run has not ended."""
        values = read_json(check(self.result_file), "move it away, and resume the run to write it")
        if values is not None:
            check_shape(values, _RESULT, self.result_file)
        return values

    def card(self) -> dict[str, Any] | None:
        """What a packed model was tested to do, or None if this is a run that was not packed."""
        values = read_json(check(self.card_file), "take it from a copy of the model")
        if values is not None:
            check_shape(values, _CARD, self.card_file)
        return values

    def append_metrics(self, record: Mapping[str, Any]) -> None:
        """Add a validation record."""
        before = "".join(json.dumps(known) + "\n" for known in self.metrics())
        self.write(self.metrics_file, before + json.dumps(record) + "\n")

    def rewind_metrics(self, step: int) -> None:
        """Drop records after ``step``: a resumed run writes them again."""
        kept = [json.dumps(record) + "\n" for record in self.metrics() if record["step"] <= step]
        if self.metrics_file.exists():
            self.write(self.metrics_file, "".join(kept))


def missing_checkpoint(run: Run, older: Path) -> str:
    """What to say where the newest checkpoint is gone, but not all are."""
    return f"{run.state_file} is missing: the run goes on from {older.name}, which is older"
