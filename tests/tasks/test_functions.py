from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import metavrf
from metavrf.errors import UserError
from metavrf.learners import LEARNERS
from metavrf.randomness import stream
from metavrf.runs import training
from metavrf.settings import DataSettings, EpisodeSettings
from metavrf.spec import TaskSpec
from metavrf.tasks.families import Line, Mixed, Step, Wave
from metavrf.tasks.functions import FAMILIES, FunctionFamily, Sine, SineMAML, family, register_family
from metavrf.tasks.source import FunctionTasks, open_tasks
from metavrf.testing.compare import limits

RANGES = {"amplitude": (0.1, 5.0), "frequency": (0.8, 1.2), "phase": (0.0, math.pi)}


@pytest.fixture
def sawtooth() -> Iterator[None]:
    """The family of one's own from the module's documentation, for the time of a test."""

    @register_family("sawtooth")
    class Sawtooth(FunctionFamily):
        """Rising ramps of random height, period and phase."""

        parameters = {"height": (0.5, 3.0), "period": (2.0, 4.0), "phase": (0.0, 1.0)}

        def evaluate(self, x: Tensor, height: Tensor, period: Tensor, phase: Tensor) -> Tensor:  # type: ignore[override]
            return height * ((x / period + phase) % 1.0)

    yield
    FAMILIES.remove("sawtooth")


@pytest.fixture
def hill() -> Iterator[None]:
    """A family of three inputs and two outputs, for the time of a test."""

    @register_family("hill")
    class Hill(FunctionFamily):
        """A hill in space, and how it falls along the first axis."""

        inputs, outputs, domain, noise = 3, 2, (-2.0, 2.0), 0.01
        parameters = {"height": (1.0, 3.0), "place": (-1.0, 1.0)}

        def evaluate(self, x: Tensor, **parameters: Tensor) -> Tensor:
            away = (x - parameters["place"].unsqueeze(-1)).square().sum(-1)
            y = parameters["height"] * torch.exp(-0.5 * away)
            return torch.stack([y, -(x[..., 0] - parameters["place"]) * y], dim=-1)

    yield
    FAMILIES.remove("hill")


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

    class Quiet(SineMAML):
        noise = 0.0

    episodes = Quiet().sample(20, 5, 9, stream(0, "train"))
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
    class Slope(FunctionFamily):
        domain = (2.0, 3.0)
        parameters = {"slope": (1.0, 2.0)}

        def evaluate(self, x: Tensor, **parameters: Tensor) -> Tensor:
            return parameters["slope"] * x

    episodes = Slope().sample_grid(50, 4, stream(0, "test"))
    assert 2 <= episodes.support_x.min() < episodes.support_x.max() <= 3
    assert (episodes.query_x[0, 0, 0].item(), episodes.query_x[0, -1, 0].item()) == (2, 3)
    slopes = episodes.support_y / episodes.support_x
    assert 1 <= slopes.min() < slopes.max() <= 2
    torch.testing.assert_close(slopes, slopes[:, :1].expand_as(slopes))


def test_an_unknown_family_is_named_with_the_known_ones() -> None:
    with pytest.raises(UserError, match=r"no family of functions 'cosine' .*sine, sine-maml, .*gp-rbf, gp-matern"):
        family("cosine")


def test_an_unknown_family_fails_before_anything_is_written(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="'cosine'"):
        metavrf.train("cosine", out=tmp_path / "run", quiet=True)
    assert not (tmp_path / "run").exists()


@pytest.mark.usefixtures("sawtooth")
def test_a_family_of_ones_own_can_be_sampled_by_name() -> None:
    made = family("sawtooth")
    assert made.name == "sawtooth"
    episodes = made.sample(200, 5, 10, stream(0, "train"))
    assert episodes.query_y is not None
    assert 0 <= episodes.query_y.min() < 0.1
    assert 2.5 < episodes.query_y.max() < 3


