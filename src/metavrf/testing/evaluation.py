"""The figures of a test, and paired differences of several on the same tasks."""

from __future__ import annotations

import hashlib
import math
import statistics
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from torch import Tensor

from metavrf.episodes import Episodes
from metavrf.errors import UserError
from metavrf.learners.base import Learner
from metavrf.learners.measuring import (
    Tasks,
    calibration_error,
    few_threads,
    figures,
    grouped,
    log_probabilities,
    measure,
    reliability,
)
from metavrf.prediction import Prediction
from metavrf.protocol import INDUCTIVE, Protocol

ROWS_AT_ONCE = 4096  # of a bank, while it is summed up


@dataclass(frozen=True)
class Evaluation:
    """Measured on ``tasks`` tasks; ``mean`` ± ``ci95`` is the metric over tasks with its 95 % interval.

    Regression has ``coverage90``; classification has ``way``, ``query``, ``ece``, ``temperature`` and ``split``, and
    its metric is the accuracy in percent. ``shot`` is None where tasks have several sizes. Streams have
    ``by_position``, the metric of each place in a stream. Curves of a file say in which ``units`` mse and nll are.
    """

    metric: str
    mean: float
    ci95: float
    tasks: int
    shot: int | None
    nll: float
    protocol: str
    seconds: float
    seed: int
    data_sha256: str
    per_task: Tensor = field(repr=False)
    nll_per_task: Tensor = field(repr=False)
    reliability: Tensor | None = field(default=None, repr=False)
    """Of classes, mean confidence, accuracy and share of the answers in each bin of confidence."""
    coverage90: float | None = None
    way: int | None = None
    query: int | None = None
    ece: float | None = None
    temperature: float | None = None
    statistics: str | None = None
    views: str | None = None
    split: str | None = None
    within_alphabet: bool | None = None
    pretraining: str | None = None
    part: str | None = None
    on: str | None = None
    stream: int | None = None
    by_position: list[float] | None = None
    adaptivity: dict[str, Any] | None = None
    units: str | None = None

    def to_dict(self) -> dict[str, Any]:
        """The summary without the figures of single tasks and bins."""
        return {n: value for n, value in asdict(self).items() if value is not None and not isinstance(value, Tensor)}


def interval95(values: Tensor) -> float:
    """Half-width of the Student-t 95 % interval of the mean."""
    from scipy.stats import t

    count = len(values)
    return float(t.ppf(0.975, count - 1) * values.double().std() / math.sqrt(count))


def evaluate_learner(
    learner: Learner,
    episodes: Tasks,
    seed: int,
    batch: int | None = None,
    protocol: Protocol = INDUCTIVE,
    **labels: Any,
) -> Evaluation:
    """Evaluate ``learner`` on given test episodes; ``labels`` are fields of the result that say where they are from."""
    groups = grouped(episodes)
    tasks, first = sum(group.tasks for group in groups), groups[0]
    if batch is not None and batch < 1:
        raise UserError(f"{batch=} must be at least 1")
    if tasks < 2:
        raise UserError(f"{tasks=} is too few for an interval: give at least 2")
    start = time.perf_counter()
    if first.way is None:
        per_task = measure(learner, groups, batch)
        labels["coverage90"] = per_task["coverage90"].double().mean().item()
    else:
        found = log_probabilities(learner, first, batch, protocol=protocol)
        per_task = figures(first, Prediction(found, found.unsqueeze(0)))
        assert first.query_y is not None
        labels |= {
            "way": first.way,
            "query": first.query_x.shape[1] // first.way,
            "ece": calibration_error(found, first.query_y),
            "reliability": reliability(found, first.query_y),
            "temperature": float(learner.temperature_for(first)),
            "statistics": learner.statistics(protocol),
            "views": protocol.views if protocol.views != "one" else None,
        }
    metric = next(iter(per_task))
    if first.stream > 1:
        by_position = per_task[metric].double().unflatten(0, (-1, first.stream))
        labels |= {"stream": first.stream, "by_position": by_position.mean(0).tolist()}
    return Evaluation(
        metric=metric,
        mean=per_task[metric].double().mean().item(),
        ci95=interval95(per_task[metric]),
        tasks=tasks,
        shot=int(first.shot) if len({group.shot for group in groups}) == 1 else None,
        nll=per_task["nll"].double().mean().item(),
        protocol=learner.label(protocol) + (f", stream of {first.stream}" if first.stream > 1 else ""),
        seconds=round(time.perf_counter() - start, 3),
        seed=seed,
        data_sha256=fingerprint(groups),
        per_task=per_task[metric],
        nll_per_task=per_task["nll"],
        **labels,
    )


def fingerprint(episodes: Tasks) -> str:
    """SHA-256 of the tasks: equal figures are comparable only on equal tasks."""
    digest = hashlib.sha256()
    for group in grouped(episodes):
        for values in (group.support_x, group.support_y, group.query_x, group.query_y, group.bank):
            if values is not None:
                digest.update(repr(tuple(values.shape)).encode())
                for rows in values.split(ROWS_AT_ONCE):  # a bank may be larger than memory
                    digest.update(rows.contiguous().numpy().tobytes())
    return digest.hexdigest()


@dataclass(frozen=True)
class Difference:
    """Paired difference of two evaluations on the same tasks: other minus first.

    ``p_value`` is of Student's paired t-test: how likely a difference as large is if there is none. None where the two
    are equal on every task.
    """

    mean: float
    ci95: float
    p_value: float | None = None


def paired_differences(evaluations: Sequence[Evaluation]) -> list[Difference]:
    """The difference of each evaluation to the first, task by task."""
    first = evaluations[0]
    if len({e.data_sha256 for e in evaluations}) > 1:
        raise UserError("these evaluations are not on the same tasks, so they cannot be compared in pairs")
    return [difference(e.per_task.double() - first.per_task.double()) for e in evaluations]


def nll_differences(evaluations: Sequence[Evaluation], best: Evaluation | None) -> list[Difference | None]:
    """How far the nll of each is above the best, task by task, in nats."""
    if best is None:
        return [None] * len(evaluations)
    return [difference(e.nll_per_task.double() - best.nll_per_task.double()) for e in evaluations]


def difference(gap: Tensor) -> Difference:
    """The mean of paired differences, its interval, and how likely one as large is if there is none."""
    from scipy.stats import ttest_1samp

    p_value = float(ttest_1samp(gap.numpy(), 0.0).pvalue) if bool((gap != gap[0]).any()) else None
    return Difference(gap.mean().item(), interval95(gap), p_value)


def milliseconds_to_adapt(learner: Learner, episodes: Episodes, protocol: Protocol = INDUCTIVE) -> float:
    """Median time to solve one task alone, from its inputs to its answers: the embedding is part of it."""
    tasks = [task.looked_up() for task in replace(episodes, stream=1).batches(1)]
    seconds = []
    with few_threads(learner):
        learner.predict(tasks[0], protocol=protocol)  # the first call sets things up
        for task in tasks:
            start = time.perf_counter()
            learner.predict(task, protocol=protocol)
            seconds.append(time.perf_counter() - start)
    return 1000 * statistics.median(seconds)
