"""Conditionally shifted neurons (Munkhdalai, Yuan, Mehri & Trischler, ICML 2018; arXiv 2017).

A plain classifier whose neurons are shifted for each query, by what the support's errors said. First the support passes
the classifier without shifts. What goes wrong is turned into a shift for each neuron n of each layer t, by a small
network g_t that is shared by the neurons of a layer, and kept in a memory under the sample's key k_i = f(x_i):

    V_t[i, n] = g_t(I_t[i, n])

The information I is the error's gradient with respect to the neuron's activation ("gradient"), or "direct": the errors
p_i - y_i of all outputs, times the neuron's own slope σ'(a), with nothing sent back through the layers. The output
neurons get their own error p - y either way. A query then asks the memory by its key, and its neurons move:

    attention = softmax_i(γ cos(f(x), k_i))      β_t = Σ_i attention_i V_t[i]
    h_t = σ(W_t h_{t-1} + b_t) + β_t             p = softmax(W h + b + β)

The authors' code was not released. Their shifted network is a whole CNN, residual network or LSTM, and keys come from a
second CNN. Here the embedding is shared: hidden layers after it are shifted, and keys are a linear map of its features.
So a picture is embedded once, and ready features work too. γ is learned here. The paper has the learning rate, layers
and filters of the preset "paper"; its tasks per step and steps are not published. It has dropout, without saying how
much.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from metavrf.episodes import Episodes
from metavrf.errors import UserError
from metavrf.learners.base import Learner, Prediction
from metavrf.learners.head import of_logits
from metavrf.learners.maml import MAML
from metavrf.settings import Count, EpisodeSettings, Positive


@dataclass(frozen=True)
class CSNSettings:
    """Conditionally shifted neurons."""

    feedback: Literal["direct", "gradient"] = "direct"
    """What a neuron's shift is made of: the errors of the outputs, or their gradient at the neuron."""
    layers: Count = 2
    """Hidden layers whose neurons are shifted."""
    width: Count = 64
    """Neurons of each."""
    value_width: Count = 20
    """Neurons of each layer of the network that turns errors into shifts."""
    gamma: Positive = 10.0
    """Scale of the similarity of keys at the start; it is learned."""


class CSN(Learner):
    """A classifier whose neurons are shifted by a memory of the support's errors. See the module for the idea.

    The last layer fixes the number of classes.
    """

    citation = "Munkhdalai et al., Rapid adaptation with conditionally shifted neurons, ICML 2018"
    solves = ("classification",)
    any_way = False
    Settings = CSNSettings
    presets = {"classes": {"train_way": 0, "train_shot": 0, "batch": 12, "query": 5}}
    paper = {
        "classes": {"lr": 1e-3, "batch": 32, "channels": 32, "embedding": "conv5", "dropout": 0.0},
        "features": {"embedding": "ready"},
    }

    def setup(self, generator: torch.Generator) -> None:
        """See :meth:`Learner.setup`."""
        features: Any = self.embedding.features
        settings, way = self.settings, self.spec.way
        sizes = [features, *[settings.width] * settings.layers, way]
        self.weights = nn.ModuleList(nn.Linear(a, b) for a, b in pairwise(sizes))
        known = way if settings.feedback == "direct" else 1
        self.values = nn.ModuleList(_value(known, settings.value_width) for _ in range(settings.layers))
        self.values.append(_value(1, settings.value_width))
        self.key = nn.Linear(features, features, bias=False)
        nn.init.eye_(self.key.weight)
        self.log_gamma = nn.Parameter(torch.tensor(math.log(settings.gamma)))

    @classmethod
    def check_tasks(cls, shape: EpisodeSettings, *, regression: bool) -> None:
        """Refuse training tasks of another number of classes than test tasks."""
        MAML.check_tasks(shape, regression=regression)

    def solve(self, episodes: Episodes, memory: Any = None, generator: torch.Generator | None = None) -> Prediction:
        """Fill the memory from the support, then answer each query with neurons shifted by it."""
        if episodes.way != self.spec.way:
            raise UserError(
                f"this model answers {self.spec.way} classes, which its last layer fixes: "
                f"give tasks of --way {self.spec.way}, not {episodes.way}, in training and test"
            )
        values = [g(known).squeeze(-1) for g, known in zip(self.values, self.information(episodes), strict=True)]
        support, query = (F.normalize(self.key(z), dim=-1) for z in (episodes.support_x, episodes.query_x))
        attention = (self.log_gamma.exp() * (query @ support.mT)).softmax(-1)  # [T, Q, S]
        shifts = [attention @ value for value in values]  # [T, Q, neurons]
        return of_logits(self.shifted(episodes.query_x, shifts)[-1].unsqueeze(0), episodes)

    def shifted(self, z: Tensor, shifts: Sequence[Tensor] | None = None) -> list[Tensor]:
        """Activations ``[T, N, neurons]`` of each layer before its nonlinearity; the last are the shifted logits."""
        found: list[Tensor] = []
        for layer, linear in enumerate(self.weights):
            if layer:
                z = F.relu(z) if shifts is None else F.relu(z) + shifts[layer - 1]
            z = linear(z)
            found.append(z)
        if shifts is not None:
            found[-1] = found[-1] + shifts[-1]
        return found

    def information(self, episodes: Episodes) -> list[Tensor]:
        """What each neuron is told of each support sample's error, ``[T, S, neurons, known]`` for each layer."""
        *hidden, logits = self.shifted(episodes.support_x)
        error = logits.softmax(-1) - episodes.support_targets.to(logits)  # [T, S, C]
        told = [error.unsqueeze(-1)]
        back = error
        for layer in range(len(hidden) - 1, -1, -1):
            slope = (hidden[layer] > 0).to(error)
            if self.settings.feedback == "direct":
                known = slope.unsqueeze(-1) * error.unsqueeze(-2)
            else:
                after: Any = self.weights[layer + 1]
                back = slope * (back @ after.weight)
                known = back.unsqueeze(-1)
            told.insert(0, known)
        return told


def _value(known: int, width: int) -> nn.Sequential:
    """g: three layers from what a neuron is told to its shift."""
    return nn.Sequential(nn.Linear(known, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU(), nn.Linear(width, 1))
