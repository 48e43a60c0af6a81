"""Pictures: the paper's regression figure, a task of classes, comparisons."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from io import BytesIO
from itertools import cycle
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from metavrf.episodes import Episodes
from metavrf.errors import UserError
from metavrf.files import write_atomically

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from numpy.typing import NDArray
    from torch import Tensor

    from metavrf.learners.base import Learner, Prediction
    from metavrf.learners.metavrf import MetaVRF
    from metavrf.spec import Columns
    from metavrf.testing.compare import Row

# Okabe & Ito's colours, told apart by colour-blind readers; the dashes tell them apart in grey.
STYLES = (
    ("#0072B2", "-"),
    ("#D55E00", "--"),
    ("#009E73", "-."),
    ("#CC79A7", ":"),
    ("#56B4E9", (0, (5, 1, 1, 1, 1, 1))),
    ("#E69F00", (0, (1, 1))),
)
FORMATS = {".png", ".pdf", ".svg"}
MOST_WAYS_DRAWN = 10
QUERIES_DRAWN = 4
MOST_COLUMNS_DRAWN = 30
POINTS_SHOWN = (1, 2, 3, 4, 6)
GRID = 120  # points at which a curve is drawn


def check_picture_name(path: str | os.PathLike[str]) -> Path:
    """Refuse a file name that no picture can have, before any work is done for it."""
    path = Path(path)
    if path.suffix not in FORMATS:
        raise UserError(f"cannot draw {path}: its name must end in one of {', '.join(sorted(FORMATS))}")
    return path


@contextmanager
def picture_at(
    path: str | os.PathLike[str], title: str, rows: int = 1, columns: int = 1, **options: Any
) -> Iterator[tuple[Figure, Any]]:
    """A figure and its ``[rows, columns]`` axes to draw on, written to ``path`` once all is drawn."""
    path = check_picture_name(path)
    import matplotlib

    matplotlib.use("agg")
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(rows, columns, squeeze=False, layout="constrained", **options)
    try:
        yield figure, axes
        figure.suptitle(title, fontsize=10)
        picture = BytesIO()
        figure.savefig(picture, dpi=150, format=path.suffix[1:])
    finally:
        plt.close(figure)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(f"cannot write {path}: {error.strerror}") from error
    write_atomically(path, picture.getvalue())


def plot_fits(
    learners: Mapping[str, Learner], episodes: Episodes, path: str | os.PathLike[str], title: str = ""
) -> Path:
    """Draw each task of ``episodes``: the truth, the support points, each learner's fit with its 90 % band."""
    tasks = episodes.tasks
    if episodes.query_x.shape[-1] != 1 or episodes.support_y.shape[-1] != 1:
        raise UserError("only functions of one input and one output can be drawn")
    title = "\n".join(filter(None, (title, "shaded: 90 % predictive band")))
    with picture_at(path, title, 1, tasks, figsize=(3.4 * tasks + 0.4, 3.5), sharex=True) as (figure, axes):
        predictions = {name: learner.predict(episodes) for name, learner in learners.items()}
        for task, axis in enumerate(axes[0]):
            _draw_task(axis, predictions, episodes, task)
        axes[0][0].set_ylabel("y")
        handles, labels = axes[0][0].get_legend_handles_labels()
        figure.legend(handles, labels, loc="outside lower center", ncols=min(5, len(labels)), frameon=False)
    return Path(path)


def plot_curves(
    learners: Mapping[str, Learner],
    groups: Sequence[tuple[str, Episodes]],
    columns: Columns,
    path: str | os.PathLike[str],
    title: str = "",
) -> Path:
    """Draw groups of a table of curves, one task each: all its points, the support, each learner's fit and 90 % band.

    The horizontal axis is the first input that is a number. Where another input changes within a group, its rows are
    drawn in order instead of a smooth curve.
    """
    title = "\n".join(filter(None, (title, "shaded: 90 % predictive band")))
    size = (3.2 * len(groups) + 0.6, 2.9 * len(columns.targets) + 0.7)
    with picture_at(path, title, len(columns.targets), len(groups), figsize=size) as (figure, axes):
        for column, (name, task) in enumerate(groups):
            asked = _curve_inputs(task, columns)
            predictions = {other: learner.predict(task.asking(asked)) for other, learner in learners.items()}
            for row, target in enumerate(columns.targets):
                axis = axes[row][column]
                _draw_curve(axis, predictions, task, asked[0, :, columns.axis()], columns.axis(), row)
                axis.set(xlabel=columns.axis_name(), ylabel=target if column == 0 else None)
                axis.set_title(f"{columns.group} {name}", fontsize=9)
        handles, labels = axes[0][0].get_legend_handles_labels()
        figure.legend(handles, labels, loc="outside lower center", ncols=min(5, len(labels)), frameon=False)
    return Path(path)


