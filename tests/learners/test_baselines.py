"""The mathematics of each baseline against an independent computation."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from sklearn.kernel_ridge import KernelRidge
from sklearn.linear_model import Ridge
from sklearn.metrics.pairwise import pairwise_distances
from sklearn.neighbors import NearestCentroid
from torch import Tensor

from metavrf.episodes import Episodes
from metavrf.learners.head import RIDGE_FLOOR
from metavrf.learners.matching import Matching, MatchingSettings
from metavrf.learners.prototypical import Prototypical
from metavrf.learners.r2d2 import R2D2, R2D2Settings
from metavrf.learners.rbf import RBF, RBFSettings
from metavrf.learners.relation import Relation
from metavrf.learners.versa import Versa, VersaSettings
from metavrf.nn.mlp import Raw
from metavrf.spec import TaskSpec

TASKS, WAY, FEATURES, QUERIES = 3, 4, 6, 10
CLASSES, CURVES = TaskSpec((FEATURES,), None, way=WAY), TaskSpec((FEATURES,), 2)
SUPPORT_Y = torch.tensor([0, 1, 1, 2, 2, 2, 3, 3, 0, 1])  # unequal shots: 2, 3, 3, 2
CLASS_WEIGHT = 2.5 / np.array([2, 3, 3, 2])[SUPPORT_Y]  # ridge regression weighs every class alike


def tasks(way: int | None = WAY) -> Episodes:
    """Tasks on ready features; classes overlap, so that probabilities are moderate."""
    generator = torch.Generator().manual_seed(3)
    centres = torch.randn(TASKS, WAY, FEATURES, generator=generator)
    query_y = torch.arange(WAY).repeat(QUERIES)[:QUERIES].expand(TASKS, -1)
    support_x, query_x = (
        torch.stack([c[y] for c, y in zip(centres, labels, strict=True)])
        + 0.6 * torch.randn(TASKS, labels.shape[1], FEATURES, generator=generator)
        for labels in (SUPPORT_Y.expand(TASKS, -1), query_y)
    )
    if way is not None:
        return Episodes(support_x, SUPPORT_Y.expand(TASKS, -1), query_x, query_y, way)
    support_y, query_z = (x[..., :2].sin() + x[..., 2:4] for x in (support_x, query_x))
    return Episodes(support_x, support_y, query_x, query_z)


def numpy(value: Tensor) -> Any:
    return value.detach().double().numpy()


def softmax(logits: Any) -> Any:
    return np.exp(logits) / np.exp(logits).sum(-1, keepdims=True)


# Prototypical


def test_a_prototypical_answer_is_the_nearest_class_mean() -> None:
    episodes, learner = tasks(), Prototypical(Raw(FEATURES))
    answer = learner.predict(episodes).mean
    for task in range(TASKS):
        reference = NearestCentroid().fit(numpy(episodes.support_x[task]), SUPPORT_Y.numpy())
        assert (answer[task].argmax(-1).numpy() == reference.predict(numpy(episodes.query_x[task]))).all()
        distance = pairwise_distances(numpy(episodes.query_x[task]), reference.centroids_) ** 2
        np.testing.assert_allclose(numpy(answer[task].exp()), softmax(-distance), rtol=1e-4, atol=1e-6)


# Matching


@pytest.mark.parametrize("gamma", [1.0, 7.0])
def test_matching_is_attention_by_cosine(gamma: float) -> None:
    episodes, learner = tasks(), Matching(Raw(FEATURES), CLASSES, MatchingSettings(gamma))
    answer = numpy(learner.predict(episodes).mean.exp())
    for task in range(TASKS):
        support, query = numpy(episodes.support_x[task]), numpy(episodes.query_x[task])
        for q in range(QUERIES):
            similar = [query[q] @ s / np.linalg.norm(query[q]) / np.linalg.norm(s) for s in support]
            attention = softmax(gamma * np.array(similar))
            expected = [sum(a for a, y in zip(attention, SUPPORT_Y, strict=True) if y == k) for k in range(WAY)]
            np.testing.assert_allclose(answer[task, q], expected, rtol=1e-4)


def test_matching_learns_by_the_likelihood_of_the_attention() -> None:
    episodes, learner = tasks(), Matching(Raw(FEATURES), CLASSES, MatchingSettings(5.0))
    prediction = learner(episodes)
    assert episodes.query_y is not None
    expected = -learner.predict(episodes).mean.gather(-1, episodes.query_y.unsqueeze(-1)).mean()
    torch.testing.assert_close(prediction.loss, expected)
    prediction.loss.backward()
    assert learner.log_gamma.grad is not None
    assert learner.log_gamma.grad.abs() > 0


# R2-D2


@pytest.mark.parametrize("features", [FEATURES, 3])  # more support samples than features, either way: primal
def test_r2d2_is_ridge_regression_on_one_hot_labels(features: int) -> None:
    episodes = tasks().embedded(lambda x: x[..., :features])
    learner = R2D2(Raw(features), CLASSES, R2D2Settings(ridge=0.7, gamma=3.0))
    with torch.no_grad():
        learner.head.beta.fill_(0.4)
    logits = learner.predict(episodes).samples[0]
    for task in range(TASKS):
        ridge = Ridge(alpha=0.7 + RIDGE_FLOOR, fit_intercept=False)
        ridge.fit(numpy(episodes.support_x[task]), np.eye(WAY)[SUPPORT_Y], CLASS_WEIGHT)
        expected = 3.0 * ridge.predict(numpy(episodes.query_x[task])) + 0.4
        np.testing.assert_allclose(numpy(logits[task]), expected, rtol=1e-4, atol=1e-5)


# RBF kernel


@pytest.mark.parametrize("way", [None, WAY])
def test_the_rbf_kernel_is_as_wide_as_the_supports_mean_distance(way: int | None) -> None:
    episodes = tasks(way)
    learner = RBF(Raw(FEATURES), CURVES if way is None else CLASSES, RBFSettings(ridge=0.3, gamma=1.5))
    outputs = learner.predict(episodes).samples[0]
    for task in range(TASKS):
        support, query = numpy(episodes.support_x[task]), numpy(episodes.query_x[task])
        width = pairwise_distances(support)[np.triu_indices(len(support), 1)].mean()
        ridge = KernelRidge(alpha=0.3 + RIDGE_FLOOR, kernel="rbf", gamma=1 / (2 * width**2))
        ridge.fit(support, numpy(episodes.support_targets[task]), None if way is None else CLASS_WEIGHT)
        np.testing.assert_allclose(numpy(outputs[task]), 1.5 * ridge.predict(query), rtol=1e-4, atol=1e-5)


def test_the_rbf_kernel_of_a_single_sample_is_finite() -> None:
    whole = tasks(None)
    one = Episodes(whole.support_x[:, :1], whole.support_y[:, :1], whole.query_x, whole.query_y)
    learner = RBF(Raw(FEATURES), CURVES, RBFSettings(ridge=0.1))
    assert torch.isfinite(learner.predict(one).mean).all()


def test_the_variance_of_the_rbf_kernel_is_that_of_the_gaussian_process() -> None:
    from sklearn.gaussian_process import GaussianProcessRegressor
    from sklearn.gaussian_process.kernels import RBF as KERNEL

    episodes = tasks(None)
    learner = RBF(Raw(FEATURES), CURVES, RBFSettings(ridge=0.3))
    likelihood: Any = learner.head.likelihood
    with torch.no_grad():  # a known scale of 1, and no further noise
        likelihood.log_weight.fill_(30.0)
        likelihood.log_scale.fill_(0.0)
        likelihood.log_noise.fill_(-20.0)
    std = learner.predict(episodes).std
    assert std is not None
    for task in range(TASKS):
        support = numpy(episodes.support_x[task])
        width = pairwise_distances(support)[np.triu_indices(len(support), 1)].mean()
        process = GaussianProcessRegressor(KERNEL(width), alpha=0.3 + RIDGE_FLOOR, optimizer=None)
        process.fit(support, numpy(episodes.support_y[task]))
        _, expected = process.predict(numpy(episodes.query_x[task]), return_std=True)
        np.testing.assert_allclose(numpy(std[task]), expected, rtol=1e-3)


# VERSA


def versa(samples: int = 5) -> Versa:
    torch.manual_seed(2)
    return Versa(Raw(FEATURES), CLASSES, VersaSettings(samples), generator=torch.Generator().manual_seed(1))


def test_versa_samples_a_weight_vector_and_an_offset_for_each_class() -> None:
    learner, episodes = versa(), tasks()
    assert learner.weights(episodes).shape == (5, TASKS, WAY, FEATURES + 1)
    fresh = learner.train().weights(episodes, torch.Generator().manual_seed(5))
    again = learner.weights(episodes, torch.Generator().manual_seed(5))
    other = learner.weights(episodes, torch.Generator().manual_seed(6))
    assert torch.equal(fresh, again)
    assert not torch.equal(fresh, other)
    tested = learner.eval().weights(episodes)
    torch.testing.assert_close(tested[:, 1:], learner.weights(episodes[1:]))  # a task's samples are its own


def test_versas_classes_have_samples_independent_of_each_other() -> None:
    learner, episodes = versa(4000), tasks()
    with torch.no_grad():
        residual = learner.weights(episodes)[:, 0] - learner.inference(episodes.prototypes(episodes.support_x))[0][0]
    correlation = torch.corrcoef(residual[..., 0].T)
    assert (correlation - torch.eye(WAY)).abs().max() < 0.1  # 5 deviations


def test_versas_weights_are_gaussian_with_the_moments_its_network_infers() -> None:
    learner, episodes = versa(20_000).train(), tasks()
    with torch.no_grad():
        weights = learner.weights(episodes, torch.Generator().manual_seed(5))
        means = torch.stack([episodes.support_x[:, k == SUPPORT_Y].mean(1) for k in range(WAY)], dim=1)
        mean, log_variance = learner.inference(means)
    std = torch.exp(0.5 * log_variance)
    error = 5 * std.max().item() / math.sqrt(20_000)
    torch.testing.assert_close(weights.mean(0), mean, rtol=0, atol=error)
    torch.testing.assert_close(weights.std(0), std, rtol=0.05, atol=0)


def test_versas_gradient_flows_through_its_samples() -> None:
    """dw/dμ = 1 and dw/d log σ² = σε/2: the loss depends on both networks through the samples alone."""
    learner, episodes = versa().train(), tasks()
    learner(episodes, torch.Generator().manual_seed(5)).loss.backward()
    for parameter in learner.inference.parameters():  # [2, ...]: one network for the mean, one for the variance
        assert parameter.grad is not None
        assert (parameter.grad.flatten(1).norm(dim=1) > 0).all()


def test_versas_loss_is_the_likelihood_of_averaged_probabilities() -> None:
    learner, episodes = versa(), tasks()
    prediction = learner(episodes)
    weights = numpy(learner.weights(episodes))
    query = np.concatenate([numpy(episodes.query_x), np.ones((TASKS, QUERIES, 1))], axis=-1)
    probabilities = softmax(np.einsum("tqf,ltcf->ltqc", query, weights)).mean(0)
    assert episodes.query_y is not None
    chosen = np.take_along_axis(probabilities, episodes.query_y.numpy()[..., None], -1)
    assert prediction.loss.item() == pytest.approx(-np.log(chosen).mean(), rel=1e-4)
    np.testing.assert_allclose(numpy(prediction.mean.exp()), probabilities, rtol=1e-3, atol=1e-5)


# Relation


class Maps(Raw):
    """Feature maps that are ready, flat."""

    shape = (5, 4, 6)


def relation_maps() -> tuple[Relation, Episodes]:
    torch.manual_seed(4)
    shape = Maps.shape
    learner = Relation(Maps(math.prod(shape)))
    generator = torch.Generator().manual_seed(8)
    support, query = (torch.randn(TASKS, n, math.prod(shape), generator=generator) for n in (len(SUPPORT_Y), QUERIES))
    query_y = torch.arange(WAY).repeat(QUERIES)[:QUERIES].expand(TASKS, -1)
    episodes = Episodes(support, SUPPORT_Y.expand(TASKS, -1), query, query_y, WAY)
    with torch.no_grad():
        for _ in range(5):
            learner.train()(episodes)  # running statistics
    return learner.eval(), episodes


def test_relation_scores_are_those_of_a_network_on_each_pair_side_by_side() -> None:
    learner, episodes = relation_maps()
    logits = learner.predict(episodes).samples[0]
    joint = torch.cat([learner.of_class.weight, learner.of_query.weight], dim=1)  # one convolution on both
    for task in range(TASKS):
        for query in range(QUERIES):
            for k in range(WAY):
                support = episodes.support_x[task, k == SUPPORT_Y].sum(0).view(5, 4, 6)
                pair = torch.cat([support, episodes.query_x[task, query].view(5, 4, 6)]).unsqueeze(0)
                x = F.max_pool2d(F.relu(learner.norms[0](F.conv2d(pair, joint, padding=1))), 2)
                x = F.max_pool2d(F.relu(learner.norms[1](learner.second(x))), (2, 2))
                score = learner.score(F.relu(learner.hidden(x.flatten(1))))
                torch.testing.assert_close(logits[task, query, k], score.squeeze(), rtol=1e-4, atol=1e-5)


def test_relation_learns_by_the_squared_error_of_its_scores() -> None:
    learner, episodes = relation_maps()
    prediction = learner(episodes)
    assert episodes.query_y is not None
    score = 1 / (1 + np.exp(-numpy(prediction.samples[0])))
    expected = ((score - np.eye(WAY)[episodes.query_y.numpy()]) ** 2).mean()
    assert prediction.loss.item() == pytest.approx(expected, rel=1e-5)
