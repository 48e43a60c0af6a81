from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from scipy.stats import multivariate_t
from sklearn.datasets import load_iris
from sklearn.gaussian_process import GaussianProcessRegressor
from sklearn.gaussian_process.kernels import RBF, WhiteKernel

from metavrf import MetaVRFClassifier, MetaVRFRegressor
from metavrf.episodes import Episodes
from metavrf.kernels.rows import BETWEEN, Kernels, Parity, Standardised, UnitLength
from metavrf.learners import rows
from metavrf.learners.measuring import leave_one_out
from metavrf.learners.row_mixture import FREEDOM, RowsPredictor, Targets, solve
from metavrf.learners.rows import Rows
from metavrf.randomness import stream

LENGTHS, NOISE = (0.8, 1.7), 0.05


def learner(columns: int, *, regression: bool = True) -> Rows:
    return Rows(columns, regression=regression, generator=stream(0, "bases"))


def task(seed: int = 0) -> tuple[NDArray[Any], NDArray[Any]]:
    """Standardised columns and targets."""
    random = np.random.default_rng(seed)
    x = random.normal(size=(12, 2))
    y = np.sin(x[:, :1]) + x[:, 1:]
    return (x - x.mean(0)) / x.std(0), (y - y.mean()) / y.std()


def one_kernel(x: NDArray[Any]) -> Kernels:
    scale = 1 / torch.tensor([LENGTHS], dtype=torch.double)
    nothing = torch.zeros(1, dtype=torch.double)
    own = {"scale": scale, "wave": torch.zeros_like(scale), "linear": nothing, "noise": nothing + NOISE}
    return Kernels([Standardised.on(torch.from_numpy(x), **own)])


# The mathematics


def test_one_candidate_is_the_gaussian_process_of_that_kernel() -> None:
    x, y = task()
    query = np.random.default_rng(1).normal(size=(7, 2))
    episodes = Episodes.of_support(torch.from_numpy(x), torch.from_numpy(y))
    model = learner(2).conditioned(one_kernel(x), torch.zeros(1, 1).double(), torch.from_numpy(x), Targets.of(episodes))
    mean, std = model(torch.from_numpy(query))
    process = GaussianProcessRegressor(RBF(LENGTHS) + WhiteKernel(NOISE), optimizer=None, alpha=1e-12).fit(x, y)
    expected, deviation = process.predict(query, return_std=True)
    np.testing.assert_allclose(mean[:, 0], expected.ravel(), atol=1e-8)
    amplitude = model.amplitude.sqrt().item()  # inferred here, 1 there
    np.testing.assert_allclose(std[:, 0] / amplitude, deviation.ravel(), rtol=1e-6)


def test_the_evidence_is_a_students_t() -> None:
    x, y = task()
    kernels = one_kernel(x)
    gram = kernels(torch.from_numpy(x))[0]
    targets = Targets.of(Episodes.of_support(torch.from_numpy(x), torch.from_numpy(y)))
    shape = gram[0].numpy() + NOISE * np.eye(len(x))
    expected = multivariate_t(np.zeros(len(x)), shape / (1 + NOISE), FREEDOM).logpdf(y[:, 0])
    assert solve(gram, kernels.noise, targets).evidence.item() == pytest.approx(expected)


def test_leaving_one_out_in_closed_form_is_fitting_the_others() -> None:
    x, y = task()
    kernels = one_kernel(x)
    targets = Targets.of(Episodes.of_support(torch.from_numpy(x), torch.from_numpy(y)))
    gram = kernels(torch.from_numpy(x))[0][0]
    closed = solve(gram.clone().unsqueeze(0), kernels.noise, targets).left_out(targets.values)[0]
    for row in range(len(x)):
        others = [other for other in range(len(x)) if other != row]
        inner = gram[others][:, others] + NOISE * torch.eye(len(others))
        refitted = gram[row, others] @ torch.linalg.solve(inner, targets.values[others])
        torch.testing.assert_close(closed[row], refitted)