@pytest.mark.usefixtures("sawtooth")
def test_a_family_of_ones_own_can_be_trained_and_evaluated(tmp_path: Path) -> None:
    run = metavrf.train(
        "sawtooth",
        out=tmp_path / "run",
        quiet=True,
        iterations=30,
        validate_every=30,
        validate_tasks=10,
        components=12,
        threads=1,
    )
    result = json.loads(run.result_file.read_text())
    assert (result["task"], result["steps"], result["best_step"]) == ("sawtooth", 30, 30)
    evaluation = metavrf.evaluate(tmp_path / "run", tasks=20)
    assert evaluation.tasks == 20
    assert 0 < evaluation.mean < 3**2
    assert limits("sawtooth", shot=5, tasks=2) == {}


@pytest.mark.usefixtures("hill")
def test_a_family_of_several_inputs_and_outputs_has_its_shapes_and_fills_the_domain() -> None:
    drawn = family("hill").sample(200, 4, 6, stream(0, "train"))
    assert drawn.query_y is not None
    shapes = [tuple(t.shape) for t in (drawn.support_x, drawn.support_y, drawn.query_x, drawn.query_y)]
    assert shapes == [(200, 4, 3), (200, 4, 2), (200, 6, 3), (200, 6, 2)]
    test = family("hill").sample_grid(5, 4, stream(0, "test"))
    assert (test.support_x.shape, test.query_x.shape) == ((5, 4, 3), (5, 100, 3))
    grid = test.query_x[0]
    assert torch.equal(test.query_x, grid.expand_as(test.query_x))  # the same points in every task
    octants = ((grid > 0).long() * torch.tensor([1, 2, 4])).sum(-1).bincount(minlength=8)
    assert grid.abs().max() <= 2
    assert (octants - 12.5).abs().max() <= 2  # as many points in each of them, or nearly


@pytest.mark.usefixtures("hill")
@pytest.mark.parametrize("name", [name for name in LEARNERS if "regression" in LEARNERS[name].solves])
def test_a_family_of_several_inputs_and_outputs_can_be_trained_and_evaluated(name: str, tmp_path: Path) -> None:
    small: dict[str, Any] = {"iterations": 6, "validate_every": 3, "validate_tasks": 10, "batch": 5, "threads": 1}
    small |= {"components": 12} if name == "metavrf" else {}
    metavrf.train("hill", learner=name, out=tmp_path / "run", quiet=True, **small)
    model = metavrf.load(tmp_path / "run")
    assert (model.spec.inputs, model.spec.targets) == ((3,), 2)
    evaluation = metavrf.evaluate(model, tasks=20, shot=8)
    assert (evaluation.metric, evaluation.tasks, evaluation.shot) == ("mse", 20, 8)
    assert 0 < evaluation.mean < 100
    assert math.isfinite(evaluation.nll)
    assert evaluation.coverage90 is not None and 0 <= evaluation.coverage90 <= 1
    task = family("hill").sample(1, 8, 5, stream(1, "test"))
    found = model.predict(task)
    assert found.mean.shape == (1, 5, 2)
    assert found.std is not None and (found.std > 0).all()
    mean, std = model.adapt(task)(task.query_x[0])
    torch.testing.assert_close(mean.float(), found.mean[0], rtol=1e-3, atol=1e-3)
    torch.testing.assert_close(std.float(), found.std[0], rtol=1e-3, atol=1e-3)


@pytest.mark.usefixtures("hill")
def test_kernels_are_learned_of_several_inputs_and_outputs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(training, "TASKS_FOR_BAND", 20)
    small: dict[str, Any] = {"components": 16, "validate_tasks": 100, "validate_every": 20, "iterations": 40}
    run = metavrf.train("hill", out=tmp_path / "run", quiet=True, train_shot=10, most_shot=30, shot=20, **small)
    first, last = run.metrics()[0], run.metrics()[-1]
    assert last["val_nll"] < first["val_nll"]
    tasks = family("hill").sample_grid(100, 20, stream(5, "test"))
    assert tasks.query_y is not None
    assert last["val_mse"] < 0.5 * tasks.query_y.square().mean()  # of an answer that is always zero


