from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor
from torch.distributions import Categorical, MixtureSameFamily, Normal

from metavrf.kernels.mixing import (
    Scales,
    log_density,
    log_weights,
    mean_nll,
    mix,
    scaled_nll,
    tailed,
    tailed_log_density,
)

K, T, Q = 4, 2, 3


def normals() -> tuple[Tensor, Tensor, Tensor, MixtureSameFamily]:
    """Means, variances, log weights, and the same mixture by PyTorch."""
    mean = torch.randn(K, T, Q, 1, dtype=torch.double)
    variance = 0.1 + torch.rand(K, T, Q, 1, dtype=torch.double)
    weights = torch.randn(K, T, dtype=torch.double).log_softmax(0)
    by_task = weights.mT[:, None, None].expand(T, Q, 1, K)
    mixture = MixtureSameFamily(
        Categorical(logits=by_task), Normal(mean.permute(1, 2, 3, 0), variance.sqrt().permute(1, 2, 3, 0))
    )
    return mean, variance, weights, mixture


def test_weights_are_bayes_rule_by_hand() -> None:
    prior, likelihood = torch.tensor([[0.5], [0.25], [0.25]]), torch.tensor([[1e-3], [4e-3], [2e-3]])
    posterior = torch.tensor([[0.25], [0.5], [0.25]])  # 0.5, 1 and 0.5 of 2 thousandths
    torch.testing.assert_close(log_weights(prior.log(), likelihood.log()).exp(), posterior)
    shifted = log_weights(prior.log() + 7, likelihood.log() - 900)  # neither is known but for a constant
    torch.testing.assert_close(shifted.exp(), posterior, rtol=1e-4, atol=1e-5)


def test_a_power_of_zero_trusts_the_prior_alone() -> None:
    prior, evidence = torch.randn(K, T), 10 * torch.randn(K, T)
    torch.testing.assert_close(log_weights(prior, evidence, 0.0), prior.log_softmax(0))
    torch.testing.assert_close(log_weights(prior, evidence, 0.5), log_weights(prior, 0.5 * evidence))


def test_a_mixture_of_normals_has_the_moments_of_torch_distributions() -> None:
    mean, variance, weights, expected = normals()
    mixed, std = mix(mean, variance, weights)
    assert std is not None
    torch.testing.assert_close(mixed, expected.mean)
    torch.testing.assert_close(std, expected.stddev)


def test_without_weights_all_components_weigh_alike() -> None:
    mean, variance, _, _ = normals()
    equal = torch.full((K, T), -math.log(K), dtype=torch.double)
    for ours, expected in zip(mix(mean, variance), mix(mean, variance, equal), strict=True):
        torch.testing.assert_close(ours, expected)
    logits = torch.randn(K, T, Q, 5, dtype=torch.double)
    torch.testing.assert_close(mix(logits)[0], mix(logits, None, equal)[0])


def test_one_component_is_left_as_it_is() -> None:
    mean, variance, _, _ = normals()
    mixed, std = mix(mean[:1], variance[:1], torch.zeros(1, T))
    assert std is not None
    assert torch.equal(mixed, mean[0])
    assert torch.equal(std, variance[0].sqrt())


def test_the_log_density_is_that_of_the_mixture_and_not_of_its_moments() -> None:
    mean, variance, weights, expected = normals()
    target = torch.randn(T, Q, 1, dtype=torch.double)
    density = log_density(mean, variance, weights, target)
    torch.testing.assert_close(density, expected.log_prob(target))
    moments = Normal(expected.mean, expected.stddev).log_prob(target)
    assert (density - moments).abs().max() > 0.05


def test_class_probabilities_are_averaged_by_weight() -> None:
    logits, weights = torch.randn(K, T, Q, 5), torch.randn(K, T).log_softmax(0)
    mixed, std = mix(logits, None, weights)
    assert std is None
    expected = (weights.exp()[..., None, None] * logits.softmax(-1)).sum(0)
    torch.testing.assert_close(mixed.exp(), expected)
    torch.testing.assert_close(mixed.exp().sum(-1), torch.ones(T, Q))


def tails() -> tuple[Tensor, Tensor]:
    return torch.tensor([-1.0, 0.5, 2.0]).double(), torch.randn(3).double().log_softmax(0)


def test_normals_with_tails_are_as_dense_as_the_normals_they_are_made_of() -> None:
    mean, variance, weights, _ = normals()
    target, ends = torch.randn(T, Q, 1, dtype=torch.double), tails()
    expected = log_density(*tailed(mean, variance, weights, ends), target)
    torch.testing.assert_close(tailed_log_density(mean, variance, weights, ends, target), expected)


def test_the_gradient_of_the_density_with_tails_is_right() -> None:
    mean, variance, weights, _ = normals()
    values = (mean, variance, weights, *tails(), torch.randn(T, Q, 1, dtype=torch.double))
    inputs = [value.detach().double().requires_grad_() for value in values]

    def density(*values: Tensor) -> Tensor:
        mean, variance, weights, factors, shares, target = values
        return tailed_log_density(mean, variance, weights, (factors, shares), target)

    assert torch.autograd.gradcheck(density, inputs)


def test_the_density_with_tails_is_finite_far_from_every_component() -> None:
    mean, variance, weights, factors, shares = (value.detach().requires_grad_() for value in (*normals()[:3], *tails()))
    far = torch.full((T, Q, 1), 1e6, dtype=torch.double)
    density = tailed_log_density(mean, variance, weights, (factors, shares), far)
    gradients = torch.autograd.grad(density.sum(), [mean, variance, weights, factors, shares])
    assert all(bool(value.isfinite().all()) for value in (density, *gradients))


@pytest.mark.parametrize("log_noise", [-1.0, -9.0])
def test_the_nll_of_a_scaled_process_and_its_gradient_are_those_of_its_normals(log_noise: float) -> None:
    """With so little noise some variances are below the floor, where the gradient ends."""
    generator = torch.Generator().manual_seed(0)
    mean = torch.randn(2, T, Q, 2, dtype=torch.double, generator=generator).requires_grad_()
    variance = torch.rand(2, T, Q, dtype=torch.double, generator=generator).mul(1e-6).requires_grad_()
    energy = torch.rand(2, T, 2, dtype=torch.double, generator=generator).requires_grad_()
    values = torch.tensor([0.3, 0.1, log_noise, 0.2, 0.4], dtype=torch.double)
    scales = Scales(*(value.clone().requires_grad_() for value in values))
    target = torch.randn(T, Q, 2, dtype=torch.double, generator=generator)
    ours, plain = (
        scaled_nll(mean, variance, energy, 5, scales, target),
        mean_nll(*scales.normals(mean, variance, energy, 5), target),
    )
    torch.testing.assert_close(ours, plain)
    inputs = [mean, variance, energy, *scales]
    for found, expected in zip(torch.autograd.grad(ours, inputs), torch.autograd.grad(plain, inputs), strict=True):
        torch.testing.assert_close(found, expected)
