"""The base-learners that kernel methods share: ridge regression under one kernel or many, and its likelihood.

A head solves ridge regression under each kernel (``fit``) and says what follows for the queries. That of many kernels
also says how well each explains the support (``evidence``).
"""

from __future__ import annotations

import copy
import functools
import math
from dataclasses import replace

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from metavrf.episodes import Episodes
from metavrf.kernels import ridge
from metavrf.kernels.mixing import Scales, log_density, mean_nll, mix, scaled_nll, tailed, tailed_log_density
from metavrf.kernels.spectral import Spectral, diagonal
from metavrf.learners.adapted import Explicit, MixtureSolution
from metavrf.prediction import Prediction

RIDGE_FLOOR = 1e-8  # λ runs to its lower bound on noise-free tasks; double precision carries this one
NEGLIGIBLE = 1e-9  # weight of a kernel beside the best
TAILS = (-2.0, 2.0, 3.0, 1.0, 1.0, -1.0)  # where MixtureHead.with_tails starts
PLAIN_TAILS = (-1.0, 0.54, 2.0, -2.0, 2.5, -2.0)  # likewise, where noise leaves little to be off by: nearly one normal
BAND_NODES = (1, 2, 3, 4, 5, 6, 8, 10, 14, 20, 30, 46)  # samples at which the band is calibrated


class RidgeHead(nn.Module):
    """ŷ = γ·K̃ᵀ(K + λI)⁻¹Y + β with learned λ, γ, β (Eq. closed), then a likelihood: the paper's.

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
            fitted = self.ridge(phi[..., :samples, :], episodes)
            posterior = fitted.posterior(query.double(), unit_norm=self.unit_norm)
            return self.likelihood(self, ridge.Fit(*posterior, fitted.energy, None, samples), episodes)
        prior = 1.0 if self.unit_norm else torch.linalg.vecdot(query, query).double()
        return self.kernel(ridge.kernel_of(phi, samples), episodes, prior)

    def kernel(self, kernel: Tensor, episodes: Episodes, prior: Tensor | float = 1.0) -> Prediction:
        """Predict from ``kernel [L, T, S, S + Q]`` of the support with all samples, and k(x, x) of the queries."""
        return self.likelihood(self, self.fit(kernel, episodes, prior), episodes)

    def fit(self, kernel: Tensor, episodes: Episodes, prior: Tensor | float = 1.0) -> ridge.Fit:
        """Solve for the support's targets under ``kernel [L, T, S, S + Q]``."""
        kernel, targets = weighed(kernel.double(), episodes)
        return ridge.solve(kernel, targets, self.lam.double(), prior, determinant=False)

    def ridge(self, support: Tensor, episodes: Episodes) -> ridge.Ridge:
        """Solve for the support's targets on its features, in double precision."""
        phi, targets = support.double(), episodes.support_targets.double()
        if episodes.way is not None:
            share = class_shares(episodes)
            phi, targets = phi * share, targets * share
        return ridge.fit(phi, targets, self.lam.double())

    def explicit(self, support: Tensor, episodes: Episodes) -> Explicit:
        """The head of one task, solved: features ``support [L, 1, S, D]``."""
        fitted = self.ridge(support, episodes)
        weights = self.log_gamma.exp() * fitted.weights.squeeze(1)
        beta = self.beta.double()
        if isinstance(self.likelihood, CategoricalLikelihood):
            return Explicit(weights, beta)
        samples = episodes.support_y.shape[1]
        scale = self.likelihood.scales(self).of_task(fitted.energy, samples).squeeze(1)
        noise = (2 * self.likelihood.log_noise).exp().double().reshape(1, 1)
        return Explicit(weights, beta, scale, noise, fitted.root.squeeze(1), dual=fitted.support is not None)

    def scaled(self, fit: Tensor) -> Tensor:
        """γ·fit + β."""
        return (self.log_gamma.exp() * fit + self.beta).float()


