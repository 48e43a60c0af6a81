"""Discriminative k-shot learning with probabilistic models (Bauer, Rojas-Carulla, Świątkowski, Schölkopf & Turner,
2017).

A classifier of the training classes has a weight vector for each of them. A Gaussian fitted to these vectors says what
weights of a new class are likely to be, before any of its samples is seen, and softmax regression on the support does
the rest:

    p(W | support) ∝ Π_c N(w_c; μ, Σ) Π_i softmax(W z_i)[y_i]

The answer is that of the most probable weights (MAP), or the mean over weights sampled from this posterior.

MAP weights are μ + Σ Zᵀ a_c, so only a ``[S, C]`` is sought, and μ, the same for all classes, cancels in the softmax.
With K = Z Σ Zᵀ the optimum has a = Y - P, P the probabilities at logits K a. It is approached by a fixed number of
Newton steps in which the curvature is replaced by its upper bound ½ (Böhning 1992):

    a ← a - (I + ½K)⁻¹ (a - Y + P)

Each step lowers the loss, all share one factorisation, and training goes through them. Samples come from Hamiltonian
Monte Carlo chains that start at the optimum, all chains and tasks at once.

The authors fix a trained network and fit the prior to its last layer: ``task_weight = 0`` or ready features. By default
the loss of the tasks teaches the embedding too. They fit the Gaussian with a hyperprior and find a shared isotropic
covariance as good as any, which is the default here; a learned factor (``spread``) takes the place of the hyperprior.
Features have length √d here, or a linear classifier of thousands of classes would first shrink them to nothing. Biases
of the classifier are left out. Their code is not published: in the preset "paper" the two stages and the prior are
theirs, the learning rate and the number of steps and samples are not.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from metavrf.episodes import Episodes
from metavrf.learners.base import Prediction
from metavrf.learners.head import of_logits
from metavrf.learners.with_classes import WithTrainingClasses
from metavrf.settings import Count, Natural, NotNegative, Positive

SHRINKAGE = 0.1  # of a full covariance towards the isotropic one
LEAPS = 10  # leapfrog steps of a trajectory
TRAJECTORIES = 40  # of a chain; its end is the sample
STRIDE = 0.8  # of a leapfrog step, in units of the stiffest direction's scale


@dataclass(frozen=True)
class KShotSettings:
    """Discriminative k-shot learning."""

    prior: Literal["isotropic", "diagonal", "full"] = "isotropic"
    """Covariance of the Gaussian over a class's weights."""
    spread: Positive = 4.0
    """How much wider the Gaussian is than the training classes' weights, at the start; the tasks' loss teaches it."""
    steps: Count = 20
    """Newton steps to the most probable weights."""
    samples: Natural = 0
    """Samples of the weights at test time; 0 for the most probable weights."""
    task_weight: NotNegative = 1.0
    """Weight of the tasks' loss beside that of the classifier of the training classes."""


