"""What one does with finished runs: load, evaluate, compare."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass

from metavrf.config import TEST_SEED, TEST_TASKS, Config
from metavrf.episodes import Episodes
from metavrf.errors import UserError
from metavrf.evaluation import (
    BATCH,
    Difference,
    Evaluation,
    evaluate_learner,
    paired_differences,
)
from metavrf.learners import build
from metavrf.learners.base import Learner
from metavrf.learners.limits import sine_limits
from metavrf.learners.metavrf import KernelLearner
from metavrf.randomness import stream
from metavrf.run import Run, load_weights
from metavrf.tasks.functions import family

PathLike = str | os.PathLike[str]


def load(path: PathLike, *, bases: int | None = None, samples: int | None = None, draw: int | None = None) -> Learner:
    """The best model of a run, in evaluation mode.

    Args:
        path: the run directory.
        bases: use this many random features D instead of the saved ones.
        samples: use this many posterior samples L.
        draw: draw the bases anew from this seed. Without any of the three the saved bases are used, and the
            model predicts the same to the bit as when it was saved.
    """
    run = Run.open(path)
    learner = build(run.config())
    tensors, _ = run.load_model()
    load_weights(learner, tensors, str(run.model_file))
    if bases is not None or samples is not None or draw is not None:
        if not isinstance(learner, KernelLearner):
            raise UserError(f"{run.path} has no random bases to draw anew")
        if draw is not None and draw < 0:
            raise UserError(f"{draw=} must not be negative")
        learner.redraw(stream(draw or 0, "bases"), bases, samples)
    return learner.eval()


def test_tasks(config: Config, tasks: int = TEST_TASKS, shot: int | None = None, seed: int = TEST_SEED) -> Episodes:
    """The test tasks of a task family, fixed by the seed."""
    shot = config.episode.shot if shot is None else shot
    if shot < 1 or tasks < 2:
        raise UserError(f"{shot=} and {tasks=}: give at least 1 shot and 2 tasks")
    return family(config.task).sample_grid(tasks, shot, stream(seed, "test"))


def evaluate(
    run: PathLike,
    *,
    tasks: int = TEST_TASKS,
    shot: int | None = None,
    seed: int = TEST_SEED,
    batch: int = BATCH,
    bases: int | None = None,
    samples: int | None = None,
    draw: int | None = None,
) -> Evaluation:
    """Test a run on tasks fixed by ``seed``; ``shot`` may differ from training. The rest as for :func:`load`."""
    learner = load(run, bases=bases, samples=samples, draw=draw)
    return evaluate_learner(learner, test_tasks(Run.open(run).config(), tasks, shot, seed), seed, batch)


def limits(task: str, *, shot: int, tasks: int = TEST_TASKS, seed: int = TEST_SEED) -> dict[str, Evaluation]:
    """What no learner can beat on the same test tasks, by name; empty where it is not known."""
    episodes = test_tasks(Config(task), tasks, shot, seed)
    known = sine_limits(family(task)) if shot > 1 else {}
    return {name: evaluate_learner(limit, episodes, seed) for name, limit in known.items()}


@dataclass(frozen=True)
class Row:
    """One line of a comparison."""

    name: str
    evaluation: Evaluation
    difference: Difference


def compare(
    runs: Sequence[PathLike],
    *,
    tasks: int = TEST_TASKS,
    shot: int | None = None,
    seed: int = TEST_SEED,
    floor: bool = True,
) -> list[Row]:
    """Test runs on the same tasks; each row has its paired difference to the first run.

    ``floor`` adds the limits that no learner can beat, where they are known.
    """
    if not runs:
        raise UserError("give at least one run to compare")
    configs = [Run.open(run).config() for run in runs]
    if len({config.task for config in configs}) > 1:
        raise UserError("runs on different tasks cannot be compared: " + ", ".join(c.task for c in configs))
    if shot is None and len({config.episode.shot for config in configs}) > 1:
        raise UserError("these runs were trained for different shots: say at which to compare them with --shot")
    shot = configs[0].episode.shot if shot is None else shot
    evaluations = [(str(run), evaluate(run, tasks=tasks, shot=shot, seed=seed)) for run in runs]
    if floor:
        evaluations += limits(configs[0].task, shot=shot, tasks=tasks, seed=seed).items()
    differences = paired_differences([evaluation for _, evaluation in evaluations])
    return [Row(name, e, d) for (name, e), d in zip(evaluations, differences, strict=True)]
