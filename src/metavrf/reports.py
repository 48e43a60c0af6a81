"""What the commands print, draw and save."""

from __future__ import annotations

import dataclasses
import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

from metavrf.errors import UserError, printable

if TYPE_CHECKING:
    from metavrf.model import TrainedModel
    from metavrf.testing.compare import Row
    from metavrf.testing.evaluation import Difference, Evaluation
    from metavrf.testing.settings import EvalSettings

TABLE_WIDTH = 220  # of a table that goes to a file or pipe
LEAST_COLUMNS = 2  # of a table, however narrow the screen
OF_LIKELIHOOD = ("nll", "nll_difference", "coverage90")


def check_picture(path: Path | None) -> None:
    """Refuse a bad --plot before the work, not after it."""
    if path is not None:
        from metavrf.plots import check_picture_name

        check_picture_name(path)


def draw_figure(
    models: Mapping[str, TrainedModel], result: Evaluation, path: Path, settings: EvalSettings | None = None
) -> Path:
    """Draw a few tasks that no table is made of: the paper's regression figure, or one task of classes."""
    from metavrf.plots import plot_classes, plot_curves, plot_fits
    from metavrf.testing.evaluate import figure_curves, figure_tasks

    name, model = next(iter(models.items()))
    task, learners = model.config.task, {other: opened.learner for other, opened in models.items()}
    if model.spec.columns is not None and result.shot is not None:
        groups = figure_curves(model, result.shot, settings)
        return plot_curves(learners, groups, model.spec.columns, path, f"{Path(task).name}: test groups")
    tasks = figure_tasks(model, result, settings)
    if result.way is None:
        return plot_fits(learners, tasks, path, f"{task}, {result.shot} shots")
    title = f"{task}, {result.way}-way {result.shot}-shot: {name}, inductive"
    return plot_classes(model.learner, tasks, path, title)


def draw_kernels(model: TrainedModel, path: Path, tasks: int = 3, seed: int = 0) -> Path:
    """Draw what the points of a few validation tasks say of their kernel, as they come in."""
    from metavrf.learners.metavrf import MetaVRF
    from metavrf.plots import POINTS_SHOWN, plot_kernels
    from metavrf.randomness import stream
    from metavrf.tasks.functions import family

    task, learner = model.config.task, model.learner
    if model.spec.inputs != (1,) or not model.spec.regression or not isinstance(learner, MetaVRF):
        raise UserError(
            f"{model.run.path} has no kernels over frequency to draw: give a run of metavrf on functions of one input"
        )
    if tasks < 1:
        raise UserError(f"{tasks=} must be at least 1")
    functions = family(task)
    episodes = functions.sample_grid(tasks, max(POINTS_SHOWN), stream(seed, "figure"))
    return plot_kernels(learner, episodes, path, f"{task}: the kernel, point by point", domain=functions.domain)


def row_dict(row: Row) -> dict[str, Any]:
    """A line of a comparison as plain values."""
    facts = {} if row.facts is None else dataclasses.asdict(row.facts)
    gap = {} if row.above_limit is None else {"nll_above_limit": dataclasses.asdict(row.above_limit)}
    if row.nll_difference is not None:
        gap["nll_difference"] = dataclasses.asdict(row.nll_difference)
    found = {"name": row.name, **row.evaluation.to_dict(), "difference": dataclasses.asdict(row.difference)}
    found |= gap | facts
    return found if row.bounded else {key: value for key, value in found.items() if key not in OF_LIKELIHOOD}


def print_rows(rows: Sequence[Row], *, markdown: bool = False) -> None:
    """A comparison as a table."""
    title, header, lines = comparison_table(rows)
    if markdown:
        show(markdown_table(title, header, lines))
    else:
        print_table(header, lines, title)


def comparison_table(rows: Sequence[Row]) -> tuple[str, list[str], list[list[str]]]:
    """Title, columns and lines of a comparison; columns that would be empty are left out."""
    first = rows[0].evaluation
    protocols = list(dict.fromkeys(row.evaluation.protocol for row in rows))
    regression = first.way is None
    table = [_cells(row, regression, first=row is rows[0]) for row in rows]
    header = [name for name in table[0] if any(cells[name] for cells in table)]
    if len(protocols) == 1:
        header.remove("protocol")
    ways = "" if regression else f"{first.way} ways, "
    shots = "several sizes" if first.shot is None else f"{first.shot} shots"
    title = f"{first.tasks} test tasks, {ways}{shots}, {' and '.join(protocols)}"
    if any("†" in cells["paper"] for cells in table):
        title += "; paper: what the MetaVRF paper's tables say, † known to be transductive"
    return title, ["" if name == "name" else name for name in header], [[c[n] for n in header] for c in table]


