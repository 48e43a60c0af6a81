"""What the commands print, draw and save."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from metavrf.api import Row
    from metavrf.evaluation import Evaluation

TABLE_WIDTH = 110  # of a table that goes to a file or pipe


def check_picture(path: Path | None) -> None:
    """Refuse a bad --plot before the work, not after it."""
    if path is not None:
        from metavrf.plots import check_picture_name

        check_picture_name(path)


def draw_figure(learners: Any, run: Path, result: Evaluation, path: Path) -> Path:
    """Draw a few tasks that no table is made of: the paper's regression figure, or one task of classes."""
    from metavrf import api
    from metavrf.plots import plot_classes, plot_fits
    from metavrf.run import Run

    config = Run.open(run).config()
    tasks = api.figure_tasks(config, result)
    if result.way is None:
        return plot_fits(learners, tasks, path, f"{config.task}, {result.shot} shots")
    name, learner = next(iter(learners.items()))
    title = f"{config.task}, {result.way}-way {result.shot}-shot: {name}, inductive"
    return plot_classes(learner, tasks, path, title)


def row_dict(row: Row) -> dict[str, Any]:
    """A line of a comparison as plain values."""
    return {"name": row.name, **row.evaluation.to_dict(), "difference": dataclasses.asdict(row.difference)}


def print_rows(rows: Sequence[Row]) -> None:
    """A comparison as a table."""
    first = rows[0].evaluation
    protocols = list(dict.fromkeys(row.evaluation.protocol for row in rows))
    lines = [
        [
            row.name,
            f"{number(row.evaluation.mean)} ± {number(row.evaluation.ci95)}",
            f"{number(row.difference.mean)} ± {number(row.difference.ci95)}" if index else "",
            number(row.evaluation.nll),
            f"{100 * (row.evaluation.coverage90 or 0):.1f} %" if first.way is None else number(row.evaluation.ece),
            *([row.evaluation.protocol] if len(protocols) > 1 else []),
        ]
        for index, row in enumerate(rows)
    ]
    ways = "" if first.way is None else f"{first.way} ways, "
    title = f"{first.tasks} test tasks, {ways}{first.shot} shots, {' and '.join(protocols)}"
    metric = first.metric if first.way is None else f"{first.metric} (%)"
    last = "in the 90 % band" if first.way is None else "calibration error"
    columns = ["", metric, "difference to the first", "nll", last, *(["protocol"] if len(protocols) > 1 else [])]
    print_table(columns, lines, title)


def print_table(header: Sequence[str], lines: Sequence[Sequence[str]], title: str | None = None) -> None:
    """A table on standard output."""
    from rich.console import Console
    from rich.table import Table

    console = Console()
    if not console.is_terminal:
        console = Console(width=TABLE_WIDTH)
    table = Table(title=title, title_justify="left")
    for index, name in enumerate(header):
        table.add_column(name, justify="right" if index else "left")
    for line in lines:
        table.add_row(*line)
    console.print(table)


def number(value: object) -> str:
    """A figure to four digits; anything else as it is."""
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def report(
    values: dict[str, Any], as_json: bool | None, save: Path | None, seed: int, runs: Sequence[Path] = ()
) -> None:
    """Print values as JSON (True), as a table (False) or not at all (None).

    They are saved with their provenance and with what the tested ``runs`` say of their training.
    """
    if as_json:
        print(json.dumps(values))
    elif as_json is False:
        print_table(["", ""], [[name, number(value)] for name, value in values.items()])
    if save:
        from metavrf.provenance import provenance
        from metavrf.run import Run, write_json

        trainings = {str(run): Run.open(run).result() for run in runs}
        write_json(save, values | ({"trainings": trainings} if runs else {}) | {"provenance": provenance(seed)})