@pytest.mark.usefixtures("hill")
@pytest.mark.parametrize(("inputs", "outputs"), [(3, 1), (1, 2), (1, 1)])
def test_a_model_is_not_tested_on_functions_of_other_inputs_or_outputs(inputs: int, outputs: int) -> None:
    trained = TaskSpec((inputs,), outputs)
    with pytest.raises(UserError, match=f"3 inputs, 2 outputs.* trained on .{inputs} inputs, {outputs} outputs"):
        open_tasks("hill", DataSettings(), trained_on=trained)


@pytest.mark.usefixtures("hill")
def test_functions_of_several_inputs_are_not_drawn_as_curves(tmp_path: Path) -> None:
    model = metavrf.Config.of("hill", components=12).build(open_tasks("hill", DataSettings()).spec)
    tasks = family("hill").sample_grid(2, 4, stream(0, "figure"))
    with pytest.raises(UserError, match="only functions of one input and one output can be drawn"):
        metavrf.plot_fits({"hill": model}, tasks, tmp_path / "hill.png")
    assert not (tmp_path / "hill.png").exists()


def test_outputs_of_another_number_than_a_family_says_are_refused() -> None:
    class Wrong(FunctionFamily):
        outputs = 2

        def evaluate(self, x: Tensor, **parameters: Tensor) -> Tensor:
            return x

    with pytest.raises(UserError, match=r"Wrong gives \[4, 5\] .*outputs = 2"):
        Wrong().sample(4, 2, 3, stream(0, "train"))


def test_registered_families_do_not_outlive_their_test() -> None:
    assert sorted(FAMILIES) == [
        "gp-matern",
        "gp-mixed",
        "gp-periodic",
        "gp-rbf",
        "mixed",
        "sine",
        "sine-drift",
        "sine-maml",
    ]


def test_the_draws_of_the_papers_family_are_those_of_earlier_versions() -> None:
    episodes = family("sine").sample_grid(50, 5, stream(7, "test"))
    words = [hashlib.sha256(t.numpy().tobytes()).hexdigest()[:8] for t in (episodes.support_x, episodes.support_y)]
    assert words == ["44e78ac4", "ada58220"]


# Noise


@pytest.mark.parametrize("grid", [True, False])
def test_every_observation_has_noise_of_the_stated_deviation(grid: bool) -> None:
    class Flat(FunctionFamily):
        noise = 0.3

        def values(self, x: Tensor, generator: torch.Generator, stream: int = 1) -> Tensor:
            return torch.ones_like(x)

    made = Flat()
    episodes = made.sample_grid(2000, 50, stream(0, "test")) if grid else made.sample(2000, 50, 50, stream(0, "test"))
    assert episodes.query_y is not None
    for y in (episodes.support_y, episodes.query_y):
        assert y.mean().item() == pytest.approx(1, abs=0.01)
        assert y.std().item() == pytest.approx(0.3, rel=0.02)


def test_mamls_sines_are_observed_with_noise() -> None:
    episodes = family("sine-maml").sample(2000, 5, 40, stream(0, "test"))
    assert episodes.query_y is not None
    basis = torch.cat([episodes.query_x.sin(), episodes.query_x.cos()], dim=-1).double()
    y = episodes.query_y.double()
    left = y - basis @ torch.linalg.lstsq(basis, y).solution
    assert (left.square().sum() / (2000 * 38)).sqrt().item() == pytest.approx(0.1, rel=0.01)
    assert family("sine").noise == 0


# Streams


class Watched(Sine):
    """Sines that remember the parameters they were drawn with."""

    seen: dict[str, Tensor]

    def evaluate(self, x: Tensor, **parameters: Tensor) -> Tensor:
        self.seen = parameters
        return super().evaluate(x, **parameters)


@pytest.mark.parametrize("grid", [True, False])
def test_tasks_of_a_stream_share_frequency_and_phase_and_nothing_else(grid: bool) -> None:
    made, generator = Watched(), stream(0, "train")
    episodes = made.sample_grid(60, 5, generator, 6) if grid else made.sample(60, 5, 8, generator, 6)
    assert (episodes.stream, episodes.tasks) == (6, 60)
    for name, values in made.seen.items():
        streams = values.view(10, 6)
        alike = (streams == streams[:, :1]).all(1)
        assert bool(alike.all()) == (name in Sine.shared)
        assert len(values.unique()) == (10 if name in Sine.shared else 60)
    assert len(episodes.support_x.unique()) == 60 * 5


