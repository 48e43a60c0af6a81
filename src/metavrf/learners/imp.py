"""Infinite mixture prototypes (Allen, Shelhamer, Shin & Tenenbaum, ICML 2019).

A class may be several clusters. Each starts as one, the mean of its support; then each support sample in turn opens a
cluster of its own if it is farther than λ from all clusters of its class:

    λ = -2σ log α + d σ log(1 + ρ/σ),    ρ the variance of the class means (its mean over the d features)

which is the distance at which a Dirichlet process of concentration α would open one. Samples are then shared out among
the clusters of their class by Gaussians of variance σ, and a cluster becomes the mean of its share:

    z_ic ∝ exp(-‖h_i - μ_c‖² / 2σ),    μ_c = Σ_i z_ic h_i / Σ_i z_ic

A query's logit for a class is -‖h - μ‖² / 2σ for the nearest of its clusters. σ is learned. With λ = ∞ there is one
cluster per class, and these are prototypical networks; so it is with one shot too.

As in the authors' code no gradient flows through λ and z. They cluster unlabelled samples as well, with a variance of
their own; here all are labelled. Which samples open clusters depends on their order; here all tasks are clustered at
once, with the same result as one sample after the other. Steps, variance and α of the preset "paper" are those of the
authors' code, which halves the learning rate every 2,000 steps on Omniglot and every 20,000 on miniImageNet.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from metavrf.episodes import Episodes
from metavrf.learners.base import Learner, Prediction
from metavrf.learners.head import of_logits
from metavrf.settings import Positive


@dataclass(frozen=True)
class IMPSettings:
    """Infinite mixture prototypes."""

    variance: Positive = 0.5
    """Variance σ of a cluster at the start; it is learned."""
    concentration: Positive = 0.1
    """α of the Dirichlet process: the larger, the sooner a sample opens a cluster of its own."""


class IMP(Learner):
    """Classes of one or several clusters, as many as their samples ask for. See the module for the idea."""

    citation = "Allen, Shelhamer, Shin & Tenenbaum, Infinite mixture prototypes for few-shot learning, ICML 2019"
    solves = ("classification",)
    Settings = IMPSettings
    paper = {
        "classes": {"lr": 1e-3, "batch": 1, "dropout": 0.0, "embedding": "conv4", "iterations": 100_000}
        | {"variance": 15.0, "concentration": 1e-5},
        "omniglot": {"variance": 5.0, "concentration": 0.1, "iterations": 20_000},
    }

    def setup(self, generator: torch.Generator) -> None:
        """See :meth:`Learner.setup`."""
        self.log_variance = nn.Parameter(torch.tensor(math.log(self.settings.variance)))

    @property
    def variance(self) -> Tensor:
        """σ."""
        return self.log_variance.exp()

    def threshold(self, prototypes: Tensor) -> Tensor:
        """λ of each task ``[T]``, of class means ``[T, C, d]``."""
        ratio = prototypes.var(1).mean(-1) / self.variance
        return self.variance * (prototypes.shape[-1] * torch.log1p(ratio) - 2 * math.log(self.settings.concentration))

    def solve(self, episodes: Episodes, memory: Any = None, generator: torch.Generator | None = None) -> Prediction:
        """Of each class the nearest cluster; the query's own ‖h‖² is the same for all, and left out."""
        centres, labels, there = self.clusters(episodes)
        near = (2 * episodes.query_x @ centres.mT - centres.square().sum(-1).unsqueeze(1)) / (2 * self.variance)
        near = near.masked_fill(~there.unsqueeze(1), -torch.inf)  # [T, Q, C + S]
        none = near.new_full((*near.shape[:2], near.shape[2] - episodes.support_x.shape[1]), -torch.inf)
        logits = none.scatter_reduce(2, labels.unsqueeze(1).expand_as(near), near, "amax")  # [T, Q, C]
        return of_logits(logits.unsqueeze(0), episodes)

    def clusters(self, episodes: Episodes) -> tuple[Tensor, Tensor, Tensor]:
        """Centres ``[T, C + S, d]``, their classes ``[T, C + S]``, and which of them there are.

        The first C are those that classes start with, the others those that support samples may open.
        """
        z, y = episodes.support_x, episodes.support_y
        prototypes = episodes.prototypes(z)
        tasks, classes = prototypes.shape[:2]
        labels = torch.cat([torch.arange(classes, device=y.device).expand(tasks, -1), y], dim=1)
        with torch.no_grad():
            centres = torch.cat([prototypes, z], dim=1)
            distance = torch.cdist(z, centres).square()  # [T, S, C + S]
            own = y.unsqueeze(2) == labels.unsqueeze(1)
            near = own & (distance <= self.threshold(prototypes)[:, None, None])
            fresh = opened(~near[..., :classes].any(-1), near[..., classes:])
            there = torch.cat([torch.ones_like(labels[:, :classes], dtype=torch.bool), fresh], dim=1)
            score = (-distance / (2 * self.variance)).masked_fill(~(own & there.unsqueeze(1)), -torch.inf)
            share = score.softmax(-1)
            share = share / share.sum(1, keepdim=True).clamp_min(torch.finfo(share.dtype).tiny)
        return share.mT @ z, labels, there


def opened(alone: Tensor, near: Tensor) -> Tensor:
    """Which samples ``[T, S]`` open a cluster: those far from where their class starts and from all opened before them.

    ``alone [T, S]`` says the first, and ``near [T, S, S]`` which samples would join each other's cluster. The rule in
    turn is the one solution of "open if alone and near none that is open and comes before"; it is applied to all
    samples at once until nothing changes, which settles at least one sample more each time.
    """
    before, found = near.tril(-1), alone
    while not torch.equal(again := alone & ~(before & found.unsqueeze(1)).any(-1), found):
        found = again
    return found
