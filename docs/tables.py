"""Fill in the tables of README.md and docs/*.md: python docs/tables.py, or with --check to see if any is out of date.

A table stands between two comments of a page, ``<!-- table: NAME -->`` and ``<!-- end -->``. Its figures come from
``results/*.json`` and the cards of the models in the package; lists of names come from the registries.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Any

from metavrf.config import Config
from metavrf.learners import LEARNERS, sentence
from metavrf.runs.directory import SHIPPED
from metavrf.tasks.datasets import DATASETS
from metavrf.testing.published import PUBLISHED, published

ROOT = Path(__file__).parent.parent
BLOCK = re.compile(r"(<!-- table: (?P<name>[\w-]+) -->\n).*?(<!-- end -->)", flags=re.DOTALL)
MODELS = ("omniglot", "photos", "cifar-fs", "mini-imagenet", "sine", "sine-rff")
SHOTS = (3, 5, 10)

Rows = list[list[str]]
Result = Mapping[str, Any]
TABLES: dict[str, Callable[[], Rows]] = {}


def table(name: str) -> Callable[[Callable[[], Rows]], Callable[[], Rows]]:
    """Make a function that returns the header and lines of a table known by ``name``."""

    def add(make: Callable[[], Rows]) -> Callable[[], Rows]:
        TABLES[name] = make
        return make

    return add


def result(name: str) -> Any:
    """A file of results."""
    return json.loads((ROOT / "results" / f"{name}.json").read_text())


def card(name: str) -> Any:
    """The card of a model in the package."""
    return json.loads((SHIPPED / name / "card.json").read_text())


def number(value: float, digits: int = 3) -> str:
    """A figure to a few digits: 0.0105, 4.56e-7."""
    return tidy(f"{value:.{digits}g}")


def tidy(text: str) -> str:
    """1e-05 as 1e-5."""
    return re.sub(r"e-0+", "e-", text)


def accuracy(test: Result) -> str:
    """Percent with its 95 % interval."""
    return f"{test['mean']:.2f} ± {test['ci95']:.2f}"


def error(test: Result) -> str:
    """Mean squared error with its 95 % interval."""
    return f"{number(test['mean'], 4)} ± {number(test['ci95'], 2)}"


def band(test: Result) -> str:
    """Share of targets in the 90 % band."""
    return f"{100 * test['coverage90']:.1f} %"


def paper(task: str, way: int, shot: int, learner: str = "metavrf bilstm") -> str:
    """What the MetaVRF paper says, or nothing."""
    return str(PUBLISHED.get((task, way, shot), {}).get(learner, ""))


def select(tests: Sequence[Result], **wanted: Any) -> Result:
    """The one test with these labels."""
    (found,) = (test for test in tests if all(test.get(name) == value for name, value in wanted.items()))
    return found


def over_seeds(name: str, shot: int) -> float:
    """Mean squared error of a study at a number of shots, mean over its seeds."""
    means = [row["mean"] for row in result(name)["rows"] if row["shot"] == shot]
    return float(sum(means) / len(means))


# Images

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
        [f"inductive, {name}", *(accuracy(_tested(tests, *at, "inductive", view)) for at in ALL_WAYS)]
        for name, view in views.items()
    ]
    lines.append(["transductive", *(accuracy(_tested(tests, *at, "transductive")) for at in FIVE_WAYS), "", ""])
    within = accuracy(result("omniglot-within-alphabet"))
    lines.append(["inductive, all classes of a task from one alphabet (`--within-alphabet`)", within, "", "", ""])
    lines.append(["the paper, biLSTM, transductive", *(paper("omniglot", *at) for at in ALL_WAYS)])
    calibration = [f"{_tested(tests, *at, 'inductive')['ece']:.4f}" for at in ALL_WAYS]
    return [header(ALL_WAYS), *lines, ["calibration error, inductive, one view", *calibration]]


def _tested(tests: Sequence[Result], way: int, shot: int, protocol: str, views: str | None = None) -> Result:
    return select(tests, way=way, shot=shot, protocol=protocol, views=views)


@table("omniglot-time")
def omniglot_time() -> Rows:
    """Accuracy against training time."""
    hour, minutes = card("omniglot"), result("omniglot-10min")
    (short,) = minutes["trainings"].values()
    best = select(hour["tests"], way=5, shot=1, protocol="inductive", views=None)
    return [
        ["trained by", "seconds", "5-way 1-shot (%)"],
        [_command(short["command"]), f"{short['train_seconds']:.0f}", accuracy(minutes)],
        [_command(hour["training"]["command"]), f"{hour['training']['train_seconds']:.0f}", accuracy(best)],
    ]


def _command(text: str) -> str:
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
    joint = [result(f"cifar-fs-joint-{shot}shot") for shot in (1, 5)]
    return [
        header(FIVE_WAYS),
        ["tasks and a classifier of the training classes, one view", *map(accuracy, joint)],
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


# Sine


def _limits(name: str) -> list[float]:
    known = result("sine-contexts-x")["limits"]
    return [select(known, limit=name, shot=shot)["mean"] for shot in SHOTS]


def _one_kernel(context: str, shot: int) -> Result:
    return select(result(f"sine-xy-{shot}shot")["rows"], name=f"runs/xy/{shot}shot-xy-{context}-seed0")


@table("sine")
def sine() -> Rows:
    """All ways to solve the paper's family."""
    rff, contexts = (
        [
            [row["mse"] for row in result(name)["rows"] if row["shot"] == shot and row["context"] == "none"]
            for shot in SHOTS
        ]
        for name in ("sine-rff", "sine-contexts-x")
    )
    lines: list[tuple[str, str, Sequence[float]]] = [
        ("plain random features", "2,000 steps, one seed, one model per column", [row[0] for row in rff]),
        ("best predictor affine in y", "exact limit", _limits("best affine predictor")),
        (
            "one kernel, inferred from x",
            "4,000 steps, five seeds, one model per column",
            [sum(row) / len(row) for row in contexts],
        ),
        (
            "one kernel, inferred from x and y",
            "8,000 to 10,000 steps, one seed, one model per column",
            [_one_kernel("none", shot)["mean"] for shot in SHOTS],
        ),
        (
            "**many kernels**",
            "12,000 steps, three seeds, one model for 2 to 20 points",
            [over_seeds("study-many-kernels", shot) for shot in SHOTS],
        ),
        ("Bayes-optimal", "exact limit", _limits("Bayes-optimal")),
    ]
    columns = ["mean squared error", "trained with", *(f"{shot} points" for shot in SHOTS)]
    return [columns, *([name, how, *map(number, values)] for name, how, values in lines)]


