"""Jobs of a plan: train, test, write. What is there already is not done again."""

from __future__ import annotations

import os
import time
from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import torch

from metavrf.config import Config
from metavrf.errors import UserError
from metavrf.files import write_summed_json
from metavrf.model import load
from metavrf.runs.directory import Run
from metavrf.runs.stopping import Interrupted, stop_signals
from metavrf.runs.training import train
from metavrf.studies.known import evaluate_known
from metavrf.studies.study import Job, Known, Plan
from metavrf.studies.timing import Cost, measure
from metavrf.testing.evaluate import evaluate
from metavrf.testing.evaluation import Evaluation
from metavrf.testing.settings import TEST_EPISODES, TEST_TASKS

if TYPE_CHECKING:
    from metavrf.studies.executors import Executor

T = TypeVar("T", str, int)
Say = Callable[[str], None]
Prepare = Callable[[], None]
Tests = Mapping[Path, Mapping[str, Any]]
Order = tuple[str | Known, Path, Tests]
LOOK_EVERY = 0.2  # seconds, for signals
DIED = "its process was killed"
STOPPED = "it was asked to stop"  # by others than us
DEATHS = 3  # of a job that are forgiven


def run_jobs(plan: Plan, executor: Executor, at_once: int, say: Say) -> None:
    """Do what is not done yet, ``at_once`` jobs at a time. A job that fails is noted in ``plan.failed``."""
    waiting = [job for job in plan.jobs.values() if not plan.is_done(job)]
    total, done = len(waiting), 0
    plan.out.joinpath("tests").mkdir(parents=True, exist_ok=True)

    def take() -> str | None:
        nonlocal done
        for job in [job for job in waiting if job.start and job.start.name in plan.failed]:
            waiting.remove(job)
            plan.failed[job.name] = "the run it starts from failed"
            done += 1
        ready = next((job for job in waiting if job.start is None or plan.is_done(job.start)), None)
        if ready is None:
            return None
        waiting.remove(ready)
        return ready.name

    def give(name: str, answer: str, seconds: float) -> None:
        nonlocal done
        done += 1
        if answer:
            plan.failed[name] = answer
        say(f"[{done}/{total}] {plan.jobs[name].label}: {answer or f'{seconds:.0f} s'}")

    def order(name: str) -> Order:
        return _order(plan, plan.jobs[name])

    work_off(executor, at_once, take=take, order=order, give=give, label=lambda name: plan.jobs[name].label, say=say)


def work_off(
    executor: Executor,
    at_once: int,
    *,
    take: Callable[[], T | None],
    order: Callable[[T], Order],
    give: Callable[[T, str, float], None],
    label: Callable[[T], str],
    say: Say,
) -> None:
    """Do jobs, ``at_once`` at a time, until there is none to ``take``; what came of each is given back.

    One whose worker died is taken up again. Asked to stop, the runs save where they are.
    """
    running: dict[Any, tuple[T, float]] = {}
    again: list[T] = []
    deaths: Counter[T] = Counter()
    with stop_signals() as stopped:
        try:
            while not stopped:
                while len(running) < at_once:
                    job = again.pop(0) if again else take()
                    if job is None:
                        break
                    running[executor.begin(order(job))] = (job, time.monotonic())
                if not running:
                    break
                for begun, answer in executor.ended(list(running)):
                    job, began = running.pop(begun)
                    deaths[job] += answer in (DIED, STOPPED)
                    if answer not in (DIED, STOPPED) or deaths[job] > DEATHS:
                        give(job, answer, time.monotonic() - began)
                    elif not stopped:
                        again.append(job)
                        say(f"{label(job)}: {answer}; it is taken up again")
        finally:
            executor.close(list(running))
        if stopped:
            raise Interrupted("stopped; all is kept, and the same command goes on", stopped[0])


def _order(plan: Plan, job: Job) -> Order:
    """A job as a process takes it: configurations as text, as plugins may have to be run before one can be read."""
    tests = {plan.out / "tests" / name: plan.options(job, test) for name, test in job.tests.items()}
    return job.source if isinstance(job.source, Known) else job.source.to_toml(), plan.path(job), tests


def attempt(order: Order, prepare: Prepare | None = None) -> str:
    """A job in this process, on one thread: what a user can mend is given back as a sentence."""
    torch.set_num_threads(1)
    try:
        if prepare is not None:
            prepare()
        do(*order)
    except UserError as error:
        return str(error)
    except Interrupted:
        return STOPPED
    return ""


def do(source: str | Known, path: Path, tests: Tests) -> None:
    """Train, unless that is done; then write every test that is not written."""
    if isinstance(source, Known):
        for file in (file for file in tests if not file.exists()):
            write_summed_json(file, figures(evaluate_known(source, tests[file])))
        return
    wait_for(path)
    run = Run(path)
    if not run.result_file.exists():
        train(Config.from_toml(source, str(path)), out=path, resume=run.config_file.exists(), quiet=True)
    model = load(path)
    for file in (file for file in tests if not file.exists()):
        write_summed_json(file, figures(evaluate(model, **tests[file])))


def wait_for(folder: Path) -> None:
    """Wait until no process trains in a run directory: a call that was killed may have left one that still saves."""
    import fcntl

    folder.mkdir(parents=True, exist_ok=True)
    held = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(held, fcntl.LOCK_EX)  # the lock that a training holds
    finally:
        os.close(held)


def figures(evaluation: Evaluation) -> dict[str, Any]:
    """A test as it is written: its summary, and what differences in pairs and pictures need."""
    values = evaluation.to_dict()
    if evaluation.reliability is not None:
        values["reliability"] = [row for row in evaluation.reliability.tolist() if row[2]]
    per_task = {"per_task": evaluation.per_task, "nll_per_task": evaluation.nll_per_task}
    return values | {name: [float(f"{v:.7g}") for v in tensor.tolist()] for name, tensor in per_task.items()}


class Estimate(NamedTuple):
    """What is left of a job, in seconds of one thread."""

    label: str
    steps: int
    step: float
    training: float
    testing: float


def estimates(plan: Plan) -> list[Estimate]:
    """The time that the jobs will take, from a few measured steps and a small validation of each kind of run."""
    measured: dict[str, Cost] = {}
    found = []
    for job in plan.jobs.values():
        if isinstance(job.source, Known) or plan.is_done(job):
            continue
        key = job.source.with_options(seed=0, start_from="").to_toml()  # takes as long
        if key not in measured:
            measured[key] = measure(job.source)
        step, test = measured[key]
        run, settings = Run(plan.path(job)), job.source.training
        left = 0 if run.result_file.exists() else settings.iterations - run.step()
        usual = TEST_TASKS if job.source.kind == "functions" else TEST_EPISODES
        asked = [plan.options(job, t) for name, t in job.tests.items() if not (plan.out / "tests" / name).exists()]
        tested = sum(options.get("tasks", usual) for options in asked)
        validated = left / settings.iterations * max(1, settings.iterations // settings.validate_every)
        training = left * step + validated * settings.validate_tasks * test
        found.append(Estimate(job.label, left, step, training, tested * test))
    return found
