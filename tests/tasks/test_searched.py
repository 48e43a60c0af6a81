from __future__ import annotations

import math

import pytest
import torch

from metavrf.episodes import Episodes
from metavrf.randomness import stream
from metavrf.tasks.families import Curve, Line, Mixed, Parabola, TwoWaves, Wave
from metavrf.tasks.searched import SearchedLimit

each_kind = pytest.mark.parametrize("kind", Mixed.kinds, ids=lambda kind: type(kind).__name__)


def drawn_coefficients(kind: Curve, drawn: dict[str, torch.Tensor]) -> torch.Tensor:
    """What multiplies the basis, ``[T, k]``, of drawn parameters ``[T, 1]``."""
    swings = [drawn[a] * part for a, b in kind.swings for part in (drawn[b].cos(), drawn[b].sin())]
    sign = drawn["slope"].sign() if "height" in drawn else 1.0
    return torch.cat([*swings, *(sign * drawn[name] for name in kind.plain)], dim=1)


@each_kind
def test_a_curve_is_its_basis_times_its_coefficients(kind: Curve) -> None:
    generator = stream(0, "test")
    drawn = {name: value.double() for name, value in kind.draw(50, generator).items()}
    x = 10 * torch.rand(50, 8, dtype=torch.double, generator=generator) - 5
    basis = kind.basis(x, **{name: drawn[name] for name in kind.searched}).expand(50, -1, -1)
    curve = (basis @ drawn_coefficients(kind, drawn).unsqueeze(-1)).squeeze(-1)
    torch.testing.assert_close(curve, kind.evaluate(x, **drawn))


@each_kind
def test_the_prior_of_coefficients_is_a_density_where_they_are_drawn(kind: Curve) -> None:
    generator = stream(1, "test")
    drawn = drawn_coefficients(kind, kind.draw(200, generator)).double()
    assert kind.log_density(drawn).isfinite().all()
    box = torch.rand(200_000, drawn.shape[1], dtype=torch.double, generator=generator) * 10.2 - 5.1
    if isinstance(kind, TwoWaves):  # four coefficients: a smaller box, for as good a mean
        box = box * (2 / 5.1)
    volume = (box.amax() - box.amin()) ** drawn.shape[1]
    assert float(kind.log_density(box).exp().mean() * volume) == pytest.approx(1, abs=0.1)


def test_the_posterior_is_that_of_curves_drawn_from_the_family_and_weighed() -> None:
    noise, generator = 0.5, stream(2, "test")
    x = torch.tensor([[-3.0, 0.5, 2.0]])
    y, asked = torch.tensor([[1.0, 1.6, -0.7]]), torch.linspace(-5, 5, 9).unsqueeze(0)
    limit = SearchedLimit(Mixed.kinds, finer=4, noise=(noise, noise))
    found = limit(Episodes(x.unsqueeze(-1), y.unsqueeze(-1), asked.unsqueeze(-1)))
    curves = Mixed().values(torch.cat([x, asked], dim=1).expand(600_000, -1), generator).double()
    weight = torch.softmax(-0.5 * ((curves[:, :3] - y) / noise).square().sum(1), dim=0)
    mean = weight @ curves[:, 3:]
    spread = (weight @ (curves[:, 3:] - mean).square()).sqrt()
    assert float(1 / weight.square().sum()) > 2000  # so many draws count
    torch.testing.assert_close(found.mean[0, :, 0].double(), mean, rtol=0, atol=0.12)
    assert found.std is not None
    torch.testing.assert_close((found.std[0, :, 0].double().square() - noise**2).sqrt(), spread, rtol=0.1, atol=0.05)


@pytest.mark.parametrize("kind", [Line(), Parabola(), Wave()], ids=lambda kind: type(kind).__name__)
def test_five_points_tell_a_simple_curve_from_all_others(kind: Curve) -> None:
    episodes = kind.sample_grid(5, 5, stream(3, "test"))
    assert episodes.query_y is not None
    error = (SearchedLimit(Mixed.kinds)(episodes).mean - episodes.query_y).square().mean((1, 2))
    assert error.median() < 0.01


def test_twice_the_cells_say_about_the_same() -> None:
    episodes = Mixed().sample_grid(12, 5, stream(4, "test"))
    assert episodes.query_y is not None
    errors = [
        (SearchedLimit(Mixed.kinds, finer=finer)(episodes).mean - episodes.query_y).square().mean() for finer in (1, 2)
    ]
    assert math.isclose(*errors, abs_tol=0.15)
