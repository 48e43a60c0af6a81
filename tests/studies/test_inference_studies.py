"""Studies of many kernels, and the picture of them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import metavrf
from metavrf.cli import main
from metavrf.studies import inference
from metavrf.studies.processes import fitted_process, oracle_on

TINY_KERNELS: dict[str, Any] = {"components": 4, "guards": 1, "validate_tasks": 10, "validate_every": 2}


def test_every_study_validates_its_settings() -> None:
    for plan in inference.PLANS.values():
        for options in plan.trainings.values():
            inference._config(plan.task, options, None).validate()


def test_a_study_of_streams_trains_tests_draws_and_saves(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    stream = TINY_KERNELS | {"stream": 3, "batch": 6, "shot": 3, "train_shot": 2, "most_shot": 4}
    trainings = {context: stream | {"context": context} for context in ("none", "bayes")}
    plan = inference.Plan(
        "sine", trainings, [{"shot": 3, "stream": 3, "tasks": 12}, {"shot": 3, "stream": 1, "tasks": 8}]
    )
    monkeypatch.setitem(inference.PLANS, "streams", plan)
    files = ["--save", str(tmp_path / "table.json"), "--chart", str(tmp_path / "streams.png")]
    main(["study", "streams", "--seeds", "1", "--iterations", "2", "--out", str(tmp_path / "runs"), *files])
    assert "last of the stream" in capsys.readouterr().out
    table = json.loads((tmp_path / "table.json").read_text())
    assert [(row["training"], row["train_seed"], row["seed"], row["tasks"]) for row in table["rows"]] == [
        (context, 1, 2020, tasks) for context in ("none", "bayes") for tasks in (12, 8)
    ]
    assert len(table["rows"][0]["by_position"]) == 3
    assert table["rows"][0]["protocol"] == "inductive, stream of 3"
    assert (tmp_path / "streams.png").read_bytes().startswith(b"\x89PNG")


def test_baselines_may_be_trained_with_the_first_seed_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    trainings = {"many": TINY_KERNELS, "base": {"learner": "rbf", "validate_tasks": 5, "validate_every": 2}}
    plan = inference.Plan("sine", trainings, [{"shot": 3, "tasks": 4}], once=("base",))
    monkeypatch.setitem(inference.PLANS, "mixed", plan)
    rows, _ = inference.run("mixed", tmp_path, [3, 4], 2, 1)
    assert [(row["training"], row["train_seed"]) for row in rows] == [("many", 3), ("base", 3), ("many", 4)]


def test_a_chart_is_for_streams_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(inference.PLANS, "moves", inference.Plan("sine", {"one": TINY_KERNELS}, [{"tasks": 4}]))
    with pytest.raises(SystemExit) as stop:
        main(["study", "moves", "--seeds", "0", "--iterations", "2", "--out", str(tmp_path), "--chart", "no.png"])
    assert stop.value.code == 2
    assert "--chart is for studies of streams, not for moves" in capsys.readouterr().err


def test_the_oracle_of_a_mixture_on_one_of_its_kinds_knows_less_than_that_kinds_own() -> None:
    mixed, own = (oracle_on(task, "gp-rbf", 2)["Bayes-optimal"] for task in ("gp-mixed", "gp-rbf"))
    assert mixed["tasks"] == own["tasks"] == 2
    assert mixed["data_sha256"] == own["data_sha256"]
    assert mixed["nll"] > own["nll"] - 0.5


def test_a_process_fitted_to_each_task_follows_a_smooth_curve() -> None:
    found = fitted_process("sine", shot=10, tasks=3)
    assert found["tasks"] == 3
    assert found["mean"] < 1.0  # predicting zero everywhere has an error of about 4


def test_kernels_are_drawn_of_runs_on_functions_alone(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    metavrf.train("sine", out=tmp_path / "run", quiet=True, iterations=2, **TINY_KERNELS)
    picture = tmp_path / "kernels.png"
    main(["kernels", str(tmp_path / "run"), "--out", str(picture), "--tasks", "2"])
    assert picture.read_bytes().startswith(b"\x89PNG")
    metavrf.train("sine", learner="rff", out=tmp_path / "rff", quiet=True, iterations=2, bases=32, validate_tasks=10)
    for run, sentence in (("rff", "no kernels over frequency"), ("omniglot", "no kernels over frequency")):
        with pytest.raises(SystemExit) as stop:
            main(["kernels", str(tmp_path / run) if run == "rff" else run, "--out", str(picture)])
        assert stop.value.code == 2
        assert sentence in capsys.readouterr().err


def test_another_family_can_be_tested_on(tmp_path: Path) -> None:
    metavrf.train("gp-rbf", out=tmp_path / "run", quiet=True, iterations=2, **TINY_KERNELS, rough=1)
    found = metavrf.evaluate(tmp_path / "run", on="gp-matern", tasks=60)
    assert (found.on, found.shot, found.tasks) == ("gp-matern", None, 60)
    with pytest.raises(metavrf.UserError, match="no family of functions 'omniglot': choose from sine"):
        metavrf.evaluate(tmp_path / "run", on="omniglot")
