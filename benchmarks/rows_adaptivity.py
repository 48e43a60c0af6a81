"""What inference on rows is worth: on synthetic tables that training has not seen, and on tables of one's own.

    python benchmarks/rows_adaptivity.py [--tables FOLDER] [--save results/rows-adaptivity.json]

First, the estimators with and without the proposals of the network (``infer``), paired. Then the same tasks, under the
same candidates, answered with their own, the mean and another task's weights of kernels. ``--tables`` are CSV files of
numbers whose last column is the target: real, or classes where the file's name starts with "classes-".
"""

from __future__ import annotations

import argparse
import hashlib
import math
from collections import defaultdict
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.metrics import log_loss

from metavrf import MetaVRFClassifier, MetaVRFRegressor
from metavrf.episodes import Episodes
from metavrf.estimators.base import shipped_proposer
from metavrf.files import write_json
from metavrf.kernels.rows import Kernels
from metavrf.learners import rows
from metavrf.learners.row_mixture import Targets
from metavrf.learners.rows import Rows
from metavrf.randomness import stream
from metavrf.reports import print_table
from metavrf.runs.provenance import provenance
from metavrf.tasks.synthetic import Size, some_size, tables
from metavrf.testing.evaluation import difference

SEED, QUERY, MOST_ROWS, TESTED = 2020, 64, 120, 200
ROWS = (10, 20, 40, 80)
SIZES = (Size(10, 4, None), Size(30, 8, None), Size(60, 20, None), Size(12, 4, 2), Size(30, 8, 3), Size(60, 20, 4))
Task = tuple[str, NDArray[Any], NDArray[Any], NDArray[Any], NDArray[Any]]  # kind, support and query rows, with targets


