from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from metavrf.episodes import Episodes
from metavrf.errors import UserError
from metavrf.prediction import Prediction
from metavrf.randomness import stream
from metavrf.tasks.families import GaussianMatern, GaussianMixed, GaussianPeriodic, GaussianProcess, GaussianRBF
from metavrf.tasks.functions import FAMILIES, FunctionFamily, Sine, SineMAML, family
from metavrf.tasks.oracles import (
    JITTER,
    AffineLimit,
    BayesLimit,
    GaussianProcessLimit,
    NoisyBayesLimit,
    Oracle,
    _cut_normal,
)
from metavrf.testing.settings import TEST_SEED
from metavrf.thinning import stand_ins

Array = np.ndarray[Any, np.dtype[np.float64]]
MEAN_AMPLITUDE = (0.1 + 5) / 2
MEAN_SQUARE_AMPLITUDE = (5**3 - 0.1**3) / (3 * 4.9)


def grid_tasks(of: FunctionFamily, tasks: int, shot: int) -> Episodes:
    return of.sample_grid(tasks, shot, stream(TEST_SEED, "test"))


def mse(limit: Oracle, episodes: Episodes) -> float:
    assert episodes.query_y is not None
    return (limit(episodes).mean - episodes.query_y).square().mean().item()


def log_density(prediction: Prediction, episodes: Episodes) -> Tensor:
    """Of the query's targets, the mean over each task's: ``[T]``."""
    assert episodes.query_y is not None
    return prediction.log_density(episodes.query_y).mean((1, 2))


class QuietMAML(SineMAML):
    """MAML's sines without noise."""

    noise = 0.0


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
    sines = Sine()
    values = sines.evaluate(x.expand(200_000, -1), **sines.draw(200_000, stream(0, "test"))).double().numpy()
    mean, covariance = moments(x.double().numpy())
    standard_error = values.std(0) / math.sqrt(len(values))
    assert np.abs((values.mean(0) - mean) / standard_error).max() < 4
    np.testing.assert_allclose(np.cov(values.T), covariance, atol=0.06)


@pytest.mark.parametrize("shot", [1, 3, 5])
def test_affine_limit_is_the_gaussian_process_of_the_closed_form_moments(shot: int) -> None:
    episodes = grid_tasks(Sine(), 5, shot)
    prediction = AffineLimit(Sine())(episodes)
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
    sines, support, query = Sine(), torch.tensor([-3.0, 0.5, 2.0]), torch.linspace(-5, 5, 21)
    x = torch.cat([support, query])
    train, test = (
        sines.evaluate(x.expand(count, -1), **sines.draw(count, stream(seed, "test"))).double()
        for seed, count in ((0, 100_000), (1, 200))
    )
    design = torch.cat([torch.ones(len(train), 1), train[:, :3]], dim=1)
    coefficients = torch.linalg.lstsq(design, train[:, 3:]).solution
    fitted = torch.cat([torch.ones(len(test), 1), test[:, :3]], dim=1) @ coefficients
    episodes = Episodes(tile(support, 200), test[:, :3].float().unsqueeze(-1), tile(query, 200))
    limit = AffineLimit(sines)(episodes).mean.squeeze(-1)
    assert (limit - fitted).square().mean().sqrt() < 0.02


def tile(x: Tensor, tasks: int) -> Tensor:
    return x.expand(tasks, -1).unsqueeze(-1)


@pytest.mark.parametrize(("shot", "floor", "tolerance"), [(3, 0.394, 0.1), (5, 0.0176, 0.01), (10, 0.0001, 0.0001)])
def test_affine_limit_lies_at_the_known_floor(shot: int, floor: float, tolerance: float) -> None:
    assert mse(AffineLimit(Sine()), grid_tasks(Sine(), 600, shot)) == pytest.approx(floor, abs=tolerance)


def test_affine_limit_knows_its_own_error() -> None:
    episodes = grid_tasks(Sine(), 1500, 3)
    prediction = AffineLimit(Sine())(episodes)
    assert episodes.query_y is not None
    assert prediction.std is not None
    error = (prediction.mean - episodes.query_y).square().mean().item()
    assert prediction.std.square().mean().item() == pytest.approx(error, rel=0.1)


