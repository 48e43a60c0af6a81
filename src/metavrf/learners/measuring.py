"""Figures of a learner on tasks: what validation, tests and the estimators have in common."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from metavrf.episodes import Episodes
from metavrf.errors import UserError
from metavrf.learners.base import SHOT_NODES, Learner
from metavrf.learners.head import BAND_NODES
from metavrf.prediction import Prediction
from metavrf.protocol import INDUCTIVE, Protocol

SAMPLES_AT_ONCE = 10_000  # features solved at a time; results depend on it only by rounding
IMAGES_AT_ONCE = 500
KERNELS_AT_ONCE = 600_000  # values of many kernels between samples: more do not fit the cache
CALIBRATION_BINS = 15
MOST_LEFT_OUT = 200  # samples that are left out one by one: more would hardly change the estimate
LEFT_OUT_AT_ONCE = 2_000  # features of left-out tasks solved at a time; fewer, for tasks may have many bases
WIDEST_BAND = 0.9999  # share of a mixture: all of it would have no ends
SURE = 0.95  # share of answers that must be right where a model is called sure


Tasks = Episodes | Sequence[Episodes]
"""Tasks of equal size are one record; those of several sizes are several."""


def grouped(episodes: Tasks) -> Sequence[Episodes]:
    """The records of tasks, one for each size."""
    return [episodes] if isinstance(episodes, Episodes) else episodes


def embed_once(learner: Learner, episodes: Episodes, views: str = "one") -> Episodes:
    """The same tasks on a bank of features: each image they use is embedded once, not once per task."""
    assert episodes.bank is not None
    support, query = episodes.support_x, episodes.query_x
    rows, numbers = torch.unique(torch.cat([support, query], dim=1), return_inverse=True)
    images = (episodes.bank[chunk] for chunk in rows.split(IMAGES_AT_ONCE))
    training = learner.training
    learner.eval()
    try:
        features = torch.cat([learner.features_of(chunk, views) for chunk in images])
    finally:
        learner.train(training)
    if not torch.isfinite(features).all():
        raise UserError("the embedding gives features that are not finite: the model or the data is damaged")
    support, query = numbers.split([support.shape[1], query.shape[1]], dim=1)
    return replace(episodes, support_x=support, query_x=query, bank=features)


@contextmanager
def few_threads(learner: Learner) -> Iterator[None]:
    """One thread while functions are solved: several make small operations crawl on a busy machine."""
    threads = torch.get_num_threads()
    if not learner.spec.regression or threads == 1:
        yield
        return
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


def predictions(
    learner: Learner,
    episodes: Episodes,
    batch: int | None = None,
    *,
    embedded: bool = False,
    protocol: Protocol = INDUCTIVE,
) -> Iterator[tuple[Episodes, Prediction]]:
    """All tasks with their predictions, ``batch`` solved at a time; ``embedded``: inputs are features already."""
    episodes, ready, batch = prepared(learner, episodes, batch, embedded=embedded, protocol=protocol)
    for chunk in episodes.batches(batch):
        yield chunk, learner.predict(chunk, embedded=ready, protocol=protocol)


def prepared(
    learner: Learner,
    episodes: Episodes,
    batch: int | None,
    *,
    embedded: bool = False,
    protocol: Protocol = INDUCTIVE,
) -> tuple[Episodes, bool, int]:
    """The tasks on a bank of features where that can be, whether it can, and how many to solve at a time."""
    once = not embedded and episodes.bank is not None and learner.embeds_once(protocol)
    if once:
        with torch.no_grad():
            episodes = embed_once(learner, episodes, protocol.views)
    if batch is None:
        support = episodes.support_x.shape[1]
        samples = support + episodes.query_x.shape[1]
        if episodes.bank is not None and not (once or embedded):
            batch = 2 * IMAGES_AT_ONCE // (learner.networks * samples)
        elif learner.components > 1:
            batch = KERNELS_AT_ONCE // (learner.components * support * samples)
        else:
            batch = SAMPLES_AT_ONCE // samples
        batch = max(1, batch)
    return episodes, once or embedded, batch


def log_probabilities(
    learner: Learner,
    episodes: Episodes,
    batch: int | None = None,
    *,
    embedded: bool = False,
    protocol: Protocol = INDUCTIVE,
) -> Tensor:
    """Log probabilities ``[T, Q, C]`` of all tasks of classes."""
    found = predictions(learner, episodes, batch, embedded=embedded, protocol=protocol)
    return torch.cat([prediction.mean for _, prediction in found])


def measure(learner: Learner, episodes: Tasks, batch: int | None = None) -> dict[str, Tensor]:
    """Per-task figures ``[T]``; see :func:`figures`."""
    parts = [
        figures(chunk, found) for group in grouped(episodes) for chunk, found in predictions(learner, group, batch)
    ]
    return joined(parts)


def joined(parts: Sequence[Mapping[str, Tensor]]) -> dict[str, Tensor]:
    """Figures of several batches as those of one."""
    return {name: torch.cat([part[name] for part in parts]) for name in parts[0]}


def figures(episodes: Episodes, prediction: Prediction) -> dict[str, Tensor]:
    """Per-task figures ``[T]``: mse, nll and 90 % coverage, or accuracy (percent) and nll of classes.

    In regression nll and band are those of the predicted mixture itself, not of a normal with its moments.
    """
    target = episodes.query_y
    if target is None:
        raise UserError("evaluation needs query targets")
    if episodes.way is not None:
        nll = -prediction.mean.gather(-1, target.unsqueeze(-1)).squeeze(-1)
        return {"accuracy": 100 * (prediction.mean.argmax(-1) == target).float().mean(1), "nll": nll.mean(1)}
    if prediction.std is None:
        raise UserError("evaluation of a regression needs a learner that gives a standard deviation")
    return {
        "mse": (target - prediction.mean).square().mean((1, 2)),
        "nll": -prediction.log_density(target).mean((1, 2)),
        "coverage90": prediction.inside(target).double().mean((1, 2)),
    }


def calibrate(learner: Learner, episodes: Tasks) -> dict[str, Tensor]:
    """Fit one temperature for all numbers of shots on validation tasks; returns figures as calibrated.

    Dividing logits by a positive number never changes which class is the likeliest.
    """
    learner.temperature.fill_(1.0)
    if not isinstance(episodes, Episodes) or episodes.way is None or episodes.query_y is None:
        return measure(learner, episodes)
    logits = log_probabilities(learner, episodes)
    learner.temperature.fill_(_temperature(logits, episodes.query_y))
    calibrated = learner.calibrated(logits, episodes)
    return figures(episodes, Prediction(calibrated, calibrated.unsqueeze(0)))


def calibrate_shots(learner: Learner, episodes: Sequence[Episodes]) -> None:
    """Fit a temperature for each number of shots, by validation tasks of several of them, given in order."""
    learner.temperature.fill_(1.0)
    fitted = [_temperature(log_probabilities(learner, tasks), tasks.query_y) for tasks in episodes]
    if fitted:
        shots = [tasks.shot for tasks in episodes]
        learner.temperature.copy_(torch.from_numpy(np.interp(np.log(SHOT_NODES), np.log(shots), fitted)))


def _temperature(logits: Tensor, target: Tensor | None) -> float:
    """The number that logits ``[T, Q, C]`` are divided by for the least nll of ``target [T, Q]``."""
    from scipy.optimize import minimize_scalar

    assert target is not None
    flat = logits.flatten(0, 1).double()

    def nll(log_temperature: float) -> float:
        return float(F.cross_entropy(flat / math.exp(log_temperature), target.flatten()))

    return math.exp(minimize_scalar(nll, bounds=(-3.0, 3.0), method="bounded").x)


def calibrate_band(learner: Learner, episodes: Sequence[Episodes]) -> None:
    """Set the 90 % band of a mixture by validation tasks of several sizes, given in order (Kuleshov et al. 2018).

    The band is the central share of the mixture that held 90 % of their targets; its density is left as it is.
    """
    head: Any = getattr(learner, "head", None)
    shares = []
    for group in episodes:
        found = [
            p.outwards(chunk.query_y).flatten() for chunk, p in predictions(learner, group) if chunk.query_y is not None
        ]
        shares.append(min(float(np.quantile(torch.cat(found).numpy(), 0.9)), WIDEST_BAND))
    if shares:
        sizes = [group.support_x.shape[1] for group in episodes]
        head.band.copy_(torch.from_numpy(np.interp(np.log(BAND_NODES), np.log(sizes), shares)))


def reliability(log_probabilities: Tensor, target: Tensor) -> Tensor:
    """Mean confidence, accuracy and share of the answers in each bin of confidence, ``[bins, 3]``; NaN where none."""
    confidence, guess = log_probabilities.flatten(0, 1).double().exp().max(-1)
    number = (CALIBRATION_BINS * confidence).ceil().long().clamp(1, CALIBRATION_BINS) - 1  # bins (0, 1/15], ...
    right = (guess == target.flatten()).double()
    # In double: single precision loses the third digit of a sum of a million confidences.
    sums = confidence.new_zeros(CALIBRATION_BINS, 3)
    sums.index_add_(0, number, torch.stack([confidence, right, torch.ones_like(right)], dim=1))
    return torch.cat([sums[:, :2] / sums[:, 2:], sums[:, 2:] / len(right)], dim=1)


def calibration_error(log_probabilities: Tensor, target: Tensor) -> float:
    """Expected calibration error: how far confidence and accuracy are apart, over bins of confidence."""
    confidence, accuracy, share = reliability(log_probabilities, target).unbind(1)
    return float((share * (accuracy - confidence).abs()).nansum())


@dataclass(frozen=True)
class LeaveOneOut:
    """What to expect of new samples of a task's classes: each of ``tested`` support samples, told by the others.

    Samples that are the only one of their class cannot be told and are not tested; where none can, ``accuracy`` (in
    percent) is None. ``threshold`` is the least probability that was trustworthy: at least ``wanted`` of the answers as
    probable as that were right.
    """

    accuracy: float | None
    tested: int
    threshold: float
    wanted: float = SURE


def leave_one_out(learner: Learner, support: Episodes) -> LeaveOneOut:
    """Test one embedded task of classes on its own support, as one batch of left-out tasks."""
    labels, counts = support.support_y[0].unique(return_counts=True)
    rows = torch.isin(support.support_y[0], labels[counts > 1]).nonzero().squeeze(1)
    if len(rows) == 0:
        return LeaveOneOut(None, 0, SURE)
    if len(rows) > MOST_LEFT_OUT:
        chosen = torch.randperm(len(rows), generator=torch.Generator().manual_seed(0))[:MOST_LEFT_OUT]
        rows = rows[chosen.sort().values]
    probabilities = learner.left_out(support, rows)
    if probabilities is None:
        tasks = support.leaving_one_out(rows)
        batch = max(1, LEFT_OUT_AT_ONCE // support.support_x.shape[1])
        probabilities = log_probabilities(learner, tasks, batch, embedded=True).squeeze(1).exp()
    probability, answer = probabilities.max(-1)
    right = answer == support.support_y[0, rows]
    return LeaveOneOut(100 * right.double().mean().item(), len(rows), _threshold(probability, right))


def without_each(learner: Learner, support: Episodes, x: Tensor) -> tuple[Tensor, Tensor]:
    """Of one embedded task of real targets, what the other samples say of each support sample, and of ``x [N, d]``.

    Mean and deviation, ``[S, 1 + N, p]`` each; the first of 1 + N is the sample that is left out.
    """
    tasks, samples = support.leaving_one_out(), support.support_x.shape[1]
    asked = torch.arange(samples, samples + len(x)).expand(samples, -1)
    bank = torch.cat([support.support_x[0], x])
    tasks = replace(tasks, query_x=torch.cat([tasks.query_x, asked], 1), query_y=None, bank=bank)
    batch = max(1, LEFT_OUT_AT_ONCE // len(bank))
    found = [prediction for _, prediction in predictions(learner, tasks, batch, embedded=True)]
    mean = torch.cat([prediction.mean for prediction in found])
    return mean, torch.cat([prediction.std for prediction in found if prediction.std is not None])


def _threshold(probability: Tensor, right: Tensor) -> float:
    """The least probability, of those tested and ``SURE``, such that ``SURE`` of the answers from it on are right.

    Calibrated probabilities are right as often as they say, so none above ``SURE`` is asked for unless it was needed.
    """
    probability = probability.double()
    levels = torch.cat([probability, probability.new_tensor([SURE])])
    above = (probability >= levels.unsqueeze(1)).double()  # [N + 1, N]
    trusted = above @ right.double() >= SURE * above.sum(1)
    return levels[trusted].min().item() if trusted.any() else 1.0