def test_shared_parameters_drift_in_small_steps_and_stay_in_their_ranges() -> None:
    class Drifting(Watched):
        drift = 0.05

    made = Drifting()
    made.sample(200 * 100, 1, 1, stream(0, "train"), 100)
    for name in Sine.shared:
        low, high = RANGES[name]
        unit = (made.seen[name].view(200, 100).double() - low) / (high - low)
        assert -1e-5 <= unit.min() < 0.01
        assert 0.99 < unit.max() <= 1 + 1e-5
        inner = (unit[:, :-1] - 0.5).abs() < 0.25  # too far from the ends to be reflected
        assert unit.diff(dim=1)[inner].std().item() == pytest.approx(0.05, rel=0.05)
        assert unit[:, -1].var().item() == pytest.approx(1 / 12, rel=0.3)  # still uniform at the end
    amplitude = made.seen["amplitude"].view(200, 100)
    assert (amplitude.diff(dim=1).abs() > 0).all()


def test_a_drifting_family_is_the_papers_where_tasks_stand_alone() -> None:
    assert family("sine-drift").drift > 0
    plain, drifting = (family(name).sample(5, 3, 4, stream(0, "train")) for name in ("sine", "sine-drift"))
    assert torch.equal(plain.support_y, drifting.support_y)


@pytest.mark.parametrize("name", ["mixed", "gp-rbf", "gp-mixed"])
def test_a_family_that_shares_nothing_refuses_streams(name: str) -> None:
    with pytest.raises(UserError, match=f"tasks of {name} have nothing in common"):
        family(name).sample(4, 3, 5, stream(0, "train"), 2)


def test_tasks_that_do_not_fill_their_streams_are_refused() -> None:
    with pytest.raises(UserError, match="7 tasks cannot be divided into streams of 3"):
        family("sine").sample(7, 3, 5, stream(0, "train"), 3)


@pytest.mark.parametrize(("asked", "trained", "held"), [(1, 8, 8), (8, 8, 8), (20, 24, 16), (24, 24, 24)])
def test_a_source_rounds_to_whole_streams(asked: int, trained: int, held: int) -> None:
    tasks = FunctionTasks("sine")
    shape = EpisodeSettings(batch=asked, stream=8)
    training = tasks.training(shape, stream(0, "train"))
    held_out = tasks.held_out("test", asked, shape, stream(0, "test"))
    assert (training.tasks, training.stream) == (trained, 8)
    assert (held_out.tasks, held_out.stream) == (held, 8)


# A mixture of kinds


def test_mixed_tasks_are_of_all_seven_kinds() -> None:
    mixed = Mixed()
    chosen = mixed.choose(7000, stream(0, "train"))
    counts = chosen.bincount(minlength=7)
    assert len(counts) == len(mixed.kinds) == len({type(kind) for kind in mixed.kinds}) == 7
    assert (counts - 1000).abs().max() < 4 * math.sqrt(7000 * 1 / 7 * 6 / 7)
    x = torch.linspace(-5, 5, 50).expand(7000, -1)
    values = mixed.values(x, stream(0, "train"))
    straight = values.diff(n=2, dim=1).abs().amax(1) < 1e-3
    jumps = (values.diff(dim=1).abs() > 1e-6).sum(1)
    number = {type(kind): i for i, kind in enumerate(mixed.kinds)}
    assert straight[chosen == number[Line]].all()
    assert not straight[chosen == number[Wave]].any()
    assert (jumps[chosen == number[Step]] == 1).all()


def test_no_kind_of_mixed_task_dominates() -> None:
    x = torch.linspace(-5, 5, 100).expand(2000, -1)
    for kind in Mixed.kinds:
        values = kind.values(x, stream(0, "train"))
        assert torch.isfinite(values).all()
        assert 0.9 < values.square().mean().sqrt() < 1.9, type(kind).__name__
        assert 1 < values.abs().amax(1).median() < 3.5, type(kind).__name__


