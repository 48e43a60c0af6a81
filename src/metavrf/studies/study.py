"""What a study is: cells of a table, each a run and a test of it. Equal runs of several studies are trained once."""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from metavrf.config import Config
from metavrf.errors import UserError
from metavrf.files import read_summed_json
from metavrf.registry import unknown
from metavrf.runs.directory import Run
from metavrf.settings import DataSettings
from metavrf.tasks.datasets import DATASETS
from metavrf.tasks.functions import FAMILIES
from metavrf.tasks.source import open_tasks

Options = Mapping[str, Any]


@dataclass(frozen=True)
class Training:
    """A run: a task and settings by name, ``learner`` among them."""

    task: str
    options: Options = field(default_factory=dict)
    start_from: Training | None = None
    """The run whose embedding it starts from; it has the same seed, unless it has its own."""
    seed: int | None = None
    """The only seed it is trained with, in place of the study's."""


@dataclass(frozen=True)
class Known:
    """What is not trained: a limit that a family of functions knows, or a Gaussian process fitted to each task."""

    task: str
    name: str


@dataclass(frozen=True)
class Cell:
    """One figure of a table: a run, a test, and what of the test is shown."""

    row: str
    column: str
    source: Training | Known
    test: Options
    """Options of :func:`metavrf.evaluate`."""
    show: str = "mean"
    """The figure, by its name in the test's file; dots lead into records, and {metric} is the name of the metric."""
    minus: Known | None = None
    """Subtract the nll of this on the same tasks, and show the difference in nats."""


@dataclass(frozen=True)
class Study:
    """A table or figure."""

    title: str
    cells: Sequence[Cell]
    picture: Literal["", "dots", "lines", "fits", "positions", "reliability", "time"] = ""
    """Dots for the figures of a table; lines over columns that are numbers, over the places of a stream, of accuracy
    over confidence, or of validation over training time; or curves fitted by the runs of each column."""
    axis: str = ""
    """What the columns are, for lines."""
    examples: int = 1
    """Curves drawn in each column."""
    paper: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    """The paper's figures by row and column; † marks one known to be transductive."""
    note: str = ""
    """What a reader must know to compare."""
    quick: tuple[str, ...] = ()
    """The only rows that are run with the budget of minutes; all of them where this is empty."""
    drawn: tuple[str, ...] = ()
    """The only rows in the picture; all of them where this is empty."""


@dataclass(frozen=True)
class Budget:
    """How much is run."""

    share: float | None
    """Of the steps that 'metavrf train' takes; None for as many as the paper took."""
    seeds: int
    tasks: int | None
    """Test tasks at most; None for as many as 'metavrf evaluate' takes."""
    says: str


VALIDATIONS = 6  # of a run with --minutes-each
BUDGETS = {
    "minutes": Budget(1 / 20, 1, 500, "a twentieth of the usual steps, one seed, 500 test tasks"),
    "hour": Budget(1 / 5, 1, 1000, "a fifth of the usual steps, one seed, 1,000 test tasks"),
    "day": Budget(1, 3, None, "the usual steps, three seeds, all test tasks"),
    "paper": Budget(None, 3, None, "as many steps as the paper took, three seeds, all test tasks"),
}


@dataclass
class Job:
    """A run, or something known, with all tests that studies ask of it."""

    name: str
    source: Config[Any] | Known
    start: Job | None = None
    """The job whose run it starts from."""
    label: str = ""
    """For people: where it is asked for first."""
    studies: set[str] = field(default_factory=set)
    tests: dict[str, Options] = field(default_factory=dict)
    """By the name of the file."""


