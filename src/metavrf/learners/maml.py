"""MAML: model-agnostic meta-learning (Finn, Abbeel & Levine, ICML 2017).

The weights of a plain network are a starting point from which a few gradient steps on a task's support set solve it.
Training differentiates through these steps (second order), or takes the adapted weights' gradient for that of the start
(first order). Inner steps of all tasks are taken at once, by ``torch.func`` and ``vmap``.

The authors normalise each pass by its own batch, which makes their figures transductive. Here a task is normalised by
its support alone, in training too, so a prediction depends on no other query; the protocol "transductive" brings the
authors' way back at test time.

Features after a ReLU are all positive, and the first inner step on them mostly learns which samples are large. So by
default the last layer sees the features of classes without the support's mean (``centred``): then that step makes a
class of what its samples have and others have not. The authors do not do this, nor does the preset "paper". They also
take more inner steps at test time than in training, which costs accuracy after one long step. Their code asks as many
queries as a task has shots, of functions and on Omniglot: the preset "paper" has those of 10 points and of 1 shot. It
is for 5 ways; for 20 they take ``--batch 16 --inner-lr 0.1 --inner-steps 5``.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap

from metavrf.episodes import Episodes
from metavrf.errors import UserError
from metavrf.learners.base import Learner, Prediction
from metavrf.learners.head import of_logits, of_normals
from metavrf.protocol import INDUCTIVE, Protocol
from metavrf.settings import Count, Natural, Positive, added

Weights = dict[str, Tensor]


CLASSES: dict[str, Any] = {
    "train_way": 0,  # test tasks must be as training tasks were
    "train_shot": 0,
    "batch": 4,
    "query": 5,
    "dropout": 0.0,
    "lr": 2e-3,
    "iterations": 20_000,
    "centred": True,
}
PHOTOGRAPHS: dict[str, Any] = {"batch": 4, "channels": 32, "inner_lr": 0.01, "embedding": "conv4", "centred": False}


@dataclass(frozen=True)
class InnerLoop:
    """The inner loop."""

    inner_steps: Count = 1
    """Gradient steps on a task's support while training."""
    test_inner_steps: Natural = 0
    """Gradient steps at test time; 0 for as many as while training."""
    inner_lr: Positive = 0.4
    """Learning rate of these steps; meta-sgd learns its own, and starts them at up to this."""
    first_order: bool = False
    """Leave out the derivative of the steps themselves."""
    centred: bool = added(False, before=False)
    """Of classes, subtract the mean of the support's features before the last layer: what all samples have in common
    tells no classes apart."""