@table("sine-limits")
def sine_limits() -> Rows:
    """What no learner can beat on the test tasks."""
    known = result("sine-contexts-x")["limits"]
    return [
        ["points", "limit", "mean squared error", "nll"],
        *([str(limit["shot"]), limit["limit"], error(limit), f"{limit['nll']:.2f}"] for limit in known),
    ]


@table("sine-contexts")
def sine_contexts() -> Rows:
    """Contexts that see x, over seeds."""
    columns = ["seeds", "mse", "range over seeds", "95 % (tasks)", "nll", "in the 90 % band"]
    return [
        ["points", "context", *columns],
        *(
            [row["shots"], row["context or steps"].partition(",")[0], *(tidy(row[name]) for name in columns)]
            for row in result("sine-contexts-x")["over_seeds"]
        ),
    ]


@table("sine-contexts-xy")
def sine_contexts_xy() -> Rows:
    """Contexts that see the targets too."""
    tested = [(3, "none"), (3, "lstm"), (3, "bilstm"), (5, "none"), (10, "none")]
    lines = []
    for shot, context in tested:
        test = _one_kernel(context, shot)
        lines.append([str(shot), context, error(test), f"{test['nll']:.3f}", band(test)])
    return [["points", "context", "mean squared error", "nll", "in the 90 % band"], *lines]


@table("sine-bases")
def sine_bases() -> Rows:
    """Kinds of bases."""
    columns = ["bases", "mse", "95 % (tasks)", "nll", "in the 90 % band"]
    return [columns, *([row[name] for name in columns] for row in result("sine-bases")["over_seeds"])]


@table("sine-rff")
def sine_rff() -> Rows:
    """The baseline without an inference network."""
    columns = ["shots", "mse", "95 % (tasks)", "nll", "in the 90 % band"]
    lines = [[row[name] for name in columns] for row in result("sine-rff")["over_seeds"]]
    return [["points", *columns[1:]], *lines]


# Inference

PROCESSES = {"gp-rbf": "RBF", "gp-matern": "Matérn-5/2", "gp-periodic": "periodic"}


