"""R2-D2 (Bertinetto, Henriques, Torr & Vedaldi, ICLR 2019).

Ridge regression from features to one-hot labels is the base-learner; it has a closed form in the size of the support
set, through which the embedding is trained. It is MetaVRF without the kernel: a linear kernel on the features. The
ridge λ, and a scale and offset of the outputs, are learned.

The preset "paper" has what the authors' code says: shots drawn anew at each step, and of each class as many queries as
their 10 to 15 pictures of a class leave on average. Their code keeps λ fixed, drops activations in the last two of four
wider blocks alone, and stops when validation does. On miniImageNet its scale starts at 1e-4, which a learned logarithm,
as here, would take long to leave.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from metavrf.episodes import Episodes
from metavrf.learners.base import Learner, Prediction
from metavrf.learners.head import RidgeHead
from metavrf.settings import Positive


@dataclass(frozen=True)
class R2D2Settings:
    """R2-D2."""

    ridge: Positive = 50.0
    """λ of ridge regression at the start; it is learned."""
    gamma: Positive = 1.0
    """Output scale γ at the start; it is learned."""


class R2D2(Learner):
    """Ridge regression on the features themselves. See the module for the idea."""

    citation = "Bertinetto et al., Meta-learning with differentiable closed-form solvers, ICLR 2019"
    solves = ("classification",)
    Settings = R2D2Settings
    presets = {"classes": {"ridge": 10.0, "gamma": 10.0}}
    paper = {
        "classes": {"lr": 5e-3, "batch": 1, "train_way": 16, "train_shot": 1, "most_shot": 9, "query": 10}
        | {"ridge": 50.0, "gamma": 1.0, "dropout": 0.1, "iterations": 120_000},
        "cifar-fs": {"train_way": 20, "query": 7, "gamma": 10.0, "dropout": 0.4},
        "omniglot": {"train_way": 60, "query": 5, "gamma": 10.0, "dropout": 0.0},
    }

    def setup(self, generator: torch.Generator) -> None:
        """See :meth:`Learner.setup`."""
        self.head = RidgeHead(regression=False, lam=self.settings.ridge, gamma=self.settings.gamma)

    def solve(self, episodes: Episodes, memory: Any = None, generator: torch.Generator | None = None) -> Prediction:
        """Ridge in the dual, or in the primal where the support outnumbers the features."""
        return self.head(torch.cat([episodes.support_x, episodes.query_x], dim=1).unsqueeze(0), episodes)
