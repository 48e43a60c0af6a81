"""Siamese networks against explicit loops over pairs."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from metavrf.episodes import Episodes
from metavrf.learners.siamese import Siamese, SiameseSettings
from metavrf.nn.mlp import Raw
from metavrf.spec import TaskSpec
from ready_tasks import classes

SIZE = 5


def siamese() -> Siamese:
    torch.manual_seed(2)
    learner = Siamese(Raw(SIZE), TaskSpec((SIZE,), None, way=3), SiameseSettings(width=7))
    with torch.no_grad():
        learner.score.weight.normal_()  # distances may count for or against
        learner.score.bias.fill_(0.3)
    return learner


@torch.no_grad()
def similarity(learner: Siamese, first: Tensor, second: Tensor) -> float:
    """p(same) of one pair, coordinate by coordinate."""
    one, other = (
        [
            1 / (1 + math.exp(-(sum(w * v for w, v in zip(row, z.tolist(), strict=True)) + offset)))
            for row, offset in zip(learner.hidden.weight.tolist(), learner.hidden.bias.tolist(), strict=True)
        ]
        for z in (first, second)
    )
    weights = learner.score.weight[0].tolist()
    score = sum(a * abs(h - g) for a, h, g in zip(weights, one, other, strict=True)) + learner.score.bias.item()
    return 1 / (1 + math.exp(-score))


def test_a_pair_is_as_similar_the_other_way_round() -> None:
    learner, episodes = siamese(), classes()
    one = learner.scores(episodes.query_x, episodes.support_x)
    torch.testing.assert_close(one, learner.scores(episodes.support_x, episodes.query_x).mT)
    assert one.std() > 0.1


def test_a_pair_is_compared_by_a_weighted_l1_distance() -> None:
    learner, episodes = siamese(), classes()
    found = learner.scores(episodes.query_x, episodes.support_x).sigmoid()
    for t in range(2):
        for q in range(4):
            for s in range(6):
                expected = similarity(learner, episodes.query_x[t, q], episodes.support_x[t, s])
                assert found[t, q, s].item() == pytest.approx(expected, rel=1e-5)


def unequal() -> Episodes:
    return replace(classes(), support_y=torch.tensor([[0, 1, 1, 2, 2, 2], [2, 0, 1, 0, 1, 1]]))


def test_the_loss_is_the_cross_entropy_of_pairs_of_one_class_and_of_two_alike() -> None:
    learner, episodes = siamese(), unequal()
    assert episodes.query_y is not None
    same, different = [], []
    for t in range(2):
        for q in range(4):
            for s in range(6):
                p = similarity(learner, episodes.query_x[t, q], episodes.support_x[t, s])
                if episodes.query_y[t, q] == episodes.support_y[t, s]:
                    same.append(-math.log(p))
                else:
                    different.append(-math.log(1 - p))
    expected = 0.5 * sum(same) / len(same) + 0.5 * sum(different) / len(different)
    prediction = learner(episodes)
    assert prediction.loss.item() == pytest.approx(expected, rel=1e-5)
    assert prediction.terms["verification"] is prediction.loss


def test_a_class_is_as_probable_as_its_samples_are_similar_on_average() -> None:
    learner, episodes = siamese(), unequal()
    found = learner.predict(episodes).mean.exp()
    for t in range(2):
        for q in range(4):
            of_class: list[list[float]] = [[], [], []]
            for s in range(6):
                p = similarity(learner, episodes.query_x[t, q], episodes.support_x[t, s])
                of_class[int(episodes.support_y[t, s])].append(p)
            means = torch.tensor([sum(values) / len(values) for values in of_class])
            torch.testing.assert_close(found[t, q], means / means.sum(), rtol=1e-4, atol=1e-6)


def test_a_new_learner_answers_by_plain_distance() -> None:
    episodes = classes()
    torch.manual_seed(2)
    learner = Siamese(Raw(SIZE), TaskSpec((SIZE,), None, way=3))
    one, other = (learner.hidden(z).sigmoid() for z in (episodes.query_x, episodes.support_x))
    nearest = torch.cdist(one, other, p=1).argmin(-1)
    assert torch.equal(learner.scores(episodes.query_x, episodes.support_x).argmax(-1), nearest)


def test_training_starts_where_pairs_are_undecided_on_average() -> None:
    episodes = classes()
    torch.manual_seed(2)
    learner = Siamese(Raw(SIZE), TaskSpec((SIZE,), None, way=3))
    before = learner.scores(episodes.query_x, episodes.support_x)
    learner.initialise(episodes)
    scores = learner.scores(episodes.query_x, episodes.support_x)
    assert scores.mean().item() == pytest.approx(0, abs=1e-4)
    assert scores.std().item() == pytest.approx(1, rel=1e-4)
    torch.testing.assert_close(scores, (before - before.mean()) / before.std(), rtol=1e-3, atol=1e-3)  # order is kept
    assert learner.score.bias.item() > 1  # so that samples that are alike are of one class


def test_samples_that_are_all_alike_leave_the_start_finite() -> None:
    episodes = classes()
    alike = replace(episodes, support_x=torch.ones_like(episodes.support_x), query_x=torch.ones_like(episodes.query_x))
    learner = Siamese(Raw(SIZE), TaskSpec((SIZE,), None, way=3))
    learner.initialise(alike)
    assert learner(alike).loss.isfinite()
