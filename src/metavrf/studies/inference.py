"""Studies of inference: what weighing many kernels by their evidence gains, and where (docs/inference.md)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import fmean
from typing import Any

from metavrf.config import Config
from metavrf.model import load
from metavrf.studies.processes import fitted_process, oracle_on
from metavrf.studies.sine import train_apart
from metavrf.testing.compare import limits
from metavrf.testing.evaluate import evaluate

Options = dict[str, Any]
BANDS = (2, 3, 4, 5, 6, 8, 10, 12, 15, 20)
GP_KINDS = ("gp-rbf", "gp-matern", "gp-periodic")
STREAM: Options = {"stream": 10, "batch": 30, "shot": 3, "train_shot": 2, "most_shot": 6, "iterations": 4000}
FITTED = "a Gaussian process per task, the better of RBF and RBF × periodic"
ONE_SHOT: Options = {"train_shot": 0, "most_shot": 0}


@dataclass(frozen=True)
class Plan:
    """A question: what is trained, and how all of it is tested."""

    task: str
    trainings: dict[str, Options]
    """Settings by name; ``learner`` and ``task`` among them."""
    tests: list[Options] = field(default_factory=list)
    """Options of :func:`metavrf.evaluate`, for every training; each may say ``only``, the names it is for."""
    limits: list[Options] = field(default_factory=list)
    """Options of the family's limits on the same tasks, with ``task``; ``on`` another family's tasks, where given."""
    processes: list[Options] = field(default_factory=list)
    """Options of Gaussian processes fitted to each task alone."""
    once: tuple[str, ...] = ()
    """Trainings of the first seed alone."""


def baselines(shot: int) -> dict[str, Options]:
    """The learners with one kernel or none, trained for one number of shots."""
    single: Options = {"shot": shot, "iterations": 2000, "validate_every": 1000} | ONE_SHOT
    return {
        f"{learner}-{shot}": {"learner": learner} | single | ({"inner_steps": 5} if learner == "maml" else {})
        for learner in ("shared", "rff", "rbf", "maml")
    }


PLANS = {
    "many-kernels": Plan(
        "sine",
        {"metavrf": {}},
        [{"shot": shot, "adaptivity": shot == 5} for shot in BANDS],
        [{"task": "sine", "shot": shot} for shot in (3, 5, 10)],
    ),
    "train-kernel": Plan(
        "sine",
        {
            "exact": {"iterations": 2000, "components": 16, "guards": 3},
            "features": {"iterations": 2000, "components": 16, "guards": 3, "train_kernel": "features"},
        },
        [{"shot": shot} for shot in (3, 5, 10)]
        + [{"shot": shot, "bases": bases, "only": ["exact"]} for bases in (256, 780, 4096) for shot in (3, 5, 10)],
    ),
    "moves": Plan(
        "sine",
        {
            "weights": {"iterations": 1500},
            "moved": {"iterations": 1500, "moves": True, "context_inputs": "xy"},
            "moved-kl": {"iterations": 1500, "moves": True, "context_inputs": "xy", "kl_weight": 1e-3},
        },
        [{"shot": shot} for shot in (3, 5, 10)],
    ),
    "streams": Plan(
        "sine",
        {context: STREAM | {"context": context} for context in ("none", "bayes", "lstm", "bilstm")},
        [{"shot": 3, "stream": 10, "tasks": 2000}],
    ),
    "drift": Plan(
        "sine-drift",
        {context: STREAM | {"context": context} for context in ("none", "bayes", "lstm", "bilstm")},
        [{"shot": 3, "stream": 10, "tasks": 2000}],
    ),
    "sine-maml": Plan(
        "sine-maml",
        {"metavrf": {"iterations": 2000}},
        [{"shot": 5, "tasks": 2000}, {"shot": 10, "tasks": 2000}],
        [{"task": "sine-maml", "shot": 5, "tasks": 2000}, {"task": "sine-maml", "shot": 10, "tasks": 2000}],
    ),
    "neural-processes": Plan(
        "gp-rbf",
        {"rbf": {}},
        [{"on": kind, "tasks": 1000} for kind in GP_KINDS],
        [{"task": kind, "shot": None, "tasks": 1000} for kind in GP_KINDS[:2]],
    ),
    "neural-processes-mixed": Plan(
        "gp-mixed",
        {"mixed": {}},
        [{"on": kind, "tasks": 200} for kind in GP_KINDS],
        [{"task": kind, "shot": None, "tasks": 200} for kind in GP_KINDS]
        + [{"task": "gp-mixed", "on": kind, "tasks": 200} for kind in GP_KINDS],
    ),
    "mixed": Plan(
        "mixed",
        {"metavrf": {"iterations": 6000}} | baselines(5) | baselines(10),
        [{"shot": shot, "tasks": 1000, "only": ["metavrf", *baselines(shot)], "adaptivity": True} for shot in (5, 10)],
        [{"task": "mixed", "shot": shot, "tasks": 200} for shot in (5, 10)],
        processes=[{"task": "mixed", "shot": shot, "tasks": 200} for shot in (5, 10)],
        once=(*baselines(5), *baselines(10)),
    ),
}


MANY_OF_CLASSES: Options = {"components": 8, "train_kernel": "exact", "context_inputs": "xy"}
SHORT: dict[str, Options] = {  # so that one thread takes a few minutes
    "mixed-images": {"iterations": 500, "validate_every": 250, "validate_tasks": 200},
    "cifar-fs": {"iterations": 400, "validate_every": 200, "validate_tasks": 200},
    "omniglot": {"iterations": 400, "validate_every": 200, "validate_tasks": 200, "train_way": 30},
}


def _of_classes(task: str) -> Plan:
    """One kernel and many, and the baselines, on classes: a few minutes of one thread each."""
    learners: dict[str, Options] = {"many-kernels": MANY_OF_CLASSES, "one-kernel": {}, "shared": {"learner": "shared"}}
    if task == "mixed-images":
        learners |= {learner: {"learner": learner} for learner in ("rff", "rbf", "prototypical")}
    tests: list[Options] = [{"way": 5, "shot": shot, "tasks": 1000, "adaptivity": True} for shot in (1, 5)]
    return Plan(task, {name: SHORT[task] | options for name, options in learners.items()}, tests)


PLANS |= {task: _of_classes(task) for task in SHORT}
PLANS["class-evidence"] = Plan(
    "cifar-fs",
    {name: SHORT["cifar-fs"] | MANY_OF_CLASSES | {"evidence": name} for name in ("marginal", "leave-one-out")},
    [{"way": 5, "shot": shot, "tasks": 600, "part": "val", "adaptivity": True} for shot in (1, 5)],
)


def run(
    name: str, out: Path, seeds: Sequence[int], iterations: int | None, workers: int
) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Train what is not trained yet, one thread each; then test everything. Returns the rows and the limits."""
    plan = PLANS[name]
    configs = {
        f"{training}-seed{seed}": _config(plan.task, options | {"seed": seed}, iterations)
        for seed in seeds
        for training, options in plan.trainings.items()
        if seed == seeds[0] or training not in plan.once
    }
    train_apart(configs, out, workers)
    rows = []
    for run_name, config in configs.items():
        training, _, seed = run_name.rpartition("-seed")
        model = load(out / run_name)
        for test in plan.tests:
            asked = {key: value for key, value in test.items() if key != "only"}
            if training in test.get("only", [training]):
                result = evaluate(model, **asked).to_dict()
                about = _about(config, model.result or {})
                rows.append({"training": training, "train_seed": int(seed), "test": asked, **result} | about)
    known = [
        {"limit": limit, "test": options, **figures}
        for options in plan.limits
        for limit, figures in _limits(options).items()
    ]
    known += [{"limit": FITTED, "test": options, **fitted_process(**options)} for options in plan.processes]
    return rows, known


