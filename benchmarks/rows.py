"""The estimators without a model on small tables, beside what else one would take for twenty rows.

    python benchmarks/rows.py [--splits 30] [--save results/rows.json]

Regression on diabetes, linnerud and friedman1-3 with 10, 20, 40 and 80 rows: R² (at least -1, so that one failure does
not decide a mean). Classes on iris, wine, breast cancer and digits with 3, 5, 10 and 20 rows per class: nll and
accuracy. The twelve tables of PMLBmini, if METAVRF_DATA has them, in three folds: nll and area under the curve. Curves
of one column with ten points: error as a share of the variance. All methods see the same splits; the mean rank is over
all tables, sizes and splits. Last, the milliseconds of fit and predict with 50 rows of 10 columns.
"""

from __future__ import annotations

import argparse
import os
import time
import warnings
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.stats import rankdata
from sklearn import datasets
from sklearn.ensemble import RandomForestClassifier, RandomForestRegressor
from sklearn.gaussian_process import GaussianProcessRegressor
from sklearn.gaussian_process.kernels import RBF, ConstantKernel, WhiteKernel
from sklearn.linear_model import LogisticRegressionCV, RidgeCV
from sklearn.metrics import log_loss, roc_auc_score
from sklearn.model_selection import StratifiedKFold
from sklearn.neighbors import KNeighborsClassifier, KNeighborsRegressor
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.svm import SVC, SVR

from metavrf import MetaVRFClassifier, MetaVRFRegressor
from metavrf.files import write_json
from metavrf.reports import print_table
from metavrf.runs.provenance import provenance

ROWS, SHOTS, MOST_TESTED = (10, 20, 40, 80), (3, 5, 10, 20), 300
Table = tuple[NDArray[Any], NDArray[Any]]
Scores = dict[str, dict[str, list[tuple[float, float]]]]


def regressors(columns: int) -> dict[str, Any]:
    """By name."""

    def process(length: Any) -> Any:
        kernel = ConstantKernel() * RBF(length) + WhiteKernel(0.1)
        return make_pipeline(StandardScaler(), GaussianProcessRegressor(kernel, normalize_y=True))

    return {
        "MetaVRFRegressor()": MetaVRFRegressor(),
        "RidgeCV": make_pipeline(StandardScaler(), RidgeCV(np.logspace(-3, 3, 13))),
        "SVR": make_pipeline(StandardScaler(), SVR()),
        "k-NN": make_pipeline(StandardScaler(), KNeighborsRegressor(3)),
        "random forest": RandomForestRegressor(100, random_state=0),
        "GP, one length": process(columns**0.5),
        "GP, per column": process(np.full(columns, columns**0.5)),
    }


def classifiers() -> dict[str, Any]:
    """By name. SVC's probabilities are softmaxed decision values: its own calibration needs more samples."""
    return {
        "MetaVRFClassifier()": MetaVRFClassifier(),
        "logistic regression, CV": make_pipeline(StandardScaler(), LogisticRegressionCV(Cs=8, cv=3, max_iter=300)),
        "SVC": make_pipeline(StandardScaler(), SVC(decision_function_shape="ovr")),
        "k-NN": make_pipeline(StandardScaler(), KNeighborsClassifier(3)),
        "random forest": RandomForestClassifier(100, random_state=0),
    }


def regression_tables() -> dict[str, Table]:
    """Real ones, and Friedman's."""
    linnerud = datasets.load_linnerud()
    return {
        "diabetes": datasets.load_diabetes(return_X_y=True),
        "linnerud": (linnerud.data, linnerud.target[:, 0]),
        "friedman1": datasets.make_friedman1(500, noise=1.0, random_state=0),
        "friedman2": datasets.make_friedman2(500, noise=50.0, random_state=0),
        "friedman3": datasets.make_friedman3(500, noise=0.1, random_state=0),
    }


