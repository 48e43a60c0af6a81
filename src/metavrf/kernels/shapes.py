"""Kernels of a task's own that stand for one shape: a wave, a ramp that repeats, a step.

A task may be a curve of few parameters: the amplitude and phase of a wave, the height of a saw tooth, the two levels of
a step. Given what is left, a frequency or a place, such a curve is Σ c·f(x) of one or two functions f; with normal c it
is a Gaussian process whose kernel is the product of these functions, and how well it explains the support is in closed
form. So what is left is tried, from coarse to fine:

    wave   k = cos t·cos t' + sin t·sin t',   t = f·p                 p the phase of a sample, f a frequency
    ramp   k = r·r',                          t = f·p + b             r = t/π - 1 for t in [0, 2π), and repeated
    step   k = r·r' + 1,                      t = ε·(p - place)       ε so small that r is 1 before the place, -1 after

Each kind has cells of the unit square (u, v), where u is the frequency or the place and v is b. Some cells stand for
all (:func:`metavrf.thinning.stand_ins`), are split, weighed again, and so on. Nothing here has a gradient.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor

from metavrf.kernels.spectral import Spectral, sawtooth
from metavrf.thinning import stand_ins

CAUTION = 0.5  # power of the weights that cells are chosen by: a coarse cell may weigh more than it seems to
CELLS = 64  # of each task and kind, that stand for all while they are split
SPLITS = 2
SLOWEST, FASTEST = 0.5, 10.0  # frequencies, in multiples of the direction
EPSILON = 1e-6  # the frequency of a step
LEAST_NOISE = 1e-9  # in units of the amplitude


class Kind(NamedTuple):
    """A kind of shape: how its square is cut, how each cell is split, and the constant in its kernel."""

    cells: tuple[int, int]
    split: tuple[int, int]
    level: float | None
    """None for a wave, which does not jump."""


RAMP, STEP, WAVE = Kind((128, 24), (4, 4), 0.0), Kind((48, 1), (8, 1), 1.0), Kind((256, 1), (16, 1), None)
KINDS = (RAMP, STEP, WAVE)  # those that jump first, as Spectral has them


class Shapes(NamedTuple):
    """What all tasks share of their shapes, by kind.

    Attributes:
        amplitude: ``[3]``, a².
        noise: ``[3]``, λ, the variance of the observations.
        log_prior: ``[3]``.
        log_rates: ``[3, B]``, the log of the prior density of u, at the middles of B bins of [0, 1].
        ends: ``[2]``, the lowest and the highest phase of samples.
    """

    amplitude: Tensor
    noise: Tensor
    log_prior: Tensor
    log_rates: Tensor
    ends: Tensor

    def log_density(self, kind: int, u: Tensor) -> Tensor:
        """The log of the prior density of a shape."""
        bins = self.log_rates.shape[1]
        at = (u * bins - 0.5).clamp(0, bins - 1)
        left = at.long().clamp_max(bins - 2)
        rates = self.log_rates[kind]
        return self.log_prior[kind] + torch.lerp(rates[left], rates[left + 1], (at - left).to(rates))

    def wave(self, kind: int, place: Tensor) -> tuple[Tensor, Tensor]:
        """Frequency and offset of shapes at ``place [..., 2]`` in the square."""
        u, v = place.unbind(-1)
        low, high = self.ends
        if KINDS[kind] is STEP:
            return torch.full_like(u, EPSILON), -EPSILON * (low + (high - low) * u)
        frequency = SLOWEST + (FASTEST - SLOWEST) * u
        turned = 2 * math.pi * v - 0.5 * (low + high) * frequency  # about the middle, where cells do not shear
        return frequency, torch.zeros_like(u) if KINDS[kind] is WAVE else turned

    def smear(self, kind: int, width: tuple[float, float]) -> Tensor:
        """What a cell of this width leaves open of the function, as a share of its variance."""
        if KINDS[kind] is STEP:
            return torch.zeros_like(self.ends[0])
        reach = (FASTEST - SLOWEST) * width[0] * (self.ends[1] - self.ends[0])
        variance = reach.square() / 144
        return variance if KINDS[kind] is WAVE else variance / math.pi**2 + width[1] ** 2 / 3

    def of(self, kept: Kept, direction: Tensor) -> Spectral:
        """The kernels that were kept, with their frequencies as multiples of ``direction [d]``: K of each kind."""
        found: list[tuple[Tensor, ...]] = []
        for number, (kind, place, log_cell) in enumerate(zip(KINDS, kept.place, kept.log_cell, strict=True)):
            frequency, offset = (value.mT.to(direction) for value in self.wave(number, place))  # [K, T]
            density = self.log_density(number, place[..., 0]).mT + log_cell.mT.to(direction)
            noise = self.noise[number] / self.amplitude[number] + kept.smear[number].to(direction)
            level = torch.full_like(offset, -1.0 if kind.level is None else kind.level)
            amplitude = self.amplitude[number].expand_as(density)
            found.append((frequency, amplitude, noise.expand_as(density), density, offset, level))
        frequency, amplitude, noise, log_prior, offset, level = (
            torch.cat(values) for values in zip(*found, strict=True)
        )
        mean = frequency.unsqueeze(-1) * direction
        jump = torch.stack([offset, level], dim=-1)
        return Spectral(mean, torch.zeros_like(mean), amplitude, noise, log_prior, jump=jump)


class Kept(NamedTuple):
    """Shapes that stand for all that were tried, by kind.

    Attributes:
        place: ``[T, K, 2]`` each.
        log_cell: ``[T, K]`` each, the log of the size of the cell, and of the number of cells, that it stands for.
        smear: what the width of cells leaves open, as a share of the variance.
    """

    place: list[Tensor]
    log_cell: list[Tensor]
    smear: list[Tensor]


@torch.no_grad()
def search_shapes(phase: Tensor, targets: Tensor, shapes: Shapes, keep: int) -> Kept:
    """The ``keep`` shapes of each kind and task that stand for all, given ``phase [T, S]`` and ``targets [T, S, p]``.

    In double precision, so that what is kept does not hang on how tasks or samples are ordered.
    """
    shapes = Shapes(*(value.double() for value in shapes))
    kept = Kept([], [], [])
    for number, kind in enumerate(KINDS):
        place = _cells(kind.cells, phase).expand(len(phase), -1, -1)
        width = (1 / kind.cells[0], 1 / kind.cells[1])
        log_cell = torch.full(place.shape[:2], math.log(width[0] * width[1]), dtype=phase.dtype, device=phase.device)
        within = _cells(kind.split, phase) - 0.5
        for _ in range(SPLITS):
            log_weight = _weigh(number, phase, targets, place, width, shapes) + log_cell
            index, log_share = stand_ins(CAUTION * log_weight, CELLS)
            size = phase.new_tensor(width)
            place = (_rows(place, index).unsqueeze(2) + size * within).flatten(1, 2)
            log_cell = (log_cell.gather(1, index) - log_share - math.log(len(within))).repeat_interleave(len(within), 1)
            width = (width[0] / kind.split[0], width[1] / kind.split[1])
        log_weight = _weigh(number, phase, targets, place, width, shapes) + log_cell
        index, log_share = stand_ins(log_weight, keep)
        kept.place.append(_rows(place, index))
        kept.log_cell.append(log_cell.gather(1, index) - log_share)
        kept.smear.append(shapes.smear(number, width))
    return kept


def _weigh(  # noqa: PLR0917
    kind: int, phase: Tensor, targets: Tensor, place: Tensor, width: tuple[float, float], shapes: Shapes
) -> Tensor:
    """The log of prior times likelihood of shapes at ``place [T, N, 2]``: ``[T, N]``.

    With Φ ``[S, 2]`` the functions of a shape, ρ the noise and B = ΦᵀΦ + ρI, the matrix inversion lemma says that
    |ΦΦᵀ + ρI| = ρˢ⁻²·|B| and yᵀ(ΦΦᵀ + ρI)⁻¹y = (yᵀy - yᵀΦB⁻¹Φᵀy) / ρ.
    """
    frequency, offset = shapes.wave(kind, place)
    angle = frequency.unsqueeze(-1) * phase.unsqueeze(1) + offset.unsqueeze(-1)  # [T, N, S]
    samples, outputs = targets.shape[1:]
    amplitude, level = shapes.amplitude[kind], KINDS[kind].level
    noise = (shapes.noise[kind] / amplitude + shapes.smear(kind, width)).clamp_min(LEAST_NOISE)
    first = angle.cos() if level is None else sawtooth(angle)
    square, across = torch.linalg.vecdot(first, first), first @ targets  # [T, N] and [T, N, p]
    if level is None:
        second = angle.sin()
        product, other, beside = torch.linalg.vecdot(first, second), samples - square, second @ targets
    else:
        product, other = level * first.sum(-1), torch.full_like(square, level * samples)
        beside = (level * targets.sum(1, keepdim=True)).expand_as(across)
    square, other = square + noise, other + noise
    determinant = square * other - product.square()
    explained = other * across.square().sum(-1) + square * beside.square().sum(-1)
    explained = (explained - 2 * product * (across * beside).sum(-1)) / determinant
    energy = (targets.square().sum((1, 2)).unsqueeze(1) - explained) / (noise * amplitude)
    log_det = (samples - 2) * noise.log() + determinant.log() + samples * (2 * math.pi * amplitude).log()
    return shapes.log_density(kind, place[..., 0]) - 0.5 * (energy + outputs * log_det)


def _cells(sides: tuple[int, int], like: Tensor) -> Tensor:
    """The middles of equal cells of the unit square, ``[N, 2]``."""
    along = ((torch.arange(side, dtype=like.dtype, device=like.device) + 0.5) / side for side in sides)
    return torch.cartesian_prod(*along)


def _rows(values: Tensor, index: Tensor) -> Tensor:
    """``values [T, N, 2]`` at ``index [T, M]``."""
    return values.gather(1, index.unsqueeze(-1).expand(-1, -1, values.shape[-1]))
