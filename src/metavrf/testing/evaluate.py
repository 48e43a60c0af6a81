"""A model tested on tasks that are fixed by a seed."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from metavrf.config import Config
from metavrf.episodes import Episodes
from metavrf.files import PathLike
from metavrf.learners.measuring import Tasks, few_threads
from metavrf.model import TrainedModel, load
from metavrf.randomness import stream
from metavrf.spec import TaskSpec
from metavrf.tasks.curves import CurveTasks
from metavrf.tasks.functions import FAMILIES
from metavrf.tasks.source import open_tasks
from metavrf.testing.adaptivity import adaptivity
from metavrf.testing.evaluation import Evaluation, evaluate_learner
from metavrf.testing.settings import TEST_EPISODES, TEST_TASKS, EvalSettings, eval_settings

GROUPS_DRAWN = 4  # of a run on curves


def evaluate(run: PathLike | TrainedModel, settings: EvalSettings | None = None, **options: Any) -> Evaluation:
    """Test a run on tasks fixed by a seed; way, shot and query may differ from training.

    Args:
        run: the run directory, the name of a shipped model, or an opened one.
        settings: how to test (:class:`metavrf.EvalSettings`).
        options: fields of the settings by name: ``tasks=1000, shot=5``.
    """
    asked = eval_settings(settings, options)
    model = open_model(run, asked)
    return evaluate_model(model, asked, test_tasks(model.config, model.spec, asked))


def open_model(run: PathLike | TrainedModel, settings: EvalSettings) -> TrainedModel:
    """The model to test, with other bases where the settings ask for them."""
    redrawn = {name: getattr(settings, name) for name in ("bases", "samples", "draw")}
    if isinstance(run, TrainedModel) and all(value is None for value in redrawn.values()):
        return run
    return load(run.run.path if isinstance(run, TrainedModel) else run, **redrawn)


def test_tasks(config: Config[Any], spec: TaskSpec | None, settings: EvalSettings) -> Tasks:
    """The test tasks of a configuration, fixed by the seed; what is not given is as in training.

    ``spec`` is what a model was trained on: tests never touch a class that was trained or validated on. Tasks of
    unequal size, where a family has such and no shot is given, are several records.
    """
    regression = config.kind == "functions" if spec is None else spec.regression
    settings.check(regression=regression, curves=bool(config.data.group))
    if settings.on is not None:
        FAMILIES[settings.on]
    shape = config.episode
    given = {"stream": settings.stream, "shot": settings.shot, "way": settings.way, "test_query": settings.query}
    shape = replace(shape, **{name: value for name, value in given.items() if value is not None})
    where = config.data if settings.data is None else replace(config.data, data=settings.data)
    source = open_tasks(settings.on or config.task, where, trained_on=spec)
    tasks = (TEST_TASKS if regression else TEST_EPISODES) if settings.tasks is None else settings.tasks
    generator = stream(settings.seed, "test" if settings.part == "test" else "validation")
    if isinstance(source, CurveTasks):  # each group once, unless told otherwise: tasks of one are not independent
        return source.groups(settings.part, settings.tasks or 1, shape, generator, fixed_shot=True)
    if settings.shot is None and not settings.within_alphabet and shape.stream == 1:
        groups = source.groups(settings.part, tasks, shape, generator)
        return groups[0] if len(groups) == 1 else groups
    return source.held_out(settings.part, tasks, shape, generator, within_group=settings.within_alphabet)


def evaluate_model(model: TrainedModel, settings: EvalSettings, episodes: Tasks) -> Evaluation:
    """Test a model on given tasks, and label the figures as the settings say."""
    spec, protocol = model.spec, settings.named_protocol()
    model.learner.check_protocol(protocol)
    labels: dict[str, Any] = {}
    if not spec.regression:
        labels = {"split": spec.split, "within_alphabet": settings.within_alphabet}
    if spec.columns is not None:
        labels |= {"split": spec.split, "units": "those of " + ", ".join(spec.columns.targets)}
    if spec.pretraining:
        labels["pretraining"] = spec.pretraining
    if settings.part != "test":
        labels["part"] = settings.part
    if settings.on is not None:
        labels["on"] = settings.on
    with few_threads(model.learner):
        if settings.adaptivity:
            labels["adaptivity"] = adaptivity(model.learner, episodes, settings.batch, protocol)
        return evaluate_learner(model.learner, episodes, settings.seed, settings.batch, protocol, **labels)


def figure_curves(model: TrainedModel, shot: int, settings: EvalSettings | None = None) -> list[tuple[str, Episodes]]:
    """The largest test groups of a run on curves, each with its name: a random support, the other rows as queries."""
    data = None if settings is None else settings.data
    where = model.config.data if data is None else replace(model.config.data, data=data)
    source = open_tasks(model.config.task, where, trained_on=model.spec)
    assert isinstance(source, CurveTasks)
    return source.named("test", GROUPS_DRAWN, shot, stream(3, "figure"))


def figure_tasks(model: TrainedModel, result: Evaluation, settings: EvalSettings | None = None) -> Episodes:
    """A few tasks to draw that no table is made of: three functions, or one task of validation classes."""
    config = model.config
    data = None if settings is None else settings.data
    shot = config.episode.shot if result.shot is None else result.shot
    shape = replace(config.episode, shot=shot, way=result.way or config.episode.way, stream=1)
    source = open_tasks(config.task, config.data if data is None else replace(config.data, data=data))
    return source.held_out("val", 3 if result.way is None else 1, shape, stream(3, "figure"))
