"""Waves, ramps and steps of a task's own: their kernels, their evidence, and that they are found."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from metavrf.kernels import ridge, shapes
from metavrf.kernels.mixing import log_weights
from metavrf.kernels.random_features import draw_bases
from metavrf.kernels.shapes import KINDS, Shapes, search_shapes
from metavrf.kernels.spectral import Exact, RandomFeatures, Spectral, diagonal

ONE = torch.ones(1, dtype=torch.double)
each_kind = pytest.mark.parametrize("kind", range(len(KINDS)), ids=["ramp", "step", "wave"])


def shared(noise: float = 1e-4) -> Shapes:
    log_prior, log_rates = torch.zeros(3), torch.zeros(3, 8)
    found = Shapes(torch.full((3,), 2.0), torch.full((3,), noise), log_prior, log_rates, torch.tensor([-3.0, 3.0]))
    return Shapes(*(value.double() for value in found))


def points(tasks: int = 4, samples: int = 9, seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return 6 * torch.rand(tasks, samples, generator=generator, dtype=torch.double) - 3


def curve(kind: int, p: Tensor) -> Tensor:
    """A ramp of period 2 that jumps at 0.3, a step at 0.3, a wave."""
    if KINDS[kind] is shapes.RAMP:
        return 1.5 * (((p - 0.3) / 2) % 1 * 2 - 1)
    return 0.75 - 1.25 * (p - 0.3).sign() if KINDS[kind] is shapes.STEP else 1.2 * torch.sin(3.21 * p + 0.4)


def kept(p: Tensor, y: Tensor, keep: int = 6) -> Spectral:
    return shared().of(search_shapes(p, y.unsqueeze(-1), shared(), keep), ONE)


@each_kind
def test_a_shape_is_weighed_by_the_evidence_of_its_kernel(kind: int) -> None:
    p, y = points(), points(seed=1)
    place = torch.rand(4, 5, 2, generator=torch.Generator().manual_seed(2), dtype=torch.double)
    width = (0.01, 0.01)
    one = shapes.Kept([place] * 3, [torch.zeros(4, 5)] * 3, [shared().smear(n, width) for n in range(3)])
    q = shared().of(one, ONE)
    evidence = ridge.solve(Exact().gram(p.unsqueeze(-1), q, 9), y.unsqueeze(-1), q.noise).log_evidence(q.amplitude)
    found = shapes._weigh(kind, p, y.unsqueeze(-1), place, width, shared())
    torch.testing.assert_close(found, evidence[5 * kind : 5 * kind + 5].mT, rtol=1e-6, atol=1e-6)


@each_kind
def test_a_shape_is_found_and_answers_where_nothing_was_seen(kind: int) -> None:
    p = points(samples=29)
    y = curve(kind, p)
    q = kept(p[:, :9], y[:, :9])
    fit = ridge.solve(Exact().gram(p.unsqueeze(-1), q, 9), y[:, :9].unsqueeze(-1), q.noise)
    weights = log_weights(q.log_prior, fit.log_evidence(q.amplitude)).exp()
    answer = (weights[..., None, None] * fit.mean).sum(0).squeeze(-1)
    assert (answer - y[:, 9:]).square().median() < 1e-3
    assert (weights[6 * kind : 6 * kind + 6].sum(0) > 0.9).all()


def test_a_finer_cut_has_the_same_evidence(monkeypatch: pytest.MonkeyPatch) -> None:
    p, y = points(samples=5), curve(0, points(samples=5))

    def evidence() -> Tensor:
        q = kept(p, y, keep=64)
        fit = ridge.solve(Exact().gram(p.unsqueeze(-1), q, 5), y.unsqueeze(-1), q.noise)
        return torch.logsumexp(q.log_prior + fit.log_evidence(q.amplitude), 0)

    coarse = evidence()
    monkeypatch.setattr(shapes, "CELLS", 512)
    assert (evidence() - coarse).abs().max() < 0.7  # of likelihoods that differ by hundreds of nats


def test_kernels_that_jump_come_first_and_are_told_from_the_others() -> None:
    p = points()
    q = kept(p, points(seed=1))
    assert q.jumping == 12
    jumping, others = q.parted()
    assert len(jumping.mean) == 12 and len(others.mean) == 6 and others.jumping == 0
    some = q.of(torch.tensor([1, 7, 14]))
    assert some.jumping == 2
    gram = Exact().gram(p.unsqueeze(-1), q, 9)
    torch.testing.assert_close(Exact().gram(p.unsqueeze(-1), some, 9), gram[[1, 7, 14]])
    found = diagonal(p.unsqueeze(-1), q)
    assert isinstance(found, Tensor)
    torch.testing.assert_close(found, gram.diagonal(dim1=-2, dim2=-1))


def test_one_task_and_random_features_have_the_same_kernels_that_jump() -> None:
    p = points()
    q = kept(p, points(seed=1))
    gram = Exact().gram(p.unsqueeze(-1), q, 4)
    cross = Exact().cross(p[0, 4:, None], p[0, :4, None], q.at(slice(1)))
    torch.testing.assert_close(cross, gram[:, 0, :, 4:])
    draws = draw_bases(1, 64, samples=2, feature_map="sincos", generator=torch.Generator().manual_seed(0))
    features = RandomFeatures(draws).gram(p.unsqueeze(-1).float(), q, 4).unflatten(0, (2, -1))
    torch.testing.assert_close(features[:, :12], gram[:12].expand(2, -1, -1, -1, -1), rtol=1e-4, atol=1e-4)


def test_a_ramp_repeats_and_a_step_does_not() -> None:
    p = points()
    gram = Exact().gram(p.unsqueeze(-1), kept(p, curve(1, p)), 9)
    steps = gram[6:12]
    assert ((steps - 2).abs() < 1e-4).logical_or(steps.abs() < 1e-4).all()  # the same side, or the other
    ramps = kept(p, curve(0, p)).parted()[0]
    period = 2 * math.pi / ramps.mean[:6]
    assert ((period - 2).abs() < 0.05).any()
