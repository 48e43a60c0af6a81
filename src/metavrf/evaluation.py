"""Evaluation on fixed test tasks, and paired comparison of several runs on the same ones."""

from __future__ import annotations

import hashlib
import math
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import torch
from torch import Tensor

from metavrf.episodes import Episodes
from metavrf.errors import UserError
from metavrf.learners.base import Learner

BATCH = 100  # tasks solved at once; results depend on it only by rounding
BAND90 = 1.6448536269514722  # standard deviations either side that hold 90 % of a Gaussian


@dataclass(frozen=True)
class Evaluation:
    """Measured on ``tasks`` tasks; ``mean`` ± ``ci95`` is the metric over tasks with its 95 % interval."""

    metric: str
    mean: float
    ci95: float
    tasks: int
    shot: int
    nll: float
    coverage90: float
    protocol: str
    seconds: float
    seed: int
    data_sha256: str
    per_task: Tensor = field(repr=False)

    def to_dict(self) -> dict[str, Any]:
        """The summary without the figures of single tasks."""
        values = asdict(self)
        del values["per_task"]
        return values


def measure(learner: Learner, episodes: Episodes, batch: int = BATCH) -> dict[str, Tensor]:
    """Per-task figures ``[T]`` of regression episodes: mse, nll and the share of points inside the 90 % band."""
    parts: dict[str, list[Tensor]] = {"mse": [], "nll": [], "coverage90": []}
    for chunk in episodes.batches(batch):
        prediction = learner.predict(chunk)
        if chunk.query_y is None or prediction.std is None:
            raise UserError("evaluation needs query targets and a learner that gives a standard deviation")
        error, std = chunk.query_y - prediction.mean, prediction.std
        log_density = -0.5 * (error / std).square() - std.log() - 0.5 * math.log(2 * math.pi)
        parts["mse"].append(error.square().mean((1, 2)))
        parts["nll"].append(-log_density.mean((1, 2)))
        parts["coverage90"].append((error.abs() <= BAND90 * std).float().mean((1, 2)))
    return {name: torch.cat(values) for name, values in parts.items()}


def interval95(values: Tensor) -> float:
    """Half-width of the Student-t 95 % interval of the mean."""
    from scipy.stats import t

    count = len(values)
    return float(t.ppf(0.975, count - 1) * values.double().std() / math.sqrt(count))


def evaluate_learner(learner: Learner, episodes: Episodes, seed: int, batch: int = BATCH) -> Evaluation:
    """Evaluate ``learner`` on given test episodes."""
    if batch < 1:
        raise UserError(f"{batch=} must be at least 1")
    if episodes.tasks < 2:
        raise UserError(f"tasks = {episodes.tasks} is too few for an interval: give at least 2")
    start = time.perf_counter()
    figures = measure(learner, episodes, batch)
    return Evaluation(
        metric="mse",
        mean=figures["mse"].double().mean().item(),
        ci95=interval95(figures["mse"]),
        tasks=episodes.tasks,
        shot=int(episodes.shot),
        nll=figures["nll"].double().mean().item(),
        coverage90=figures["coverage90"].double().mean().item(),
        protocol=learner.protocol,
        seconds=round(time.perf_counter() - start, 3),
        seed=seed,
        data_sha256=fingerprint(episodes),
        per_task=figures["mse"],
    )


def fingerprint(episodes: Episodes) -> str:
    """SHA-256 of the tasks: equal figures are comparable only on equal tasks."""
    digest = hashlib.sha256()
    for values in (episodes.support_x, episodes.support_y, episodes.query_x, episodes.query_y):
        if values is not None:
            digest.update(repr(tuple(values.shape)).encode())
            digest.update(values.contiguous().numpy().tobytes())
    return digest.hexdigest()


@dataclass(frozen=True)
class Difference:
    """Paired difference of two evaluations on the same tasks: other minus first."""

    mean: float
    ci95: float


def paired_differences(evaluations: Sequence[Evaluation]) -> list[Difference]:
    """The difference of each evaluation to the first, task by task."""
    first = evaluations[0]
    if len({e.data_sha256 for e in evaluations}) > 1:
        raise UserError("these evaluations are not on the same tasks, so they cannot be compared in pairs")
    gaps = [e.per_task.double() - first.per_task.double() for e in evaluations]
    return [Difference(gap.mean().item(), interval95(gap)) for gap in gaps]
