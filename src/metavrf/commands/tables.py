"""What fit and predict do with a table: a row per sample, a column to predict."""

from __future__ import annotations

import csv
import io
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from metavrf.errors import UserError
from metavrf.files import read_json, write_atomically
from metavrf.manifest import check
from metavrf.reports import check_picture, number, print_table
from metavrf.tables import COLUMNS_FILE, Coding, read_columns, without_missing

if TYPE_CHECKING:
    from metavrf.estimators import MetaVRFClassifier, MetaVRFRegressor

LEAST_ROWS = 3
MOST_SHOWN = 10  # columns


def fit_table(  # the options of the command
    path: Path, target: str, out: Path, *, without: Sequence[str], drop: bool, classes: bool, plot: Path | None
) -> dict[str, Any]:
    """Fit, test by leaving one out, save, draw; what there is to say."""
    from metavrf.estimators import MetaVRFClassifier, MetaVRFRegressor

    check_picture(plot)
    if not target:
        raise UserError(f"say which column of {path} to predict: --target NAME")
    table = read_columns(path)
    coding = Coding.of(table, target, without, path)
    columns, kept = without_missing(coding.chosen(table, path, [target]), path, drop)
    y = columns[target]
    if len(y) < LEAST_ROWS:
        raise UserError(f"{path} has {len(y)} complete rows: give at least {LEAST_ROWS}")
    classes = classes or y.dtype == object
    if classes:
        y = y.astype(str) if y.dtype == object else y
        if len(np.unique(y)) < 2:
            raise UserError(f"the column {target!r} of {path} has one value: there is nothing to tell apart")
    model = MetaVRFClassifier() if classes else MetaVRFRegressor()
    model.fit(coding.numbers(columns, path), y)
    said: dict[str, Any] = {"rows": len(y), "dropped": len(table[target]) - len(kept), "target": target}
    said |= _of_classes(model) if isinstance(model, MetaVRFClassifier) else _of_numbers(model)
    if hasattr(model, "kernels_"):
        relevance = model.kernels_["relevance"]
        order = relevance.argsort()[::-1]
        said["relevance"] = {coding.names[column]: float(relevance[column]) for column in order}
    model.save(out, columns=coding.saved())
    if plot:
        _draw(model, coding, plot)
    return said


def print_fit(said: dict[str, Any], out: Path) -> None:
    """In words."""
    dropped = f", without {said['dropped']} that miss values" if said["dropped"] else ""
    print(f"{said['rows']} rows{dropped}; predicts {said['target']}")
    shown = list(said.get("relevance", {}).items())
    if shown:
        print_table(["column", "relevance"], [[name, f"{value:.2f}"] for name, value in shown[:MOST_SHOWN]])
        if len(shown) > MOST_SHOWN:
            print(f"and {len(shown) - MOST_SHOWN} columns that count less")
    if "noise" in said:
        print(f"noise: {number(said['noise'])} (standard deviation), of {number(said['deviation'])} in all")
    if "r2" in said:
        print(f"leave-one-out: R² {said['r2']:.2f}, mean absolute error {number(said['error'])}")
    elif said["accuracy"] is None:
        print("leave-one-out accuracy: not known, as every class has one row")
    else:
        print(f"leave-one-out accuracy: {said['accuracy']:.1f} % of {said['tested']} rows, each by the others")
    if "threshold" in said:
        print(f"not sure below a probability of {said['threshold']:.2f}")
    print(f"use it with: metavrf predict {out} NEW.csv")


