"""Prototypical networks (Snell, Swersky & Zemel, NeurIPS 2017).

A class is the mean of its support features, its prototype; a query belongs to the nearest one. Probabilities are the
softmax of negative squared Euclidean distances, so for one shot it is a nearest-neighbour rule in a space learned for
it.
"""

from __future__ import annotations

from typing import Any

import torch

from metavrf.episodes import Episodes
from metavrf.learners.base import Learner, Prediction
from metavrf.learners.head import of_logits


class Prototypical(Learner):
    """The nearest class mean in a learned space. See the module for the idea."""

    citation = "Snell, Swersky & Zemel, Prototypical networks for few-shot learning, NeurIPS 2017"
    solves = ("classification",)
    paper = {
        "classes": {"lr": 1e-3, "batch": 1, "train_way": 30, "dropout": 0.0, "embedding": "conv4"},
        "omniglot": {"train_way": 60, "query": 5},
    }

    def solve(self, episodes: Episodes, memory: Any = None, generator: torch.Generator | None = None) -> Prediction:
        """Classify embedded queries."""
        return nearest_prototype(episodes)


def nearest_prototype(episodes: Episodes) -> Prediction:
    """Logits are -‖z - c‖² = 2 zᵀc - ‖c‖² - ‖z‖²; the last is the same for all classes, so it is left out."""
    prototypes = episodes.prototypes(episodes.support_x)  # c  [T, C, d]
    logits = 2 * episodes.query_x @ prototypes.mT - prototypes.square().sum(-1).unsqueeze(-2)  # [T, Q, C]
    return of_logits(logits.unsqueeze(0), episodes)