@table("processes")
def processes() -> Rows:
    """Gaussian-process draws, trained on all three kinds: log likelihood per point, and the gaps to both oracles."""
    tests = {kind: [result(f"gp-mixed-{seed}-on-{kind}") for seed in range(3)] for kind in PROCESSES}
    limits = result("study-neural-processes-mixed")["limits"]
    found = {kind: [-test["nll"] for test in of_kind] for kind, of_kind in tests.items()}
    means = {kind: sum(values) / len(values) for kind, values in found.items()}
    lines = [
        [
            "many kernels",
            *(f"{means[kind]:.3f} ({min(values):.3f} to {max(values):.3f})" for kind, values in found.items()),
        ]
    ]
    oracles: dict[str, Callable[[str], tuple[str, str | None]]] = {
        "has to infer the kind too": lambda kind: ("gp-mixed", kind),
        "knows the kind": lambda kind: (kind, None),
    }
    for name, tested in oracles.items():
        known = {}
        for kind in PROCESSES:
            task, on = tested(kind)
            (known[kind],) = (row for row in limits if row["test"]["task"] == task and row["test"].get("on") == on)
            if known[kind]["data_sha256"] != tests[kind][0]["data_sha256"]:
                raise ValueError(f"the oracle and the model were not tested on the same draws of {kind}")
        lines.append([f"Bayes-optimal, {name}", *(f"{-row['nll']:.3f}" for row in known.values())])
        lines.append(["gap", *(f"{-known[kind]['nll'] - means[kind]:.3f}" for kind in PROCESSES)])
    inside = {kind: sum(test["coverage90"] for test in of_kind) / len(of_kind) for kind, of_kind in tests.items()}
    lines.append(["in the 90 % band", *(f"{100 * share:.1f} %" for share in inside.values())])
    return [["tested on", *PROCESSES.values()], *lines]


# A family of one's own


@table("own-family")
def own_family() -> Rows:
    """A trained model beside a Gaussian process per task, on the same tasks."""
    trained, fitted = result("own-family"), result("own-family-gaussian-process")
    if trained["data_sha256"] != fitted["data_sha256"]:
        raise ValueError("the two results of the own family are not of the same tasks")
    names = (f"metavrf, trained on the family ({_minutes(trained)} of one core)", "Gaussian process fitted per task")
    return [
        [f"`ringing`, {trained['shot']} points, {trained['tasks']:,} tasks", "mean squared error", "in the 90 % band"],
        *([name, error(test), band(test)] for name, test in zip(names, (trained, fitted), strict=True)),
    ]


def _minutes(test: Result) -> str:
    (training,) = test["trainings"].values()
    minutes = training["train_cpu_seconds"] / 60
    return f"{minutes:.0f} minutes" if minutes >= 1.5 else "1 minute"


# The main table


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
        seconds = training["train_seconds"] + training.get("started_from", {}).get("train_seconds", 0)
        return classes(f"{name}, {seconds / 60:.0f} minutes", task, 5, tests)

    return [
        ["test tasks, inductive", "measure", "metavrf", "for comparison"],
        [
            "sine curves, one model",
            f"mean squared error, {' / '.join(map(str, SHOTS))} points",
            sine_errors([over_seeds("study-many-kernels", shot) for shot in SHOTS]),
            f"best predictor affine in y: {sine_errors(_limits('best affine predictor'))}; "
            f"Bayes-optimal: {sine_errors(_limits('Bayes-optimal'))}",
        ],
        *(
            classes("Omniglot", "omniglot", way, [_tested(tests, way, shot, "inductive") for shot in (1, 5)])
            for way in (5, 20)
        ),
        from_scratch("CIFAR-FS from scratch", "cifar-fs", "cifar-fs-joint"),
        from_scratch("miniImageNet from scratch", "mini-imagenet", "mini-imagenet-joint"),
        [
            "CIFAR-FS on ImageNet features",
            _joined(5),
            " / ".join(map(accuracy, pretrained)),
            f"logistic regression: {' / '.join(map(accuracy, plain))}",
        ],
    ]


def _joined(way: int) -> str:
    return f"accuracy (%), {way}-way 1 / 5-shot"


