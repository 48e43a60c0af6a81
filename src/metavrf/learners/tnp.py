"""Transformer neural processes, diagonal (Nguyen & Grover, ICML 2022).

Every point is a token: (x, y, 0) of the support, (x, 0, 1) of a query. Layers of a transformer follow, in which all
tokens attend to those of the support, and to no query, not even themselves; a token keeps what it is by the sum:

    h ← norm(h + attention(h; support's h)),    h ← norm(h + network(h)),    (μ, s) = head(h),    y ~ N(μ, σ²)

There are no positions, so the order of the support does not matter, and no query sees another. The mask of the authors'
code says the same: columns of queries are -∞. Here these columns are not computed in the first place.

The authors' code has no mark of what is a query, σ = exp(s), and no dropout either; here σ = c + (1 - c)·softplus(s)
as in :mod:`metavrf.learners.cnp`, which is steadier.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from metavrf.episodes import Episodes
from metavrf.errors import UserError
from metavrf.learners.base import Learner, Prediction
from metavrf.learners.cnp import network, normals
from metavrf.settings import Count, Share


@dataclass(frozen=True)
class TNPSettings:
    """Transformer neural processes."""

    width: Count = 64
    """Size of a token."""
    layers: Count = 6
    """Layers of the transformer."""
    heads: Count = 4
    """Heads of each attention; they divide the width."""
    hidden: Count = 128
    """Hidden units of the networks in each layer and at the end."""
    embedding_layers: Count = 4
    """Layers of the network that makes a token of a point."""
    least_std: Share = 0.003
    """c, the least standard deviation of an answer."""

    def check(self) -> None:
        """Refuse heads of unequal size."""
        if self.width % self.heads:
            raise UserError(f"heads = {self.heads} do not divide the width = {self.width}")


class TNP(Learner):
    """A transformer in which all points attend to the support. See the module for the idea."""

    citation = "Nguyen & Grover, Transformer neural processes: uncertainty-aware meta learning, ICML 2022"
    solves = ("regression",)
    Settings = TNPSettings
    presets = {"functions": {"embedding": "raw", "lr": 1e-3, "query": 30, "batch": 16}}
    paper = {"functions": {"embedding": "raw", "lr": 5e-4, "schedule": "cosine", "batch": 16, "iterations": 100_000}}

    def setup(self, generator: torch.Generator) -> None:
        """See :meth:`Learner.setup`."""
        settings, outputs = self.settings, self.spec.targets or 1
        features: Any = self.embedding.features
        width, hidden = settings.width, settings.hidden
        self.token = network(features + outputs + 1, width, settings.embedding_layers, width)
        self.layers = nn.ModuleList(Layer(width, settings.heads, hidden) for _ in range(settings.layers))
        self.last = network(width, hidden, 2, 2 * outputs)

    def solve(self, episodes: Episodes, memory: Any = None, generator: torch.Generator | None = None) -> Prediction:
        """All tokens through all layers; the queries' are read."""
        samples = episodes.support_x.shape[1]
        tokens = self.token(points(episodes))
        for layer in self.layers:
            tokens = layer(tokens, samples)
        return normals(self.last(tokens[:, samples:]), episodes, self.settings.least_std)


def points(episodes: Episodes) -> Tensor:
    """(x, y, 0) of each support sample, then (x, 0, 1) of each query: ``[T, S + Q, d + p + 1]``."""
    y = F.pad(episodes.support_targets.to(episodes.support_x), (0, 1))
    asked = F.pad(y.new_ones(*episodes.query_x.shape[:2], 1), (y.shape[-1] - 1, 0))
    return torch.cat([torch.cat([episodes.support_x, episodes.query_x], dim=1), torch.cat([y, asked], dim=1)], dim=-1)


class Layer(nn.Module):
    """Attention of all tokens to the first of them, then a network; normalised after each sum."""

    def __init__(self, width: int, heads: int, hidden: int) -> None:
        super().__init__()
        self.heads = heads
        self.query = nn.Linear(width, width)
        self.key_value = nn.Linear(width, 2 * width)
        self.joined = nn.Linear(width, width)
        self.network = network(width, hidden, 2, width)
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(2))

    def forward(self, tokens: Tensor, samples: int) -> Tensor:
        """``tokens [T, N, width]``, of which all attend to the first ``samples``."""
        key, value = self.key_value(tokens[:, :samples]).chunk(2, dim=-1)
        query, key, value = (
            x.unflatten(-1, (self.heads, -1)).transpose(1, 2) for x in (self.query(tokens), key, value)
        )
        read = F.scaled_dot_product_attention(query, key, value).transpose(1, 2).flatten(2)  # [T, N, width]
        tokens = self.norms[0](tokens + self.joined(read))
        return self.norms[1](tokens + self.network(tokens))  # type: ignore[no-any-return]