def predict_table(model: Path, path: Path, *, drop: bool, threshold: float | None) -> list[dict[str, Any]]:
    """What a fitted model says of each row of a table; rows are numbered from 1."""
    from metavrf.estimators import MetaVRFClassifier, load

    values = read_json(check(model / COLUMNS_FILE), "fit the model again")
    try:
        coding = Coding.restored(values or {})
    except TypeError as error:
        raise UserError(f"{model / COLUMNS_FILE} is damaged ({error}): fit the model again") from error
    columns, kept = without_missing(coding.chosen(read_columns(path), path), path, drop)
    estimator, x = load(model), coding.numbers(columns, path)
    rows: list[dict[str, Any]] = [{"row": int(row) + 1} for row in kept]
    if isinstance(estimator, MetaVRFClassifier):
        probabilities = estimator.predict_proba(x)
        likeliest = probabilities.argmax(1)
        if threshold is None:
            kept_test = getattr(estimator, "leave_one_out_", None) or estimator.leave_one_out()
            threshold = float(kept_test.threshold)
        for row, best, share in zip(rows, likeliest, probabilities.max(1).tolist(), strict=True):
            row |= {coding.target: str(estimator.classes_[best]), "probability": share, "sure": share >= threshold}
        return rows
    mean, std = estimator.predict(x, return_std=True)
    low, high = estimator.predict_quantiles(x, [0.05, 0.95])
    names = (coding.target, "std", "low90", "high90")
    found = zip(rows, mean.tolist(), std.tolist(), low.tolist(), high.tolist(), strict=True)
    return [row | dict(zip(names, figures, strict=True)) for row, *figures in found]


def print_predictions(rows: list[dict[str, Any]], *, as_json: bool, save: Path | None) -> None:
    """As CSV, or one JSON object; to a file or to standard output."""
    if as_json:
        text = json.dumps({"predictions": rows}) + "\n"
    else:
        file = io.StringIO()
        writer = csv.DictWriter(file, list(rows[0]), lineterminator="\n")
        writer.writeheader()
        writer.writerows({name: _figure(value) for name, value in row.items()} for row in rows)
        text = file.getvalue()
    if save:
        write_atomically(save, text)
    else:
        sys.stdout.write(text)


def _figure(value: Any) -> Any:
    return f"{value:.6g}" if isinstance(value, float) else value


def _of_classes(model: MetaVRFClassifier) -> dict[str, Any]:
    expected = model.leave_one_out()
    counts = dict(zip(*(part.tolist() for part in np.unique(model.support_y_, return_counts=True)), strict=True))
    said = {"classes": {str(name): count for name, count in counts.items()}, "accuracy": expected.accuracy}
    return said | {"tested": expected.tested, "threshold": expected.threshold}


def _of_numbers(model: MetaVRFRegressor) -> dict[str, Any]:
    y = model.support_y_
    error = y - model.leave_one_out()[0]
    said = {"deviation": float(y.std()), "error": float(np.abs(error).mean())}
    said["r2"] = float(1 - (error**2).mean() / max(y.var(), np.finfo(float).tiny))
    return said | ({"noise": model.noise_} if hasattr(model, "noise_") else {})


def _draw(model: MetaVRFClassifier | MetaVRFRegressor, coding: Coding, path: Path) -> None:
    """Relevance of columns; of real targets also the truth against what the other rows say."""
    from metavrf.estimators import MetaVRFRegressor
    from metavrf.plots import STYLES, draw_relevance, picture_at

    if not hasattr(model, "kernels_"):
        raise UserError("a table of more than 4,000 rows has no relevance of columns to draw")
    panels = 1 + isinstance(model, MetaVRFRegressor)
    with picture_at(path, f"what {coding.target} depends on", 1, panels, figsize=(5 * panels, 3.6)) as (_, axes):
        draw_relevance(model.kernels_["relevance"], coding.names, axes[0][0])
        if isinstance(model, MetaVRFRegressor):
            mean, std = model.leave_one_out()
            axis, y = axes[0][1], model.support_y_
            axis.errorbar(mean, y, xerr=1.64 * std, fmt="o", color=STYLES[0][0], ms=4, elinewidth=0.7, alpha=0.8)
            axis.axline((y.mean(), y.mean()), slope=1, color="0.6", linewidth=1)
            axis.set(xlabel=f"{coding.target}, predicted by the other rows (90 %)", ylabel=coding.target)
            axis.grid(alpha=0.25)
