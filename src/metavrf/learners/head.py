"""The base-learner that kernel methods share: ridge regression on features, and its likelihood."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from metavrf.episodes import Episodes
from metavrf.kernels import ridge
from metavrf.learners.adapted import Explicit
from metavrf.learners.base import Prediction

RIDGE_FLOOR = 1e-8  # λ runs to its lower bound on noise-free tasks; double precision carries this one
VARIANCE_FLOOR = 1e-6  # of a predicted normal, as its likelihood counts it


class RidgeHead(nn.Module):
    """ŷ = γ·K̃ᵀ(K + λI)⁻¹Y + β with learned λ, γ, β (Eq. closed), then a likelihood.

    The small systems are solved in double precision, so λ may be tiny. Regression reads the ridge as a Gaussian
    process, whose variance the same factorisation gives; classes get a softmax. ``unit_norm`` says that features have
    norm 1.
    """

    def __init__(self, *, regression: bool, lam: float, gamma: float, unit_norm: bool = False) -> None:
        super().__init__()
        self.unit_norm = unit_norm
        self.log_lambda = nn.Parameter(torch.tensor(math.log(lam)))
        self.log_gamma = nn.Parameter(torch.tensor(math.log(gamma)))
        self.beta = nn.Parameter(torch.zeros(()))
        self.likelihood: GaussianLikelihood | CategoricalLikelihood = (
            GaussianLikelihood() if regression else CategoricalLikelihood()
        )

    @property
    def lam(self) -> Tensor:
        """λ, positive."""
        return RIDGE_FLOOR + self.log_lambda.exp()

    def forward(self, phi: Tensor, episodes: Episodes) -> Prediction:
        """Predict from features ``phi [L, T, S + Q, D]`` of the support and then the queries."""
        samples = episodes.support_x.shape[1]
        query = phi[..., samples:, :]
        if samples > phi.shape[-1]:
            fitted = self.fit(phi[..., :samples, :], episodes)
            posterior = fitted.posterior(query.double(), unit_norm=self.unit_norm)
            return self.likelihood(self, ridge.Posterior(*posterior, fitted.energy), episodes)
        prior = 1.0 if self.unit_norm else torch.linalg.vecdot(query, query).double()
        return self.kernel(ridge.kernel_of(phi, samples), episodes, prior)

    def kernel(self, kernel: Tensor, episodes: Episodes, prior: Tensor | float = 1.0) -> Prediction:
        """Predict from ``kernel [L, T, S, S + Q]`` of the support with all samples, and k(x, x) of the queries."""
        kernel, targets = kernel.double(), episodes.support_targets.double()
        if episodes.way is not None:
            share = class_shares(episodes)
            queries = kernel.shape[-1] - kernel.shape[-2]
            kernel, targets = share * kernel * F.pad(share.mT, (0, queries), value=1.0), targets * share
        return self.likelihood(self, ridge.solve(kernel, targets, self.lam.double(), prior), episodes)

    def fit(self, support: Tensor, episodes: Episodes) -> ridge.Ridge:
        """Solve for the support's targets in double precision."""
        phi, targets = support.double(), episodes.support_targets.double()
        if episodes.way is not None:
            share = class_shares(episodes)
            phi, targets = phi * share, targets * share
        return ridge.fit(phi, targets, self.lam.double())

    def explicit(self, support: Tensor, episodes: Episodes) -> Explicit:
        """The head of one task, solved: features ``support [L, 1, S, D]``."""
        fitted = self.fit(support, episodes)
        weights = self.log_gamma.exp() * fitted.weights.squeeze(1)
        beta = self.beta.double()
        if isinstance(self.likelihood, CategoricalLikelihood):
            return Explicit(weights, beta)
        scale = self.likelihood.scale(fitted.energy, episodes).squeeze(1)
        noise = (2 * self.likelihood.log_noise).exp().double().reshape(1, 1)
        return Explicit(weights, beta, scale, noise, fitted.root.squeeze(1), dual=fitted.support is not None)

    def scaled(self, fit: Tensor) -> Tensor:
        """γ·fit + β."""
        return (self.log_gamma.exp() * fit + self.beta).float()


