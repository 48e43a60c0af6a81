from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from metavrf.config import TEST_SEED
from metavrf.episodes import Episodes
from metavrf.errors import UserError
from metavrf.evaluation import measure
from metavrf.learners.limits import JITTER, AffineLimit, BayesLimit, sine_limits
from metavrf.randomness import stream
from metavrf.tasks.functions import FunctionFamily, Sine, SineMAML

Array = np.ndarray[Any, np.dtype[np.float64]]
MEAN_AMPLITUDE = (0.1 + 5) / 2
MEAN_SQUARE_AMPLITUDE = (5**3 - 0.1**3) / (3 * 4.9)


def grid_tasks(family: FunctionFamily, tasks: int, shot: int) -> Episodes:
    return family.sample_grid(tasks, shot, stream(TEST_SEED, "test"))


def mse(limit: AffineLimit | BayesLimit, episodes: Episodes) -> float:
    return measure(limit, episodes)["mse"].mean().item()


def mean_cosine(x: Array) -> Array:
    """E cos(wx) for w uniform on [0.8, 1.2]: cos(x)·sin(0.2x)/(0.2x)."""
    return np.asarray(np.cos(x) * np.sinc(0.2 * x / np.pi))


def moments(x: Array) -> tuple[Array, Array]:
    """Mean and covariance of the paper's family in closed form: b uniform on [0, π] makes them simple."""
    mean = MEAN_AMPLITUDE * 2 / np.pi * mean_cosine(x)
    second = MEAN_SQUARE_AMPLITUDE / 2 * mean_cosine(x[:, None] - x[None])
    return mean, second - np.outer(mean, mean)


def test_closed_form_moments_are_those_of_sampled_functions() -> None:
    """Keeps the reference of the next test honest."""
    x = torch.tensor([-4.0, -1.5, 0.0, 0.7, 3.0])
    family = Sine()
    values = family.evaluate(x.expand(200_000, -1), **family.draw(200_000, stream(0, "test"))).double().numpy()
    mean, covariance = moments(x.double().numpy())
    standard_error = values.std(0) / math.sqrt(len(values))
    assert np.abs((values.mean(0) - mean) / standard_error).max() < 4
    np.testing.assert_allclose(np.cov(values.T), covariance, atol=0.06)


@pytest.mark.parametrize("shot", [1, 3, 5])
def test_affine_limit_is_the_gaussian_process_of_the_closed_form_moments(shot: int) -> None:
    episodes = grid_tasks(Sine(), 5, shot)
    prediction = AffineLimit(Sine()).predict(episodes)
    assert prediction.std is not None
    for task in range(5):
        x = torch.cat([episodes.support_x[task, :, 0], episodes.query_x[task, :, 0]]).double().numpy()
        y = episodes.support_y[task, :, 0].double().numpy()
        mean, covariance = moments(x)
        gram = covariance[:shot, :shot] + JITTER * MEAN_SQUARE_AMPLITUDE * np.eye(shot)
        weights = np.linalg.solve(gram, covariance[:shot, shot:])
        expected = mean[shot:] + weights.T @ (y - mean[:shot])
        variance = np.diag(covariance)[shot:] - (covariance[shot:, :shot] @ weights).diagonal()
        np.testing.assert_allclose(prediction.mean[task, :, 0], expected, atol=2e-4)
        np.testing.assert_allclose(prediction.std[task, :, 0], np.sqrt(np.maximum(variance, 0)), atol=1e-3)


def test_affine_limit_is_what_least_squares_on_many_functions_finds() -> None:
    """No moments at all: regress the query's values on the support's, over 100,000 functions at the same points."""
    family, support, query = Sine(), torch.tensor([-3.0, 0.5, 2.0]), torch.linspace(-5, 5, 21)
    x = torch.cat([support, query])
    train, test = (
        family.evaluate(x.expand(count, -1), **family.draw(count, stream(seed, "test"))).double()
        for seed, count in ((0, 100_000), (1, 200))
    )
    design = torch.cat([torch.ones(len(train), 1), train[:, :3]], dim=1)
    coefficients = torch.linalg.lstsq(design, train[:, 3:]).solution
    fitted = torch.cat([torch.ones(len(test), 1), test[:, :3]], dim=1) @ coefficients
    episodes = Episodes(tile(support, 200), test[:, :3].float().unsqueeze(-1), tile(query, 200))
    limit = AffineLimit(family).predict(episodes).mean.squeeze(-1)
    assert (limit - fitted).square().mean().sqrt() < 0.02


def tile(x: Tensor, tasks: int) -> Tensor:
    return x.expand(tasks, -1).unsqueeze(-1)


