"""The one place that averages over kernels and draws: their weights, and what they say together."""

from __future__ import annotations

import math

import torch
from torch import Tensor


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
