"""TabPFN v1 on the tables of PMLBmini, its answers added to the cache of benchmarks/rows.py.

Its checkpoint is a pickle, which runs what is in it when it is opened: so it stays in an environment of its own,
without metavrf, and is never a dependency. Only the source package of tabpfn 0.1 carries the checkpoint (its metadata
cannot be built, so pip leaves the files when asked to); the code is that of 0.1.11, which wants scikit-learn 1.5:

    python3.11 -m venv .venv-tabpfn
    .venv-tabpfn/bin/pip install --constraint constraints.txt torch numpy pyarrow scipy
    .venv-tabpfn/bin/pip install --no-deps tabpfn==0.1.11 scikit-learn==1.5.2 joblib threadpoolctl
    TMPDIR=$PWD/unpacked .venv-tabpfn/bin/pip download --no-clean --no-deps --no-binary :all: tabpfn==0.1
    find unpacked -name '*epoch_42.cpkt'       # copy it to site-packages/tabpfn/models_diff/
    .venv-tabpfn/bin/python benchmarks/rows_tabpfn.py [--splits 30] [--cache bench/rows.jsonl]

Torch moved some names and the default of ``torch.load`` since: both are put back here.
"""

from __future__ import annotations

import argparse
import functools
import json
import time
import typing
import warnings
from pathlib import Path

import numpy as np
import torch
import torch.nn.modules.transformer as moved
from sklearn.metrics import log_loss, roc_auc_score

from rows_tables import folds, pmlbmini

NAME = "TabPFN v1"


def classifier() -> typing.Any:
    """With its usual ensemble of 32."""
    for name in ("Any", "Callable", "Optional", "Union"):
        if not hasattr(moved, name):
            setattr(moved, name, getattr(typing, name))
    torch.load = functools.partial(torch.load, weights_only=False)
    from tabpfn import TabPFNClassifier  # type: ignore[import-not-found,unused-ignore]

    return TabPFNClassifier(device="cpu", N_ensemble_configurations=32)


def main() -> None:
    """Measure what is missing."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--splits", type=int, default=30)
    parser.add_argument("--cache", type=Path, default=Path("bench/rows.jsonl"))
    options = parser.parse_args()
    warnings.simplefilter("ignore")  # of a checkpoint in torch
    lines = options.cache.read_text().splitlines() if options.cache.is_file() else []
    known = [json.loads(line)["key"] for line in lines if f'"{NAME}"' in line]
    model = classifier()
    for split in range(options.splits):
        for name, (x, y) in pmlbmini():
            key = ["pmlbmini", name, len(y), split]
            if key in known:
                continue
            scores, start = [], time.process_time()
            for train, test in folds((x, y), split):
                found = np.clip(model.fit(x[train], y[train]).predict_proba(x[test]), 1e-4, None)
                found = found / found.sum(1, keepdims=True)
                scores.append((log_loss(y[test], found), roc_auc_score(y[test], found[:, 1])))
            figures = [*np.mean(scores, 0), (time.process_time() - start) / 3]
            line = {"key": key, "scores": {NAME: [round(float(figure), 6) for figure in figures]}}
            with options.cache.open("a") as file:
                file.write(json.dumps(line) + "\n")


if __name__ == "__main__":
    main()
