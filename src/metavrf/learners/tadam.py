"""TADAM: task dependent adaptive metric (Oreshkin, Rodriguez & Lacoste, NeurIPS 2018).

Prototypical networks with three changes. The metric has a learned scale α. The embedding is conditioned on the task:
the mean of the class prototypes, embedded without condition, passes a small network that predicts a factor and an
offset for each channel after each normalisation (FiLM):

    c̄ = mean of prototypes      γ = 1 + γ₀ ⊙ g(c̄)      β = β₀ ⊙ h(c̄)      logits = -α ‖z(x | c̄) - c_k‖²

The post-multipliers γ₀ and β₀ start at 0 and are penalised, so a layer is conditioned only where that pays. And a
classifier of the training classes is trained beside the tasks, on the unconditioned features; its weight decays as
training goes on.

The authors draw in each step whether to train on a task or on the classifier, which the decaying probability is of;
here both are trained in each step. Their network that reads c̄ has residual layers and one for each block; here one
hidden layer is shared by all. Two passes through the embedding make it slower than prototypical networks. The preset
"paper" has their numbers for one shot: five tasks of twelve queries a step, here two per class; for five shots they
take two tasks of 32. They have swish for ReLU, divide the learning rate by ten three times, and choose α on validation
tasks.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from metavrf.episodes import Episodes
from metavrf.errors import UserError
from metavrf.learners.base import Prediction
from metavrf.learners.prototypical import nearest_prototype
from metavrf.learners.with_classes import WithTrainingClasses
from metavrf.nn.normalisation import Normalisation
from metavrf.protocol import INDUCTIVE, Protocol
from metavrf.settings import Count, NotNegative, Positive

DECAY = 0.9  # of the classifier's weight, every ``decay_steps``


@dataclass(frozen=True)
class TADAMSettings:
    """TADAM."""

    scale: Positive = 1.0
    """Scale α of the metric at the start; it is learned."""
    condition_width: Count = 64
    """Neurons of the network that reads the task."""
    post_penalty: NotNegative = 0.01
    """Weight of the squares of the post-multipliers."""
    decay_steps: Count = 200
    """Training steps after which the weight of the classifier of training classes falls by a tenth, again and again."""


class TADAM(WithTrainingClasses):
    """Prototypical networks whose embedding is conditioned on the task, with a scaled metric. See the module."""

    citation = "Oreshkin, Rodriguez & Lacoste, TADAM: task dependent adaptive metric, NeurIPS 2018"
    embeds_alone = False
    Settings = TADAMSettings
    presets = {"classes": {"train_way": 20, "batch": 3}}
    paper = {
        "classes": {
            "optimizer": "sgd",
            "lr": 0.1,
            "weight_decay": 5e-4,
            "clip": 1.0,
            "batch": 5,
            "query": 2,
            "dropout": 0.0,
            "train_way": 0,
            "iterations": 30_000,
            "decay_steps": 1500,
            "embedding": "resnet12",
        },
        "features": {"embedding": "ready"},
    }
    steps: Tensor

    def setup(self, generator: torch.Generator) -> None:
        """See :meth:`Learner.setup`."""
        super().setup(generator)
        features: Any = self.embedding.features
        self.layers = [module for module in self.embedding.modules() if isinstance(module, Normalisation)]
        self.sizes = [layer.num_features for layer in self.layers]
        self.condition = nn.Sequential(
            nn.Linear(features, self.settings.condition_width),
            nn.ReLU(),
            nn.Linear(self.settings.condition_width, 2 * sum(self.sizes)),
        )
        self.post = nn.Parameter(torch.zeros(2 * sum(self.sizes)))  # γ₀ and β₀
        self.log_scale = nn.Parameter(torch.tensor(math.log(self.settings.scale)))
        self.register_buffer("steps", torch.zeros((), dtype=torch.long))

    def forward(
        self,
        episodes: Episodes,
        generator: torch.Generator | None = None,
        memory: Any = None,
        protocol: Protocol = INDUCTIVE,
    ) -> Prediction:
        """Read the task from its support, embed all of it under that condition, and classify the queries."""
        episodes = episodes.looked_up()
        own = None if self.training else self.own_samples(episodes, protocol)
        samples = episodes.support_x.shape[1]
        features = self.embedding(episodes.support_x, None if own is None else min(own, samples))
        answers = None if episodes.query_y is None else episodes.query_y[:, :0]
        plain = replace(episodes, support_x=features, query_x=features[:, :0], query_y=answers)
        with self.conditioned(*self.films(plain)):
            embedded = episodes.embedded(lambda x: self.embedding(x, own))
        return self.classified(self.by_distance(embedded), plain)

    def solve(self, episodes: Episodes, memory: Any = None, generator: torch.Generator | None = None) -> Prediction:
        """There are no features apart from a task: the embedding is conditioned on it."""
        raise UserError("this learner adapts its embedding to a task, so it cannot solve tasks of ready features")

    def by_distance(self, episodes: Episodes) -> Prediction:
        """Prototypical networks with a scaled metric, on features that are conditioned already."""
        root = (0.5 * self.log_scale).exp()
        prediction = nearest_prototype(episodes.embedded(lambda z: root * z))
        if prediction.loss is None:
            return prediction
        return replace(prediction, loss=prediction.loss + self.settings.post_penalty * self.post.square().sum())

    def classified(self, prediction: Prediction, embedded: Episodes) -> Prediction:
        """The prediction with the loss of the classifier added, less and less."""
        if prediction.loss is None or embedded.classes is None:
            return prediction
        error = self.classifier.loss(embedded)
        weight = self.classify_weight * DECAY ** int(self.steps // self.settings.decay_steps)
        return replace(
            prediction,
            loss=prediction.loss + weight * error,
            terms=dict(prediction.terms) | {"training_classes": error},
        )

    def remember(self, prediction: Prediction) -> None:
        """Count the training steps."""
        self.steps += 1

    def films(self, plain: Episodes) -> tuple[Tensor, Tensor]:
        """γ and β ``[T, channels of all layers]`` from the unconditioned features of the support."""
        task = plain.prototypes(plain.support_x).mean(1)
        gamma, beta = (self.post * self.condition(task)).chunk(2, -1)
        return 1 + gamma, beta

    @contextmanager
    def conditioned(self, gamma: Tensor, beta: Tensor) -> Iterator[None]:
        """Each normalisation of the embedding followed by a task's own factor and offset per channel, for a while."""
        with ExitStack() as stack:
            for layer, factor, offset in zip(
                self.layers, gamma.split(self.sizes, -1), beta.split(self.sizes, -1), strict=True
            ):
                stack.callback(layer.register_forward_hook(_film(factor, offset)).remove)
            yield


def _film(factor: Tensor, offset: Tensor) -> Any:
    """A hook that scales and shifts channels ``[T·N, channels, height, width]`` by those of their task."""

    def hook(_module: nn.Module, _inputs: Any, x: Tensor) -> Tensor:
        scale, shift = (value.repeat_interleave(len(x) // len(value), 0)[..., None, None] for value in (factor, offset))
        return torch.addcmul(shift, x, scale)

    return hook