class KShot(WithTrainingClasses):
    """Softmax regression under a Gaussian prior fitted to the training classes' weights. See the module."""

    citation = "Bauer et al., Discriminative k-shot learning using probabilistic models, arXiv 1706.00326, 2017"
    cosine = False
    Settings = KShotSettings
    paper = {"classes": {"task_weight": 0.0, "spread": 1.0, "samples": 10, "dropout": 0.0}}
    seed: Tensor

    def setup(self, generator: torch.Generator) -> None:
        """See :meth:`Learner.setup`."""
        super().setup(generator)
        self.log_spread = nn.Parameter(torch.tensor(math.log(self.settings.spread)))
        self.register_buffer("seed", torch.randint(2**31, (), generator=generator))

    def root(self) -> Tensor:
        """R ``[d, d]`` or ``[d]`` with RRᵀ the covariance of the training classes' weights as they are now."""
        weight = self.classifier.weight.detach()
        centred = weight - weight.mean(0)
        variance = centred.square().mean(0)
        if self.settings.prior == "isotropic":
            return variance.mean().sqrt().expand_as(variance)
        if self.settings.prior == "diagonal":
            return variance.sqrt()
        covariance = (1 - SHRINKAGE) * centred.T @ centred / len(weight)
        return torch.linalg.cholesky(covariance + torch.diag(SHRINKAGE * variance.mean().expand_as(variance)))

    def whitened(self, z: Tensor) -> Tensor:
        """Z R, whose products are K, of features ``[..., d]`` that are scaled already."""
        root = self.log_spread.exp() * self.root()
        return z * root if root.ndim == 1 else z @ root

    def classified(self, prediction: Prediction, embedded: Episodes) -> Prediction:
        """The prediction with the loss of the classifier added."""
        return super().classified(prediction, embedded.embedded(scaled))

    def solve(self, episodes: Episodes, memory: Any = None, generator: torch.Generator | None = None) -> Prediction:
        """Classify the queries by the most probable weights, or by sampled ones at test time."""
        support, query = (self.whitened(scaled(z)) for z in (episodes.support_x, episodes.query_x))
        targets = episodes.support_targets.to(support)
        weights = self.most_probable(support, targets)  # [T, d, C], whitened: their prior is N(0, I)
        if self.settings.samples and not self.training:
            samples = query @ self.sampled(support, targets, weights)
        else:
            samples = (query @ weights).unsqueeze(0)
        prediction = of_logits(samples, episodes)
        if prediction.loss is None:
            return prediction
        return replace(prediction, loss=self.settings.task_weight * prediction.loss)

    def most_probable(self, support: Tensor, targets: Tensor) -> Tensor:
        """MAP of the whitened weights ``[T, d, C]`` from ``support [T, S, d]``, ``targets [T, S, C]``."""
        kernel = support @ support.mT
        factor = torch.linalg.cholesky(0.5 * kernel + torch.eye(kernel.shape[-1]).to(kernel))
        solution = torch.zeros_like(targets)
        for _ in range(self.settings.steps):
            gradient = solution - targets + (kernel @ solution).softmax(-1)
            solution = solution - torch.cholesky_solve(gradient, factor)
        return support.mT @ solution

    def sampled(self, support: Tensor, targets: Tensor, start: Tensor) -> Tensor:
        """Whitened weights ``[L, T, d, C]`` from the posterior, by the ends of L chains; the same for equal tasks."""
        stiffest = 1 + 0.5 * torch.linalg.eigvalsh(support @ support.mT)[:, -1]  # bounds the curvature
        step = (STRIDE / stiffest.sqrt())[:, None, None]
        generator = torch.Generator().manual_seed(int(self.seed))
        chains, classes, features = self.settings.samples, start.shape[-1], start.shape[-2]

        def energy(w: Tensor) -> Tensor:
            nll = -(targets * (support @ w).log_softmax(-1)).sum((-2, -1))
            return nll + 0.5 * w.square().sum((-2, -1))

        def force(w: Tensor) -> Tensor:
            return support.mT @ ((support @ w).softmax(-1) - targets) + w

        w = start.expand(chains, *start.shape)
        for _ in range(TRAJECTORIES):
            # Tasks share the random numbers, and classes have their own: an answer depends on no other task.
            noise = torch.randn(classes, chains, 1, features, generator=generator)
            momentum = noise.permute(1, 2, 3, 0).to(w).expand_as(w)
            before = energy(w) + 0.5 * momentum.square().sum((-2, -1))
            moved = w
            momentum = momentum - 0.5 * step * force(moved)
            for leap in range(LEAPS):
                moved = moved + step * momentum
                momentum = momentum - (0.5 if leap == LEAPS - 1 else 1.0) * step * force(moved)
            after = energy(moved) + 0.5 * momentum.square().sum((-2, -1))
            luck = torch.rand(chains, 1, generator=generator).to(w)
            w = torch.where((luck < (before - after).exp())[..., None, None], moved, w)
        return w


def scaled(z: Tensor) -> Tensor:
    """Features of length √d."""
    return math.sqrt(z.shape[-1]) * F.normalize(z, dim=-1)
