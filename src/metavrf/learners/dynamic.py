"""Dynamic few-shot learning without forgetting (Gidaris & Komodakis, CVPR 2018).

A classifier of the training classes ("base" classes) by cosine, and a generator of weights that adds new ("novel")
classes to it. The weight of a novel class is made of its own support and of the base classes that are like it:

    w = φ_avg ⊙ mean_i z_i + φ_att ⊙ mean_i Σ_b softmax_b(γ cos(φ_q z_i, k_b)) w_b      logits = s cos(z, w)

with unit-length features z_i of its support and unit-length base weights w_b; the keys k_b, the map φ_q, the vectors
φ_avg and φ_att and the scales γ and s are learned. Because all weights are compared in angle, base and novel classes
can be told apart together (:meth:`Dynamic.scores`); a test task asks for its novel classes alone.

Training pretends: some classes of a training task are novel. They are left out of the base weights, get generated ones,
and the other samples must be told from all training classes with these (``among_all``).

The authors train in two stages: embedding and base weights first, then the generator, with the embedding fixed. Here
both are trained together, unless a trained classifier is given (``--start-from``). Their embedding has no ReLU at the
end, and their generator attends in a training task to the base classes of that task; here it attends to all training
classes that are not in the task. The loss among the task's own classes (``task_weight``) is added here. In the preset
"paper" the learning rate stays at 0.1; theirs falls three times, first after 20,000 steps.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Annotated, Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from metavrf.episodes import Episodes
from metavrf.learners.with_classes import NewWeights
from metavrf.settings import NotNegative, Positive, Range


@dataclass(frozen=True)
class DynamicSettings:
    """Dynamic few-shot learning."""

    novel: Annotated[float, Range(above=0)] = 0.5
    """Share of a training task's classes that are treated as novel; 1 or more for all."""
    gamma: Positive = 10.0
    """Scale of the attention over base classes at the start; it is learned."""
    task_weight: NotNegative = 1.0
    """Weight of the loss among a task's own classes; 0 for that among all training classes alone."""


class Dynamic(NewWeights):
    """A cosine classifier of the training classes that new ones are added to, by attention. See the module."""

    citation = "Gidaris & Komodakis, Dynamic few-shot visual learning without forgetting, CVPR 2018"
    Settings = DynamicSettings
    paper = {
        "classes": {
            "optimizer": "sgd",
            "lr": 0.1,
            "weight_decay": 5e-4,
            "batch": 8,
            "train_way": 10,  # five of them novel
            "query": 3,
            "iterations": 60_000,
            "dropout": 0.0,
            "task_weight": 0.0,
        }
    }

    def setup(self, generator: torch.Generator) -> None:
        """See :meth:`Learner.setup`."""
        super().setup(generator)
        features: Any = self.embedding.features
        self.average = nn.Parameter(torch.ones(features))  # φ_avg
        self.attended = nn.Parameter(torch.ones(features))  # φ_att
        self.asking = nn.Linear(features, features)  # φ_q
        nn.init.eye_(self.asking.weight)
        nn.init.zeros_(self.asking.bias)
        self.keys = nn.Parameter(torch.randn(self.spec.train_classes, features) / math.sqrt(features))  # k_b
        self.log_gamma = nn.Parameter(torch.tensor(math.log(self.settings.gamma)))

    def weights(self, episodes: Episodes, generator: torch.Generator | None = None) -> Tensor:
        """Weights ``[T, C, d]`` of the tasks' classes, all taken for novel: in training they do not see themselves."""
        unit = F.normalize(episodes.support_x, dim=-1)
        similar = self.log_gamma.exp() * F.normalize(self.asking(unit), dim=-1) @ F.normalize(self.keys, dim=-1).T
        if self.training and episodes.classes is not None:
            hidden = episodes.classes.unsqueeze(1).expand(-1, similar.shape[1], -1)
            similar = similar.scatter(2, hidden, -torch.inf)
        attended = similar.softmax(-1) @ F.normalize(self.classifier.weight, dim=-1)  # [T, S, d]
        return self.average * episodes.prototypes(unit) + self.attended * episodes.prototypes(attended)

    def new(self, way: int) -> int:
        """How many of a training task's classes are taken for novel."""
        return min(way, math.ceil(self.settings.novel * way))

    def scores(self, episodes: Episodes) -> Tensor:
        """Logits of embedded queries for base and novel classes together, ``[T, Q, train_classes + C]``."""
        novel = self.logits(episodes.query_x, self.weights(episodes))
        return torch.cat([self.classifier(episodes.query_x), novel], dim=-1)
