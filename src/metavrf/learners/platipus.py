"""PLATIPUS: probabilistic model-agnostic meta-learning (Finn, Xu & Levine, NeurIPS 2018).

MAML from a start that is drawn, so that a task of few samples has several solutions. The start of a task is Gaussian
given its support D, with the mean one gradient step away from a learned μ and a learned variance for each weight:

    p(θ | D) = N(μ - γp·∇L(μ, D), σ²),   φ = θ - α·∇L(θ, D) (the inner loop of MAML).

Training infers θ from the queries D', whose answers are known then, and keeps what it infers close to what the support
alone would say:

    q(θ | D') = N(μ - γq·∇L(μ, D'), v²),   loss = L(φ, D') + w·KL(q ‖ p).

μ, σ, v and the two rates γ are learned. At test time θ is drawn from p(θ | D), several times, and the predictions are
averaged: the queries play no part in it. Where the weight w is 1 / queries, the loss is the bound of the paper.

The authors normalise each pass by its own batch, which makes their figures transductive. Here a task is normalised by
its support, in training too. Their code is not published: in the preset "paper" the deviation and rate of the start and
the weight of the divergence are ours.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import grad, vmap

from metavrf.episodes import Episodes
from metavrf.learners.base import Prediction
from metavrf.learners.maml import CLASSES, MAML, PHOTOGRAPHS, InnerLoop, Weights
from metavrf.protocol import INDUCTIVE, Protocol
from metavrf.settings import Count, NotNegative, Positive


@dataclass(frozen=True)
class PlatipusSettings(InnerLoop):
    """PLATIPUS."""

    samples: Count = 5
    """Starts drawn at test time, whose predictions are averaged."""
    start_std: Positive = 0.01
    """Standard deviation of every weight's start, before training; it is learned."""
    start_lr: NotNegative = 0.01
    """Rate of the gradient step to a start's mean, before training; it is learned."""
    kl_weight: NotNegative = 0.01
    """Weight of the divergence between the starts inferred from queries and from the support."""


class Platipus(MAML):
    """Gradient descent on the support, from starts that are drawn. See the module for the idea.

    The model keeps a seed: at test time starts are drawn from it anew, by the same noise for all tasks, so predictions
    are the same whenever they are made.
    """

    citation = "Finn, Xu & Levine, Probabilistic model-agnostic meta-learning, NeurIPS 2018"
    Settings = PlatipusSettings
    presets = {
        "functions": {"inner_lr": 0.01, "inner_steps": 10, "lr": 4e-3},
        "classes": CLASSES
        | {"channels": 32, "lr": 4e-3, "validate_tasks": 200}
        | {"start_std": 0.001, "start_lr": 0.001},  # 0.01 is a third of a convolution's weights
    }
    paper = {
        "all": {"lr": 1e-3, "dropout": 0.0, "samples": 10},
        "functions": {"inner_lr": 0.001, "inner_steps": 5, "iterations": 70_000},
        "classes": PHOTOGRAPHS | {"inner_steps": 5, "iterations": 60_000, "start_std": 0.01, "start_lr": 0.01},
    }
    seed: Tensor

    def setup(self, generator: torch.Generator) -> None:
        """See :meth:`Learner.setup`."""
        super().setup(generator)
        sizes = sum(value.numel() for value in self.start().values())
        begin = math.log(self.settings.start_std)
        self.log_std = nn.Parameter(torch.full((sizes,), begin))  # log σ
        self.log_inferred_std = nn.Parameter(torch.full((sizes,), begin))  # log v
        self.rates = nn.Parameter(torch.full((2,), self.settings.start_lr))  # γp and γq
        self.register_buffer("seed", torch.randint(2**31, (), generator=generator))
        self.networks = self.settings.samples

    def forward(
        self,
        episodes: Episodes,
        generator: torch.Generator | None = None,
        memory: Any = None,
        protocol: Protocol = INDUCTIVE,
    ) -> Prediction:
        """Draw starts, adapt each to its task, then answer the queries."""
        episodes, own = self.checked(episodes, protocol)
        if not self.training or episodes.query_y is None:
            return self.predicted(self.answers(episodes, own), episodes)
        epsilon = torch.randn(episodes.tasks, len(self.log_std), generator=generator).to(self.log_std)
        start = self.start()

        def informed(x: Tensor, y: Tensor, asked: Tensor, target: Tensor, noise: Tensor) -> tuple[Tensor, Tensor]:
            prior = self.mean(start, self.rates[0], grad(self.task_loss)(start, x, y))

            def query_loss(weights: Weights) -> Tensor:
                return self.error(self.asked(weights, x, asked, own), target)

            mean = self.mean(start, self.rates[1], grad(query_loss)(start))
            drawn = self.weights(mean + self.log_inferred_std.exp() * noise)
            return self.asked(self.adapt(drawn, x, y), x, asked, own), self.divergence(mean, prior)

        tasks = (episodes.support_x, episodes.support_y, episodes.query_x, episodes.query_y, epsilon)
        outputs, divergence = vmap(informed, randomness="different")(*tasks)
        prediction = self.predicted(outputs.unsqueeze(0), episodes)
        kl = divergence.mean()
        loss = prediction.loss + self.settings.kl_weight * kl
        return replace(prediction, loss=loss, terms=prediction.terms | {"kl": kl})

    def answers(self, episodes: Episodes, own: int | None) -> Tensor:
        """Outputs of networks from starts given the support alone, ``[L, T, Q, outputs]``."""
        generator = torch.Generator().manual_seed(int(self.seed))
        epsilon = torch.randn(self.settings.samples, len(self.log_std), generator=generator).to(self.log_std)
        start = self.start()

        def answer(x: Tensor, y: Tensor, asked: Tensor) -> Tensor:
            prior = self.mean(start, self.rates[0], grad(self.task_loss)(start, x, y))

            def drawn(noise: Tensor) -> Tensor:
                weights = self.weights(prior + self.log_std.exp() * noise)
                return self.asked(self.adapt(weights, x, y), x, asked, own)

            return vmap(drawn, randomness="different")(epsilon)

        adapted = vmap(answer, randomness="different", out_dims=1)
        return adapted(episodes.support_x, episodes.support_y, episodes.query_x)

    def mean(self, start: Weights, rate: Tensor, gradient: Weights) -> Tensor:
        """All weights a gradient step from the start, as one vector."""
        return torch.cat([(value - rate * gradient[name]).flatten() for name, value in start.items()])

    def weights(self, vector: Tensor) -> Weights:
        """What :meth:`mean` put into a vector, apart again."""
        start = self.start()
        parts = vector.split([value.numel() for value in start.values()])
        return {name: part.view_as(value) for (name, value), part in zip(start.items(), parts, strict=True)}

    def divergence(self, mean: Tensor, prior: Tensor) -> Tensor:
        """KL(N(mean, v²) ‖ N(prior, σ²)), summed over weights."""
        ratio = self.log_inferred_std - self.log_std
        squares = (2 * ratio).exp() + ((mean - prior) * (-self.log_std).exp()).square()
        return 0.5 * (squares - 1).sum() - ratio.sum()
