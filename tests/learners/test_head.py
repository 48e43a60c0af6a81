from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.distributions import Normal

from metavrf.episodes import Episodes
from metavrf.learners.head import RIDGE_FLOOR, GaussianLikelihood, RidgeHead


def head(regression: bool = True, lam: float = 0.05) -> RidgeHead:
    """A head whose learned numbers are none of them trivial."""
    made = RidgeHead(regression=regression, lam=lam, gamma=1.5)
    with torch.no_grad():
        made.beta.fill_(0.3)
        if isinstance(made.likelihood, GaussianLikelihood):
            made.likelihood.log_noise.fill_(math.log(0.2))
            made.likelihood.log_scale.fill_(math.log(1.3))
            made.likelihood.log_weight.fill_(math.log(2.5))
    return made.eval()


def features(draws: int, samples: int) -> Tensor:
    return torch.randn(draws, 3, samples, 10) / math.sqrt(10)


def both(support: Tensor, query: Tensor) -> Tensor:
    return torch.cat([support, query], dim=2)


def regression_tasks() -> Episodes:
    """Inputs do not matter to the head."""
    return Episodes(torch.zeros(3, 4, 1), torch.randn(3, 4, 2), torch.zeros(3, 6, 1), torch.randn(3, 6, 2))


def class_tasks() -> Episodes:
    labels = torch.tensor([0, 1, 2, 0]).expand(3, -1)
    return Episodes(torch.zeros(3, 4, 1), labels, torch.zeros(3, 6, 1), torch.randint(3, (3, 6)), way=3)


def test_mean_is_scaled_and_shifted_ridge_regression() -> None:
    support, query, episodes = features(1, 4), features(1, 6), regression_tasks()
    mean = head()(both(support, query), episodes).mean.detach()
    for task in range(3):
        s, q = support[0, task].double().numpy(), query[0, task].double().numpy()
        alpha = np.linalg.solve(s @ s.T + (0.05 + RIDGE_FLOOR) * np.eye(4), episodes.support_y[task].double().numpy())
        np.testing.assert_allclose(mean[task], 1.5 * q @ s.T @ alpha + 0.3, rtol=1e-5, atol=1e-6)


def test_variance_is_the_gaussian_process_scaled_by_the_data_plus_noise() -> None:
    support, query, episodes = features(1, 4), features(1, 6), regression_tasks()
    std = head()(both(support, query), episodes).std.detach()
    for task in range(3):
        s, q = support[0, task].double().numpy(), query[0, task].double().numpy()
        y = episodes.support_y[task].double().numpy()
        inverse = np.linalg.inv(s @ s.T + (0.05 + RIDGE_FLOOR) * np.eye(4))
        process = np.diag(q @ q.T - q @ s.T @ inverse @ s @ q.T)
        scale = (2.5 * 1.3**2 + np.diag(y.T @ inverse @ y)) / (2.5 + 4)
        np.testing.assert_allclose(std[task], np.sqrt(process[:, None] * scale + 0.2**2), rtol=1e-5)


def test_regression_nll_is_that_of_torch_distributions() -> None:
    support, query, episodes = features(1, 4), features(1, 6), regression_tasks()
    made = head()
    prediction = made(both(support, query), episodes)
    assert episodes.query_y is not None
    expected = -Normal(prediction.mean, prediction.std).log_prob(episodes.query_y).mean()
    torch.testing.assert_close(prediction.terms["nll"], expected)
    assert torch.equal(prediction.loss, prediction.terms["nll"])
    trained = made.train()(both(support, query), episodes)  # which asks for the loss alone
    torch.testing.assert_close(trained.loss, expected)
    assert trained.loss.dtype == torch.float
    torch.testing.assert_close(trained.mean, prediction.mean)


