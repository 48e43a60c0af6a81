"""The main table of the README."""

from __future__ import annotations

from collections.abc import Sequence

from tabled.figures import SHOTS, Result, Rows, accuracy, number, over_seeds, paper, result, table
from tabled.functions import limits
from tabled.images import tested


@table("summary")
def summary() -> Rows:
    """What README shows."""
    tests = [test for test in result("omniglot")["tests"] if "own_share" not in test]
    pretrained, _, plain = zip(*(result("photos")[f"{shot} shot"]["rows"] for shot in (1, 5)), strict=True)

    def sine_errors(values: Sequence[float]) -> str:
        return " / ".join(map(number, values))

    def classes(name: str, task: str, way: int, figures: Sequence[Result]) -> list[str]:
        known = " / ".join(paper(task, way, shot) for shot in (1, 5))
        return [name, _joined(way), " / ".join(map(accuracy, figures)), f"the paper, transductive: {known}"]

    def from_scratch(name: str, task: str, file: str) -> list[str]:
        tests = [result(f"{file}-{shot}shot") for shot in (1, 5)]
        (training,) = tests[0]["trainings"].values()
        seconds = training["train_seconds"] + sum(_before(training).values())
        return classes(f"{name}, {seconds / 60:.0f} minutes", task, 5, tests)

    return [
        ["test tasks, inductive", "measure", "metavrf", "for comparison"],
        [
            "sine curves, one model",
            f"mean squared error, {' / '.join(map(str, SHOTS))} points",
            sine_errors([over_seeds("study-many-kernels", shot) for shot in SHOTS]),
            f"best predictor affine in y: {sine_errors(limits('best affine predictor'))}; "
            f"Bayes-optimal: {sine_errors(limits('Bayes-optimal'))}",
        ],
        *(
            classes("Omniglot", "omniglot", way, [tested(tests, way, shot, "inductive") for shot in (1, 5)])
            for way in (5, 20)
        ),
        from_scratch("CIFAR-FS from scratch", "cifar-fs", "cifar-fs-joint"),
        from_scratch("miniImageNet from scratch, 56 × 56 pixels", "mini-imagenet", "mini-imagenet-joint"),
        [
            "CIFAR-FS on ImageNet features",
            _joined(5),
            " / ".join(map(accuracy, pretrained)),
            f"logistic regression: {' / '.join(map(accuracy, plain))}",
        ],
    ]


def _before(training: Result) -> dict[str, float]:
    """Seconds of all the trainings that one started from, each once, by the sum of its weights."""
    start = training.get("started_from", {})
    found = {}
    for run in start.get("mean_of", [start] if start else []):
        found |= {run["sha256"]: run["train_seconds"], **_before(run)}
    return found


def _joined(way: int) -> str:
    return f"accuracy (%), {way}-way 1 / 5-shot"
