"""The predictive distribution of the regressor: quantiles, draws, CRPS, and intervals that keep their coverage."""

from __future__ import annotations

from typing import Any

import matplotlib as mpl
import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from sklearn.base import clone

from glyphs import refused
from metavrf import Episodes, MetaVRFClassifier, MetaVRFRegressor
from metavrf.kernels.rows import Kernels, Standardised
from metavrf.learners.measuring import without_each
from metavrf.learners.row_mixture import FREEDOM, Targets, solve
from metavrf.learners.rows import Rows
from metavrf.prediction import Prediction
from metavrf.randomness import stream


@pytest.fixture(scope="module")
def fitted() -> MetaVRFRegressor:
    """On a noisy curve of two columns, one of which says nothing."""
    return MetaVRFRegressor().fit(*rows(20, 0))


def rows(count: int, seed: int) -> tuple[NDArray[Any], NDArray[Any]]:
    random = np.random.default_rng(seed)
    x = random.normal(size=(count, 2))
    return x, 5 + 10 * (np.sin(2 * x[:, 0]) + 0.3 * random.normal(size=count))


def mixture() -> Prediction:
    """Two normals at one query."""
    mean = torch.tensor([-1.0, 2.0]).double().view(2, 1, 1, 1)
    variance = torch.tensor([0.25, 4.0]).double().view(2, 1, 1, 1)
    weights = torch.tensor([0.3, 0.7]).double().log().view(2, 1)
    return Prediction(mean.mean(0), mean, variance.mean(0).sqrt(), variance=variance, log_weights=weights)


def test_the_crps_of_a_normal_is_the_known_formula() -> None:
    one = Prediction(torch.full((1, 1, 1), 1.0), torch.full((1, 1, 1, 1), 1.0), torch.full((1, 1, 1), 2.0))
    z = torch.tensor(0.75).double()  # y = 2.5
    density = torch.exp(-0.5 * z**2) / (2 * torch.pi) ** 0.5
    expected = 2 * (z * (2 * torch.special.ndtr(z) - 1) + 2 * density - torch.pi**-0.5)
    assert one.crps(torch.full((1, 1, 1), 2.5)).item() == pytest.approx(expected.item(), rel=1e-6)


@pytest.mark.parametrize("y", [-3.0, 0.5, 6.0])
def test_the_crps_of_a_mixture_is_that_of_its_draws(y: float) -> None:
    drawn = mixture().draw(200_000, torch.Generator().manual_seed(0)).flatten()
    other = drawn[torch.randperm(len(drawn), generator=torch.Generator().manual_seed(1))]
    expected = (drawn - y).abs().mean() - 0.5 * (drawn - other).abs().mean()
    assert mixture().crps(torch.tensor([[[y]]])).item() == pytest.approx(expected.item(), abs=0.02)


def test_the_crps_of_an_estimator_is_that_of_its_own_draws(fitted: MetaVRFRegressor) -> None:
    x, y = rows(30, 1)
    drawn = fitted.sample_y(x, 4000, random_state=0)
    apart = np.abs(drawn - drawn[:, np.random.default_rng(0).permutation(4000)]).mean()
    expected = np.abs(drawn - y[:, None]).mean() - 0.5 * apart
    assert fitted.score_crps(x, y) == pytest.approx(expected, rel=0.03)
    assert fitted.score_crps(x, y) < 0.7 * np.abs(y - y.mean()).mean()  # a constant's is its mean absolute error


def test_quantiles_are_those_of_draws_and_in_numpys_order(fitted: MetaVRFRegressor) -> None:
    x, _ = rows(15, 1)
    levels = [0.05, 0.5, 0.95]
    found = fitted.predict_quantiles(x, levels)
    assert found.shape == (3, 15)
    assert (np.diff(found, axis=0) > 0).all()
    below = fitted.sample_y(x, 5000, random_state=0)[None] < found[..., None]
    np.testing.assert_allclose(below.mean((1, 2)), levels, atol=0.01)
    np.testing.assert_array_equal(fitted.predict_quantiles(x, 0.5), found[1])
    for bad in (0.0, [0.5, 1.0], [[0.5]]):
        with refused("q = ", "between 0 and 1"):
            fitted.predict_quantiles(x, bad)


