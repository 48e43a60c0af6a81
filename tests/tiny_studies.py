"""A study that takes seconds: sine curves, small drawings that start from a classifier, and what is known."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from metavrf.studies import catalog
from metavrf.studies.study import Cell, Known, Options, Study, Training
from pictures_on_disk import TINY

CURVES: dict[str, Any] = {"learner": "rff", "bases": 32, "train_shot": 0, "most_shot": 0, "shot": 3, "batch": 4}
CURVES |= {"iterations": 40, "validate_every": 10, "validate_tasks": 10, "warmup": 5}
DRAWINGS = {name: value for name, value in TINY.items() if name != "quiet"} | {"iterations": 20, "validate_every": 10}
OF_METAVRF = ("context", "bases", "train_bases")
PLAIN = {name: value for name, value in DRAWINGS.items() if name not in OF_METAVRF}
AT_THREE: Options = {"shot": 3, "tasks": 20}


def curves(title: str = "Curves") -> Study:
    """Two learners of curves, and the best one; the paper has a row that is not here."""
    rows = {"RFF": CURVES, "RBF": {**CURVES, "learner": "rbf"}}
    rows["RBF"].pop("bases")
    cells = [Cell(row, "3 points", Training("sine", options), AT_THREE) for row, options in rows.items()]
    cells += [Cell("RFF", "above the best (nats)", cells[0].source, AT_THREE, "nll", Known("sine", "Bayes-optimal"))]
    cells += [Cell("Bayes-optimal", "3 points", Known("sine", "Bayes-optimal"), AT_THREE)]
    paper = {"RFF": {"3 points": "0.5"}, "SNAIL": {"3 points": "0.7†"}}
    return Study(title, cells, "fits", paper=paper, note="A note.", quick=("RFF", "Bayes-optimal"))


def drawings(folder: Path) -> Study:
    """A classifier of drawings, and learners that start from it."""
    classifier = Training(str(folder), {"learner": "classifier", **PLAIN})
    rows = {"classifier": classifier}
    for learner in ("prototypical", "matching"):
        rows[learner] = Training(str(folder), {"learner": learner, **PLAIN}, start_from=classifier)
    cells = [
        Cell(row, str(shot), source, {"way": 3, "shot": shot, "query": 3, "tasks": 20, "adaptivity": False})
        for row, source in rows.items()
        for shot in (1, 3)
    ]
    return Study("Drawings", cells, "lines", "shots", paper={"prototypical": {"3": "60†"}})


def install(folder: str = "") -> None:
    """Put the tiny studies in the place of all others; for processes of their own."""
    found = {"curves": curves()} | ({"drawings": drawings(Path(folder))} if folder else {})
    catalog.catalog = lambda: found
