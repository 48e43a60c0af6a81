from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from few_shot import FEATURES, QUERIES, SPEC, SUPPORT_Y, TASKS, TRAIN_CLASSES, WAY, tasks
from metavrf.episodes import Episodes
from metavrf.learners.dynamic import Dynamic, DynamicSettings
from metavrf.nn.mlp import Raw


def dynamic(**settings: Any) -> Dynamic:
    torch.manual_seed(0)
    learner = Dynamic(Raw(FEATURES), SPEC, DynamicSettings(**settings)).eval()
    with torch.no_grad():
        for parameter in (learner.average, learner.attended, learner.asking.weight, learner.asking.bias):
            parameter.add_(0.3 * torch.randn_like(parameter))
    return learner


def unit(x: Tensor) -> Tensor:
    return x / x.norm()


def weight(learner: Dynamic, episodes: Episodes, task: int, number: int) -> Tensor:
    """Of one novel class, by loops over its samples and the base classes."""
    hidden = [] if episodes.classes is None else episodes.classes[task].tolist()
    base = [b for b in range(TRAIN_CLASSES) if b not in hidden]
    average, attended = [], []
    for x in episodes.support_x[task][number == SUPPORT_Y]:
        z = unit(x)
        asked = unit(learner.asking.weight @ z + learner.asking.bias)
        scores = torch.stack([10.0 * asked @ unit(learner.keys[b]) for b in base])
        shares = scores.exp() / scores.exp().sum()
        average.append(z)
        attended.append(sum(s * unit(learner.classifier.weight[b]) for s, b in zip(shares, base, strict=True)))
    return learner.average * torch.stack(average).mean(0) + learner.attended * torch.stack(attended).mean(0)


@pytest.mark.parametrize("training", [False, True])
def test_weights_are_the_mean_of_the_support_and_attention_to_the_base_classes(training: bool) -> None:
    learner, episodes = dynamic(), tasks(training=training)
    found = learner.weights(episodes)
    for task in range(TASKS):
        for number in range(WAY):
            torch.testing.assert_close(found[task, number], weight(learner, episodes, task, number))


def test_a_task_is_answered_by_the_cosine_with_its_novel_classes() -> None:
    learner, episodes = dynamic(), tasks()
    answer = learner.predict(episodes).samples[0]
    for task in range(TASKS):
        weights = [weight(learner, episodes, task, number) for number in range(WAY)]
        for query in range(QUERIES):
            expected = torch.stack([10 * unit(episodes.query_x[task, query]) @ unit(w) for w in weights])
            torch.testing.assert_close(answer[task, query], expected.detach())


def test_base_and_novel_classes_are_scored_together() -> None:
    learner, episodes = dynamic(), tasks()
    scores = learner.scores(episodes)
    assert scores.shape == (TASKS, QUERIES, TRAIN_CLASSES + WAY)
    torch.testing.assert_close(scores[..., TRAIN_CLASSES:].detach(), learner.predict(episodes).samples[0])
    for b in range(TRAIN_CLASSES):
        expected = 10 * F.cosine_similarity(episodes.query_x, learner.classifier.weight[b], dim=-1)
        torch.testing.assert_close(scores[..., b], expected)


@pytest.mark.parametrize(("novel", "count"), [(0.5, 2), (0.2, 1), (1.0, 4)])
def test_fake_novel_classes_leave_the_base_and_are_told_from_it(
    novel: float, count: int, generator: torch.Generator
) -> None:
    learner, episodes = dynamic(novel=novel, task_weight=0.0).train(), tasks(training=True)
    prediction = learner(episodes, generator)
    assert episodes.classes is not None and episodes.query_y is not None
    errors = []
    for task in range(TASKS):
        weights = list(learner.classifier.weight)
        for own in range(count):
            weights[episodes.classes[task, own]] = weight(learner, episodes, task, own)
        samples = [
            (x, y) for x, y in zip(episodes.support_x[task], episodes.support_y[task], strict=True) if y >= count
        ] + list(zip(episodes.query_x[task], episodes.query_y[task], strict=True))
        for x, y in samples:
            logits = torch.stack([10 * unit(x) @ unit(w) for w in weights])
            errors.append(-logits.log_softmax(0)[episodes.classes[task, y]])
    torch.testing.assert_close(prediction.terms["among_all"], torch.stack(errors).mean())
    torch.testing.assert_close(prediction.loss, prediction.terms["among_all"] + learner.classifier.loss(episodes))


def test_training_tells_base_and_novel_classes_apart_together() -> None:
    """New samples of base classes are found among all, beside a task's novel classes."""
    learner = Dynamic(Raw(FEATURES), SPEC).train()
    optimizer = torch.optim.Adam(learner.parameters(), lr=0.02)
    for step in range(150):
        loss = learner(tasks(training=True, draw=step)).loss
        assert loss is not None
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    episodes = tasks(training=True, draw=1000)
    assert episodes.classes is not None and episodes.query_y is not None
    base = episodes.classes.gather(1, episodes.query_y)
    novel = TRAIN_CLASSES + episodes.query_y
    answer = learner.eval().scores(episodes).argmax(-1)
    assert ((answer == base) | (answer == novel)).float().mean() > 0.6  # chance is 0.15
