"""What ``predict`` does with curves: the rows of a table whose targets are empty, from the others of their group."""

from __future__ import annotations

import csv
import json
import sys
from collections.abc import Sequence
from pathlib import Path

from metavrf.errors import UserError
from metavrf.reports import number, print_table


def is_of_curves(model: Path) -> bool:
    """Whether this is a run on curves of a file."""
    from metavrf.runs.directory import Run

    try:
        return Run.open(model).spec().columns is not None
    except UserError:
        return False  # a fitted model, or nothing: whoever opens it says so


def predict_curves(model: Path, files: Sequence[Path], *, as_json: bool, as_csv: bool) -> None:
    """Predict and print."""
    from metavrf.model import load

    if len(files) != 1:
        raise UserError(f"give one table of curves, not {len(files)} files")
    if as_json and as_csv:
        raise UserError("give --json or --csv, not both")
    table = load(model).predict_curves(files[0])
    rows = table.to_pylist()
    if as_json:
        print(json.dumps({"predictions": rows}, default=str))
    elif as_csv:
        writer = csv.DictWriter(sys.stdout, table.column_names, lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
    else:
        print_table(table.column_names, [[number(value) for value in row.values()] for row in rows])
