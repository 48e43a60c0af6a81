"""Tables of pictures."""

from __future__ import annotations

import re
from collections.abc import Sequence

from tabled.figures import Result, Rows, accuracy, card, paper, result, select, table

FIVE_WAYS = [(5, 1), (5, 5)]
ALL_WAYS = [*FIVE_WAYS, (20, 1), (20, 5)]


def header(settings: Sequence[tuple[int, int]]) -> list[str]:
    """Columns of tables of accuracies."""
    return ["accuracy (%)", *(f"{way}-way {shot}-shot" for way, shot in settings)]


@table("omniglot")
def omniglot() -> Rows:
    """The shipped model under each protocol."""
    tests = [test for test in result("omniglot")["tests"] if "own_share" not in test]
    views = {"one view": None, "five views (`--views shift`)": "shift"}
    lines = [
        [f"inductive, {name}", *(accuracy(tested(tests, *at, "inductive", view)) for at in ALL_WAYS)]
        for name, view in views.items()
    ]
    lines.append(["transductive", *(accuracy(tested(tests, *at, "transductive")) for at in FIVE_WAYS), "", ""])
    within = accuracy(result("omniglot-within-alphabet"))
    lines.append(["inductive, all classes of a task from one alphabet (`--within-alphabet`)", within, "", "", ""])
    lines.append(["the paper, biLSTM, transductive", *(paper("omniglot", *at) for at in ALL_WAYS)])
    calibration = [f"{tested(tests, *at, 'inductive')['ece']:.4f}" for at in ALL_WAYS]
    return [header(ALL_WAYS), *lines, ["calibration error, inductive, one view", *calibration]]


def tested(tests: Sequence[Result], way: int, shot: int, protocol: str, views: str | None = None) -> Result:
    """The test at these settings."""
    return select(tests, way=way, shot=shot, protocol=protocol, views=views)


@table("omniglot-time")
def omniglot_time() -> Rows:
    """Accuracy against training time."""
    hour, minutes = card("omniglot"), result("omniglot-10min")
    (short,) = minutes["trainings"].values()
    best = select(hour["tests"], way=5, shot=1, protocol="inductive", views=None)
    return [
        ["trained by", "seconds", "5-way 1-shot (%)"],
        [as_command(short["command"]), f"{short['train_seconds']:.0f}", accuracy(minutes)],
        [as_command(hour["training"]["command"]), f"{hour['training']['train_seconds']:.0f}", accuracy(best)],
    ]


def as_command(text: str) -> str:
    """A recorded command without where it wrote."""
    return f"`{re.sub(r' --(out|save) .*| --quiet', '', text)}`"


@table("many-ways")
def many_ways() -> Rows:
    """The shipped model at many more ways than the paper's tables have."""
    tests = [test for test in card("omniglot")["tests"] if test["protocol"] == "inductive" and not test.get("views")]
    tests += [result(f"omniglot-100way-{shot}shot") for shot in (1, 5)]
    shots = {way: [test for test in tests if test["way"] == way] for way in (5, 20, 100)}
    lines = [[str(way), *(accuracy(select(found, shot=shot)) for shot in (1, 5))] for way, found in shots.items()]
    return [["ways", "1 shot, accuracy (%)", "5 shots, accuracy (%)"], *lines]


@table("cifar-fs")
def cifar_fs() -> Rows:
    """From scratch, with one view and with ten."""
    one, ten = ([result(f"cifar-fs-{shot}shot{views}") for shot in (1, 5)] for views in ("", "-views"))
    joint, before = ([result(f"cifar-fs-joint{time}-{shot}shot") for shot in (1, 5)] for time in ("", "-57min"))
    return [
        header(FIVE_WAYS),
        ["tasks and a classifier of the training classes, the mean of two trainings, one view", *map(accuracy, joint)],
        ["the first of these trainings alone, one view", *map(accuracy, before)],
        ["tasks alone, one view", *map(accuracy, one)],
        ["tasks alone, ten views (`--views flip-shift`)", *map(accuracy, ten)],
        ["the paper, biLSTM, transductive", *(paper("cifar-fs", *at) for at in FIVE_WAYS)],
        ["calibration error, with the classifier", *(f"{test['ece']:.3f}" for test in joint)],
        ["calibration error, tasks alone, one view", *(f"{test['ece']:.3f}" for test in one)],
        ["calibration error, tasks alone, ten views", *(f"{test['ece']:.3f}" for test in ten)],
    ]


@table("photos")
def photos() -> Rows:
    """The shipped model beside plain classifiers on the same features."""
    shots = [result("photos")[f"{shot} shot"]["rows"] for shot in (1, 5)]
    lines = []
    for one, five in zip(*shots, strict=True):
        name = "`photos`" if one["name"] == "photos" else one["name"].partition(",")[0]
        gaps = ["" if one is shots[0][0] else _signed(test["difference"]) for test in (one, five)]
        lines.append([name, accuracy(one), gaps[0], *_quality(one), accuracy(five), gaps[1], *_quality(five)])
    unmapped = [result(f"cifar-fs-lite0-{shot}shot") for shot in (1, 5)]
    lines.append(
        ["MetaVRF without the learned map", *(c for test in unmapped for c in (accuracy(test), "", *_quality(test)))]
    )
    columns = ["difference", "nll", "calibration error"]
    return [["", "5-way 1-shot (%)", *columns, "5-way 5-shot (%)", *columns], *lines]


def _quality(test: Result) -> tuple[str, str]:
    return f"{test['nll']:.3f}", f"{test['ece']:.3f}"


def _signed(difference: Result) -> str:
    return f"{difference['mean']:+.2f} ± {difference['ci95']:.2f}"


@table("mini-imagenet")
def mini_imagenet() -> Rows:
    """From scratch, two ways."""
    joint, alone = ([result(f"mini-imagenet{way}-{shot}shot") for shot in (1, 5)] for way in ("-joint", ""))
    return [
        header(FIVE_WAYS),
        ["tasks and a classifier of the training classes, 56 × 56 pixels", *map(accuracy, joint)],
        ["tasks alone, 84 × 84 pixels, half of the training pictures", *map(accuracy, alone)],
        ["the paper, biLSTM, transductive", *(paper("mini-imagenet", *at) for at in FIVE_WAYS)],
        ["calibration error, with the classifier", *(f"{test['ece']:.3f}" for test in joint)],
    ]
