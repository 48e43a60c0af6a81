from __future__ import annotations

import functools
import json
from pathlib import Path

import pytest

import metavrf
from metavrf.cli import main
from metavrf.config import Config
from metavrf.errors import UserError
from metavrf.runs.directory import Run
from metavrf.spec import TaskSpec
from metavrf.studies import sine
from metavrf.testing.compare import limits
from processes import DOCUMENTED, snapshot


def test_the_study_of_contexts_trains_every_context() -> None:
    found = sine.variants("contexts", (3, 5), (0, 1), ("x", "xy"))
    assert len(found) == 2 * 2 * 2 * 3
    assert found["5shot-xy-bilstm-seed1"] == {"shot": 5, "seed": 1, "context": "bilstm", "context_inputs": "xy"}


def test_the_study_of_the_baseline_trains_plain_features() -> None:
    assert sine.variants("rff", (3,), (0,), ()) == {"3shot-rff-seed0": {"shot": 3, "seed": 0, "learner": "rff"}}


def test_the_study_of_bases_trains_every_kind_without_context() -> None:
    found = sine.variants("bases", (5,), (0,), ("x",))
    assert list(found) == [
        "5shot-fixed-cosine-seed0",
        "5shot-resampled-cosine-seed0",
        "5shot-fixed-sincos-seed0",
        "5shot-resampled-sincos-seed0",
        "5shot-resampled-sincos-true-seed0",
    ]
    assert all(options["context"] == "none" for options in found.values())
    assert found["5shot-resampled-sincos-true-seed0"]["orthogonal"] is True


def test_a_study_trains_tests_prints_and_saves_one_table(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sine, "CONTEXTS", ("none", "lstm"))
    monkeypatch.setattr(sine, "ONE_KERNEL", sine.ONE_KERNEL | {"bases": 32, "validate_tasks": 10})
    monkeypatch.setattr(sine, "evaluate", functools.partial(metavrf.evaluate, tasks=10))
    monkeypatch.setattr(sine, "limits", functools.partial(limits, tasks=10))
    command = ["study", "contexts", "--shots", "3", "--seeds", "4", "--context-inputs", "x", "--iterations", "2"]
    command += ["--out", str(tmp_path / "runs"), "--save", str(tmp_path / "table.json")]
    main(command)
    table = json.loads((tmp_path / "table.json").read_text())
    assert (table["study"], table["iterations"], table["provenance"]["seed"]) == ("contexts", 2, 4)
    runs = ["3shot-x-none-seed4", "3shot-x-lstm-seed4"]
    assert [(row["run"], row["learner"], row["shot"], row["seed"], row["tasks"]) for row in table["rows"]] == [
        (runs[0], "metavrf", 3, 4, 10),
        (runs[1], "metavrf", 3, 4, 10),
    ]
    for row in table["rows"]:
        assert row["mse"] == metavrf.evaluate(tmp_path / "runs" / row["run"], tasks=10).mean > 0
    assert len({row["data_sha256"] for row in table["rows"]}) == 1
    assert set(snapshot(tmp_path / "runs")) == {f"{run}/{name}" for run in runs for name in DOCUMENTED}
    assert "mse" in capsys.readouterr().out

    before = snapshot(tmp_path / "runs")
    main(command)  # finds everything done
    assert snapshot(tmp_path / "runs") == before
    assert json.loads((tmp_path / "table.json").read_text())["rows"] == table["rows"]


def test_a_study_refuses_runs_with_other_settings(tmp_path: Path) -> None:
    trainings = sine.variants("bases", (5,), (0,), ("x",))
    name = next(iter(trainings))
    Run.create(tmp_path / name, Config.of("sine"), TaskSpec())
    before = snapshot(tmp_path)
    with pytest.raises(UserError, match="holds a run with other settings: choose another --out"):
        sine.study({name: trainings[name]}, tmp_path, 2, 1)
    assert snapshot(tmp_path) == before


def test_a_training_that_fails_is_named_with_its_reason(tmp_path: Path) -> None:
    with pytest.raises(UserError) as failure:
        sine.study({"wild": {"lr": 1e9, "bases": 8, "warmup": 0, "validate_tasks": 2}}, tmp_path, 20, 1)
    assert str(failure.value).startswith(f"the training in {tmp_path}/wild failed: metavrf: training failed at step ")
    assert "\n" not in str(failure.value)


def test_a_study_without_runs_is_one_sentence(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sine, "limits", functools.partial(limits, tasks=10))
    with pytest.raises(SystemExit) as stop:
        main(["study", "contexts", "--out", str(tmp_path), "--seeds", "--iterations", "2"])
    assert stop.value.code == 2
    assert "Traceback" not in capsys.readouterr().err