def _curve_inputs(task: Episodes, columns: Columns) -> Tensor:
    """Where a group's curve is drawn, ``[1, N, d]``: on a grid, or at its rows where more than one input changes."""
    rows, axis = torch.cat([task.support_x, task.query_x], dim=1), columns.axis()
    rows = rows[:, rows[0, :, axis].argsort()]
    other = torch.arange(rows.shape[-1]) != axis
    if bool((rows[:, :, other] != rows[:, :1, other]).any()):
        return rows
    grid = rows[:, :1].repeat(1, GRID, 1)
    grid[0, :, axis] = torch.linspace(float(rows[0, 0, axis]), float(rows[0, -1, axis]), GRID, dtype=grid.dtype)
    return grid


def _draw_curve(  # noqa: PLR0917
    axis: Axes, predictions: Mapping[str, Prediction], task: Episodes, x: Tensor, along: int, target: int
) -> None:
    for (name, prediction), (colour, dash) in zip(predictions.items(), cycle(STYLES), strict=False):
        low, high = (end[0, :, target] for end in prediction.band())
        axis.fill_between(x, low, high, color=colour, alpha=0.15, linewidth=0)
        axis.plot(x, prediction.mean[0, :, target], color=colour, linestyle=dash, linewidth=1.7, label=_short(name))
    assert task.query_y is not None
    points = task.query_x[0, :, along], task.query_y[0, :, target]
    axis.plot(*points, "o", color="0.45", markersize=4, label="to be predicted")
    support = task.support_x[0, :, along], task.support_y[0, :, target]
    axis.plot(*support, "^", color="black", markersize=7, label="support", zorder=5)
    axis.grid(alpha=0.25)


def plot_classes(learner: Learner, episodes: Episodes, path: str | os.PathLike[str], title: str = "") -> Path:
    """Draw the first of ``episodes``: a support image of each class, and queries under it.

    A query's frame is blue where the likeliest class is the true one, else orange; the number is its probability.
    """
    path = check_picture_name(path)
    if episodes.looked_up().query_x.ndim != 5 or episodes.way is None:
        raise UserError("only tasks of pictures can be drawn: these have features or functions")
    episodes = episodes[:1].looked_up()
    probabilities = learner.predict(episodes).mean[0].exp()  # [Q, C]
    ways = min(episodes.way or 1, MOST_WAYS_DRAWN)
    size = (1.1 * ways + 0.4, 1.25 * (1 + QUERIES_DRAWN) + 0.5)
    with picture_at(path, title, 1 + QUERIES_DRAWN, ways, figsize=size) as (_, axes):
        for axis in axes.flat:
            axis.set(xticks=[], yticks=[])
            axis.spines[:].set_visible(False)
        for way in range(ways):
            shown = (episodes.support_y[0] == way).nonzero()[0, 0]
            _draw_image(axes[0][way], episodes.support_x[0, shown])
            axes[0][way].set_title(f"class {way + 1}", fontsize=9)
            assert episodes.query_y is not None
            asked = (episodes.query_y[0] == way).nonzero()[:QUERIES_DRAWN, 0]
            for axis, query in zip(axes[1:, way], asked, strict=False):
                _draw_image(axis, episodes.query_x[0, query])
                probability, answer = probabilities[query].max(0)
                right = int(answer) == way
                axis.spines[:].set(visible=True, color=STYLES[0 if right else 1][0], linewidth=2.5)
                verdict = "" if right else f"for class {int(answer) + 1}: "
                axis.set_xlabel(f"{verdict}{100 * float(probability):.0f} %", fontsize=8, labelpad=2)
        axes[0][0].set_ylabel("support", fontsize=9)
        axes[1][0].set_ylabel("queries", fontsize=9)
    return path


def plot_comparison(rows: Sequence[Row], path: str | os.PathLike[str], title: str = "") -> Path:
    """Draw a comparison: each run's figure with its 95 % interval, and a diamond where the paper has one for it."""
    with picture_at(path, title, figsize=(7, 0.36 * len(rows) + 1.6)) as (figure, axes):
        axis = axes[0][0]
        places = range(len(rows))
        means, intervals = ([getattr(row.evaluation, name) for row in rows] for name in ("mean", "ci95"))
        axis.errorbar(means, places, xerr=intervals, fmt="o", color=STYLES[0][0], capsize=3, label="measured, 95 %")
        claimed = [(p, row.facts.published) for p, row in zip(places, rows, strict=True) if row.facts]
        for marker, label, wanted in (("D", "the paper's tables", False), ("d", "the same, transductive", True)):
            known = [(float(text.rstrip("†")), p) for p, text in claimed if text and ("†" in text) == wanted]
            if known:
                x, y = zip(*known, strict=True)
                axis.plot(x, y, marker, color=STYLES[1][0], fillstyle="none", label=label)
        axis.axvline(means[0], color="0.6", linewidth=1, linestyle=":")
        axis.set_yticks(places, [_short(row.name) for row in rows])
        axis.invert_yaxis()
        first = rows[0].evaluation
        axis.set_xlabel(first.metric if first.way is None else f"{first.metric} (%)")
        if first.way is None:
            axis.set_xscale("log")
        axis.grid(axis="x", alpha=0.25)
        figure.legend(loc="outside lower center", ncols=3, frameon=False, fontsize=9)
    return Path(path)


