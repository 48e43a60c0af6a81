"""Kernel ridge regression that was never meta-trained: all it knows of a kernel, the task's own support tells it.

For feature vectors that no model was trained on. Features are standardised by the support, the kernel is Gaussian with
the mean distance of support samples as its length, and what MetaVRF would have learned (λ, the scale of logits or of
the band) is chosen by the leave-one-out likelihood, which ridge regression has in closed form.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor, nn

from metavrf.episodes import Episodes
from metavrf.kernels import ridge
from metavrf.kernels.spectral import Spectral
from metavrf.learners.adapted import Explicit
from metavrf.learners.base import Prediction
from metavrf.learners.head import class_shares
from metavrf.learners.kernel import KernelSettings, one_kernel
from metavrf.learners.rff import RFF
from metavrf.nn.mlp import Raw
from metavrf.spec import TaskSpec

BASES = 512
MOST_PAIRED = 1000  # support samples whose distances are taken


class Untrained(RFF):
    """Ridge regression on random features of the Gaussian kernel, in double precision; nothing in it is trained."""

    def __init__(
        self,
        features: int,
        *,
        regression: bool,
        generator: torch.Generator,
        bases: int = BASES,
        ridge: float | None = None,
    ) -> None:
        """``ridge`` fixes λ; by default each task chooses its own."""
        settings = KernelSettings(bases=bases, feature_map="sincos", draw="fixed")
        spec = TaskSpec((features,), targets=1 if regression else None)
        super().__init__(Raw(features), spec, settings, generator=generator)
        self.head = LeaveOneOutHead(ridge)  # type: ignore[assignment]  # another kind of head, with the same methods
        self.double()
        self.eval().requires_grad_(False)

    def origin(self, episodes: Episodes) -> Tensor:
        """The support's mean. The kernel depends on differences alone, but far from zero they lose digits."""
        return episodes.support_x.mean(1, keepdim=True)

    def infer(self, episodes: Episodes) -> Spectral:
        """Bases N(0, diag 1/(ℓs)²): s the deviation of each feature, ℓ the mean distance once divided by it."""
        z = episodes.support_x
        deviation = z.std(1, correction=0)  # [T, d]
        deviation = torch.where(deviation > 0, deviation, 1.0)
        some = (z / deviation.unsqueeze(1))[:, :: math.ceil(z.shape[1] / MOST_PAIRED)]
        pairs = some.shape[1] * max(1, some.shape[1] - 1)
        apart = torch.cdist(some, some, compute_mode="use_mm_for_euclid_dist")  # faster, and near enough for a mean
        length = apart.sum((1, 2)) / pairs
        length = torch.where(length > 0, length, 1.0).unsqueeze(-1)
        return one_kernel(torch.zeros_like(deviation), 1 / (length * deviation))


class _Solved(NamedTuple):
    """Ridge with the λ of each task, and how its fit becomes an answer: gain·fit + offset, deviation² = scale·(v + λ).

    Attributes:
        fitted: with λ ``[T]``.
        gain: ``[T, 1, p]``, or ``[T, 1, 1]`` of classes.
        offset: likewise.
        scale: ``[T, 1, p]``; None for classes.
    """

    fitted: ridge.Ridge
    gain: Tensor
    offset: Tensor
    scale: Tensor | None

    def prediction(self, fit: Tensor, process: Tensor) -> Prediction:
        """What ridge's ``fit [1, T, Q, p]`` and variance ``process [1, T, Q]`` say."""
        samples = self.gain * fit + self.offset
        if self.scale is None:
            return Prediction(samples[0].log_softmax(-1), samples)
        variance = self.scale * (process + self.fitted.lam.unsqueeze(-1)).unsqueeze(-1)
        return Prediction(samples[0], samples, variance[0].sqrt())


