"""What a training step and a prediction cost as tasks, kernels and pictures grow, and what the paper's budget would.

    python benchmarks/scaling.py [--save results/scaling.json] [--chart docs/scaling.png] [--only ways shots] [--quick]

Times are CPU seconds of one thread, the median of several repeats, so that other processes matter little. Memory is
the most that tensors take at a time beyond what is there before, as PyTorch's profiler counts them. Floating-point
operations are PyTorch's own count of products and convolutions; what solves and elementwise functions take is not in
it. Each curve is fitted by a + b·xᵖ.

No GPU is needed, and none was timed: what the paper's budget takes on one is worked out from operations and assumptions
(``ASSUMED``), which are kept with the figures.
"""

from __future__ import annotations

import argparse
import math
import os
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch.profiler import ProfilerActivity, profile
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import FlopCounterMode

from metavrf import MetaVRFClassifier, MetaVRFRegressor
from metavrf.config import Config
from metavrf.files import write_json
from metavrf.learners.base import Learner
from metavrf.memory import keep_freed_memory
from metavrf.randomness import stream
from metavrf.reports import print_table
from metavrf.runs.provenance import hardware, provenance
from metavrf.spec import TaskSpec
from metavrf.tasks.bank import Bank
from metavrf.tasks.source import ClassTasks, Tasks, open_tasks
from metavrf.tasks.splits import PARTS
from speed.step import make_trainer, random_bank, random_tasks

Piece = Callable[[], object]
FEATURES = 256
REPEATS, SECONDS = 7, 2.0  # at most so many, or as many as fit into so much CPU time; three at least
LEAST_REPEATS = 3
POWERS = np.arange(0.0, 4.01, 0.05)
FLAT = 2.0  # a curve that grows by less from its first to its last point says nothing of a power


class Assumed(NamedTuple):
    """What is taken for granted of a GPU."""

    gpu: str = "NVIDIA A100"
    peak_flops: float = 19.5e12
    """Published, in 32-bit floats without tensor cores."""
    reached_share: float = 0.25
    seconds_per_launch: float = 8e-6
    seconds_to_average_gradients: float = 1e-4


ASSUMED = Assumed()


class Pieces(NamedTuple):
    """What is measured at one point of an axis; there is no step where nothing is trained."""

    step: Piece | None
    adapt: Piece


@dataclass(frozen=True)
class Axis:
    """Something that grows, all else being equal."""

    name: str
    what: str
    """In words, with all else."""
    unit: str
    values: tuple[int, ...]
    make: Callable[[int], Pieces]


def of_pictures(value: int = 0, *, name: str = "", side: int = 28, **options: Any) -> Pieces:
    """The paper's model on drawings; ``name`` is the setting that has the value."""
    options = {"way": 5, "shot": 1, "query": 5, "batch": 1} | options
    if name == "side":
        side = value
    elif name:
        options[name] = value
    bank = random_bank(options["way"], options["shot"] + options["query"], side)
    return of_config(Config.of("omniglot", preset="paper").with_options(threads=1, **options), random_tasks(bank))


def of_features(value: int = 0, *, name: str = "", **options: Any) -> Pieces:
    """The same without its convolutions: what kernels and ridge regression take by themselves."""
    options = {"way": 5, "shot": 1, "query": 5, "batch": 1} | options | {name: value}
    each = options["shot"] + options["query"]
    inputs = torch.randn(options["way"] * each, FEATURES, generator=stream(0, "train"))
    labels = torch.arange(options["way"]).repeat_interleave(each)
    bank = Bank.of_labels(inputs, labels, [f"{number}" for number in range(options["way"])])
    names = list(bank.names)
    tasks = ClassTasks(bank, dict.fromkeys(PARTS, names), TaskSpec((FEATURES,), None, "none"))
    config = Config.of("omniglot", preset="paper").with_options(threads=1, embedding="ready", **options)
    return of_config(config, tasks)


def of_curves(value: int = 0, *, name: str = "", **options: Any) -> Pieces:
    """Many kernels, weighed by their evidence, on sine curves of ten points."""
    options = {"shot": 10, "query": 20, "batch": 25, "train_shot": 0, "most_shot": 0, "guards": 0} | options
    config = Config.of("sine").with_options(threads=1, **options | {name: value})
    return of_config(config, open_tasks("sine", config.data))