def _limits(options: Options) -> dict[str, dict[str, Any]]:
    if "on" in options:
        return oracle_on(**options)
    return {limit: evaluation.to_dict() for limit, evaluation in limits(**options).items()}


def over_seeds(rows: Sequence[dict[str, Any]]) -> list[dict[str, str]]:
    """One line for each training and test: the mean over seeds, and the range of the error."""
    groups: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for row in rows:
        asked = ", ".join(f"{key} {value}" for key, value in row["test"].items() if value not in (None, False))
        groups.setdefault((row["training"], asked), []).append(row)
    lines = []
    for (training, asked), members in groups.items():
        means = [row["mean"] for row in members]
        line = {
            "training": training,
            "tested at": asked,
            "seeds": str(len(members)),
            members[0]["metric"]: f"{fmean(means):.4g}",
            "range over seeds": f"{min(means):.4g} to {max(means):.4g}",
            "nll": f"{fmean(row['nll'] for row in members):.4g}",
            "in the 90 % band": _share(members, "coverage90"),
            "last of the stream": "",
        }
        if "by_position" in members[0]:
            line["last of the stream"] = f"{fmean(row['by_position'][-1] for row in members):.4g}"
        lines.append(line)
    return lines


def positions(rows: Sequence[dict[str, Any]]) -> dict[str, list[float]]:
    """The error at each place of a stream, by training, as the mean over seeds; empty where there are no streams."""
    found: dict[str, list[list[float]]] = {}
    for row in rows:
        if "by_position" in row:
            found.setdefault(row["training"], []).append(row["by_position"])
    return {name: [fmean(place) for place in zip(*seeds, strict=True)] for name, seeds in found.items()}


def _share(members: Sequence[dict[str, Any]], name: str) -> str:
    return f"{100 * fmean(row[name] for row in members):.1f} %" if name in members[0] else ""


def _config(task: str, options: Options, iterations: int | None) -> Config[Any]:
    length = {} if iterations is None else {"iterations": iterations}
    asked: Options = {"task": task, "threads": 1} | options | length
    return Config.of(**asked)


def _about(config: Config[Any], trained: dict[str, Any]) -> dict[str, Any]:
    return {
        "learner": config.learner,
        "task": config.task,
        "iterations": config.training.iterations,
        "train_seconds": trained.get("train_seconds"),
        "train_cpu_seconds": trained.get("train_cpu_seconds"),
        "validation": trained.get("validation"),
    }
