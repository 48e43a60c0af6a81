"""The one place that averages over kernels and draws: their weights, and what they say together."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

VARIANCE_FLOOR = 1e-6  # of a predicted normal, as its likelihood counts it
POWERS = (1.0, 0.0, 2.0, 2.0, 1.0)  # of the numbers whose logarithms are Scales (β is none) in a likelihood


def log_weights(log_prior: Tensor, log_evidence: Tensor, power: Tensor | float = 1.0) -> Tensor:
    """Bayes' rule over kernels: log w with w ∝ π·p(Y|X, kernel)^τ, for both ``[K, T]`` and τ = ``power``."""
    return torch.log_softmax(log_prior + power * log_evidence, dim=0)


def mix(samples: Tensor, variance: Tensor | None = None, weights: Tensor | None = None) -> tuple[Tensor, Tensor | None]:
    """What K components say together: mean and deviation of normals, or (no ``variance``) the log probabilities.

    Args:
        samples: ``[K, T, Q, p]`` means, or logits ``[K, T, Q, C]``.
        variance: ``[K, T, Q, p]``, of normals.
        weights: ``[K, T]``, their logarithms; None where all weigh alike.

    Returns:
        ``[T, Q, p]`` mean and deviation; or log probabilities ``[T, Q, C]`` and None.
    """
    if variance is None:
        log_probabilities = samples.log_softmax(-1)
        if len(samples) == 1:
            return log_probabilities[0], None
        if weights is None:
            return log_probabilities.logsumexp(0) - math.log(len(samples)), None
        return torch.logsumexp(log_probabilities + weights[..., None, None], dim=0), None
    if len(samples) == 1:
        return samples[0], variance[0].sqrt()
    if weights is None:
        return samples.mean(0), (variance.mean(0) + samples.var(0, correction=0)).sqrt()
    share = weights.exp()[..., None, None]
    mean = (share * samples).sum(0)
    return mean, (share * (variance + (samples - mean).square())).sum(0).sqrt()


def log_density(samples: Tensor, variance: Tensor, weights: Tensor, target: Tensor) -> Tensor:
    """Log Σ w·N(target; mean, variance), ``[T, Q, p]``: the likelihood of the mixture, not of its moments."""
    log_normal = (target - samples).square() / variance + variance.log()
    return torch.logsumexp(weights[..., None, None] - 0.5 * log_normal, dim=0) - 0.5 * math.log(2 * math.pi)


def tailed(
    samples: Tensor, variance: Tensor, weights: Tensor, tails: tuple[Tensor, Tensor]
) -> tuple[Tensor, Tensor, Tensor]:
    """Each of K normals as J of the same mean: means, variances and log weights of J·K.

    ``tails`` are the logarithms of what variances are multiplied by, and of how the weight is shared: ``[J]`` each.
    """
    log_factors, log_shares = tails
    return (
        torch.cat([samples] * len(log_factors)),
        torch.cat([factor * variance for factor in log_factors.exp()]),
        torch.cat([weights + share for share in log_shares]),
    )


def tailed_log_density(
    samples: Tensor, variance: Tensor, weights: Tensor, tails: tuple[Tensor, Tensor], target: Tensor
) -> Tensor:
    """:func:`log_density` of :func:`tailed` normals, ``[T, Q, p]``, without forming them: what training asks for."""
    density: Tensor = _TailedDensity.apply(samples, variance, weights, *tails, target)
    return density


class _TailedDensity(torch.autograd.Function):
    """Log Σ_jk s_j·w_k·N(y; m_k, f_j·v_k): with r = (y - m)²/v its terms are log s + log w - ½(r/f + log f + log v).

    The gradient is in the share ρ of each term in the sum, which the forward pass has.
    """

    @staticmethod
    def forward(  # noqa: PLR0917 - as autograd calls it
        ctx: Any,
        samples: Tensor,
        variance: Tensor,
        weights: Tensor,
        log_factors: Tensor,
        log_shares: Tensor,
        target: Tensor,
    ) -> Tensor:
        log_factors, log_shares = (value.to(samples) for value in (log_factors, log_shares))
        apart = target - samples
        squares = apart.square().div_(variance)
        alike = torch.sub(weights[..., None, None], variance.log(), alpha=0.5)
        slopes, levels = -0.5 * torch.exp(-log_factors), log_shares - 0.5 * log_factors
        terms = torch.outer(slopes, squares.flatten()).unflatten(1, squares.shape)  # [J, K, T, Q, p]
        terms.add_(alike).add_(levels[:, None, None, None, None])
        most = terms.amax((0, 1))
        total = terms.sub_(most).exp_().sum((0, 1))
        ctx.save_for_backward(terms, total, squares, apart, variance, slopes)
        return total.log().add_(most).sub_(0.5 * math.log(2 * math.pi))

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        terms, total, squares, apart, variance, slopes = ctx.saved_tensors
        share = (terms * (gradient / total)).flatten(1)  # ρ  [J, K·T·Q·p]
        both = torch.stack([slopes, torch.ones_like(slopes)]) @ share
        by_squares, by_term = both.unflatten(1, squares.shape)
        of_shares = share.sum(1)
        of_factors = -(slopes * (share @ squares.flatten()) + 0.5 * of_shares)
        of_samples = (by_squares * apart).mul_(-2).div_(variance)
        of_variance = torch.addcmul(0.5 * by_term, by_squares, squares).neg_().div_(variance)
        of_target = -of_samples.sum(0) if ctx.needs_input_grad[5] else None
        return of_samples, of_variance, by_term.sum((2, 3)), of_factors, of_shares, of_target