class LeaveOneOutHead(nn.Module):
    """Ridge regression whose λ, and scale of logits γ, have the best leave-one-out likelihood, task by task.

    Broad log-normal priors stand beside it, which decide where leaving one out says nothing: a class of one sample has
    none left to be known by. In regression targets are standardised by the support, and the process' scale s² is the
    mean squared leave-one-out error in units of its own variance, with one pseudo-observation at 1.
    """

    lams: Tensor
    gammas: Tensor
    prior: Tensor

    def __init__(self, ridge: float | None) -> None:
        super().__init__()
        self.register_buffer("lams", torch.logspace(-6, 2, 9) if ridge is None else torch.tensor([float(ridge)]))
        self.register_buffer("gammas", torch.logspace(0, 7, 8, base=2.0))
        self.register_buffer("prior", _prior(self.gammas, 10.0).unsqueeze(1) + _prior(self.lams, 0.1))  # [H, G]

    def forward(self, phi: Tensor, episodes: Episodes) -> Prediction:
        """Predict from features ``phi [1, T, S + Q, D]`` of the support and then the queries."""
        support, query = phi.split([episodes.support_x.shape[1], episodes.query_x.shape[1]], dim=2)
        solved = self.solved(support, episodes)
        return solved.prediction(*solved.fitted.posterior(query, unit_norm=True))

    def explicit(self, support: Tensor, episodes: Episodes) -> Explicit:
        """The head of one task, solved."""
        solved = self.solved(support, episodes)
        weights, offset = solved.gain * solved.fitted.weights.squeeze(1), solved.offset[0, 0]
        if solved.scale is None:
            return Explicit(weights, offset)
        scale, root = solved.scale[:, 0], solved.fitted.root.squeeze(1)
        return Explicit(weights, offset, scale, scale * solved.fitted.lam, root, solved.fitted.support is not None)

    def solved(self, support: Tensor, episodes: Episodes) -> _Solved:
        """Choose λ and the scales of each task, and solve it."""
        if episodes.way is None:
            y = episodes.support_targets.double()
            offset, gain = y.mean(1, keepdim=True), y.std(1, correction=0, keepdim=True)
            gain = torch.where(gain > 0, gain, 1.0)
            targets = (y - offset) / gain
            lam, scale = self._regression(support[0], targets)
            return _Solved(ridge.fit(support, targets, lam), gain, offset, scale * gain.square())
        targets, share = episodes.support_targets.double(), class_shares(episodes)
        lam, gamma = self._classes(support[0], targets, share)
        fitted = ridge.fit(support * share, targets * share, lam)
        return _Solved(fitted, gamma[:, None, None], torch.zeros_like(gamma)[:, None, None], None)

    def _left_out(self, phi: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
        """Leave-one-out predictions under every λ: ``[G, T, S, p]``, and their variance ``[G, T, S]``."""
        return ridge.fit(phi, targets, self.lams.unsqueeze(-1)).leave_one_out(phi, targets)

    def _regression(self, phi: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
        """λ ``[T]`` and s² ``[T, 1, p]``."""
        fit, variance = self._left_out(phi, targets)
        variance = (variance + self.lams[:, None, None]).unsqueeze(-1)
        samples, outputs = targets.shape[-2:]
        scale = (1 + ((targets - fit).square() / variance).sum(-2)) / (1 + samples)  # [G, T, p]
        nll = 0.5 * (samples * scale.log().sum(-1) + outputs * variance.log().sum((-2, -1)))
        best = (nll + self.prior[0].unsqueeze(-1)).argmin(0)  # [T]
        return self.lams[best], scale[best, torch.arange(len(best), device=best.device)].unsqueeze(-2)

    def _classes(self, phi: Tensor, targets: Tensor, share: Tensor) -> tuple[Tensor, Tensor]:
        """λ and γ, ``[T]`` each."""
        fit = self._left_out(phi * share, targets * share)[0] / share
        logits = self.gammas.view(-1, 1, 1, 1, 1) * fit  # [H, G, T, S, C]
        nll = (logits.logsumexp(-1) - (logits * targets).sum(-1)).clamp_min(0)
        known = (targets @ targets.sum(1).unsqueeze(-1)).squeeze(-1) > 1  # [T, S]: others of the class are left
        score = (nll * known).sum(-1) + self.prior.unsqueeze(-1)  # [H, G, T]
        best = score.flatten(0, 1).argmin(0)  # [T]
        return self.lams[best % len(self.lams)], self.gammas[best // len(self.lams)]


def _prior(values: Tensor, centre: float) -> Tensor:
    """Negative log density, up to a constant, of a log-normal that is a hundredfold wide either side."""
    return 0.5 * (torch.log(values / centre) / math.log(100)).square()
