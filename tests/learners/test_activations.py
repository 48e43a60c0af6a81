from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F

from few_shot import FEATURES, QUERIES, SPEC, SUPPORT_Y, TASKS, TRAIN_CLASSES, WAY, tasks
from metavrf.learners.activations import Activations, ActivationsSettings
from metavrf.nn.mlp import Raw

each_predictor = pytest.mark.parametrize("predictor", ["linear", "mlp"])


def activations(**settings: Any) -> Activations:
    torch.manual_seed(0)
    learner = Activations(Raw(FEATURES), SPEC, ActivationsSettings(**{"single": 0.0, **settings})).eval()
    with torch.no_grad():
        for parameter in learner.predictor.parameters():
            parameter.add_(0.3 * torch.randn_like(parameter))
    return learner


def weight(learner: Activations, task: int, number: int, training: bool = False) -> torch.Tensor:
    """Of one class, from the mean of its unit-length support."""
    support = tasks(training=training).support_x[task][number == SUPPORT_Y]
    mean = torch.stack([x / x.norm() for x in support]).mean(0)
    predictor: Any = learner.predictor
    if learner.settings.predictor == "linear":
        return predictor.weight @ mean + predictor.bias
    first, _, second = predictor
    return second.weight @ (first.weight @ mean + first.bias).clamp_min(0) + second.bias


@each_predictor
def test_weights_are_predicted_from_mean_activations(predictor: str) -> None:
    learner, episodes = activations(predictor=predictor), tasks()
    answer = learner.predict(episodes).samples[0]
    for task in range(TASKS):
        for number in range(WAY):
            w = weight(learner, task, number)
            for query in range(QUERIES):
                expected = 10.0 * F.cosine_similarity(episodes.query_x[task, query], w, dim=0)
                assert answer[task, query, number].item() == pytest.approx(expected.item(), abs=1e-4)


def test_it_starts_as_the_nearest_class_mean_in_angle() -> None:
    episodes = tasks().embedded(F.relu)  # as the activations of a network are
    learner = Activations(Raw(FEATURES), SPEC, ActivationsSettings())
    means = episodes.prototypes(F.normalize(episodes.support_x, dim=-1))
    expected = 10 * F.cosine_similarity(episodes.query_x.unsqueeze(2), means.unsqueeze(1), dim=-1)
    torch.testing.assert_close(learner.predict(episodes).samples[0], expected)


def test_predicted_weights_take_the_place_of_trained_ones(generator: torch.Generator) -> None:
    learner, episodes = activations(task_weight=0.7), tasks(training=True)
    learner.classify(0.3)
    prediction = learner.train()(episodes, generator)
    assert episodes.classes is not None and episodes.query_y is not None
    errors, trained = [], []
    for task in range(TASKS):
        weights = {number: learner.classifier.weight[number] for number in range(TRAIN_CLASSES)}
        for own, number in enumerate(episodes.classes[task].tolist()):
            weights[number] = weight(learner, task, own, training=True)
        for x, y in zip(episodes.query_x[task], episodes.query_y[task], strict=True):
            logits = torch.stack([10 * F.cosine_similarity(x, weights[k], dim=0) for k in range(TRAIN_CLASSES)])
            errors.append(-logits.log_softmax(0)[episodes.classes[task, y]])
        for inputs, labels in ((episodes.support_x, episodes.support_y), (episodes.query_x, episodes.query_y)):
            for x, y in zip(inputs[task], labels[task], strict=True):
                trained.append(-learner.classifier(x).log_softmax(0)[episodes.classes[task, y]])
    among_all, classifier = torch.stack(errors).mean(), torch.stack(trained).mean()
    torch.testing.assert_close(prediction.terms["among_all"], among_all)
    torch.testing.assert_close(prediction.terms["training_classes"], classifier)
    torch.testing.assert_close(prediction.loss, 0.7 * prediction.terms["nll"] + among_all + 0.3 * classifier)


def test_a_class_is_represented_by_one_of_its_samples_now_and_then() -> None:
    learner, episodes = activations(single=0.5, predictor="linear"), tasks(training=True)
    predictor: Any = learner.predictor
    torch.nn.init.eye_(predictor.weight)
    torch.nn.init.zeros_(predictor.bias)
    unit = F.normalize(episodes.support_x, dim=-1)
    means = episodes.prototypes(unit)
    generator, alone, chosen = torch.Generator().manual_seed(0), 0, set()
    for _ in range(200):
        found = learner.train().weights(episodes, generator)[0, 1]
        if torch.allclose(found, means[0, 1]):
            continue
        alone += 1
        (row,) = (unit[0] - found).norm(dim=-1).lt(1e-6).nonzero().flatten().tolist()
        chosen.add(row)
    assert 75 < alone < 125
    assert chosen == {1, 2, 9}  # the support of that class
