"""How long a training step of a configuration takes, by a few steps that are thrown away."""

from __future__ import annotations

import time
from collections.abc import Callable
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

import torch

from metavrf.config import Config
from metavrf.learners.measuring import calibrate
from metavrf.randomness import stream
from metavrf.runs.directory import Run
from metavrf.runs.training import Trainer, make_fabric
from metavrf.tasks.source import open_tasks

STEPS_TIMED = 5
TASKS_TIMED = 50
Clock = Callable[[], float]


class Cost(NamedTuple):
    """Seconds of one thread."""

    step: float
    """A training step."""
    task: float
    """A validation task; 0 where it was not asked for."""


def measure(config: Config[Any], clock: Clock = time.perf_counter, *, validation: bool = True) -> Cost:
    """The cost of a configuration on this machine, as it is now; nothing is written.

    With ``time.process_time`` as the clock, other work on the machine hardly changes it.
    """
    torch.set_num_threads(1)
    config = config.with_options(seed=0, start_from="")  # takes as long
    tasks = open_tasks(config.task, config.data, quiet=True)
    with TemporaryDirectory() as folder:
        learner, fabric = config.build(tasks.spec), make_fabric(config.training)
        trainer = Trainer(config, Run(folder), fabric, tasks, learner, stopped=[], quiet=True)
        trainer.train_step()  # the first sets things up
        began = clock()
        for _ in range(STEPS_TIMED):
            trainer.train_step()
        step = (clock() - began) / STEPS_TIMED
        if not validation:
            return Cost(step, 0.0)
        groups = tasks.groups("val", TASKS_TIMED, config.episode, stream(0, "validation"))
        began = clock()
        calibrate(learner, groups[0] if len(groups) == 1 else groups)
        return Cost(step, (clock() - began) / TASKS_TIMED)
