"""The commands that train more than one run, demo and reproduce; and the picture of kernels."""

from __future__ import annotations

import os
import sys
import time
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from tyro.conf import Positional, arg

from metavrf.commands.plugins import Plugins, load_plugins
from metavrf.errors import UserError
from metavrf.reports import check_picture, draw_figure, draw_kernels, print_rows, print_table, show

if TYPE_CHECKING:
    from metavrf.studies.study import Plan


@dataclass
class Demo:
    """Learn to fit sine curves from a few points: trains, prints a table, draws two pictures. Under two minutes."""

    shot: int = 5
    """Points per curve that it is tested with; it is trained on 2 to 20."""
    iterations: int = 1500
    """Training steps of many kernels; those of one kernel take as many."""
    seed: int = 0
    """Seed of the training."""
    out: Path = Path("demo")
    """Directory for the runs and the pictures."""

    def run(self) -> None:
        """Train many kernels, one shared kernel and plain random features; compare them, draw them."""
        from metavrf.config import Config
        from metavrf.model import load
        from metavrf.runs.directory import Run
        from metavrf.runs.training import train
        from metavrf.testing.compare import compare

        common: dict[str, Any] = {"iterations": self.iterations, "seed": self.seed, "validate_every": 500}
        wanted: dict[str, dict[str, Any]] = {
            "many kernels": {"learner": "metavrf", "components": 32, "guards": 5},
            "one shared kernel": {"learner": "shared", "train_kernel": "exact"},
            "plain RFF": {"learner": "rff"},
        }
        paths = []
        for name, options in wanted.items():
            path = self.out / name.lower().replace(" ", "-")
            config = Config.of("sine", **common, **options, shot=self.shot, validate_tasks=500)
            resume = Run(path).config_file.exists()
            if resume and Run(path).config() != config:
                raise UserError(f"{path} holds a demo with other settings: choose another --out, or remove it")
            train(config, out=path, resume=resume)
            paths.append(path)
        models = {name: load(path) for name, path in zip(wanted, paths, strict=True)}
        rows = compare(list(models.values()), tasks=1000, shot=self.shot)
        print_rows(rows)
        drawn = {name: model for name, model in models.items() if name != "plain RFF"}
        pictures = [
            draw_figure(drawn, rows[0].evaluation, self.out / "fits.png"),
            draw_kernels(models["many kernels"], self.out / "kernels.png"),
        ]
        for picture in pictures:
            show(f"picture: {picture}")


@dataclass
class Kernels(Plugins):
    """Draw what the points of a few curves say of their kernel, as they come in one by one."""

    run_directory: Annotated[Positional[Path], arg(metavar="RUN")]
    """The --out of a training on functions, or a model that comes with the package (sine)."""
    out: Path
    """The picture to draw (.png, .pdf or .svg)."""
    tasks: int = 3
    """Number of curves."""
    seed: int = 0
    """Seed of the curves."""

    def run(self) -> None:
        """Draw the weights over frequency, and k(x, ·)."""
        self.load_plugins()
        from metavrf.model import load

        check_picture(self.out)
        show(f"picture: {draw_kernels(load(self.run_directory), self.out, self.tasks, self.seed)}")


