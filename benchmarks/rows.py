"""The estimators without a model on small tables, beside what else one would take for twenty rows.

    make bench-rows                                   # an environment of its own, with the rivals and the tables
    python benchmarks/rows.py [--splits 30] [--cache bench/rows.jsonl] [--save results/rows.json]

Regression on eleven real tables and friedman1-3 with 10, 20, 40 and 80 rows: R² (at least -1, so that one failure does
not decide a mean), nll (at most 10) and CRPS, of targets in standard deviations of the table's. Who predicts a number
only gets a Gaussian about it, as wide as its errors in five folds of its rows (of the forest: out of bag). Classes on
eleven real tables with 3, 5, 10 and 20 rows per class: nll and accuracy. The twelve tables of PMLBmini, if METAVRF_DATA
has them, in three folds: nll and area under the curve; beside them TabPFN v1, if benchmarks/rows_tabpfn.py has put its
answers into the cache. Curves of one column with ten points: error as a share of the variance. All methods see the
same splits; the mean rank is over all tables, sizes and splits. Last, the milliseconds of fit and predict.

Each split of a table is a line of the cache: a run that was stopped goes on, and more splits are added to those that
are there. `--again` measures some methods anew. All tables get a split before any gets the next one.
"""

from __future__ import annotations

import argparse
import json
import time
import warnings
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.stats import norm, rankdata
from sklearn.compose import TransformedTargetRegressor
from sklearn.ensemble import RandomForestClassifier, RandomForestRegressor
from sklearn.gaussian_process import GaussianProcessClassifier, GaussianProcessRegressor
from sklearn.gaussian_process.kernels import RBF, ConstantKernel, WhiteKernel
from sklearn.linear_model import LogisticRegressionCV, RidgeCV
from sklearn.metrics import log_loss, roc_auc_score
from sklearn.model_selection import KFold, cross_val_predict
from sklearn.neighbors import KNeighborsClassifier, KNeighborsRegressor
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.svm import SVC, SVR

from metavrf import MetaVRFClassifier, MetaVRFRegressor
from metavrf.files import write_json
from metavrf.reports import print_table
from metavrf.runs.provenance import provenance
from rows_tables import Table, class_tables, folds, pmlbmini, regression_tables

ROWS, SHOTS, MOST_TESTED = (10, 20, 40, 80), (3, 5, 10, 20), 300
WORST_R2, WORST_NLL = -1.0, 10.0
ROUNDS, RESTARTS = 25, 5  # of timing; of a Gaussian process' optimiser, whose default is none
MEAN = "the mean"  # of the rows; not ranked
FIGURES = {
    "regression": ("R²", "nll", "crps"),
    "curves": ("error",),
    "classes": ("nll", "accuracy"),
    "pmlbmini": ("nll", "AUC", "seconds"),
}
LARGER_IS_BETTER = ("R²", "accuracy", "AUC")

Key = tuple[str, str, int, int]  # part, table, rows, split
Scores = dict[str, list[float]]  # by method
Floats = NDArray[np.float64]


class Cell(NamedTuple):
    """One split of one table: who is measured, and how."""

    key: Key
    methods: list[str]
    measure: Callable[[str], list[float]]


# Regression


def process(length: Any) -> Any:
    """scikit-learn's, by maximum likelihood."""
    kernel = ConstantKernel() * RBF(length) + WhiteKernel(0.1)
    return make_pipeline(StandardScaler(), GaussianProcessRegressor(kernel, normalize_y=True))


def regressors(columns: int) -> dict[str, Any]:
    """By name; BoTorch stands apart."""
    return {
        "MetaVRFRegressor()": MetaVRFRegressor(),
        "RidgeCV": make_pipeline(StandardScaler(), RidgeCV(np.logspace(-3, 3, 13))),
        "SVR": TransformedTargetRegressor(make_pipeline(StandardScaler(), SVR()), transformer=StandardScaler()),
        "k-NN": make_pipeline(StandardScaler(), KNeighborsRegressor(3)),
        "random forest": RandomForestRegressor(100, random_state=0, oob_score=True),
        "GP, one length": process(columns**0.5),
        "GP, per column": process(np.full(columns, columns**0.5)),
    }


BOTORCH = "BoTorch SingleTaskGP"


