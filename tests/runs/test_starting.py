"""Runs that start from the embedding of another, and optimisers they can have."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

import metavrf
from metavrf import EvalSettings
from metavrf.cli import main
from metavrf.config import TrainingSettings
from metavrf.errors import UserError
from metavrf.files import read_tensors
from metavrf.runs.optimizing import make_optimizer
from metavrf.runs.starting import start_from
from pictures_on_disk import write_folder
from processes import assert_same_run, broken_and_resumed

TINY: dict[str, Any] = {
    "embedding": "conv4",
    "image_size": 12,
    "grey": True,
    "channels": 8,
    "way": 3,
    "shot": 1,
    "test_query": 3,
    "validate_tasks": 10,
    "augment": "none",
    "threads": 1,
    "iterations": 5,
    "validate_every": 2,
    "quiet": True,
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Any:
    place = tmp_path_factory.mktemp("data")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("METAVRF_CACHE", str(place / "cache"))
        yield write_folder(place / "pictures")


@pytest.fixture(scope="module")
def pretrained(folder: Path) -> Path:
    path = folder.parent / "pretrained"
    metavrf.train(str(folder), out=path, learner="classifier", **TINY)
    return path


def test_a_run_starts_from_the_embedding_and_classifier_of_another(
    folder: Path, pretrained: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from metavrf.runs import training

    started: dict[str, Any] = {}
    step = training.Trainer.train_step

    def first_seen(trainer: Any) -> Any:
        if not started:
            started.update({name: value.clone() for name, value in trainer.learner.state_dict().items()})
        return step(trainer)

    monkeypatch.setattr(training.Trainer, "train_step", first_seen)
    run = metavrf.train(
        str(folder),
        out=tmp_path / "run",
        learner="prototypical",
        start_from=str(pretrained),
        classify_weight=1.0,
        **TINY,
    )
    before, _ = read_tensors(pretrained / "model.safetensors")
    taken = {name for name in before if name.startswith(("embedding.", "classifier."))}
    assert taken and "classifier.weight" in taken
    for name in taken:
        assert torch.equal(started[name], before[name]), name
    result = run.result()
    assert result is not None
    assert result["started_from"]["run"] == str(pretrained)
    assert result["started_from"]["learner"] == "classifier"
    assert len(result["started_from"]["sha256"]) == 64


def test_a_run_starts_from_the_mean_of_several(folder: Path, pretrained: Path, tmp_path: Path) -> None:
    chosen = TINY | {"learner": "classifier", "iterations": 1}
    second = metavrf.train(str(folder), out=tmp_path / "second", start_from=str(pretrained), **chosen)
    spec, config = second.spec(), second.config()
    both = f"{pretrained},{second.path}"
    learner = config.build(spec)
    about = start_from(both, learner, spec)
    tensors = [read_tensors(path / "model.safetensors")[0] for path in (pretrained, second.path)]
    state = learner.state_dict()
    taken = [name for name in state if name.startswith(("embedding.", "classifier.")) and "num_batches" not in name]
    assert any(not torch.equal(tensors[0][name], tensors[1][name]) for name in taken)
    for name in taken:
        torch.testing.assert_close(state[name], (tensors[0][name] + tensors[1][name]) / 2)
    assert [start["run"] for start in about["mean_of"]] == both.split(",")
    wide = metavrf.train(str(folder), out=tmp_path / "wide", **chosen | {"channels": 4})
    with pytest.raises(UserError, match="differ in shape"):
        start_from(f"{pretrained},{wide.path}", learner, spec)


def test_a_run_that_starts_from_another_is_resumed_to_the_bit_even_if_that_is_gone(
    folder: Path, pretrained: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = tmp_path / "source"
    source.symlink_to(pretrained)
    chosen = TINY | {"learner": "prototypical", "start_from": str(source), "optimizer": "sgd", "weight_decay": 1e-3}
    metavrf.train(str(folder), out=tmp_path / "whole", **chosen)
    broken = tmp_path / "broken"

    def start() -> None:
        try:
            metavrf.train(str(folder), out=broken, **chosen)
        finally:
            source.unlink()

    broken_and_resumed(start, broken, 3, monkeypatch)
    assert_same_run(tmp_path / "whole", broken)


def test_a_classifier_of_other_classes_starts_anew(folder: Path, pretrained: Path, tmp_path: Path) -> None:
    chosen = TINY | {"learner": "prototypical", "rotate": True, "classify_weight": 1.0, "iterations": 1}
    run = metavrf.train(str(folder), out=tmp_path / "run", start_from=str(pretrained), **chosen)
    before, after = (
        read_tensors(path / "model.safetensors")[0]["classifier.weight"] for path in (pretrained, run.path)
    )
    assert len(after) == 4 * len(before)


def test_a_packed_model_that_is_started_from_tells_what_it_started_from_itself(
    folder: Path, pretrained: Path, tmp_path: Path
) -> None:
    chosen = TINY | {"learner": "prototypical", "iterations": 1}
    second = metavrf.train(str(folder), out=tmp_path / "second", start_from=str(pretrained), **chosen)
    metavrf.save_pretrained(second.path, tmp_path / "packed", [EvalSettings(tasks=2)])
    third = metavrf.train(str(folder), out=tmp_path / "third", start_from=str(tmp_path / "packed"), **chosen)
    start = third.start()
    assert start is not None
    assert start["run"] == str(tmp_path / "packed")
    assert start["started_from"]["run"] == str(pretrained)


def test_an_embedding_of_another_shape_is_refused_and_nothing_is_written(
    folder: Path, pretrained: Path, tmp_path: Path
) -> None:
    with pytest.raises(UserError, match="the embedding of"):
        metavrf.train(str(folder), out=tmp_path / "run", start_from=str(pretrained), **TINY | {"channels": 4})
    assert not (tmp_path / "run").exists()


def test_a_run_that_has_seen_classes_to_be_tested_on_is_refused(folder: Path, pretrained: Path, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="class to validate or test on"):
        metavrf.train(str(folder), out=tmp_path / "run", start_from=str(pretrained), split_seed=1, **TINY)


def test_pretrain_is_the_classifier_on_the_shell(folder: Path, tmp_path: Path) -> None:
    options = "--image-size 12 --grey --channels 8 --way 3 --iterations 2 --validate-tasks 4 --test-query 3 --quiet"
    main(["pretrain", str(folder), *options.split(), "--embedding", "conv4", "--out", str(tmp_path / "run")])
    assert json.loads((tmp_path / "run" / "result.json").read_text())["learner"] == "classifier"


def test_training_in_bfloat16_learns_and_answers_in_single_precision(folder: Path, tmp_path: Path) -> None:
    chosen = TINY | {"learner": "classifier", "iterations": 40, "validate_every": 40, "validate_tasks": 60}
    accuracies = {}
    for precision in ("32", "bf16-mixed"):
        run = metavrf.train(str(folder), out=tmp_path / precision, precision=precision, **chosen)
        accuracies[precision] = run.metrics()[-1]["val_accuracy"]
    assert accuracies["bf16-mixed"] > accuracies["32"] - 10 > 33 - 10
    assert accuracies["bf16-mixed"] != accuracies["32"]
    weights = metavrf.load(tmp_path / "bf16-mixed").learner.state_dict()
    assert all(value.dtype == torch.float32 for name, value in weights.items() if value.is_floating_point())


def test_weight_decay_pulls_at_the_matrices_of_the_embedding_alone() -> None:
    module = torch.nn.ModuleDict({"embedding": torch.nn.Linear(3, 2), "head": torch.nn.Linear(2, 2)})
    for kind in ("sgd", "adam"):
        settings = TrainingSettings(optimizer=kind, weight_decay=0.1, lr=0.5)
        optimizer = make_optimizer(settings, module)
        for parameter in module.parameters():
            parameter.grad = torch.zeros_like(parameter)
        before = {name: value.clone() for name, value in module.state_dict().items()}
        optimizer.step()
        after = module.state_dict()
        shrunk = 1 - 0.5 * 0.1 * (1.9 if kind == "sgd" else 1)  # Nesterov's momentum adds 0.9 of the first step
        assert torch.allclose(after["embedding.weight"], shrunk * before["embedding.weight"])
        for name in ("embedding.bias", "head.weight", "head.bias"):
            assert torch.equal(after[name], before[name])
