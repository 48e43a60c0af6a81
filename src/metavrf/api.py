"""What one does with finished runs: load, evaluate, compare."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from metavrf.adaptivity import adaptivity as measured_adaptivity
from metavrf.config import TEST_EPISODES, TEST_SEED, TEST_TASKS, Config
from metavrf.episodes import Episodes
from metavrf.errors import UserError
from metavrf.evaluation import (
    Difference,
    Evaluation,
    Tasks,
    evaluate_learner,
    grouped,
    milliseconds_to_adapt,
    nll_differences,
    paired_differences,
)
from metavrf.learners import build
from metavrf.learners.base import Learner
from metavrf.learners.kernel import KernelLearner
from metavrf.learners.limits import limits as known_limits
from metavrf.randomness import stream as seeded
from metavrf.run import Run, load_weights
from metavrf.studies.published import published
from metavrf.tasks.functions import families, family, is_family
from metavrf.tasks.source import Description, open_tasks

PathLike = str | os.PathLike[str]
TIMED_TASKS = 20
BEST = "Bayes-optimal"


def load(path: PathLike, *, bases: int | None = None, samples: int | None = None, draw: int | None = None) -> Learner:
    """The best model of a run, in evaluation mode.

    Args:
        path: the run directory; or a model that comes with the package ("omniglot", "sine", "photos"); or one on the
            Hugging Face hub, "hf://owner/name" (needs the extra 'hub').
        bases: use this many random features D instead of the saved ones.
        samples: use this many posterior samples L.
        draw: draw the bases anew from this seed. Without any of the three the saved bases are used, and the
            model predicts the same to the bit as when it was saved.
    """
    run = Run.open(path)
    learner = build(run.config(), describe(run))
    tensors, _ = run.load_model()
    load_weights(learner, tensors, str(run.model_file))
    if bases is not None or samples is not None or draw is not None:
        if not isinstance(learner, KernelLearner):
            raise UserError(f"{run.path} has no random bases to draw anew")
        if draw is not None and draw < 0:
            raise UserError(f"{draw=} must not be negative")
        learner.redraw(seeded(draw or 0, "bases"), bases, samples)
    return learner.eval()


def describe(run: Run) -> Description:
    """What the run's model must know of its tasks."""
    values = run.data()
    try:
        return Description() if values is None else Description.from_dict(values)
    except (KeyError, TypeError) as error:
        raise UserError(f"{run.data_file} was not written by this version of metavrf ({error})") from error


def test_tasks(
    config: Config,
    tasks: int | None = None,
    shot: int | None = None,
    seed: int = TEST_SEED,
    *,
    way: int | None = None,
    query: int | None = None,
    data: str | None = None,
    within_alphabet: bool = False,
    trained_on: Description | None = None,
    part: str = "test",
    stream: int | None = None,
) -> Tasks:
    """The test tasks of a run, fixed by the seed; what is not given is as in training.

    ``trained_on`` holds the run's own class lists: tests never touch a class that was trained or validated on. Tasks of
    unequal size, where a family has such and no ``shot`` is given, are several records.
    """
    shape = config.episode
    shape = replace(
        shape,
        stream=shape.stream if stream is None else stream,
        shot=shape.shot if shot is None else shot,
        way=shape.way if way is None else way,
        test_query=shape.test_query if query is None else query,
    )
    settings = config.data if data is None else replace(config.data, data=data)
    source = open_tasks(config.task, settings, trained_on=trained_on)
    regression = source.description.targets is not None
    tasks = (TEST_TASKS if regression else TEST_EPISODES) if tasks is None else tasks
    if shape.shot < 1 or tasks < 2:
        raise UserError(f"shot={shape.shot} and {tasks=}: give at least 1 shot and 2 tasks")
    if part not in ("test", "val"):
        raise UserError(f"{part=} is not a choice: give test or val")
    if shape.stream < 1:
        raise UserError(f"stream = {shape.stream} must be at least 1")
    generator = seeded(seed, "test" if part == "test" else "validation")
    if shot is None and not within_alphabet and shape.stream == 1:
        groups = source.groups(part, tasks, shape, generator)
        return groups[0] if len(groups) == 1 else groups
    return source.held_out(part, tasks, shape, generator, within_group=within_alphabet)


