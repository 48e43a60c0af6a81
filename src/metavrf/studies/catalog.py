"""The studies by name: the paper's tables and figures, ours, and smaller questions (docs/studies.md)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from metavrf.config import Config
from metavrf.errors import UserError
from metavrf.learners import LEARNERS
from metavrf.registry import unknown
from metavrf.studies.known import FITTED
from metavrf.studies.study import Cell, Known, Options, Study, Training
from metavrf.tasks.functions import FAMILIES, family
from metavrf.testing.published import PUBLISHED, TRANSDUCTIVE

SHOTS = (3, 5, 10)
BANDS = (2, 3, 4, 5, 6, 8, 10, 12, 15, 20)
BASES = (16, 64, 256, 780, 2048)
WAYS = (5, 10, 20, 30, 50, 70, 100)
GP_KINDS = ("gp-rbf", "gp-matern", "gp-periodic")
Settings = Sequence[tuple[int, int]]
FIVE_WAYS: Settings = ((5, 1), (5, 5))
ALL_WAYS: Settings = (*FIVE_WAYS, (20, 1), (20, 5))
BEST, AFFINE = "Bayes-optimal", "best affine predictor"
ONE_SHOT: Options = {"train_shot": 0, "most_shot": 0}
# The paper's model of functions, as it validates best.
ONE_KERNEL: dict[str, Any] = {"components": 1, "guards": 0, "shapes": 0, "moves": True, "embedding": "mlp"}
ONE_KERNEL |= {
    "context_inputs": "x",
    "train_kernel": "features",
    "kl_weight": 1e-3,
    "lr": 2e-3,
    "iterations": 20_000,
    **ONE_SHOT,
}
MANY_OF_CLASSES: Options = {"components": 8, "train_kernel": "exact", "context_inputs": "xy", "context": "none"}
STREAM: Options = {"stream": 10, "batch": 30, "shot": 3, "train_shot": 2, "most_shot": 6, "iterations": 4000}
TWENTY_WAYS: Options = {"way": 20, "train_way": 20, "shot": 5}
SHORT: Mapping[str, Options] = {  # so that one thread takes a few minutes
    "omniglot": {"iterations": 400, "validate_every": 200, "validate_tasks": 200, "train_way": 30},
    "cifar-fs": {"iterations": 400, "validate_every": 200, "validate_tasks": 200},
    "mixed-images": {"iterations": 500, "validate_every": 250, "validate_tasks": 200},
}
# Tasks of 288 or 275 pictures a step, as harder tasks where a learner can be tested at other ways than trained.
MANY_WAYS: Options = {"train_way": 16, "train_shot": 3, "query": 6, "batch": 2}
FEW_WAYS: Options = {"train_way": 5, "train_shot": 5, "query": 6, "batch": 5}
FAST: Options = {"precision": "bf16-mixed"}
FULL_PRECISION = ("maml", "meta-lstm", "platipus", "cavia", "imaml")  # steps on gradients of the support
SETS = {"omniglot": "Omniglot", "cifar-fs": "CIFAR-FS", "mini-imagenet": "miniImageNet", "mixed-images": "mixed images"}
# Table 3 of the paper: miniImageNet on features of a WRN-28-10, accuracy (%) at 1 and 5 shots.
DEEP = {
    "meta-sgd": ("54.24", "70.86"),
    "dynamic": ("56.20", "73.00"),
    "kshot": ("56.30", "73.90"),
    "csn": ("57.10", "70.04"),
    "activations": ("59.60", "73.54"),
    "snail": ("55.71", "68.88"),
    "tadam": ("58.50", "76.70"),
    "leo": ("61.76", "77.59"),
    "metavrf none": ("62.12†", "77.05†"),
    "metavrf lstm": ("63.21†", "77.83†"),
    "metavrf bilstm": ("63.80†", "77.97†"),
}


def named(key: str) -> dict[str, Any]:
    """The settings of a learner as the paper's tables name it: "rff", or "metavrf lstm"."""
    learner, _, context = key.partition(" ")
    return {"learner": learner} | ({"context": context} if context else {})


