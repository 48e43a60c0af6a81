from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np
import pytest
import torch
from scipy.optimize import minimize
from scipy.special import log_softmax, softmax

from few_shot import FEATURES, SPEC, TASKS, WAY, tasks
from metavrf.episodes import Episodes
from metavrf.errors import UserError
from metavrf.learners.kshot import SHRINKAGE, KShot, KShotSettings, scaled
from metavrf.nn.mlp import Raw
from metavrf.spec import TaskSpec

each_prior = pytest.mark.parametrize("prior", ["isotropic", "diagonal", "full"])


def kshot(spec: TaskSpec = SPEC, **settings: Any) -> KShot:
    torch.manual_seed(0)
    learner = KShot(Raw(spec.inputs[0]), spec, KShotSettings(**{"spread": 1.5, **settings})).double().eval()
    with torch.no_grad():  # weights of unlike spread, away from the origin
        learner.classifier.weight.mul_(torch.linspace(1, 3, spec.inputs[0])).add_(1.5)
    return learner


def lengthened(x: Any) -> Any:
    return np.sqrt(x.shape[-1]) * x / np.linalg.norm(x, axis=-1, keepdims=True)


def doubled(training: bool = False) -> Episodes:
    return tasks(training=training).embedded(lambda z: z.double())


def gaussian(learner: KShot) -> tuple[Any, Any]:
    """Mean and covariance of the training classes' weights, the covariance wider by the factor 1.5²."""
    weight = learner.classifier.weight.detach().numpy()
    covariance = 1.5**2 * np.cov(weight.T, bias=True)
    isotropic = np.eye(FEATURES) * np.trace(covariance) / FEATURES
    kinds = {
        "isotropic": isotropic,
        "diagonal": np.diag(np.diag(covariance)),
        "full": (1 - SHRINKAGE) * covariance + SHRINKAGE * isotropic,
    }
    return weight.mean(0), kinds[learner.settings.prior]


@each_prior
def test_the_most_probable_weights_are_those_of_an_optimiser(prior: str) -> None:
    learner, episodes = kshot(prior=prior, steps=500), doubled()
    answer = learner.predict(episodes).mean
    mean, covariance = gaussian(learner)
    precision = np.linalg.inv(covariance)
    for task in range(TASKS):
        x, y = lengthened(episodes.support_x[task].numpy()), episodes.support_y[task].numpy()

        def loss(flat: Any, x: Any = x, y: Any = y) -> tuple[float, Any]:
            w = flat.reshape(WAY, FEATURES)
            logits = x @ w.T
            nll = -log_softmax(logits, -1)[np.arange(len(y)), y].sum()
            away = (w - mean) @ precision
            slope = (softmax(logits, -1) - np.eye(WAY)[y]).T @ x + away
            return nll + 0.5 * np.sum(away * (w - mean)), slope.ravel()

        found = minimize(loss, np.tile(mean, WAY), jac=True, method="BFGS", options={"gtol": 1e-9})
        logits = lengthened(episodes.query_x[task].numpy()) @ found.x.reshape(WAY, FEATURES).T
        np.testing.assert_allclose(answer[task].numpy(), log_softmax(logits, -1), atol=1e-5)


def test_each_step_lowers_the_loss() -> None:
    learner, episodes = kshot(), doubled()
    x, y = learner.whitened(scaled(episodes.support_x)).detach(), episodes.support_targets.double()
    losses = []
    for steps in range(1, 12):
        w = kshot(steps=steps).most_probable(x, y)
        losses.append(float(-(y * (x @ w).log_softmax(-1)).sum() + 0.5 * w.square().sum()))
    assert all(after < before for before, after in pairwise(losses))


def test_few_steps_come_close_to_many() -> None:
    few, many = kshot(), kshot(steps=2000)
    assert (few.predict(doubled()).mean.exp() - many.predict(doubled()).mean.exp()).abs().max() < 0.02


def two_classes() -> tuple[KShot, Episodes]:
    """Two classes and samples of one number and a zero: the posterior that counts is a density over a plane."""
    spec = TaskSpec((2,), None, way=2, train_classes=5)
    learner = kshot(spec, samples=4000)
    x, y = torch.tensor([[[0.8, 0.0], [-0.5, 0.0], [1.5, 0.0]]]).double(), torch.tensor([[0, 1, 1]])
    return learner, Episodes(x, y, torch.tensor([[[1.0, 0.0], [-2.0, 0.0]]]).double(), None, 2)


def test_samples_are_from_the_posterior() -> None:
    learner, episodes = two_classes()
    weight = learner.classifier.weight.detach().numpy()
    mean, std = weight.mean(0)[0], 1.5 * np.sqrt(weight.var(0).mean())
    grid = np.linspace(mean - 7 * std, mean + 7 * std, 400)
    w = np.stack(np.meshgrid(grid, grid, indexing="ij"), -1)  # [400, 400, 2]
    log_density = -0.5 * (((w - mean) / std) ** 2).sum(-1)
    for x, y in zip(
        np.sqrt(2) * np.sign(episodes.support_x[0, :, 0].numpy()), episodes.support_y[0].numpy(), strict=True
    ):
        log_density += log_softmax(w * x, -1)[..., y]
    density = np.exp(log_density - log_density.max())
    answer = learner.predict(episodes).mean.exp()[0]
    for query, x in enumerate(np.sqrt(2) * np.sign(episodes.query_x[0, :, 0].numpy())):
        expected = (density[..., None] * softmax(w * x, -1)).sum((0, 1)) / density.sum()
        np.testing.assert_allclose(answer[query].numpy(), expected, atol=0.025)  # 3 deviations of 4,000 samples


def test_sampled_answers_depend_on_no_other_task_or_query() -> None:
    learner, episodes = kshot(samples=3), doubled()
    whole = learner.predict(episodes).mean
    torch.testing.assert_close(learner.predict(episodes[1:2]).mean, whole[1:2])
    torch.testing.assert_close(learner.predict(episodes.asking(episodes.query_x[:, 2:4])).mean, whole[:, 2:4])
    assert (whole - kshot().predict(episodes).mean).abs().max() > 1e-2


def test_tasks_and_training_classes_are_learned_together(generator: torch.Generator) -> None:
    episodes, learner = doubled(training=True), kshot(task_weight=0.5).train()
    prediction = learner(episodes, generator)
    expected = 0.5 * prediction.terms["nll"] + learner.classifier.loss(episodes.embedded(scaled))
    assert prediction.loss.item() == pytest.approx(expected.item())


def test_without_training_classes_there_is_no_prior() -> None:
    with pytest.raises(UserError, match="needs to know the training classes"):
        KShot(Raw(FEATURES), TaskSpec((FEATURES,), None))