def evaluate(
    run: PathLike,
    *,
    tasks: int | None = None,
    shot: int | None = None,
    seed: int = TEST_SEED,
    batch: int | None = None,
    bases: int | None = None,
    samples: int | None = None,
    draw: int | None = None,
    way: int | None = None,
    query: int | None = None,
    protocol: str = "inductive",
    statistics: str | None = None,
    own_share: float = 1.0,
    views: str = "one",
    within_alphabet: bool = False,
    data: str | None = None,
    part: str = "test",
    stream: int | None = None,
    on: str | None = None,
    adaptivity: bool = False,
) -> Evaluation:
    """Test a run on tasks fixed by ``seed``; way, shot and query may differ from training.

    Args:
        run: the run directory, or the name of a shipped model.
        tasks: number of test tasks (episodes).
        shot: support samples a class; or a task, in regression.
        seed: of the test tasks.
        batch: tasks solved at a time; it changes nothing but speed.
        bases: as for :func:`load`.
        samples: as for :func:`load`.
        draw: as for :func:`load`.
        way: classes a task.
        query: query samples a class.
        protocol: "inductive", or "transductive": normalise by the statistics of the whole episode.
        statistics: of the inductive protocol: "running" (the default), or of the "support" alone.
        own_share: weight of the support's or episode's statistics, the rest being that of running ones.
        views: of a picture, over which its features are averaged: "flip", "shift" or "flip-shift".
        within_alphabet: draw all classes of an omniglot task from one alphabet.
        data: folder of the data sets, or the feature file.
        part: "test", or "val" for validation classes, on which anything may be chosen.
        stream: tasks of a stream: each may look back at the supports of those before it; 1 for tasks that stand alone.
        on: a family of functions to test on, if other than the one trained on.
        adaptivity: also answer the tasks with the mean and with another task's inference (:mod:`metavrf.adaptivity`).
    """
    opened = Run.open(run)
    description = describe(opened)
    learner = load(run, bases=bases, samples=samples, draw=draw)
    learner.follow(protocol, statistics, own_share, views)
    config = opened.config()
    if on is not None and not (is_family(on) and is_family(config.task)):
        raise UserError(f"{on=} is for runs on functions: give one of {', '.join(families())}")
    episodes = test_tasks(
        config if on is None else replace(config, task=on),
        tasks,
        shot,
        seed,
        way=way,
        query=query,
        data=data,
        within_alphabet=within_alphabet,
        trained_on=description,
        part=part,
        stream=stream,
    )
    labels: dict[str, Any] = (
        {} if description.targets else {"split": description.split, "within_alphabet": within_alphabet}
    )
    if description.pretraining:
        labels["pretraining"] = description.pretraining
    if part != "test":
        labels["part"] = part
    if on is not None:
        labels["on"] = on
    if adaptivity:
        labels["adaptivity"] = measured_adaptivity(learner, episodes, batch)
    return evaluate_learner(learner, episodes, seed, batch, **labels)


def figure_tasks(config: Config, result: Evaluation) -> Episodes:
    """A few tasks to draw that no table is made of: three functions, or one task of validation classes."""
    shot = config.episode.shot if result.shot is None else result.shot
    shape = replace(config.episode, shot=shot, way=result.way or config.episode.way, stream=1)
    source = open_tasks(config.task, config.data)
    return source.held_out("val", 3 if result.way is None else 1, shape, seeded(3, "figure"))


