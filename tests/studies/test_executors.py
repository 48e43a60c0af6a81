"""A study's runs elsewhere: a worker that is killed changes nothing, on this machine, on Ray and by submitit."""

from __future__ import annotations

import importlib.util
import json
import os
import re
import signal
import subprocess
import sys
import time
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from metavrf.cli import main
from metavrf.runs.directory import Run
from metavrf.studies import catalog
from metavrf.studies.executors import Executor, Local
from metavrf.studies.study import Plan
from metavrf.studies.work import DEATHS, DIED, Order, run_jobs
from shell import refused
from tiny_studies import curves

TIMES = ("seconds", "train_seconds", "train_cpu_seconds")
# The first process that comes to step 15 of a run kills itself; the checkpoint is of step 10.
DEADLY = """
import os, signal
from pathlib import Path
from metavrf.runs.training import Trainer

whole_step = Trainer.train_step

def dying_step(trainer):
    if trainer.at.step == 15:
        try:
            Path(__file__).with_suffix(".killed").open("x").write(str(trainer.run.path))
        except FileExistsError:
            pass
        else:
            os.kill(os.getpid(), signal.SIGKILL)
    return whole_step(trainer)

Trainer.train_step = dying_step
"""
SLOW = """
import time
from metavrf.runs.training import Trainer

whole_step = Trainer.train_step

def slow_step(trainer):
    time.sleep(0.2)
    return whole_step(trainer)

Trainer.train_step = slow_step
"""


def needs(module: str) -> None:
    if importlib.util.find_spec(module) is None:
        pytest.skip(f"{module} is not installed")


def study(out: Path, *options: str) -> subprocess.CompletedProcess[str]:
    """The tiny study of curves in a process of its own."""
    return subprocess.run(**command(out, *options), capture_output=True, text=True, check=False)


def started(out: Path, log: Path, *options: str) -> subprocess.Popen[bytes]:
    """The same, not waited for."""
    with log.open("w") as said:
        return subprocess.Popen(**command(out, *options), stdout=said, stderr=said)


def command(out: Path, *options: str) -> dict[str, Any]:
    code = "import sys, tiny_studies; tiny_studies.install(); from metavrf.cli import main; main(sys.argv[1:])"
    arguments = ["reproduce", "curves", "--budget", "day", "--seeds", "0", "--out", str(out), *options]
    paths = os.pathsep.join(path for path in sys.path if path)
    return {"args": [sys.executable, "-c", code, *arguments], "env": os.environ | {"PYTHONPATH": paths}}


