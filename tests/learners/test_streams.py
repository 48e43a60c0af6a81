"""Mixtures and streams from end to end: trained, resumed, and tested from the command line."""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

import metavrf
from metavrf.cli import main
from metavrf.config import Config
from metavrf.files import read_tensors
from metavrf.runs import training
from metavrf.runs.directory import Run
from metavrf.testing.evaluate import test_tasks as tasks_of
from metavrf.testing.settings import EvalSettings
from processes import assert_same_run, broken_and_resumed
from shell import printed_json, refused

TINY: dict[str, Any] = {
    "iterations": 6,
    "validate_every": 3,
    "validate_tasks": 8,
    "batch": 8,
    "query": 5,
    "threads": 1,
    "warmup": 2,
    "components": 6,
    "guards": 0,
    "quiet": True,
}
RUNS: dict[str, tuple[str, dict[str, Any]]] = {
    "mixture": ("sine", {"combs": 2, "moves": True, "embedding": "mlp"}),
    "guarded": ("sine", {"guards": 3}),
    "classic": ("mixed", {"components": 1, "shapes": 0, "train_kernel": "features", "bases": 32}),
    "no KL": ("sine", {"components": 1, "train_kernel": "exact", "embedding": "mlp", "moves": True, "kl_weight": 0.0}),
    "bayes": ("sine-drift", {"stream": 4, "context": "bayes"}),
    "between": ("sine-drift", {"stream": 4, "context": "bayes", "between": True}),
    "lstm": ("sine-drift", {"stream": 4, "context": "lstm"}),
    "bilstm": ("sine-drift", {"stream": 4, "context": "bilstm"}),
    "summaries": ("sine-drift", {"stream": 4, "context": "bilstm", "moves": True, "context_size": 0}),
}


def train(name: str, out: Path) -> Run:
    task, options = RUNS[name]
    return metavrf.train(task, out=out, **TINY | options)