@dataclass
class Reproduce(Plugins):
    """Train, test and report the tables and figures of the paper, and ours: metavrf reproduce sine-figure --jobs 2.

    Called again after it was stopped, or killed, it goes on where it was. See docs/studies.md.
    """

    names: Annotated[Positional[tuple[str, ...]], arg(metavar="NAME")] = ()
    """Studies; --list names them."""
    list: bool = False
    """List the studies, and run none."""
    budget: Literal["minutes", "hour", "day", "paper"] = "hour"
    """How much is run: a twentieth, a fifth or all of the usual steps, or as many as the paper took. The last two take
    three seeds and all test tasks."""
    jobs: int = 1
    """Runs at a time, one thread each."""
    on: Literal["local", "ray", "slurm"] = "local"
    """Where they run: in processes of this machine, on a Ray cluster (extra 'ray'; RAY_ADDRESS says which), or as jobs
    of Slurm (extra 'slurm'). The machines share --out and the data."""
    dry_run: bool = False
    """Say how long it would take, by a few measured steps of each run."""
    out: Path = Path("reproduction")
    """Directory for the report, and for the runs and tests it is made of; several calls may share it."""
    data: str = ""
    """Folder of the data sets; else METAVRF_DATA, else the cache. What is not there is left out."""
    seeds: tuple[int, ...] = ()
    """Seeds of the runs, if other than the budget's."""
    iterations: Annotated[int | None, arg(metavar="INT")] = None
    """Training steps of every run, in place of the budget's."""
    rows: tuple[str, ...] = ()
    """Run only these rows of the tables, as the report names them; the others stay empty."""
    minutes_each: Annotated[float | None, arg(metavar="FLOAT")] = None
    """CPU minutes of training for each run, in place of the budget's steps: equal time, whatever a step costs. It is
    measured once, by a few steps of each run. Runs that others start from keep the budget's steps."""

    def run(self) -> None:
        """List, estimate, or run and report."""
        self.load_plugins()
        from metavrf.studies.catalog import catalog, chosen

        if self.list:
            for name, study in catalog().items():
                print(f"{name}: {study.title}")
            return
        if not self.names:
            raise UserError("name a study, or several: 'metavrf reproduce --list' lists them")
        if self.jobs < 1 or (self.iterations is not None and self.iterations < 1):
            raise UserError("--jobs and --iterations must be at least 1")
        if self.minutes_each is not None and self.minutes_each <= 0:
            raise UserError("--minutes-each must be more than 0")
        if int(os.environ.get("WORLD_SIZE", "1")) > 1:
            raise UserError("torchrun is for train, evaluate and compare: share a study's runs by --jobs and --on")
        from metavrf.studies.study import Plan

        how = (self.budget, self.seeds, self.data, self.iterations, self.minutes_each, self.rows)
        plan = Plan(chosen(self.names), self.out, *how)
        for sentence in filter(None, plan.missing.values()):
            print(sentence, file=sys.stderr)
        if self.dry_run:
            self._estimate(plan)
        else:
            self._reproduce(plan)

    def _estimate(self, plan: Plan) -> None:
        from metavrf.studies.work import estimates

        found = estimates(plan)
        lines = [
            [e.label, f"{e.steps:,}", f"{1000 * e.step:.3g}", f"{e.training / 60:.1f}", f"{e.testing / 60:.1f}"]
            for e in found
        ]
        minutes = sum(e.training + e.testing for e in found) / 60
        print_table(["run", "steps left", "ms per step", "training (min)", "tests (min)"], lines)
        of_jobs = f"{minutes / self.jobs:.0f} with --jobs {self.jobs}"
        print(f"{len(found)} runs, about {minutes:.0f} minutes of one thread, {of_jobs}")

    def _reproduce(self, plan: Plan) -> None:
        from metavrf.files import write_summed_json
        from metavrf.studies.executors import executor
        from metavrf.studies.report import write_report
        from metavrf.studies.work import run_jobs

        began = time.monotonic()
        if plan.step_seconds:
            plan.out.mkdir(parents=True, exist_ok=True)
            write_summed_json(plan.steps_file, plan.step_seconds)
        prepare = partial(load_plugins, [file.absolute() for file in self.plugin]) if self.plugin else None
        where = executor(self.on, self.jobs, plan.out, prepare)
        run_jobs(plan, where, self.jobs, lambda line: print(line, file=sys.stderr))
        print(f"report: {write_report(plan, time.monotonic() - began)}")
        if plan.failed:
            name, why = next(iter(plan.failed.items()))
            first = f"{plan.jobs[name].label}: {why}"
            raise UserError(f"{len(plan.failed)} of {len(plan.jobs)} runs failed, the first of them {first}")
