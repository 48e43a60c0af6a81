"""metavrf sweep: what is searched, how it is judged, that it goes on where it was, and what it refuses."""

from __future__ import annotations

import json
import math
import re
import shlex
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import metavrf
from metavrf.cli import main, parse
from metavrf.commands.sweep import command_of
from metavrf.errors import UserError
from metavrf.runs.directory import Run
from metavrf.studies.sweep import JOURNAL, SweepResult
from pictures_on_disk import TINY as PICTURES
from pictures_on_disk import write_folder
from processes import real_command
from shell import refused
from tiny_studies import CURVES

OVER = {"lr": "1e-4..1e-2", "gamma": "0.5..2", "schedule": "cosine,constant"}
WORDS = [f"{name}={values}" for name, values in OVER.items()]


def searched(out: Path, trials: int = 4, **options: Any) -> SweepResult:
    pytest.importorskip("optuna", reason="Optuna is not installed")
    return metavrf.sweep("sine", OVER, out=out, trials=trials, **(CURVES | options))


def without_folder(found: SweepResult) -> list[Any]:
    return [replace(trial, run=Path(trial.run).name) for trial in found.trials]


def options() -> list[str]:
    """The settings of every trial as the shell takes them."""
    return [word for name, value in CURVES.items() for word in (f"--{name.replace('_', '-')}", str(value))]


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> SweepResult:
    return searched(tmp_path_factory.mktemp("sweep") / "out")


def test_each_trial_is_a_run_judged_by_its_best_validation(found: SweepResult) -> None:
    assert found.figure == "val_mse"
    assert [trial.number for trial in found.trials] == [0, 1, 2, 3]
    for trial in found.trials:
        run = Run(trial.run)
        assert trial.figure == min(record["val_mse"] for record in run.metrics())
        assert run.config() == metavrf.Config.of("sine", **CURVES, **trial.settings)
    assert found.best.figure == min(trial.figure or math.inf for trial in found.trials)
    assert found.config == Run(found.best.run).config()
    assert found.importances.keys() == OVER.keys()
    assert sum(found.importances.values()) == pytest.approx(1)
    table = json.loads((Path(found.best.run).parents[1] / "sweep.json").read_text())
    assert table["best"] == found.best.number
    assert [trial["figure"] for trial in table["trials"]] == [trial.figure for trial in found.trials]
    assert table["judged_by"] == "val_mse"


def test_a_wide_range_is_searched_on_a_logarithmic_scale_and_whole_numbers_stay_whole(tmp_path: Path) -> None:
    pytest.importorskip("optuna", reason="Optuna is not installed")
    over = {"lr": "1e-4..1e-3", "gamma": "0.5..4.9", "batch": "2..20", "warmup": "0..20"}
    metavrf.sweep("sine", over, out=tmp_path, trials=1, **{**CURVES, "iterations": 2})
    journal = [json.loads(line) for line in (tmp_path / JOURNAL).read_text().splitlines()]  # JSON, not a pickle
    drawn = {line["param_name"]: json.loads(line["distribution"]) for line in journal if "param_name" in line}
    kinds = {name: (value["name"], value["attributes"]["log"]) for name, value in drawn.items()}
    assert kinds == {
        "lr": ("FloatDistribution", True),
        "gamma": ("FloatDistribution", False),
        "batch": ("IntDistribution", True),
        "warmup": ("IntDistribution", False),
    }


def test_classes_are_judged_by_accuracy_and_never_by_test_classes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("optuna", reason="Optuna is not installed")
    monkeypatch.setenv("METAVRF_CACHE", str(tmp_path / "cache"))
    folder = write_folder(tmp_path / "drawings")
    settings = {name: value for name, value in PICTURES.items() if name != "quiet"}
    settings |= {"iterations": 4, "validate_every": 2}
    found = metavrf.sweep(str(folder), {"lr": "1e-4..1e-2"}, out=tmp_path / "out", trials=2, **settings)
    assert found.figure == "val_accuracy"
    for trial in found.trials:
        assert trial.figure == max(record["val_accuracy"] for record in Run(trial.run).metrics())
    assert found.best.figure == max(trial.figure or 0 for trial in found.trials)
    assert not list((tmp_path / "out").rglob("*test*"))


def test_called_again_it_goes_on_and_ends_as_one_that_was_never_stopped(found: SweepResult, tmp_path: Path) -> None:
    first = searched(tmp_path, trials=2)
    assert len(first.trials) == 2
    written = Run(first.trials[0].run).result_file.stat().st_mtime_ns
    with (tmp_path / JOURNAL).open("a") as journal:
        journal.write('{"op_code": 5, "wor')  # a crash in the middle of a line
    again = searched(tmp_path)
    assert without_folder(again) == without_folder(found)
    assert Run(again.trials[0].run).result_file.stat().st_mtime_ns == written
    assert without_folder(searched(tmp_path)) == without_folder(found)  # nothing is left to do


