"""LEO: meta-learning with latent embedding optimisation (Rusu, Rao, Sygnowski, Vinyals, Pascanu, Osindero & Hadsell,
ICLR 2019).

MAML in a small space. A relation network compares a class's support with the support of all classes and predicts a
Gaussian over that class's code, z_c ~ N(μ_c, σ_c²), from the mean over all such pairs. A linear decoder predicts from
the code a Gaussian over the class's weights in a linear classifier, w_c = m(z_c) + s(z_c) ⊙ ε. The inner loop moves the
codes, z ← z - α ∇_z L(support), and a few last steps move the weights, w ← w - β ∇_w L(support), with α and β learned.

    loss = L(query) + kl·KL(N(μ, σ²) ‖ N(0, I)) + code·mean(stop(z') - z)² + orthogonal·‖corr(decoder) - I‖²

with z' the codes after the inner loop. Training samples z and w. At test time both are their means.

The authors work on ready features of a wide residual network, with dropout before the encoder and weight decay on all
layers. Here the embedding's own dropout and no weight decay take their place, the embedding may be trained with the
rest, and features are scaled to the same length, so that a step of the inner loop means the same whatever the
embedding. The preset "paper" has what their code found best on miniImageNet at one shot. They clip each gradient by its
size too, and ready features have no dropout here.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import grad

from metavrf.episodes import Episodes
from metavrf.learners.base import Learner, Prediction
from metavrf.learners.head import of_logits
from metavrf.learners.inferred import Inferred
from metavrf.settings import Count, Natural, NotNegative, Positive

LENGTH = 4.0  # of features: longer ones would make the first inner steps overshoot


@dataclass(frozen=True)
class LEOSettings:
    """LEO."""

    latent: Count = 64
    """Size of a class's code."""
    inner_steps: Natural = 5
    """Gradient steps on the codes; 0 to take the encoder's."""
    inner_lr: Positive = 1.0
    """Learning rate of these steps at the start; it is learned."""
    finetune_steps: Natural = 5
    """Gradient steps on the decoded weights after them."""
    finetune_lr: Positive = 1e-3
    """Learning rate of these steps at the start; it is learned."""
    kl_weight: NotNegative = 1e-3
    """Weight of the codes' divergence from N(0, I)."""
    code_weight: NotNegative = 1e-6
    """Weight of the distance from the encoder's codes to those after the inner loop."""
    orthogonal_weight: NotNegative = 1e-3
    """Weight of the correlations between rows of the decoder."""


