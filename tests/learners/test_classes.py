"""Classes from end to end: evaluation, calibration, training and testing on a folder of pictures."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.stats
import torch
import torch.nn.functional as F
from PIL import Image
from torch import Tensor

import metavrf
from metavrf.config import Config
from metavrf.errors import UserError
from metavrf.files import load_weights
from metavrf.learners import measuring
from metavrf.learners.kernel import KernelLearner
from metavrf.learners.measuring import calibrate, calibrate_shots, calibration_error, log_probabilities, measure
from metavrf.protocol import Protocol, Statistics
from metavrf.runs.directory import Run
from metavrf.spec import TaskSpec
from metavrf.testing.evaluation import evaluate_learner, fingerprint
from pictures_on_disk import CLASSES, SAMPLES, SIDE, TINY, tasks, write_folder
from processes import assert_same_run, broken_and_resumed, without

each_statistics = pytest.mark.parametrize("statistics", ["running", "support", "episode"])


def learner() -> KernelLearner:
    """An untrained learner whose running statistics are not trivial, and which is too sure of itself."""
    config = Config.of("./pictures").with_options(embedding="conv4", channels=16, bases=64, gamma=25.0)
    made = config.build(TaskSpec((1, SIDE, SIDE), targets=None))
    assert isinstance(made, KernelLearner)
    made.initialise(tasks().looked_up())
    with torch.no_grad():
        for seed in range(20):
            made.remember(made.train()(tasks(2, seed=seed).looked_up()))
    return made.eval()


def own_calibration_error(confidence: Any, right: Any) -> float:
    """15 bins (0, 1/15], ..., (14/15, 1], in double precision."""
    confidence, right = np.asarray(confidence, dtype=np.float64), np.asarray(right, dtype=np.float64)
    number = np.ceil(15 * confidence)
    return sum(abs((right - confidence)[number == k].sum()) for k in range(1, 16)) / confidence.size


def test_each_image_is_embedded_once_and_that_changes_no_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(measuring, "IMAGES_AT_ONCE", 7)
    model, episodes = learner(), tasks(60)
    apart = torch.cat([model.predict(task.looked_up()).mean for task in episodes.batches(1)])
    seen: list[Tensor] = []
    model.embedding.register_forward_pre_hook(lambda _, inputs: seen.append(inputs[0]))
    torch.testing.assert_close(log_probabilities(model, episodes, batch=3), apart, rtol=0, atol=1e-4)
    images = torch.cat([x.flatten(0, 1) for x in seen]).flatten(1)
    assert len(images) == len(torch.unique(images, dim=0)) == CLASSES * SAMPLES  # the tasks use them many times


@each_statistics
def test_results_do_not_depend_on_the_batch_size(statistics: Statistics) -> None:
    model, episodes, protocol = learner(), tasks(), Protocol(statistics)
    one, five, default = (evaluate_learner(model, episodes, 0, batch, protocol) for batch in (1, 5, None))
    for other in (one, five):
        assert torch.equal(other.per_task, default.per_task)
        assert other.nll == pytest.approx(default.nll, rel=1e-5)
        assert other.ece == pytest.approx(default.ece, rel=1e-4)
    assert default.protocol == ("transductive" if statistics == "episode" else "inductive")
    assert default.statistics == statistics


def test_figures_are_those_of_numpy() -> None:
    model, episodes = learner(), tasks(200)
    assert episodes.query_y is not None
    result, target = evaluate_learner(model, episodes, seed=4), episodes.query_y.numpy()
    samples = torch.cat([model.predict(chunk).samples[0] for chunk in episodes.batches(50)]).double().numpy()  # logits
    probability = np.exp(samples) / np.exp(samples).sum(-1, keepdims=True)
    right = probability.argmax(-1) == target
    np.testing.assert_allclose(result.per_task, 100 * right.mean(1), rtol=1e-6)
    assert result.mean == pytest.approx(100 * right.mean(), rel=1e-6)
    assert result.nll == pytest.approx(-np.log(np.take_along_axis(probability, target[..., None], -1)).mean(), rel=1e-4)
    assert result.ece == pytest.approx(own_calibration_error(probability.max(-1), right), rel=1e-3)
    low, high = scipy.stats.t.interval(0.95, 199, scale=scipy.stats.sem(100 * right.mean(1)))
    assert result.ci95 == pytest.approx((high - low) / 2, rel=1e-6)


def test_calibration_error_is_that_of_torchmetrics_on_few_answers(generator: torch.Generator) -> None:
    torchmetrics = pytest.importorskip("torchmetrics.functional.classification", reason="torchmetrics is not installed")
    multiclass_calibration_error = torchmetrics.multiclass_calibration_error

    log_probabilities = torch.randn(10, 30, 5, generator=generator).log_softmax(-1)
    target = torch.randint(5, (10, 30), generator=generator)
    expected = multiclass_calibration_error(log_probabilities.flatten(0, 1).exp(), target.flatten(), 5, n_bins=15)
    assert calibration_error(log_probabilities, target) == pytest.approx(float(expected), abs=1e-5)


@pytest.mark.parametrize("sure", [0.97, 0.995, 1.0])
def test_calibration_error_is_exact_on_as_many_answers_as_a_test_has(sure: float) -> None:
    number = torch.arange(900_000)  # 3,000 tasks of 20 ways and 15 queries
    confidence = torch.where(number % 2 == 0, sure, 0.94)
    right = (number % 2000 >= 60).long()
    probability = torch.stack([1 - confidence, confidence], dim=-1)[None]
    expected = own_calibration_error(confidence, right)
    assert calibration_error(probability.log(), right[None]) == pytest.approx(expected, abs=1e-5)


def test_a_result_says_all_that_is_needed_to_compare_it() -> None:
    result = evaluate_learner(learner(), tasks(), seed=4, split="random, seed 0", within_alphabet=False)
    summary = json.loads(json.dumps(result.to_dict()))
    expected = {"metric": "accuracy", "tasks": 12, "way": 4, "shot": 2, "query": 5, "seed": 4, "temperature": 1.0}
    expected |= {"protocol": "inductive", "statistics": "running", "split": "random, seed 0", "within_alphabet": False}
    assert {name: summary[name] for name in expected} == expected
    assert 0 < summary["ece"] < 1
    assert 25 < summary["mean"] < 100  # percent
    assert not {"coverage90", "per_task", "pretraining"} & summary.keys()


def test_the_fingerprint_depends_on_pictures_and_rows() -> None:
    first, again = tasks(), tasks()
    assert again.bank is not None
    touched, moved = again.bank[:].clone(), again.support_x.clone()
    touched[-1, 0, 0, 0] ^= 1
    moved[0, 0] += 1
    assert fingerprint(first) == fingerprint(again)
    assert len({fingerprint(e) for e in (first, replace(first, bank=touched), replace(first, support_x=moved))}) == 3


def test_calibrating_finds_the_temperature_of_least_nll_and_changes_no_answer() -> None:
    model, episodes = learner(), tasks(200)
    before, logits = measure(model, episodes), log_probabilities(model, episodes).flatten(0, 1)
    model.temperature.fill_(7.0)  # what was fitted before does not matter
    calibrated = calibrate(model, episodes)
    target = episodes.query_y.flatten()  # type: ignore[union-attr]
    grid = {t: F.cross_entropy(logits / t, target).item() for t in torch.linspace(1, 9, 81).tolist()}
    assert model.temperature_for(episodes).item() == pytest.approx(min(grid, key=lambda t: grid[t]), abs=0.1)
    assert calibrated["nll"].mean().item() == pytest.approx(min(grid.values()), abs=1e-3)
    assert calibrated["nll"].mean() < before["nll"].mean() - 0.1
    assert torch.equal(calibrated["accuracy"], before["accuracy"])
    result = evaluate_learner(model, episodes, 0)  # calibrated from now on
    assert result.nll == pytest.approx(calibrated["nll"].mean().item(), rel=1e-4)


def test_each_number_of_shots_gets_its_own_temperature_and_those_between_lie_between() -> None:
    model = learner()
    groups = [tasks(200, shot=shot, query=2) for shot in (1, 5)]
    calibrate_shots(model, groups)
    fitted = []
    for group in groups:
        found = model.temperature_for(group)
        alone = learner()
        calibrate(alone, group)
        assert found.item() == pytest.approx(alone.temperature_for(group).item(), rel=1e-3)
        fitted.append(found.item())
    between = model.temperature_for(tasks(2, shot=3)).item()
    assert min(fitted) < between < max(fitted)
    assert model.temperature_for(tasks(2, shot=6, query=2)).item() == pytest.approx(
        fitted[1]
    )  # nothing is known beyond


def test_a_file_with_one_temperature_for_all_shots_is_read_as_such() -> None:
    model = learner()
    older = model.state_dict() | {"temperature": torch.tensor(1.7)}
    load_weights(model, older, "older.safetensors")
    assert torch.equal(model.temperature, torch.full_like(model.temperature, 1.7))
    with pytest.raises(UserError, match="does not belong"):
        load_weights(model, older | {"temperature": torch.ones(2)}, "other.safetensors")


# Training on a folder of pictures, and testing the run


@pytest.fixture(scope="module", autouse=True)
def folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    place = tmp_path_factory.mktemp("data")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("METAVRF_CACHE", str(place / "cache"))
        yield write_folder(place / "pictures")


@pytest.fixture(scope="module")
def run(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Run:
    out = tmp_path_factory.mktemp("runs") / "run"
    return metavrf.train(str(folder), out=out, iterations=30, validate_every=10, augment="none", **TINY)


def test_training_learns_classes_it_is_not_trained_on(run: Run) -> None:
    metrics, result = run.metrics(), run.result()
    assert result is not None
    accuracies = [record["val_accuracy"] for record in metrics]
    assert max(accuracies) == result["validation"]["val_accuracy"] > max(80, accuracies[0] + 5)  # chance is 33
    assert metrics[-1]["val_nll"] < 0.8 * metrics[0]["val_nll"]


def test_a_run_keeps_the_lists_of_its_classes(run: Run) -> None:
    data = json.loads(run.data_file.read_text())
    parts = [data["classes"][part] for part in ("train", "val", "test")]
    assert [len(part) for part in parts] == [15, 5, 5]
    assert sorted(name for part in parts for name in part) == [f"class{number:02}" for number in range(CLASSES)]
    assert (data["inputs"], data["targets"], data["split"]) == ([1, SIDE, SIDE], None, "random, seed 0")


def test_testing_twice_gives_the_same_to_the_bit(run: Run) -> None:
    first, again = (metavrf.evaluate(run.path, tasks=20) for _ in range(2))
    assert torch.equal(first.per_task, again.per_task)
    assert without(first.to_dict(), "seconds") == without(again.to_dict(), "seconds")
    assert (first.split, first.within_alphabet, first.pretraining) == ("random, seed 0", False, None)
    assert first.temperature == pytest.approx(metavrf.load(run.path).learner.temperature[0].item())  # of one shot
    assert first.temperature != 1
    assert metavrf.evaluate(run.path, tasks=20, seed=1).data_sha256 != first.data_sha256


def test_tasks_may_differ_from_training_as_far_as_there_are_classes(run: Run) -> None:
    result = metavrf.evaluate(run.path, tasks=20, way=2, shot=3, query=4)
    assert (result.way, result.shot, result.query, result.tasks) == (2, 3, 4, 20)
    assert result.mean > 60
    with pytest.raises(UserError, match="way=6 exceeds the 5 classes"):
        metavrf.evaluate(run.path, tasks=20, way=6)
    with pytest.raises(UserError, match=r"^these classes have no groups \(alphabets\).*$"):
        metavrf.evaluate(run.path, tasks=20, within_alphabet=True)


def test_protocols_are_tested_on_the_same_tasks_and_labelled(run: Run) -> None:
    options: list[dict[str, Any]] = [{}, {"statistics": "support"}, {"protocol": "transductive"}]
    results = [metavrf.evaluate(run.path, tasks=20, **chosen) for chosen in options]
    labels = [(result.protocol, result.statistics) for result in results]
    assert labels == [("inductive", "running"), ("inductive", "support"), ("transductive", "episode")]
    assert len({result.data_sha256 for result in results}) == 1
    assert len({result.nll for result in results}) == 3
    for wrong in (
        {"protocol": "transductive", "statistics": "support"},
        {"statistics": "episode"},
        {"protocol": "other"},
    ):
        with pytest.raises(UserError, match="is not a choice: give inductive"):
            metavrf.evaluate(run.path, tasks=2, **wrong)  # type: ignore[arg-type]


@pytest.mark.parametrize(("context", "augment"), [("none", "crop-flip"), ("lstm", "affine")])
def test_a_resumed_run_equals_one_never_interrupted(
    context: str, augment: str, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    options = {**TINY, "context": context, "augment": augment, "dropout": 0.2, "iterations": 9, "validate_every": 4}
    metavrf.train(str(folder), out=tmp_path / "whole", **options)
    broken = tmp_path / "broken"
    broken_and_resumed(  # two steps after a checkpoint
        lambda: metavrf.train(str(folder), out=broken, **options), broken, 6, monkeypatch
    )
    assert_same_run(tmp_path / "whole", broken)


def test_the_seed_alone_decides_a_run_with_dropout(folder: Path, tmp_path: Path) -> None:
    options = {**TINY, "dropout": 0.2, "iterations": 2, "validate_every": 2, "augment": "none"}
    for seed in (0, 1):
        torch.manual_seed(seed)  # of the caller's own
        state = torch.get_rng_state()
        metavrf.train(str(folder), out=tmp_path / str(seed), **options)
        assert torch.equal(torch.get_rng_state(), state)
    assert_same_run(tmp_path / "0", tmp_path / "1")


def test_a_run_goes_on_with_the_same_pictures_only(tmp_path: Path) -> None:
    folder, out = write_folder(tmp_path / "pictures"), tmp_path / "run"
    metavrf.train(str(folder), out=out, iterations=2, validate_every=2, augment="none", **TINY)
    Image.new("L", (SIDE, SIDE), 7).save(folder / "class00" / "new.png")
    with pytest.raises(UserError, match="a resumed run needs the same files"):
        metavrf.train(out=out, resume=True, quiet=True)
    (folder / "class99").mkdir()
    Image.new("L", (SIDE, SIDE), 9).save(folder / "class99" / "new.png")
    with pytest.raises(UserError, match="not those the run was split by"):
        metavrf.evaluate(out, tasks=2)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"embedding": "conv5", "image_size": 16}, "16 x 16 pixels are too small"),
        ({"context": "bayes"}, "context = 'bayes' carries the weights of kernels on"),
        ({"dropout": 1.5}, "dropout = 1.5"),
    ],
)
def test_what_cannot_work_is_refused_before_anything_is_written(
    options: dict[str, Any], message: str, folder: Path, tmp_path: Path
) -> None:
    with pytest.raises(UserError, match=message):
        metavrf.train(str(folder), out=tmp_path / "run", **{**TINY, "iterations": 2, **options})
    assert not (tmp_path / "run").exists()