@pytest.mark.parametrize(("shot", "floor", "tolerance"), [(3, 0.394, 0.1), (5, 0.0176, 0.01), (10, 0.0001, 0.0001)])
def test_affine_limit_lies_at_the_known_floor(shot: int, floor: float, tolerance: float) -> None:
    assert mse(AffineLimit(Sine()), grid_tasks(Sine(), 600, shot)) == pytest.approx(floor, abs=tolerance)


def test_affine_limit_knows_its_own_error() -> None:
    episodes = grid_tasks(Sine(), 1500, 3)
    prediction = AffineLimit(Sine()).predict(episodes)
    assert episodes.query_y is not None
    assert prediction.std is not None
    error = (prediction.mean - episodes.query_y).square().mean().item()
    assert prediction.std.square().mean().item() == pytest.approx(error, rel=0.1)


def test_bayes_limit_is_the_mean_of_the_functions_that_pass_near_the_support() -> None:
    """Rejection sampling from the prior: of 4,000,000 functions keep those within 0.06 of both points."""
    family, x = Sine(), torch.tensor([-1.0, 2.0])
    truth = {"amplitude": torch.tensor([[2.0]]), "frequency": torch.tensor([[1.0]]), "phase": torch.tensor([[1.0]])}
    y, query = family.evaluate(x.unsqueeze(0), **truth), torch.linspace(-5, 5, 11)
    drawn = family.draw(4_000_000, stream(0, "test"))
    near = ((family.evaluate(x.unsqueeze(0), **drawn) - y).abs() < 0.06).all(1)
    curves = family.evaluate(query.unsqueeze(0), **{name: v[near] for name, v in drawn.items()}).double()
    limit = BayesLimit(family).predict(Episodes(tile(x, 1), y.unsqueeze(-1), tile(query, 1)))
    assert limit.std is not None
    assert len(curves) > 1000
    standard_error = curves.std(0) / math.sqrt(len(curves))
    assert ((limit.mean[0, :, 0] - curves.mean(0)).abs() < 4 * standard_error + 0.02).all()
    uncertain = curves.std(0) > 0.3
    assert uncertain.sum() >= 5
    np.testing.assert_allclose(limit.std[0, uncertain, 0], curves.std(0)[uncertain], rtol=0.05)
    assert limit.std[0, ~uncertain, 0].max() < 2 * 0.06  # elsewhere the two points pin it, to what was kept


def test_bayes_limit_recovers_curves_from_five_points() -> None:
    assert mse(BayesLimit(Sine()), grid_tasks(Sine(), 100, 5)) < 1e-3


def test_bayes_limit_is_well_below_the_affine_limit_at_three_points() -> None:
    episodes = grid_tasks(Sine(), 150, 3)
    bayes, affine = mse(BayesLimit(Sine()), episodes), mse(AffineLimit(Sine()), episodes)
    assert bayes == pytest.approx(0.076, abs=0.06)
    assert bayes < 0.5 * affine


@pytest.mark.parametrize("limit", [AffineLimit, BayesLimit])
def test_two_points_determine_a_sine_of_known_frequency(limit: type[AffineLimit | BayesLimit]) -> None:
    assert mse(limit(SineMAML()), grid_tasks(SineMAML(), 200, 2)) < 1e-5


@pytest.mark.parametrize("limit", [AffineLimit, BayesLimit])
def test_limits_solve_each_task_at_its_own_query_points(limit: type[AffineLimit | BayesLimit]) -> None:
    episodes = Sine().sample(6, 3, 8, stream(0, "test"))
    made = limit(Sine())
    together = made.predict(episodes).mean
    alone = torch.cat([made.predict(task).mean for task in episodes.batches(1)])
    torch.testing.assert_close(together, alone, rtol=0, atol=1e-5)


@pytest.mark.parametrize("limit", [AffineLimit, BayesLimit])
def test_limits_pass_through_the_support(limit: type[AffineLimit | BayesLimit]) -> None:
    episodes = Sine().sample(10, 3, 8, stream(0, "test"))
    there = Episodes(episodes.support_x, episodes.support_y, episodes.support_x)
    torch.testing.assert_close(limit(Sine()).predict(there).mean, episodes.support_y, rtol=0, atol=0.01)


def test_bayes_limit_needs_two_points() -> None:
    with pytest.raises(UserError, match="at least 2 shots"):
        BayesLimit(Sine()).predict(grid_tasks(Sine(), 2, 1))


def test_limits_have_no_parameters_and_are_known_for_sines_only() -> None:
    class Line(FunctionFamily):
        parameters = {"slope": (0.0, 1.0)}

        def evaluate(self, x: Tensor, **parameters: Tensor) -> Tensor:
            return parameters["slope"] * x

    assert sine_limits(Line()) == {}
    limits = sine_limits(SineMAML())
    assert limits.keys() == {"best affine predictor", "Bayes-optimal"}
    assert [p for limit in limits.values() for p in limit.parameters()] == []
