"""Calibration of a trained model of classes: a temperature for each number of shots."""

from __future__ import annotations

from dataclasses import replace

from metavrf.errors import UserError
from metavrf.learners.base import SHOT_NODES, Learner
from metavrf.learners.measuring import calibrate_shots
from metavrf.randomness import stream
from metavrf.settings import EpisodeSettings
from metavrf.tasks.source import Tasks

MOST_TASKS = 300


def calibrate_by_shots(learner: Learner, tasks: Tasks, shape: EpisodeSettings, *, most: int, seed: int) -> None:
    """Fit the temperatures on tasks of validation classes, at most ``most``, for as many shots as there are samples."""
    drawn = []
    for shot in SHOT_NODES:
        try:
            shape = replace(shape, shot=shot, stream=1)
            drawn.append(tasks.held_out("val", min(most, MOST_TASKS), shape, stream(seed, "validation", shot)))
        except UserError:  # the classes have too few samples, and so for all that follow
            break
    calibrate_shots(learner, drawn)
