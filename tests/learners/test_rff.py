from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch

from awake import ridge_head
from metavrf.episodes import Episodes
from metavrf.learners.head import RIDGE_FLOOR
from metavrf.learners.kernel import KernelSettings
from metavrf.learners.rff import RFF
from metavrf.nn.mlp import MLP, Raw
from metavrf.spec import TaskSpec
from metavrf.tasks.functions import family


def learner(embedding: MLP | Raw, **settings: Any) -> RFF:
    return RFF(embedding, TaskSpec(), KernelSettings(**settings), generator=torch.Generator().manual_seed(4))


def test_there_is_no_inference_network() -> None:
    names = {name for name, _ in learner(MLP((1, 8, 8)), bases=16).named_parameters()}
    assert {name for name in names if not name.startswith(("embedding.", "head."))} == {"log_length"}


@pytest.mark.parametrize("feature_map", ["cosine", "sincos"])
def test_prediction_is_kernel_ridge_regression_in_closed_form(feature_map: str, generator: torch.Generator) -> None:
    model = learner(MLP((1, 8, 8)), bases=30, feature_map=feature_map, ridge=1e-2, gamma=1.4)
    with torch.no_grad():
        ridge_head(model).beta.fill_(-0.2)
        model.log_length.fill_(0.5)
    episodes = family("sine").sample(3, 5, 7, generator)
    predicted = model.predict(episodes).mean
    with torch.no_grad():
        support, query = (
            model.embedding(x).double().numpy() / math.exp(0.5) for x in (episodes.support_x, episodes.query_x)
        )
    assert model.epsilon is not None
    omega = model.epsilon[0].double().numpy()  # ω ~ N(0, I) itself

    def phi(z: np.ndarray[Any, np.dtype[np.float64]]) -> np.ndarray[Any, np.dtype[np.float64]]:
        if model.phase is None:
            return np.concatenate([np.cos(z @ omega), np.sin(z @ omega)], axis=-1) / math.sqrt(15)
        return np.cos(z @ omega + model.phase[0].double().numpy()) * math.sqrt(2 / 30)

    for task in range(3):
        s, q = phi(support[task]), phi(query[task])
        alpha = np.linalg.solve(s @ s.T + (1e-2 + RIDGE_FLOOR) * np.eye(5), episodes.support_y[task].double().numpy())
        np.testing.assert_allclose(predicted[task], 1.4 * q @ s.T @ alpha - 0.2, rtol=1e-4, atol=1e-5)


def test_with_many_bases_it_is_ridge_regression_with_the_rbf_kernel(generator: torch.Generator) -> None:
    model = learner(Raw(1), bases=40_000, ridge=0.1)
    episodes = family("sine").sample(4, 5, 30, generator)
    predicted = model.predict(episodes).mean
    for task in range(4):
        s, q, y = (v[task].double().numpy() for v in (episodes.support_x, episodes.query_x, episodes.support_y))
        gram, cross = np.exp(-((s - s.T) ** 2) / 2), np.exp(-((q - s.T) ** 2) / 2)
        expected = cross @ np.linalg.solve(gram + 0.1 * np.eye(5), y)
        np.testing.assert_allclose(predicted[task], expected, atol=0.15)  # 1/√D = 0.005 beside |y| <= 5


def test_loss_is_the_likelihood_alone(generator: torch.Generator) -> None:
    prediction = learner(MLP((1, 8, 8)), bases=16)(family("sine").sample(2, 5, 7, generator))
    assert prediction.terms.keys() == {"nll"}
    assert torch.equal(prediction.loss, prediction.terms["nll"])
    assert torch.isfinite(prediction.loss)


def test_classes_are_solved_by_the_same_learner() -> None:
    centres = 4 * torch.eye(3)
    episodes = Episodes(
        (centres + 0.1 * torch.randn(2, 3, 3)),
        torch.arange(3).expand(2, -1),
        (centres + 0.1 * torch.randn(2, 3, 3)),
        torch.arange(3).expand(2, -1),
        way=3,
    )
    settings = KernelSettings(bases=256, gamma=10.0)
    model = RFF(Raw(3), TaskSpec((3,), None), settings, generator=torch.Generator().manual_seed(0))
    prediction = model.predict(episodes)
    assert prediction.mean.shape == (2, 3, 3)
    assert torch.equal(prediction.mean.argmax(-1), torch.arange(3).expand(2, -1))
