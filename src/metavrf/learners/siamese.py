"""Siamese networks (Koch, Zemel & Salakhutdinov, ICML deep learning workshop 2015).

One network looks at both samples of a pair, and the weighted distance of what it finds says whether they are of the
same class:

    h = sigmoid(W z + c),    p(same | z, z') = sigmoid(Σ_j a_j |h_j - h'_j| + b)

It is trained to verify pairs, by the binary cross entropy, not to classify. A task is then classified by similarity:
a class gets the mean of p over its support samples, as a share of what all classes get.

Pairs are those of a query with a support sample. The authors draw as many pairs of the same class as of different ones;
here all pairs of a task count, and the two kinds weigh alike, which is the mean over such draws. The authors' code has
larger pictures, a convolutional network of its own, weight decay and learning rates per layer. The weights a_j start
equal and negative, so that at first similarity is plain L1 distance. Their scale and b start from a first batch, where
pairs are undecided on average. With b = 0 no pair could score above 0, and before b, one number, had grown by small
steps, all samples would be alike. The preset "paper" has about the authors' 128 pairs a step. They searched a learning
rate for each layer and do not say which they found, so its one is not theirs.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from metavrf.episodes import Episodes
from metavrf.learners.base import Learner, Prediction
from metavrf.learners.head import of_logits
from metavrf.settings import Count

SPREAD = 1.0  # standard deviation of the pairs' scores at the start


@dataclass(frozen=True)
class SiameseSettings:
    """Siamese networks."""

    width: Count = 128
    """Coordinates that a pair is compared in."""


class Siamese(Learner):
    """Pairs of samples, verified by a weighted L1 distance in a learned space. See the module for the idea."""

    citation = "Koch, Zemel & Salakhutdinov, Siamese neural networks for one-shot image recognition, ICML workshop 2015"
    solves = ("classification",)
    Settings = SiameseSettings
    presets = {"classes": {"lr": 2e-3}}
    paper = {
        "classes": {"width": 4096, "lr": 1e-3, "batch": 5, "query": 1, "iterations": 200_000, "embedding": "conv4"},
        "omniglot": {"augment": "affine", "dropout": 0.0},
    }

    def setup(self, generator: torch.Generator) -> None:
        """See :meth:`Learner.setup`."""
        features: Any = self.embedding.features
        self.hidden = nn.Linear(features, self.settings.width)
        self.score = nn.Linear(self.settings.width, 1)
        nn.init.constant_(self.score.weight, -1 / self.settings.width)
        nn.init.zeros_(self.score.bias)

    @torch.no_grad()
    def initialise(self, episodes: Episodes) -> None:
        """Start with scores of mean 0 and standard deviation ``SPREAD``: b is then about as large as distances are."""
        super().initialise(episodes)
        embedded = self.embedded(episodes)
        scores = self.scores(embedded.query_x, embedded.support_x)
        scale = SPREAD / scores.std().clamp_min(torch.finfo(scores.dtype).eps)
        self.score.weight.mul_(scale)
        self.score.bias.sub_(scale * scores.mean())

    def scores(self, first: Tensor, second: Tensor) -> Tensor:
        """Of every pair of features ``[T, N, d]`` and ``[T, M, d]``, before the sigmoid: ``[T, N, M]``."""
        one, other = (self.hidden(z).sigmoid() for z in (first, second))
        scores: Tensor = self.score((one.unsqueeze(2) - other.unsqueeze(1)).abs()).squeeze(-1)
        return scores

    def solve(self, episodes: Episodes, memory: Any = None, generator: torch.Generator | None = None) -> Prediction:
        """Logits are the logarithm of a class's mean similarity ``[T, Q, C]``."""
        scores = self.scores(episodes.query_x, episodes.support_x)  # [T, Q, S]
        members = episodes.support_targets.to(scores)  # [T, S, C]
        shares = (members / members.sum(1, keepdim=True).clamp_min(1)).log().unsqueeze(1)  # -∞ outside a class
        logits = torch.logsumexp(F.logsigmoid(scores).unsqueeze(-1) + shares, dim=2)
        prediction = of_logits(logits.unsqueeze(0), episodes)
        if episodes.query_y is None:
            return prediction
        same = episodes.query_y.unsqueeze(2) == episodes.support_y.unsqueeze(1)
        loss = verification_loss(scores, same)
        return replace(prediction, loss=loss, terms=prediction.terms | {"verification": loss})


def verification_loss(scores: Tensor, same: Tensor) -> Tensor:
    """Binary cross entropy of pairs, those of one class and those of two weighing one half each."""
    weight = torch.where(same, 0.5 / same.sum().clamp_min(1), 0.5 / (~same).sum().clamp_min(1))
    return F.binary_cross_entropy_with_logits(scores, same.to(scores), weight, reduction="sum")