def test_draws_have_the_moments_of_the_prediction_and_neighbours_go_together(fitted: MetaVRFRegressor) -> None:
    x, _ = rows(10, 1)
    drawn = fitted.sample_y(x, 20_000, random_state=3)
    mean, std = fitted.predict(x, return_std=True)
    np.testing.assert_allclose(drawn.mean(1), mean, atol=0.05 * std.max())
    np.testing.assert_allclose(drawn.std(1), std, rtol=0.05)
    assert np.array_equal(fitted.sample_y(x, 2, random_state=3), fitted.sample_y(x, 2, random_state=3))
    far = np.array([[4.0, 0.0], [4.01, 0.0], [-4.0, 0.0]])
    together = np.asarray(np.corrcoef(fitted.sample_y(far, 2000)))
    assert together[0, 1] > together[0, 2] + 0.3


def test_several_outputs_have_an_axis_of_their_own() -> None:
    x, y = rows(20, 0)
    model = MetaVRFRegressor().fit(x, np.column_stack([y, -y]))
    assert model.predict_quantiles(x[:4], [0.1, 0.9]).shape == (2, 4, 2)
    assert model.sample_y(x[:4], 3).shape == (4, 2, 3)
    assert model.predict_interval(x[:4])[0].shape == (4, 2)
    assert model.score_crps(x, np.column_stack([y, -y])) > 0


@pytest.mark.parametrize("model", [None, "sine"])
def test_other_regressors_have_a_distribution_too(model: str | None) -> None:
    x = np.linspace(-4, 4, 12)[:, None]
    fitted = MetaVRFRegressor(model, bases=None if model else 64, coverage=0.8).fit(x, 2 * np.sin(x[:, 0]))
    mean, std = fitted.predict(x, return_std=True)
    drawn = fitted.sample_y(x, 4000)
    np.testing.assert_allclose(drawn.mean(1), mean, atol=0.1 * std.max() + 1e-3)
    low, high = fitted.predict_quantiles(x, [0.1, 0.9])
    assert (low < high).all()
    assert np.abs(0.5 * (low + high) - mean).max() < 0.5 * (high - low).max() + 1e-3
    assert fitted.score_crps(x, 2 * np.sin(x[:, 0])) < 0.2
    ends = fitted.predict_interval(x)
    assert np.isfinite(ends).all()
    assert (ends[0] < ends[1]).all()


# Leaving one out


def test_leaving_one_out_in_closed_form_is_solving_the_others() -> None:
    x, y = rows(12, 0)
    x, noise = (x - x.mean(0)) / x.std(0), 0.05
    scale = torch.tensor([[1.2, 0.6]]).double()
    own = {
        "scale": scale,
        "wave": 0 * scale,
        "linear": torch.zeros(1).double(),
        "noise": torch.tensor([noise]).double(),
    }
    kernels = Kernels([Standardised.on(torch.from_numpy(x), **own)])
    targets = Targets.of(Episodes.of_support(torch.from_numpy(x), torch.from_numpy(y[:, None])))
    learner = Rows(2, regression=True, generator=stream(0, "bases"))
    predictor = learner.conditioned(kernels, torch.zeros(1, 1).double(), torch.from_numpy(x), targets)
    new = torch.from_numpy(rows(3, 5)[0])
    mean, std = predictor.without_each(new)
    values, gain = targets.values.numpy()[:, 0], targets.gain.item()
    gram, cross = kernels(torch.from_numpy(x))[0][0].numpy(), kernels(new)[0][0].numpy()
    for row in range(12):
        others = np.delete(np.arange(12), row)
        inner = np.linalg.inv(gram[np.ix_(others, others)] + noise * np.eye(11))
        sides = np.vstack([gram[row], cross])[:, others]
        expected = sides @ inner @ values[others]
        amplitude = (FREEDOM / (1 + noise) + values[others] @ inner @ values[others]) / (FREEDOM + 11 - 2)
        variance = amplitude * (1 + noise - np.einsum("ij,jk,ik->i", sides, inner, sides))
        np.testing.assert_allclose(mean[row, :, 0], expected * gain + y.mean())
        np.testing.assert_allclose(std[row, :, 0], gain * np.sqrt(variance))


