"""Kernel ridge regression with a Gaussian kernel, the first baseline of the MetaVRF paper.

The same embedding and ridge as MetaVRF, and a kernel that adapts to a task by one number alone: its bandwidth is the
mean distance between the task's support samples. Nothing is inferred and nothing is random.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from metavrf.episodes import Episodes
from metavrf.learners.base import Learner, Prediction
from metavrf.learners.head import RidgeHead
from metavrf.settings import Positive


@dataclass(frozen=True)
class RBFSettings:
    """Kernel ridge regression with a Gaussian kernel."""

    ridge: Positive = 1e-6
    """λ of ridge regression at the start; it is learned."""
    gamma: Positive = 1.0
    """Output scale γ at the start; it is learned."""


class RBF(Learner):
    """Ridge regression with a Gaussian kernel as wide as the support's mean distance. See the module."""

    citation = "baseline of Zhen et al., Learning to learn kernels with variational random features, ICML 2020"
    Settings = RBFSettings
    presets = {"classes": {"ridge": 0.1, "gamma": 10.0}}

    def setup(self, generator: torch.Generator) -> None:
        """See :meth:`Learner.setup`."""
        lam, gamma = self.settings.ridge, self.settings.gamma
        self.head = RidgeHead(regression=self.spec.regression, lam=lam, gamma=gamma, unit_norm=True)

    def solve(self, episodes: Episodes, memory: Any = None, generator: torch.Generator | None = None) -> Prediction:
        """k(z, z') = exp(-‖z - z'‖² / 2h²) with h the mean pairwise distance of the support."""
        samples = episodes.support_x.shape[1]
        distance = _distance(episodes.support_x, torch.cat([episodes.support_x, episodes.query_x], dim=1))
        pairs = max(1, samples * (samples - 1))
        mean = distance[..., :samples].sum((1, 2), keepdim=True) / pairs
        bandwidth = torch.where(mean > 0, mean, torch.ones_like(mean))  # one sample alone has no distance
        return self.head.kernel(torch.exp(-0.5 * (distance / bandwidth).square()).unsqueeze(0), episodes)


def _distance(z: Tensor, other: Tensor) -> Tensor:
    """``[T, N, M]``, exactly 0 where samples coincide."""
    return torch.cdist(z, other, compute_mode="donot_use_mm_for_euclid_dist")