def regression(splits: int) -> Scores:
    """R², twice."""
    scores: Scores = defaultdict(lambda: defaultdict(list))
    for name, (x, y) in regression_tables().items():
        for rows in (size for size in ROWS if size <= len(y) // 2):
            for split in range(splits):
                order = np.random.default_rng(split).permutation(len(y))
                train, test = order[:rows], order[rows : rows + MOST_TESTED]
                for method, model in regressors(x.shape[1]).items():
                    error = np.mean((model.fit(x[train], y[train]).predict(x[test]) - y[test]) ** 2)
                    r2 = max(-1.0, 1 - error / y[test].var())
                    scores[f"{name}, {rows} rows"][method].append((-r2, r2))
    return scores


def some_curve(name: str, random: np.random.Generator) -> Callable[[NDArray[Any]], NDArray[Any]]:
    """A curve on [0, 10]."""
    height, frequency, phase, decay = random.uniform((0.5, 0.5, 0.0, 0.05), (3.0, 2.0, 6.3, 0.5))
    bumps, sizes = random.uniform(0, 10, 12), random.normal(size=12)
    return {
        "damped oscillations": lambda x: height * np.exp(-decay * x) * np.sin(2 * frequency * x + phase),
        "sines": lambda x: height * np.sin(frequency * x + phase),
        "saw teeth": lambda x: height * ((0.2 * frequency * x + phase) % 1),
        "smooth": lambda x: np.exp(-0.5 * (x[..., None] - bumps) ** 2 / 1.5**2) @ sizes,
    }[name]


def curves(splits: int) -> Scores:
    """Ten points of curves of one column, beside a Gaussian process: error as a share of the variance, and R²."""
    scores: Scores = defaultdict(lambda: defaultdict(list))
    grid = np.linspace(0, 10, 200)[:, None]
    for name in ("damped oscillations", "sines", "saw teeth", "smooth"):
        for split in range(splits):
            random = np.random.default_rng(split)
            truth = some_curve(name, random)
            x = random.uniform(0, 10, (10, 1))
            y, target = truth(x[:, 0]), truth(grid[:, 0])
            for method in ("MetaVRFRegressor()", "GP, one length"):
                share = np.mean((regressors(1)[method].fit(x, y).predict(grid) - target) ** 2) / target.var()
                scores[name][method].append((share, max(-1.0, 1 - share)))
    return scores


def probabilities(model: Any, x: NDArray[Any]) -> NDArray[Any]:
    """Of any classifier."""
    if hasattr(model, "predict_proba"):
        found = model.predict_proba(x)
    else:
        values = model.decision_function(x)
        values = np.stack([-values, values], 1) / 2 if values.ndim == 1 else values
        found = np.exp(values - values.max(1, keepdims=True))
    found = np.clip(found, 1e-4, None)
    return np.asarray(found / found.sum(1, keepdims=True))


def classes(splits: int) -> Scores:
    """Nll and accuracy."""
    scores: Scores = defaultdict(lambda: defaultdict(list))
    names = ("iris", "wine", "breast_cancer", "digits")
    for name in names:
        x, y = getattr(datasets, f"load_{name}")(return_X_y=True)
        for shot in SHOTS:
            for split in range(splits):
                order = np.random.default_rng(split).permutation(len(y))
                train = np.concatenate([order[y[order] == label][:shot] for label in np.unique(y)])
                test = np.setdiff1d(order, train, assume_unique=True)[:MOST_TESTED]
                for method, model in classifiers().items():
                    found = probabilities(model.fit(x[train], y[train]), x[test])
                    accuracy = float(np.mean(found.argmax(1) == y[test]))
                    nll = log_loss(y[test], found, labels=np.unique(y))
                    scores[f"{name}, {shot} per class"][method].append((nll, accuracy))
    return scores


def pmlbmini(folder: Path, splits: int) -> Scores:
    """Nll and area under the curve of two classes."""
    scores: Scores = defaultdict(lambda: defaultdict(list))
    for table in sorted(folder.iterdir()) if folder.is_dir() else []:
        if not (table / "X.csv").is_file():
            continue
        x = np.genfromtxt(table / "X.csv", delimiter=",", skip_header=1)
        y = np.genfromtxt(table / "y.csv", delimiter=",", skip_header=1).astype(int)
        for split in range(max(1, splits // 3)):
            for train, test in StratifiedKFold(3, shuffle=True, random_state=split).split(x, y):
                for method, model in classifiers().items():
                    found = probabilities(model.fit(x[train], y[train]), x[test])
                    pair = log_loss(y[test], found, labels=np.unique(y)), roc_auc_score(y[test], found[:, 1])
                    scores[table.name][method].append(pair)
    return scores


def summary(scores: Scores) -> list[dict[str, Any]]:
    """Mean rank by the first figure, and the means of both, by method."""
    methods = list(next(iter(scores.values())))
    values = np.concatenate(
        [np.array([table[method] for method in methods]).swapaxes(0, 1) for table in scores.values()]
    )
    ranks = rankdata(values[..., 0], axis=1).mean(0)
    means = values.mean(0)
    return [
        {"method": method, "rank": float(rank), "first": float(mean[0]), "second": float(mean[1])}
        for method, rank, mean in zip(methods, ranks, means, strict=True)
    ]


def milliseconds() -> dict[str, float]:
    """The least CPU time of fit and predict, 50 rows of 10 columns: other work on the machine only adds to it."""
    random = np.random.default_rng(0)
    x, new = random.normal(size=(2, 50, 10))
    y = np.sin(x[:, 0]) + x[:, 1]
    names = ("MetaVRFRegressor()", "MetaVRFClassifier()", "GP, per column")
    found = {}
    for name in names:
        model = (regressors(10) | classifiers())[name]
        target = y > 0 if name.startswith("MetaVRFC") else y
        times = []
        for _ in range(15):
            start = time.process_time()
            model.fit(x, target).predict(new)
            times.append(time.process_time() - start)
        found[name] = 1000 * min(times)
    return found


def main() -> None:
    """Measure, print, save."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--splits", type=int, default=30)
    parser.add_argument("--save", type=Path)
    options = parser.parse_args()
    warnings.simplefilter("ignore")  # the others' optimisers speak of their bounds
    folder = Path(os.environ.get("METAVRF_DATA", "data")) / "pmlbmini"
    kept: dict[str, Any] = {"splits": options.splits}
    parts = {
        "regression": (lambda: regression(options.splits), "-R²", "R²"),
        "curves": (lambda: curves(options.splits), "error", "R²"),
        "classes": (lambda: classes(options.splits), "nll", "accuracy"),
        "pmlbmini": (lambda: pmlbmini(folder, options.splits), "nll", "AUC"),
    }
    for name, (measure, first, second) in parts.items():
        start = time.perf_counter()
        scores = measure()
        if not scores:
            continue
        found = summary(scores)
        print(f"{name}, {len(scores)} tables, {time.perf_counter() - start:.0f} s")
        lines = [[r["method"], *(f"{r[k]:.3f}" for k in ("rank", "first", "second"))] for r in found]
        print_table(["method", "mean rank", first, second], lines)
        tables = {table: {m: np.mean(v, 0).tolist() for m, v in of.items()} for table, of in scores.items()}
        kept[name] = {"figures": [first, second], "summary": found, "tables": tables}
    kept["milliseconds"] = milliseconds()
    print_table(["method", "ms"], [[name, f"{value:.1f}"] for name, value in kept["milliseconds"].items()])
    if options.save:
        write_json(options.save, kept | {"provenance": provenance(0)})


if __name__ == "__main__":
    main()