def of_config(config: Config[Any], tasks: Tasks) -> Pieces:
    """A step of training on a batch of tasks, and one task from its support to the answers."""
    trainer = make_trainer(config, tasks)
    learner: Learner = trainer.learner
    task = tasks.training(config.with_options(batch=1).episode, stream(1, "train"))

    def adapt() -> object:
        learner.eval()
        return learner.predict(task)

    return Pieces(trainer.train_step, adapt)


def of_rows(value: int = 0, *, name: str = "", classes: bool = False, **options: int) -> Pieces:
    """A small table: nothing is trained, fitting and the answers for a hundred new rows are timed."""
    size = {"rows": 60, "columns": 8} | options | {name: value}
    draw = np.random.default_rng(0)
    x: NDArray[np.float64] = draw.normal(size=(size["rows"] + 100, size["columns"]))
    y = np.sin(x[:, 0]) + 0.5 * x[:, -1] + 0.1 * draw.normal(size=len(x))
    known, asked = x[: size["rows"]], x[size["rows"] :]
    if classes:
        labels = np.array(["no", "yes"])[(y > 0).astype(int)][: size["rows"]]
        return Pieces(None, lambda: MetaVRFClassifier().fit(known, labels).predict_proba(asked))
    return Pieces(None, lambda: MetaVRFRegressor().fit(known, y[: size["rows"]]).predict(asked))


def axis(
    name: str, what: str, growing: tuple[str, str], values: Sequence[int], make: Callable[..., Pieces], **fixed: Any
) -> Axis:
    """An axis along which one setting grows; ``growing`` is it in words, and its name."""
    unit, setting = growing
    return Axis(name, what, unit, tuple(values), lambda value: make(value, name=setting, **fixed))


WAYS, SHOTS, ROWS = (5, 10, 20, 50, 100), (1, 2, 5, 10, 20, 50, 100, 200), (10, 20, 40, 80, 160, 320)
COLUMNS, SIDES, BATCHES = (2, 4, 8, 16, 32, 64), (14, 28, 42, 56, 84), (1, 2, 4, 8, 16, 32)
KERNELS, BASES = (1, 2, 4, 8, 16, 32, 64, 128), (64, 128, 256, 512, 1024, 2048, 4096)
IN_WAYS, IN_SHOTS, IN_ROWS = ("ways", "way"), ("shots", "shot"), ("rows", "rows")
LARGER = {"shot": 5, "query": 15, "batch": 6}
AXES = (
    axis("ways", "pictures, 1-shot, 5 queries per class, 1 task", IN_WAYS, WAYS, of_pictures),
    axis("ways-features", "features, 1-shot, 5 queries per class, 1 task", IN_WAYS, WAYS, of_features),
    axis("shots", "pictures, 5-way, 5 queries per class, 1 task", IN_SHOTS, SHOTS, of_pictures),
    axis("shots-features", "features, 5-way, 5 queries per class, 1 task", IN_SHOTS, SHOTS, of_features),
    axis("kernels", "sine curves, 10 points, 20 queries, 25 tasks", ("kernels M", "components"), KERNELS, of_curves),
    axis(
        "bases",
        "features, 5-way 5-shot, 15 queries per class, 6 tasks",
        ("bases D", "bases"),
        BASES,
        of_features,
        **LARGER,
    ),
    axis("tasks", "pictures, 5-way 1-shot, 15 queries per class", ("tasks", "batch"), BATCHES, of_pictures, query=15),
    axis(
        "side",
        "pictures, 5-way 1-shot, 15 queries per class, 1 task",
        ("side of a picture", "side"),
        SIDES,
        of_pictures,
        query=15,
    ),
    axis("rows", "a table of 8 columns, a number to predict", IN_ROWS, ROWS, of_rows),
    axis("rows-classes", "a table of 8 columns, two classes", IN_ROWS, ROWS, of_rows, classes=True),
    axis("columns", "a table of 60 rows, a number to predict", ("columns", "columns"), COLUMNS, of_rows),
)


def cpu_milliseconds(piece: Piece, repeats: int = REPEATS, seconds: float = SECONDS) -> float:
    """Of a call, after one that sets things up."""
    piece()
    times: list[float] = []
    while len(times) < LEAST_REPEATS or (len(times) < repeats and sum(times) < seconds):
        start = time.process_time()
        piece()
        times.append(time.process_time() - start)
    return 1e3 * statistics.median(times)


