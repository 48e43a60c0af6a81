"""One of every kind of file that is written, and what can be read of each: a text that says all of it."""

from __future__ import annotations

import contextlib
import hashlib
import os
import shutil
import signal
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
from PIL import Image
from torch import Tensor

import metavrf
from metavrf.commands.tables import fit_table, predict_table
from metavrf.files import read_summed_json, read_tensors, write_tensors
from metavrf.manifest import check, check_all
from metavrf.model import _loaded
from metavrf.runs.directory import Run
from metavrf.runs.stopping import Interrupted
from metavrf.runs.training import Trainer
from metavrf.settings import DataSettings
from metavrf.studies.study import Known
from metavrf.studies.work import do
from metavrf.tasks.curves import as_table
from metavrf.tasks.download import _write as write_set
from metavrf.tasks.images import FolderSource, ParquetSource, Preprocessing, read_bank
from metavrf.tasks.source import ClassTasks, open_tasks

TINY: dict[str, Any] = {
    "iterations": 12,
    "validate_every": 4,
    "validate_tasks": 4,
    "components": 1,
    "guards": 0,
    "train_kernel": "features",
    "bases": 16,
    "batch": 2,
    "query": 3,
    "threads": 1,
    "train_shot": 0,
    "most_shot": 0,
}
POINTS = np.linspace(-3, 3, 5)


@dataclass(frozen=True)
class Kind:
    """A place that holds files of one kind, and what is read of it."""

    name: str
    place: Path
    reads: tuple[Callable[[], str], ...]
    """What users do with it: each must refuse a changed file or say the same as before."""
    named: str = "**/*"
    """Which of the files in it."""
    share: int = 4
    """How often it is chosen, beside others: one that takes long to read is chosen less often."""

    def files(self) -> list[Path]:
        """All that are there."""
        found = [self.place] if self.place.is_file() else sorted(self.place.glob(self.named))
        return [file for file in found if file.is_file()]


