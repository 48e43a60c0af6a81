"""What a learner has inferred of tasks, as a value: it can be averaged, and exchanged between tasks."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from metavrf.kernels.spectral import Spectral


@dataclass(frozen=True)
class Inference:
    """What a kernel learner has inferred of T tasks: their kernels, and how the support weighs them.

    Attributes:
        kernels: M of each task.
        log_weights: ``[M, T]``; None where there is one.
    """

    kernels: Spectral
    log_weights: Tensor | None = None

    @classmethod
    def joined(cls, parts: Sequence[Inference]) -> Inference:
        """What was inferred of several batches."""
        kernels = zip(*(part.kernels for part in parts), strict=True)
        weights = [part.log_weights for part in parts if part.log_weights is not None]
        joined = (None if values[0] is None else torch.cat(values, dim=1) for values in kernels)
        return cls(Spectral(*joined), torch.cat(weights, dim=1) if weights else None)  # type: ignore[arg-type]

    def at(self, tasks: Tensor | slice) -> Inference:
        """That of some of the tasks."""
        return Inference(self.kernels.at(tasks), None if self.log_weights is None else self.log_weights[:, tasks])

    def other(self) -> Inference:
        """Each task with the next one's."""
        tasks = self.kernels.mean.shape[1]
        return self.at(torch.arange(1, tasks + 1, device=self.kernels.mean.device) % tasks)

    def mean(self) -> Inference:
        """Each task with the mean over all: of the bases' means and the weights; geometric of what is positive."""
        tasks = self.kernels.mean.shape[1]

        def spread(value: Tensor) -> Tensor:
            return value.mean(1, keepdim=True).expand(-1, tasks, *[-1] * (value.ndim - 2))

        def geometric(value: Tensor) -> Tensor:
            return spread(value.clamp_min(torch.finfo(value.dtype).tiny).log()).exp()

        q = self.kernels
        comb = None if q.comb is None else geometric(q.comb)
        jump = None if q.jump is None else spread(q.jump)
        std, amplitude, noise = (geometric(value) for value in (q.std, q.amplitude, q.noise))
        kernels = Spectral(spread(q.mean), std, amplitude, noise, q.log_prior, comb, q.rough, jump)
        if self.log_weights is None:
            return Inference(kernels)
        mean_weights = self.log_weights.logsumexp(1, keepdim=True) - math.log(tasks)
        return Inference(kernels, mean_weights.expand(-1, tasks))

    def entropy(self) -> dict[str, float] | None:
        """Of the weights in nats: of the mean over tasks, and of a task's own on average; what it removes is known."""
        if self.log_weights is None:
            return None
        before, after = (_entropy(weights) for weights in (self.mean().log_weights[:, :1], self.log_weights))  # type: ignore[index]
        return {"before": before, "after": after, "removed": 1 - after / before if before > 0 else 0.0}


@dataclass(frozen=True)
class Inferred:
    """What a learner has inferred of T tasks that is one tensor: a code, a context, weights; ``values [T, ...]``."""

    values: Tensor

    @classmethod
    def joined(cls, parts: Sequence[Inferred]) -> Inferred:
        """What was inferred of several batches."""
        return cls(torch.cat([part.values for part in parts]))

    def at(self, tasks: Tensor | slice) -> Inferred:
        """That of some of the tasks."""
        return Inferred(self.values[tasks])

    def other(self) -> Inferred:
        """Each task with the next one's."""
        return Inferred(self.values.roll(-1, 0))

    def mean(self) -> Inferred:
        """Each task with the mean over all."""
        return Inferred(self.values.mean(0, keepdim=True).expand_as(self.values))

    def entropy(self) -> None:
        """Nothing is weighed."""


def _entropy(log_weights: Tensor) -> float:
    return float(-(log_weights.exp() * log_weights).nan_to_num().sum(0).mean())
