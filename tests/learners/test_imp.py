"""Infinite mixture prototypes against clustering one sample after the other."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from metavrf.episodes import Episodes
from metavrf.learners.imp import IMP, IMPSettings, opened
from metavrf.learners.prototypical import Prototypical
from metavrf.nn.mlp import Raw
from metavrf.spec import TaskSpec
from ready_tasks import classes

SIZE, SHOT = 3, 6


def tasks() -> Episodes:
    """Classes of three and more samples, some of which lie apart."""
    episodes = classes(tasks=4, shot=SHOT, size=SIZE, seed=5)
    generator = torch.Generator().manual_seed(1)
    episodes.support_x += 3 * torch.randn(4, 3 * SHOT, 1, generator=generator)
    episodes.support_y = torch.tensor([0] * 3 + [1] * 6 + [2] * 9)[
        torch.randperm(3 * SHOT, generator=generator)
    ].repeat(4, 1)
    return episodes


def imp(**settings: float) -> IMP:
    return IMP(Raw(SIZE), TaskSpec((SIZE,), None, way=3), IMPSettings(**settings))


def slow(learner: IMP, z: Tensor, y: Tensor) -> tuple[list[Tensor], list[int]]:
    """Centres and classes of one task's clusters, by the book."""
    sigma = learner.settings.variance
    means = torch.stack([z[y == k].mean(0) for k in range(3)])
    rho = sum(((means[:, j] - means[:, j].mean()) ** 2).sum() / 2 for j in range(SIZE)) / SIZE
    limit = -2 * sigma * math.log(learner.settings.concentration / (1 + rho / sigma) ** (SIZE / 2))
    centres, labels = list(means), [0, 1, 2]
    for sample, label in zip(z, y.tolist(), strict=True):
        distances = [(sample - c).square().sum() for c, own in zip(centres, labels, strict=True) if own == label]
        if min(distances) > limit:
            centres.append(sample)
            labels.append(label)
    shares = torch.zeros(len(z), len(centres))
    for i, (sample, label) in enumerate(zip(z, y.tolist(), strict=True)):
        for c, (centre, own) in enumerate(zip(centres, labels, strict=True)):
            if own == label:
                shares[i, c] = math.exp(-(sample - centre).square().sum() / (2 * sigma))
        shares[i] /= shares[i].sum()
    moved = [(shares[:, c : c + 1] * z).sum(0) / shares[:, c].sum() for c in range(len(centres))]
    return moved, labels


@pytest.mark.parametrize(("variance", "concentration"), [(0.5, 0.1), (0.5, 1.0), (2.0, 0.01), (0.3, 0.5)])
def test_clusters_are_those_of_one_sample_after_the_other(variance: float, concentration: float) -> None:
    episodes, learner = tasks(), imp(variance=variance, concentration=concentration)
    centres, labels, there = learner.clusters(episodes)
    answer = learner.predict(episodes).mean
    for t in range(4):
        expected, owners = slow(learner, episodes.support_x[t], episodes.support_y[t])
        assert labels[t, there[t]].tolist() == owners
        torch.testing.assert_close(centres[t, there[t]], torch.stack(expected), rtol=1e-4, atol=1e-4)
        logits = torch.stack(
            [
                torch.stack(
                    [
                        max(
                            -(query - centre).square().sum() / (2 * variance)
                            for centre, own in zip(expected, owners, strict=True)
                            if own == k
                        )
                        for k in range(3)
                    ]
                )
                for query in episodes.query_x[t]
            ]
        )
        torch.testing.assert_close(answer[t], logits.log_softmax(-1), rtol=1e-4, atol=1e-3)


def test_there_are_tasks_with_clusters_to_open_and_without() -> None:
    counts = {
        (variance, alpha): imp(variance=variance, concentration=alpha).clusters(tasks())[2].sum().item()
        for variance, alpha in ((0.5, 0.1), (0.5, 1.0), (2.0, 0.01))
    }
    assert counts[0.5, 1.0] > counts[0.5, 0.1] > 4 * 3
    assert counts[2.0, 0.01] < counts[0.5, 0.1]


def test_the_rule_in_turn_is_found_all_at_once() -> None:
    generator = torch.Generator().manual_seed(4)
    alone = torch.rand(50, 12, generator=generator) < 0.8
    near = torch.rand(50, 12, 12, generator=generator) < 0.3
    near |= near.mT.clone()
    found = opened(alone, near)
    for t in range(50):
        chosen: list[int] = []
        for i in range(12):
            if alone[t, i] and not any(near[t, i, j] for j in chosen):
                chosen.append(i)
        assert found[t].nonzero()[:, 0].tolist() == chosen


def test_with_an_infinite_threshold_these_are_prototypical_networks(monkeypatch: pytest.MonkeyPatch) -> None:
    episodes, learner = tasks(), imp(variance=0.5)
    own = learner.predict(episodes).mean
    monkeypatch.setattr(learner, "threshold", lambda prototypes: torch.full(prototypes.shape[:1], math.inf))
    expected = Prototypical(Raw(SIZE)).predict(episodes).mean
    torch.testing.assert_close(learner.predict(episodes).mean, expected, rtol=1e-4, atol=1e-4)
    assert (own - expected).abs().max() > 0.1


def test_of_one_shot_these_are_prototypical_networks() -> None:
    episodes = classes(shot=1, size=SIZE)
    expected = Prototypical(Raw(SIZE)).predict(episodes).mean
    torch.testing.assert_close(imp(variance=0.5).predict(episodes).mean, expected, rtol=1e-4, atol=1e-4)


def test_the_variance_of_clusters_is_learned() -> None:
    learner, episodes = imp(), tasks()
    episodes.support_x.requires_grad_()
    learner(episodes).loss.backward()
    assert learner.log_variance.grad is not None and learner.log_variance.grad.abs() > 1e-3
    assert episodes.support_x.grad is not None and torch.isfinite(episodes.support_x.grad).all()
    assert (episodes.support_x.grad.abs().sum(-1) > 0).float().mean() > 0.5