# Gaussian processes


@pytest.mark.parametrize(
    ("name", "hyper"),
    [
        ("gp-rbf", {"length": 0.4, "scale": 0.7}),
        ("gp-matern", {"length": 0.5, "scale": 0.3}),
        ("gp-periodic", {"length": 0.5, "scale": 0.9, "period": 0.35}),
    ],
)
def test_draws_of_gaussian_processes_have_the_stated_covariance(name: str, hyper: dict[str, float]) -> None:
    made = type(family(name))

    class Fixed(made):  # type: ignore[misc, valid-type]
        parameters = {key: (value, value) for key, value in hyper.items()}

    x = torch.tensor([-1.9, -0.6, -0.5, -0.25, 0.3, 1.1])
    values = Fixed().values(x.expand(40_000, -1), stream(0, "test"))
    assert values.dtype == torch.float32
    d, length = (x.unsqueeze(0) - x.unsqueeze(1)).abs(), hyper["length"]
    expected = {
        "gp-rbf": lambda: torch.exp(-d.square() / (2 * length**2)),
        "gp-matern": lambda: (
            (1 + 5**0.5 * d / length + 5 * d.square() / (3 * length**2)) * torch.exp(-(5**0.5) * d / length)
        ),
        "gp-periodic": lambda: torch.exp(-2 * torch.sin(math.pi * d / hyper["period"]).square() / length**2),
    }[name]()
    scale = hyper["scale"] ** 2
    assert values.mean(0).abs().max() < 5 * hyper["scale"] / 200
    np.testing.assert_allclose(torch.cov(values.mT), scale * expected, atol=0.03 * scale)


@pytest.mark.parametrize("name", ["gp-rbf", "gp-matern", "gp-periodic", "gp-mixed"])
def test_gaussian_processes_follow_the_protocol_of_neural_processes(name: str) -> None:
    made = family(name)
    assert (made.domain, made.noise, made.unequal) == ((-2.0, 2.0), 0.02, True)
    generator = stream(0, "train")
    sizes = [made.sizes(generator) for _ in range(3000)]
    supports, queries = zip(*sizes, strict=True)
    assert (min(supports), max(supports)) == (3, 46)
    assert min(queries) == 3
    assert max(s + q for s, q in sizes) == 49
    assert np.mean(supports) == pytest.approx(24.5, abs=1)


def test_tasks_of_unequal_size_come_in_groups_of_equal_size() -> None:
    groups = family("gp-mixed").sample_groups(45, stream(0, "test"), 10)
    assert [group.tasks for group in groups] == [10, 10, 10, 10, 5]
    assert len({group.support_x.shape[1] for group in groups}) > 1
    for group in groups:
        assert group.support_x.shape[1] + group.query_x.shape[1] < 50
        assert group.support_x.abs().max() <= 2
        assert torch.isfinite(group.support_y).all()
    again = family("gp-mixed").sample_groups(45, stream(0, "test"), 10)
    assert all(torch.equal(a.support_y, b.support_y) for a, b in zip(groups, again, strict=True))


def test_a_source_draws_unequal_sizes_anew_at_each_step_unless_they_are_set() -> None:
    tasks = FunctionTasks("gp-rbf")
    drawn = [tasks.training(EpisodeSettings(shot=5, batch=2), stream(0, "train", step)) for step in range(20)]
    assert len({episodes.support_x.shape[1] for episodes in drawn}) > 5
    fixed = tasks.training(EpisodeSettings(shot=5, train_shot=7, query=11, batch=2), stream(0, "train"))
    assert (fixed.support_x.shape[1], fixed.query_x.shape[1]) == (7, 11)
    held_out = tasks.held_out("test", 3, EpisodeSettings(shot=6), stream(0, "test"))
    assert (held_out.support_x.shape[1], held_out.query_x.shape[1]) == (6, 100)


def test_a_family_must_say_what_its_functions_are() -> None:
    class Nothing(FunctionFamily):
        pass

    with pytest.raises(NotImplementedError, match="Nothing must override evaluate or values"):
        Nothing().sample(2, 3, 4, stream(0, "train"))