def _cells(row: Row, regression: bool, *, first: bool) -> dict[str, str]:
    """One line of a comparison by column."""
    result, gap, facts = row.evaluation, row.difference, row.facts
    metric = result.metric if regression else f"{result.metric} (%)"
    return {
        "name": row.name,
        metric: f"{number(result.mean)} ± {number(result.ci95)}",
        "difference to the first": "" if first else f"{number(gap.mean)} ± {number(gap.ci95)}",
        "p": "" if first or gap.p_value is None else f"{gap.p_value:.1g}",
        "nll": number(result.nll) if row.bounded else "",
        "nll above Bayes-optimal": _gap(row.above_limit),
        "mean inference": _swapped(result, "mean"),
        "another's": _swapped(result, "other"),
        "in the 90 % band": f"{100 * (result.coverage90 or 0):.1f} %" if regression and row.bounded else "",
        "calibration error": "" if regression else number(result.ece),
        "trained (CPU min)": "" if facts is None else _minutes(facts.train_cpu_seconds),
        "ms per task": "" if facts is None else f"{facts.adapt_ms:.3g}",
        "parameters": "" if facts is None else f"{facts.parameters:,}",
        "paper": "" if facts is None else facts.published,
        "protocol": result.protocol,
    }


def _gap(gap: Difference | None) -> str:
    return "" if gap is None or gap.p_value is None else f"{number(gap.mean)} ± {number(gap.ci95)}"


def _swapped(result: Evaluation, whose: str) -> str:
    """The metric with an inference that is not the task's own."""
    found = (result.adaptivity or {}).get(whose)
    return "" if found is None else number(found[result.metric])


def _minutes(seconds: float | None) -> str:
    return "" if seconds is None else f"{seconds / 60:.1f}"


def markdown_table(title: str, header: Sequence[str], lines: Sequence[Sequence[str]]) -> str:
    """A table in Markdown, its title under it."""
    rows = [header, ["---", *["---:"] * (len(header) - 1)], *lines]
    return "\n".join(["| " + " | ".join(cells) + " |" for cells in rows] + ["", f"{title}."])


def show(text: str, file: TextIO | None = None) -> None:
    """A text on standard output, or where it is to go; what only a terminal would read is spelt out."""
    print(printable(text), file=file)


def print_table(header: Sequence[str], lines: Sequence[Sequence[str]], title: str | None = None) -> None:
    """A table on standard output. Where it is wider than the screen, columns are left out, and named below it.

    COLUMNS is obeyed in a pipe too; without it a pipe or file gets every column.
    """
    from rich.box import SIMPLE_HEAD
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    header, lines = [printable(name) for name in header], [[printable(cell) for cell in line] for line in lines]
    console = Console()
    if not console.is_terminal and "COLUMNS" not in os.environ:
        console = Console(width=TABLE_WIDTH)
    kept, dropped = _columns_that_fit(header, lines, console.width)
    table = Table(box=SIMPLE_HEAD, pad_edge=False, show_edge=False, padding=(0, 1, 0, 0))
    for index in kept:
        table.add_column(Text(header[index]), justify="right" if index else "left", no_wrap=len(kept) > 2)
    for line in lines:
        table.add_row(*(Text(line[index]) for index in kept))  # names of a user may look like markup
    if title:
        console.print(printable(title), soft_wrap=True, markup=False)
    console.print(table)
    if dropped:
        names = ", ".join(header[index] for index in dropped)
        words = f"left out for want of width: {names} (--json and --save have them)"
        console.print(words, soft_wrap=True, markup=False)


def _columns_that_fit(header: Sequence[str], lines: Sequence[Sequence[str]], width: int) -> tuple[list[int], list[int]]:
    """The numbers of the columns that fit into ``width``, and of those that do not: the last go first."""
    widths = [max(map(len, column)) for column in zip(header, *lines, strict=True)]
    kept = list(range(len(header)))
    while len(kept) > LEAST_COLUMNS and sum(widths[index] + 2 for index in kept) > width:
        kept.pop()
    return kept, [index for index in range(len(header)) if index not in kept]


def _lines(values: Mapping[str, Any], prefix: str = "") -> list[list[str]]:
    """Name and figure of each value; those within another are named by both."""
    lines = []
    for name, value in values.items():
        if isinstance(value, Mapping):
            lines += _lines(value, f"{prefix}{name} ")
        elif isinstance(value, list):
            lines.append([prefix + name, ", ".join(number(item) for item in value)])
        else:
            lines.append([prefix + name, number(value)])
    return lines


def number(value: object) -> str:
    """A figure to four digits; anything else as it is."""
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def report(
    values: dict[str, Any], as_json: bool | None, save: Path | None, seed: int, models: Sequence[TrainedModel] = ()
) -> None:
    """Print values as JSON (True), as a table (False) or not at all (None).

    They are saved with their provenance and with what the tested ``models`` say of their training.
    """
    if as_json:
        print(json.dumps(values))
    elif as_json is False:
        print_table(["", ""], _lines(values))
    if save:
        from metavrf.files import write_json
        from metavrf.runs.provenance import provenance

        trainings = {model.called: model.result for model in models}
        write_json(save, values | ({"trainings": trainings} if models else {}) | {"provenance": provenance(seed)})