def plot_kernels(
    learner: MetaVRF, episodes: Episodes, path: str | os.PathLike[str], title: str, *, domain: tuple[float, float]
) -> Path:
    """Draw what each task's points say of its kernel as they come in: weights over frequency, and k(x, ·).

    ``episodes`` hold as many support points as are to be shown one after the other.
    """
    counts = [count for count in POINTS_SHOWN if count <= episodes.support_x.shape[1]]
    grid = torch.linspace(*domain, 200)
    with picture_at(
        path, title, episodes.tasks, len(counts) + 1, figsize=(2.3 * (len(counts) + 1), 1.9 * episodes.tasks)
    ) as (figure, axes):
        for column, count in enumerate(counts):
            seen = replace(episodes, support_x=episodes.support_x[:, :count], support_y=episodes.support_y[:, :count])
            frequency, weight = learner.spectrum(seen, grid)
            reach = float(frequency.max()) * 1.05
            kernel = learner.covariance(seen, 0.5 * sum(domain), grid)
            shade = str(0.75 * (1 - (column + 1) / len(counts)))
            for task, axis in enumerate(axes[:, column]):
                axis.vlines(frequency[:, task], 0, weight[:, task], color=STYLES[0][0], linewidth=1.6)
                axis.set_ylim(0, 1.05 * max(float(weight[:, task].max()), 0.05))
                axis.set_xlim(0, reach)
                axis.set_title(f"{count} point{'s' * (count > 1)}", fontsize=9)
                axes[task, -1].plot(grid, kernel[task], color=shade, linewidth=1.2, label=f"{count}")
        for axis in axes[-1, :-1]:
            axis.set_xlabel("frequency of the kernel")
        for axis in axes[:, 0]:
            axis.set_ylabel("weight")
        for axis in axes[:, -1]:
            axis.set_title("k(x, ·) in the middle", fontsize=9)
            axis.legend(title="points", fontsize=6, title_fontsize=6, frameon=False)
        axes[-1, -1].set_xlabel("x")
        figure.align_ylabels()
    return Path(path)


def plot_lines(
    lines: Mapping[str, Sequence[tuple[float, float, float]]],
    path: str | os.PathLike[str],
    title: str,
    axis: str,
    *,
    value: str,
    marks: Mapping[str, Sequence[tuple[float, float]]] | None = None,
    log: bool = False,
    diagonal: bool = False,
) -> Path:
    """Draw lines of (x, y, half of an interval); ``marks`` are the paper's (x, y) by the same names."""
    with picture_at(path, title, figsize=(6.5, 4)) as (_, axes):
        drawn = axes[0, 0]
        if diagonal:
            drawn.plot([0, 1], [0, 1], color="0.6", linewidth=1, label="calibrated")
        for (name, points), (colour, dash) in zip(lines.items(), cycle(STYLES), strict=False):
            x, y, half = zip(*points, strict=True)
            drawn.errorbar(x, y, half, color=colour, linestyle=dash, marker="o", ms=3, capsize=2, label=name)
            for place in (marks or {}).get(name, ()):
                drawn.plot(*place, "D", color=colour, fillstyle="none", label=f"{name}, the paper")
        if log:
            drawn.set_yscale("log")
        drawn.set_xlabel(axis)
        drawn.set_ylabel(value)
        drawn.grid(alpha=0.25)
        drawn.legend(frameon=False, fontsize=8)
    return Path(path)


