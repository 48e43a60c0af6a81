from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from metavrf.kernels.random_features import draw_bases
from metavrf.kernels.spectral import Exact, RandomFeatures, Spectral, plain_gram

TASKS, SUPPORT, QUERY, SIZE = 3, 4, 2, 2


def features(points: int = SUPPORT + QUERY, tasks: int = TASKS) -> Tensor:
    return torch.randn(tasks, points, SIZE, generator=torch.Generator().manual_seed(2))


def kernels(peaks: int = 2, combs: int = 0, tasks: int = TASKS, *, rough: bool = False) -> Spectral:
    """Peaks and then combs, all different, and different for each task; if ``rough``, the second peak is."""
    generator = torch.Generator().manual_seed(3)
    count = peaks + combs
    mean = 1.5 * torch.randn(count, tasks, SIZE, generator=generator)
    std = 0.2 + 0.5 * torch.rand(count, tasks, SIZE, generator=generator)
    amplitude, noise, log_prior = torch.rand(3, count, tasks, generator=generator)
    comb = 0.3 + 3 * torch.rand(combs, tasks, generator=generator) if combs else None
    which = (torch.arange(count) == 1).unsqueeze(1).expand(-1, tasks) if rough else None
    return Spectral(mean, std, amplitude, noise, log_prior, comb, which)


def random_features(bases: int, samples: int = 1, seed: int = 0, feature_map: str = "sincos") -> RandomFeatures:
    generator = torch.Generator().manual_seed(seed)
    return RandomFeatures(
        draw_bases(SIZE, bases, samples=samples, feature_map=feature_map, orthogonal=False, generator=generator)
    )


@pytest.mark.parametrize("combs", [0, 1])
def test_the_kernel_is_the_formula_of_its_spectrum(combs: int) -> None:
    z, q = features(), kernels(2, combs)
    gram = Exact().gram(z, q, SUPPORT)
    assert gram.shape == (2 + combs, TASKS, SUPPORT, SUPPORT + QUERY)
    assert gram.dtype == torch.double
    for m, t, i, j in np.ndindex(*gram.shape):
        delta = (z[t, i] - z[t, j]).double().numpy()
        wave = math.cos(q.mean[m, t].double().numpy() @ delta)
        envelope = math.exp(-0.5 * np.square(q.std[m, t].double().numpy() * delta).sum())
        if m >= 2:
            assert q.comb is not None
            wave = math.exp(q.comb[m - 2, t].item() * (wave - 1))
        assert gram[m, t, i, j].item() == pytest.approx(wave * envelope, abs=1e-6)
    torch.testing.assert_close(gram, plain_gram(z, q, SUPPORT), rtol=0, atol=1e-6)