@dataclass
class Plan:
    """Studies at a budget: all jobs, where their files are, and what was found."""

    studies: Mapping[str, Study]
    out: Path
    budget: str = "hour"
    seeds: Sequence[int] = ()
    data: str = ""
    iterations: int | None = None
    minutes: float | None = None
    """CPU minutes of training for each run but those that others start from, in place of the budget's steps."""
    rows: Sequence[str] = ()
    """The only rows of the studies that are run and reported; all of them where this is empty."""
    step_seconds: dict[str, float] = field(default_factory=dict, init=False)
    """CPU seconds of a training step, by a hash of its settings: measured once, and kept for the calls after it."""
    jobs: dict[str, Job] = field(default_factory=dict, init=False)
    missing: dict[str, str] = field(default_factory=dict, init=False)
    """Why a task cannot be run, by its name."""
    failed: dict[str, str] = field(default_factory=dict, init=False)
    """Why a job came to nothing, by its name."""

    def __post_init__(self) -> None:
        rows = list(dict.fromkeys(cell.row for study in self.studies.values() for cell in study.cells))
        for row in self.rows:
            if row not in rows:
                raise UserError(unknown("row", row, rows, ""))
        self.out = self.out.absolute()
        self.data = str(Path(self.data).absolute()) if self.data else ""
        self.seeds = tuple(self.seeds) or tuple(range(BUDGETS[self.budget].seeds))
        self.step_seconds = read_summed_json(self.steps_file, "remove it to measure the steps anew") or {}
        for name, study in self.studies.items():
            for cell in self.asked(study):
                for source in (cell.source, cell.minus):
                    if source is not None and self.is_there(source.task):
                        for seed in self.seeds_of(source):
                            label = f"{cell.row}, {cell.column}, seed {seed}"
                            job = self._ask(self.job(source, seed), name, label)
                            job.tests[self.file(job, cell.test).name] = cell.test

    def _ask(self, job: Job, study: str, label: str) -> Job:
        """The job of that name, which others may have asked for before; the one it starts from comes first."""
        if job.start is not None:
            job.start = self._ask(job.start, study, f"{label}, the run it starts from")
        job = self.jobs.setdefault(job.name, job)
        job.label = job.label or f"{study}: {label}"
        job.studies.add(study)
        return job

    def asked(self, study: Study) -> list[Cell]:
        """The cells that this plan runs."""
        some = self.rows or (study.quick if self.budget == "minutes" else ())
        return [cell for cell in study.cells if not some or cell.row in some]

    def seeds_of(self, source: Training | Known) -> Sequence[int]:
        """What is known needs no seed."""
        return self.seeds if isinstance(source, Training) else (0,)

    def is_there(self, task: str) -> bool:
        """Whether a task's data is there; if not, ``missing`` says why. Nothing is downloaded."""
        if task not in self.missing and task not in FAMILIES:
            self.missing[task] = ""
            if task in DATASETS:
                if lacking := [name for name, path in DATASETS[task].locate(self.data).items() if path is None]:
                    fetch = f"'metavrf data --fetch {task}' fetches it, " if DATASETS[task].archive else ""
                    where = f"{' and '.join(lacking)} are not there; {fetch}--data names the folder where it is"
                    self.missing[task] = f"{task} is left out: {where}"
            else:
                try:
                    open_tasks(task, DataSettings(data=self.data), quiet=True)
                except UserError as error:
                    self.missing[task] = f"{task} is left out: {error}"
        return not self.missing.get(task)

    def job(self, source: Training | Known, seed: int, *, begins: bool = False) -> Job:
        """The run of a seed, or one that others begin with. Its name has a hash of its settings and of that one's."""
        if isinstance(source, Known):
            return Job(f"{source.task}-{source.name}".replace(" ", "-").lower(), source)
        seed = seed if source.seed is None else source.seed
        options: dict[str, Any] = {"threads": 1} | dict(source.options) | {"seed": seed}
        config = Config.of(source.task, **options)
        start = None if source.start_from is None else self.job(source.start_from, seed, begins=True)
        if self.minutes and not begins:
            steps = self.steps_within(60 * self.minutes, config)
            config = config.with_options(iterations=steps, validate_every=max(1, steps // VALIDATIONS))
        else:
            config = config.with_options(iterations=self.iterations or self.steps(config))
        digest = hashlib.sha256(f"{config.to_toml()} {start and start.name}".encode()).hexdigest()[:8]
        name = f"{Path(config.task).stem}-{config.learner}-seed{seed}-{digest}"
        config = config.with_options(data=self.data)
        if start is not None:
            config = config.with_options(start_from=str(self.path(start)))
        return Job(name, config, start)

    def steps(self, config: Config[Any]) -> int:
        """The training steps of the budget."""
        share = BUDGETS[self.budget].share
        if share is None:
            return Config.of(config.task, config.learner, "paper").training.iterations
        return max(1, round(share * config.training.iterations))

    def steps_within(self, seconds: float, config: Config[Any]) -> int:
        """The training steps that take so many seconds of one core."""
        from metavrf.studies.timing import measure

        settings = config.with_options(seed=0, iterations=1, data="").to_toml()
        digest = hashlib.sha256(settings.encode()).hexdigest()[:8]
        if digest not in self.step_seconds:
            self.step_seconds[digest] = measure(
                config.with_options(data=self.data), time.process_time, validation=False
            ).step
        return max(1, round(seconds / self.step_seconds[digest]))

    @property
    def steps_file(self) -> Path:
        """Where measured steps are kept, so that the same call finds the same runs."""
        return self.out / "steps.json"

    def path(self, job: Job) -> Path:
        """The run directory of a job."""
        return self.out / "runs" / job.name

    def file(self, job: Job, test: Options) -> Path:
        """Where the figures of a test are."""
        at_most = BUDGETS[self.budget].tasks
        digest = hashlib.sha256(json.dumps([test, at_most], sort_keys=True).encode()).hexdigest()[:8]
        return self.out / "tests" / f"{job.name}-{digest}.json"

    def options(self, job: Job, test: Options) -> dict[str, Any]:
        """The options of a test at this budget."""
        asked, at_most = dict(test), BUDGETS[self.budget].tasks
        if at_most is not None:
            asked["tasks"] = min(at_most, asked.get("tasks", at_most))
        if self.data and isinstance(job.source, Config) and job.source.kind == "classes":
            asked["data"] = self.data
        return asked

    def is_done(self, job: Job) -> bool:
        """Whether a job's run has ended and all its tests are written."""
        trained = isinstance(job.source, Known) or Run(self.path(job)).result_file.exists()
        return trained and all((self.out / "tests" / name).exists() for name in job.tests)

    def found(self, cell: Cell, source: Training | Known | None = None) -> dict[int, dict[str, Any]]:
        """The figures of a cell's test by seed, as far as they are there."""
        source = source or cell.source
        if not self.is_there(source.task) or (self.rows and cell.row not in self.rows):
            return {}
        figures = {}
        for seed in self.seeds_of(source):
            file = self.file(self.job(source, seed), cell.test)
            values = read_summed_json(file, "remove it, and call again to write it")
            if values is not None:
                figures[seed] = values
        return figures
