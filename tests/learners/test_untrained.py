from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor

from metavrf.episodes import Episodes
from metavrf.learners.measuring import leave_one_out
from metavrf.learners.untrained import Untrained
from metavrf.randomness import stream


def untrained(features: int, *, regression: bool = False, **options: Any) -> Untrained:
    return Untrained(features, regression=regression, generator=stream(0, "bases"), **options)


def blobs(shots: int, spread: float, *, seed: int = 0, classes: int = 3, features: int = 8) -> tuple[Tensor, Tensor]:
    random = np.random.default_rng(seed)
    centres = np.random.default_rng(0).normal(size=(classes, features))
    y = np.repeat(np.arange(classes), shots)
    return torch.from_numpy(centres[y] + spread * random.normal(size=(len(y), features))), torch.from_numpy(y)


def wave(x: NDArray[Any]) -> NDArray[Any]:
    return 40 + 5 * np.sin(x / 100)


def test_the_kernel_is_gaussian_on_standardised_features_with_their_mean_distance_as_its_length() -> None:
    x, y = blobs(6, 1.0)
    x = x * torch.logspace(-3, 3, 8) + 1e3
    model = untrained(8, bases=20_000, ridge=0.1)
    z = (x - x.mean(0)) / x.std(0, correction=0)
    apart = torch.cdist(z, z)
    length = apart.sum() / (18 * 17)
    gram = torch.exp(-0.5 * (apart / length).square())
    onehot = torch.eye(3, dtype=torch.double)[y]
    expected = gram @ torch.linalg.solve(gram + 0.1 * torch.eye(18), onehot)
    logits = model.solve(Episodes.of_support(x, y, 3).asking(x.unsqueeze(0))).samples[0, 0]
    gammas = model.head.get_buffer("gammas")  # one of them was chosen
    error = min((logits - gamma * expected).abs().max().item() for gamma in gammas)
    assert error < 0.03 * logits.abs().max()


def test_classes_far_apart_are_told_surely_and_classes_that_mix_are_not() -> None:
    confidence = []
    for spread in (0.2, 1.0, 3.0):
        (x, y), (query, target) = blobs(8, spread), blobs(200, spread, seed=1)
        answer = untrained(8).adapted(Episodes.of_support(x, y, 3), embedded=True)(query)
        probability, label = answer.max(-1)
        accuracy = (label == target).double().mean().item()
        confidence.append(probability.mean().item())
        assert abs(confidence[-1] - accuracy) < 0.12, (spread, confidence[-1], accuracy)  # calibrated
    assert confidence[0] > 0.95 > confidence[1] > confidence[2]


def test_one_shot_a_class_is_told_by_the_priors() -> None:
    (x, y), (query, target) = blobs(1, 0.3), blobs(100, 0.3, seed=1)
    answer = untrained(8).adapted(Episodes.of_support(x, y, 3), embedded=True)(query)
    assert (answer.argmax(-1) == target).double().mean() > 0.95
    assert leave_one_out(untrained(8), Episodes.of_support(x, y, 3)).accuracy is None


@pytest.mark.parametrize("noise", [0.0, 1.0])
def test_a_curve_is_fitted_and_its_band_holds_the_noise(noise: float) -> None:
    random = np.random.default_rng(0)
    x, grid = random.uniform(-400, 400, (40, 1)), np.linspace(-380, 380, 200)[:, None]
    y = wave(x) + noise * random.normal(size=x.shape)
    task = Episodes.of_support(torch.from_numpy(x), torch.from_numpy(y))
    mean, std = untrained(1, regression=True).adapted(task, embedded=True)(torch.from_numpy(grid))
    error = mean.numpy() - wave(grid)
    assert np.sqrt(np.mean(error**2)) < 0.05 + 0.5 * noise  # the curve's own deviation is 3.5
    fresh = wave(grid) + noise * random.normal(size=grid.shape)
    inside = (np.abs(mean.numpy() - fresh) < 1.645 * std.numpy()).mean()
    assert 0.8 < inside <= 1.0
    if noise:
        assert 0.7 < std.median() < 1.6


def test_several_tasks_at_once_are_solved_as_one_by_one() -> None:
    tasks = [blobs(4, 0.5, seed=seed) for seed in range(3)]
    query = blobs(5, 0.5, seed=9)[0]
    x, y = (torch.stack(parts) for parts in zip(*tasks, strict=True))
    together = untrained(8).predict(Episodes(x, y, query.expand(3, -1, -1), None, 3), embedded=True)
    for task, (own_x, own_y) in enumerate(tasks):
        alone = untrained(8).adapted(Episodes.of_support(own_x, own_y, 3), embedded=True)(query)
        torch.testing.assert_close(together.mean[task].exp(), alone)
    targets = torch.randn(3, 12, 2, dtype=torch.double)
    together = untrained(8, regression=True).predict(Episodes(x, targets, query.expand(3, -1, -1)), embedded=True)
    assert together.std is not None
    for task in range(3):
        support = Episodes.of_support(x[task], targets[task])
        mean, std = untrained(8, regression=True).adapted(support, embedded=True)(query)
        torch.testing.assert_close(together.mean[task], mean)
        torch.testing.assert_close(together.std[task], std)


def test_constant_features_and_targets_and_a_single_sample_are_no_trouble() -> None:
    x = torch.ones(3, 2, dtype=torch.double)
    mean, std = untrained(2, regression=True).adapted(Episodes.of_support(x, 7 * x[:, :1]), embedded=True)(x)
    torch.testing.assert_close(mean, 7 * x[:, :1])
    assert std.isfinite().all()
    answer = untrained(2).adapted(Episodes.of_support(x[:1], torch.zeros(1).long(), 1), embedded=True)(x)
    assert torch.equal(answer, x[:, :1])