class LEO(Learner):
    """Gradient descent on a small code of each class, from which its weights are decoded. See the module."""

    citation = "Rusu et al., Meta-learning with latent embedding optimization, ICLR 2019"
    solves = ("classification",)
    Settings = LEOSettings
    presets = {"classes": {"train_way": 0, "batch": 12}}  # an inner step depends on the number of classes
    paper = {
        "classes": {"lr": 2.74e-4, "clip": 0.1, "batch": 12, "train_way": 0, "iterations": 100_000, "dropout": 0.31}
        | {"kl_weight": 0.756, "code_weight": 5.76e-6, "orthogonal_weight": 0.188},
    }

    def setup(self, generator: torch.Generator) -> None:
        """See :meth:`Learner.setup`."""
        features: Any = self.embedding.features
        latent, width = self.settings.latent, 2 * self.settings.latent
        self.encoder = nn.Linear(features, latent, bias=False)
        # The first layer on a pair [a, b] is the sum of one on a and one on b: each is computed once per sample.
        self.first = nn.Linear(latent, width, bias=False)
        self.second = nn.Linear(latent, width, bias=False)
        self.relation = nn.Sequential(
            nn.ReLU(), nn.Linear(width, width, bias=False), nn.ReLU(), nn.Linear(width, width, bias=False)
        )
        self.decoder = nn.Linear(latent, 2 * features, bias=False)
        self.log_inner_lr = nn.Parameter(torch.tensor(self.settings.inner_lr).log())
        self.log_finetune_lr = nn.Parameter(torch.tensor(self.settings.finetune_lr).log())
        self.spread = (2 / (features + self.spec.way)) ** 0.5  # of decoded weights at the start (Glorot)

    def encode(self, episodes: Episodes) -> tuple[Tensor, Tensor]:
        """Mean and standard deviation ``[T, C, latent]`` of each class's code: the mean over pairs with any class."""
        code = self.encoder(episodes.support_x)  # [T, S, latent]
        pairs = self.relation(self.first(code).unsqueeze(2) + self.second(code).unsqueeze(1))  # [T, S, S, 2·latent]
        members = episodes.support_targets.to(code)  # [T, S, C]
        share = (members / members.sum(1, keepdim=True).clamp_min(1)).mT  # [T, C, S]: the mean within a class
        there = (members.sum(1) > 0).to(code)  # [T, C]
        of_all = (there / there.sum(-1, keepdim=True)).unsqueeze(1) @ share  # [T, 1, S]: then over classes
        related = (of_all.unsqueeze(2) @ pairs).squeeze(2)  # [T, S, 2·latent]
        mean, log_std = (share @ related).chunk(2, -1)
        return mean, log_std.clamp(-10, 10).exp()

    def decode(self, code: Tensor, noise: Tensor | None = None) -> Tensor:
        """Weights ``[T, C, d]`` of codes ``[T, C, latent]``: their mean, or a sample by standard normal ``noise``."""
        mean, log_std = self.decoder(code).chunk(2, -1)
        if noise is None:
            return mean
        return mean + (log_std.clamp(-10, 10).exp() - 1 + self.spread).clamp_min(1e-10) * noise

    def solve(self, episodes: Episodes, memory: Any = None, generator: torch.Generator | None = None) -> Prediction:
        """Encode, adapt the codes, decode, adapt the weights, and classify the queries."""
        episodes = self._scaled(episodes)
        mean, std = self.encode(episodes)
        noise = None
        code = mean
        if self.training and generator is not None:
            code = mean + std * torch.randn(mean.shape, generator=generator).to(mean)
            features = episodes.query_x.shape[-1]
            noise = torch.randn(*mean.shape[:2], features, generator=generator).to(mean)
        adapted = self.adapt_codes(episodes, code, noise)
        weights = self.adapt_weights(episodes, self.decode(adapted, noise))
        prediction = self._answer(episodes, weights)
        if prediction.loss is None:
            return prediction
        settings = self.settings
        kl = (0.5 * (mean.square() + std.square() - 1) - std.log()).mean()
        moved = (adapted.detach() - code).square().mean()
        rows = F.normalize(self.decoder.weight, dim=-1)
        correlation = (rows.T @ rows).square().sum() / len(rows) ** 2  # ‖RRᵀ‖² = ‖RᵀR‖²; the diagonal is a constant
        loss = prediction.loss + settings.kl_weight * kl + settings.code_weight * moved
        loss = loss + settings.orthogonal_weight * correlation
        return replace(prediction, loss=loss, terms=prediction.terms | {"kl": kl})

    def adapt_codes(self, episodes: Episodes, code: Tensor, noise: Tensor | None = None) -> Tensor:
        """Codes after the inner loop. Tasks do not touch, so the gradient of the sum is each task's own."""

        def loss(z: Tensor) -> Tensor:
            return support_loss(episodes, self.decode(z, noise))

        for _ in range(self.settings.inner_steps):
            code = code - self.log_inner_lr.exp() * grad(loss)(code)
        return code

    def adapt_weights(self, episodes: Episodes, weights: Tensor) -> Tensor:
        """Weights after the last steps."""
        for _ in range(self.settings.finetune_steps):
            weights = weights - self.log_finetune_lr.exp() * grad(lambda w: support_loss(episodes, w))(weights)
        return weights

    def inferred(self, episodes: Episodes) -> Inferred:
        """The adapted weights, as at test time."""
        episodes = self._scaled(episodes)
        code = self.adapt_codes(episodes, self.encode(episodes)[0])
        return Inferred(self.adapt_weights(episodes, self.decode(code)))

    def answer(self, episodes: Episodes, inference: Inferred) -> Prediction:
        """Classify the queries by these weights."""
        return self._answer(self._scaled(episodes), inference.values)

    def _answer(self, episodes: Episodes, weights: Tensor) -> Prediction:
        return of_logits((episodes.query_x @ weights.mT).unsqueeze(0), episodes)

    def _scaled(self, episodes: Episodes) -> Episodes:
        return episodes.embedded(lambda z: LENGTH * F.normalize(z, dim=-1))


def support_loss(episodes: Episodes, weights: Tensor) -> Tensor:
    """Cross entropy of the support under ``weights [T, C, d]``: the mean over samples, the sum over tasks."""
    logits = episodes.support_x @ weights.mT
    total = F.cross_entropy(logits.flatten(0, 1), episodes.support_y.flatten(), reduction="sum")
    return total / logits.shape[1]
