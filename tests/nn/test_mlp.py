from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor, nn

from awake import awake
from metavrf.nn.mlp import MLP, GaussianMLP


def bounded(log_variance: Tensor) -> Tensor:
    return 6 * torch.tanh(log_variance / 6)


def twin(network: GaussianMLP, which: int) -> nn.Sequential:
    """One of the two networks, built of ordinary layers with the same weights."""
    layers: list[nn.Module] = []
    for weight, bias in zip(network.weights, network.biases, strict=True):
        linear = nn.Linear(weight.shape[1], weight.shape[2])
        with torch.no_grad():
            linear.weight.copy_(weight[which].T)
            linear.bias.copy_(bias[which, 0])
        layers += [linear, nn.ELU()]
    return nn.Sequential(*layers[:-1])  # three layers, no ELU after the last


@pytest.mark.parametrize("shape", [(4, 6), (2, 3, 6)])
def test_gaussian_mlp_is_two_ordinary_networks(shape: tuple[int, ...]) -> None:
    network, x = awake(GaussianMLP(6, 5, 3)), torch.randn(shape)
    mean, log_variance = network(x)
    assert mean.shape == log_variance.shape == (*shape[:-1], 3)
    torch.testing.assert_close(mean, twin(network, 0)(x), rtol=0, atol=1e-6)
    torch.testing.assert_close(log_variance, bounded(twin(network, 1)(x)), rtol=0, atol=1e-6)


def test_gaussian_mlp_has_the_gradients_of_two_ordinary_networks() -> None:
    network, x = awake(GaussianMLP(6, 5, 3)), torch.randn(4, 6)
    mean, log_variance = network(x)
    (mean.square().sum() + log_variance.exp().sum()).backward()
    first, second = twin(network, 0), twin(network, 1)
    (first(x).square().sum() + bounded(second(x)).exp().sum()).backward()
    for which, ordinary in enumerate((first, second)):
        linears = [layer for layer in ordinary if isinstance(layer, nn.Linear)]
        assert len(linears) == 3
        for weight, bias, linear in zip(network.weights, network.biases, linears, strict=True):
            torch.testing.assert_close(gradient(weight)[which].T, gradient(linear.weight), rtol=1e-5, atol=1e-6)
            torch.testing.assert_close(gradient(bias)[which, 0], gradient(linear.bias), rtol=1e-5, atol=1e-6)


def gradient(parameter: Tensor) -> Tensor:
    assert parameter.grad is not None
    return parameter.grad


def test_gaussian_mlp_starts_within_the_bounds_of_a_linear_layer() -> None:
    network = GaussianMLP(100, 40, 40)
    for weight, fan_in in zip(network.weights[:-1], (100, 40), strict=True):
        assert 0.9 / math.sqrt(fan_in) < weight.abs().max().item() <= 1 / math.sqrt(fan_in)


def test_gaussians_can_start_alike() -> None:
    mean, log_variance = GaussianMLP(6, 5, 3, alike=True)(torch.randn(4, 6))
    assert (mean == 0).all()
    assert (log_variance == 0).all()


def test_deviation_stays_within_bounds_whatever_the_input() -> None:
    mean, log_variance = awake(GaussianMLP(6, 5, 3))(1e6 * torch.randn(50, 6))
    assert mean.abs().max() > 1e3
    assert log_variance.abs().max().item() == pytest.approx(6)
    assert 0.049 < math.exp(-6 / 2) <= torch.exp(0.5 * log_variance).min()


def test_embedding_has_a_relu_after_every_layer() -> None:
    embedding, x = MLP((1, 40, 40)), torch.randn(2, 5, 1)
    z = embedding(x)
    assert z.shape == (2, 5, 40)
    assert sum(p.numel() for p in embedding.parameters()) == 1 * 40 + 40 + 40 * 40 + 40
    first, second = (layer for layer in embedding if isinstance(layer, nn.Linear))
    torch.testing.assert_close(z, second(first(x).clamp_min(0)).clamp_min(0))
    assert (z == 0).any()
