"""Families beyond the paper's: a mixture of many kinds of curves, and the Gaussian processes of neural processes."""

from __future__ import annotations

import math
from typing import ClassVar

import torch
from torch import Tensor

from metavrf.tasks.functions import FunctionFamily, register_family
from metavrf.tasks.oracles import GaussianProcessLimit, Oracle
from metavrf.tasks.searched import SearchedLimit

JITTER = 1e-8  # of the variance, to draw from a covariance whose smallest eigenvalues round to below 0
AT_ONCE = 200  # tasks whose covariances are held at a time


class MixedFamily(FunctionFamily):
    """Each task is of one kind, and all kinds are equally likely."""

    kinds: ClassVar[tuple[FunctionFamily, ...]]

    def choose(self, tasks: int, generator: torch.Generator) -> Tensor:
        """The number of each task's kind, ``[T]``."""
        return torch.randint(len(self.kinds), (tasks,), generator=generator)

    def values(self, x: Tensor, generator: torch.Generator, stream: int = 1) -> Tensor:
        """New functions at ``x [T, N]``."""
        chosen, values = self.choose(len(x), generator), torch.empty_like(x)
        for number, kind in enumerate(self.kinds):
            rows = chosen == number
            values[rows] = kind.values(x[rows], generator)
        return values


class Curve(FunctionFamily):
    """A kind whose functions are Σ c·f(x, θ): linear in all but a few parameters θ, the ``searched``.

    Attributes:
        searched: names of θ; the others are coefficients.
        swings: pairs of coefficients that are an amplitude A and a phase b, uniform on a whole turn; A·sin(· + b) is
            linear in A·cos b and A·sin b.
    """

    searched: ClassVar[tuple[str, ...]] = ()
    swings: ClassVar[tuple[tuple[str, str], ...]] = ()

    @property
    def plain(self) -> tuple[str, ...]:
        """The coefficients that are not of a swing."""
        return tuple(name for name in self.parameters if name not in {*self.searched, *sum(self.swings, ())})

    def basis(self, x: Tensor, **theta: Tensor) -> Tensor:
        """f(x, θ) ``[..., N, k]`` at ``x [..., N]``, given each of θ as ``[..., 1]``: swings first."""
        none = {name: x.new_zeros(1) for name in self.parameters if name not in theta}
        one = x.new_ones(1)
        given = [{a: one, b: at * one} for a, b in self.swings for at in (0.0, 0.5 * math.pi)]
        given += [{name: one} for name in self.plain]
        return torch.stack([self.evaluate(x, **{**none, **theta, **coefficient}) for coefficient in given], dim=-1)

    def log_density(self, coefficients: Tensor) -> Tensor:
        """Of the prior at ``coefficients [..., k]``; minus infinity outside its ranges."""
        swings, plain = coefficients.split([2 * len(self.swings), len(self.plain)], dim=-1)
        sizes = torch.cat([swings.unflatten(-1, (-1, 2)).norm(dim=-1), plain], dim=-1)
        names = (*(amplitude for amplitude, _ in self.swings), *self.plain)
        low, high = torch.tensor([self.parameters[name] for name in names], dtype=sizes.dtype).mT
        turns = 2 * math.pi * sizes[..., : len(self.swings)]
        density = -(high - low).log().sum() - turns.log().sum(-1)
        return torch.where(((sizes >= low) & (sizes <= high)).all(-1), density, -math.inf)


class Wave(Curve):
    """Sines from slow to fast."""

    searched = ("frequency",)
    swings = (("amplitude", "phase"),)

    parameters = {"amplitude": (1.0, 3.0), "frequency": (0.3, 6.0), "phase": (0.0, 2 * math.pi)}

    def evaluate(self, x: Tensor, **parameters: Tensor) -> Tensor:
        """A·sin(wx + b)."""
        return parameters["amplitude"] * torch.sin(parameters["frequency"] * x + parameters["phase"])


