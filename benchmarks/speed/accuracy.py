"""Accuracy against wall time: learners trained for the same number of seconds, one after the other."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from metavrf.config import Config
from metavrf.learners.measuring import measure
from metavrf.randomness import stream
from metavrf.tasks.source import Tasks, open_tasks
from speed.step import make_trainer
from speed.turns import timed

VALIDATION_TASKS = 300
TRIAL_SHARE = 0.02  # of the time, to find out how long a step takes

Curve = list[dict[str, float]]


def accuracy_curves(
    configs: Sequence[Config[Any]], seconds: float, every: float, watch: Callable[[str, int, int], None]
) -> dict[str, Curve]:
    """Accuracy on the same validation tasks, by learner."""
    return {config.learner: curve(config, seconds, every, watch) for config in configs}


def curve(config: Config[Any], seconds: float, every: float, watch: Callable[[str, int, int], None]) -> Curve:
    """Train for that long, and validate each time another ``every`` seconds have gone into training.

    Validating is not counted. A trial of a few steps says how many fit into the time, for the schedule of the learning
    rate has to know; training ends when they are done, or the time is over.
    """
    source = open_tasks(config.task, config.data, quiet=True)
    config = config.with_options(iterations=steps_within(seconds, config, source))
    trainer = make_trainer(config, source)
    validation = source.held_out("val", VALIDATION_TASKS, config.episode, stream(config.training.seed, "validation"))
    points: Curve = []
    spent = 0.0
    while spent < seconds and trainer.at.step < config.training.iterations:
        spent += timed(trainer.train_step)
        last = spent >= seconds or trainer.at.step == config.training.iterations
        if last or spent >= every * (len(points) + 1):
            accuracy = measure(trainer.learner, validation)["accuracy"].mean().item()
            points.append({"seconds": spent, "step": trainer.at.step, "accuracy": accuracy})
            watch(f"accuracy of {config.learner}", round(spent), round(seconds))
    return points


def steps_within(seconds: float, config: Config[Any], source: Tasks) -> int:
    """How many training steps fit into that time, by a trial that is thrown away."""
    trainer = make_trainer(config, source)
    trainer.train_step()  # sets things up
    spent, steps = 0.0, 0
    while spent < TRIAL_SHARE * seconds or steps < 2:
        spent += timed(trainer.train_step)
        steps += 1
    return max(1, round(seconds * steps / spent))