@pytest.fixture(scope="module", autouse=True)
def quick_start() -> Iterator[None]:
    """Kernels start where a few tasks say, and the band is that of a few."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(training, "TASKS_FOR_KERNELS", 10)
        patch.setattr(training, "TASKS_FOR_BAND", 5)
        yield


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("runs")
    for name in RUNS:
        train(name, path / name)
    return path


@pytest.mark.parametrize("name", RUNS)
def test_a_resumed_run_equals_one_never_interrupted(
    name: str, runs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    broken = tmp_path / "broken"
    broken_and_resumed(lambda: train(name, broken), broken, 4, monkeypatch)  # a step after a checkpoint
    assert_same_run(runs / name, broken)


@pytest.mark.parametrize("name", RUNS)
def test_a_reloaded_run_predicts_the_same_to_the_bit(name: str, runs: Path) -> None:
    episodes = tasks_of(Run(runs / name).config(), None, EvalSettings(tasks=8))
    assert isinstance(episodes, metavrf.Episodes)
    first, second = (metavrf.load(runs / name).predict(episodes) for _ in range(2))
    assert torch.equal(first.mean, second.mean)
    assert torch.isfinite(first.mean).all()


def test_a_run_of_exact_kernels_stores_no_bases_and_can_be_given_some(runs: Path) -> None:
    assert "epsilon" not in read_tensors(runs / "mixture" / "model.safetensors")[0]
    exact, drawn = (metavrf.evaluate(runs / "mixture", tasks=4, bases=bases) for bases in (None, 4096))
    assert exact.data_sha256 == drawn.data_sha256
    assert math.isfinite(drawn.mean)
    assert exact.mean != drawn.mean


# The command line


def test_evaluate_says_whether_a_run_adapts(runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = printed_json(capsys, "evaluate", runs / "mixture", "--tasks", 6, "--adaptivity", "--json")
    adaptivity = found["adaptivity"]
    assert {"metric", "own", "mean", "other", "entropy"} == adaptivity.keys()
    assert adaptivity["own"]["mse"] == pytest.approx(found["mean"], rel=1e-3)
    main(["evaluate", str(runs / "mixture"), "--tasks", "6", "--adaptivity"])
    assert "own" in capsys.readouterr().out
    assert "adaptivity" not in printed_json(capsys, "evaluate", runs / "mixture", "--tasks", 6, "--json")


@pytest.mark.parametrize("name", ["bayes", "between", "lstm", "bilstm", "summaries"])
def test_evaluate_labels_streams_and_shows_each_position(
    name: str, runs: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    found = printed_json(capsys, "evaluate", runs / name, "--tasks", 12, "--stream", 3, "--json")
    assert (found["protocol"], found["stream"], found["tasks"]) == ("inductive, stream of 3", 3, 12)
    assert len(found["by_position"]) == 3
    assert sum(found["by_position"]) / 3 == pytest.approx(found["mean"])
    trained = printed_json(capsys, "evaluate", runs / name, "--tasks", 12, "--json")
    assert trained["stream"] == 4  # as in training
    alone = printed_json(capsys, "evaluate", runs / name, "--tasks", 12, "--stream", 1, "--json")
    assert alone["protocol"] == "inductive"
    assert "by_position" not in alone


def test_streams_of_a_family_that_shares_nothing_are_refused_in_one_sentence(
    runs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    expected = "the tasks of mixed have nothing in common to make a stream of: set stream to 1"
    assert refused(capsys, "evaluate", runs / "classic", "--tasks", 8, "--stream", 4) == expected
    assert refused(capsys, "train", "mixed", "--stream", 4, "--out", tmp_path / "run") == expected
    assert not (tmp_path / "run").exists()
    assert "must be at least 1" in refused(capsys, "evaluate", runs / "bayes", "--stream", 0)


def test_the_adaptivity_of_streams_is_refused_in_one_sentence(runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    sentence = refused(capsys, "evaluate", runs / "bayes", "--tasks", 8, "--adaptivity")
    assert sentence == "the adaptivity test is for tasks that stand alone: leave out --stream"


def test_carrying_weights_needs_several_kernels(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ("--context", "bayes", "--components", 1, "--guards", 0, "--out", tmp_path / "run")
    assert "needs --components of 2 or more" in refused(capsys, "train", "sine-drift", *arguments)


def test_runs_on_streams_are_compared_on_the_streams_they_were_trained_on(
    runs: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    found = printed_json(capsys, "compare", runs / "bayes", runs / "lstm", "--tasks", 8, "--json")["rows"]
    assert [row["stream"] for row in found if "stream" in row] == [4, 4]
    assert len({row["data_sha256"] for row in found}) == 1
    alone = printed_json(capsys, "compare", runs / "bayes", runs / "lstm", "--tasks", 8, "--stream", 1, "--json")
    assert "Bayes-optimal" in [row["name"] for row in alone["rows"]]
    assert alone["rows"][0]["data_sha256"] != found[0]["data_sha256"]


def test_compare_says_how_far_above_the_best_predictor_each_run_is(
    runs: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    names = runs / "mixture", runs / "guarded"
    found = printed_json(capsys, "compare", *names, "--tasks", 8, "--on", "sine-maml", "--json")["rows"]
    best = next(row for row in found if row["name"] == "Bayes-optimal")
    for row in found:
        assert row["nll_above_limit"]["mean"] == pytest.approx(row["nll"] - best["nll"], rel=1e-6, abs=1e-9)


def test_without_noise_the_best_likelihood_has_no_bound_and_is_not_shown(
    runs: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    found = printed_json(capsys, "compare", runs / "mixture", "--tasks", 8, "--json")["rows"]
    best = next(row for row in found if row["name"] == "Bayes-optimal")
    assert best["mean"] < found[0]["mean"]
    assert not best.keys() & {"nll", "coverage90", "nll_difference"}
    assert not any("nll_above_limit" in row for row in found)
    main(["compare", str(runs / "mixture"), "--tasks", "8"])
    assert "above Bayes-optimal" not in capsys.readouterr().out


def test_a_stream_is_answered_task_by_task_in_python(runs: Path) -> None:
    tasks = metavrf.load(runs / "bayes").stream()
    x = torch.linspace(-4, 4, 5)
    first = tasks.solve((x, torch.sin(x)), [0.0, 1.0])
    again = tasks.solve((x, torch.sin(x)), [0.0, 1.0])
    assert first.mean.shape == again.mean.shape == (1, 2, 1)
    assert not torch.equal(first.mean, again.mean)  # the first is remembered
    fresh = metavrf.load(runs / "bayes").stream().solve((x, torch.sin(x)), [0.0, 1.0])
    assert torch.equal(fresh.mean, first.mean)


def test_validation_of_streams_takes_whole_ones() -> None:
    episodes = tasks_of(Config.of("sine-drift", stream=4), None, EvalSettings(tasks=10))
    assert isinstance(episodes, metavrf.Episodes)
    assert (episodes.tasks, episodes.stream) == (8, 4)