def test_kernels_are_weighed_without_the_row_that_is_left_out() -> None:
    x, y = rows(12, 0)
    x = (x - x.mean(0)) / x.std(0)
    nothing = torch.zeros(2).double()
    scale = torch.tensor([[1.2, 0.6], [0.4, 0.4]]).double()
    own = {"scale": scale, "wave": 0 * scale, "linear": nothing, "noise": torch.tensor([0.05, 5.0]).double()}
    kernels = Kernels([Standardised.on(torch.from_numpy(x), **own)])
    targets = Targets.of(Episodes.of_support(torch.from_numpy(x), torch.from_numpy(y[:, None])))
    learner = Rows(2, regression=True, generator=stream(0, "bases"))
    predictor = learner.conditioned(kernels, nothing.unsqueeze(1), torch.from_numpy(x), targets)
    mean, _ = predictor.without_each(torch.from_numpy(x[:0]))
    gram, noise = kernels.gram(), kernels.noise
    all_rows = solve(gram.clone(), noise, targets).evidence
    for row in range(12):
        others = torch.from_numpy(np.delete(np.arange(12), row))
        inner = gram[:, others][..., others]
        fewer = targets._replace(values=targets.values[others])
        left = solve(inner.clone(), noise, fewer)
        weights = (predictor.log_weights + left.evidence - all_rows).softmax(0)
        solution = torch.linalg.solve(inner + noise[:, None, None] * torch.eye(11), fewer.values)
        found = (weights @ (gram[:, row, others].unsqueeze(1) @ solution)[:, 0, 0]) * targets.gain + targets.offset
        torch.testing.assert_close(mean[row, 0], found)


def test_leaving_one_out_of_the_mixture_is_about_fitting_the_others(fitted: MetaVRFRegressor) -> None:
    new, y = torch.from_numpy(rows(5, 5)[0]), fitted.support_y_
    mixture: Any = fitted.predictor_
    closed, refitted = mixture.without_each(new), without_each(fitted.learner_, fitted._support(), new)
    for ours, exact in zip(closed, refitted, strict=True):
        assert (ours - exact).abs().median() < 0.05 * y.std()


# Intervals


def noise_alone(random: np.random.Generator, x: NDArray[Any]) -> NDArray[Any]:
    return random.normal(size=len(x))


def heavy_tails(random: np.random.Generator, x: NDArray[Any]) -> NDArray[Any]:
    return x[:, 0] + random.standard_t(1.5, size=len(x))


def unequal_noise(random: np.random.Generator, x: NDArray[Any]) -> NDArray[Any]:
    return x[:, 0] + np.exp(x[:, 1]) * random.normal(size=len(x))


@pytest.mark.parametrize("targets", [noise_alone, heavy_tails, unequal_noise])
@pytest.mark.parametrize(("count", "coverage", "repeats"), [(12, 0.8, 25), (80, 0.9, 20)])
def test_intervals_hold_as_many_new_targets_as_they_promise(
    targets: Any, count: int, coverage: float, repeats: int
) -> None:
    held = []
    for seed in range(repeats):
        random = np.random.default_rng(seed)
        x = random.normal(size=(count + 40, 3))
        y = targets(random, x)
        low, high = MetaVRFRegressor(coverage=coverage).fit(x[:count], y[:count]).predict_interval(x[count:])
        held.append(np.mean((low <= y[count:]) & (y[count:] <= high)))
    error = np.std(held) / repeats**0.5
    assert np.mean(held) > coverage - 2 * error


def test_too_few_samples_promise_nothing_finite_and_a_bad_coverage_is_refused() -> None:
    x, y = rows(8, 0)
    model = MetaVRFRegressor(coverage=0.9).fit(x, y)
    assert np.isinf(model.predict_interval(x)).all()
    assert np.isfinite(clone(model).set_params(coverage=0.8).fit(x, y).predict_interval(x)).all()
    with refused("coverage = 1.5"):
        MetaVRFRegressor(coverage=1.5).fit(x, y).predict_interval(x)


def test_the_coverage_is_saved(tmp_path: Any) -> None:
    x, y = rows(20, 0)
    fitted = MetaVRFRegressor(coverage=0.75).fit(x, y)
    again = MetaVRFRegressor.load(fitted.save(tmp_path / "model"))
    assert again.coverage == 0.75
    np.testing.assert_array_equal(again.predict_interval(x[:2]), fitted.predict_interval(x[:2]))


# What was inferred


def test_the_relevance_of_columns_is_drawn_the_most_relevant_first(fitted: MetaVRFRegressor) -> None:
    mpl.use("agg")
    axis = fitted.plot_relevance()
    assert [label.get_text() for label in axis.get_yticklabels()] == ["column 0", "column 1"]
    widths = [bar.get_width() for bar in axis.patches]
    np.testing.assert_allclose(widths, fitted.kernels_["relevance"])
    assert widths[0] > widths[1]
    figure = axis.figure
    assert MetaVRFClassifier().fit(*rows(4, 0)[:1], [0, 0, 1, 1]).plot_relevance(figure.add_subplot()).figure is figure
    mpl.pyplot.close(figure)