# Learners and data sets


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
        line = [
            row["name"].split("/")[-1],
            accuracy(row) if classes else error(row),
            "" if not place else f"{number(gap['mean'])} ± {number(gap['ci95'], 2)}",
            "" if gap.get("p_value") is None else number(gap["p_value"], 1),
            f"{row['nll']:.3f}",
            f"{row['ece']:.4f}" if classes else band(row),
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


@table("learners-all")
def learners_all() -> Rows:
    """Every learner of classes, after some minutes of one core: two trainings at 1 shot, the second at 5 shots too."""
    files = [result(f"omniglot-all-learners{part}") for part in ("", "-seed1", "-seed1-5shot")]
    first, second, five = ({row["learner"]: row for row in file["rows"]} for file in files)
    trainings = [{row["learner"]: file["trainings"][row["name"]] for row in file["rows"]} for file in files[:2]]
    head = ["", "1 shot, seed 0 (%)", "1 shot, seed 1 (%)", "5 shots, seed 1 (%)", "validation, 1 shot"]
    head += ["nll", "calibration error", "CPU min", "ms per task", "CPU ms per step", "parameters"]
    lines = []
    for name, row in first.items():
        rows = [seed[name] for seed in (first, second) if name in seed]
        runs = [seed[name] for seed in trainings if name in seed]
        line = [
            name,
            *(accuracy(test[name]) if name in test else "" for test in (first, second, five)),
            _both(f"{run['validation']['val_accuracy']:.1f}" for run in runs),
            _both(f"{row['nll']:.3f}" for row in rows),
            _both(f"{row['ece']:.3f}" for row in rows),
            _both(f"{run['train_cpu_seconds'] / 60:.1f}" for run in runs),
            f"{row['adapt_ms']:.0f}",
            _both(f"{1000 * run['train_cpu_seconds'] / run['steps']:.0f}" for run in runs),
            f"{row['parameters']:,}",
        ]
        lines.append([*line, *(published(Config.of("omniglot", name), 5, shot) for shot in (1, 5))])
    return [[*head, "paper, 1 shot", "paper, 5 shots"], *lines]


def _both(cells: Iterable[str]) -> str:
    """What two trainings say, one after the other."""
    return " / ".join(cells)


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


# Models


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
        command = f"`metavrf train {training['task']}`, resumed" if resumed else _command(training["command"])
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


# Rows


@table("rows-regression")
def rows_regression() -> Rows:
    """Mean ranks and means of small tables."""
    figures = ("R²", "nll", "crps")
    return _ranked(result("rows")["regression"], "regression", figures)


@table("rows-classes")
def rows_classes() -> Rows:
    """Mean ranks, nll and accuracy of small tables."""
    return _ranked(result("rows")["classes"], "classes", ("nll", "accuracy"))


@table("rows-pmlbmini")
def rows_pmlbmini() -> Rows:
    """The same of PMLBmini, with the CPU seconds of a fold."""
    found = result("rows")["pmlbmini"]
    header, *lines = _ranked(found, "PMLBmini", ("nll", "AUC"))
    seconds = [[f"{select(found['summary'], method=line[0])['seconds']:.2f}"] for line in lines]
    return [[*header, "CPU s per fold"], *([*line, *more] for line, more in zip(lines, seconds, strict=True))]


@table("rows-curves")
def rows_curves() -> Rows:
    """Error of curves of ten points."""
    tables = result("rows-curves")["curves"]["tables"]
    methods = list(next(iter(tables.values())))
    lines = [[method, *(f"{table[method][0]:.3f}" for table in tables.values())] for method in methods]
    return [["error, share of the variance", *(name.removesuffix(", 10") for name in tables)], *lines]


@table("step-of-one-kernel")
def step_of_one_kernel() -> Rows:
    """The sine step with one exact kernel beside GPyTorch's, under our allocator; ratios within each round."""
    section = next(part for part in result("peers-gpytorch")["sections"] if part["key"] == "sine")
    times = {row["name"].removesuffix(", our allocator"): row["values"] for row in section["rows"]}
    peer = times["GPyTorch, deep kernel"]
    lines = []
    for name in ("metavrf, one kernel, exact", "metavrf, one kernel, exact, no KL", "GPyTorch, deep kernel"):
        ratio = median(own / other for own, other in zip(times[name], peer, strict=True))
        lines.append([name, f"{median(times[name]):.2f}", f"{ratio:.2f}"])
    return [["a step on sine", "ms, median", "of GPyTorch's"], *lines]


@table("rows-faint")
def rows_faint() -> Rows:
    """R² where it is near that of the mean, before and with faint kernels."""
    before, now = (result(name)["regression"] for name in ("rows", "rows-ours"))
    near = [name for name in now["tables"] if name.startswith(("linnerud", "birthwt"))]
    lines = []
    for name in near:
        old, new = (part["tables"][name]["MetaVRFRegressor()"] for part in (before, now))
        lines.append([name, f"{old[0]:.3f}", f"{new[0]:.3f}", f"{now['tables'][name]['the mean'][0]:.3f}"])
    old, new = (select(part["summary"], method="MetaVRFRegressor()") for part in (before, now))
    mean = select(now["summary"], method="the mean")
    for figure in ("R²", "nll", "crps"):
        means = [f"{of[figure]:.3f}" for of in (old, new, mean)]
        lines.append([f"all tables, {figure.replace('crps', 'CRPS')}", *means])
    return [["R² of table, rows", "before", "faint kernels", "the mean"], *lines]


@table("rows-time")
def rows_time() -> Rows:
    """Milliseconds of fit and predict."""
    found = result("rows-ours")["milliseconds"]
    return [["fit and predict, 50 rows × 10 columns", "ms"], *([name, f"{ms:.0f}"] for name, ms in found.items())]


@table("rows-features")
def rows_features() -> Rows:
    """Accuracy and nll of ours, and the best of the others in each, on features of a network."""
    lines = []
    for name, found in result("rows-features")["figures"].items():
        ours = found["MetaVRFClassifier()"]
        others = {method: of for method, of in found.items() if method != "MetaVRFClassifier()"}
        best = max(others, key=lambda method: others[method]["accuracy"])
        surest = min(others, key=lambda method: others[method]["nll"])
        right = [f"{100 * of['accuracy']:.1f}" for of in (ours, others[best])]
        nll = [f"{of['nll']:.3f}" for of in (ours, others[surest])]
        lines.append([name, right[0], f"{right[1]} ({best})", nll[0], f"{nll[1]} ({surest})"])
    return [["features of, shots", "accuracy (%)", "best of the others", "nll", "best of the others"], *lines]


@table("rows-adaptivity")
def rows_adaptivity() -> Rows:
    """Nll with a task's own weights of kernels, the mean ones and another task's."""
    lines = []
    for found in result("rows-adaptivity")["adaptivity"]:
        kind = "regression" if found["classes"] is None else f"{found['classes']} classes"
        nll = [f"{found['nll'][weights]:.3f}" for weights in ("own", "mean", "other")]
        lines.append([f"{found['rows']} × {found['columns']}", kind, *nll, f"{found['mean - own']['p_value']:.1g}"])
    return [["rows × columns", "", "own", "mean", "another's", "p, own against mean"], *lines]


@table("suggest")
def suggest() -> Rows:
    """Labels to reach what random ones reach."""
    lines = []
    for name, found in result("suggest")["tables"].items():
        cells = [name.replace("_", " "), f"{found['level']:.3f}"]
        for method in found["methods"].values():
            cells.append("never" if method["needed"] is None else f"{method['needed']:.0f}")
        saved = found["methods"]["suggest"]["saved"]
        lines.append([*cells, "" if saved is None else f"{100 * saved:.0f} %"])
    return [["table", "accuracy, or R²", "random", "smallest margin", "`suggest`", "saved"], *lines]


def _ranked(part: Result, title: str, figures: Sequence[str]) -> Rows:
    """Mean ranks, then means; the best rank by the first figure comes first, what is not ranked last."""
    lines = sorted(part["summary"], key=lambda line: float(line.get(f"rank by {figures[0]}", 99)))
    ranks, names = [f"rank by {figure}" for figure in figures], ["CRPS" if name == "crps" else name for name in figures]
    header = [title, *(f"rank by {name}" for name in names), *names]
    return [
        header,
        *(
            [
                line["method"],
                *(f"{line[rank]:.2f}" if rank in line else "" for rank in ranks),
                *(f"{line[figure]:.3f}" for figure in figures),
            ]
            for line in lines
        ),
    ]


# Pages


@table("faults")
def faults() -> Rows:
    """What the campaign against faults found; parts that were not run are left out."""
    found, rows = result("faults"), [["part", "tried", "went wrong"]]
    if part := found.get("kills"):
        wrong = f"{part['lost']} lost, {part['different']} different"
        rows.append(["kills around writes", f"{part['kills']:,}", wrong])
    if part := found.get("mutations"):
        wrong = f"{part['different']} unnoticed, {part['traceback']} tracebacks"
        rows.append(["changed files", f"{part['mutations']:,}", wrong])
    if part := found.get("lines"):
        rows.append(["odd command lines", f"{part['lines']:,}", f"{part['wrong']} without a sentence"])
    if part := found.get("interface"):
        rows.append(["requests by Schemathesis", f"{part['cases']:,}", f"{part['failures']} failures"])
    if part := found.get("clients"):
        times = f"median {part['median_seconds']:.2f} s, 99 % within {part['p99_seconds']:.2f} s"
        asked = f"{part['clients']} clients for {part['seconds']:.0f} s"
        grown = part["memory_mb_last"] - part["memory_mb_first"]
        wrong = f"{part['errors']} errors; {grown:+.0f} MB of {part['memory_mb_first']:.0f}"
        rows.append([asked, f"{part['requests']:,} requests; {times}", wrong])
    return rows


@table("faults-kinds")
def faults_kinds() -> Rows:
    """What became of changed files, by kind."""
    outcomes = {"refused": "refused", "said": "told, mended", "same": "no difference", "different": "unnoticed"}
    kinds = result("faults")["mutations"]["by_kind"]
    lines = [[kind, *(f"{counts.get(name, 0):,}" for name in outcomes)] for kind, counts in kinds.items()]
    return [["kind", *outcomes.values()], *lines]


@table("scaling")
def scaling() -> Rows:
    """How costs grow along each axis: from the first to the last point, and the fitted power."""
    heads = ["what grows", "all else", "step (ms)", "power", "adapt (ms)", "power", "step (MB)", "power"]

    def along(one: Result, name: str) -> list[str]:
        first, *_, last = one["points"]
        if name not in first:
            return ["", ""]
        power = one["fits"][name]["power"]
        flat = power is None or last[name] < 2 * first[name]  # too little to tell a power from
        ends = [f"{cost:,.0f}" if cost >= 1000 else number(cost) for cost in (first[name], last[name])]
        return [" to ".join(ends), "flat" if flat else number(power)]

    lines = []
    for one in result("scaling")["axes"]:
        first, *_, last = one["points"]
        grows = f"{one['unit']}, {first['value']} to {last['value']:,}"
        costs = [cell for name in ("step_ms", "adapt_ms", "step_mb") for cell in along(one, name)]
        lines.append([grows, one["what"], *costs])
    return [heads, *lines]


@table("scaling-budget")
def scaling_budget() -> Rows:
    """What the paper's trainings take: measured on a CPU, worked out for GPUs."""
    heads = ["training", "steps", "tasks per step", "GFLOP per step", "operations per step", "CPU, one thread (h)"]
    lines = [
        [
            one["task"],
            f"{one['steps']:,}",
            str(one["tasks_per_step"]),
            number(one["flops"] / 1e9),
            str(one["launches"]),
            *(number(one[name], 2) for name in ("cpu_hours", "gpu_hours", "eight_gpus_hours", "eight_runs_hours_each")),
        ]
        for one in result("scaling")["budgets"]
    ]
    return [[*heads, "one GPU (h)", "one run on eight (h)", "a run, eight at once (h)"], *lines]


@table("scaling-assumed")
def scaling_assumed() -> Rows:
    """What is assumed of a GPU."""
    found = result("scaling")["assumed"]
    return [
        ["assumed", ""],
        ["GPU", found["gpu"]],
        ["peak, 32-bit floats without tensor cores", f"{found['peak_flops'] / 1e12:g} TFLOP/s"],
        ["share of the peak that is reached", f"{100 * found['reached_share']:g} %"],
        ["to send one operation", f"{1e6 * found['seconds_per_launch']:g} µs"],
        ["to average gradients over eight", f"{1e3 * found['seconds_to_average_gradients']:g} ms"],
    ]


def rendered(rows: Rows) -> str:
    """A table in Markdown."""
    head, *lines = rows
    if any(len(line) != len(head) for line in lines):
        raise ValueError(f"lines of unequal length under {head}")
    return "".join(f"| {' | '.join(cells)} |\n" for cells in (head, ["---"] * len(head), *lines))


def filled(text: str) -> str:
    """A page with its tables made anew."""
    return BLOCK.sub(lambda block: block[1] + rendered(TABLES[block["name"]]()) + block[3], text)


def main() -> None:
    """Write the pages, or with --check say which are out of date."""
    stale = []
    for page in (ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))):
        before = page.read_text()
        after = filled(before)
        if after != before:
            stale.append(str(page.relative_to(ROOT)))
            if "--check" not in sys.argv[1:]:
                page.write_text(after)
    if stale and "--check" in sys.argv[1:]:
        sys.exit(f"out of date, run python docs/tables.py: {', '.join(stale)}")


if __name__ == "__main__":
    main()
