"""SNAIL, a simple neural attentive learner (Mishra, Rohaninejad, Chen & Abbeel, ICLR 2018).

A task is a sequence: the support samples with their targets, then one query without. Two kinds of causal layers take
turns, each of which adds what it finds to the features at hand. Temporal convolutions look back by 1, 2, 4, ... places,

    x_t ← [x_t, tanh(a_t) ⊙ sigmoid(b_t)],    (a_t, b_t) = W x_t + V x_(t-R)

and attention looks back at everything: x_t ← [x_t, Σ_(s ≤ t) softmax(q_tᵀk_s / √d) v_s]. The blocks are attention,
convolutions, attention, convolutions, attention, and a linear layer reads the query's place.

The layers are causal, so the support does not see the query: it is computed once, and each query looks back at it by
itself, at the place after the last support sample. Queries do not see each other.

The order of the support matters. It is drawn anew at each training step, so that a trained model hardly depends on it.
The last layer fixes the number of classes. The paper writes dilations of 2, 4, 8, ..., which would see every other
place only; here they are 1, 2, 4, ... Keys start as queries do, so that a place attends to those that are like it from
the start. The first attention compares features alone and reads targets alone at first, a query hardly attends to
itself there, and the last layer starts with what it reads: so training starts from matching networks, and the rest of
the network learns to do better. From a random start a query mostly attends to itself, which has no target, and it takes
long to learn to compare at all. The authors' layers are twice as wide, as in the preset "paper". Their code is not
published, so its learning rate, tasks per step and number of steps could not be checked. In regression the answer is a
normal, as in :mod:`metavrf.learners.cnp`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Annotated, Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from metavrf.episodes import Episodes
from metavrf.learners.base import Learner, Prediction
from metavrf.learners.cnp import normals
from metavrf.learners.head import of_logits
from metavrf.learners.tnp import points
from metavrf.settings import Count, Range, Share

OWN = 10.0  # how much less a query attends to its own place at the start than likeness says
SCALE = 5.0  # logits at the start are this times the attention that a class gets


@dataclass(frozen=True)
class SNAILSettings:
    """SNAIL."""

    features: Count = 64
    """Features of a sample, to which those of the embedding are mapped; beside the target."""
    filters: Annotated[int, Range(least=4)] = 64
    """Filters of a temporal convolution. Attention has 1/2, 2 and 4 times as many keys, and half of that for values."""
    length: Annotated[int, Range(least=2)] = 32
    """Places that the convolutions of a block reach across together, the query among them; attention reaches all."""
    least_std: Share = 0.003
    """Least standard deviation of an answer, in regression."""


class SNAIL(Learner):
    """Temporal convolutions and causal attention over the support and one query. See the module for the idea."""

    citation = "Mishra, Rohaninejad, Chen & Abbeel, A simple neural attentive meta-learner, ICLR 2018"
    any_way = False
    Settings = SNAILSettings
    presets = {
        "functions": {"lr": 1e-3},
        "classes": {"train_way": 0, "batch": 12, "lr": 2e-3},
    }
    paper = {
        "all": {"filters": 128, "lr": 1e-4, "batch": 32},
        "classes": {"dropout": 0.0, "iterations": 80_000},
    }

    def setup(self, generator: torch.Generator) -> None:
        """See :meth:`Learner.setup`."""
        settings, spec = self.settings, self.spec
        features: Any = self.embedding.features
        self.sample = nn.Linear(features, settings.features, bias=False)
        self.norm = nn.BatchNorm1d(settings.features)  # centred, or else all samples are alike to a dot product
        size = settings.features + (spec.targets or spec.way) + 1
        dilations = [2**i for i in range(math.ceil(math.log2(settings.length)))]
        layers: list[Attention | Convolution] = []
        for block, times in enumerate((1, 4, 8)):  # of half the filters
            if block:
                for dilation in dilations:
                    layers.append(Convolution(size, dilation, settings.filters))
                    size += settings.filters
            keys, values = times * settings.filters // 2, times * settings.filters // 4
            layers.append(Attention(size, keys, values))
            size += values
        self.layers = nn.ModuleList(layers)
        self.last = nn.Linear(size, 2 * spec.targets if spec.targets else spec.way)
        self.start_by_matching(spec.targets or spec.way)

    @torch.no_grad()
    def start_by_matching(self, targets: int) -> None:
        """Have the first attention find samples like the query, and the last layer read their targets from it."""
        first: Any = self.layers[0]
        (keys, _, values), inputs, features = first.sizes, first.all.in_features, self.settings.features
        nn.init.zeros_(first.all.weight)
        nn.init.zeros_(first.all.bias)
        asks, key, value = first.all.weight.split(first.sizes)
        nn.init.orthogonal_(asks[1:, :features])
        key.copy_(asks)
        first.all.bias[0], key[0, -1] = 1.0, -OWN * math.sqrt(keys)  # a place marked as a query has no target to read
        nn.init.orthogonal_(value[:, features:-1])
        scale = 1.0 if self.spec.targets else SCALE
        self.last.weight[:targets, inputs : inputs + values] = scale * value[:, features:-1].T

    def solve(self, episodes: Episodes, memory: Any = None, generator: torch.Generator | None = None) -> Prediction:
        """Read the queries' place after the last layer."""
        self.check_way(episodes)
        if self.training and generator is not None:
            episodes = reordered(episodes, generator)
        support, query = self.places(episodes)
        for layer in self.layers:
            support, query = layer(support, query)
        outputs = self.last(query)
        if episodes.way is None:
            return normals(outputs, episodes, self.settings.least_std)
        return of_logits(outputs.unsqueeze(0), episodes)

    def places(self, episodes: Episodes) -> tuple[Tensor, Tensor]:
        """What the sequence consists of: ``[T, S, d]`` of the support, and ``[T, Q, d]`` for its last place."""
        samples = episodes.support_x.shape[1]
        features = episodes.embedded(lambda x: self.norm(self.sample(x).flatten(0, 1)).unflatten(0, x.shape[:2]))
        support, query = points(features).tensor_split([samples], dim=1)
        return support, query