def training(task: str, options: Options, way: int, shot: int, *, scratch: bool = False) -> Training:
    """A run on classes. Photographs start from one classifier's embedding, unless they are to start from scratch.

    Some learners can only be tested as they were trained.
    """
    learner = options.get("learner", "metavrf")
    fixed: dict[str, Any] = {} if LEARNERS[learner].any_way else {"way": way, "shot": shot}
    if task not in ("cifar-fs", "mini-imagenet") or learner == "classifier" or scratch:
        return Training(task, {**options, **fixed})
    network = Config.of(task, "classifier").embedding
    fixed |= {name: getattr(network, name) for name in ("embedding", "channels", "last_channels")}
    return Training(task, {**options, **fixed}, Training(task, {"learner": "classifier"}))


def tested(task: str, at: tuple[int, int]) -> str:
    """The column of tests on classes."""
    return f"{SETS.get(task, task)} {at[0]}-way {at[1]}-shot"


def on_classes(
    task: str, rows: Mapping[str, Options], settings: Settings, *, scratch: bool = False, **test: Any
) -> list[Cell]:
    """Each row that there is a learner for, tested at ways and shots."""
    cells = []
    for way, shot in settings:
        for row, options in rows.items():
            if options.get("learner", "metavrf") in LEARNERS:
                run = training(task, options, way, shot, scratch=scratch)
                cells.append(Cell(row, tested(task, (way, shot)), run, {"way": way, "shot": shot, **test}))
    return cells


def on_functions(task: str, rows: Mapping[str, Options], shots: Sequence[int], at: str = "", **test: Any) -> list[Cell]:
    """Each row tested at several numbers of points; one that is trained on one number has a run for each."""
    cells = []
    for shot in shots:
        for row, options in rows.items():
            run = Training(task, {**options, "shot": shot} if options.get("train_shot") == 0 else options)
            cells.append(Cell(row, f"{at}{shot} points", run, {"shot": shot, **test}))
    return cells


def known(task: str, shots: Sequence[int], *names: str, at: str = "", **test: Any) -> list[Cell]:
    """What no learner can beat, or a process fitted to each task."""
    return [Cell(n, f"{at}{shot} points", Known(task, n), {"shot": shot, **test}) for shot in shots for n in names]


def published_table(title: str, tasks: Mapping[str, Settings], more: Mapping[str, Options], **about: Any) -> Study:
    """A table of the paper: every learner in it that there is here, and some more."""
    paper: dict[str, dict[str, str]] = {}
    for task, settings in tasks.items():
        for way, shot in settings:
            for key, figure in PUBLISHED[task, way, shot].items():
                sign = "†" if key.partition(" ")[0] in TRANSDUCTIVE else ""
                paper.setdefault(key, {})[tested(task, (way, shot))] = f"{figure:.1f}{sign}"
    rows = {key: named(key) for key in paper} | dict(more)
    cells = [cell for task, settings in tasks.items() for cell in on_classes(task, rows, settings)]
    return Study(title, cells, "dots", paper=paper, **about)


def sine_figure() -> Study:
    """Few-shot regression, as the paper draws it."""
    rows: dict[str, Options] = {
        "MetaVRF without LSTM": {**ONE_KERNEL, "context": "none"},
        "MetaVRF, LSTM": {**ONE_KERNEL, "context": "lstm"},
        "MetaVRF, biLSTM": {**ONE_KERNEL, "context": "bilstm"},
        "many kernels (ours)": {},
        "RFF": {"learner": "rff", **ONE_SHOT},
        "MAML": {"learner": "maml", "inner_steps": 5, **ONE_SHOT},
    }
    cells = on_functions("sine", rows, SHOTS) + known("sine", SHOTS, AFFINE, BEST)
    note = "Mean squared error. The paper shows curves and no figures; one model of many kernels answers every column."
    return Study("Figure 3: sine curves from 3, 5 and 10 points", cells, "fits", note=note)