def botorch(x: Floats, y: Floats, new: Floats) -> tuple[Floats, Floats]:
    """SingleTaskGP with its own priors, which scale with the number of columns; mean and deviation of ``new``."""
    from botorch.exceptions.errors import ModelFittingError  # type: ignore[import-not-found,unused-ignore]
    from botorch.fit import fit_gpytorch_mll  # type: ignore[import-not-found,unused-ignore]
    from botorch.models import SingleTaskGP  # type: ignore[import-not-found,unused-ignore]
    from botorch.models.transforms import Normalize, Standardize  # type: ignore[import-not-found,unused-ignore]
    from gpytorch.mlls import ExactMarginalLogLikelihood  # type: ignore[import-not-found,unused-ignore]

    varied = x.std(0) > 0  # it cannot scale a column of one value
    inputs, targets, queries = (torch.tensor(part) for part in (x[:, varied], y[:, None], new[:, varied]))
    transforms = {"outcome_transform": Standardize(1), "input_transform": Normalize(inputs.shape[1])}
    model = SingleTaskGP(inputs, targets, **transforms)
    try:
        fit_gpytorch_mll(ExactMarginalLogLikelihood(model.likelihood, model))
    except ModelFittingError:  # then it answers with the middle of its priors
        model = SingleTaskGP(inputs, targets, **transforms)
    with torch.no_grad():
        found = model.eval().posterior(queries, observation_noise=True)
    mean, variance = (part[:, 0].detach().numpy() for part in (found.mean, found.variance))
    return mean, np.sqrt(variance)


def regression_figures(method: str, table: Table, rows: int, split: int) -> list[float]:
    """R², nll and CRPS of one method."""
    x, y = table
    order = np.random.default_rng(split).permutation(len(y))
    train, test = order[:rows], order[rows : rows + MOST_TESTED]
    unit = y.std()
    if method == "MetaVRFRegressor()":
        model = MetaVRFRegressor().fit(x[train], y[train])
        found = model._mixture().prediction(torch.tensor(x[test]))
        nll = -float(found.log_density(torch.tensor(y[test]).reshape(1, -1, 1)).mean())
        mean, crps = model.predict(x[test]), model.score_crps(x[test], y[test])
    else:
        mean, std = gaussian(method, x[train], y[train], x[test])
        std = np.maximum(std, 1e-3 * unit)  # a fit without errors would claim to know all
        z = (y[test] - mean) / std
        nll = -float((norm.logpdf(z) - np.log(std)).mean())
        crps = float((std * (z * (2 * norm.cdf(z) - 1) + 2 * norm.pdf(z) - np.pi**-0.5)).mean())
    r2 = 1 - np.square(mean - y[test]).mean() / y[test].var()
    return [max(WORST_R2, float(r2)), min(WORST_NLL, nll - float(np.log(unit))), crps / float(unit)]


def gaussian(method: str, x: Floats, y: Floats, new: Floats) -> tuple[Floats, Floats]:
    """Mean and deviation of one of the others."""
    if method == MEAN:
        return np.full(len(new), y.mean()), np.full(len(new), y.std(ddof=1))
    if method == BOTORCH:
        return botorch(x, y, new)
    model = regressors(x.shape[1])[method].fit(x, y)
    if method.startswith("GP"):
        mean, std = model.predict(new, return_std=True)
        return mean, std
    if method == "random forest":
        left_out = model.oob_prediction_
    else:
        left_out = cross_val_predict(model, x, y, cv=KFold(5, shuffle=True, random_state=0))
    return model.predict(new), np.full(len(new), np.sqrt(np.square(left_out - y).mean()))