def test_predicting_rows_in_turn_is_fitting_those_before() -> None:
    x, y = task()
    kernels = one_kernel(x)
    targets = Targets.of(Episodes.of_support(torch.from_numpy(x), torch.from_numpy(y)))
    gram = kernels(torch.from_numpy(x))[0][0]
    closed = solve(gram.clone().unsqueeze(0), kernels.noise, targets).in_turn(targets.values)[0]
    for row in range(len(x)):
        inner = gram[:row, :row] + NOISE * torch.eye(row)
        refitted = gram[row, :row] @ torch.linalg.solve(inner, targets.values[:row])
        torch.testing.assert_close(closed[row], refitted)


# What a user sees


@pytest.mark.parametrize("shot", [3, 5])
def test_labels_that_depend_on_nothing_are_answered_as_such(shot: int) -> None:
    random = np.random.default_rng(0)
    likelihood = []
    for _ in range(20):
        x, new = random.normal(size=(2 * shot, 8)), random.normal(size=(100, 8))
        truth = random.integers(2, size=100)
        found = MetaVRFClassifier().fit(x, np.arange(2 * shot) % 2).predict_proba(new)
        likelihood.append(-np.log(found[np.arange(100), truth]).mean())
    assert np.mean(likelihood) < math.log(2) + 0.15


def test_targets_that_depend_on_nothing_are_answered_by_little_more_than_their_mean() -> None:
    random = np.random.default_rng(0)
    ours, mean = [], []
    for _ in range(40):
        x, y, truth = random.normal(size=(120, 3)), random.normal(size=20), random.normal(size=100)
        ours.append(np.square(MetaVRFRegressor().fit(x[:20], y).predict(x[20:]) - truth).mean())
        mean.append(np.square(y.mean() - truth).mean())
    assert np.mean(ours) < 1.1 * np.mean(mean)


def test_targets_vary_as_much_under_a_kernel_that_is_nearly_all_noise() -> None:
    random = np.random.default_rng(0)
    targets = Targets.of(Episodes.of_support(torch.zeros(20, 1), torch.from_numpy(random.normal(size=(20, 1)))))
    noise = torch.tensor([1.0, 10.0, 100.0]).double()
    found = solve(torch.zeros(3, 20, 20).double(), noise, targets)
    torch.testing.assert_close(found.evidence, found.evidence.mean().expand(3), rtol=0, atol=0.5)
    variance = (found.amplitude[:, 0] * noise).numpy()
    np.testing.assert_allclose(variance, variance.mean(), rtol=0.1)


@pytest.mark.parametrize("kind", [MetaVRFClassifier, MetaVRFRegressor])
def test_columns_far_from_zero_are_told_apart_as_others_are(kind: Any) -> None:
    x, _ = task()
    y = (x[:, 0] > 0).astype(int) if kind is MetaVRFClassifier else np.sin(x[:, 0])
    answer = "predict_proba" if kind is MetaVRFClassifier else "predict"
    expected = getattr(kind().fit(x, y), answer)(x)
    np.testing.assert_allclose(getattr(kind().fit(x + 1e9, y), answer)(x + 1e9), expected, atol=1e-3)


@pytest.mark.parametrize("size", [12, 60])
@pytest.mark.parametrize("kind", [MetaVRFClassifier, MetaVRFRegressor])
def test_the_order_of_rows_does_not_matter(kind: Any, size: int) -> None:
    x = np.random.default_rng(0).normal(size=(size, 2))
    y = np.arange(size) % 3 if kind is MetaVRFClassifier else np.sin(x[:, 0])
    answer = "predict_proba" if kind is MetaVRFClassifier else "predict"
    order = np.random.default_rng(1).permutation(size)
    expected = getattr(kind().fit(x, y), answer)(x)
    np.testing.assert_allclose(getattr(kind().fit(x[order], y[order]), answer)(x), expected, atol=1e-5)


