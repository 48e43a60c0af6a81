"""Matching networks (Vinyals, Blundell, Lillicrap, Kavukcuoglu & Wierstra, NeurIPS 2016).

A query attends to the support samples by the cosine of their features; the probability of a class is the attention its
samples get. This is the version without full context embeddings, which is the one the paper reports on Omniglot. The
paper's softmax has no temperature; ours is learned, and starts at 1 in the preset "paper". Its learning rate, tasks per
step and steps are not published.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from metavrf.episodes import Episodes
from metavrf.learners.base import Learner, Prediction
from metavrf.learners.head import of_logits
from metavrf.settings import Positive


@dataclass(frozen=True)
class MatchingSettings:
    """Matching networks."""

    gamma: Positive = 1.0
    """Scale of the similarities at the start; it is learned."""


class Matching(Learner):
    """Attention over the support samples by the cosine of their features. See the module for the idea."""

    citation = "Vinyals et al., Matching networks for one shot learning, NeurIPS 2016"
    solves = ("classification",)
    Settings = MatchingSettings
    presets = {"classes": {"gamma": 10.0}}
    paper = {"classes": {"lr": 1e-3, "gamma": 1.0, "batch": 1, "dropout": 0.0}}

    def setup(self, generator: torch.Generator) -> None:
        """See :meth:`Learner.setup`."""
        self.log_gamma = nn.Parameter(torch.tensor(math.log(self.settings.gamma)))

    def solve(self, episodes: Episodes, memory: Any = None, generator: torch.Generator | None = None) -> Prediction:
        """P(class) = Σ attention to its support samples."""
        support, query = F.normalize(episodes.support_x, dim=-1), F.normalize(episodes.query_x, dim=-1)
        attention = (self.log_gamma.exp() * (query @ support.mT)).softmax(-1)  # [T, Q, S]
        probability = attention @ episodes.support_targets.to(attention)  # [T, Q, C]
        return of_logits(probability.clamp_min(torch.finfo(probability.dtype).tiny).log().unsqueeze(0), episodes)
