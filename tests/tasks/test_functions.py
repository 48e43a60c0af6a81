from __future__ import annotations

import json
import math
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

import metavrf
from metavrf import api
from metavrf.errors import UserError
from metavrf.randomness import stream
from metavrf.tasks import functions
from metavrf.tasks.functions import FunctionFamily, Sine, SineMAML, family, register_family

RANGES = {"amplitude": (0.1, 5.0), "frequency": (0.8, 1.2), "phase": (0.0, math.pi)}


@pytest.fixture
def registry(monkeypatch: pytest.MonkeyPatch) -> None:
    """A copy of the register, so that a test's families are gone after it."""
    monkeypatch.setattr(functions, "_FAMILIES", dict(functions._FAMILIES))


def register_sawtooth() -> None:
    """The family of one's own from the module's documentation."""

    @register_family("sawtooth")
    class Sawtooth(FunctionFamily):
        """Rising ramps of random height, period and phase."""

        parameters = {"height": (0.5, 3.0), "period": (2.0, 4.0), "phase": (0.0, 1.0)}

        def evaluate(self, x: Tensor, height: Tensor, period: Tensor, phase: Tensor) -> Tensor:  # type: ignore[override]
            return height * ((x / period + phase) % 1.0)


def test_sine_parameters_are_uniform_on_the_papers_ranges() -> None:
    assert family("sine").parameters == RANGES
    drawn = family("sine").draw(20_000, stream(0, "test"))
    assert drawn.keys() == RANGES.keys()
    for name, (low, high) in RANGES.items():
        unit = (drawn[name].double() - low) / (high - low)
        assert unit.shape == (20_000, 1)
        assert -1e-6 <= unit.min() < 0.001
        assert 0.999 < unit.max() <= 1 + 1e-6
        assert unit.mean().item() == pytest.approx(0.5, abs=4 * math.sqrt(1 / 12 / 20_000))
        assert unit.var().item() == pytest.approx(1 / 12, rel=0.03)


def test_sine_parameters_are_independent() -> None:
    drawn = torch.stack([v.squeeze(1) for v in family("sine").draw(20_000, stream(0, "test")).values()])
    assert (torch.corrcoef(drawn) - torch.eye(3)).abs().max() < 4 / math.sqrt(20_000)


def test_mamls_sines_have_frequency_one() -> None:
    drawn = family("sine-maml").draw(100, stream(0, "test"))
    assert torch.equal(drawn["frequency"], torch.ones(100, 1))


def test_sine_is_evaluated_as_written() -> None:
    x = torch.linspace(-5, 5, 7).expand(2, -1)
    values = Sine().evaluate(
        x,
        amplitude=torch.tensor([[2.0], [0.5]]),
        frequency=torch.tensor([[0.9], [1.1]]),
        phase=torch.tensor([[1.0], [3.0]]),
    )
    np.testing.assert_allclose(values[0], 2.0 * np.sin(0.9 * x[0].numpy() + 1.0), atol=1e-6)
    np.testing.assert_allclose(values[1], 0.5 * np.sin(1.1 * x[1].numpy() + 3.0), atol=1e-6)


def test_support_and_query_lie_on_the_same_curve() -> None:
    """At frequency 1 a curve is a combination of sin x and cos x, the same one for support and query."""
    episodes = SineMAML().sample(20, 5, 9, stream(0, "train"))
    assert episodes.query_y is not None

    def basis(x: Tensor) -> Tensor:
        return torch.cat([x.sin(), x.cos()], dim=-1).double()

    coefficients = torch.linalg.lstsq(basis(episodes.support_x), episodes.support_y.double()).solution
    fit = basis(episodes.query_x) @ coefficients
    torch.testing.assert_close(fit, episodes.query_y.double(), rtol=0, atol=1e-3)
    assert (coefficients[:, 1] > 0).all()  # A·sin b: the phase lies in [0, π]


