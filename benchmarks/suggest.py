"""Labels saved by ``suggest``, beside labels of random samples and of those with the smallest margin.

    python benchmarks/suggest.py [--splits 10] [--save results/suggest.json] [--plot docs/suggest.png]

Real tables of scikit-learn. Half of a table (at most 1,000 rows) is the pool, the other half (at most 500) the test.
Labels start with one per class, or five rows, and come five at a time. The level is the best that random labels reach
on average; "saved" is how many labels fewer reach it first.
"""

from __future__ import annotations

import argparse
import time
import warnings
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn import datasets

from metavrf import MetaVRFClassifier, MetaVRFRegressor
from metavrf.files import write_json
from metavrf.plots import STYLES, picture_at
from metavrf.reports import print_table
from metavrf.runs.provenance import provenance

BATCH, FIRST, MOST_POOLED, MOST_TESTED = 5, 5, 1000, 500
LABELS = {"digits": 100, "breast_cancer": 92, "wine": 63, "iris": 53, "diabetes": 75}
METHODS = ("random", "margin", "suggest")


def chosen(method: str, model: Any, pool: NDArray[Any], random: np.random.Generator) -> NDArray[Any]:
    """The numbers of the rows to label next."""
    if method == "random":
        return random.permutation(len(pool))[:BATCH]
    if method == "suggest":
        return np.asarray(model.suggest(pool, BATCH))
    if isinstance(model, MetaVRFRegressor):
        return np.asarray(-model.predict(pool, return_std=True)[1]).argsort()[:BATCH]
    ordered = np.sort(model.predict_proba(pool), 1)
    return np.asarray(ordered[:, -1] - ordered[:, -2]).argsort()[:BATCH]


def curve(name: str, method: str, seed: int) -> tuple[list[int], list[float], float]:
    """Numbers of labels, accuracy or R² with them, and seconds per choice."""
    x, y = getattr(datasets, f"load_{name}")(return_X_y=True)
    random = np.random.default_rng(seed)
    order, half = random.permutation(len(y)), len(y) // 2
    pool, test = order[:half][:MOST_POOLED], order[half:][:MOST_TESTED]
    regression = name == "diabetes"
    labels = pool[:FIRST] if regression else np.array([pool[y[pool] == label][0] for label in np.unique(y)])
    counts: list[int] = []
    scores: list[float] = []
    seconds: list[float] = []
    while True:
        model = (MetaVRFRegressor() if regression else MetaVRFClassifier()).fit(x[labels], y[labels])
        counts.append(len(labels))
        scores.append(float(model.score(x[test], y[test])))
        rest = np.setdiff1d(pool, labels)
        if len(labels) + BATCH > LABELS[name] or len(rest) < BATCH:
            return counts, scores, float(np.mean(seconds))
        start = time.perf_counter()
        picked = chosen(method, model, x[rest], random)
        seconds.append(time.perf_counter() - start)
        labels = np.concatenate([labels, rest[picked]])


def first(counts: list[int], scores: list[float], level: float) -> float | None:
    """How many labels reach a level first, between the counts that were tried."""
    reached = np.nonzero(np.asarray(scores) >= level)[0]
    if len(reached) == 0:
        return None
    number = int(reached[0])
    if number == 0:
        return float(counts[0])
    low, high = scores[number - 1], scores[number]
    return counts[number - 1] + (level - low) / (high - low) * (counts[number] - counts[number - 1])


def measured(name: str, splits: int) -> dict[str, Any]:
    """Mean curves of all methods, and what they save."""
    found: dict[str, Any] = {}
    for method in METHODS:
        curves = [curve(name, method, seed) for seed in range(splits)]
        scores = np.array([scores for _, scores, _ in curves])
        found[method] = {
            "labels": curves[0][0],
            "mean": scores.mean(0).tolist(),
            "standard_error": (scores.std(0, ddof=1) / splits**0.5).tolist(),
            "milliseconds": 1000 * float(np.median([seconds for _, _, seconds in curves])),
        }
    level = max(found["random"]["mean"])
    needed = {method: first(found[method]["labels"], found[method]["mean"], level) for method in METHODS}
    by_chance = needed["random"]
    for method, labels in needed.items():
        saved = None if labels is None or by_chance is None else 1 - labels / by_chance
        found[method] |= {"needed": labels, "saved": saved}
    return {"level": level, "methods": found}


def draw(results: dict[str, Any], path: Path) -> None:
    """One panel per table."""
    title = "Accuracy (diabetes: R²) against labels; shaded: standard error"
    with picture_at(path, title, 1, len(results), figsize=(2.6 * len(results), 2.9)) as (figure, axes):
        for axis, (name, result) in zip(axes[0], results.items(), strict=True):
            for (method, found), (colour, dash) in zip(result["methods"].items(), STYLES, strict=False):
                mean, error = np.array(found["mean"]), np.array(found["standard_error"])
                axis.plot(found["labels"], mean, color=colour, linestyle=dash, label=method)
                axis.fill_between(found["labels"], mean - error, mean + error, color=colour, alpha=0.15, linewidth=0)
            least = 0 if name == "diabetes" else 0.7
            axis.set(title=name.replace("_", " "), xlabel="labels", ylim=(least, max(0.5, 1.02 * result["level"])))
            axis.grid(alpha=0.25)
        figure.legend(*axes[0][0].get_legend_handles_labels(), loc="outside lower center", ncols=3, frameon=False)


def main() -> None:
    """Measure, print, save, draw."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--splits", type=int, default=10)
    parser.add_argument("--save", type=Path)
    parser.add_argument("--plot", type=Path)
    options = parser.parse_args()
    warnings.simplefilter("ignore")  # R² of a few rows
    results = {name: measured(name, options.splits) for name in LABELS}
    lines = []
    for name, result in results.items():
        for method, found in result["methods"].items():
            needed, saved = (found[key] for key in ("needed", "saved"))
            reached = ["never", ""] if needed is None else [f"{needed:.0f}", f"{100 * saved:.0f} %"]
            lines.append([name, f"{result['level']:.3f}", method, *reached, f"{found['milliseconds']:.0f}"])
    print_table(["table", "level", "method", "labels", "saved", "ms per choice"], lines)
    if options.save:
        write_json(options.save, {"splits": options.splits, "tables": results, "provenance": provenance(0)})
    if options.plot:
        draw(results, options.plot)


if __name__ == "__main__":
    main()
