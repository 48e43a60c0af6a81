"""One of every kind of file that is written, and what can be read of each: a text that says all of it."""

from __future__ import annotations

import contextlib
import hashlib
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor

import metavrf
from metavrf.files import read_tensors, write_tensors
from metavrf.manifest import check_all
from metavrf.model import _loaded
from metavrf.runs.directory import Run
from metavrf.settings import DataSettings
from metavrf.tasks.images import FolderSource, Preprocessing, read_bank
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
    read: Callable[[], str]

    def files(self) -> list[Path]:
        """All that are read: the card's text is for people."""
        found = [self.place] if self.place.is_file() else sorted(self.place.rglob("*"))
        return [file for file in found if file.is_file() and file.name not in ("README.md",) and file.suffix != ".png"]


def make_all(folder: Path) -> list[Kind]:
    """One of every kind, small."""
    run = metavrf.train("sine", out=folder / "run", quiet=True, **TINY).path
    packed = metavrf.save_pretrained("sine", folder / "packed")
    rows = np.arange(12.0).reshape(6, 2) % 5
    plain = metavrf.MetaVRFClassifier().fit(rows, ["a", "b", "c"] * 2)
    plain.leave_one_out()
    plain.save(folder / "fitted")
    metavrf.MetaVRFRegressor("sine").fit(POINTS[:, None], np.sin(POINTS)).save(folder / "fitted-on-model")
    bank_of = pictures(folder / "pictures")
    cache = folder / "cache"
    read_bank(FolderSource(bank_of), Preprocessing(8, channels=1), cache)
    tasks = open_tasks(str(bank_of), DataSettings(image_size=8, grey=True), quiet=True)
    assert isinstance(tasks, ClassTasks)
    features = folder / "features.safetensors"
    held = tasks.bank
    spec = tasks.spec.to_dict() | {"inputs": [64]}
    tensors = {"inputs": held.inputs.flatten(1).float(), "starts": held.starts, "counts": held.counts}
    write_tensors(features, tensors, {"names": list(held.names), "description": spec, "by": "pixels"})
    return [
        Kind("run", run, lambda: read_run(run)),
        Kind("packed model", packed, lambda: read_run(packed)),
        Kind("fitted model", folder / "fitted", lambda: read_fitted(folder / "fitted", rows)),
        Kind("fitted model on a model", folder / "fitted-on-model", lambda: read_on_model(folder / "fitted-on-model")),
        Kind("feature file", features, lambda: read_features(features)),
        Kind("cached bank", cache, lambda: read_cache(bank_of, cache)),
    ]


def pictures(folder: Path) -> Path:
    """Six classes of two drawings each."""
    draw = np.random.default_rng(0)
    for name in "abcdef":
        (folder / name).mkdir(parents=True)
        for number in range(2):
            pixels = draw.integers(0, 256, (8, 8), dtype=np.uint8)
            Image.fromarray(pixels).save(folder / name / f"{number}.png")
    return folder


def read_run(path: Path) -> str:
    """Everything that is read of a run or packed model, its checkpoint too."""
    run = Run.open(path)
    check_all(path)
    model = metavrf.load(path)
    prediction = model.predict(metavrf.Episodes.of_task(POINTS, np.sin(POINTS), POINTS + 0.5))
    said = [summed(prediction.mean), repr(model.config), repr(model.spec), repr(run.metrics())]
    said += [repr(run.result()), repr(run.card()), str(run.step())]
    if run.state_file.exists():
        tensors, metadata = read_tensors(run.state_file)
        said += [summed(*(tensor for _, tensor in sorted(tensors.items()))), repr(sorted(metadata.items()))]
    return "\n".join(said)


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
    return f"{summed(bank.inputs, bank.starts, bank.counts)} {list(bank.names)} {tasks.spec}"


def read_cache(source: Path, cache: Path) -> str:
    """A bank by way of its cache: one that is damaged is made anew."""
    bank, key = read_bank(FolderSource(source), Preprocessing(8, channels=1), cache, quiet=True)
    return f"{key} {summed(bank.inputs, bank.starts, bank.counts)} {list(bank.names)}"


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