class Sawtooth(Curve):
    """Ramps from -height to height, rising or falling."""

    searched = ("period", "phase")

    parameters = {"slope": (-1.0, 1.0), "height": (1.0, 3.0), "period": (1.5, 6.0), "phase": (0.0, 1.0)}

    def evaluate(self, x: Tensor, **parameters: Tensor) -> Tensor:
        """The sign of the slope says whether it rises or falls."""
        ramp = 2 * ((x / parameters["period"] + parameters["phase"]) % 1.0) - 1
        return parameters["slope"].sign() * parameters["height"] * ramp

    @property
    def plain(self) -> tuple[str, ...]:
        """The height, whose sign is that of the slope."""
        return ("height",)

    def basis(self, x: Tensor, **theta: Tensor) -> Tensor:
        """The rising ramp."""
        return super().basis(x, slope=x.new_ones(1), **theta)

    def log_density(self, coefficients: Tensor) -> Tensor:
        """Rising or falling alike."""
        return super().log_density(coefficients.abs()) - math.log(2)


class Step(Curve):
    """One level to the left of a place, another to the right."""

    searched = ("place",)

    parameters = {"left": (-3.0, 3.0), "right": (-3.0, 3.0), "place": (-4.0, 4.0)}

    def evaluate(self, x: Tensor, **parameters: Tensor) -> Tensor:
        """Left or right of the place."""
        return torch.where(x < parameters["place"], parameters["left"], parameters["right"])


class Line(Curve):
    """Straight lines."""

    parameters = {"slope": (-0.7, 0.7), "middle": (-2.0, 2.0)}

    def evaluate(self, x: Tensor, **parameters: Tensor) -> Tensor:
        """The value at 0 is the middle."""
        return parameters["slope"] * x + parameters["middle"]


class Parabola(Curve):
    """Parabolas that open upwards or downwards."""

    searched = ("vertex",)

    parameters = {"bend": (-0.18, 0.18), "vertex": (-2.5, 2.5), "middle": (-1.5, 1.5)}

    def evaluate(self, x: Tensor, **parameters: Tensor) -> Tensor:
        """The middle is about the mean over the domain."""
        return parameters["bend"] * ((x - parameters["vertex"]).square() - 10) + parameters["middle"]


class Damped(Curve):
    """Oscillations that die away from left to right."""

    searched = ("decay", "frequency")
    swings = (("amplitude", "phase"),)

    parameters = {"amplitude": (2.0, 5.0), "decay": (0.1, 0.4), "frequency": (1.0, 6.0), "phase": (0.0, 2 * math.pi)}

    def evaluate(self, x: Tensor, **parameters: Tensor) -> Tensor:
        """The amplitude is that at the left end of the domain."""
        swing = torch.sin(parameters["frequency"] * x + parameters["phase"])
        return parameters["amplitude"] * torch.exp(-parameters["decay"] * (x - self.domain[0])) * swing


class TwoWaves(Curve):
    """Sums of two sines."""

    searched = ("frequency1", "frequency2")
    swings = (("amplitude1", "phase1"), ("amplitude2", "phase2"))

    parameters = {f"{name}{i}": ends for i in "12" for name, ends in Wave.parameters.items()} | {
        "amplitude1": (0.5, 2.0),
        "amplitude2": (0.5, 2.0),
    }

    def evaluate(self, x: Tensor, **parameters: Tensor) -> Tensor:
        """The sum."""
        waves = ({name: parameters[f"{name}{i}"] for name in Wave.parameters} for i in "12")
        first, second = (Wave().evaluate(x, **wave) for wave in waves)
        return first + second


@register_family("mixed")
class Mixed(MixedFamily):
    """Each task is a sine, a saw tooth, a step, a line, a parabola, a damped wave or a sum of two sines."""

    kinds: ClassVar[tuple[Curve, ...]] = (Wave(), Sawtooth(), Step(), Line(), Parabola(), Damped(), TwoWaves())

    def oracles(self) -> dict[str, Oracle]:
        """The posterior over kinds and parameters, by a search."""
        return {"Bayes-optimal": SearchedLimit(self.kinds)}


