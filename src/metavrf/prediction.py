"""What is said of query samples: a mixture to the end, of normals for real targets or of class probabilities."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

BISECTIONS = 32  # halvings of the interval that holds a quantile: below single precision
NEGLIGIBLE = 1e-9  # weight of a component that no quantile shows


@dataclass(eq=False)
class Prediction:
    """The answers to T tasks' queries, as a mixture of K components (kernels, or draws of bases).

    Attributes:
        mean: ``[T, Q, p]`` mean of the mixture; or ``[T, Q, C]`` logits, log probabilities up to a constant.
        samples: ``[K, T, Q, p]`` means, or logits ``[K, T, Q, C]``, of the components.
        std: ``[T, Q, p]`` standard deviation of the mixture, for regression.
        loss: the training objective, where the query's targets are known.
        terms: its parts by name.
        variance: ``[K, T, Q, p]`` variances of the components, for regression; None where only the moments are known,
            and the answer is read as a normal.
        log_weights: ``[K, T]``, whose exponentials sum to 1 over K; None where all components weigh alike.
        band90: the central share of the mixture that holds 90 % of targets, as validation tasks say; 0.9 where it is
            taken at its word.
        memory: what the learner would remember of these tasks and those before them, for the next ones.
    """

    mean: Tensor
    samples: Tensor
    std: Tensor | None = None
    loss: Tensor | None = None
    terms: dict[str, Tensor] = field(default_factory=dict)
    variance: Tensor | None = None
    log_weights: Tensor | None = None
    band90: float = 0.9
    memory: Any = None

    def to(self, device: torch.device) -> Prediction:
        """The same answers on a device; a memory stays where the learner is, which is asked with it again."""
        if self.mean.device == device:
            return self
        names = ("mean", "samples", "std", "loss", "variance", "log_weights")
        moved: dict[str, Any] = {name: t.to(device) for name in names if (t := getattr(self, name)) is not None}
        return replace(self, **moved, terms={name: term.to(device) for name, term in self.terms.items()})

    @property
    def weights(self) -> Tensor:
        """The weights of the components, ``[K, T]``."""
        return self._components()[0].exp()

    def log_density(self, y: Tensor) -> Tensor:
        """The log density of each target ``y [T, Q, p]``, exactly that of the mixture: ``[T, Q, p]``."""
        log_weights, mean, std = self._components()
        error = (y - mean) / std
        log_normal = -0.5 * (error.square() + math.log(2 * math.pi)) - std.log()
        return torch.logsumexp(log_weights[..., None, None] + log_normal, dim=0)

    def cdf(self, y: Tensor) -> Tensor:
        """The probability of at most ``y [T, Q, p]``: ``[T, Q, p]``."""
        log_weights, mean, std = self._components()
        return (log_weights.exp()[..., None, None] * torch.special.ndtr((y - mean) / std)).sum(0)

    def crps(self, y: Tensor) -> Tensor:
        """The continuous ranked probability score of each target ``y [T, Q, p]``, E|Y - y| - ½E|Y - Y'|: ``[T, Q, p]``.

        Exact for a mixture of normals (Grimit et al. 2006); it is in the units of y, and smaller is better.
        """
        log_weights, mean, std = self._components()
        weights = log_weights.exp()[..., None, None]
        score = (weights * _mean_size(mean - y, std)).sum(0)
        for weight, centre, width in zip(weights, mean, std, strict=True):
            score = score - 0.5 * weight * (weights * _mean_size(mean - centre, torch.hypot(std, width))).sum(0)
        return score.to(self.mean.dtype)

    def quantile(self, level: float) -> Tensor:
        """The value that a target is below with probability ``level``, ``[T, Q, p]``, by bisection."""
        if not 0 < level < 1:
            raise ValueError(f"{level=} must be between 0 and 1")
        log_weights, mean, std = self._components()
        kept = log_weights.amax(1) > math.log(NEGLIGIBLE)
        weights, mean, std = log_weights[kept].exp()[..., None, None], mean[kept], std[kept]
        weights = weights / weights.sum(0)
        ends = mean + std * torch.special.ndtri(torch.tensor(level, dtype=mean.dtype))
        low, high = ends.amin(0), ends.amax(0)  # the mixture's quantile lies between those of its components
        for _ in range(BISECTIONS):
            middle = 0.5 * (low + high)
            below = (weights * torch.special.ndtr((middle - mean) / std)).sum(0) < level
            low, high = torch.where(below, middle, low), torch.where(below, high, middle)
        return (0.5 * (low + high)).to(self.mean.dtype)

    def band(self) -> tuple[Tensor, Tensor]:
        """The ends of the 90 % band, ``[T, Q, p]`` each."""
        return self.quantile(0.5 * (1 - self.band90)), self.quantile(0.5 * (1 + self.band90))

    def inside(self, y: Tensor) -> Tensor:
        """Whether each target lies in the 90 % band: ``[T, Q, p]``."""
        return self.outwards(y) <= self.band90

    def outwards(self, y: Tensor) -> Tensor:
        """How far out each target lies: the share of the mixture that is closer to its median, ``[T, Q, p]``."""
        return (2 * self.cdf(y) - 1).abs()

    def draw(self, count: int, generator: torch.Generator | None = None) -> Tensor:
        """Targets drawn from the mixture, ``[count, T, Q, p]``; the queries of a draw share its kernel."""
        log_weights, mean, std = self._components()
        chosen = torch.multinomial(log_weights.exp().mT, count, replacement=True, generator=generator).mT  # [count, T]
        tasks = torch.arange(mean.shape[1]).expand_as(chosen)
        noise = torch.randn(count, *mean.shape[1:], dtype=mean.dtype, generator=generator)
        return (mean[chosen, tasks] + std[chosen, tasks] * noise).to(self.mean.dtype)

    def _components(self) -> tuple[Tensor, Tensor, Tensor]:
        """Log weights ``[K, T]``, means and deviations ``[K, T, Q, p]`` in double precision."""
        if self.std is None:
            raise ValueError("only the answers of regression are densities")
        if self.variance is None:
            mean, std = self.mean.unsqueeze(0).double(), self.std.unsqueeze(0).double()
        else:
            mean, std = self.samples.double(), self.variance.double().sqrt()
        if self.log_weights is None or self.variance is None:
            return mean.new_full(mean.shape[:2], -math.log(len(mean))), mean, std
        return self.log_weights.double(), mean, std


def _mean_size(mean: Tensor, std: Tensor) -> Tensor:
    """E|Z| of normal Z."""
    ratio = mean / std
    density = torch.exp(-0.5 * ratio.square()) / math.sqrt(2 * math.pi)
    return 2 * std * density + mean * (2 * torch.special.ndtr(ratio) - 1)