def found(out: Path) -> dict[str, Any]:
    """Every figure of the study, without times."""
    values = json.loads((out / "curves.json").read_text())
    for row in values["rows"] + values["limits"]:
        for name in TIMES:
            row.pop(name, None)
    return {name: values[name] for name in ("cells", "rows", "limits", "problems")}


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The study by one process after the other, none of them killed."""
    out = tmp_path_factory.mktemp("study") / "out"
    done = study(out)
    assert done.returncode == 0, done.stderr
    return out


@pytest.mark.parametrize("on", ["local", "ray"])
def test_a_study_of_two_workers_one_of_them_killed_has_the_same_results(
    on: str, undisturbed: Path, tmp_path: Path
) -> None:
    if on != "local":
        needs(on)
    plugin = tmp_path / "deadly.py"
    plugin.write_text(DEADLY)
    out = tmp_path / "out"
    done = study(out, "--on", on, "--jobs", "2", "--plugin", str(plugin))
    assert done.returncode == 0, done.stderr
    killed = Path(plugin.with_suffix(".killed").read_text())
    assert killed.parent == out / "runs"
    assert len(re.findall(f"^curves: .*: {DIED}; it is taken up again$", done.stderr, re.M)) == 1
    assert len(re.findall(r"^\[\d/3\] curves: .*: \d+ s$", done.stderr, re.M)) == 3
    assert found(out) == found(undisturbed)
    for run in (undisturbed / "runs").iterdir():
        assert (run / "model.safetensors").read_bytes() == (out / "runs" / run.name / "model.safetensors").read_bytes()


def test_submitit_does_the_jobs_that_slurm_would(undisturbed: Path, tmp_path: Path) -> None:
    needs("submitit")
    plugin = tmp_path / "deadly.py"
    plugin.write_text(DEADLY)
    from metavrf.commands.plugins import load_plugins
    from metavrf.studies.on_slurm import OnSlurm
    from metavrf.studies.report import write_report

    plan = Plan({"curves": curves()}, tmp_path / "out", "day", seeds=(0,))
    said: list[str] = []
    where = OnSlurm(plan.out, partial(load_plugins, [plugin]), cluster="local")
    run_jobs(plan, where, 2, said.append)
    assert plan.failed == {}
    assert len([line for line in said if line.endswith(f"{DIED}; it is taken up again")]) == 1
    write_report(plan, 0.0)
    assert found(plan.out) == found(undisturbed)
    assert (plan.out / "slurm").stat().st_mode & 0o077 == 0  # its files are pickles: nobody else may write them


class Cursed:
    """An executor whose every job dies."""

    def begin(self, order: Order) -> object:
        return object()

    def ended(self, begun: Any) -> list[tuple[Any, str]]:
        return [(job, DIED) for job in begun]

    def close(self, begun: Any) -> None:
        assert not begun


def test_a_run_that_always_dies_is_given_up_and_named(tmp_path: Path) -> None:
    plan = Plan({"curves": curves()}, tmp_path, "minutes")
    said: list[str] = []
    run_jobs(plan, Cursed(), 2, said.append)
    assert set(plan.failed.values()) == {DIED}
    assert plan.failed.keys() == plan.jobs.keys()
    assert len(said) == (DEATHS + 1) * len(plan.jobs)


class Stubborn(Local):
    """Loads nothing of a job that is not asked for."""

    def begin(self, order: Order) -> Any:
        raise AssertionError("nothing is left to do")


def test_what_one_executor_has_done_another_does_not_do_again(undisturbed: Path) -> None:
    plan = Plan({"curves": curves()}, undisturbed, "day", seeds=(0,))
    where: Executor = Stubborn()
    said: list[str] = []
    run_jobs(plan, where, 2, said.append)
    assert said == []


@pytest.mark.parametrize(("on", "module"), [("ray", "ray"), ("slurm", "submitit")])
def test_an_extra_that_is_missing_is_named(
    on: str, module: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, module, None)
    monkeypatch.delitem(sys.modules, f"metavrf.studies.on_{on}", raising=False)
    monkeypatch.setattr(catalog, "catalog", lambda: {"curves": curves()})
    said = refused(capsys, "reproduce", "curves", "--on", on, "--out", tmp_path / "out")
    assert said == f"--on {on} needs the extra '{on}': pip install 'metavrf[{on}]'"


def test_slurm_is_refused_where_there_is_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    needs("submitit")
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(catalog, "catalog", lambda: {"curves": curves()})
    said = refused(capsys, "reproduce", "curves", "--on", "slurm", "--out", tmp_path / "out")
    assert said == "--on slurm finds no sbatch here: call it on a machine that submits to Slurm"


def test_torchrun_is_refused_as_every_process_would_do_the_whole_study(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("WORLD_SIZE", "2")
    said = refused(capsys, "reproduce", "sine-figure")
    assert said.startswith("torchrun is for train, evaluate and compare")


def test_the_help_says_where_runs_can_be(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["reproduce", "--help"])
    assert "local,ray,slurm" in capsys.readouterr().out.replace("|", ",")


def test_a_study_stopped_on_ray_saves_and_goes_on_here(undisturbed: Path, tmp_path: Path) -> None:
    needs("ray")
    plugin, out, log = tmp_path / "slow.py", tmp_path / "out", tmp_path / "log"
    plugin.write_text(SLOW)
    process = started(out, log, "--on", "ray", "--jobs", "2", "--plugin", str(plugin))
    while not list(out.glob("runs/*/metrics.jsonl")):
        assert process.poll() is None, log.read_text()
        time.sleep(0.05)
    process.send_signal(signal.SIGTERM)
    assert process.wait() == 128 + signal.SIGTERM, log.read_text()
    assert "stopped; all is kept, and the same command goes on" in log.read_text()
    steps = [Run(path).step() for path in (out / "runs").iterdir()]
    assert any(step % 10 for step in steps), "no run saved between two validations, as one that is asked to stop does"
    done = study(out)
    assert done.returncode == 0, done.stderr
    assert found(out) == found(undisturbed)
