from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from torch import Tensor

from metavrf.errors import UserError
from metavrf.kernels.random_features import Draws, draw_bases, exact_kernel, fourier_features

KINDS = [("cosine", False), ("sincos", False), ("cosine", True), ("sincos", True)]
FEATURES = 4


@pytest.fixture
def points(generator: torch.Generator) -> Tensor:
    return 0.6 * torch.randn(1, 6, FEATURES, generator=generator)


@pytest.fixture
def spectrum(generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """μ and σ of one task, neither of them trivial."""
    return 0.5 * torch.randn(1, FEATURES, generator=generator), 0.5 + torch.rand(1, FEATURES, generator=generator)


def estimates(z: Tensor, spectrum: tuple[Tensor, Tensor], bases: int, kind: tuple[str, bool], samples: int) -> Tensor:
    """``[samples, pairs]``: independent estimates of the kernel between different points."""
    draws = draw_bases(
        z.shape[-1],
        bases,
        samples=samples,
        feature_map=kind[0],
        orthogonal=kind[1],
        generator=torch.Generator().manual_seed(0),
    )
    phi = fourier_features(z, *spectrum, draws).squeeze(1)
    return different_pairs(phi @ phi.mT)


def different_pairs(kernel: Tensor) -> Tensor:
    row, column = torch.triu_indices(kernel.shape[-1], kernel.shape[-1], offset=1)
    return kernel[..., row, column]


def rms(values: Tensor) -> float:
    return values.double().square().mean().sqrt().item()


def test_exact_kernel_is_cosine_times_gaussian(points: Tensor, spectrum: tuple[Tensor, Tensor]) -> None:
    z, (mu, sigma) = points[0].numpy(), (v[0].numpy() for v in spectrum)
    expected = np.empty((6, 6))
    for i in range(6):
        for j in range(6):
            shift = z[i] - z[j]
            expected[i, j] = np.cos(mu @ shift) * np.exp(-0.5 * np.sum((sigma * shift) ** 2))
    np.testing.assert_allclose(exact_kernel(points, points, *spectrum)[0], expected, atol=1e-6)


def test_exact_kernel_of_standard_bases_is_the_rbf_kernel(generator: torch.Generator) -> None:
    z = torch.randn(1, 40, FEATURES, generator=generator, dtype=torch.double)  # more than 25 points: cdist's other path
    other = torch.randn(1, 30, FEATURES, generator=generator, dtype=torch.double)
    distance = np.linalg.norm(z[0].numpy()[:, None] - other[0].numpy()[None], axis=-1)
    kernel = exact_kernel(z, other, z.new_zeros(1, FEATURES), z.new_ones(1, FEATURES))
    np.testing.assert_allclose(kernel[0], np.exp(-(distance**2) / 2), atol=1e-10)


@pytest.mark.parametrize("kind", KINDS)
def test_estimate_is_unbiased(points: Tensor, spectrum: tuple[Tensor, Tensor], kind: tuple[str, bool]) -> None:
    draws = estimates(points, spectrum, 16, kind, samples=4000).double()
    exact = different_pairs(exact_kernel(points, points, *spectrum)[0])
    standard_error = draws.std(0) / math.sqrt(len(draws))
    assert standard_error.max() < 0.006  # so that half the kernel, as with the paper's scale, could not pass
    assert ((draws.mean(0) - exact) / standard_error).abs().max() < 4


@pytest.mark.parametrize("kind", KINDS)
def test_error_falls_fourfold_when_bases_grow_sixteenfold(
    points: Tensor, spectrum: tuple[Tensor, Tensor], kind: tuple[str, bool]
) -> None:
    exact = different_pairs(exact_kernel(points, points, *spectrum)[0])
    few, many = (rms(estimates(points, spectrum, bases, kind, samples=800) - exact) for bases in (32, 512))
    assert few / many == pytest.approx(4, rel=0.1)
    assert many < 0.05


@pytest.mark.parametrize("feature_map", ["cosine", "sincos"])
def test_error_is_the_one_that_theory_gives(points: Tensor, spectrum: tuple[Tensor, Tensor], feature_map: str) -> None:
    """Sutherland & Schneider (2015): pairs have the lower error where the kernel is large, phases elsewhere."""
    k = different_pairs(exact_kernel(points, points, *spectrum)[0]).double()
    k2 = different_pairs(exact_kernel(2 * points, 2 * points, *spectrum)[0]).double()
    variance = (1 + k2 - 2 * k**2) / 64 if feature_map == "sincos" else (1 + k2 / 2 - k**2) / 64
    measured = estimates(points, spectrum, 64, (feature_map, False), samples=4000).double().var(0)
    assert (measured / variance).tolist() == pytest.approx([1.0] * 15, abs=0.15)


@pytest.mark.parametrize("feature_map", ["cosine", "sincos"])
def test_orthogonal_bases_have_lower_error_than_independent_ones(feature_map: str, generator: torch.Generator) -> None:
    z = 0.3 * torch.randn(1, 6, 16, generator=generator)
    standard = (torch.zeros(1, 16), torch.ones(1, 16))
    exact = different_pairs(exact_kernel(z, z, *standard)[0])
    independent, orthogonal = (
        rms(estimates(z, standard, 64, (feature_map, kind), samples=2000) - exact) for kind in (False, True)
    )
    assert orthogonal < 0.95 * independent


def test_orthogonal_blocks_are_orthogonal_with_gaussian_norms(generator: torch.Generator) -> None:
    draws = draw_bases(8, 20, samples=2000, orthogonal=True, generator=generator)
    for block in draws.epsilon.split(8, dim=2):  # 8, 8 and a short one of 4
        gram = block.mT @ block
        off_diagonal = gram - torch.diag_embed(gram.diagonal(dim1=1, dim2=2))
        assert off_diagonal.abs().max() < 1e-4
    squares = draws.epsilon.square().sum(1).flatten().double()  # χ² of 8 degrees: mean 8, variance 16
    assert squares.mean().item() == pytest.approx(8, abs=4 * math.sqrt(16 / len(squares)))
    assert squares.var().item() == pytest.approx(16, rel=0.05)


def test_orthogonal_directions_are_uniform(generator: torch.Generator) -> None:
    """Without the sign correction of QR the first coordinate of the first direction is never positive."""
    draws = draw_bases(3, 3, samples=4000, orthogonal=True, generator=generator)
    for column in range(3):
        entries = draws.epsilon[:, :, column].double()
        assert (entries.mean(0).abs() * math.sqrt(4000)).max() < 4  # unit variance, mean zero
        assert entries.var(0).tolist() == pytest.approx([1, 1, 1], abs=0.1)


def test_paired_features_have_unit_norm_in_every_draw(points: Tensor, spectrum: tuple[Tensor, Tensor]) -> None:
    for bases in (2, 64):
        draws = draw_bases(FEATURES, bases, samples=5, feature_map="sincos", generator=torch.Generator().manual_seed(2))
        norms = fourier_features(points, *spectrum, draws).norm(dim=-1)
        assert (norms - 1).abs().max() < 1e-6


def test_paired_features_depend_on_differences_only(points: Tensor, spectrum: tuple[Tensor, Tensor]) -> None:
    draws = draw_bases(FEATURES, 8, feature_map="sincos", generator=torch.Generator().manual_seed(2))
    phi = fourier_features(points, *spectrum, draws)
    moved = fourier_features(points + 0.7, *spectrum, draws)
    torch.testing.assert_close(moved @ moved.mT, phi @ phi.mT, rtol=0, atol=1e-5)


@pytest.mark.parametrize("feature_map", ["cosine", "sincos"])
def test_features_equal_those_of_explicitly_formed_bases(feature_map: str, generator: torch.Generator) -> None:
    z, mean = torch.randn(3, 5, FEATURES, generator=generator), torch.randn(3, FEATURES, generator=generator)
    std = 0.2 + torch.rand(3, FEATURES, generator=generator)
    draws = draw_bases(FEATURES, 12, samples=2, feature_map=feature_map, generator=generator)
    phi = fourier_features(z, mean, std, draws)
    assert phi.shape == (2, 3, 5, 12)
    for sample in range(2):
        for task in range(3):
            omega = mean[task].numpy()[:, None] + std[task].numpy()[:, None] * draws.epsilon[sample].numpy()
            angle = z[task].numpy() @ omega
            if draws.phase is None:
                expected = np.concatenate([np.cos(angle), np.sin(angle)], axis=-1) / math.sqrt(6)
            else:
                expected = np.cos(angle + draws.phase[sample].numpy()) * math.sqrt(2 / 12)
            np.testing.assert_allclose(phi[sample, task], expected, atol=1e-5)


@pytest.mark.parametrize("feature_map", ["cosine", "sincos"])
def test_gradients_of_features_match_finite_differences(feature_map: str, generator: torch.Generator) -> None:
    draws = draw_bases(2, 6, samples=2, feature_map=feature_map, generator=generator)
    phase = None if draws.phase is None else draws.phase.double()
    double = Draws(draws.epsilon.double(), phase)
    z, mean, std = (
        torch.rand(*shape, dtype=torch.double, generator=generator).requires_grad_()
        for shape in ((2, 3, 2), (2, 2), (2, 2))
    )
    assert torch.autograd.gradcheck(
        lambda *inputs: fourier_features(inputs[0], inputs[1], inputs[2], double), (z, mean, std)
    )


def test_draws_have_the_documented_shapes_and_ranges(generator: torch.Generator) -> None:
    cosine = draw_bases(3, 1000, samples=2, feature_map="cosine", generator=generator)
    sincos = draw_bases(3, 1000, samples=2, feature_map="sincos", generator=generator)
    assert cosine.phase is not None
    assert sincos.phase is None
    assert (cosine.epsilon.shape, cosine.phase.shape, cosine.bases) == ((2, 3, 1000), (2, 1000), 1000)
    assert (sincos.epsilon.shape, sincos.bases) == ((2, 3, 500), 1000)
    assert 0 <= cosine.phase.min() < 0.1
    assert 2 * math.pi - 0.1 < cosine.phase.max() <= 2 * math.pi
    assert not torch.equal(cosine.epsilon[0], cosine.epsilon[1])


def test_same_generator_state_gives_the_same_draws() -> None:
    first, again, other = (
        draw_bases(3, 10, orthogonal=True, generator=torch.Generator().manual_seed(seed)) for seed in (5, 5, 6)
    )
    assert torch.equal(first.epsilon, again.epsilon)
    assert not torch.equal(first.epsilon, other.epsilon)


@pytest.mark.parametrize(("feature_map", "bases"), [("sincos", 7), ("sincos", 0), ("cosine", 0), ("cosine", -3)])
def test_impossible_numbers_of_bases_are_refused(feature_map: str, bases: int, generator: torch.Generator) -> None:
    with pytest.raises(UserError, match=f"bases={bases}.*{feature_map}"):
        draw_bases(3, bases, feature_map=feature_map, generator=generator)