def weighed(kernel: Tensor, episodes: Episodes) -> tuple[Tensor, Tensor]:
    """Kernel and targets of ridge regression in double precision; of classes, each class weighs alike."""
    targets = episodes.support_targets.double()
    if episodes.way is None:
        return kernel, targets
    share = class_shares(episodes)
    queries = kernel.shape[-1] - kernel.shape[-2]
    return share * kernel * F.pad(share.mT, (0, queries), value=1.0), targets * share


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

    def forward(self, head: RidgeHead, fit: ridge.Fit, episodes: Episodes) -> Prediction:
        """Logits of L samples ``[L, T, Q, C]`` and their cross entropy."""
        return of_logits(head.scaled(fit.mean), episodes)


def of_logits(samples: Tensor, episodes: Episodes, weights: Tensor | None = None) -> Prediction:
    """What logits of K components ``[K, T, Q, C]`` predict.

    The loss is their mean cross entropy; with log ``weights [K, T]``, the cross entropy of the mixture.
    """
    mean, _ = mix(samples, None, weights)
    if episodes.query_y is None:
        return Prediction(mean, samples, log_weights=weights)
    if weights is None and len(samples) > 1:
        target = episodes.query_y.expand(len(samples), -1, -1)
        nll = F.cross_entropy(samples.flatten(0, 2), target.flatten())
    else:
        nll = F.nll_loss(mean.flatten(0, 1), episodes.query_y.flatten())
    return Prediction(mean, samples, loss=nll, terms={"nll": nll}, log_weights=weights)


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

    def forward(self, head: RidgeHead, fit: ridge.Fit, episodes: Episodes) -> Prediction:
        """Mean and deviation of the mixture of L samples ``[L, T, Q, p]``, and the expected log likelihood."""
        scales, told = self.scales(head), (fit.mean, fit.variance, fit.energy, fit.samples)
        if self.training and episodes.query_y is not None:  # the loss is all that is asked for
            nll = scaled_nll(*told, scales, episodes.query_y)
            with torch.no_grad():
                samples = head.scaled(fit.mean)
            return Prediction(samples.mean(0), samples, loss=nll, terms={"nll": nll})
        mean, variance = scales.normals(*told)
        return of_normals(mean.float(), variance.float(), episodes)

    def scales(self, head: RidgeHead) -> Scales:
        """What is learned of it and of the head."""
        return Scales(head.log_gamma, head.beta, self.log_noise, self.log_scale, self.log_weight)


def of_normals(samples: Tensor, variance: Tensor, episodes: Episodes, weights: Tensor | None = None) -> Prediction:
    """What K normals of means ``samples`` and ``variance [K, T, Q, p]`` predict.

    The loss is their mean nll (the paper's bound); with log ``weights [K, T]``, the nll of the mixture.
    """
    mean, std = mix(samples, variance, weights)
    found = Prediction(mean.float(), samples, None if std is None else std.float())
    found.variance, found.log_weights = variance, weights
    if episodes.query_y is None:
        return found
    if weights is None:
        nll = mean_nll(samples, variance, episodes.query_y)
    else:
        nll = -log_density(samples, variance, weights, episodes.query_y).mean()
    found.loss, found.terms = nll, {"nll": nll}
    return found