def class_shares(episodes: Episodes) -> Tensor:
    """√(n̄/n) of each support sample, n the shots of its class and n̄ their mean: ``[T, S, 1]``, 1 where shots are equal.

    Ridge regression on rows scaled by it weighs every class alike, as in the tasks a model was trained on; otherwise a
    class of few shots is predicted too seldom beside one of many.
    """
    members = episodes.support_targets.double()
    shots = members.sum(1, keepdim=True)  # [T, 1, C]
    mean = members.shape[1] / (shots > 0).sum(-1, keepdim=True)  # [T, 1, 1]
    return (mean / (members @ shots.mT)).sqrt()


class CategoricalLikelihood(nn.Module):
    """Classes: softmax of the ridge outputs; posterior samples are averaged as probabilities."""

    def forward(self, head: RidgeHead, posterior: ridge.Posterior, episodes: Episodes) -> Prediction:
        """Logits of L samples ``[L, T, Q, C]`` and their cross entropy."""
        return of_logits(head.scaled(posterior.mean), episodes)


def of_logits(samples: Tensor, episodes: Episodes) -> Prediction:
    """What logits of L posterior samples ``[L, T, Q, C]`` predict; the loss is their mean cross entropy."""
    log_probabilities = samples.log_softmax(-1)
    one = len(samples) == 1
    mean = log_probabilities[0] if one else log_probabilities.logsumexp(0) - math.log(len(samples))
    if episodes.query_y is None:
        return Prediction(mean, samples)
    target = episodes.query_y.expand(len(samples), -1, -1)
    nll = F.nll_loss(log_probabilities.flatten(0, 2), target.flatten())
    return Prediction(mean, samples, loss=nll, terms={"nll": nll})


class GaussianLikelihood(nn.Module):
    """Real targets: y ~ N(ŷ, s²·v(x) + n²), v the variance of the Gaussian process with the task's kernel.

    The scale s² of a task is the mean of an inverse-gamma posterior: (ν·s₀² + Yᵀ(K + λI)⁻¹Y) / (ν + S). So a curve of
    small amplitude gets a narrow band. ν, s₀ and the noise n are learned.
    """

    def __init__(self) -> None:
        super().__init__()
        self.log_noise = nn.Parameter(torch.tensor(-3.0))  # log n
        self.log_scale = nn.Parameter(torch.tensor(0.0))  # log s₀
        self.log_weight = nn.Parameter(torch.tensor(0.0))  # log ν

    def forward(self, head: RidgeHead, posterior: ridge.Posterior, episodes: Episodes) -> Prediction:
        """Mean and deviation of the mixture of L samples ``[L, T, Q, p]``, and the expected log likelihood."""
        scale = self.scale(posterior.energy, episodes).unsqueeze(-2)
        variance = (scale * posterior.variance.unsqueeze(-1) + (2 * self.log_noise).exp()).float()
        return of_normals(head.scaled(posterior.mean), variance, episodes)

    def scale(self, energy: Tensor, episodes: Episodes) -> Tensor:
        """s² of each task ``[L, T, p]``."""
        weight = self.log_weight.exp()
        return (weight * (2 * self.log_scale).exp() + energy) / (weight + episodes.support_y.shape[1])


def of_normals(samples: Tensor, variance: Tensor, episodes: Episodes) -> Prediction:
    """What L normals of means ``samples`` and ``variance [L, T, Q, p]`` predict; the loss is their mean nll."""
    if len(samples) == 1:
        mean, std = samples[0], variance[0].sqrt()
    else:
        mean, std = samples.mean(0), (variance.mean(0) + samples.var(0, correction=0)).sqrt()
    if episodes.query_y is None:
        return Prediction(mean, samples, std)
    variance = variance.clamp_min(VARIANCE_FLOOR)
    squares = (samples - episodes.query_y).square() / variance
    nll = 0.5 * (math.log(2 * math.pi) + (squares + variance.log()).mean())
    return Prediction(mean, samples, std, loss=nll, terms={"nll": nll})