def peak_megabytes(piece: Piece) -> float:
    """The most that tensors take at a time, beyond those that were there before."""
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as seen:
        piece()
    held = most = 0
    assert seen.profiler is not None
    for event in seen.profiler.kineto_results.events():
        if event.name() == "[memory]":
            held += event.nbytes()
            most = max(most, held)
    return most / 2**20


class Launches(TorchDispatchMode):
    """Counts the operations that a GPU would be sent: all but views and what only looks at shapes."""

    def __init__(self) -> None:
        super().__init__()
        self.count = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Count, and do it."""
        self.count += not func.is_view
        return func(*args, **(kwargs or {}))


def operations(piece: Piece) -> tuple[float, int]:
    """Floating-point operations of products and convolutions, and the number of operations sent."""
    with FlopCounterMode(display=False) as counted:
        piece()
    with Launches() as sent:
        piece()
    return float(counted.get_total_flops()), sent.count


def fitted(values: Sequence[float], costs: Sequence[float]) -> dict[str, float | None]:
    """The p of a + b·xᵖ with a, b ≥ 0 of least relative error, and a; no p where the curve hardly grows."""
    x, y = np.asarray(values, float), np.asarray(costs, float)
    if y[-1] < FLAT * y[0]:
        return {"power": None, "constant": float(np.median(y))}
    best = (math.inf, 0.0, 0.0)
    for power in POWERS[1:]:
        columns = np.stack([np.ones_like(x), (x / x[-1]) ** power], 1) / y[:, None]
        (constant, slope), *_ = np.linalg.lstsq(columns, np.ones_like(y), rcond=None)
        if constant < 0:
            constant, slope = 0.0, columns[:, 1].sum() / np.square(columns[:, 1]).sum()
        error = float(np.square(columns @ [constant, slope] - 1).sum())
        best = min(best, (error, float(power), float(constant)))
    return {"power": round(best[1], 2), "constant": best[2]}


def measured(one: Axis, values: Sequence[int], repeats: int) -> dict[str, Any]:
    """An axis, point by point."""
    points: list[dict[str, float]] = []
    for value in values:
        point: dict[str, float] = {"value": value}
        for name, piece in one.make(value)._asdict().items():
            if piece is not None:
                point[f"{name}_ms"] = cpu_milliseconds(piece, repeats)
                point[f"{name}_mb"] = peak_megabytes(piece)
        points.append(point)
    kinds = [name for name in points[0] if name != "value"]
    fits = {name: fitted(values, [point[name] for point in points]) for name in kinds}
    return {"name": one.name, "what": one.what, "unit": one.unit, "points": points, "fits": fits}


class Budget(NamedTuple):
    """A training of the paper."""

    task: str
    side: int
    channels: int


BUDGETS = (Budget("sine", 0, 0), Budget("omniglot", 28, 1), Budget("cifar-fs", 32, 3), Budget("mini-imagenet", 84, 3))


def budget(paper: Budget, repeats: int) -> dict[str, Any]:
    """What a whole training takes: measured here, and worked out for one GPU and for eight."""
    config = Config.of(paper.task, preset="paper").with_options(threads=1, shot=1 if paper.side else 5)
    shape = config.episode
    tasks: Tasks
    if paper.side:
        grey = random_bank(shape.way, shape.shot + shape.query, paper.side)
        colours = Bank(grey.inputs[:].expand(-1, paper.channels, -1, -1), grey.starts, grey.counts, grey.names)
        tasks = random_tasks(colours)
    else:
        tasks = open_tasks(paper.task, config.data)
    step = make_trainer(config, tasks).train_step
    share = make_trainer(config.with_options(batch=math.ceil(shape.batch / 8)), tasks).train_step
    milliseconds = cpu_milliseconds(step, repeats)
    flops, launches = operations(step)
    least, share_launches = operations(share)
    steps = config.training.iterations
    return {
        "task": paper.task,
        "steps": steps,
        "tasks_per_step": shape.batch,
        "cpu_ms": milliseconds,
        "memory_mb": peak_megabytes(step),
        "flops": flops,
        "launches": launches,
        "cpu_hours": steps * milliseconds / 3.6e6,
        "gpu_hours": steps * gpu_seconds(flops, launches) / 3600,
        "gpu_bound_by": "launches" if _launching(launches) > _computing(flops) else "arithmetic",
        "eight_gpus_hours": steps * gpu_seconds(least, share_launches, averaging=True) / 3600,
        "eight_runs_hours_each": steps * gpu_seconds(flops, launches) / 3600 / 8,
    }


def _computing(flops: float) -> float:
    return flops / (ASSUMED.peak_flops * ASSUMED.reached_share)


def _launching(launches: int) -> float:
    return launches * ASSUMED.seconds_per_launch


def gpu_seconds(flops: float, launches: int, *, averaging: bool = False) -> float:
    """Of a step: the longer of computing and of sending operations; with others, their gradients are averaged."""
    return max(_computing(flops), _launching(launches)) + averaging * ASSUMED.seconds_to_average_gradients


def draw(axes: Sequence[Mapping[str, Any]], path: Path) -> None:
    """Time and memory against what grows, on logarithmic scales."""
    from metavrf.plots import picture_at

    columns = 4
    rows = math.ceil(len(axes) / columns)
    with picture_at(path, "CPU milliseconds, and megabytes of tensors", rows, columns, figsize=(13, 3 * rows)) as (
        _,
        places,
    ):
        for one, place in zip(axes, places.flat, strict=False):
            x = [point["value"] for point in one["points"]]
            names = {"step_ms": "step, ms", "adapt_ms": "adapt, ms", "step_mb": "step, MB", "adapt_mb": "adapt, MB"}
            colours = dict(zip(names, ("C0", "C1", "C0", "C1"), strict=True))
            for name, label in names.items():
                if name in one["points"][0]:
                    line = "--" if name.endswith("mb") else "-"
                    y = [max(point[name], 1e-3) for point in one["points"]]
                    place.plot(x, y, line, color=colours[name], marker=".", label=label)
            place.set(xscale="log", yscale="log", xlabel=one["unit"])
            place.set_xticks(x, [f"{value:,}" for value in x], fontsize=7)
            place.minorticks_off()
            place.tick_params(axis="y", labelsize=7)
            place.set_title(one["what"], fontsize=7)
            place.legend(fontsize=6)
        for place in places.flat[len(axes) :]:
            place.set_axis_off()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--save", type=Path)
    parser.add_argument("--chart", type=Path)
    parser.add_argument("--only", nargs="*", choices=[one.name for one in AXES] + ["budget"], help="some of the axes")
    parser.add_argument("--repeats", type=int, default=REPEATS)
    parser.add_argument("--quick", action="store_true", help="the first values only, to see that everything runs")
    asked = parser.parse_args()
    keep_freed_memory()
    torch.set_num_threads(1)
    os.environ.setdefault("KINETO_LOG_LEVEL", "99")  # the profiler's own messages
    began, cpu_began = time.monotonic(), time.process_time()
    wanted = asked.only or [one.name for one in AXES] + ["budget"]
    axes = [
        measured(one, one.values[:3] if asked.quick else one.values, asked.repeats)
        for one in AXES
        if one.name in wanted and _said(one.name, began)
    ]
    papers = BUDGETS[:1] if asked.quick else BUDGETS
    budgets = [budget(paper, asked.repeats) for paper in papers] if "budget" in wanted else []
    for one in axes:
        lines = [[f"{point['value']}", *(f"{point[name]:.4g}" for name in one["fits"])] for point in one["points"]]
        powers = ["power", *(f"{fit['power'] or '-'}" for fit in one["fits"].values())]
        print_table([one["unit"], *one["fits"]], [*lines, powers], one["what"])
    for one in budgets:
        print({name: value if isinstance(value, str) else float(f"{value:.4g}") for name, value in one.items()})
    if asked.save:
        took = {"took_seconds": time.monotonic() - began, "took_cpu_seconds": time.process_time() - cpu_began}
        about = {"assumed": ASSUMED._asdict(), "hardware": hardware(), "provenance": provenance(0)}
        write_json(asked.save, {"axes": axes, "budgets": budgets, **took, **about})
    if asked.chart:
        draw(axes, asked.chart)


def _said(name: str, began: float) -> bool:
    print(f"{time.monotonic() - began:.0f} s: {name}", flush=True)
    return True


if __name__ == "__main__":
    main()