def plot_dots(
    panels: Mapping[str, Mapping[str, tuple[float | None, float, float | None]]],
    path: str | os.PathLike[str],
    title: str,
    *,
    logarithmic: Sequence[str] = (),
) -> Path:
    """Draw a table, one panel for each column: rows with their figure, half of its interval, and the paper's figure."""
    rows = list(dict.fromkeys(row for panel in panels.values() for row in panel))
    size = (2.3 * len(panels) + 1.8, 0.27 * len(rows) + 1.4)
    with picture_at(path, title, 1, len(panels), figsize=size, sharey=True) as (figure, axes):
        for axis, (column, panel) in zip(axes[0], panels.items(), strict=True):
            for row, (ours, half, paper) in panel.items():
                place = rows.index(row)
                if ours is not None:
                    axis.errorbar(ours, place, xerr=half, fmt="o", color=STYLES[0][0], ms=4, capsize=2, label="ours")
                if paper is not None:
                    axis.plot(paper, place, "D", color=STYLES[1][0], fillstyle="none", ms=5, label="the paper")
            axis.set_title(column.replace(" ", "\n", 1), fontsize=8)
            if column in logarithmic:
                axis.set_xscale("log")
            axis.tick_params(axis="x", labelsize=7)
            axis.grid(alpha=0.25)
        axes[0][0].set_yticks(range(len(rows)), rows, fontsize=8)
        axes[0][0].invert_yaxis()
        handles = {label: h for axis in axes[0] for h, label in zip(*axis.get_legend_handles_labels(), strict=True)}
        figure.legend(handles.values(), handles, loc="outside lower center", ncols=2, frameon=False, fontsize=8)
    return Path(path)


def plot_fit_grid(
    columns: Mapping[str, tuple[Mapping[str, Learner], Episodes]], path: str | os.PathLike[str], title: str
) -> Path:
    """Draw the tasks of each column, one below the other: the truth, the support points and every learner's fit."""
    rows = max(episodes.tasks for _, episodes in columns.values())
    size = (3.6 * len(columns), 2.6 * rows + 0.8)
    with picture_at(path, title, rows, len(columns), figsize=size, sharex=True) as (figure, axes):
        for place, (name, (learners, episodes)) in enumerate(columns.items()):
            predictions = {row: learner.predict(episodes) for row, learner in learners.items()}
            for task in range(episodes.tasks):
                _draw_task(axes[task][place], predictions, episodes, task, bands=False)
                axes[task][place].set_xlabel("x" if task == rows - 1 else "")
            axes[0][place].set_title(name, fontsize=9)
        handles = {label: h for axis in axes[0] for h, label in zip(*axis.get_legend_handles_labels(), strict=True)}
        figure.legend(handles.values(), handles, loc="outside lower center", ncols=4, frameon=False, fontsize=9)
    return Path(path)


def draw_relevance(relevance: NDArray[np.float64], names: Sequence[str], axis: Axes | None = None) -> Axes:
    """Draw how much each column counts, the most relevant first, on ``axis`` or on a figure of its own."""
    if axis is None:
        import matplotlib.pyplot as plt

        axis = plt.subplots(figsize=(6, 0.3 * min(len(names), MOST_COLUMNS_DRAWN) + 1.2), layout="constrained")[1]
    order = relevance.argsort()[::-1][:MOST_COLUMNS_DRAWN]
    axis.barh([str(names[column]) for column in order], relevance[order], color=STYLES[0][0])
    axis.invert_yaxis()
    axis.set_xlim(0, 1)
    axis.set_xlabel("relevance")
    axis.grid(axis="x", alpha=0.25)
    return axis


def _short(name: str) -> str:
    """The last part of a run's path."""
    return name.rstrip("/").rsplit("/", 1)[-1]


def _draw_image(axis: Axes, image: Tensor) -> None:
    """One uint8 image; ink of one channel is drawn dark."""
    if image.shape[0] == 1:
        axis.imshow(image[0].numpy(), cmap="gray_r", vmin=0, vmax=255)
    else:
        axis.imshow(image.permute(1, 2, 0).numpy())


def _draw_task(
    axis: Axes, predictions: Mapping[str, Prediction], episodes: Episodes, task: int, *, bands: bool = True
) -> None:
    x, order = episodes.query_x[task, :, 0].sort()
    reach = episodes.support_y[task].abs().max()
    if episodes.query_y is not None:
        truth = episodes.query_y[task, order, 0]
        axis.plot(x, truth, color="0.55", linewidth=4, alpha=0.6, label="truth")
        reach = max(reach, truth.abs().max())
    for (name, prediction), (colour, dash) in zip(predictions.items(), cycle(STYLES), strict=False):
        mean = prediction.mean[task, order, 0]
        if bands and prediction.std is not None:
            low, high = (end[task, order, 0] for end in prediction.band())
            axis.fill_between(x, low, high, color=colour, alpha=0.15, linewidth=0)
        axis.plot(x, mean, color=colour, linestyle=dash, linewidth=1.7, label=_short(name))
    points = episodes.support_x[task, :, 0], episodes.support_y[task, :, 0]
    axis.plot(*points, "^", color="black", markersize=7, label="support", zorder=5)
    axis.set_ylim(-1.6 * float(reach) - 1e-3, 1.6 * float(reach) + 1e-3)
    axis.set_xlabel("x")
    axis.grid(alpha=0.25)