def test_bayes_limit_is_the_mean_of_the_functions_that_pass_near_the_support() -> None:
    """Rejection sampling from the prior: of 4,000,000 functions keep those within 0.06 of both points."""
    sines, x = Sine(), torch.tensor([-1.0, 2.0])
    truth = {"amplitude": torch.tensor([[2.0]]), "frequency": torch.tensor([[1.0]]), "phase": torch.tensor([[1.0]])}
    y, query = sines.evaluate(x.unsqueeze(0), **truth), torch.linspace(-5, 5, 11)
    drawn = sines.draw(4_000_000, stream(0, "test"))
    near = ((sines.evaluate(x.unsqueeze(0), **drawn) - y).abs() < 0.06).all(1)
    curves = sines.evaluate(query.unsqueeze(0), **{name: v[near] for name, v in drawn.items()}).double()
    limit = BayesLimit(sines)(Episodes(tile(x, 1), y.unsqueeze(-1), tile(query, 1)))
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
    assert mse(limit(QuietMAML()), grid_tasks(QuietMAML(), 200, 2)) < 1e-5


@pytest.mark.parametrize("limit", [AffineLimit, BayesLimit])
def test_limits_solve_each_task_at_its_own_query_points(limit: type[AffineLimit | BayesLimit]) -> None:
    episodes = Sine().sample(6, 3, 8, stream(0, "test"))
    made = limit(Sine())
    together = made(episodes).mean
    alone = torch.cat([made(task).mean for task in episodes.batches(1)])
    torch.testing.assert_close(together, alone, rtol=0, atol=1e-5)


@pytest.mark.parametrize("limit", [AffineLimit, BayesLimit])
def test_limits_pass_through_the_support(limit: type[AffineLimit | BayesLimit]) -> None:
    episodes = Sine().sample(10, 3, 8, stream(0, "test"))
    there = Episodes(episodes.support_x, episodes.support_y, episodes.support_x)
    torch.testing.assert_close(limit(Sine())(there).mean, episodes.support_y, rtol=0, atol=0.01)


def test_bayes_limit_needs_two_points() -> None:
    with pytest.raises(UserError, match="at least 2 shots"):
        BayesLimit(Sine())(grid_tasks(Sine(), 2, 1))


@pytest.mark.parametrize("shot", [1, 2, 5, 10])
def test_with_noise_the_bayes_limit_is_the_posterior_over_draws_of_the_prior(shot: int) -> None:
    """Importance weights of 400,000 functions: their mixture has the same moments."""
    sines = SineMAML()
    episodes = sines.sample(3, shot, 6, stream(1, "test"))
    limit = NoisyBayesLimit(sines)(episodes)
    assert limit.std is not None
    drawn = {name: value.mT.double() for name, value in sines.draw(400_000, stream(0, "test")).items()}

    def curves(x: Tensor) -> Tensor:
        return drawn["amplitude"] * torch.sin(x.double() + drawn["phase"])  # [N, draws]

    for task in range(3):
        misfit = (episodes.support_y[task].double() - curves(episodes.support_x[task])).square().sum(0)
        weight = torch.softmax(-misfit / (2 * sines.noise**2), dim=0)
        at = curves(episodes.query_x[task])
        mean = at @ weight
        variance = (at - mean.unsqueeze(-1)).square() @ weight + sines.noise**2
        error = 4 * (variance * weight.square().sum()).sqrt() + 1e-3  # of importance sampling
        assert ((limit.mean[task, :, 0] - mean).abs() < error).all()
        np.testing.assert_allclose(limit.std[task, :, 0], variance.sqrt(), rtol=0.15)


@pytest.mark.parametrize("shot", [2, 5, 10])
def test_with_noise_the_bayes_limit_is_at_least_as_good_as_the_affine_one_and_above_the_noise(shot: int) -> None:
    sines = SineMAML()
    episodes = grid_tasks(sines, 400, shot)
    limits = sines.oracles()
    bayes, affine = limits["Bayes-optimal"], limits["best affine predictor"]
    assert sines.noise**2 < mse(bayes, episodes) < mse(affine, episodes)
    density = {name: log_density(limit(episodes), episodes).mean() for name, limit in limits.items()}
    assert density["best affine predictor"] < density["Bayes-optimal"] < 0.884


def test_with_noise_the_limits_know_their_own_error() -> None:
    episodes = grid_tasks(SineMAML(), 1000, 4)
    assert episodes.query_y is not None
    for limit in SineMAML().oracles().values():
        prediction = limit(episodes)
        assert prediction.std is not None
        error = (prediction.mean - episodes.query_y).square().mean().item()
        assert prediction.std.square().mean().item() == pytest.approx(error, rel=0.1)
    inside = SineMAML().oracles()["Bayes-optimal"](episodes).inside(episodes.query_y)
    assert inside.double().mean().item() == pytest.approx(0.9, abs=0.01)