def reordered(episodes: Episodes, generator: torch.Generator) -> Episodes:
    """The same tasks with the support of each in an order of its own."""
    x, y = episodes.support_x, episodes.support_y
    order = torch.rand(x.shape[:2], generator=generator).argsort(1).to(x.device)
    tasks = torch.arange(len(x), device=x.device).unsqueeze(1)
    return replace(episodes, support_x=x[tasks, order], support_y=y[tasks, order])


class Convolution(nn.Module):
    """A causal convolution of two places, ``dilation`` apart, with gates; its result goes beside its input."""

    def __init__(self, inputs: int, dilation: int, filters: int) -> None:
        super().__init__()
        self.dilation = dilation
        self.here = nn.Linear(inputs, 2 * filters)
        self.back = nn.Linear(inputs, 2 * filters, bias=False)

    def forward(self, support: Tensor, query: Tensor) -> tuple[Tensor, Tensor]:
        """``[T, S, d]`` and ``[T, Q, d]``; each query stands at place S."""
        samples = support.shape[1]
        back = F.pad(self.back(support), (0, 0, self.dilation, 0))  # at place t what was at t - dilation, or 0
        return (
            torch.cat([support, _gated(self.here(support) + back[:, :samples])], dim=-1),
            torch.cat([query, _gated(self.here(query) + back[:, samples : samples + 1])], dim=-1),
        )


def _gated(x: Tensor) -> Tensor:
    a, b = x.chunk(2, dim=-1)
    return a.tanh() * b.sigmoid()


class Attention(nn.Module):
    """Causal attention; what is read goes beside its input."""

    def __init__(self, inputs: int, keys: int, values: int) -> None:
        super().__init__()
        self.sizes = [keys, keys, values]
        self.all = nn.Linear(inputs, sum(self.sizes))
        with torch.no_grad():  # keys start as queries do: at first a place attends to those that are like it
            self.all.weight[keys : 2 * keys] = self.all.weight[:keys]

    def forward(self, support: Tensor, query: Tensor) -> tuple[Tensor, Tensor]:
        """As :class:`Convolution`: a query attends to the support and to itself."""
        asked, key, value = self.all(support).split(self.sizes, dim=-1)
        read = F.scaled_dot_product_attention(asked, key, value, is_causal=True)
        asks, own_key, own_value = self.all(query).split(self.sizes, dim=-1)
        scores = torch.cat([asks @ key.mT, (asks * own_key).sum(-1, keepdim=True)], dim=-1)  # [T, Q, S + 1]
        weight = (scores / math.sqrt(self.sizes[0])).softmax(-1)
        read_by_query = weight[..., :-1] @ value + weight[..., -1:] * own_value
        return torch.cat([support, read], dim=-1), torch.cat([query, read_by_query], dim=-1)
