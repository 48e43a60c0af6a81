"""Conditional neural processes (Garnelo et al., ICML 2018).

Each point of the support is encoded by itself, the codes are averaged, and a decoder answers for any x from that mean:

    r = (1/S) Σ_i encoder(x_i, y_i),    (μ, s) = decoder(x, r),    y ~ N(μ, σ²),    σ = c + (1 - c)·softplus(s)

So the order of the points does not matter, and queries do not see each other. Training maximises the likelihood of the
queries. The mean is all a query gets to know of the support, which is why fits do not pass through its points exactly.

The authors' code has c = 0.1 and tells the decoder apart from the encoder in no other way; here c is small, as many
families have no noise. They predict the support's points too while training; here only queries.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from metavrf.episodes import Episodes
from metavrf.learners.base import Learner, Prediction
from metavrf.learners.head import of_normals
from metavrf.learners.inferred import Inferred
from metavrf.nn.mlp import MLP
from metavrf.settings import Count, Share


@dataclass(frozen=True)
class CNPSettings:
    """Conditional neural processes."""

    width: Count = 128
    """Size of the code r of a task, and of all layers."""
    encoder_layers: Count = 4
    """Layers of the encoder."""
    decoder_layers: Count = 3
    """Layers of the decoder."""
    least_std: Share = 0.003
    """c, the least standard deviation of an answer."""


class CNP(Learner):
    """A network on the mean code of the support's points. See the module for the idea."""

    citation = "Garnelo et al., Conditional neural processes, ICML 2018"
    solves = ("regression",)
    Settings = CNPSettings
    presets = {"functions": {"embedding": "raw", "lr": 1e-3, "query": 30}}
    paper = {
        "functions": {
            "embedding": "raw",
            "batch": 64,
            "iterations": 200_000,
            "least_std": 0.1,
        }
    }

    def setup(self, generator: torch.Generator) -> None:
        """See :meth:`Learner.setup`."""
        settings, outputs = self.settings, self.spec.targets or 1
        features: Any = self.embedding.features
        self.encoder = network(features + outputs, settings.width, settings.encoder_layers, settings.width)
        self.decoder = network(features + settings.width, settings.width, settings.decoder_layers, 2 * outputs)

    def inferred(self, episodes: Episodes) -> Inferred:
        """The mean code of the support."""
        return Inferred(self.encoder(torch.cat([episodes.support_x, episodes.support_y], dim=-1)).mean(1))

    def answer(self, episodes: Episodes, inference: Any) -> Prediction:
        """Decode at the queries."""
        x = episodes.query_x
        code = inference.values.unsqueeze(1).expand(-1, x.shape[1], -1)
        return normals(self.decoder(torch.cat([x, code], dim=-1)), episodes, self.settings.least_std)

    def solve(self, episodes: Episodes, memory: Any = None, generator: torch.Generator | None = None) -> Prediction:
        """Encode the support, decode at the queries."""
        return self.answer(episodes, self.inferred(episodes))


def network(inputs: int, width: int, layers: int, outputs: int) -> nn.Sequential:
    """So many layers in all, with a ReLU between them."""
    sizes = [inputs] + [width] * (layers - 1)
    return nn.Sequential(MLP(sizes), nn.Linear(sizes[-1], outputs))


def normals(outputs: Tensor, episodes: Episodes, least_std: float) -> Prediction:
    """A normal for each query: ``outputs [T, Q, 2p]`` are μ and s, and σ = c + (1 - c)·softplus(s)."""
    mean, s = outputs.unsqueeze(0).chunk(2, dim=-1)
    return of_normals(mean, (least_std + (1 - least_std) * F.softplus(s)).square(), episodes)