class MixtureHead(nn.Module):
    """Many kernels: a Gaussian process under each, weighted by what the support says of it.

    Each answers for Y - m(X), m the mean function (linear in the features; of classes none), with amplitude a², noise λ
    and its evidence log p(Y_S|X_S, m), which is in the Cholesky factor of its solution. Of classes the evidence is that
    of ridge regression on one-hot targets ("marginal"), or the likelihood of each sample's class by the others
    ("leave-one-out"), in closed form too.
    """

    band: Tensor

    def __init__(
        self,
        components: int,
        features: int,
        *,
        targets: int | None,
        gamma: float,
        evidence: str = "marginal",
        tried: int = 0,
        shapes: int = 0,
        noisy: bool = False,
    ) -> None:
        """``tried`` is how many kernels of a task's own come after the ``components`` learned ones, ``shapes`` before.

        ``noisy`` says that observations have noise to speak of: then likelihoods start with hardly any tails.
        """
        super().__init__()
        self.by_evidence, self.tried, self.shapes = evidence, tried, shapes
        if targets is None:
            self.log_gamma = nn.Parameter(torch.full((components, 1, 1, 1), math.log(gamma)))  # each its own
        else:
            self.slope = nn.Parameter(torch.zeros(features, targets))
            self.level = nn.Parameter(torch.zeros(targets))
            self.waves = nn.Parameter(torch.zeros(components, 1, 2, targets))
            self.tails = nn.Parameter(torch.zeros(6, 3))
            with torch.no_grad():
                self.tails[:, 0] = torch.tensor(PLAIN_TAILS if noisy else TAILS)
            self.register_buffer("band", torch.full((len(BAND_NODES),), 0.9))

    def mean_function(self, z: Tensor, q: Spectral) -> Tensor:
        """m(x) of each kernel ``[K, T, N, p]``, of features ``z [T, N, d]``: linear in them, and a wave at its peak.

        Where ``q`` has fewer kernels than there are, they are the last.
        """
        phase = torch.einsum("tnd,mtd->mtn", z, q.mean.to(z))
        wave = torch.stack([phase.cos(), phase.sin()], dim=-1)  # [K, T, N, 2]
        own = self.own_waves()[-len(wave) :]
        times = len(wave) // len(own)
        waves = wave @ (own if times == 1 else torch.cat([own] * times))
        return self.line(z) + waves

    def line(self, z: Tensor) -> Tensor:
        """The part of m(x) that all kernels share, ``[T, N, p]``."""
        return z @ self.slope + self.level

    def own_waves(self) -> Tensor:
        """Of each kernel; those of a task's own have none."""
        if not self.tried and not self.shapes:
            return self.waves
        return F.pad(self.waves, (0, 0) * 3 + (self.shapes, self.tried))

    def mean_functions(self, q: Spectral, episodes: Episodes) -> tuple[Tensor | None, Tensor | None]:
        """:meth:`mean_function` of the support and of the queries, in one go; None for classes."""
        if episodes.way is not None:
            return None, None
        mean = self.mean_function(episodes.samples(), q)
        support, queries = mean.split([episodes.support_x.shape[1], episodes.query_x.shape[1]], dim=2)
        return support, queries

    def fit(self, kernel: Tensor, q: Spectral, episodes: Episodes, at_support: Tensor | None = None) -> ridge.Fit:
        """Solve for the support's targets under each of ``kernel [K, T, S, S + Q]``.

        ``at_support`` is the mean function there, if it is known.
        """
        kernel, targets = weighed(kernel.double(), episodes)
        if episodes.way is None:
            targets = targets - (self.mean_function(episodes.support_x, q) if at_support is None else at_support)
        return ridge.solve(kernel, targets, self.noise(q), diagonal(episodes.query_x, q))

    def scaled(self, fit: Tensor) -> Tensor:
        """γ·fit ``[K, T, N, C]``, γ each kernel's own; of fewer kernels than there are, they are the last."""
        own = self.log_gamma[-len(fit) :]
        return torch.cat([own] * (len(fit) // len(own))).exp() * fit

    def noise(self, q: Spectral) -> Tensor:
        """λ/a², in double precision and kept from zero."""
        return q.noise.double() + RIDGE_FLOOR

    def evidence(self, fit: ridge.Fit, q: Spectral, kernel: Tensor, episodes: Episodes) -> Tensor:
        """How well each kernel explains the support, as a log likelihood: ``[K, T]``."""
        if episodes.way is None or self.by_evidence == "marginal" or episodes.shot <= 1:
            return fit.log_evidence(q.amplitude.double())
        samples = kernel.shape[-2]
        kernel, targets = weighed(kernel[..., :samples].double(), episodes)
        left_out = ridge.leave_one_out(kernel, targets, self.noise(q))
        logits = self.scaled(left_out / class_shares(episodes))
        return (
            -F.cross_entropy(
                logits.flatten(0, 2), episodes.support_y.expand(len(logits), -1, -1).flatten(), reduction="none"
            )
            .unflatten(0, logits.shape[:3])
            .sum(-1)
        )

    def predict(
        self, fit: ridge.Fit, q: Spectral, weights: Tensor, episodes: Episodes, at_queries: Tensor | None = None
    ) -> Prediction:
        """The mixture under log ``weights [K, T]``; ``at_queries`` is the mean function there, if it is known."""
        if episodes.way is not None:
            return of_logits(self.scaled(fit.mean).float(), episodes, weights.float())
        mean = fit.mean + (self.mean_function(episodes.query_x, q) if at_queries is None else at_queries)
        variance = (q.amplitude.unsqueeze(-1) * (fit.variance + self.noise(q).unsqueeze(-1))).unsqueeze(-1)
        variance = variance.expand_as(mean)
        if self.training and episodes.query_y is not None:  # the loss is all that is asked for
            nll = -tailed_log_density(mean, variance, weights, self.tails_at(fit.samples), episodes.query_y).mean()
            together = (weights.detach().exp()[..., None, None] * mean.detach()).sum(0).float()
            return Prediction(together, mean.detach(), loss=nll, terms={"nll": nll}, log_weights=weights)
        mean, variance, weights = self.with_tails(mean, variance, weights, fit.samples)
        return replace(of_normals(mean, variance, episodes, weights), band90=self.band90(fit.samples))

    def band90(self, samples: int) -> float:
        """The central share of the mixture that holds 90 % of targets: what validation tasks said, between nodes."""
        return float(np.interp(math.log(samples), np.log(BAND_NODES), self.band.cpu().numpy()))

    def with_tails(
        self, mean: Tensor, variance: Tensor, weights: Tensor, samples: int
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Each normal as three of the same mean, narrow to wide: means, variances and log weights of 3K.

        How far a kernel is off varies over decades from task to task. One normal would have to be wide for all tasks to
        allow for the rare one that fits no kernel well. How wide and how often depends on the number of samples (a
        parabola in its logarithm), and is learned.
        """
        return tailed(mean, variance, weights, self.tails_at(samples))

    def tails_at(self, samples: int) -> tuple[Tensor, Tensor]:
        """The logarithms of the three factors of the variance, and of their shares."""
        log_samples = math.log(samples)
        terms = self.tails @ self.tails.new_tensor([1.0, log_samples, log_samples**2])  # [6]
        return torch.cat([terms[:1], F.softplus(terms[1:3])]).cumsum(0), torch.log_softmax(terms[3:], dim=0)

    def solution(self, gram: Tensor, q: Spectral, weights: Tensor, episodes: Episodes) -> MixtureSolution:
        """One task solved under the kernels that count, ``gram [M, 1, S, S]`` and log ``weights [M, 1]``."""
        kept = (weights[:, 0] > weights.max() + math.log(NEGLIGIBLE)).nonzero()[:, 0]
        noise = self.noise(q)
        gram, targets = weighed(gram.double(), episodes)
        share = class_shares(episodes)[0] if episodes.way is not None else None
        if episodes.way is None:
            targets = targets - self.mean_function(episodes.support_x, q)
        targets = targets[kept, 0] if targets.ndim == 4 else targets[0]
        solution, root = ridge.factors(gram[kept, 0], targets, noise[kept, 0])
        if share is not None:  # weighed rows of the kernel of the support with a query
            solution, root = solution * share, root * share.mT
        support, weights = episodes.support_x[0], weights[kept, 0]
        if episodes.way is not None:
            gamma = self.log_gamma[kept, 0].exp()
            return MixtureSolution(q.of(kept), weights, support, gamma * solution, None, None, None)
        head = copy.deepcopy(self)  # what is folded neither changes with the learner nor keeps it alive
        head.waves, head.tried, head.shapes = nn.Parameter(self.own_waves()[kept]), 0, 0
        finish = functools.partial(head.finished, q=q.of(kept), weights=weights.unsqueeze(1), samples=len(support))
        return MixtureSolution(q.of(kept), weights, support, solution, root, noise[kept, 0], finish)

    def finished(
        self, z: Tensor, mean: Tensor, variance: Tensor, *, q: Spectral, weights: Tensor, samples: int
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Means, variances ``[K, 1, N, p]`` and log weights ``[K, 1]`` of the residual's, with m(x) and tails."""
        return self.with_tails(mean + self.mean_function(z.unsqueeze(0), q), variance, weights, samples)