def test_a_certain_model_is_counted_as_one_of_variance_one_in_a_million() -> None:
    support, query, episodes = features(1, 4), features(1, 6), regression_tasks()
    made = head()
    assert isinstance(made.likelihood, GaussianLikelihood)
    with torch.no_grad():
        made.likelihood.log_noise.fill_(-30)
        made.likelihood.log_scale.fill_(-30)
    episodes = Episodes(torch.zeros(3, 4, 1), torch.zeros(3, 4, 2), episodes.query_x, episodes.query_y)
    prediction = made(both(support, query), episodes)
    expected = -Normal(prediction.mean, 1e-3).log_prob(episodes.query_y).mean()
    torch.testing.assert_close(prediction.loss, expected)


def test_small_curves_get_narrow_bands() -> None:
    support, query, episodes = features(1, 4), features(1, 6), regression_tasks()
    small = Episodes(episodes.support_x, 0.01 * episodes.support_y, episodes.query_x)
    assert (head()(both(support, query), small).std < head()(both(support, query), episodes).std).all()


def test_regression_samples_are_averaged_and_their_spread_is_in_the_deviation() -> None:
    support, query, episodes = features(5, 4), features(5, 6), regression_tasks()
    made = head()
    together = made(both(support, query), episodes)
    singles = [made(both(s, q), episodes) for s, q in zip(support.split(1), query.split(1), strict=True)]
    means, variances = torch.stack([p.mean for p in singles]), torch.stack([p.std.square() for p in singles])
    torch.testing.assert_close(together.samples, means)
    torch.testing.assert_close(together.mean, means.mean(0))
    torch.testing.assert_close(together.std.square(), variances.mean(0) + means.var(0, correction=0))
    assert (together.std.square() > variances.mean(0)).all()
    torch.testing.assert_close(together.loss, torch.stack([p.loss for p in singles]).mean())
    trained = made.train()(both(support, query), episodes)
    torch.testing.assert_close(trained.loss, together.loss)
    torch.testing.assert_close(trained.mean, together.mean)


def test_class_samples_are_averaged_as_probabilities() -> None:
    support, query, episodes = features(5, 4), features(5, 6), class_tasks()
    prediction = head(regression=False, lam=1e-3)(both(support, query), episodes)
    probabilities = prediction.samples.softmax(-1).mean(0)
    torch.testing.assert_close(prediction.mean.softmax(-1), probabilities)
    assert (prediction.samples.mean(0).softmax(-1) - probabilities).abs().max() > 0.01  # not as logits


def test_class_nll_is_the_cross_entropy_of_the_samples() -> None:
    support, query, episodes = features(2, 4), features(2, 6), class_tasks()
    prediction = head(regression=False)(both(support, query), episodes)
    assert episodes.query_y is not None
    picked = prediction.samples.log_softmax(-1).gather(-1, episodes.query_y.expand(2, -1, -1).unsqueeze(-1))
    torch.testing.assert_close(prediction.loss, -picked.mean())
    assert prediction.std is None


@pytest.mark.parametrize("regression", [True, False])
def test_without_answers_there_is_a_prediction_and_no_loss(regression: bool) -> None:
    episodes = regression_tasks() if regression else class_tasks()
    support, query, made = features(1, 4), features(1, 6), head(regression)
    answered = made(both(support, query), episodes)
    episodes.query_y = None
    unanswered = made(both(support, query), episodes)
    assert unanswered.loss is None
    assert unanswered.terms == {}
    assert torch.equal(answered.mean, unanswered.mean)


def test_penalty_is_positive_however_far_it_is_driven_down() -> None:
    made = head()
    with torch.no_grad():
        made.log_lambda.fill_(-200.0)
    assert made.lam.item() == pytest.approx(RIDGE_FLOOR)
    support, episodes = features(1, 4), regression_tasks()
    itself = Episodes(episodes.support_x, episodes.support_y, episodes.support_x)
    fit = (made(both(support, support), itself).mean - 0.3) / 1.5
    torch.testing.assert_close(fit, episodes.support_y, rtol=0, atol=1e-4)  # solved in double, so it interpolates