def oracle_table() -> Study:
    """Each family that knows its best predictor."""
    cells: list[Cell] = []
    for name in FAMILIES:
        if BEST in family(name).oracles():
            test: Options = {"tasks": 200} if FAMILIES[name].unequal else {"tasks": 1000, "shot": 5}
            ours, best = Training(name), Known(name, BEST)
            column, show = ("nll", "nll") if family(name).noise else ("mse", "mean")
            cells += [Cell(name, column, ours, test, show), Cell(name, f"{column}, {BEST}", best, test, show)]
            if show == "nll":
                cells.append(Cell(name, "above it (nats)", ours, test, show, best))
    note = "Without noise the best likelihood has no bound, so the error is shown in its place."
    return Study("The gap to Bayes: many kernels beside the best predictor there is", cells, note=note)


def adaptivity_table() -> Study:
    """The same tasks answered with their own, the mean and another task's inference."""
    kinds: dict[str, Options] = {"one kernel": {"context": "none"}, "biLSTM": {"context": "bilstm"}}
    rows = {f"sine, {kind}": Training("sine", {**ONE_KERNEL, **options}) for kind, options in kinds.items()}
    rows |= {f"{task}, many kernels": Training(task) for task in ("sine", "mixed")}
    for task in ("omniglot", "cifar-fs"):
        for kind, options in (kinds | {"many kernels": MANY_OF_CLASSES}).items():
            rows[f"{SETS[task]}, {kind}"] = training(task, options, 5, 1)
    answers = {"own inference": "own", "the mean inference": "mean", "another task's": "other"}
    cells = []
    for row, source in rows.items():
        test: Options = {"adaptivity": True} | ({"shot": 5} if source.task in FAMILIES else {"way": 5, "shot": 1})
        cells += [Cell(row, name, source, test, f"adaptivity.{whose}.{{metric}}") for name, whose in answers.items()]
    note = "Mean squared error of functions (5 points), accuracy of classes (5-way 1-shot)."
    return Study("Does inference matter? Tasks answered with another task's", cells, note=note)


def streams(task: str) -> Study:
    """Contexts on streams of related tasks."""
    shown = {"all tasks": "mean", "first of a stream": "by_position.0", "last of a stream": "by_position.9"}
    test: Options = {"shot": 3, "stream": 10, "tasks": 2000}
    rows: dict[str, Options] = {context: {"context": context} for context in ("none", "bayes", "lstm", "bilstm")}
    rows["bayes, kernels between"] = {"context": "bayes", "between": True}
    cells = [
        Cell(row, column, Training(task, {**STREAM, **options}), test, show)
        for row, options in rows.items()
        for column, show in shown.items()
    ]
    return Study(f"Streams of ten related tasks ({task}), 3 points each", cells, "positions", "position in the stream")


def mixture_table() -> Study:
    """Many kernels, one kernel and the baselines, on tasks of one kind and of many kinds."""
    many, one, ours = "many kernels", "one kernel, inferred", "one kernel, shared"
    plain: dict[str, Options] = {ours: {"learner": "shared"}, "RFF": {"learner": "rff"}, "RBF": {"learner": "rbf"}}
    baselines = {row: {**options, "iterations": 2000, **ONE_SHOT} for row, options in plain.items()}
    inferred: Options = {**ONE_KERNEL, "context": "none", "context_inputs": "xy"}
    cells = on_functions("sine", {many: {}, one: inferred, **baselines}, (5,), "sine, ", tasks=1000)
    rows: dict[str, Options] = {many: {}, one: inferred, **baselines}
    cells += on_functions("mixed", rows, (5, 10), "mixed, ", tasks=1000)
    cells += known("mixed", (5, 10), FITTED, at="mixed, ", tasks=200)
    for task, short in SHORT.items():
        rows = {many: MANY_OF_CLASSES, one: {"context": "none"}, **plain, "prototypical": {"learner": "prototypical"}}
        rows = {row: {**options, **short} for row, options in rows.items()}
        cells += on_classes(task, rows, FIVE_WAYS, scratch=True, tasks=1000)
    note = "Mean squared error of functions, accuracy (%) of classes."
    return Study("What many kernels gain: tasks of one kind, and of many kinds", cells, note=note)


