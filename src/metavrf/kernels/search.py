"""The periodic kernels of a task's own: thousands are tried from coarse to fine, and a few stand for all.

A period matters to a small share of the distance between two peaks of its kernel, so that no grid of learned kernels
holds it. But how well a periodic kernel explains the support is in closed form, so frequencies are tried. A coarse cell
of frequencies f ± w/2 is weighed as what it is, a comb whose frequency is not known to more than w: at the lag d the
peaks of exp(κ(cos fd - 1)) are smeared by the deviation σd with σ² = w²/12, which is about the comb of sharpness
κ' = κ / (1 + κσ²d²) with the same mean over a period:

    k(d) = e⁻ᵏI₀(κ) / e⁻ᵏ'I₀(κ') · exp(κ'(cos fd - 1)).

Some cells stand for all (:func:`metavrf.thinning.stand_ins`), are split, weighed again, and so on. Nothing here
has a gradient.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor

from metavrf.kernels.spectral import Spectral
from metavrf.thinning import stand_ins

FIRST_WIDTH = 2.0  # of the first cells, in units of 1 / √κ: what one comb says is then known over a few lags
SPLITS = (4, 4, 4, 4)  # of each cell
CAUTION = 0.5  # power of the weights that cells are chosen by: a coarse cell may weigh more than it seems to
LEAST_NOISE = 1e-6  # in units of the amplitude: smeared combs are positive definite up to an approximation
NUMBERS = 1_000_000  # of all matrices at once
LOWEST = -1e30  # log likelihood


class Combs(NamedTuple):
    """What all tasks share of their combs: R sharpnesses, A amplitudes, and a range of frequencies.

    Attributes:
        sharpness: ``[R]``, κ.
        amplitude: ``[A]``, a².
        noise: λ, the variance of the observations.
        log_prior: ``[R, A]``.
        ends: the lowest and the highest frequency.
        log_rates: ``[B]``, the log of the prior density of frequencies, at the middles of B bins between the ends.
    """

    sharpness: Tensor
    amplitude: Tensor
    noise: Tensor
    log_prior: Tensor
    ends: tuple[float, float]
    log_rates: Tensor

    def log_density(self, sharpness: Tensor, frequency: Tensor) -> Tensor:
        """The log of the prior density of a frequency and of each amplitude, ``[..., A]``, for numbers of κ."""
        low, high = self.ends
        bins = len(self.log_rates)
        at = ((frequency - low) * (bins / (high - low)) - 0.5).clamp(0, bins - 1)
        left = at.long().clamp_max(bins - 2)
        rate = torch.lerp(self.log_rates[left], self.log_rates[left + 1], (at - left).to(self.log_rates))
        return self.log_prior[sharpness] + rate.unsqueeze(-1)

    def of(self, kept: Kept, direction: Tensor) -> Spectral:
        """The kernels that were kept, as peaks at multiples of ``direction [d]``, K of each task."""
        sharpness, level, frequency = (value.mT for value in kept[:3])  # [K, T]
        amplitude = self.amplitude[level]
        mean = frequency.unsqueeze(-1).to(direction) * direction
        density = self.log_density(sharpness, frequency).gather(-1, level.unsqueeze(-1)).squeeze(-1)
        noise = self.noise / amplitude + kept.smear.mT.to(amplitude)
        log_prior = density + kept.log_cell.mT.to(amplitude)
        return Spectral(mean, torch.zeros_like(mean), amplitude, noise, log_prior, self.sharpness[sharpness])


class Kept(NamedTuple):
    """Combs that stand for all that were tried, ``[T, K]`` each.

    Attributes:
        sharpness: the number of κ.
        amplitude: the number of a².
        frequency: of the comb.
        log_cell: the log of the width of the cell of frequencies, and of the number of cells, that it stands for.
        smear: what the width of the cell leaves open of the function, as a share of its variance.
    """

    sharpness: Tensor
    amplitude: Tensor
    frequency: Tensor
    log_cell: Tensor
    smear: Tensor


@torch.no_grad()
def search(phase: Tensor, targets: Tensor, combs: Combs, keep: int) -> Kept:
    """The ``keep`` combs of each task that stand for all, given ``phase [T, S]`` and ``targets [T, S, p]``.

    A comb's kernel is exp(κ(cos fΔ - 1)), Δ a difference of phases. In double precision, so that what is kept does not
    hang on how tasks or samples are ordered.
    """
    combs = Combs(*(value.double() if isinstance(value, Tensor) else value for value in combs))  # type: ignore[arg-type]
    support = _Support(phase, targets, combs)
    number, frequency, width = _first(combs, len(phase))
    log_cell = width[number].log()
    for parts in (*SPLITS, 1):
        log_weight = support.weigh(number, frequency, width) + log_cell
        index, log_share = stand_ins(CAUTION * log_weight, keep)
        number, frequency, log_cell = (value.gather(1, index) for value in (number, frequency, log_cell))
        log_cell = log_cell - log_share - math.log(parts)
        places = (torch.arange(parts, device=phase.device) + 0.5) / parts - 0.5
        frequency = (frequency.unsqueeze(-1) + width[number].unsqueeze(-1) * places).flatten(1)
        number, log_cell = (value.repeat_interleave(parts, dim=1) for value in (number, log_cell))
        width = width / parts
    log_weight = support.weigh_levels(number, frequency, width) + log_cell.unsqueeze(-1)  # [T, N, A]
    index, log_share = stand_ins(log_weight.flatten(1), keep)
    cell, level = index // len(combs.amplitude), index % len(combs.amplitude)
    number, frequency, log_cell = (value.gather(1, cell) for value in (number, frequency, log_cell))
    return Kept(number, level, frequency, log_cell - log_share, support.smear(number, width))


def _first(combs: Combs, tasks: int) -> tuple[Tensor, Tensor, Tensor]:
    """The first cells: the number of κ and the frequency, ``[T, N]``, and the width by κ, ``[R]``."""
    low, high = combs.ends
    counts = ((high - low) * combs.sharpness.sqrt() / FIRST_WIDTH).ceil().long().clamp_min(1)
    width = (high - low) / counts.double()
    number = torch.arange(len(counts), device=counts.device).repeat_interleave(counts)
    place = torch.arange(len(number), device=counts.device) - (counts.cumsum(0) - counts)[number]
    frequency = low + (place + 0.5) * width[number]
    return number.expand(tasks, -1), frequency.expand(tasks, -1), width


class _Support:
    """The support of tasks, that says how well combs explain it."""

    def __init__(self, phase: Tensor, targets: Tensor, combs: Combs) -> None:
        self.phase, self.targets, self.combs = phase, targets, combs
        self.samples = phase.shape[1]
        self.spread = phase.var(1, correction=0).unsqueeze(1)  # [T, 1]
        typical = targets.square().mean((1, 2)).clamp(combs.amplitude.min(), combs.amplitude.max())
        self.typical_noise = combs.noise / typical.unsqueeze(1)  # [T, 1]

    def weigh(self, number: Tensor, frequency: Tensor, width: Tensor) -> Tensor:
        """The log of prior times likelihood of smeared combs, ``[T, N]``, summed over amplitudes.

        The noise is taken to be in proportion to the amplitude, so that one factorisation serves all of these.
        """
        lag = (self.phase.unsqueeze(-1) - self.phase.unsqueeze(-2)).unsqueeze(1)  # [T, 1, S, S]
        kappa, variance = self.combs.sharpness.view(-1, 1, 1), width.square().view(-1, 1, 1) / 12
        smeared = kappa / (1 + kappa * variance * lag.square())  # [T, R, S, S]
        offset = (torch.special.i0e(kappa) / torch.special.i0e(smeared)).log()
        parts = []
        for some, at in self._chunks(number, frequency):
            index = some[..., None, None].expand(-1, -1, self.samples, self.samples)
            gram = self._cosines(at).sub_(1).mul_(smeared.gather(1, index)).add_(offset.gather(1, index)).exp_()
            parts.append(self._log_likelihood(gram, self.typical_noise.expand_as(at)))
        return (torch.cat(parts, dim=1) + self.combs.log_density(number, frequency)).logsumexp(-1)

    def weigh_levels(self, number: Tensor, frequency: Tensor, width: Tensor) -> Tensor:
        """Likewise of each amplitude, ``[T, N, A]``, where cells are so narrow that noise stands for their width."""
        noise = self.combs.noise / self.combs.amplitude + self.smear(number, width).unsqueeze(-1)  # [T, N, A]
        levels = len(self.combs.amplitude)
        parts = []
        for some, at, ratio in self._chunks(number, frequency, noise):
            gram = self._cosines(at).sub_(1).mul_(self.combs.sharpness[some][..., None, None]).exp_()
            found = self._log_likelihood(gram.repeat_interleave(levels, dim=1), ratio.flatten(1))
            parts.append(found.unflatten(1, (-1, levels)).diagonal(dim1=-2, dim2=-1))  # each with its own noise
        return torch.cat(parts, dim=1) + self.combs.log_density(number, frequency)

    def smear(self, number: Tensor, width: Tensor) -> Tensor:
        """What a frequency known to ``width [R]`` leaves open, as a share of the variance: ``[T, N]``."""
        return (self.combs.sharpness * width.square() / 12)[number] * self.spread

    def _cosines(self, frequency: Tensor) -> Tensor:
        """Cos fΔ ``[T, N, S, S]``, as products of waves."""
        angle = frequency.unsqueeze(-1) * self.phase.unsqueeze(1)
        cos, sin = angle.cos(), angle.sin()
        return (cos.unsqueeze(-1) * cos.unsqueeze(-2)).addcmul_(sin.unsqueeze(-1), sin.unsqueeze(-2))

    def _log_likelihood(self, gram: Tensor, noise: Tensor) -> Tensor:
        """Of the targets under each amplitude, ``[T, N, A]``; what is not positive definite explains nothing."""
        gram.diagonal(dim1=-2, dim2=-1).add_(noise.clamp_min(LEAST_NOISE).unsqueeze(-1))
        factor, info = torch.linalg.cholesky_ex(gram)
        white = torch.linalg.solve_triangular(factor, self.targets.unsqueeze(1), upper=False)
        energy = white.square().sum((-2, -1), keepdim=True).squeeze(-1)  # [T, N, 1]
        log_det = 2 * factor.diagonal(dim1=-2, dim2=-1).log().sum(-1, keepdim=True)
        outputs, amplitude = self.targets.shape[-1], self.combs.amplitude
        log_det = log_det + self.samples * (amplitude.log() + math.log(2 * math.pi))
        found = -0.5 * (energy / amplitude + outputs * log_det)
        return found.masked_fill((info > 0).unsqueeze(-1), LOWEST)

    def _chunks(self, *values: Tensor) -> list[tuple[Tensor, ...]]:
        """Values ``[T, N, ...]`` in parts whose matrices are held at once."""
        size = max(1, NUMBERS // (self.samples**2 * len(self.phase)))
        return list(zip(*(value.split(size, dim=1) for value in values), strict=True))
