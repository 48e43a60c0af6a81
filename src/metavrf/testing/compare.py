"""Several runs tested on the same tasks, with paired differences and the limits that no learner can beat."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from metavrf.config import Config
from metavrf.errors import UserError
from metavrf.files import PathLike
from metavrf.learners.measuring import Tasks, grouped
from metavrf.model import TrainedModel
from metavrf.tasks.functions import family
from metavrf.testing.evaluate import evaluate_model, open_model, test_tasks
from metavrf.testing.evaluation import (
    Difference,
    Evaluation,
    evaluate_learner,
    milliseconds_to_adapt,
    nll_differences,
    paired_differences,
)
from metavrf.testing.limits import limits as known_limits
from metavrf.testing.published import published
from metavrf.testing.settings import EvalSettings, eval_settings

TIMED_TASKS = 20
BEST = "Bayes-optimal"


@dataclass(frozen=True)
class Facts:
    """What a comparison says of a run beside its figures."""

    learner: str
    parameters: int
    adapt_ms: float
    """Milliseconds to solve one task alone, from its inputs to its answers."""
    train_seconds: float | None
    train_cpu_seconds: float | None
    published: str
    """What the MetaVRF paper's tables say of this learner; † where that figure is known to be transductive."""


@dataclass(frozen=True)
class Row:
    """One line of a comparison."""

    name: str
    evaluation: Evaluation
    difference: Difference
    facts: Facts | None = None
    """None for a limit."""
    above_limit: Difference | None = None
    """How far its nll is above that of the best known predictor; None where none is known."""
    nll_difference: Difference | None = None
    """Of its nll to the first run's, task by task."""
    bounded: bool = True
    """Whether nll and band mean something. Without noise the best predictor's likelihood has no bound, and what is
    computed is that of its grid."""


def compare(
    runs: Sequence[PathLike | TrainedModel], settings: EvalSettings | None = None, *, floor: bool = True, **options: Any
) -> list[Row]:
    """Test runs on the same tasks; each row has its paired difference to the first run.

    Args:
        runs: run directories, names of shipped models, or opened ones.
        settings: how to test, as for :func:`metavrf.evaluate`; with protocol "both" each run is tested under both.
        floor: add the limits that no learner can beat, where they are known.
        options: fields of the settings by name: ``tasks=1000, shot=5``.
    """
    asked = eval_settings(settings, options)
    if not runs:
        raise UserError("give at least one run to compare")
    models = [open_model(run, asked) for run in runs]
    names = [_name(run) for run in runs]
    asked = _common(asked, models)
    tested: list[tuple[str, Evaluation, Facts | None]] = []
    tasks: dict[str, Tasks] = {}  # drawn once for models that have the same data
    for test in asked.each():
        for name, model in zip(names, models, strict=True):
            key = f"{model.config.data} {sorted(model.spec.to_dict().items())}"
            if key not in tasks:
                tasks[key] = test_tasks(model.config, model.spec, test)
            evaluation = evaluate_model(model, test, tasks[key])
            tested.append((name, evaluation, _facts(model, evaluation, test, tasks[key])))
    known: dict[str, Evaluation] = {}
    first = models[0]
    if floor and first.spec.regression and first.spec.columns is None and asked.stream == 1 and asked.shot != 1:
        known = _limits(asked.on or first.config.task, next(iter(tasks.values())), asked.seed)
        tested += [(name, evaluation, None) for name, evaluation in known.items()]
    unbounded = BEST in known and not family(asked.on or first.config.task).noise
    evaluations = [evaluation for _, evaluation, _ in tested]
    differences = paired_differences(evaluations)
    above = nll_differences(evaluations, None if unbounded else known.get(BEST))
    likelihoods = nll_differences(evaluations, evaluations[0])
    return [
        Row(name, e, d, facts, gap, nll, bounded=not (unbounded and facts is None and name == BEST))
        for (name, e, facts), d, gap, nll in zip(tested, differences, above, likelihoods, strict=True)
    ]


def limits(task: str, settings: EvalSettings | None = None, **options: Any) -> dict[str, Evaluation]:
    """What no learner can beat on a family's test tasks, by name; empty where it is not known."""
    asked = eval_settings(settings, options)
    return _limits(task, test_tasks(Config.of(task), None, asked), asked.seed) if asked.shot != 1 else {}


def _name(run: PathLike | TrainedModel) -> str:
    """A run as the user calls it."""
    return run.called if isinstance(run, TrainedModel) else str(run)


def _limits(task: str, episodes: Tasks, seed: int) -> dict[str, Evaluation]:
    return {name: evaluate_learner(limit, episodes, seed) for name, limit in known_limits(family(task)).items()}


def _common(settings: EvalSettings, models: Sequence[TrainedModel]) -> EvalSettings:
    """Settings that hold for all models: what is left out is as the first was trained, if the others were too."""
    configs = [model.config for model in models]
    if len({config.task for config in configs}) > 1 and settings.on is None:
        raise UserError("runs on different tasks cannot be compared: " + ", ".join(c.task for c in configs))
    first, regression = configs[0], models[0].spec.regression
    given: dict[str, Any] = {}
    for name, trained in (("shot", "shot"), *(() if regression else (("query", "test_query"),))):
        if getattr(settings, name) is None and len({getattr(config.episode, trained) for config in configs}) > 1:
            raise UserError(f"these runs differ in --{name}: say at which {name} to compare them")
    unequal = regression and not first.data.group and family(settings.on or first.task).unequal
    if settings.shot is None and not unequal:
        given["shot"] = first.episode.shot
    if settings.way is None and not regression:
        given["way"] = first.episode.way
    if settings.stream is None:
        given["stream"] = first.episode.stream
    return replace(settings, **given)


def _facts(model: TrainedModel, evaluation: Evaluation, settings: EvalSettings, tasks: Tasks) -> Facts:
    """Facts of a run as it was tested; the time is measured on the first of the test tasks."""
    result = model.result or {}
    timed = grouped(tasks)[0][:TIMED_TASKS]
    learner = model.learner
    return Facts(
        learner=model.config.learner,
        parameters=sum(parameter.numel() for parameter in learner.parameters()),
        adapt_ms=milliseconds_to_adapt(learner, timed, settings.named_protocol()),
        train_seconds=result.get("train_seconds"),
        train_cpu_seconds=result.get("train_cpu_seconds"),
        published="" if evaluation.shot is None else published(model.config, evaluation.way, evaluation.shot),
    )