def learners_table() -> Study:
    """Every registered learner on the same tasks."""
    cells: list[Cell] = []
    for name in LEARNERS:
        options: Options = {"learner": name}
        if "regression" in LEARNERS[name].solves:
            cells += on_functions("sine", {name: options}, (5,), "sine, ")
        if "classification" in LEARNERS[name].solves:
            cells += on_classes("omniglot", {name: options}, ((5, 1),))
            photos = on_classes("cifar-fs", {name: options}, FIVE_WAYS)
            cells += [*photos, replace(photos[-1], column="CIFAR-FS 5-way 5-shot, nll", show="nll")]
    note = "Mean squared error of sine, accuracy (%) of classes. On CIFAR-FS all start from one classifier's embedding."
    return Study("Every learner on the same tasks", cells, "dots", note=note)


def equal_time_table() -> Study:
    """Every learner of classes from the same weights, at the same cost."""
    start = Training("cifar-fs", {"learner": "classifier", **FAST}, seed=0)
    network = Config.of("cifar-fs", "classifier").embedding
    same = {name: getattr(network, name) for name in ("embedding", "channels", "last_channels")}
    same |= {"validate_tasks": 200, "way": 5, "shot": 5}
    rows = {"metavrf": MANY_OF_CLASSES, "metavrf, one kernel": {"context": "none"}}
    drawn = ("shared", "rff", "rbf", "prototypical", "r2d2", "maml")
    rows |= {name: {"learner": name} for name in (*drawn, *LEARNERS) if name not in ("metavrf", "classifier")}
    shown = {"mean": "accuracy (%)", "nll": "nll", "ece": "calibration error"}
    cells = []
    for row, options in rows.items():
        learner = LEARNERS[options.get("learner", "metavrf")]
        if "classification" in learner.solves:
            tasks = MANY_WAYS if learner.any_way else FEW_WAYS
            more: Options = {"classify_weight": 1.0} if learner.embeds_alone else {}
            speed = {} if row in FULL_PRECISION else FAST
            run = Training("cifar-fs", {**same, **tasks, **speed, **more, **options}, start)
            for shot in (5, 1):
                test: Options = {"way": 5, "shot": shot}
                cells += [Cell(row, f"{shot}-shot {name}", run, test, show) for show, name in shown.items()]
    note = (
        "All learners start from the embedding of one classifier and are trained for 5 shots, with a classifier of the "
        "training classes beside their tasks, unless they change the embedding from task to task; with --minutes-each "
        "for the same time."
    )
    axis = "CPU minutes of training"
    return Study("CIFAR-FS, 5-way: learners at equal cost", cells, "time", axis, note=note, drawn=("metavrf", *drawn))


def photo_learners(*more: str) -> dict[str, Options]:
    """Some of the learners on photographs."""
    rows = {key: named(key) for key in ("metavrf none", "metavrf bilstm", "rff", "rbf", "prototypical", "maml", *more)}
    return {"metavrf, many kernels": MANY_OF_CLASSES, **rows}