def limits(
    task: str, *, shot: int | None, tasks: int = TEST_TASKS, seed: int = TEST_SEED, part: str = "test"
) -> dict[str, Evaluation]:
    """What no learner can beat on the same test tasks, by name; empty where it is not known."""
    episodes = test_tasks(Config(task), tasks, shot, seed, part=part)
    known = known_limits(family(task)) if shot is None or shot > 1 else {}
    return {name: evaluate_learner(limit, episodes, seed) for name, limit in known.items()}


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


def compare(
    runs: Sequence[PathLike],
    *,
    tasks: int | None = None,
    shot: int | None = None,
    seed: int = TEST_SEED,
    floor: bool = True,
    way: int | None = None,
    protocols: Sequence[str] = ("inductive",),
    **options: Any,
) -> list[Row]:
    """Test runs on the same tasks; each row has its paired difference to the first run.

    ``floor`` adds the limits that no learner can beat, where they are known. Each run is tested under each of the
    ``protocols``. ``options`` are as for :func:`evaluate`.
    """
    if not runs:
        raise UserError("give at least one run to compare")
    configs = [Run.open(run).config() for run in runs]
    if len({config.task for config in configs}) > 1:
        raise UserError("runs on different tasks cannot be compared: " + ", ".join(c.task for c in configs))
    if shot is None and len({config.episode.shot for config in configs}) > 1:
        raise UserError("these runs were trained for different shots: say at which to compare them with --shot")
    unequal = is_family(configs[0].task) and family(configs[0].task).unequal
    shot = configs[0].episode.shot if shot is None and not unequal else shot
    way = configs[0].episode.way if way is None else way
    if options.get("stream") is None:
        options["stream"] = configs[0].episode.stream
    tested: list[tuple[str, Evaluation, Facts | None]] = []
    for protocol in protocols:
        for run in runs:
            asked: dict[str, Any] = {"shot": shot, "way": way, "seed": seed, "protocol": protocol, **options}
            evaluation = evaluate(run, tasks=tasks, **asked)
            timed = {name: value for name, value in asked.items() if name != "adaptivity"}
            tested.append((str(run), evaluation, _facts(run, evaluation, **timed)))
    known: dict[str, Evaluation] = {}
    if floor and is_family(configs[0].task) and options["stream"] == 1:
        part = options.get("part", "test")
        known = limits(configs[0].task, shot=shot, tasks=tasks or TEST_TASKS, seed=seed, part=part)
        tested += [(name, evaluation, None) for name, evaluation in known.items()]
    evaluations = [evaluation for _, evaluation, _ in tested]
    differences = paired_differences(evaluations)
    above = nll_differences(evaluations, known.get(BEST)) if BEST in known else [None] * len(tested)
    likelihoods = nll_differences(evaluations, evaluations[0])
    return [
        Row(name, e, d, facts, gap, nll)
        for (name, e, facts), d, gap, nll in zip(tested, differences, above, likelihoods, strict=True)
    ]


def _facts(
    run: PathLike,
    evaluation: Evaluation,
    *,
    protocol: str,
    statistics: str | None = None,
    own_share: float = 1.0,
    views: str = "one",
    within_alphabet: bool = False,
    **shape: Any,
) -> Facts:
    """Facts of a run as it was tested; the time is measured on the first of the test tasks."""
    opened = Run.open(run)
    config, result = opened.config(), opened.result() or {}
    learner = load(run)
    learner.follow(protocol, statistics, own_share, views)
    timed = test_tasks(config, TIMED_TASKS, within_alphabet=within_alphabet, **shape)
    return Facts(
        learner=config.learner,
        parameters=sum(parameter.numel() for parameter in learner.parameters()),
        adapt_ms=milliseconds_to_adapt(learner, grouped(timed)[0]),
        train_seconds=result.get("train_seconds"),
        train_cpu_seconds=result.get("train_cpu_seconds"),
        published="" if evaluation.shot is None else published(config, evaluation.way, evaluation.shot),
    )
