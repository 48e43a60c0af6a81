from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
from torch import Tensor
from torch.distributions import Categorical, MixtureSameFamily, Normal

from metavrf.kernels.mixing import mix
from metavrf.prediction import Prediction

K, T, Q = 3, 2, 4


def prediction() -> Prediction:
    """Mixtures of three normals far enough apart to have several modes, other weights for each task."""
    mean = 3 * torch.randn(K, T, Q, 1)
    variance = 0.05 + torch.rand(K, T, Q, 1)
    weights = torch.randn(K, T).log_softmax(0)
    mixed, std = mix(mean, variance, weights)
    return Prediction(mixed, mean, std, variance=variance, log_weights=weights)


def by_torch(found: Prediction) -> MixtureSameFamily:
    assert found.variance is not None
    weights = found.weights.mT[:, None, None].expand(T, Q, 1, K)
    mean, std = (v.double().permute(1, 2, 3, 0) for v in (found.samples, found.variance.sqrt()))
    components = Normal(mean, std)
    return MixtureSameFamily(Categorical(weights), components)


def targets() -> Tensor:
    return 3 * torch.randn(T, Q, 1)


def test_density_and_distribution_are_those_of_torch() -> None:
    found, y = prediction(), targets()
    torch.testing.assert_close(found.log_density(y), by_torch(found).log_prob(y.double()))
    torch.testing.assert_close(found.cdf(y), by_torch(found).cdf(y.double()))
    torch.testing.assert_close(found.weights.sum(0), torch.ones(T, dtype=torch.double))


@pytest.mark.parametrize("level", [0.001, 0.05, 0.5, 0.95, 0.999])
def test_a_quantile_inverts_the_distribution(level: float) -> None:
    found = prediction()
    quantile = found.quantile(level)
    assert quantile.shape == (T, Q, 1)
    torch.testing.assert_close(found.cdf(quantile), torch.full((T, Q, 1), level, dtype=torch.double), atol=1e-6, rtol=0)


@pytest.mark.parametrize("level", [0.0, 1.0, -0.1, 1.5])
def test_a_level_that_is_no_probability_is_refused(level: float) -> None:
    with pytest.raises(ValueError, match=f"level={level}"):
        prediction().quantile(level)


@pytest.mark.parametrize("level", [0.5, 0.9])
def test_what_is_inside_the_band_lies_between_its_outer_quantiles(level: float) -> None:
    found = replace(prediction(), band90=level)
    low, high = found.band()
    torch.testing.assert_close(low, found.quantile(0.5 * (1 - level)))
    torch.testing.assert_close(high, found.quantile(0.5 * (1 + level)))
    for share in torch.linspace(-0.5, 1.5, 41):
        y = low + share * (high - low)
        if min(abs(share), abs(share - 1)) > 1e-3:  # at the very ends rounding decides
            assert (found.inside(y) == (0 <= share <= 1)).all()


def test_draws_have_the_moments_of_the_mixture(generator: torch.Generator) -> None:
    found, count = prediction(), 20_000
    drawn = found.draw(count, generator)
    assert drawn.shape == (count, T, Q, 1)
    assert found.std is not None
    error = (drawn.mean(0) - found.mean) / (found.std / math.sqrt(count))
    assert error.abs().max() < 4.5
    torch.testing.assert_close(drawn.std(0), found.std, rtol=0.05, atol=0)
    assert found.inside(drawn[0]).shape == (T, Q, 1)
    coverage = torch.stack([found.inside(one) for one in drawn[:4000]]).double().mean()
    assert coverage.item() == pytest.approx(0.9, abs=0.02)


def test_the_queries_of_a_draw_share_its_kernel(generator: torch.Generator) -> None:
    found = prediction()
    assert found.variance is not None
    narrow = replace(found, variance=torch.full_like(found.variance, 1e-12))
    drawn = narrow.draw(50, generator)  # [50, T, Q, 1]
    kernel = (drawn.unsqueeze(1) - found.samples).abs().squeeze(-1).argmin(1)  # [50, T, Q]
    assert torch.equal(kernel, kernel[..., :1].expand_as(kernel))
    assert len(kernel.unique()) > 1


def test_without_weights_components_weigh_alike() -> None:
    found, y = prediction(), targets()
    alike = replace(found, log_weights=None)
    equal = replace(found, log_weights=torch.full((K, T), -math.log(K)))
    torch.testing.assert_close(alike.weights, torch.full((K, T), 1 / K, dtype=torch.double))
    torch.testing.assert_close(alike.log_density(y), equal.log_density(y))
    torch.testing.assert_close(alike.quantile(0.3), equal.quantile(0.3))


def test_where_only_the_moments_are_known_the_answer_is_a_normal() -> None:
    y, mean, std = targets(), torch.randn(T, Q, 1), 0.5 + torch.rand(T, Q, 1)
    found = Prediction(mean, torch.randn(K, T, Q, 1), std, log_weights=torch.randn(K, T).log_softmax(0))
    normal = Normal(mean.double(), std.double())
    torch.testing.assert_close(found.log_density(y), normal.log_prob(y.double()))
    torch.testing.assert_close(found.quantile(0.95), (mean + 1.6448536 * std))


def test_answers_in_classes_have_no_density() -> None:
    logits = torch.randn(1, T, Q, 5)
    with pytest.raises(ValueError, match="only the answers of regression"):
        Prediction(logits[0], logits).log_density(torch.zeros(T, Q, 1))