def of_the_paper() -> dict[str, Study]:
    """The tables and figures of the paper."""
    ours: dict[str, Options] = {"metavrf, many kernels": MANY_OF_CLASSES}
    photos = published_table(
        "Table 1: miniImageNet and CIFAR-FS (%)",
        {"mini-imagenet": FIVE_WAYS, "cifar-fs": FIVE_WAYS},
        {"classifier": {"learner": "classifier"}, **ours},
        note="All learners start from the embedding of one classifier; the paper's do not.",
    )
    deep_rows = {key: named(key) for key in (*DEEP, "rff", "prototypical")}
    files = {"miniImageNet": "mini-imagenet-lite0.safetensors", "CIFAR-FS": "cifar-fs-lite0.safetensors"}
    deep = [
        replace(cell, column=f"{name} {at[0]}-way {at[1]}-shot")
        for name, file in files.items()
        for at in FIVE_WAYS
        for cell in on_classes(file, deep_rows, (at,))
    ]
    columns = [f"miniImageNet 5-way {shot}-shot" for shot in (1, 5)]
    bases = [
        Cell(row, str(size), training("cifar-fs", {**named(key), "bases": size}, 5, 5), {"way": 5, "shot": 5})
        for size in BASES
        for row, key in (("MetaVRF, biLSTM", "metavrf bilstm"), ("RFF", "rff"))
    ]
    twenty = {key: training("omniglot", {**named(key), **TWENTY_WAYS}, 20, 5) for key in ("metavrf bilstm", "rff")}
    ways = [
        Cell(key, str(way), source, {"way": way, "shot": 5, "tasks": 600})
        for key, source in twenty.items()
        for way in WAYS
    ]
    shots = [
        Cell(f"{way} ways", str(shot), twenty["metavrf bilstm"], {"way": way, "shot": shot, "query": 5, "tasks": 600})
        for way in (5, 20, 50, 100)
        for shot in (1, 2, 3, 5, 8, 10, 15)
    ]
    trained = "Omniglot accuracy (%) of models trained on 20-way 5-shot tasks"
    sine = sine_figure()
    return {
        "sine-figure": sine,
        "sine-more": replace(sine, title="The supplement's figure: more sine curves", examples=4),
        "omniglot-table": published_table(
            "Table 2: Omniglot (%)",
            {"omniglot": ALL_WAYS},
            ours,
            quick=("metavrf none", "metavrf bilstm", "rff", "rbf", "prototypical"),
        ),
        "photo-table": photos,
        "deep-table": Study(
            "Table 3: ready features of a deep network (%)",
            deep,
            "dots",
            paper={key: dict(zip(columns, figures, strict=True)) for key, figures in DEEP.items()},
            note="Ours are features of an EfficientNet-Lite0 trained on ImageNet, miniImageNet's test classes among "
            "them; the paper's are of a WRN-28-10. The two cannot be compared. Make the files with 'metavrf embed "
            "mini-imagenet --out mini-imagenet-lite0.safetensors', and cifar-fs likewise.",
        ),
        "bases-figure": Study("Figure 4: CIFAR-FS 5-way 5-shot accuracy (%) with D bases", bases, "lines", "bases D"),
        "ways-figure": Study(
            f"Figure 5a: {trained}, 5 shots", ways, "lines", "ways", paper={"metavrf bilstm": {"100": "94†"}}
        ),
        "shots-figure": Study(f"Figure 5b: {trained}, MetaVRF with biLSTM", shots, "lines", "shots"),
    }


def of_our_own() -> dict[str, Study]:
    """What the paper does not ask."""
    protocols = [
        replace(cell, column=f"{cell.column}, {protocol}", test={**cell.test, "protocol": protocol})
        for task in ("omniglot", "cifar-fs")
        for cell in on_classes(task, photo_learners(), FIVE_WAYS)
        for protocol in ("inductive", "transductive")
    ]
    shown = {"accuracy (%)": "mean", "nll": "nll", "calibration error": "ece"}
    calibration = [
        replace(cell, column=column, show=show)
        for cell in on_classes("cifar-fs", photo_learners("matching", "r2d2", "versa"), ((5, 5),))
        for column, show in shown.items()
    ]
    title = "Are probabilities right? CIFAR-FS 5-way 5-shot, accuracy against confidence"
    return {
        "protocol-table": Study("May a prediction see the other queries? Accuracy (%) under both protocols", protocols),
        "adaptivity-table": adaptivity_table(),
        "stream-figure": streams("sine"),
        "mixture-table": mixture_table(),
        "oracle-table": oracle_table(),
        "calibration-figure": Study(title, calibration, "reliability", "confidence"),
        "learners-table": learners_table(),
        "equal-time-table": equal_time_table(),
    }