class MAML(Learner):
    """Gradient descent on the support, from a learned start. See the module for the idea.

    The last layer fixes the number of classes.
    """

    citation = "Finn, Abbeel & Levine, Model-agnostic meta-learning for fast adaptation of deep networks, ICML 2017"
    embeds_alone = False
    any_way = False
    inductive_statistics = "support"
    starts_level: ClassVar[bool] = True  # all classes equally likely before the first inner step of the first task
    Settings: ClassVar[type[Any]] = InnerLoop
    presets = {"functions": {"inner_lr": 0.01}, "classes": CLASSES | {"channels": 32, "lr": 4e-3}}
    paper = {
        "all": {"lr": 1e-3, "dropout": 0.0},
        "functions": {"iterations": 70_000, "query": 10},
        "classes": PHOTOGRAPHS | {"inner_steps": 5, "test_inner_steps": 10, "iterations": 60_000},
        "omniglot": {"batch": 32, "query": 1, "channels": 64, "inner_lr": 0.4, "inner_steps": 1, "test_inner_steps": 3},
    }

    def setup(self, generator: torch.Generator) -> None:
        """See :meth:`Learner.setup`."""
        embedding: Any = self.embedding.to(memory_format=torch.contiguous_format)  # type: ignore[call-overload]
        embedding.channels_last = False
        self.regression = self.spec.regression
        self.size = self.spec.targets or self.spec.way
        self.last = nn.Linear(embedding.features, self.size)
        if self.starts_level and not self.regression:
            nn.init.zeros_(self.last.weight)
            nn.init.zeros_(self.last.bias)
        self.log_noise = nn.Parameter(torch.tensor(0.0)) if self.regression else None

    def forward(
        self,
        episodes: Episodes,
        generator: torch.Generator | None = None,
        memory: Any = None,
        protocol: Protocol = INDUCTIVE,
    ) -> Prediction:
        """Adapt to each task, then answer its queries."""
        episodes, own = self.checked(episodes, protocol)
        return self.predicted(self.answers(episodes, own), episodes)

    def checked(self, episodes: Episodes, protocol: Protocol = INDUCTIVE) -> tuple[Episodes, int | None]:
        """The tasks, if they have as many classes as the last layer, and how many samples they are normalised by."""
        self.check_way(episodes)
        episodes = episodes.looked_up()
        return episodes, episodes.support_x.shape[1] if self.training else self.own_samples(episodes, protocol)

    def answers(self, episodes: Episodes, own: int | None) -> Tensor:
        """Outputs of the adapted networks for the queries, ``[1, T, Q, outputs]``."""
        start = self.start()

        def answer(x: Tensor, y: Tensor, asked: Tensor) -> Tensor:
            return self.asked(self.adapt(start, x, y), x, asked, own)

        adapted = vmap(answer, randomness="different")
        return adapted(episodes.support_x, episodes.support_y, episodes.query_x).unsqueeze(0)

    def predicted(self, outputs: Tensor, episodes: Episodes) -> Prediction:
        """What outputs of K networks for the queries, ``[K, T, Q, outputs]``, say."""
        if self.log_noise is None:
            return of_logits(outputs, episodes)
        noise = (2 * self.log_noise).exp().expand_as(outputs)
        prediction = of_normals(outputs.detach(), noise, episodes)  # the noise is learned beside, not from, the error
        if prediction.loss is None or episodes.query_y is None:
            return prediction
        error = F.mse_loss(outputs, episodes.query_y.expand_as(outputs))
        return replace(prediction, loss=error + prediction.loss, terms=prediction.terms | {"mse": error})

    def solve(self, episodes: Episodes, memory: Any = None, generator: torch.Generator | None = None) -> Prediction:
        """There are no features apart from a task: the whole network adapts."""
        raise UserError("this learner adapts its embedding to a task, so it cannot solve tasks of ready features")

    def start(self) -> Weights:
        """What the inner steps start from and change: the embedding and the last layer."""
        return dict(self.embedding.named_parameters()) | {"last": self.last.weight, "offset": self.last.bias}

    def adapt(self, weights: Weights, x: Tensor, y: Tensor) -> Weights:
        """The weights after the inner steps on one task's support ``x [S, ...]``, ``y [S, ...]``."""
        steps = self.settings.inner_steps
        if not self.training:
            steps = self.settings.test_inner_steps or steps
        for _ in range(steps):
            with torch.set_grad_enabled(torch.is_grad_enabled() and not self.settings.first_order):
                gradient = grad(self.task_loss)(weights, x, y)
            weights = {name: value - self.rate(name) * gradient[name] for name, value in weights.items()}
        return weights

    def rate(self, name: str) -> Tensor | float:
        """The inner learning rate of a weight."""
        return self.settings.inner_lr

    def task_loss(self, weights: Weights, x: Tensor, y: Tensor) -> Tensor:
        """Error on one task's support: cross entropy, or mean squared error."""
        return self.error(self.outputs(weights, x, len(x)), y)

    def error(self, outputs: Tensor, y: Tensor) -> Tensor:
        """Cross entropy, or mean squared error."""
        return (outputs - y).square().mean() if self.regression else F.cross_entropy(outputs, y)

    def asked(self, weights: Weights, x: Tensor, asked: Tensor, own: int | None) -> Tensor:
        """``[Q, outputs]`` for one task's queries, normalised by the first ``own`` of support and queries."""
        return self.outputs(weights, torch.cat([x, asked]), own)[len(x) :]

    def outputs(self, weights: Weights, x: Tensor, own: int | None) -> Tensor:
        """``[N, outputs]`` for one task's samples, normalised by the first ``own`` of them."""
        inner = {name: weight for name, weight in weights.items() if name not in ("last", "offset")}
        z = functional_call(self.embedding, inner, (x.unsqueeze(0), own)).squeeze(0)
        return F.linear(self.features(z, own), weights["last"], weights["offset"])

    def features(self, z: Tensor, own: int | None) -> Tensor:
        """What the last layer sees of features ``z [N, d]``, of which the first ``own`` say what is common."""
        return z - z[:own].mean(0) if self.settings.centred and not self.regression else z
