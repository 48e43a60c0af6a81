"""Few-shot regression tasks drawn from families of functions.

A family of one's own takes about ten lines::

    from metavrf import FunctionFamily, register_family

    @register_family("sawtooth")
    class Sawtooth(FunctionFamily):
        \"\"\"Rising ramps of random height, period and phase.\"\"\"

        parameters = {"height": (0.5, 3.0), "period": (2.0, 4.0), "phase": (0.0, 1.0)}

        def evaluate(self, x, height, period, phase):
            return height * ((x / period + phase) % 1.0)
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any, ClassVar, TypeVar

import torch
from torch import Tensor

from metavrf.episodes import Episodes
from metavrf.errors import UserError
from metavrf.memory import check_room
from metavrf.registry import Registry
from metavrf.tasks.oracles import AffineLimit, BayesLimit, NoisyBayesLimit, Oracle

EVALUATION_POINTS = 100  # evenly spaced over the domain, as the paper's mean squared errors are measured
COPIES = 12  # bytes in which a number is held while tasks are drawn
FEWEST_POINTS, MOST_POINTS = 3, 50  # of a support or query set; below which both together stay (neural processes)

FAMILIES: Registry[type[FunctionFamily]] = Registry("family of functions")
Family = TypeVar("Family", bound="type[FunctionFamily]")


class FunctionFamily:
    """A distribution over functions; a task is one function and a few points on it.

    Subclasses name their parameters with ranges (drawn uniformly) and say how to :meth:`evaluate` them. Override
    :meth:`draw` for any other distribution of the parameters, or :meth:`values` for functions that have none.

    Attributes:
        name: what the family is registered by.
        inputs: how many numbers a function takes. With more than one, x is ``[T, N, inputs]``, else ``[T, N]``.
        outputs: how many it gives; y likewise.
        domain: the ends of the range of x, of every input alike.
        noise: standard deviation of the Gaussian noise in every observed y, of support and query alike.
        parameters: the range of each parameter.
        shared: parameters that are the same in all tasks of a stream; the others are new for each task. A family
            without any has no streams.
        drift: step of a shared parameter from a task of a stream to the next: the standard deviation of a random walk,
            as a share of the parameter's range, reflected at the ends of the range.
        unequal: whether the number of points differs from task to task, as :meth:`sizes` draws it.
        preset: where settings start for it.
    """

    name: ClassVar[str] = ""
    inputs: ClassVar[int] = 1
    outputs: ClassVar[int] = 1
    domain: ClassVar[tuple[float, float]] = (-5.0, 5.0)
    noise: ClassVar[float] = 0.0
    parameters: ClassVar[Mapping[str, tuple[float, float]]] = {}
    shared: ClassVar[tuple[str, ...]] = ()
    drift: ClassVar[float] = 0.0
    unequal: ClassVar[bool] = False
    preset: ClassVar[Mapping[str, Any]] = {}
    way = None  # regression

    def evaluate(self, x: Tensor, **parameters: Tensor) -> Tensor:
        """The functions at ``x [T, N]`` (or ``[T, N, inputs]``), given each parameter as ``[T, 1]``."""
        raise NotImplementedError(f"{type(self).__name__} must override evaluate or values")

    def draw(self, tasks: int, generator: torch.Generator) -> dict[str, Tensor]:
        """Parameters of ``tasks`` functions, each ``[T, 1]``."""
        unit = torch.rand(len(self.parameters), tasks, 1, generator=generator)
        least = unit.new_tensor([low for low, _ in self.parameters.values()]).view(-1, 1, 1)
        width = unit.new_tensor([high - low for low, high in self.parameters.values()]).view(-1, 1, 1)
        return dict(zip(self.parameters, unit.mul_(width).add_(least), strict=True))

    def values(self, x: Tensor, generator: torch.Generator, stream: int = 1) -> Tensor:
        """New functions at ``x [T, N]``, without noise: ``[T, N]``."""
        drawn = self.draw(len(x), generator)
        return self.evaluate(x, **(drawn if stream == 1 else self.tie(drawn, stream, generator)))

    def tie(self, drawn: Mapping[str, Tensor], stream: int, generator: torch.Generator) -> dict[str, Tensor]:
        """Parameters ``[T, 1]`` with the shared ones taken from the first task of each stream, and drifting."""
        tied = dict(drawn)
        for name in self.shared:
            low, high = self.parameters[name]
            value = drawn[name].view(-1, stream, 1)[:, :1].expand(-1, stream, -1)
            if self.drift and high > low:
                steps = self.drift * (high - low) * torch.randn(value.shape, generator=generator)
                steps[:, 0] = 0
                # Folding a free walk at the ends is the same as reflecting it there.
                walked = torch.remainder(value - low + steps.cumsum(1), 2 * (high - low))
                value = low + torch.minimum(walked, 2 * (high - low) - walked)
            tied[name] = value.reshape(-1, 1)
        return tied

    def sizes(self, generator: torch.Generator) -> tuple[int, int]:
        """Support and query points of tasks of unequal size, as neural processes draw them: S, then Q below 50 - S."""
        support = int(torch.randint(FEWEST_POINTS, MOST_POINTS - FEWEST_POINTS, (), generator=generator))
        return support, int(torch.randint(FEWEST_POINTS, MOST_POINTS - support, (), generator=generator))

    def sample(self, tasks: int, shot: int, query: int, generator: torch.Generator, stream: int = 1) -> Episodes:
        """Training tasks: support and query points uniform on the domain.

        ``tasks`` counts all tasks; every ``stream`` consecutive ones are related (see ``shared``).
        """
        self._check_stream(tasks, stream)
        return self._episodes(self._points(tasks, shot + query, generator), shot, generator, stream)

    def sample_grid(self, tasks: int, shot: int, generator: torch.Generator, stream: int = 1) -> Episodes:
        """Evaluation tasks: support uniform, queries on an even grid over the domain; streams as in training.

        Of several inputs the grid is a Sobol sequence, which fills the domain evenly too.
        """
        self._check_stream(tasks, stream)
        low, high = self.domain
        support = self._points(tasks, shot, generator)
        if self.inputs == 1:
            grid = torch.linspace(low, high, EVALUATION_POINTS)
        else:
            grid = low + (high - low) * torch.quasirandom.SobolEngine(self.inputs).draw(EVALUATION_POINTS)
        return self._episodes(torch.cat([support, grid.expand(tasks, *grid.shape)], dim=1), shot, generator, stream)

    def _points(self, tasks: int, samples: int, generator: torch.Generator) -> Tensor:
        """``[T, N]`` or ``[T, N, inputs]``, uniform on the domain."""
        low, high = self.domain
        shape = (tasks, samples) if self.inputs == 1 else (tasks, samples, self.inputs)
        held = COPIES * tasks * (samples + EVALUATION_POINTS) * (self.inputs + self.outputs)
        check_room(held, f"{tasks:,} tasks of {samples:,} points")
        return low + (high - low) * torch.rand(shape, generator=generator)

    def sample_groups(self, tasks: int, generator: torch.Generator, group: int = 5) -> list[Episodes]:
        """Evaluation tasks of unequal size: groups of ``group`` tasks (the last may have fewer), each of its own size.

        Support and query points are uniform on the domain, as in training.
        """
        starts = range(0, tasks, group)
        return [self.sample(min(group, tasks - start), *self.sizes(generator), generator) for start in starts]

    def oracles(self) -> dict[str, Oracle]:
        """What no learner can beat on these tasks, each seen alone, by name; empty where it is not known."""
        return {}

    def _check_stream(self, tasks: int, stream: int) -> None:
        if stream > 1 and not self.shared:
            name = self.name or type(self).__name__
            raise UserError(f"the tasks of {name} have nothing in common to make a stream of: set stream to 1")
        if stream < 1 or tasks % stream:
            raise UserError(f"{tasks} tasks cannot be divided into streams of {stream}")

    def _episodes(self, x: Tensor, shot: int, generator: torch.Generator, stream: int) -> Episodes:
        y = self.values(x, generator, stream)
        if y.numel() != x.shape[0] * x.shape[1] * self.outputs:
            name = self.name or type(self).__name__
            raise UserError(f"{name} gives {list(y.shape)} for x {list(x.shape)}: it has outputs = {self.outputs}")
        if self.noise:
            y = y + self.noise * torch.randn(y.shape, generator=generator)
        sizes = [shot, x.shape[1] - shot]
        (support_x, query_x), (support_y, query_y) = (v.reshape(*x.shape[:2], -1).split(sizes, dim=1) for v in (x, y))
        return Episodes(support_x, support_y, query_x, query_y, stream=stream)


def register_family(name: str) -> Callable[[Family], Family]:
    """Class decorator that makes a family known by name to :func:`metavrf.train` and the command line."""

    def register(cls: Family) -> Family:
        FAMILIES.add(name, cls)
        cls.name = name
        return cls

    return register


def family(name: str) -> FunctionFamily:
    """The registered family of that name."""
    return FAMILIES[name]()


@register_family("sine")
class Sine(FunctionFamily):
    """The paper's family: A·sin(wx + b)."""

    parameters = {"amplitude": (0.1, 5.0), "frequency": (0.8, 1.2), "phase": (0.0, math.pi)}
    shared = ("frequency", "phase")

    def evaluate(self, x: Tensor, **parameters: Tensor) -> Tensor:
        """A·sin(wx + b)."""
        return parameters["amplitude"] * torch.sin(parameters["frequency"] * x + parameters["phase"])

    def oracles(self) -> dict[str, Oracle]:
        """The best affine and the best of all predictors."""
        bayes = NoisyBayesLimit(self) if self.noise else BayesLimit(self)
        return {"best affine predictor": AffineLimit(self), "Bayes-optimal": bayes}


@register_family("sine-maml")
class SineMAML(Sine):
    """MAML's family, sines of frequency 1, observed with noise of standard deviation 0.1."""

    noise = 0.1
    parameters = {"amplitude": (0.1, 5.0), "frequency": (1.0, 1.0), "phase": (0.0, math.pi)}


@register_family("sine-drift")
class SineDrift(Sine):
    """The paper's family, whose frequency and phase drift from a task of a stream to the next."""

    drift = 0.05


import metavrf.tasks.families  # noqa: E402, F401  registers the other families, which need the names above

FAMILIES.seal()
