"""Jobs of a plan, each in a process of one thread: train, test, write. What is there already is not done again."""

from __future__ import annotations

import multiprocessing
import multiprocessing.connection
import os
import signal
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

import torch

from metavrf.config import Config
from metavrf.errors import UserError
from metavrf.files import write_json
from metavrf.learners.measuring import calibrate
from metavrf.model import load
from metavrf.randomness import stream
from metavrf.runs.directory import Run
from metavrf.runs.stopping import Interrupted, stop_signals
from metavrf.runs.training import Trainer, make_fabric, train
from metavrf.studies.known import evaluate_known
from metavrf.studies.study import Job, Known, Plan
from metavrf.tasks.source import open_tasks
from metavrf.testing.evaluate import evaluate
from metavrf.testing.evaluation import Evaluation
from metavrf.testing.settings import TEST_EPISODES, TEST_TASKS

Say = Callable[[str], None]
Prepare = Callable[[], None]
Tests = Mapping[Path, Mapping[str, Any]]
Order = tuple[str | Known, Path, Tests]
LOOK_EVERY = 0.2  # seconds, for signals
STEPS_TIMED = 5
TASKS_TIMED = 50


def run_jobs(plan: Plan, at_once: int, say: Say, prepare: Prepare | None = None) -> None:
    """Do what is not done yet, ``at_once`` jobs at a time; ``prepare`` is called in each process first.

    A job that fails is noted in ``plan.failed``. Asked to stop, the runs save where they are.
    """
    waiting = [job for job in plan.jobs.values() if not plan.is_done(job)]
    total = len(waiting)
    running: dict[Any, tuple[Any, Any, Job, float]] = {}  # by the sentinel of the process
    server = multiprocessing.get_context("forkserver")  # it imports torch once
    server.set_forkserver_preload([__name__])
    plan.out.joinpath("tests").mkdir(parents=True, exist_ok=True)
    with stop_signals() as stopped:
        try:
            while (waiting or running) and not stopped:
                for job in [job for job in waiting if job.start and job.start.name in plan.failed]:
                    waiting.remove(job)
                    plan.failed[job.name] = "the run it starts from failed"
                ready = [job for job in waiting if job.start is None or plan.is_done(job.start)]
                for job in ready[: at_once - len(running)]:
                    waiting.remove(job)
                    receive, send = server.Pipe(duplex=False)
                    process = server.Process(target=_work, args=(_order(plan, job), send, prepare, dict(os.environ)))
                    process.start()
                    send.close()
                    running[process.sentinel] = (process, receive, job, time.monotonic())
                for sentinel in multiprocessing.connection.wait(list(running), LOOK_EVERY):
                    process, receive, job, began = running.pop(sentinel)
                    process.join()
                    answer = _answer(receive) or ("" if process.exitcode == 0 else f"it ended with {process.exitcode}")
                    if answer:
                        plan.failed[job.name] = answer
                    done = total - len(waiting) - len(running)
                    say(f"[{done}/{total}] {job.label}: {answer or f'{time.monotonic() - began:.0f} s'}")
        finally:
            for process, *_ in running.values():
                process.terminate()
            for process, *_ in running.values():
                process.join()
        if stopped:
            raise Interrupted("stopped; all is kept, and the same command goes on", stopped[0])


def _order(plan: Plan, job: Job) -> Order:
    """A job as a process takes it: configurations as text, as plugins may have to be run before one can be read."""
    tests = {plan.out / "tests" / name: plan.options(job, test) for name, test in job.tests.items()}
    return job.source if isinstance(job.source, Known) else job.source.to_toml(), plan.path(job), tests


def _answer(receive: Any) -> str:
    try:
        return str(receive.recv())
    except EOFError:  # it was killed, or fell over
        return ""


def _work(order: Order, send: Any, prepare: Prepare | None, environment: dict[str, str]) -> None:
    """One job in its own process: what a user can mend is sent back as a sentence."""
    os.environ.update(environment)  # the server may have been started under another
    os.setpgrp()  # Ctrl-C is for the first process, which asks this one to stop
    threading.Thread(target=_die_with_parent, daemon=True).start()
    torch.set_num_threads(1)
    try:
        if prepare is not None:
            prepare()
        do(*order)
        send.send("")
    except UserError as error:
        send.send(str(error))
    except Interrupted:
        send.send("stopped")


def _die_with_parent() -> None:
    parent = multiprocessing.parent_process()
    assert parent is not None
    parent.join()
    os.kill(os.getpid(), signal.SIGTERM)  # a training saves where it is


def do(source: str | Known, path: Path, tests: Tests) -> None:
    """Train, unless that is done; then write every test that is not written."""
    if isinstance(source, Known):
        for file in (file for file in tests if not file.exists()):
            write_json(file, figures(evaluate_known(source, tests[file])))
        return
    wait_for(path)
    run = Run(path)
    if not run.result_file.exists():
        train(Config.from_toml(source, str(path)), out=path, resume=run.config_file.exists(), quiet=True)
    model = load(path)
    for file in (file for file in tests if not file.exists()):
        write_json(file, figures(evaluate(model, **tests[file])))


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
    measured: dict[str, tuple[float, float]] = {}
    found = []
    torch.set_num_threads(1)
    for job in plan.jobs.values():
        if isinstance(job.source, Known) or plan.is_done(job):
            continue
        config = job.source.with_options(seed=0, start_from="")  # takes as long
        key = config.to_toml()
        if key not in measured:
            measured[key] = _measure(config)
        step, test = measured[key]
        run, settings = Run(plan.path(job)), config.training
        left = 0 if run.result_file.exists() else settings.iterations - run.step()
        usual = TEST_TASKS if config.kind == "functions" else TEST_EPISODES
        asked = [plan.options(job, t) for name, t in job.tests.items() if not (plan.out / "tests" / name).exists()]
        tested = sum(options.get("tasks", usual) for options in asked)
        validated = left / settings.iterations * max(1, settings.iterations // settings.validate_every)
        training = left * step + validated * settings.validate_tasks * test
        found.append(Estimate(job.label, left, step, training, tested * test))
    return found


def _measure(config: Config[Any]) -> tuple[float, float]:
    """Seconds of a training step, and of a validation task."""
    tasks = open_tasks(config.task, config.data, quiet=True)
    validation = tasks.groups("val", TASKS_TIMED, config.episode, stream(0, "validation"))
    with TemporaryDirectory() as folder:
        learner, fabric = config.build(tasks.spec), make_fabric(config.training)
        trainer = Trainer(config, Run(folder), fabric, tasks, learner, stopped=[], quiet=True)
        trainer.train_step()  # the first sets things up
        start = time.perf_counter()
        for _ in range(STEPS_TIMED):
            trainer.train_step()
        middle = time.perf_counter()
        calibrate(learner, validation[0] if len(validation) == 1 else validation)
    return (middle - start) / STEPS_TIMED, (time.perf_counter() - middle) / TASKS_TIMED
