"""Tables of functions: sine, Gaussian processes, a family of one's own."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from statistics import median

from tabled.figures import SHOTS, Result, Rows, band, error, number, over_seeds, result, select, table, tidy


def limits(name: str) -> list[float]:
    """Errors of a limit of sine curves, by shots."""
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
        ("best predictor affine in y", "exact limit", limits("best affine predictor")),
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
        ("Bayes-optimal", "exact limit", limits("Bayes-optimal")),
    ]
    columns = ["mean squared error", "trained with", *(f"{shot} points" for shot in SHOTS)]
    return [columns, *([name, how, *map(number, values)] for name, how, values in lines)]


@table("sine-limits")
def sine_limits() -> Rows:
    """What no learner can beat on the test tasks."""
    known = result("sine-contexts-x")["limits"]
    return [
        ["points", "limit", "mean squared error", "nll"],
        *([str(limit["shot"]), limit["limit"], error(limit), likelihood(limit["limit"], limit)] for limit in known),
    ]


def likelihood(name: str, test: Result) -> str:
    """The nll of a line about sine curves. They have no noise, so the best predictor's has no bound."""
    return "" if name == "Bayes-optimal" else f"{test['nll']:.2f}"


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
