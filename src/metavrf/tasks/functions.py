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
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from typing import ClassVar, TypeVar

import torch
from torch import Tensor

from metavrf.episodes import Episodes
from metavrf.errors import UserError

EVALUATION_POINTS = 100  # evenly spaced over the domain, as the paper's mean squared errors are measured

_FAMILIES: dict[str, type[FunctionFamily]] = {}
Family = TypeVar("Family", bound="type[FunctionFamily]")


class FunctionFamily(ABC):
    """A distribution over functions of one variable; a task is one function and a few points on it.

    Subclasses name their parameters with ranges (drawn uniformly) and say how to evaluate them. Override
    :meth:`draw` for any other distribution.
    """

    name: ClassVar[str] = ""
    domain: ClassVar[tuple[float, float]] = (-5.0, 5.0)
    parameters: ClassVar[Mapping[str, tuple[float, float]]]
    way = None  # regression

    @abstractmethod
    def evaluate(self, x: Tensor, **parameters: Tensor) -> Tensor:
        """The functions at ``x [T, N]``, given each parameter as ``[T, 1]``."""

    def draw(self, tasks: int, generator: torch.Generator) -> dict[str, Tensor]:
        """Parameters of ``tasks`` functions, each ``[T, 1]``."""
        unit = torch.rand(len(self.parameters), tasks, 1, generator=generator)
        return {
            name: low + (high - low) * u for (name, (low, high)), u in zip(self.parameters.items(), unit, strict=True)
        }

    def sample(self, tasks: int, shot: int, query: int, generator: torch.Generator) -> Episodes:
        """Training tasks: support and query points uniform on the domain."""
        low, high = self.domain
        x = low + (high - low) * torch.rand(tasks, shot + query, generator=generator)
        return self._episodes(x, shot, generator)

    def sample_grid(self, tasks: int, shot: int, generator: torch.Generator) -> Episodes:
        """Evaluation tasks: support uniform, queries on an even grid over the domain."""
        low, high = self.domain
        support = low + (high - low) * torch.rand(tasks, shot, generator=generator)
        grid = torch.linspace(low, high, EVALUATION_POINTS).expand(tasks, -1)
        return self._episodes(torch.cat([support, grid], dim=1), shot, generator)

    def _episodes(self, x: Tensor, shot: int, generator: torch.Generator) -> Episodes:
        y = self.evaluate(x, **self.draw(len(x), generator))
        sizes = [shot, x.shape[1] - shot]
        (support_x, query_x), (support_y, query_y) = (v.unsqueeze(-1).split(sizes, dim=1) for v in (x, y))
        return Episodes(support_x, support_y, query_x, query_y)


def register_family(name: str) -> Callable[[Family], Family]:
    """Class decorator that makes a family known by name to :func:`metavrf.train` and the command line."""

    def register(cls: Family) -> Family:
        cls.name = name
        _FAMILIES[name] = cls
        return cls

    return register


def families() -> list[str]:
    """The registered names."""
    return sorted(_FAMILIES)


def is_family(name: str) -> bool:
    """Whether a family of that name is registered."""
    return name in _FAMILIES


def family(name: str) -> FunctionFamily:
    """The registered family of that name."""
    if name not in _FAMILIES:
        raise UserError(
            f"task {name!r} is unknown: choose from {', '.join(sorted(_FAMILIES))}, "
            "or give the file that registers it with --plugin"
        )
    return _FAMILIES[name]()


@register_family("sine")
class Sine(FunctionFamily):
    """The paper's family: A·sin(wx + b)."""

    parameters = {"amplitude": (0.1, 5.0), "frequency": (0.8, 1.2), "phase": (0.0, math.pi)}

    def evaluate(self, x: Tensor, **parameters: Tensor) -> Tensor:
        """A·sin(wx + b)."""
        return parameters["amplitude"] * torch.sin(parameters["frequency"] * x + parameters["phase"])


@register_family("sine-maml")
class SineMAML(Sine):
    """MAML's family: the same at frequency 1."""

    parameters = {"amplitude": (0.1, 5.0), "frequency": (1.0, 1.0), "phase": (0.0, math.pi)}
