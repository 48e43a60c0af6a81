"""R2-D2 (Bertinetto, Henriques, Torr & Vedaldi, ICLR 2019).

Ridge regression from features to one-hot labels is the base-learner; it has a closed form in the size of the support
set, through which the embedding is trained. It is MetaVRF without the kernel: a linear kernel on the features. The
ridge λ, and a scale and offset of the outputs, are learned.
"""

from __future__ import annotations

from typing import Any, Self

import torch
from torch import nn

from metavrf.config import Config
from metavrf.episodes import Episodes
from metavrf.learners.base import Learner, Prediction
from metavrf.learners.head import RidgeHead
from metavrf.tasks.source import Description


class R2D2(Learner):
    """Ridge regression on the features themselves. See the module for the idea."""

    citation = "Bertinetto et al., Meta-learning with differentiable closed-form solvers, ICLR 2019"
    solves = ("classification",)

    def __init__(self, embedding: nn.Module, *, ridge: float = 50.0, gamma: float = 1.0) -> None:
        super().__init__(embedding)
        self.head = RidgeHead(regression=False, lam=ridge, gamma=gamma)

    @classmethod
    def of(cls, embedding: Any, config: Config, data: Description, generator: torch.Generator) -> Self:
        """With λ and γ as the settings start them."""
        return cls(embedding, ridge=config.model.ridge, gamma=config.model.gamma)

    def solve(self, episodes: Episodes, memory: Any = None, generator: torch.Generator | None = None) -> Prediction:
        """Ridge in the dual, or in the primal where the support outnumbers the features."""
        return self.head(torch.cat([episodes.support_x, episodes.query_x], dim=1).unsqueeze(0), episodes)