def test_killed_in_the_middle_of_a_trial_it_goes_on_with_that_trial(tmp_path: Path) -> None:
    pytest.importorskip("optuna", reason="Optuna is not installed")
    long = {"iterations": 400, "validate_every": 50}
    command = ["sweep", "sine", "--over", *WORDS, "--trials", "2", "--out", str(tmp_path / "killed"), *options()]
    command += ["--iterations", "400", "--validate-every", "50"]
    process = subprocess.Popen(real_command(*command), stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    while not (tmp_path / "killed" / "runs" / "trial-0" / "metrics.jsonl").exists():
        assert process.poll() is None, process.communicate()[0]
        time.sleep(0.01)
    process.send_signal(signal.SIGKILL)
    process.communicate()
    assert not (tmp_path / "killed" / "runs" / "trial-0" / "result.json").exists()
    resumed, whole = (searched(tmp_path / name, trials=2, **long) for name in ("killed", "whole"))
    assert without_folder(resumed) == without_folder(whole)


def test_the_shell_prints_a_table_the_best_command_and_what_mattered(
    found: SweepResult, capsys: pytest.CaptureFixture[str]
) -> None:
    out = Path(found.best.run).parents[1]
    main(["sweep", "sine", "--over", *WORDS, "--trials", "4", "--out", str(out), *options()])
    printed = capsys.readouterr().out
    lines = [line.split() for line in printed.splitlines()]
    assert lines[0] == ["trial", *OVER, "val_mse"]
    assert [float(line[-1]) for line in lines[2:6]] == pytest.approx(
        sorted(trial.figure or math.inf for trial in found.trials), rel=1e-3
    )
    assert re.search(r"^importance, by 4 trials: (\w+ \d+ %(, )?){3}$", printed, re.M)
    (best,) = re.findall(r"^best: metavrf (train .*) --out RUN$", printed, re.M)
    assert parse([*shlex.split(best), "--out", "RUN"]).config == found.config


@pytest.mark.parametrize(
    "config",
    [
        lambda: metavrf.Config.of("sine", context="bilstm", lr=1.5e-5, guards=0),
        lambda: metavrf.Config.of("omniglot", "maml", "paper", way=20, augment="affine", rotate=True),
        lambda: metavrf.Config.of("curves.csv", group="id", inputs=("a", "b"), targets=("c",), missing="drop"),
    ],
)
def test_the_command_of_a_configuration_is_parsed_to_that_configuration(config: Callable[[], Any]) -> None:
    program, *words = command_of(config())
    assert program == "metavrf"
    assert parse([*words, "--out", "RUN"]).config == config()


def test_a_trial_that_fails_is_shown_and_the_others_go_on(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("optuna", reason="Optuna is not installed")
    command = ["sweep", "sine", "--over", "lr=1e-3,1e12", "--trials", "4", "--out", str(tmp_path), *options()]
    main([*command, "--warmup", "0"])
    printed = capsys.readouterr()
    failed = re.findall(r"^trial \d: lr=1e\+12: training failed at step", printed.err, re.M)
    judged = re.findall(r"^trial \d: lr=0.001: val_mse", printed.err, re.M)
    assert len(failed) + len(judged) == 4
    assert failed
    assert judged
    assert printed.out.count("failed") == len(failed)


def test_trials_side_by_side_are_the_same_runs(tmp_path: Path) -> None:
    found = searched(tmp_path, trials=3, jobs=2)
    for trial in found.trials:
        assert trial.figure == min(record["val_mse"] for record in Run(trial.run).metrics())
    assert len({json.dumps(dict(trial.settings)) for trial in found.trials}) == 3


@pytest.mark.parametrize(
    ("over", "said"),
    [
        ("lr=1e-2..1e-4", "lr=1e-2..1e-4 is empty: give the lower end first"),
        ("lr=0..1", "lr = 0.0 must be positive"),
        ("lr=1e-3", "lr=1e-3 is nothing to search"),
        ("batch=1.5..3", "batch=1.5 must be a whole number"),
        ("lr=a..b", "lr=a must be a number"),
        ("schedule=a..b", "schedule=a..b is a range, and schedule is not a number"),
        ("schedule=cosine,square", "schedule = 'square' is not a choice"),
        ("speed=1..2", "there is no setting 'speed'"),
        ("seed=0..9", "seed is not to be searched: trials are compared on the same validation tasks"),
        ("shot=1,5", "shot is not to be searched"),
        ("lr", "--over lr is not understood"),
    ],
)
def test_what_cannot_be_searched_is_one_sentence(
    over: str, said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("optuna", reason="Optuna is not installed")
    assert refused(capsys, "sweep", "sine", "--over", over, "--out", tmp_path / "out").startswith(said)
    assert not (tmp_path / "out").exists()


def test_a_journal_that_was_changed_is_refused(found: SweepResult, tmp_path: Path) -> None:
    folder = tmp_path / "copy"
    shutil.copytree(Path(found.best.run).parents[1], folder)
    journal = folder / JOURNAL
    whole = journal.read_bytes()
    place = whole.rindex(b'"values":[') + 10
    digit = b"1" if whole[place : place + 1] != b"1" else b"2"
    for changed in (whole[:place] + digit + whole[place + 1 :], whole[: whole.rindex(b"\n", 0, -1) + 1]):
        journal.write_bytes(changed)
        with pytest.raises(UserError, match=r"sweep\.journal is damaged or was changed"):
            searched(folder)
    journal.write_bytes(whole + b'{"op_code": 5, "wor')  # written by a process that was killed before it could seal it
    assert without_folder(searched(folder)) == without_folder(found)


def test_a_folder_with_another_search_is_refused(found: SweepResult) -> None:
    with pytest.raises(UserError, match="holds a search with other settings"):
        searched(Path(found.best.run).parents[1], batch=5)


def test_without_optuna_the_extra_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "optuna", None)
    said = refused(capsys, "sweep", "sine", "--over", "lr=1e-3..1e-2", "--out", tmp_path / "out")
    assert said == "a sweep needs the extra 'sweep': pip install 'metavrf[sweep]'"