@pytest.mark.parametrize("combs", [0, 1, 3])
def test_the_hand_written_gradient_of_exact_kernels_is_the_plain_forms(combs: int) -> None:
    q = kernels(3 - min(combs, 2), combs)
    inputs = [value.double().requires_grad_() for value in (features(), q.mean, q.std)]
    if q.comb is not None:
        inputs.append(q.comb.double().requires_grad_())

    def gram(form: Any) -> Tensor:
        z, mean, std, *comb = inputs
        kernel: Tensor = form(z, q._replace(mean=mean, std=std, comb=comb[0] if comb else None), SUPPORT)
        return kernel

    weight = torch.randn(len(q.mean), TASKS, SUPPORT, SUPPORT + QUERY, dtype=torch.double)
    ours, plain = (torch.autograd.grad(gram(form), inputs, weight) for form in (Exact().gram, plain_gram))
    for gradient, expected in zip(ours, plain, strict=True):
        torch.testing.assert_close(gradient, expected, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("combs", [0, 2])
def test_random_features_converge_to_the_exact_kernels_at_the_rate_of_one_over_the_root_of_their_number(
    combs: int,
) -> None:
    z, q = features(), kernels(2, combs)
    exact = Exact().gram(z, q, SUPPORT)
    errors = []
    for bases in (64, 1024, 16_384):
        drawn = random_features(bases, samples=20).gram(z, q, SUPPORT).unflatten(0, (20, len(exact)))
        errors.append((drawn - exact).square().mean((0, 2, 3, 4)).sqrt())  # of each kernel
    assert ((errors[0] / errors[1]).log2() - 2).abs().max() < 0.5
    assert ((errors[1] / errors[2]).log2() - 2).abs().max() < 0.5
    assert errors[2].max() < 0.02


def test_random_features_of_several_draws_have_the_draws_axis_first() -> None:
    z, q = features(), kernels(3)
    together = random_features(32, samples=2).gram(z, q, SUPPORT)
    assert together.shape == (6, TASKS, SUPPORT, SUPPORT + QUERY)
    for number in range(3):  # each kernel is drawn with the same random numbers, as if it were alone
        alone = random_features(32, samples=2).gram(z, q.of(torch.tensor([number])), SUPPORT)
        torch.testing.assert_close(together[number::3], alone, rtol=0, atol=1e-5)
    repeated = q.repeated(2)
    assert torch.equal(repeated.mean[number::3], q.mean[number].expand(2, -1, -1))


@pytest.mark.parametrize("combs", [0, 2])
def test_exact_kernels_are_positive_semi_definite_and_one_on_the_diagonal(combs: int) -> None:
    gram = Exact().gram(features(20), kernels(3, combs), 20)
    torch.testing.assert_close(gram, gram.mT)
    assert torch.linalg.eigvalsh(gram).min() > -1e-9
    torch.testing.assert_close(gram.diagonal(dim1=-2, dim2=-1), torch.ones(3 + combs, TASKS, 20, dtype=torch.double))


def test_a_comb_of_no_width_is_the_periodic_kernel() -> None:
    period, length = 1.7, 0.6
    x = torch.linspace(-4, 4, 9, dtype=torch.double).reshape(1, 9, 1)
    nothing = torch.zeros(1, 1)
    mean = torch.full((1, 1, 1), 2 * math.pi / period, dtype=torch.double)
    kappa = torch.full((1, 1), 1 / length**2, dtype=torch.double)
    q = Spectral(mean, torch.zeros(1, 1, 1), nothing, nothing, nothing, kappa)
    apart = x[0] - x[0].T
    expected = torch.exp(-2 * torch.sin(math.pi * apart / period).square() / length**2)
    torch.testing.assert_close(Exact().gram(x, q, 9)[0, 0], expected)
    shifted = Exact().gram(torch.cat([x, x + 3 * period], dim=1), q, 9)[0, 0]
    torch.testing.assert_close(shifted[:, 9:], expected)  # it does repeat itself


def test_kernels_of_a_task_do_not_depend_on_other_tasks_or_kernels() -> None:
    z, q = features(), kernels(2, 2)
    together = Exact().gram(z, q, SUPPORT)
    for task in range(TASKS):
        alone = Exact().gram(z[task : task + 1], q.at(slice(task, task + 1)), SUPPORT)
        torch.testing.assert_close(together[:, task : task + 1], alone)
    for chosen in ([0, 3], [1], [2, 3]):
        some = Exact().gram(z, q.of(torch.tensor(chosen)), SUPPORT)
        torch.testing.assert_close(together[chosen], some)


def test_the_kernel_of_new_points_with_the_support_is_that_of_the_gram_block() -> None:
    z, q = features(), kernels(2, 1).at(slice(1, 2))
    block = Exact().gram(z[1:2], q, SUPPORT)[:, 0, :, SUPPORT:]
    torch.testing.assert_close(Exact().cross(z[1, SUPPORT:], z[1, :SUPPORT], q), block)


def test_a_comb_cannot_be_drawn_with_phases() -> None:
    with pytest.raises(ValueError, match="pairs of sine and cosine"):
        random_features(8, feature_map="cosine").gram(features(), kernels(1, 1), SUPPORT)


def test_a_rough_kernel_is_materns_of_smoothness_five_halves() -> None:
    x, length = torch.linspace(-2, 2, 9, dtype=torch.double).reshape(1, 9, 1), 0.7
    nothing = torch.zeros(1, 1)
    std = torch.full((1, 1, 1), 1 / length, dtype=torch.double)
    q = Spectral(torch.zeros(1, 1, 1), std, nothing, nothing, nothing, None, torch.ones(1, 1, dtype=torch.bool))
    r = math.sqrt(5) * (x[0] - x[0].T).abs() / length
    expected = (1 + r + r.square() / 3) * torch.exp(-r)
    torch.testing.assert_close(Exact().gram(x, q, 9)[0, 0], expected)
    torch.testing.assert_close(plain_gram(x, q, 9)[0, 0], expected)


@pytest.mark.parametrize("combs", [0, 2])
def test_rough_kernels_stand_beside_smooth_ones_and_have_the_plain_forms_gradient(combs: int) -> None:
    z, q = features(), kernels(3, combs, rough=True)
    smooth = Exact().gram(z, q._replace(rough=None), SUPPORT)
    gram = Exact().gram(z, q, SUPPORT)
    others = [number for number in range(3 + combs) if number != 1]
    torch.testing.assert_close(gram[others], smooth[others])
    assert not torch.allclose(gram[1], smooth[1])
    inputs = [value.double().requires_grad_() for value in (z, q.mean, q.std)]
    upstream = torch.randn(gram.shape, generator=torch.Generator().manual_seed(5), dtype=torch.double)
    results = []
    for form in (Exact().gram, plain_gram):
        value = form(inputs[0], q._replace(mean=inputs[1], std=inputs[2]), SUPPORT)
        torch.testing.assert_close(value, gram, rtol=0, atol=1e-6)
        results.append(torch.autograd.grad((value * upstream).sum(), inputs))
    for gradient, expected in zip(*results, strict=True):
        torch.testing.assert_close(gradient, expected, rtol=1e-7, atol=1e-7)


def test_random_features_of_rough_kernels_converge_to_them() -> None:
    z, q = features(), kernels(3, 1, rough=True)
    exact = Exact().gram(z, q, SUPPORT)
    drawn = random_features(16_384, samples=10).gram(z, q, SUPPORT).unflatten(0, (10, len(exact)))
    assert (drawn - exact).square().mean((0, 2, 3, 4)).sqrt().max() < 0.02
    assert (drawn.mean(0) - exact).abs().max() < 0.02


def test_the_kernel_of_new_points_with_the_support_is_that_of_the_gram_block_for_rough_ones() -> None:
    z, q = features(), kernels(2, 1, rough=True).at(slice(1, 2))
    block = Exact().gram(z[1:2], q, SUPPORT)[:, 0, :, SUPPORT:]
    torch.testing.assert_close(Exact().cross(z[1, SUPPORT:], z[1, :SUPPORT], q), block)
