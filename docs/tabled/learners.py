"""Tables of learners, data sets and models."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

from metavrf.config import Config
from metavrf.learners import LEARNERS, sentence
from metavrf.runs.directory import SHIPPED
from metavrf.tasks.datasets import DATASETS
from metavrf.testing.published import published
from tabled.figures import MODELS, SHOTS, TABLES, Rows, accuracy, band, card, error, number, result, table
from tabled.images import as_command


@table("learners")
def learners() -> Rows:
    """The registered learners."""
    short = {"regression": "functions", "classification": "classes"}
    return [
        ["name", "method", "tasks", "published", "file"],
        *(
            [
                f"`{name}`",
                sentence(LEARNERS[name]),
                " and ".join(short[kind] for kind in LEARNERS[name].solves),
                LEARNERS[name].citation,
                f"`{LEARNERS[name].__module__.removeprefix('metavrf.').replace('.', '/')}.py`",
            ]
            for name in LEARNERS
        ),
    ]


def _comparison(name: str, *, classes: bool) -> Rows:
    """A file of 'metavrf compare' as a table."""
    metric = "accuracy (%)" if classes else "mse"
    quality = "calibration error" if classes else "in the 90 % band"
    columns = ["", metric, "difference to the first", "p", "nll", quality, "CPU min", "ms per task", "parameters"]
    lines = []
    for place, row in enumerate(result(name)["rows"]):
        gap, seconds, ms = row["difference"], row.get("train_cpu_seconds"), row.get("adapt_ms")
        count = row.get("parameters")
        bounded = row["name"] != "Bayes-optimal"  # sine curves have no noise: the best likelihood has no bound
        line = [
            row["name"].split("/")[-1],
            accuracy(row) if classes else error(row),
            "" if not place else f"{number(gap['mean'])} ± {number(gap['ci95'], 2)}",
            "" if gap.get("p_value") is None else number(gap["p_value"], 1),
            f"{row['nll']:.3f}" if bounded else "",
            (f"{row['ece']:.4f}" if classes else band(row)) if bounded else "",
            "" if seconds is None else f"{seconds / 60:.1f}",
            "" if ms is None else f"{ms:.1f}",
            "" if count is None else f"{count:,}",
        ]
        lines.append([*line, row["published"]] if classes else line)
    return [[*columns, "paper"] if classes else columns, *lines]


@table("learners-omniglot")
def learners_omniglot() -> Rows:
    """Every learner, trained for a quarter of an hour."""
    return _comparison("omniglot-learners", classes=True)


FIRST, SECOND = ("",), ("-seed1", "-seed1-more")  # the files of the trainings with seed 0, and with seed 1


@table("learners-all")
def learners_all() -> Rows:
    """Every learner of classes, after some minutes of one core: two trainings at 1 shot, the second at 5 shots too."""
    one = [_by_learner(parts) for parts in (FIRST, SECOND)]
    five = _by_learner(f"{part}-5shot" for part in SECOND)
    head = ["", "1 shot, seed 0 (%)", "1 shot, seed 1 (%)", "5 shots, seed 1 (%)", "validation, 1 shot"]
    head += ["nll", "calibration error", "CPU min", "ms per task", "CPU ms per step", "parameters"]
    lines = []
    for name in one[0]:
        rows, runs = zip(*(seed[name] for seed in one), strict=True)
        line = [
            name,
            *(accuracy(seed[name][0]) for seed in (*one, five)),
            _both(f"{run['validation']['val_accuracy']:.1f}" for run in runs),
            _both(f"{row['nll']:.3f}" for row in rows),
            _both(f"{row['ece']:.3f}" for row in rows),
            _both(f"{run['train_cpu_seconds'] / 60:.1f}" for run in runs),
            f"{rows[0]['adapt_ms']:.0f}",
            _both(f"{1000 * run['train_cpu_seconds'] / run['steps']:.0f}" for run in runs),
            f"{rows[0]['parameters']:,}",
        ]
        lines.append([*line, *(published(Config.of("omniglot", name), 5, shot) for shot in (1, 5))])
    return [[*head, "paper, 1 shot", "paper, 5 shots"], *lines]


def _by_learner(parts: Iterable[str]) -> dict[str, tuple[Any, Any]]:
    """The row of each learner in some files of 'metavrf compare', with its training."""
    files = [result(f"omniglot-all-learners{part}") for part in parts]
    return {row["learner"]: (row, file["trainings"][row["name"]]) for file in files for row in file["rows"]}


def _both(cells: Iterable[str]) -> str:
    """What two trainings say, one after the other."""
    return " / ".join(cells)


@table("equal-time")
def equal_time() -> Rows:
    """Learners of classes on CIFAR-FS, each trained for the same CPU time from the same weights: the best one first."""
    study = result("study-equal-time")
    cells = {(cell["row"], cell["column"]): cell for cell in study["cells"] if cell["runs"]}
    steps = {row["training"]: row["iterations"] for row in study["rows"]}
    shown = [f"{shot}-shot {what}" for shot in (5, 1) for what in ("accuracy (%)", "nll", "calibration error")]
    digits = dict(zip(shown, (2, 3, 3) * 2, strict=True))
    first = sorted(steps, key=lambda row: -cells[row, shown[0]]["mean"])
    lines = []
    for row in first:
        found = [(cells[row, column], digits[column]) for column in shown]
        texts = [
            f"{cell['mean']:.{n}f} ± {cell['ci95']:.{n}f}" if n == 2 else f"{cell['mean']:.{n}f}" for cell, n in found
        ]
        lines.append([row, *texts, f"{steps[row]:,}"])
    return [["", *shown, "steps"], *lines]


@table("learners-sine-new")
def learners_sine_new() -> Rows:
    """Six more learners of functions, from ten points."""
    return _comparison("sine-new-learners", classes=False)


for _shot in SHOTS:
    TABLES[f"learners-sine-{_shot}"] = lambda shot=_shot: _comparison(f"sine-learners-{shot}", classes=False)  # type: ignore[misc]


@table("datasets")
def datasets() -> Rows:
    """The named data sets of pictures."""
    named = [DATASETS[name] for name in DATASETS]
    return [
        ["name", "contents", "pictures", "splits", "licence"],
        *(
            [
                f"`{one.name}`",
                one.size,
                " × ".join(map(str, one.preprocessing.shape[::-1])),
                ", ".join(f"`{split}`" for split in one.splits),
                "those of the three sets" if one.name == "mixed-images" else one.licence,
            ]
            for one in named
        ),
    ]


@table("models")
def models() -> Rows:
    """The models in the package: how they were made."""
    lines = []
    for name in MODELS:
        training = json.loads((SHIPPED / name / "result.json").read_text())
        size = (SHIPPED / name / "model.safetensors").stat().st_size
        weight = f"{size / 1e6:.1f} MB" if size >= 1e5 else f"{size / 1e3:.0f} kB"
        seconds = training.get("train_cpu_seconds")
        minutes = "" if seconds is None else f"{seconds / 60:.0f}"
        resumed = "--resume" in training["command"]
        command = f"`metavrf train {training['task']}`, resumed" if resumed else as_command(training["command"])
        lines.append([f"`{name}`", weight, f"{training['steps']:,}", minutes, command])
    return [["name", "size", "steps", "CPU minutes", "trained by"], *lines]


@table("models-classes")
def models_classes() -> Rows:
    """What the cards of classes say of the default protocol."""
    lines = []
    for name in MODELS:
        for test in card(name)["tests"]:
            if test["metric"] == "accuracy" and test["protocol"] == "inductive" and not test.get("views"):
                numbers = [str(test["way"]), str(test["shot"]), f"{test['tasks']:,}"]
                lines.append([f"`{name}`", *numbers, accuracy(test), f"{test['nll']:.4f}", f"{test['ece']:.4f}"])
    return [["model", "ways", "shots", "tasks", "accuracy (%)", "nll", "calibration error"], *lines]


@table("models-functions")
def models_functions() -> Rows:
    """What the cards of functions say."""
    lines = [
        [f"`{name}`", str(test["shot"]), f"{test['tasks']:,}", error(test), f"{test['nll']:.3f}", band(test)]
        for name in MODELS
        for test in card(name)["tests"]
        if test["metric"] == "mse"
    ]
    return [["model", "points", "tasks", "mean squared error", "nll", "in the 90 % band"], *lines]
