"""CAVIA: fast context adaptation via meta-learning (Zintgraf, Shiarlis, Kurin, Hofmann & Whiteson, ICML 2019).

The inner loop changes a small vector of context parameters φ and nothing else. φ starts at zero for every task:

    φ ← φ - α·∇φ L(f(x; φ, θ), y) on the support, then θ ← θ - β·∇θ L(f(x; φ, θ), y) on the queries,

through the inner steps (second order). On functions φ is concatenated to the input: that is a bias of the first layer,
W·[x, φ] = Wx·x + Wφ·φ, and computed as such. On pictures a linear map of φ scales and shifts each channel after the
normalisation of every block, and each feature before the last layer (FiLM): h ↦ (1 + γ(φ))·h + β(φ). As the other
weights are the same for all tasks, the convolutions of all tasks are one, and φ is what is inferred of a task.

On pictures the inner loop starts as a comparison: the context scales features alone, each by itself, and the rows of
the last layer are orthogonal. One step then gives a class the likeness to its own samples, feature by feature, and what
it gets from those of other classes mostly cancels out. From a random start that takes long to be learned.

The authors modulate the third of four blocks only, after pooling, from a random start, and normalise each pass by its
own batch, which makes their figures transductive. Here a task is normalised by its support, in training too. The preset
"paper" has the numbers of their code for one shot, but for a learning rate that falls by a tenth every 5,000 steps. The
best figures of their paper are of more channels (``--channels 512``).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call, vmap

from metavrf.episodes import Episodes
from metavrf.errors import UserError
from metavrf.learners.base import Prediction
from metavrf.learners.inferred import Inferred
from metavrf.learners.maml import CLASSES, MAML, InnerLoop, Weights
from metavrf.nn.normalisation import Normalisation
from metavrf.protocol import INDUCTIVE, Protocol
from metavrf.settings import Count, Positive

GAIN = 5.0  # of the map from the context to the scales of features, at the start and an inner learning rate of 1


@dataclass(frozen=True)
class CaviaSettings(InnerLoop):
    """CAVIA."""

    inner_lr: Positive = 10.0
    """Learning rate of the inner steps on the context parameters."""
    context: Count = 100
    """Number of context parameters, which the inner steps change."""


class Cavia(MAML):
    """Gradient descent on a few context parameters, from zero; all other weights are shared. See the module."""

    citation = "Zintgraf et al., Fast context adaptation via meta-learning, ICML 2019"
    Settings = CaviaSettings
    starts_level = False  # the context acts through the last layer
    presets = {
        "functions": {"context": 10, "inner_lr": 0.3, "inner_steps": 5},
        "classes": CLASSES | {"inner_steps": 2, "context": 128, "channels": 32, "lr": 4e-3, "validate_tasks": 200},
    }
    paper = {
        "all": {"lr": 1e-3, "dropout": 0.0},
        "functions": {"context": 5, "inner_lr": 1.0, "inner_steps": 1, "iterations": 50_000, "query": 10},
        "classes": {"context": 100, "inner_lr": 1.0, "inner_steps": 2, "batch": 16, "channels": 32}
        | {"embedding": "conv4", "iterations": 60_000, "centred": False},
    }

    def setup(self, generator: torch.Generator) -> None:
        """See :meth:`Learner.setup`."""
        super().setup(generator)
        kind = nn.Linear if self.regression else Normalisation
        layers = {name: module for name, module in self.embedding.named_modules() if isinstance(module, kind)}
        if self.regression:
            layers = dict(list(layers.items())[:1])
        if not layers:
            raise UserError(f"CAVIA needs an embedding with a layer {kind.__name__} for its context")
        context = self.settings.context
        sizes = {name: module.bias.numel() * (1 if self.regression else 2) for name, module in layers.items()}
        self.layers = list(layers)
        self.context = nn.ModuleList(nn.Linear(context, size, bias=False) for size in sizes.values())
        self.film = None if self.regression else nn.Linear(context, 2 * self.last.in_features, bias=False)
        self.start_by_matching()

    @torch.no_grad()
    def start_by_matching(self) -> None:
        """Have the context scale each feature by itself at first, and classes read features in unlike ways."""
        if self.film is None:
            return
        for weight in self.context.parameters():
            nn.init.zeros_(weight)
        scale, shift = self.film.weight.chunk(2)
        nn.init.orthogonal_(scale, GAIN / self.settings.inner_lr**0.5)
        nn.init.zeros_(shift)
        nn.init.orthogonal_(self.last.weight)
        nn.init.zeros_(self.last.bias)

    def start(self) -> Weights:
        """Zero, for every task."""
        return {"context": self.last.bias.new_zeros(self.settings.context)}

    def outputs(self, weights: Weights, x: Tensor, own: int | None) -> Tensor:
        """``[N, outputs]`` for one task's samples under its context, normalised by the first ``own`` of them."""
        context, shared = weights["context"], dict(self.embedding.named_parameters())
        changed: Weights = {}
        for layer, change in zip(self.layers, self.context, strict=True):
            weight, bias = f"{layer}.weight", f"{layer}.bias"
            if self.regression:
                changed[bias] = shared[bias] + change(context)
            else:
                scale, shift = change(context).chunk(2)
                changed[weight], changed[bias] = (1 + scale) * shared[weight], (1 + scale) * shared[bias] + shift
        z = functional_call(self.embedding, changed, (x.unsqueeze(0), own)).squeeze(0)
        z = self.features(z, own)
        if self.film is not None:
            scale, shift = self.film(context).chunk(2)
            z = (1 + scale) * z + shift
        outputs: Tensor = self.last(z)
        return outputs

    def embedded(self, episodes: Episodes, protocol: Protocol = INDUCTIVE) -> Episodes:
        """The inputs as they are: there are no features apart from a task."""
        return episodes.looked_up()

    def inferred(self, episodes: Episodes) -> Inferred:
        """The context of each task."""
        episodes, _ = self.checked(episodes)

        def context(x: Tensor, y: Tensor) -> Tensor:
            return self.adapt(self.start(), x, y)["context"]

        return Inferred(vmap(context)(episodes.support_x, episodes.support_y))

    def answer(self, episodes: Episodes, inference: Any) -> Prediction:
        """Answer the queries under contexts of these tasks, or of others."""
        episodes, own = self.checked(episodes)

        def answer(context: Tensor, x: Tensor, asked: Tensor) -> Tensor:
            return self.asked({"context": context}, x, asked, own)

        outputs = vmap(answer)(inference.values, episodes.support_x, episodes.query_x)
        return self.predicted(outputs.unsqueeze(0), episodes)