def regression_cells(split: int) -> Iterator[Cell]:
    methods = [*regressors(1), MEAN]
    if find_spec("botorch") is not None:
        methods.insert(-1, BOTORCH)
    for name, table in regression_tables().items():
        for rows in (size for size in ROWS if size <= len(table[1]) // 2):
            measure = partial(regression_figures, table=table, rows=rows, split=split)
            yield Cell(("regression", name, rows, split), methods, measure)


# Curves of one column


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


def curve_figures(method: str, name: str, split: int) -> list[float]:
    """Error as a share of the variance."""
    random = np.random.default_rng(split)
    truth, grid = some_curve(name, random), np.linspace(0, 10, 200)[:, None]
    x = random.uniform(0, 10, (10, 1))
    target = truth(grid[:, 0])
    mean = regressors(1)[method].fit(x, truth(x[:, 0])).predict(grid)
    return [float(np.mean((mean - target) ** 2) / target.var())]


def curve_cells(split: int) -> Iterator[Cell]:
    for name in ("damped oscillations", "sines", "saw teeth", "smooth"):
        measure = partial(curve_figures, name=name, split=split)
        yield Cell(("curves", name, 10, split), ["MetaVRFRegressor()", "GP, one length"], measure)


# Classes


def classifiers() -> dict[str, Any]:
    """By name. SVC's probabilities are softmaxed decision values: its own calibration needs more samples."""
    return {
        "MetaVRFClassifier()": MetaVRFClassifier(),
        "logistic regression, CV": make_pipeline(StandardScaler(), LogisticRegressionCV(Cs=8, cv=3, max_iter=300)),
        "SVC": make_pipeline(StandardScaler(), SVC(decision_function_shape="ovr")),
        "GP": make_pipeline(StandardScaler(), GaussianProcessClassifier(ConstantKernel() * RBF(3.0), random_state=0)),
        "k-NN": make_pipeline(StandardScaler(), KNeighborsClassifier(3)),
        "random forest": RandomForestClassifier(100, random_state=0),
    }


def probabilities(model: Any, x: Floats) -> Floats:
    """Of any classifier."""
    if hasattr(model, "predict_proba"):
        found = model.predict_proba(x)
    else:
        values = model.decision_function(x)
        values = np.stack([-values, values], 1) / 2 if values.ndim == 1 else values
        found = np.exp(values - values.max(1, keepdims=True))
    return clipped(found)


def clipped(found: Floats) -> Floats:
    """No probability below 1e-4: one sure mistake would decide a mean."""
    found = np.clip(found, 1e-4, None)
    return np.asarray(found / found.sum(1, keepdims=True))


def class_figures(method: str, table: Table, shot: int, split: int) -> list[float]:
    """Nll and accuracy."""
    x, y = table
    order = np.random.default_rng(split).permutation(len(y))
    train = np.concatenate([order[y[order] == label][:shot] for label in np.unique(y)])
    test = order[~np.isin(order, train)][:MOST_TESTED]
    found = probabilities(classifiers()[method].fit(x[train], y[train]), x[test])
    nll = log_loss(y[test], found, labels=np.unique(y))
    return [float(nll), float(np.mean(found.argmax(1) == y[test]))]


def class_cells(split: int) -> Iterator[Cell]:
    for name, table in class_tables().items():
        for shot in SHOTS:
            measure = partial(class_figures, table=table, shot=shot, split=split)
            yield Cell(("classes", name, shot, split), list(classifiers()), measure)


def mini_figures(method: str, table: Table, split: int) -> list[float]:
    """Nll and area under the curve, and CPU seconds of a fold."""
    x, y = table
    scores, start = [], time.process_time()
    for train, test in folds(table, split):
        found = probabilities(classifiers()[method].fit(x[train], y[train]), x[test])
        scores.append((log_loss(y[test], found, labels=np.unique(y)), roc_auc_score(y[test], found[:, 1])))
    return [*np.mean(scores, 0).tolist(), (time.process_time() - start) / 3]


def mini_cells(split: int) -> Iterator[Cell]:
    for name, table in pmlbmini():
        measure = partial(mini_figures, table=table, split=split)
        yield Cell(("pmlbmini", name, len(table[1]), split), list(classifiers()), measure)


PARTS: dict[str, Callable[[int], Iterable[Cell]]] = {
    "regression": regression_cells,
    "curves": curve_cells,
    "classes": class_cells,
    "pmlbmini": mini_cells,
}


# What was measured


def read(cache: Path) -> dict[Key, Scores]:
    """The lines of a cache, later ones over earlier ones; a last line that was cut off is left out."""
    found: dict[Key, Scores] = defaultdict(dict)
    for line in cache.read_text().splitlines() if cache.is_file() else []:
        try:
            values = json.loads(line)
        except json.JSONDecodeError:
            continue
        part, table, rows, split = values["key"]
        found[part, table, rows, split] |= values["scores"]
    return found


def measure(cell: Cell, known: Scores, again: list[str], only: list[str], cache: Path) -> None:
    """Add a line for those methods that are missing, or asked for again; of ``only`` some, if any."""
    wanted = [method for method in cell.methods if method not in known or method in again]
    wanted = [method for method in wanted if not only or method in only]
    if not wanted:
        return
    scores = {method: [round(figure, 6) for figure in cell.measure(method)] for method in wanted}
    known |= scores
    with cache.open("a") as file:
        file.write(json.dumps({"key": cell.key, "scores": scores}, ensure_ascii=False) + "\n")


def summary(part: str, found: dict[Key, Scores]) -> dict[str, Any]:
    """Mean rank and mean of each figure by method; the same means by table; over the splits that all methods have."""
    cells = {key: scores for key, scores in found.items() if key[0] == part}
    methods = list(dict.fromkeys(method for scores in cells.values() for method in scores))
    cells = {key: scores for key, scores in cells.items() if set(scores) == set(methods)}
    if not cells:
        return {}
    values = np.array([[scores[method] for method in methods] for scores in cells.values()])  # [N, M, F]
    ranked = [index for index, method in enumerate(methods) if method != MEAN]
    lines = [
        {"method": method} | dict(zip(FIGURES[part], values[:, index].mean(0).tolist(), strict=True))
        for index, method in enumerate(methods)
    ]
    for number, figure in enumerate(FIGURES[part]):
        sign = -1 if figure in LARGER_IS_BETTER else 1
        ranks = rankdata(sign * values[:, ranked, number], axis=1).mean(0)
        for index, rank in zip(ranked, ranks, strict=True):
            lines[index][f"rank by {figure}"] = float(rank)
    by_table: dict[str, Any] = defaultdict(lambda: defaultdict(list))
    for (_, table, rows, _), scores in cells.items():
        for method in methods:
            by_table[f"{table}, {rows}"][method].append(scores[method])
    tables = {name: {m: np.mean(v, 0).round(5).tolist() for m, v in of.items()} for name, of in by_table.items()}
    splits = sorted({key[3] for key in cells})
    return {"figures": FIGURES[part], "splits": len(splits), "summary": lines, "tables": tables}


def below_the_mean(part: dict[str, Any]) -> list[str]:
    """The tables and sizes on which ours has a smaller R², on average, than the mean of the rows."""
    tables = part["tables"].items()
    return [name for name, of in tables if of["MetaVRFRegressor()"][0] < of[MEAN][0]]


def milliseconds() -> dict[str, float]:
    """The least CPU time of fit and predict, 50 rows of 10 columns, by turns: other work on the machine only adds."""
    random = np.random.default_rng(0)
    x, new = random.normal(size=(2, 50, 10))
    y = np.sin(x[:, 0]) + x[:, 1]
    restarting = process(np.full(10, 10**0.5))
    restarting[-1].set_params(n_restarts_optimizer=RESTARTS)
    models = {
        "MetaVRFRegressor()": (MetaVRFRegressor(), y),
        "MetaVRFClassifier()": (MetaVRFClassifier(), y > 0),
        "GP, per column": (process(np.full(10, 10**0.5)), y),
        f"GP, per column, {RESTARTS} restarts": (restarting, y),
    }
    times: dict[str, list[float]] = {name: [] for name in models}
    for _ in range(ROUNDS):
        for name, (model, target) in models.items():
            start = time.process_time()
            model.fit(x, target).predict(new)
            times[name].append(time.process_time() - start)
    return {name: 1000 * min(found) for name, found in times.items()}


def main() -> None:
    """Measure what is missing, print, save."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--splits", type=int, default=30)
    parser.add_argument("--cache", type=Path, default=Path("bench/rows.jsonl"))
    parser.add_argument("--again", nargs="+", default=[], metavar="METHOD", help="measure these methods anew")
    parser.add_argument("--only", nargs="+", default=[], metavar="METHOD", help="measure no others")
    parser.add_argument("--parts", nargs="+", choices=list(PARTS), default=list(PARTS))
    parser.add_argument("--save", type=Path)
    options = parser.parse_args()
    warnings.simplefilter("ignore")  # the others' optimisers speak of their bounds
    if find_spec("botorch") is None:
        print("BoTorch is not installed: its SingleTaskGP is skipped")
    options.cache.parent.mkdir(parents=True, exist_ok=True)
    found = read(options.cache)
    for split in range(options.splits):
        for part in options.parts:
            start = time.process_time()
            for cell in PARTS[part](split):
                measure(cell, found[cell.key], options.again, options.only, options.cache)
            print(f"split {split + 1}, {part}: {time.process_time() - start:.0f} s of CPU", flush=True)
    kept: dict[str, Any] = {part: of for part in PARTS if (of := summary(part, found))}
    for part, of in kept.items():
        header = [key for key in of["summary"][0] if key != "method"]
        lines = [[line["method"], *(f"{line.get(key, np.nan):.3f}" for key in header)] for line in of["summary"]]
        print_table(["method", *header], lines, f"{part}, {len(of['tables'])} tables and sizes, {of['splits']} splits")
    if "regression" in kept:
        kept["regression"]["below the mean"] = below_the_mean(kept["regression"])
    kept["milliseconds"] = milliseconds()
    print_table(["method", "ms"], [[name, f"{value:.1f}"] for name, value in kept["milliseconds"].items()])
    if options.save:
        write_json(options.save, kept | {"provenance": provenance(0)})


if __name__ == "__main__":
    main()