def test_training_tasks_have_their_shapes_and_fill_the_domain() -> None:
    episodes = family("sine").sample(500, 5, 9, stream(0, "train"))
    assert episodes.query_y is not None
    assert (episodes.support_x.shape, episodes.support_y.shape) == ((500, 5, 1), (500, 5, 1))
    assert (episodes.query_x.shape, episodes.query_y.shape) == ((500, 9, 1), (500, 9, 1))
    assert episodes.way is None
    x = torch.cat([episodes.support_x, episodes.query_x], dim=1)
    assert (-5 <= x.min() < -4.95) and (4.95 < x.max() <= 5)
    assert x.mean().abs() < 4 * 10 / math.sqrt(12 * x.numel())
    assert episodes.query_y.abs().max() <= 5


def test_evaluation_tasks_are_measured_on_an_even_grid() -> None:
    episodes = family("sine").sample_grid(4, 3, stream(0, "test"))
    assert episodes.support_x.shape == (4, 3, 1)
    for x in episodes.query_x.squeeze(-1):
        np.testing.assert_allclose(x, np.linspace(-5, 5, 100), atol=1e-5)


@pytest.mark.parametrize("grid", [True, False])
def test_the_same_stream_gives_the_same_tasks(grid: bool) -> None:
    def sample(seed: int, purpose: str) -> Tensor:
        generator = stream(seed, purpose)
        tasks = family("sine").sample_grid(4, 3, generator) if grid else family("sine").sample(4, 3, 5, generator)
        return torch.cat([tasks.support_x, tasks.support_y], dim=-1)

    assert torch.equal(sample(1, "test"), sample(1, "test"))
    assert not torch.equal(sample(1, "test"), sample(2, "test"))


def test_training_validation_and_test_tasks_are_all_different() -> None:
    points = [
        tuple(family("sine").sample_grid(3, 2, stream(0, purpose)).support_x.flatten().tolist())
        for purpose in ("train", "validation", "test", "figure")
    ]
    assert len({x for support in points for x in support}) == 4 * 6


def test_a_domain_of_ones_own_is_used() -> None:
    class Line(FunctionFamily):
        domain = (2.0, 3.0)
        parameters = {"slope": (1.0, 2.0)}

        def evaluate(self, x: Tensor, **parameters: Tensor) -> Tensor:
            return parameters["slope"] * x

    episodes = Line().sample_grid(50, 4, stream(0, "test"))
    assert 2 <= episodes.support_x.min() < episodes.support_x.max() <= 3
    assert (episodes.query_x[0, 0, 0].item(), episodes.query_x[0, -1, 0].item()) == (2, 3)
    slopes = episodes.support_y / episodes.support_x
    assert 1 <= slopes.min() < slopes.max() <= 2
    torch.testing.assert_close(slopes, slopes[:, :1].expand_as(slopes))


def test_an_unknown_family_is_named_with_the_known_ones() -> None:
    with pytest.raises(UserError, match=r"'cosine' is unknown.*sine, sine-maml"):
        family("cosine")


def test_an_unknown_family_fails_before_anything_is_written(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="'cosine'"):
        metavrf.train("cosine", out=tmp_path / "run", quiet=True)
    assert not (tmp_path / "run").exists()


@pytest.mark.usefixtures("registry")
def test_a_family_of_ones_own_can_be_sampled_by_name() -> None:
    register_sawtooth()
    made = family("sawtooth")
    assert made.name == "sawtooth"
    episodes = made.sample(200, 5, 10, stream(0, "train"))
    assert episodes.query_y is not None
    assert 0 <= episodes.query_y.min() < 0.1
    assert 2.5 < episodes.query_y.max() < 3


@pytest.mark.usefixtures("registry")
def test_a_family_of_ones_own_can_be_trained_and_evaluated(tmp_path: Path) -> None:
    register_sawtooth()
    run = metavrf.train(
        "sawtooth",
        out=tmp_path / "run",
        quiet=True,
        iterations=30,
        validate_every=30,
        validate_tasks=10,
        bases=64,
        threads=1,
    )
    result = json.loads(run.result_file.read_text())
    assert (result["task"], result["steps"], result["best_step"]) == ("sawtooth", 30, 30)
    evaluation = api.evaluate(tmp_path / "run", tasks=20)
    assert evaluation.tasks == 20
    assert 0 < evaluation.mean < 3**2
    assert api.limits("sawtooth", shot=5, tasks=2) == {}


@pytest.mark.usefixtures("registry")
def test_registered_families_do_not_outlive_their_test() -> None:
    assert sorted(functions._FAMILIES) == ["sine", "sine-maml"]
