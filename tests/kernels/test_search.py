"""Periodic kernels of a task's own: what is tried, what stands for it, and that the period is found."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from metavrf.kernels import ridge, search
from metavrf.kernels.mixing import log_density, log_weights
from metavrf.kernels.search import Combs, Kept
from metavrf.kernels.spectral import Exact
from metavrf.thinning import stand_ins

BINS = 8


def combs(low: float = 12.0, high: float = 64.0, lengths: tuple[float, ...] = (0.15, 0.3, 0.6)) -> Combs:
    amplitude = torch.tensor([0.03, 0.3], dtype=torch.double)
    log_prior = torch.randn(len(lengths), 2, generator=torch.Generator().manual_seed(1), dtype=torch.double)
    sharpness = torch.tensor(lengths, dtype=torch.double) ** -2
    log_rates = torch.linspace(0, -1, BINS, dtype=torch.double)
    return Combs(sharpness, amplitude, torch.tensor(4e-4, dtype=torch.double), log_prior, (low, high), log_rates)


def draws(
    tasks: int = 3, points: int = 20, period: float = 0.31, length: float = 0.3, seed: int = 0
) -> tuple[Tensor, Tensor]:
    """Points ``[T, N]`` and targets ``[T, N, 1]`` of a periodic process of scale 0.5."""
    generator = torch.Generator().manual_seed(seed)
    x = 4 * torch.rand(tasks, points, generator=generator, dtype=torch.double) - 2
    gram = periodic(x.unsqueeze(-1) - x.unsqueeze(-2), period, length) + 1e-8 * torch.eye(points)
    normal = torch.randn(2, tasks, points, 1, generator=generator, dtype=torch.double)
    return x, 0.5 * torch.linalg.cholesky(gram) @ normal[0] + 0.02 * normal[1]


def periodic(distance: Tensor, period: float, length: float) -> Tensor:
    return torch.exp(-2 * (torch.sin(math.pi * distance / period) / length).square())


def answer(x: Tensor, y: Tensor, shared: Combs, kept: Kept, support: int) -> tuple[Tensor, Tensor, Tensor]:
    """Means, variances and log weights of what was kept, for the points after the first ``support``."""
    q = shared.of(kept, torch.ones(1, dtype=torch.double))
    fit = ridge.solve(Exact().gram(x.unsqueeze(-1), q, support), y[:, :support], q.noise)
    weights = log_weights(q.log_prior, fit.log_evidence(q.amplitude))
    variance = (q.amplitude.unsqueeze(-1) * (fit.variance + q.noise.unsqueeze(-1))).unsqueeze(-1)
    return fit.mean, variance, weights


def test_what_is_kept_is_the_periodic_kernel_of_its_formula() -> None:
    x, y = draws()
    shared = combs()
    kept = search.search(x, y, shared, 5)
    q = shared.of(kept, torch.ones(1, dtype=torch.double))
    gram = Exact().gram(x.unsqueeze(-1), q, 20)
    distance = x.unsqueeze(-1) - x.unsqueeze(-2)
    for task in range(3):
        for place in range(5):
            period = 2 * math.pi / kept.frequency[task, place].item()
            length = shared.sharpness[kept.sharpness[task, place]].item() ** -0.5
            torch.testing.assert_close(gram[place, task], periodic(distance[task], period, length), atol=1e-9, rtol=0)


def test_if_all_are_kept_the_mixture_is_the_whole_grids(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(search, "SPLITS", ())
    shared = combs(12.0, 16.0)
    x, y = draws(points=10)
    number, frequency, width = search._first(shared, 3)
    cells, levels = number.shape[1], len(shared.amplitude)
    kept = search.search(x, y, shared, cells * levels)
    assert kept.frequency.shape == (3, cells * levels)
    torch.testing.assert_close(kept.log_cell, width[kept.sharpness].log())  # each stands for itself alone
    whole = Kept(
        number.repeat_interleave(levels, 1),
        torch.arange(levels).repeat(cells).expand(3, -1),
        frequency.repeat_interleave(levels, 1),
        width[number].log().repeat_interleave(levels, 1),
        search._Support(x[:, :6], y[:, :6], shared).smear(number, width).repeat_interleave(levels, 1),
    )
    kept = search.search(x[:, :6], y[:, :6], shared, cells * levels)
    found, expected = (log_density(*answer(x, y, shared, k, 6), y[:, 6:]) for k in (kept, whole))
    torch.testing.assert_close(found, expected)


def test_a_few_answer_as_thousands_do() -> None:
    """Many more combs, from a finer first grid, change the mean log density of a point by little."""
    shared = combs()
    gaps = []
    for seed in range(4):
        x, y = draws(tasks=8, points=30, seed=seed)
        few, many = (search.search(x[:, :15], y[:, :15], shared, keep) for keep in (64, 1024))
        found, expected = (log_density(*answer(x, y, shared, kept, 15), y[:, 15:]).mean() for kept in (few, many))
        gaps.append((expected - found).item())
    assert abs(sum(gaps) / len(gaps)) < 0.05


def test_the_period_is_found_to_a_thousandth() -> None:
    x, y = draws(tasks=6, points=40, period=0.237)
    shared = combs()
    kept = search.search(x, y, shared, 32)
    q = shared.of(kept, torch.ones(1, dtype=torch.double))
    fit = ridge.solve(Exact().gram(x.unsqueeze(-1), q, 40), y, q.noise)
    weights = log_weights(q.log_prior, fit.log_evidence(q.amplitude)).exp()
    mean = (weights * 2 * math.pi / kept.frequency.mT).sum(0)
    torch.testing.assert_close(mean, torch.full_like(mean, 0.237), rtol=1e-3, atol=0)


def test_a_smeared_comb_is_the_mean_of_the_combs_of_its_cell() -> None:
    kappa, frequency, width = 10.0, 20.0, 0.8
    lag = torch.linspace(-3, 3, 301, dtype=torch.double)
    at = frequency + width * (torch.arange(2000, dtype=torch.double) / 2000 - 0.49975)
    mean = torch.exp(kappa * (torch.cos(at.unsqueeze(1) * lag) - 1)).mean(0)
    smeared = kappa / (1 + kappa * width**2 / 12 * lag.square())
    offset = torch.special.i0e(torch.tensor(kappa)) / torch.special.i0e(smeared)
    assert (offset * torch.exp(smeared * (torch.cos(frequency * lag) - 1)) - mean).abs().max() < 0.1
    centre = torch.exp(kappa * (torch.cos(frequency * lag) - 1))
    assert (centre - mean).abs().max() > 0.3  # unlike the comb of the middle


def test_what_is_kept_of_a_task_does_not_depend_on_other_tasks_or_the_order_of_samples() -> None:
    x, y = draws(tasks=4, points=12)
    together = search.search(x, y, combs(), 16)
    for task in range(4):
        alone = search.search(x[task : task + 1], y[task : task + 1], combs(), 16)
        order = torch.randperm(12, generator=torch.Generator().manual_seed(task))
        mixed = search.search(x[task : task + 1, order], y[task : task + 1, order], combs(), 16)
        for kept in (alone, mixed):
            for found, expected in zip(kept, together, strict=True):
                torch.testing.assert_close(found[0], expected[task])


def test_targets_of_several_outputs_are_weighed_together() -> None:
    x, y = draws()
    number, frequency, width = search._first(combs(12.0, 20.0), 3)
    one, two = (
        search._Support(x, targets, combs(12.0, 20.0))._log_likelihood(
            torch.eye(20, dtype=torch.double).repeat(3, 2, 1, 1), torch.full((3, 2), 0.1, dtype=torch.double)
        )
        for targets in (y, torch.cat([y, y], dim=-1))
    )
    torch.testing.assert_close(two, 2 * one)
    assert number.shape == frequency.shape and len(width) == 3


def test_if_all_can_stand_for_themselves_they_do() -> None:
    log_weight = 3 * torch.randn(5, 40, generator=torch.Generator().manual_seed(0), dtype=torch.double)
    for count in (40, 50):
        index, log_share = stand_ins(log_weight, count)
        assert torch.equal(index, torch.arange(40).expand(5, -1))
        torch.testing.assert_close(log_share, torch.zeros_like(log_share))
