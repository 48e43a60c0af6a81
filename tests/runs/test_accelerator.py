"""Which device a run is trained on; and a whole run on one that is not there."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from lightning_fabric import Fabric
from lightning_fabric.accelerators.cpu import CPUAccelerator

import metavrf
from metavrf.config import Config, TrainingSettings
from metavrf.errors import UserError
from metavrf.learners.base import Learner
from metavrf.runs import training
from pictures_on_disk import write_folder
from pretended_device import DEVICE, Placed, pretended_device
from processes import assert_same_run, broken_and_resumed, largest_gap


@pytest.mark.parametrize(
    ("asked", "devices", "gpus", "chosen"),
    [
        ("auto", 1, 0, "cpu"),
        ("auto", 1, 2, "cuda"),
        ("auto", 4, 2, "cpu"),
        ("cpu", 1, 2, "cpu"),
        ("cuda", 2, 2, "cuda"),
    ],
)
def test_a_gpu_is_taken_where_there_is_one(
    asked: Any, devices: int, gpus: int, chosen: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "device_count", lambda: gpus)
    assert training.accelerator(TrainingSettings(accelerator=asked, devices=devices)) == chosen


@pytest.mark.parametrize("asked", ["cuda", "mps"])
def test_a_device_that_is_not_there_is_refused_before_anything_is_written(
    asked: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 0)
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: False)
    with pytest.raises(UserError, match=f"^accelerator = '{asked}' needs 1 of them, and PyTorch finds 0 here"):
        metavrf.train("sine", out=tmp_path / "run", accelerator=asked, quiet=True)
    assert not (tmp_path / "run").exists()


def test_older_runs_go_on_where_they_were() -> None:
    text = Config.of("sine").to_toml()
    older = "\n".join(line for line in text.splitlines() if not line.startswith("accelerator"))
    assert Config.from_toml(text, "config.toml").training.accelerator == "auto"
    assert Config.from_toml(older, "config.toml").training.accelerator == "cpu"


# A whole run


@pytest.fixture
def elsewhere(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Lightning takes the pretended device for the CPU's; PyTorch's fused optimisers do not know it."""

    def make_fabric(settings: TrainingSettings) -> Fabric:
        fabric = Fabric(accelerator="cpu", devices=1)
        monkeypatch.setattr(type(fabric.strategy), "root_device", DEVICE)
        return fabric

    monkeypatch.setattr(CPUAccelerator, "setup_device", lambda *_: None)
    monkeypatch.setattr(training, "make_fabric", make_fabric)
    with pretended_device():
        yield


def plain_adam(settings: TrainingSettings, learner: Learner) -> torch.optim.Optimizer:
    return torch.optim.Adam([weight for weight in learner.parameters() if weight.requires_grad], lr=settings.lr)


SMALL: dict[str, Any] = {"iterations": 4, "validate_every": 2, "validate_tasks": 10, "batch": 2, "query": 3}
RUNS: dict[str, dict[str, Any]] = {
    "many kernels": {"task": "sine", "components": 6, "guards": 2, "shot": 3, "most_shot": 4},
    "context": {"task": "sine", "components": 1, "guards": 0, "context": "bilstm", "train_kernel": "features"},
    "pictures": {"learner": "prototypical", "image_size": 12, "grey": True, "embedding": "conv4", "channels": 8}
    | {"way": 3, "train_way": 4, "shot": 1, "test_query": 3, "augment": "crop-flip", "dropout": 0.1},
    "inner loop": {"learner": "maml", "image_size": 12, "grey": True, "embedding": "conv4", "channels": 8}
    | {"way": 3, "shot": 1, "test_query": 3, "augment": "none"},
}


@pytest.mark.parametrize("kind", RUNS)
def test_a_run_on_another_device_is_that_of_the_cpu(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> None:
    monkeypatch.setenv("METAVRF_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(training, "make_optimizer", plain_adam)
    options = SMALL | {"threads": 1, "quiet": True} | RUNS[kind]
    task = options.pop("task", None) or str(write_folder(tmp_path / "pictures"))
    metavrf.train(task, out=tmp_path / "here", **options)
    request.getfixturevalue("elsewhere")
    trained: list[torch.device] = []
    step = training.Trainer.train_step

    def watched(self: training.Trainer) -> dict[str, torch.Tensor]:
        terms = step(self)
        assert all(isinstance(weight.grad, Placed) for weight in self.learner.parameters() if weight.grad is not None)
        trained.append(self.learner.device)
        return terms

    monkeypatch.setattr(training.Trainer, "train_step", watched)
    there = tmp_path / "there"
    broken_and_resumed(lambda: metavrf.train(task, out=there, **options), there, 3, monkeypatch)
    assert set(trained) == {DEVICE}
    if kind == "context":  # PyTorch has other operations for an LSTM on the CPU
        assert largest_gap(tmp_path / "here" / "state.safetensors", there / "state.safetensors") < 1e-5
    else:
        assert_same_run(tmp_path / "here", there)