@pytest.mark.parametrize("kind", [MetaVRFClassifier, MetaVRFRegressor])
def test_kernels_that_some_rows_rule_out_would_change_little(kind: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    random = np.random.default_rng(0)
    x, new = random.normal(size=(50, 4)), random.normal(size=(100, 4))
    real = np.sin(2 * x[:, 0]) + x[:, 1] + 0.1 * random.normal(size=50)
    y = real > 0 if kind is MetaVRFClassifier else real
    answer = "predict_proba" if kind is MetaVRFClassifier else "predict"
    screened = getattr(kind().fit(x, y), answer)(new)
    monkeypatch.setattr(rows, "SCREENED", 50)
    every = getattr(kind().fit(x, y), answer)(new)
    assert np.abs(every - screened).mean() < 0.05


def test_a_damped_oscillation_of_ten_points_is_followed() -> None:
    random = np.random.default_rng(0)
    errors = []
    for _ in range(20):
        decay, frequency, phase = random.uniform((0.05, 1.0, 0.0), (0.5, 3.0, 6.3))
        x, grid = random.uniform(0, 10, (10, 1)), np.linspace(0, 10, 50)[:, None]
        truth = np.exp(-decay * grid) * np.sin(frequency * grid + phase)
        y = np.exp(-decay * x) * np.sin(frequency * x + phase)
        mean = MetaVRFRegressor().fit(x, y[:, 0]).predict(grid)
        errors.append([np.mean((mean - truth[:, 0]) ** 2), np.mean(truth**2)])
    ours, zero = np.mean(errors, 0)
    assert ours < 0.6 * zero


@pytest.mark.parametrize("shot", [1, 5])
def test_wide_features_are_not_behind_the_nearest_class_mean(shot: int) -> None:
    random = np.random.default_rng(0)
    ours, nearest = [], []
    for _ in range(5):
        centres = np.abs(random.normal(size=(5, 1280)))
        y, target = np.repeat(np.arange(5), shot), np.repeat(np.arange(5), 20)
        x = np.abs(centres[y] + 1.2 * random.normal(size=(len(y), 1280)))
        query = np.abs(centres[target] + 1.2 * random.normal(size=(100, 1280)))
        model = MetaVRFClassifier().fit(x, y)
        ours.append(model.score(query, target))
        means = np.stack([x[y == label].mean(0) for label in range(5)])
        apart = np.linalg.norm(query[:, None] - means, axis=-1)
        nearest.append(np.mean(apart.argmin(1) == target))
    assert np.mean(ours) >= np.mean(nearest) - 0.02
    assert np.mean(ours) > 0.5


def test_a_new_sample_stands_out_as_far_as_ridge_regression_on_blocks_says() -> None:
    labels, between = torch.arange(3).repeat_interleave(4), 0.6
    within = between ** (1 - BETWEEN)
    same = labels.unsqueeze(1) == labels
    gram = torch.where(same, within, between).double().fill_diagonal_(1)
    family = UnitLength.on(
        torch.rand(12, 20).double(),
        view=torch.zeros(1).long(),
        length=torch.ones(1),
        noise=torch.tensor([0.3]).double(),
    )
    solution = torch.linalg.solve(gram + 0.3 * torch.eye(12), F.one_hot(labels).double())
    fit = torch.where(labels == 0, within, between).double() @ solution
    found = family.standing_out(gram.unsqueeze(0), labels)
    torch.testing.assert_close(found, (fit[0] - fit[1]).reshape(1))


def test_wide_features_that_say_nothing_of_the_classes_are_answered_by_little_more_than_chance() -> None:
    random = np.random.default_rng(0)
    likelihood = []
    for _ in range(10):
        x, truth = np.abs(random.normal(size=(125, 300))), random.integers(5, size=100)
        found = MetaVRFClassifier().fit(x[:25], np.repeat(np.arange(5), 5)).predict_proba(x[25:])
        likelihood.append(-np.log(found[np.arange(100), truth]).mean())
    assert np.mean(likelihood) < math.log(5) + 0.15


def test_an_irrelevant_column_is_found_and_what_was_inferred_can_be_seen() -> None:
    x = np.random.default_rng(0).normal(size=(40, 4)) * [1, 100, 1, 1]
    model = MetaVRFRegressor().fit(x, np.sin(2 * x[:, 0]) + x[:, 1] / 100)
    kernels = model.kernels_
    assert kernels["weights"].sum() == pytest.approx(1)
    assert (np.diff(kernels["weights"]) <= 0).all()
    assert kernels["lengths"].shape == (len(kernels["weights"]), 4)
    assert kernels["relevance"].argmax() == 0
    assert kernels["relevance"][2:].max() < 0.2
    assert math.isfinite(model.log_marginal_likelihood())
    assert not hasattr(MetaVRFRegressor(bases=8).fit(x, x[:, 0]), "kernels_")


@pytest.mark.parametrize("kind", [MetaVRFClassifier, MetaVRFRegressor])
def test_constant_and_duplicated_columns_change_little(kind: Any) -> None:
    x = np.random.default_rng(0).normal(size=(20, 1)) @ [[1.0, 1.0, 0.0]] + [0, 0, 7.0]
    y = (x[:, 0] > 0).astype(int) if kind is MetaVRFClassifier else x[:, 0]
    model = kind().fit(x, y)
    assert model.score(x, y) > 0.9
    np.testing.assert_allclose(model.predict(x + np.array([0, 0, 1e-3])), model.predict(x), atol=1e-6)
    same = kind().fit(np.ones((4, 2)), [0, 1, 0, 1])
    assert np.isfinite(same.predict(np.ones((1, 2)))).all()


def test_one_row_says_itself_and_contradictory_targets_give_a_wide_band() -> None:
    mean, std = MetaVRFRegressor().fit([[1.0, 2.0]], [5.0]).predict([[1.0, 2.0], [9.0, 9.0]], return_std=True)
    np.testing.assert_allclose(mean, 5)
    assert np.isfinite(std).all()
    x = np.repeat(np.arange(5.0), 4)[:, None]
    _, std = MetaVRFRegressor().fit(x, np.tile([-1.0, 1.0], 10)).predict(x, return_std=True)
    assert (std > 0.8).all()
    _, std = MetaVRFRegressor().fit(x, x[:, 0]).predict(x, return_std=True)
    assert (std < 0.3).all()


def test_leaving_one_out_of_the_mixture_is_about_what_fitting_without_each_sample_gives() -> None:
    random = np.random.default_rng(0)
    y = np.arange(24) % 3
    x = torch.from_numpy(random.normal(size=(24, 2)) + 1.5 * y[:, None])
    support = Episodes.of_support(x, torch.from_numpy(y), 3)
    model = learner(2, regression=False)
    closed = model.left_out(support, torch.arange(24))
    assert closed is not None
    refitted = model.predict(support.leaving_one_out(), embedded=True).mean[:, 0].exp()
    assert (closed - refitted).abs().mean() < 0.1
    assert leave_one_out(model, support).tested == 24


def test_many_rows_choose_their_kernels_on_some(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rows, "MOST_ROWS", 40)
    random = np.random.default_rng(0)
    x = random.normal(size=(120, 3))
    assert MetaVRFRegressor().fit(x, np.sin(x[:, 0])).score(x, np.sin(x[:, 0])) > 0.9
    y = np.arange(120) // 2  # sixty classes of two
    x = random.normal(size=(60, 3))[y] * 5 + 0.1 * x
    assert MetaVRFClassifier().fit(x, y).score(x, y) > 0.9
    monkeypatch.setattr(rows, "MOST_EXACT", 100)
    model = MetaVRFClassifier().fit(x, y)
    assert not isinstance(model.predictor_, RowsPredictor)
    assert model.score(x, y) > 0.9


# Binary columns


def test_a_parity_kernel_is_the_product_of_signs() -> None:
    rows_of_four = [[0, 5, 1, 0.3], [1, 5, 0, 0.7], [1, 9, 1, 0.1], [0, 9, 0, 0.2]]  # the last column is not binary
    x = torch.tensor(rows_of_four).double()
    (family,) = Parity.subsets(x, None)
    use = family.use.unique(dim=0)
    assert use.tolist() == [[0, 1, 1, 0], [1, 0, 1, 0], [1, 1, 0, 0], [1, 1, 1, 0]]
    signs = torch.where(x[:, :3] == x[:, :3].amax(0), 1.0, -1.0).double()
    kernel, prior = family(x)
    for matrix, columns in zip(kernel, family.use[:, :3].bool(), strict=True):
        product = signs[:, columns].prod(1)
        torch.testing.assert_close(matrix, product.outer(product))
    assert (prior == 1).all()
    assert Parity.subsets(x[:, 2:], None) == []


def test_parity_is_found_from_two_thirds_of_its_table() -> None:
    bits = np.array([[row >> bit & 1 for bit in range(5)] for row in range(32)])
    y = bits.sum(1) % 2
    for seed in range(3):
        order = np.random.default_rng(seed).permutation(32)
        model = MetaVRFClassifier().fit(bits[order[:21]], y[order[:21]])
        assert model.score(bits[order[21:]], y[order[21:]]) == 1
        np.testing.assert_allclose(model.kernels_["relevance"], 1, atol=0.05)
    exclusive = np.where(bits[:, 1] == bits[:, 3], -2.0, 2.0)
    fitted = MetaVRFRegressor().fit(bits[::2][:14], exclusive[::2][:14])
    np.testing.assert_allclose(fitted.predict(bits), exclusive, atol=0.5)


# One sample per class


def test_the_evidence_of_contrasts_is_that_of_differences() -> None:
    x, y = task()
    kernels = one_kernel(x)
    targets = Targets.of(Episodes.of_support(torch.from_numpy(x), torch.from_numpy(y)))
    gram = kernels(torch.from_numpy(x))[0]
    shape = gram[0].numpy() + NOISE * np.eye(len(x))
    solved = solve(gram, kernels.noise, targets)
    differences = np.diff(np.eye(len(x)), axis=0)
    # det(DADᵀ) = det(DDᵀ)·det(A)·1ᵀA⁻¹1/S, and det(DDᵀ) = S
    ones = np.ones(len(x))
    determinant = np.linalg.det(shape) * (ones @ np.linalg.solve(shape, ones))
    assert np.linalg.det(differences @ shape @ differences.T) == pytest.approx(determinant)
    expected = solved.evidence.item() - 0.5 * math.log(ones @ np.linalg.solve(shape, ones))
    assert solved.of_contrasts().item() == pytest.approx(expected)


def test_sure_answers_from_one_sample_per_class_are_right() -> None:
    x, y = load_iris(return_X_y=True)
    sure, right, likelihood = [], [], []
    for seed in range(10):
        order = np.random.default_rng(seed).permutation(len(y))
        chosen = [order[y[order] == label][0] for label in range(3)]
        model = MetaVRFClassifier().fit(x[chosen], y[chosen])
        found = model.predict_proba(x)
        sure.append(found.max(1) >= model.leave_one_out().threshold)
        right.append(found.argmax(1) == y)
        likelihood.append(-np.log(found[np.arange(len(y)), y]).mean())
    assert np.mean(np.concatenate(right)[np.concatenate(sure)]) > 0.9
    assert np.mean(likelihood) < 0.9  # of three classes alike 1.1