def test_the_bayes_limit_is_a_mixture_of_its_own_moments() -> None:
    episodes = grid_tasks(Sine(), 20, 3)
    prediction = BayesLimit(Sine())(episodes)
    assert prediction.variance is not None
    assert prediction.std is not None
    weights = prediction.weights[..., None, None]
    torch.testing.assert_close(weights.sum(0), torch.ones_like(weights[0]))
    mean = (weights * prediction.samples).sum(0)
    second = (weights * (prediction.variance + prediction.samples.double().square())).sum(0)
    torch.testing.assert_close(mean.float(), prediction.mean, rtol=0, atol=1e-5)
    torch.testing.assert_close((second - mean.square()).sqrt().float(), prediction.std, rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize(("mean", "std"), [(2.0, 0.5), (0.0, 0.2), (7.0, 0.1), (-3.0, 0.5), (1.0, 100.0)])
def test_a_cut_normal_has_the_moments_of_quadrature(mean: float, std: float) -> None:
    x = torch.linspace(0.1, 5.0, 200_001, dtype=torch.double)
    log_density = -0.5 * ((x - mean) / std).square() - math.log(std * math.sqrt(2 * math.pi))
    weight = log_density.softmax(0)
    centre = weight @ x
    found = _cut_normal(torch.tensor(mean).double(), torch.tensor(std).double(), 0.1, 5.0)
    assert found[0].item() == pytest.approx((log_density.logsumexp(0) + (x[1] - x[0]).log()).item(), abs=1e-2)
    assert found[1].item() == pytest.approx(centre.item(), abs=1e-3)
    assert found[2].item() == pytest.approx((weight @ (x - centre).square()).item(), rel=1e-2)


# Gaussian processes


def test_stand_ins_keep_what_is_heavy_and_stand_for_the_rest() -> None:
    log_weight = torch.randn(4, 5000, dtype=torch.double, generator=stream(0, "test"))
    log_weight[:, 17] = 12.0
    index, log_share = stand_ins(log_weight, 300)
    assert (index == 17).any(1).all()
    weight = (log_weight.gather(1, index) - log_share).exp()
    total = log_weight.exp().sum(1)
    torch.testing.assert_close(weight.sum(1), total, rtol=0.01, atol=0)
    place = torch.linspace(0, 1, 5000, dtype=torch.double).expand(4, -1)
    expected = (log_weight.exp() * place).sum(1)
    torch.testing.assert_close((weight * place.gather(1, index)).sum(1), expected, rtol=0.01, atol=0)


def known_gaussian_process(of: GaussianProcess, episodes: Episodes, **given: float) -> Prediction:
    """Gaussian process regression with hyper-parameters that are given: the reference, one task after the other."""
    scale = given.pop("scale")
    hyper = {name: torch.tensor(value, dtype=torch.double) for name, value in given.items()}
    size = episodes.support_x.shape[1]
    x = torch.cat([episodes.support_x, episodes.query_x], dim=1).squeeze(-1).double()
    covariance = scale**2 * of.correlation((x.unsqueeze(-1) - x.unsqueeze(-2)).abs(), **hyper)
    gram = covariance[:, :size, :size] + of.noise**2 * torch.eye(size, dtype=torch.double)
    solved = torch.linalg.solve(gram, covariance[:, :size, size:])  # [T, S, Q]
    mean = solved.mT @ episodes.support_y.double()
    variance = scale**2 + of.noise**2 - (solved * covariance[:, :size, size:]).sum(1).unsqueeze(-1)
    return Prediction(mean, mean.unsqueeze(0), variance.sqrt())


@pytest.mark.parametrize(
    ("kind", "hyper"),
    [
        (GaussianRBF, {"length": 0.3, "scale": 0.6}),
        (GaussianMatern, {"length": 0.5, "scale": 0.9}),
        (GaussianPeriodic, {"length": 0.4, "scale": 0.6, "period": 0.3}),
    ],
)
def test_with_hyper_parameters_all_but_known_the_limit_is_that_gaussian_process(
    kind: type[GaussianProcess], hyper: dict[str, float]
) -> None:
    class Narrow(kind):  # type: ignore[misc, valid-type]
        parameters = {name: (value * (1 - 1e-5), value * (1 + 1e-5)) for name, value in hyper.items()}

    episodes = Narrow().sample(4, 12, 7, stream(0, "test"))
    prediction, reference = (
        GaussianProcessLimit((Narrow(),))(episodes),
        known_gaussian_process(kind(), episodes, **hyper),
    )
    assert prediction.std is not None
    assert reference.std is not None
    np.testing.assert_allclose(prediction.mean, reference.mean, atol=2e-3)
    np.testing.assert_allclose(prediction.std, reference.std, rtol=2e-2)


@pytest.mark.parametrize("kind", [GaussianRBF, GaussianMatern])
def test_the_limit_of_gaussian_processes_beats_any_one_of_them(kind: type[GaussianProcess]) -> None:
    groups = kind().sample_groups(120, stream(0, "test"), 10)
    limit = kind().oracles()["Bayes-optimal"]
    best = torch.cat([log_density(limit(group), group) for group in groups])
    for length in (0.1, 0.2, 0.35, 0.6):
        known = [known_gaussian_process(kind(), group, length=length, scale=0.6) for group in groups]
        wrong = torch.cat([log_density(p, group) for p, group in zip(known, groups, strict=True)])
        assert best.mean() > wrong.mean() + 0.1


def test_the_limit_of_gaussian_processes_is_calibrated() -> None:
    episodes = GaussianMatern().sample(400, 8, 20, stream(0, "test"))
    assert episodes.query_y is not None
    prediction = GaussianMatern().oracles()["Bayes-optimal"](episodes)
    for level in (0.5, 0.9):
        inside = prediction.outwards(episodes.query_y) <= level
        assert inside.double().mean().item() == pytest.approx(level, abs=0.02)


@pytest.mark.parametrize("kind", [GaussianRBF, GaussianMatern])
def test_a_finer_grid_of_hyper_parameters_says_the_same(kind: type[GaussianProcess]) -> None:
    groups = kind().sample_groups(60, stream(1, "test"), 5)
    plain, finer = (
        torch.cat([log_density(GaussianProcessLimit((kind(),), finer=f)(group), group) for group in groups])
        for f in (1, 2)
    )
    assert abs((plain - finer).mean()) < 0.005


def test_half_the_steps_in_length_scale_and_period_say_the_same() -> None:
    groups = GaussianPeriodic().sample_groups(6, stream(1, "test"), 1)
    plain, finer = (
        torch.cat([log_density(GaussianProcessLimit((GaussianPeriodic(),), finer=f)(group), group) for group in groups])
        for f in (1, 2)
    )
    assert abs((plain - finer).mean()) < 0.01


def test_the_limit_finds_the_period() -> None:
    """With 30 points it predicts nearly as well as the process that knows length, scale and period."""

    class Known(GaussianPeriodic):
        parameters = {"length": (0.4, 0.4), "scale": (0.7, 0.7), "period": (0.23, 0.23)}

    episodes = Known().sample(4, 30, 15, stream(0, "test"))
    found = log_density(GaussianPeriodic().oracles()["Bayes-optimal"](episodes), episodes)
    known = log_density(known_gaussian_process(Known(), episodes, length=0.4, scale=0.7, period=0.23), episodes)
    assert found.mean() == pytest.approx(known.mean().item(), abs=0.1)


def test_the_limit_of_mixed_processes_lies_below_that_of_the_kind_it_has_to_guess() -> None:
    episodes = GaussianRBF().sample(10, 15, 20, stream(0, "test"))
    mixed, own = (
        log_density(of.oracles()["Bayes-optimal"](episodes), episodes) for of in (GaussianMixed(), GaussianRBF())
    )
    assert own.mean() - 0.3 < mixed.mean() < own.mean() + 0.05


def test_families_carry_the_limits_that_are_known() -> None:
    sines = {"best affine predictor", "Bayes-optimal"}
    assert {name: set(family(name).oracles()) for name in FAMILIES} == {
        "gp-matern": {"Bayes-optimal"},
        "gp-mixed": {"Bayes-optimal"},
        "gp-periodic": {"Bayes-optimal"},
        "gp-rbf": {"Bayes-optimal"},
        "mixed": {"Bayes-optimal"},
        "sine": sines,
        "sine-drift": sines,
        "sine-maml": sines,
    }