class GaussianProcess(FunctionFamily):
    """Draws of a Gaussian process whose length and scale are drawn for each task.

    The protocol of Transformer Neural Processes (Nguyen and Grover, 2022): x in [-2, 2], 3 to 46 points to learn from,
    fewer than 50 in all, noise 0.02.
    """

    domain = (-2.0, 2.0)
    noise = 0.02
    unequal = True
    parameters = {"length": (0.1, 0.6), "scale": (0.1, 1.0)}

    def correlation(self, distance: Tensor, **parameters: Tensor) -> Tensor:
        """The kernel at scale 1 of ``distance [..., N, M]``, given each parameter but the scale as ``[..., 1, 1]``."""
        raise NotImplementedError

    def values(self, x: Tensor, generator: torch.Generator, stream: int = 1) -> Tensor:
        """New functions at ``x [T, N]``, drawn in double precision."""
        drawn = {name: value.double().unsqueeze(-1) for name, value in self.draw(len(x), generator).items()}
        normal = torch.randn(*x.shape, 1, dtype=torch.double, generator=generator)
        jitter = JITTER * torch.eye(x.shape[1], dtype=torch.double)
        values = torch.empty_like(x)
        for start in range(0, len(x), AT_ONCE):
            part = slice(start, start + AT_ONCE)
            at, own = x[part].double(), {name: value[part] for name, value in drawn.items()}
            scale = own.pop("scale")
            correlation = self.correlation((at.unsqueeze(-1) - at.unsqueeze(-2)).abs(), **own)
            factor = torch.linalg.cholesky(correlation + jitter)
            values[part] = (scale * (factor @ normal[part])).squeeze(-1).to(x.dtype)
        return values

    def oracles(self) -> dict[str, Oracle]:
        """Exact prediction for each length and scale (and period), weighed by their posterior."""
        return {"Bayes-optimal": GaussianProcessLimit((self,))}


@register_family("gp-rbf")
class GaussianRBF(GaussianProcess):
    """Smooth draws: the Gaussian (RBF) kernel."""

    def correlation(self, distance: Tensor, **parameters: Tensor) -> Tensor:
        """exp(-d² / 2l²)."""
        return torch.exp(-0.5 * (distance / parameters["length"]).square())


@register_family("gp-matern")
class GaussianMatern(GaussianProcess):
    """Rougher draws: the Matérn kernel of smoothness 5/2."""

    def correlation(self, distance: Tensor, **parameters: Tensor) -> Tensor:
        """(1 + r + r²/3)·exp(-r) with r = √5·d / l."""
        r = math.sqrt(5) * distance / parameters["length"]
        return (1 + r + r.square() / 3) * torch.exp(-r)


@register_family("gp-periodic")
class GaussianPeriodic(GaussianProcess):
    """Draws that repeat: the periodic kernel."""

    parameters = {**GaussianProcess.parameters, "period": (0.1, 0.5)}

    def correlation(self, distance: Tensor, **parameters: Tensor) -> Tensor:
        """exp(-2·sin²(πd / p) / l²)."""
        sine = torch.sin(math.pi * distance / parameters["period"])
        return torch.exp(-2 * (sine / parameters["length"]).square())


@register_family("gp-mixed")
class GaussianMixed(MixedFamily):
    """Each task is a draw of one of the three Gaussian processes."""

    domain = GaussianProcess.domain
    noise = GaussianProcess.noise
    unequal = True
    kinds: ClassVar[tuple[GaussianProcess, ...]] = (GaussianRBF(), GaussianMatern(), GaussianPeriodic())

    def oracles(self) -> dict[str, Oracle]:
        """As for one kernel, with the kind inferred too."""
        return {"Bayes-optimal": GaussianProcessLimit(self.kinds)}