def of_inference() -> dict[str, Study]:
    """Smaller questions (docs/inference.md, docs/results.md)."""
    contexts: dict[str, Options] = {
        f"{context}, sees {inputs}": {**ONE_KERNEL, "context": context, "context_inputs": inputs}
        for inputs in ("x", "xy")
        for context in ("none", "lstm", "bilstm")
    }
    bases: dict[str, Options] = {
        f"{draw} {kind}": {**ONE_KERNEL, "context": "none", "draw": draw, "feature_map": kind}
        for kind in ("cosine", "sincos")
        for draw in ("fixed", "resampled")
    }
    bases["resampled sincos orthogonal"] = {**bases["resampled sincos"], "orthogonal": True}
    steps: dict[str, Options] = {
        f"{inner} inner steps": {"learner": "maml", "inner_steps": inner, **ONE_SHOT} for inner in (1, 5, 10)
    }
    few: Options = {"iterations": 2000, "components": 16, "guards": 3}
    exact = [
        replace(cell, row=f"exact, tested with {bases} features", test={**cell.test, "bases": bases})
        for bases in (256, 780, 4096)
        for cell in on_functions("sine", {"exact": few}, SHOTS)
    ]
    short: Options = {"iterations": 1500}
    moved: Options = {**short, "moves": True, "context_inputs": "xy"}
    evidence: dict[str, Options] = {
        kind: {**MANY_OF_CLASSES, **SHORT["cifar-fs"], "evidence": kind} for kind in ("marginal", "leave-one-out")
    }
    sources: dict[str, Training | Known] = {f"trained on {task}": Training(task) for task in ("gp-rbf", "gp-mixed")}
    sources["the best predictor of the mixture"] = Known("gp-mixed", BEST)
    processes = [
        Cell(row, f"{kind}, {show}", source, {"on": kind, "tasks": 200}, show)
        for kind in GP_KINDS
        for row, source in (sources | {"the best predictor of its kind": Known(kind, BEST)}).items()
        for show in ("mean", "nll")
    ]
    return {
        "contexts": Study(
            "One kernel: contexts, and what they see",
            on_functions("sine", contexts, SHOTS) + known("sine", SHOTS, AFFINE),
        ),
        "bases": Study("One kernel: how bases are drawn", on_functions("sine", bases, SHOTS)),
        "maml": Study("MAML on sine curves", on_functions("sine", steps, SHOTS)),
        "many-kernels": Study(
            "One model of many kernels at 2 to 20 points",
            on_functions("sine", {"many kernels": {}}, BANDS) + known("sine", BANDS[1:], AFFINE, BEST),
        ),
        "train-kernel": Study(
            "Exact kernels, or random features",
            on_functions("sine", {"exact": few, "features": {**few, "train_kernel": "features"}}, SHOTS) + exact,
        ),
        "moves": Study(
            "With and without a network that moves the kernels",
            on_functions(
                "sine", {"weighed": short, "moved": moved, "moved, with KL": {**moved, "kl_weight": 1e-3}}, SHOTS
            ),
        ),
        "drift": streams("sine-drift"),
        "neural-processes": Study("Draws of Gaussian processes: trained on one kind, or on three", processes),
        "class-evidence": Study(
            "Evidence of classes: validation classes of CIFAR-FS",
            on_classes("cifar-fs", evidence, FIVE_WAYS, scratch=True, part="val", tasks=600),
        ),
    }


MOVED = {"rff": "sine-figure", "streams": "stream-figure", "sine-maml": "oracle-table"}
MOVED |= {"neural-processes-mixed": "neural-processes"}
MOVED |= dict.fromkeys(("mixed", "omniglot", "cifar-fs", "mixed-images"), "mixture-table")


def catalog() -> dict[str, Study]:
    """All studies by name; made anew, as plugins may have added learners and families."""
    return of_the_paper() | of_our_own() | of_inference()


def chosen(names: Sequence[str]) -> dict[str, Study]:
    """The studies of these names; former names of studies that were moved into others are known too."""
    known_studies = catalog()
    wanted = list(dict.fromkeys(MOVED.get(name, name) for name in names))
    for name in wanted:
        if name not in known_studies:
            raise UserError(unknown("study", name, list(known_studies), ""))
    return {name: known_studies[name] for name in wanted}