def make_all(folder: Path) -> list[Kind]:
    """One of every kind, small."""
    run = metavrf.train("sine", out=folder / "run", quiet=True, **TINY).path
    stopped = stop_at(8, folder / "stopped")
    packed = metavrf.save_pretrained("sine", folder / "packed")
    rows = np.arange(12.0).reshape(6, 2) % 5
    plain = metavrf.MetaVRFClassifier().fit(rows, ["a", "b", "c"] * 2)
    plain.leave_one_out()
    plain.save(folder / "fitted")
    table = folder / "table.csv"
    table.write_text("size,colour,kind\n1,red,a\n2,blue,b\n3,red,a\n4,blue,b\n5,red,a\n")
    with silenced():
        fit_table(table, "kind", folder / "of-table", without=(), drop=False, classes=False, plot=None)
    curves: dict[str, list[Any]] = {
        "who": [n // 4 for n in range(48)],
        "x": [float(n % 4) for n in range(48)],
        "y": [float(n % 7) for n in range(48)],
    }
    columns: dict[str, Any] = {"group": "who", "inputs": ["x"], "targets": ["y"], "shot": 2, "query": 1}
    of_frame = metavrf.train(curves, out=folder / "of-frame", quiet=True, **TINY | columns).path
    figures = folder / "figures"
    figures.mkdir()
    metavrf.MetaVRFRegressor("sine").fit(POINTS[:, None], np.sin(POINTS)).save(folder / "fitted-on-model")
    bank_of = pictures(folder / "pictures")
    drawn = sorted(bank_of.glob("*/0.png"))
    cache = folder / "cache"
    read_bank(FolderSource(bank_of), Preprocessing(8, channels=1), cache)
    tasks = open_tasks(str(bank_of), DataSettings(image_size=8, grey=True), quiet=True)
    assert isinstance(tasks, ClassTasks)
    features = folder / "features.safetensors"
    held = tasks.bank
    spec = tasks.spec.to_dict() | {"inputs": [64]}
    tensors = {"inputs": held.inputs[:].flatten(1).float(), "starts": held.starts, "counts": held.counts}
    write_tensors(features, tensors, {"names": list(held.names), "description": spec, "by": "pixels"})
    downloaded = folder / "downloaded"
    downloaded.mkdir()
    write_set(downloaded / "set.parquet", [(file.read_bytes(), None, at) for at, file in enumerate(drawn)], "abcdef")
    fit, on_model = folder / "fitted", folder / "fitted-on-model"
    kinds = [
        Kind("run", run, (lambda: read_model(run), lambda: read_run(run), lambda: read_state(run))),
        Kind(
            "stopped run", stopped, (lambda: read_run(stopped), lambda: resumed(stopped, folder / "resumed")), share=1
        ),
        Kind("run on a frame", of_frame, (lambda: read_frame(of_frame), lambda: read_run(of_frame))),
        Kind("packed model", packed, (lambda: read_model(packed), lambda: read_run(packed))),
        Kind("fitted model", fit, (lambda: read_fitted(fit, rows),)),
        Kind("fitted model on a model", on_model, (lambda: read_on_model(on_model),)),
        Kind("fitted model of a table", folder / "of-table", (lambda: read_table(folder / "of-table", table),)),
        Kind("feature file", features, (lambda: read_features(features),)),
        Kind("cached bank", cache, (lambda: read_cache(bank_of, cache),)),
        Kind("downloaded set", downloaded, (lambda: read_downloaded(downloaded / "set.parquet"),)),
        Kind("figures of a study", figures, (lambda: read_figures(figures / "test.json"),)),
    ]
    if find_spec("optuna") is not None:
        kinds.append(Kind("search", folder / "search", (lambda: searched(folder / "search"),), "sweep*", share=1))
    return kinds


def stop_at(step: int, path: Path) -> Path:
    """A run that was stopped after a checkpoint or two."""
    train_step = Trainer.train_step

    def stopping(self: Trainer) -> dict[str, Tensor]:
        if self.at.step == step:
            self.stopped.append(signal.SIGTERM)
        return train_step(self)

    Trainer.train_step = stopping  # type: ignore[method-assign]
    try:
        with contextlib.suppress(Interrupted):
            metavrf.train("sine", out=path, quiet=True, **TINY)
    finally:
        Trainer.train_step = train_step  # type: ignore[method-assign]
    return path


def pictures(folder: Path) -> Path:
    """Six classes of two drawings each."""
    draw = np.random.default_rng(0)
    for name in "abcdef":
        (folder / name).mkdir(parents=True)
        for number in range(2):
            pixels = draw.integers(0, 256, (8, 8), dtype=np.uint8)
            Image.fromarray(pixels).save(folder / name / f"{number}.png")
    return folder


def read_model(path: Path) -> str:
    """What a run or packed model predicts."""
    model = metavrf.load(path)
    prediction = model.predict(metavrf.Episodes.of_task(POINTS, np.sin(POINTS), POINTS + 0.5))
    return f"{summed(prediction.mean)} {model.config!r} {model.spec!r}"


def read_run(path: Path) -> str:
    """What ``metavrf info`` says, which compares all sums."""
    run = Run.open(path)
    check_all(path)
    said = [run.config(), run.spec(), run.metrics(), run.result(), run.card(), run.start()]
    return repr(said) + (str(run.step()) if run.result() is None else "")


def read_state(path: Path) -> str:
    """The checkpoint of an ended run, as --resume reads it."""
    run = Run.open(path)
    run.refuse_if_not_resumable()
    tensors, metadata = read_tensors(run.state_file)
    return summed(*(tensor for _, tensor in sorted(tensors.items()))) + repr(sorted(metadata.items()))


def read_frame(path: Path) -> str:
    """The curves that a run keeps, and its weights."""
    run = Run.open(path)
    tensors, _ = run.load_model()
    table = as_table(check(run.frame_file))
    return summed(*(tensor for _, tensor in sorted(tensors.items()))) + repr(table.to_pydict())


def resumed(path: Path, copy: Path) -> str:
    """The end of a stopped run."""
    shutil.rmtree(copy, ignore_errors=True)
    shutil.copytree(path, copy)
    metavrf.train(out=copy, resume=True, quiet=True)
    parts = [read_tensors(file)[0] for file in (Run(copy).model_file, Run(copy).state_file)]
    return " ".join(summed(*(tensor for _, tensor in sorted(part.items()))) for part in parts)


def read_table(path: Path, table: Path) -> str:
    """What a model fitted to a table predicts."""
    return repr(predict_table(path, table, drop=False, threshold=None))


def read_fitted(path: Path, rows: Any) -> str:
    """What a fitted model without a model says."""
    fitted = metavrf.MetaVRFClassifier.load(path)
    said = fitted.predict_proba(rows + 0.1)
    return f"{fitted.classes_.tolist()} {summed(torch.from_numpy(said))} {getattr(fitted, 'leave_one_out_', None)}"


def read_on_model(path: Path) -> str:
    """What a fitted model on a trained one says."""
    _loaded.cache_clear()
    mean, std = metavrf.MetaVRFRegressor.load(path).predict(POINTS[:, None] + 0.3, return_std=True)
    return summed(torch.from_numpy(np.stack([mean, std])))


def read_features(path: Path) -> str:
    """Features, classes and split."""
    tasks = open_tasks(str(path), DataSettings())
    assert isinstance(tasks, ClassTasks)
    bank = tasks.bank
    return f"{summed(bank.inputs[:], bank.starts, bank.counts)} {list(bank.names)} {tasks.spec}"


def read_cache(source: Path, cache: Path) -> str:
    """A bank by way of its cache: one that is damaged is made anew."""
    bank, key = read_bank(FolderSource(source), Preprocessing(8, channels=1), cache, quiet=True)
    return f"{key} {summed(bank.inputs[:], bank.starts, bank.counts)} {list(bank.names)}"


def read_downloaded(file: Path) -> str:
    """A set that was downloaded, as if it had never been decoded."""
    source = ParquetSource([file])
    source.read_labels()
    drawn = [hashlib.sha256(cast(bytes, data)).hexdigest() for data, _ in source.pictures()]
    return f"{source.digest()} {source.names} {source.labels} {drawn}"


def read_figures(file: Path) -> str:
    """What a study makes of a test: where it is not written, it is done again."""
    do(Known("sine", "Bayes-optimal"), file.parent, {file: {"shot": 3, "tasks": 2}})
    values = read_summed_json(file, "remove it") or {}
    return repr({name: value for name, value in values.items() if name not in ("seconds", "ms_per_task")})


def searched(folder: Path) -> str:
    """What a search has found; one that was done goes on from there, which is nothing."""
    found = metavrf.sweep("sine", {"lr": "1e-4..1e-2", "ridge": "0.01,0.1"}, out=folder, trials=3, **TINY)
    return repr((found.figure, found.trials, found.best, found.config, found.importances))


def summed(*tensors: Tensor) -> str:
    """SHA-256 of tensors."""
    digest = hashlib.sha256()
    for tensor in tensors:
        digest.update(f"{tensor.dtype} {tuple(tensor.shape)}".encode())
        digest.update(tensor.detach().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()


@contextlib.contextmanager
def silenced() -> Iterator[None]:
    """Without what is printed."""
    with open(os.devnull, "w") as nowhere, contextlib.redirect_stdout(nowhere), contextlib.redirect_stderr(nowhere):  # noqa: PTH123
        yield