def synthetic(count: int) -> list[Task]:
    """Tables of all sizes, two of each; classes that the support lacks are left out of the queries."""
    found: list[Task] = []
    for number in range(count // 2):
        generator = stream(SEED, "test", number)
        size = some_size(generator, classes=number % 2 == 1, most_rows=MOST_ROWS)
        drawn = tables(size, 2, QUERY, generator)
        for x, y in zip(drawn.x.double().numpy(), drawn.y.numpy(), strict=True):
            kind = "regression" if size.classes is None else "classes"
            found.append((kind, x[: size.rows], y[: size.rows], x[size.rows :], y[size.rows :]))
    return found


def real(folder: Path, splits: int) -> list[Task]:
    """Random rows of each table as the support, up to half of them."""
    found: list[Task] = []
    for file in sorted(folder.glob("*.csv")):
        table = np.genfromtxt(file, delimiter=",", skip_header=1)
        kind = "classes" if file.name.startswith("classes-") else "regression"
        for count in (size for size in ROWS if size <= len(table) // 2):
            for split in range(splits):
                order = np.random.default_rng(split).permutation(len(table))
                train, test = table[order[:count]], table[order[count : count + TESTED]]
                found.append((kind, train[:, :-1], train[:, -1], test[:, :-1], test[:, -1]))
    return found


def answered(task: Task, *, infer: bool) -> tuple[float, float] | None:
    """Nll and R² (at least -1), or nll and accuracy, of one task; None of one class alone."""
    kind, x, y, new, truth = task
    if kind == "classes":
        labels = np.unique(y.astype(int))
        known = np.isin(truth.astype(int), labels)
        if len(labels) < 2 or not known.any():
            return None
        found = MetaVRFClassifier(infer=infer).fit(x, y.astype(int)).predict_proba(new[known])
        found = np.clip(found, 1e-4, None)
        nll = log_loss(truth[known].astype(int), found / found.sum(1, keepdims=True), labels=labels)
        return nll, float(np.mean(labels[found.argmax(1)] == truth[known].astype(int)))
    if y.std() == 0 or truth.std() == 0:
        return None
    mean, std = MetaVRFRegressor(infer=infer).fit(x, y).predict(new, return_std=True)
    errors = ((truth - mean) / std) ** 2
    nll = np.mean(np.clip(0.5 * errors + np.log(std / y.std()), None, 10)) + 0.5 * math.log(2 * math.pi)
    return float(nll), max(-1.0, 1 - float(np.mean((truth - mean) ** 2)) / truth.var())


def paired(tasks: list[Task]) -> dict[str, Any]:
    """Of each kind the mean figures without and with the network, and their paired differences."""
    kept: dict[str, list[tuple[tuple[float, float], tuple[float, float]]]] = defaultdict(list)
    for task in tasks:
        without, with_network = answered(task, infer=False), answered(task, infer=True)
        if without is not None and with_network is not None:
            kept[task[0]].append((without, with_network))
    result: dict[str, Any] = {}
    for kind, pairs in kept.items():
        values = torch.tensor(pairs, dtype=torch.double)  # [tasks, 2, 2]
        result[kind] = {"tasks": len(pairs)}
        for column, name in enumerate(("nll", "R²" if kind == "regression" else "accuracy")):
            gap = difference(values[:, 1, column] - values[:, 0, column])
            means = values[..., column].mean(0).tolist()
            result[kind][name] = {
                "infer=False": means[0],
                "infer=True": means[1],
                "difference": {"mean": gap.mean, "ci95": gap.ci95, "p_value": gap.p_value},
            }
    return result


def adaptivity(size: Size, tasks: int) -> dict[str, Any]:
    """Nll of tasks of one size answered with their own, the mean and the next task's weights of the same kernels."""
    rows.KEPT, rows.NEGLIGIBLE = 10**6, 1e-9  # nothing is dropped: the mean weights are broad
    classes = size.classes is not None
    learner = Rows(
        size.columns, regression=not classes, generator=stream(0, "bases"), proposer=shipped_proposer().double()
    )
    drawn = tables(size, tasks, QUERY, stream(SEED, "figure", SIZES.index(size)))
    weights, prepared = [], []
    for x, y in zip(drawn.x.double(), drawn.y, strict=True):
        labels = y[: size.rows] if classes else y[: size.rows].double().unsqueeze(-1)
        if classes and len(labels.unique()) < 2:
            continue
        support = Episodes.of_support(x[: size.rows], labels, size.classes)
        targets = Targets.of(support)
        with torch.no_grad():
            families, log_prior = learner.candidates(x[: size.rows], targets)
            plain = Kernels(families[:1])  # parity depends on the values of a task: those kernels have no fellows
            score = learner.scores(plain, targets) + log_prior[: len(plain.noise)].unsqueeze(1)
        weights.append(score.flatten().softmax(0).view_as(score))
        prepared.append((plain, x, y, targets))
    all_weights = torch.stack(weights)
    chosen = {
        "own": all_weights,
        "mean": all_weights.mean(0, keepdim=True).expand_as(all_weights),
        "other": all_weights.roll(1, 0),
    }
    found = {}
    for name, used in chosen.items():
        values = []
        for (kernels, x, y, targets), weight in zip(prepared, used, strict=True):
            model = learner.conditioned(kernels, weight.clamp_min(1e-300).log(), x[: size.rows], targets)
            query, truth = x[size.rows :], y[size.rows :]
            if classes:
                there = (truth.unsqueeze(1) == y[: size.rows]).any(1)
                own = model(query).gather(1, truth.unsqueeze(1))[:, 0].clamp_min(1e-4).log()
                values.append(-own[there].mean() if bool(there.any()) else torch.zeros(()).double())
            else:
                mean, std = (part[:, 0] for part in model(query))
                nll = 0.5 * ((truth - mean) / std).square() + (std / targets.gain).log() + 0.5 * math.log(2 * math.pi)
                values.append(nll.clamp_max(10).mean())
        found[name] = torch.stack(values)
    result: dict[str, Any] = {"rows": size.rows, "columns": size.columns, "classes": size.classes}
    result |= {"tasks": len(prepared), "nll": {name: value.mean().item() for name, value in found.items()}}
    for name in ("mean", "other"):
        gap = difference(found[name] - found["own"])
        result[f"{name} - own"] = {"mean": gap.mean, "ci95": gap.ci95, "p_value": gap.p_value}
    return result


def main() -> None:
    """Measure, print, save."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tasks", type=int, default=600, help="synthetic tables")
    parser.add_argument("--adaptivity", type=int, default=100, help="tables of each size")
    parser.add_argument("--tables", type=Path)
    parser.add_argument("--splits", type=int, default=5)
    parser.add_argument("--save", type=Path)
    asked = parser.parse_args()
    torch.set_num_threads(1)
    kept: dict[str, Any] = {"protocol": "paired; nll of standardised targets, at most 10 per row; seed 2020"}
    kept["synthetic"] = paired(synthetic(asked.tasks))
    if asked.tables:
        files = sorted(asked.tables.glob("*.csv"))
        kept["tables"] = {file.stem: hashlib.sha256(file.read_bytes()).hexdigest() for file in files}
        kept["real"] = paired(real(asked.tables, asked.splits))
    for part in ("synthetic", "real"):
        for kind, found in kept.get(part, {}).items():
            lines = [
                [name, f"{v['infer=False']:.4f}", f"{v['infer=True']:.4f}", f"{v['difference']['p_value']:.2g}"]
                for name, v in found.items()
                if name != "tasks"
            ]
            print(f"{part}, {kind}, {found['tasks']} tasks")
            print_table(["figure", "infer=False", "infer=True", "p"], lines)
    kept["adaptivity"] = [adaptivity(size, asked.adaptivity) for size in SIZES]
    lines = [
        [
            f"{a['rows']} × {a['columns']}",
            str(a["classes"] or ""),
            *(f"{v:.3f}" for v in a["nll"].values()),
            f"{a['mean - own']['p_value']:.2g}",
        ]
        for a in kept["adaptivity"]
    ]
    print_table(["rows × columns", "classes", "own", "mean", "another's", "p, own against mean"], lines)
    if asked.save:
        write_json(asked.save, kept | {"provenance": provenance(SEED)})


if __name__ == "__main__":
    main()