class Scales(NamedTuple):
    """The numbers by which ridge regression is read as a Gaussian process, all learned: γ, β, n, s₀ and ν."""

    log_gamma: Tensor
    beta: Tensor
    log_noise: Tensor
    log_scale: Tensor
    log_weight: Tensor

    def of_task(self, energy: Tensor, samples: int) -> Tensor:
        """s² = (ν·s₀² + YᵀP Y) / (ν + S) of each task, ``[..., p]`` as its ``energy``."""
        weight = self.log_weight.exp()
        return (weight * (2 * self.log_scale).exp() + energy) / (weight + samples)

    def normals(self, mean: Tensor, variance: Tensor, energy: Tensor, samples: int) -> tuple[Tensor, Tensor]:
        """γ·mean + β and s²·variance + n², ``[..., Q, p]`` of ``mean [..., Q, p]`` and ``variance [..., Q]``."""
        scale = self.of_task(energy, samples).unsqueeze(-2)
        centre = self.log_gamma.exp() * mean + self.beta
        return centre, scale * variance.unsqueeze(-1) + (2 * self.log_noise).exp()


def mean_nll(samples: Tensor, variance: Tensor, target: Tensor) -> Tensor:
    """Minus the log density of ``target`` under normals, averaged over all of them."""
    variance = variance.clamp_min(VARIANCE_FLOOR)
    squares = (samples - target).square() / variance
    return 0.5 * (math.log(2 * math.pi) + (squares + variance.log()).mean())


def scaled_nll(  # noqa: PLR0917
    mean: Tensor, variance: Tensor, energy: Tensor, samples: int, scales: Scales, target: Tensor
) -> Tensor:
    """:func:`mean_nll` of :meth:`Scales.normals`, what training asks for."""
    nll: Tensor = _ScaledNLL.apply(mean, variance, energy, samples, target, *scales)
    return nll


class _ScaledNLL(torch.autograd.Function):
    """With r = γ·m + β - y and V = s²·v + n² it is ½(log 2π + mean of r²/V + log V).

    Most operations of the plain form are on single numbers, and those of its gradient too: here these are few.
    """

    @staticmethod
    def forward(  # noqa: PLR0917 - as autograd calls it
        ctx: Any, mean: Tensor, variance: Tensor, energy: Tensor, samples: int, target: Tensor, *scales: Tensor
    ) -> Tensor:
        stacked = torch.stack(scales).double()
        beta = stacked[1]
        gamma, _, noise, prior, weight = (stacked * stacked.new_tensor(POWERS)).exp_().unbind()
        scale = energy.add(weight * prior).div_(weight + samples).unsqueeze(-2)  # s²  [L, T, 1, p]
        total = (scale * variance.unsqueeze(-1)).add_(noise)  # V  [L, T, Q, p]
        floored = total.clamp_min(VARIANCE_FLOOR)
        error = torch.sub(mean * gamma, target).add_(beta)
        ratio = error / floored
        numbers = (gamma, noise, prior, weight)  # they stay on the device: to fetch them would wait for it
        ctx.save_for_backward(mean, variance, scale, total, floored, error, ratio, *numbers)
        ctx.samples, ctx.dtype = samples, scales[0].dtype
        return (ratio * error).add_(floored.log()).mean().add_(math.log(2 * math.pi)).mul_(0.5).to(scales[0])

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        mean, variance, scale, total, floored, error, ratio, gamma, noise, prior, weight = ctx.saved_tensors
        each = gradient / ratio.numel()
        by_error = ratio * each
        by_total = torch.sub(each, by_error * error).div_(floored).mul_(0.5).mul_(total >= VARIANCE_FLOOR)
        of_scale = (by_total * variance.unsqueeze(-1)).sum(-2)  # [L, T, p]
        of_variance = (by_total * scale).sum(-1)
        of_mean = by_error * gamma
        of_energy = of_scale / (weight + ctx.samples)
        numbers = (
            (of_mean * mean).sum(),
            by_error.sum(),
            by_total.sum() * (2 * noise),
            of_energy.sum() * (2 * weight * prior),
            (of_energy * (prior - scale.squeeze(-2))).sum() * weight,
        )
        return of_mean, of_variance, of_energy, None, None, *torch.stack(numbers).to(ctx.dtype).unbind()
