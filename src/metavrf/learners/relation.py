"""Relation networks (Sung, Yang, Zhang, Xiang, Torr & Hospedales, CVPR 2018).

The metric itself is learned: a small network looks at the feature maps of a query and of a class (the sum of its
support's maps), side by side, and says how related they are, from 0 to 1. It is trained by the squared error of that
score. The embedding pools in its first two blocks only, so that there are maps to look at.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from metavrf.episodes import Episodes
from metavrf.learners.base import Learner, Prediction
from metavrf.learners.head import of_logits
from metavrf.nn.normalisation import Normalisation

WIDTH = 64
HIDDEN = 8


class Relation(Learner):
    """A learned comparison of a query with each class. See the module for the idea.

    The first convolution on [class, query] is the sum of one on the class and one on the query: both are computed once
    a picture, and only their sum once a pair.
    """

    citation = "Sung et al., Learning to compare: relation network for few-shot learning, CVPR 2018"
    solves = ("classification",)
    maps = True
    presets = {"classes": {"train_way": 20}}
    paper = {
        "classes": {
            "lr": 1e-3,
            "clip": 0.5,
            "batch": 1,
            "iterations": 500_000,
            "dropout": 0.0,
            "train_way": 0,
            "embedding": "conv4",
        },
        "omniglot": {"query": 19, "iterations": 1_000_000},
    }

    def setup(self, generator: torch.Generator) -> None:
        """See :meth:`Learner.setup`."""
        self.shape = shape = tuple(self.embedding.shape)  # type: ignore[arg-type]  # channels, height, width of the embedding's maps
        self.of_class = nn.Conv2d(shape[0], WIDTH, 3, padding=1, bias=False)
        self.of_query = nn.Conv2d(shape[0], WIDTH, 3, padding=1, bias=False)
        self.second = nn.Conv2d(WIDTH, WIDTH, 3, padding=1, bias=False)
        self.norms = nn.ModuleList(Normalisation(WIDTH) for _ in range(2))
        height, width = (_pooled(_pooled(length)) for length in shape[1:])
        self.hidden = nn.Linear(WIDTH * height * width, HIDDEN)
        self.score = nn.Linear(HIDDEN, 1)

    def solve(self, episodes: Episodes, memory: Any = None, generator: torch.Generator | None = None) -> Prediction:
        """Logits are scores before their sigmoid ``[T, Q, C]``."""
        members = episodes.support_targets.to(episodes.support_x).mT  # [T, C, S]
        classes = self._convolved(self.of_class, members @ episodes.support_x).unsqueeze(1)  # [T, 1, C, ...]
        queries = self._convolved(self.of_query, episodes.query_x).unsqueeze(2)  # [T, Q, 1, ...]
        pairs = (classes + queries).flatten(0, 2)  # [T·Q·C, WIDTH, height, width]
        x = _pool(F.relu(self.norms[0](pairs)))
        x = _pool(F.relu(self.norms[1](self.second(x))))
        score = self.score(F.relu(self.hidden(x.flatten(1))))
        logits = score.view(episodes.tasks, -1, members.shape[1])
        prediction = of_logits(logits.unsqueeze(0), episodes)
        if episodes.query_y is None:
            return prediction
        target = F.one_hot(episodes.query_y, logits.shape[-1]).to(logits)
        error = F.mse_loss(logits.sigmoid(), target)
        return replace(prediction, loss=error, terms=prediction.terms | {"score_mse": error})

    def _convolved(self, convolution: nn.Module, z: Tensor) -> Tensor:
        """``[T, N, WIDTH, height, width]`` of flat maps ``z [T, N, d]``."""
        maps = z.reshape(-1, *self.shape).to(memory_format=torch.channels_last)
        convolved: Tensor = convolution(maps).unflatten(0, z.shape[:2])
        return convolved


def _pool(x: Tensor) -> Tensor:
    """Pool by 2; a side of 1 stays."""
    return F.max_pool2d(x, [min(2, length) for length in x.shape[2:]])


def _pooled(length: int) -> int:
    return length // 2 if length > 1 else length
