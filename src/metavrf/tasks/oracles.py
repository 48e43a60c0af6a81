"""What no learner can beat: predictors that know the distribution of the tasks, and have nothing to learn.

They see each task alone, so that on streams of related tasks a learner that remembers can do better.

``AffineLimit`` bounds every predictor of sines that is affine in the support's y, as MetaVRF is when its context sees
only x. ``BayesLimit`` and ``NoisyBayesLimit`` bound every predictor of sines, ``GaussianProcessLimit`` every one of
Gaussian processes. ``tasks/searched.py`` has that of curves of several kinds.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import torch
from torch import Tensor

from metavrf.episodes import Episodes
from metavrf.errors import UserError
from metavrf.prediction import Prediction
from metavrf.thinning import stand_ins

if TYPE_CHECKING:
    from metavrf.tasks.families import GaussianProcess
    from metavrf.tasks.functions import Sine

Oracle = Callable[[Episodes], Prediction]

NEGLIGIBLE = 1e-9  # posterior weight
JITTER = 1e-9  # of the prior variance; tasks may be noise-free
COMPONENTS = 64  # of the mixture that a posterior over sines is told as
FAINT = 1e-6  # weight of a component left out, beside the heaviest


def _quadrature(low: float, high: float, nodes: int) -> tuple[Tensor, Tensor]:
    """Gauss-Legendre points and weights of the uniform distribution on [low, high]."""
    if low == high:
        return torch.tensor([low], dtype=torch.double), torch.ones(1, dtype=torch.double)
    points, weights = np.polynomial.legendre.leggauss(nodes)
    return torch.from_numpy(0.5 * (low + high) + 0.5 * (high - low) * points), torch.from_numpy(weights / 2)


def _waves(x: Tensor, frequency: Tensor) -> Tensor:
    """sin(wx) and cos(wx) for every frequency: ``[..., 2, W]`` of ``x [...]``."""
    angle = x.unsqueeze(-1) * frequency
    return torch.stack([angle.sin(), angle.cos()], dim=-2)


class Components(NamedTuple):
    """A mixture of normals: log weights ``[T, K]``, means and variances ``[T, Q, K]``."""

    log_weights: Tensor
    mean: Tensor
    variance: Tensor


def _merged(weight: Tensor, mean: Tensor, variance: Tensor) -> Components:
    """At most ``COMPONENTS`` normals in place of neighbouring ones, with their mean and variance.

    ``weight [T, C]`` sums to 1; ``mean`` and ``variance`` are ``[T, Q, C]`` or can be expanded to it. Each new
    component stands for an equal share of the weight; one that stands for none is a standard normal of weight 0.
    """
    place = (COMPONENTS * (weight.cumsum(1) - 0.5 * weight)).long().clamp(0, COMPONENTS - 1)
    share = torch.zeros(*weight.shape, COMPONENTS, dtype=weight.dtype)
    share.scatter_(2, place.unsqueeze(-1), weight.unsqueeze(-1))  # [T, C, K]
    total = share.sum(1)  # [T, K]
    empty = (total == 0).unsqueeze(1)
    divisor = total.unsqueeze(1).masked_fill(empty, 1)
    first, second = mean @ share / divisor, (variance + mean.square()) @ share / divisor
    return Components(total.log(), first, (second - first.square()).clamp_min(1e-12).masked_fill(empty, 1))


def told(parts: Sequence[Components]) -> Prediction:
    """The prediction of mixtures of equally many components, ``[T, K]`` and ``[T, Q, K]``."""
    log_weights, mean, variance = (torch.cat(part) for part in zip(*parts, strict=True))
    weight = log_weights.exp().unsqueeze(1)
    centre = (weight * mean).sum(-1)
    std = (weight * (variance + (mean - centre.unsqueeze(-1)).square())).sum(-1).sqrt()
    samples, variances = (part.permute(2, 0, 1).unsqueeze(-1).float() for part in (mean, variance))
    return Prediction(
        centre.unsqueeze(-1).float(),
        samples,
        std.unsqueeze(-1).float(),
        variance=variances,
        log_weights=log_weights.mT.contiguous(),
    )


class AffineLimit:
    """The exact Gaussian process of the task distribution: its mean and covariance, by quadrature.

    A·sin(wx + b) = A·cos b·sin(wx) + A·sin b·cos(wx), so moments of A and b suffice for each w.
    """

    def __init__(self, family: Sine) -> None:
        (a_low, a_high), phase = family.parameters["amplitude"], family.parameters["phase"]
        b, b_weight = _quadrature(*phase, 64)
        ab = torch.stack([b.cos(), b.sin()])  # [2, B]
        self.amplitude = 0.5 * (a_low + a_high)
        amplitude_square = (a_low**2 + a_low * a_high + a_high**2) / 3
        self.first = self.amplitude * (ab @ b_weight)  # E[A cos b], E[A sin b]
        self.second = amplitude_square * (ab * b_weight) @ ab.mT  # [2, 2]
        self.frequency, self.weight = _quadrature(*family.parameters["frequency"], 32)
        self.noise = family.noise**2 + JITTER * self.second.trace()

    def __call__(self, episodes: Episodes) -> Prediction:
        """Gaussian process regression in double precision."""
        size = episodes.support_x.shape[1]
        x = torch.cat([episodes.support_x, episodes.query_x], dim=1).squeeze(-1).double()
        waves = _waves(x, self.frequency)  # [T, N, 2, W]
        mean = torch.einsum("tnaw,a,w->tn", waves, self.first, self.weight)
        moved = torch.einsum("tnaw,ab,w->tnbw", waves, self.second, self.weight)
        covariance = moved.flatten(2) @ waves.flatten(2).mT - mean.unsqueeze(-1) * mean.unsqueeze(-2)
        gram = covariance[:, :size, :size] + self.noise * torch.eye(size, dtype=torch.double)
        factor = torch.linalg.cholesky(gram)
        cross = torch.linalg.solve_triangular(factor, covariance[:, :size, size:], upper=False)  # [T, S, Q]
        residual = episodes.support_y.double() - mean[:, :size, None]
        fit = mean[:, size:, None] + cross.mT @ torch.linalg.solve_triangular(factor, residual, upper=False)
        variance = covariance.diagonal(dim1=1, dim2=2)[:, size:] - cross.square().sum(1)
        std = (variance.clamp_min(0) + self.noise).sqrt().unsqueeze(-1)
        return Prediction(fit.float(), fit.float().unsqueeze(0), std.float())


class BayesLimit:
    """The posterior over A, w and b of sines without noise, by a fine grid over w.

    Given w, the curve is linear in u = A·cos b and v = A·sin b. Its likelihood under a very small noise is a
    narrow Gaussian around the least-squares (u, v), where the prior of (u, v) is flat: 1/A inside the ranges of A
    and b. The weight of each w follows. With noise 0.003 the figures are exact to about 1e-5.
    """

    NOISE = 3e-3
    GRID = 4001
    CHUNK = 4  # tasks at once: those few rule out most frequencies together

    def __init__(self, family: Sine) -> None:
        low, high = family.parameters["frequency"]
        self.amplitude, self.phase = family.parameters["amplitude"], family.parameters["phase"]
        self.frequency = torch.linspace(low, high, 1 if low == high else self.GRID, dtype=torch.double)

    def __call__(self, episodes: Episodes) -> Prediction:
        """The posterior as a mixture; needs two support points or more."""
        if episodes.support_x.shape[1] < 2:
            raise UserError("the Bayes limit needs at least 2 shots")
        return told([self._solve(chunk) for chunk in episodes.batches(self.CHUNK)])

    def _solve(self, episodes: Episodes) -> Components:
        x, y = episodes.support_x.squeeze(-1).double(), episodes.support_y.squeeze(-1).double()
        sine, cosine = _waves(x, self.frequency).unbind(2)  # [T, S, W]
        # Least squares for (u, v) at each w: the 2 x 2 normal equations, by hand and for all at once.
        ss, cc, sc = sine.square().sum(1), cosine.square().sum(1), (sine * cosine).sum(1)  # [T, W]
        sy, cy = torch.einsum("tsw,ts->tw", sine, y), torch.einsum("tsw,ts->tw", cosine, y)
        determinant = (ss * cc - sc.square()).clamp_min(1e-12)
        u, v = (cc * sy - sc * cy) / determinant, (ss * cy - sc * sy) / determinant
        misfit = (y.unsqueeze(-1) - u.unsqueeze(1) * sine - v.unsqueeze(1) * cosine).square().sum(1)
        amplitude, inside = self._prior(u, v)
        log_weight = -misfit / (2 * self.NOISE**2) - 0.5 * determinant.log() - amplitude.log()
        # Where no grid point lies inside the ranges (the truth is at their edge), the prior gives way to the fit.
        inside = inside | ~inside.any(1, keepdim=True)
        weight = torch.softmax(log_weight.masked_fill(~inside, -math.inf), dim=1)  # [T, W]
        likely = weight.amax(0) > NEGLIGIBLE  # most frequencies are ruled out for every task of the chunk
        weight, uv = weight[:, likely], torch.stack([u, v])[:, :, likely]
        angle = episodes.query_x.squeeze(-1).double().unsqueeze(-1) * self.frequency[likely]  # [T, Q, W]
        curves = uv[0].unsqueeze(1) * angle.sin() + uv[1].unsqueeze(1) * angle.cos()
        return _merged(weight, curves, curves.new_full((1, 1, 1), self.NOISE**2))

    def _prior(self, u: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        """Amplitude of (u, v), and whether it and the phase lie in the family's ranges (to the noise)."""
        amplitude = torch.hypot(u, v).clamp_min(1e-6)
        phase = torch.atan2(v, u)  # of (cos b, sin b)
        slack = self.NOISE / amplitude
        (a_low, a_high), (b_low, b_high) = self.amplitude, self.phase
        turn = 2 * math.pi
        offset = torch.remainder(phase - b_low + slack, turn) - slack
        inside = (amplitude >= a_low - self.NOISE) & (amplitude <= a_high + self.NOISE)
        return amplitude, inside & (offset <= b_high - b_low + slack)


class NoisyBayesLimit:
    """The posterior over A, w and b of sines with noise, by a grid over w and b.

    Given w and b, y is linear in A, whose posterior is a normal cut off at the ends of its range: evidence, mean and
    variance are known exactly. A cell of the grid moves the largest sine by a fifth of the noise at most.
    """

    FINENESS = 0.2
    AT_ONCE = 50_000  # cells of all tasks of a chunk

    def __init__(self, family: Sine) -> None:
        self.noise, self.amplitude = family.noise, family.parameters["amplitude"]
        step = self.FINENESS * self.noise / self.amplitude[1]
        furthest = max(map(abs, family.domain))
        frequency = _midpoints(*family.parameters["frequency"], step / furthest)
        phase = _midpoints(*family.parameters["phase"], step)
        self.frequency, self.phase = torch.cartesian_prod(frequency, phase).unbind(1)  # [C]

    def __call__(self, episodes: Episodes) -> Prediction:
        """The posterior as a mixture."""
        return told([self._solve(chunk) for chunk in episodes.batches(max(1, self.AT_ONCE // len(self.phase)))])

    def _solve(self, episodes: Episodes) -> Components:
        x, y = episodes.support_x.squeeze(-1).double(), episodes.support_y.squeeze(-1).double()
        wave = torch.sin(x.unsqueeze(-1) * self.frequency + self.phase)  # [T, S, C]
        power = wave.square().sum(1).clamp_min(1e-12)
        best = torch.einsum("tsc,ts->tc", wave, y) / power  # the amplitude of least squares
        deviation = self.noise / power.sqrt()
        log_mass, mean, variance = _cut_normal(best, deviation, *self.amplitude)
        log_weight = 0.5 * (best / deviation).square() + deviation.log() + log_mass
        weight = torch.softmax(log_weight, dim=1)
        likely = weight.amax(0) > NEGLIGIBLE
        at = episodes.query_x.double() * self.frequency[likely] + self.phase[likely]  # [T, Q, C]
        wave, mean, variance = at.sin(), mean[:, None, likely], variance[:, None, likely]
        return _merged(weight[:, likely], mean * wave, variance * wave.square() + self.noise**2)


def _midpoints(low: float, high: float, step: float) -> Tensor:
    """Middles of equal cells of at most ``step``."""
    cells = max(1, math.ceil((high - low) / step))
    return low + (high - low) * (torch.arange(cells, dtype=torch.double) + 0.5) / cells


def _cut_normal(mean: Tensor, std: Tensor, low: float, high: float) -> tuple[Tensor, Tensor, Tensor]:
    """The log mass of a normal in [low, high], and the mean and variance of what lies there."""
    start, end = (low - mean) / std, (high - mean) / std
    right = start > 0  # to be precise far out, look from the side of the tail
    near, far = torch.where(right, -end, start), torch.where(right, -start, end)
    log_far = torch.special.log_ndtr(far)
    log_mass = log_far + torch.log(-torch.expm1(torch.special.log_ndtr(near) - log_far))
    at_start, at_end = (torch.exp(-0.5 * (z.square() + math.log(2 * math.pi)) - log_mass) for z in (start, end))
    shift = at_start - at_end
    spread = (1 + start * at_start - end * at_end - shift.square()).clamp(0, 1)
    return log_mass, (mean + std * shift).clamp(low, high), std.square() * spread


class Cells(NamedTuple):
    """Boxes of hyper-parameters of Gaussian processes, N for each task.

    Attributes:
        length: ``[T, N, 2]`` ends of the length scale.
        turns: ``[T, N, 2]`` ends of 1 / period; of no meaning for kernels without one.
    """

    length: Tensor
    turns: Tensor

    @property
    def centre(self) -> tuple[Tensor, Tensor]:
        """The length scale and 1 / period of the middles, ``[T, N]``."""
        return self.length.log().mean(-1).exp(), self.turns.mean(-1)

    def split(self, lengths: int, turns: int) -> Cells:
        """Each cell in ``lengths`` x ``turns`` smaller ones."""
        length = _cut(self.length.log(), lengths).exp()  # [T, N, lengths, 2]
        turn = _cut(self.turns, turns)
        shape = (*turn.shape[:2], lengths, turns, 2)
        return Cells(length.unsqueeze(3).expand(shape).flatten(1, 3), turn.unsqueeze(2).expand(shape).flatten(1, 3))

    def take(self, numbers: Tensor) -> Cells:
        """The cells of those numbers, ``[T, M]``."""
        index = numbers.unsqueeze(-1).expand(-1, -1, 2)
        return Cells(self.length.gather(1, index), self.turns.gather(1, index))


def _cut(ends: Tensor, parts: int) -> Tensor:
    """Intervals ``[..., 2]`` cut in equal ones, ``[..., parts, 2]``."""
    low, high = ends.unsqueeze(-2).unbind(-1)
    at = torch.arange(parts + 1, dtype=ends.dtype) / parts
    edges = low + (high - low) * at
    return torch.stack([edges[..., :-1], edges[..., 1:]], dim=-1)


class Found(NamedTuple):
    """Hyper-parameters that a posterior is told by, each ``[T, K]``; weights are logarithms up to a constant."""

    log_weight: Tensor
    kind: Tensor
    length: Tensor
    turns: Tensor
    scale: Tensor
    nugget: Tensor
    """Noise in units of the output variance, which the gram matrix has on its diagonal."""

    def thinned(self, count: int) -> Found:
        """At most ``count`` a task to stand for all, without those below ``FAINT`` times the heaviest of their task."""
        index, log_share = stand_ins(self.log_weight, count)
        found = Found(*(part.gather(1, index) for part in self))
        found = found._replace(log_weight=found.log_weight - log_share)
        log_weight, order = found.log_weight.sort(dim=1, descending=True)
        kept = int((log_weight - log_weight[:, :1] > math.log(FAINT)).sum(1).max())
        return Found(*(part.gather(1, order[:, :kept]) for part in found))


class GaussianProcessLimit:
    """The exact Gaussian process for each length, output scale and period, weighed by their posterior.

    Lengths and output scales lie on a grid that is even in their logarithms, 32 x 16 of them. Twice as fine, it changes
    the log density of a point by less than 0.001.

    A period p matters as f = 1 / p, to a small share of l / x, where l is the length scale: posteriors are as wide as
    the prior with 3 points, and a thousandth of l with 40. So they are found in stages. The first grid has 8 lengths
    and cells of f that are l / 20 wide. What the width w of a cell leaves open of a draw of output scale s counts as
    noise of variance s²·(2π·w / l)²·var(x) / 12, lest a coarse cell that holds a sharp peak be overlooked. Then 256
    cells of each task stand for all (see :func:`metavrf.thinning.stand_ins`) and are split, three times, down to 32
    lengths and w = l / 1280. Twice as fine, this changes the log density of a point by about 0.001 on average, 0.013 in
    a task. ``finer`` multiplies all of these numbers.
    """

    LENGTHS, SCALES = 32, 16
    FIRST_LENGTHS, FIRST_TURNS = 8, 1 / 20
    SPLITS = ((2, 4), (2, 4), (1, 4))  # of lengths and 1 / period
    CELLS = 256
    CAUTION = 0.5  # power of the weights that cells are chosen by: a coarse cell may weigh more than it seems to
    COMPONENTS = 512
    TASKS = 25  # at once
    NUMBERS = 200_000  # of all matrices at once: what fits the processor's cache

    def __init__(self, kinds: Sequence[GaussianProcess], *, finer: int = 1) -> None:
        self.kinds, self.finer = kinds, finer
        self.noise, (low, high) = kinds[0].noise ** 2, kinds[0].domain
        self.spread = (high - low) ** 2 / 12  # variance of x
        ends = _cut(torch.tensor(kinds[0].parameters["scale"], dtype=torch.double).log(), self.SCALES * finer).exp()
        self.scale, self.log_scale_prior = ends.log().mean(-1).exp(), (ends[:, 1] - ends[:, 0]).log()  # [G]

    def __call__(self, episodes: Episodes) -> Prediction:
        """The posterior as a mixture."""
        parts = [self._solve(chunk) for chunk in episodes.batches(self.TASKS)]
        most = max(part.log_weights.shape[1] for part in parts)
        return told([_padded(part, most) for part in parts])

    def _solve(self, episodes: Episodes) -> Components:
        x, y = episodes.support_x.squeeze(-1).double(), episodes.support_y.double()
        kinds = [self._posterior(number, x, y) for number in range(len(self.kinds))]
        found = Found(*(torch.cat(part, dim=1) for part in zip(*kinds, strict=True)))
        return self._predict(found.thinned(self.COMPONENTS * self.finer), x, y, episodes.query_x.squeeze(-1).double())

    def _posterior(self, number: int, x: Tensor, y: Tensor) -> Found:
        """The hyper-parameters of a kind that its posterior is told by, given ``x [T, S]`` and ``y [T, S, 1]``."""
        cells, splits = self._first(number, len(x))
        log_share = torch.zeros(cells.length.shape[:2], dtype=torch.double)
        log_weight = self._weigh(number, cells, x, y)
        for lengths, turns in splits:
            index, share = stand_ins(self.CAUTION * log_weight.logsumexp(-1), self.CELLS * self.finer)
            log_share = (log_share.gather(1, index) + share).repeat_interleave(lengths * turns, dim=1)
            cells = cells.take(index).split(lengths, turns)
            log_weight = self._weigh(number, cells, x, y) - log_share.unsqueeze(-1)
        return self._found(number, cells, log_weight)

    def _first(self, number: int, tasks: int) -> tuple[Cells, tuple[tuple[int, int], ...]]:
        """The first grid of a kind, and how to split it."""
        parameters = self.kinds[number].parameters
        length = torch.tensor(parameters["length"], dtype=torch.double)
        if "period" not in parameters:
            lengths = _cut(length.log(), self.LENGTHS * self.finer).exp().expand(tasks, -1, -1)
            return Cells(lengths, torch.ones_like(lengths)), ()
        turns = 1 / torch.tensor(parameters["period"], dtype=torch.double).flip(0)
        rows = [
            Cells(row.view(1, 1, 2), turns.view(1, 1, 2)).split(1, self._turns(row, turns))
            for row in _cut(length.log(), self.FIRST_LENGTHS * self.finer).exp()
        ]
        return Cells(*(torch.cat(part, dim=1).expand(tasks, -1, -1) for part in zip(*rows, strict=True))), self.SPLITS

    def _turns(self, length: Tensor, turns: Tensor) -> int:
        """How many cells of 1 / period the first grid has at a length."""
        width = self.FIRST_TURNS / self.finer * length.log().mean().exp()
        return math.ceil((turns[1] - turns[0]) / width)

    def _blur(self, number: int, cells: Cells) -> Tensor:
        """What a cell's width leaves open of a draw, as a share of its variance: ``[T, N]``."""
        length, _ = cells.centre
        if "period" not in self.kinds[number].parameters:
            return torch.zeros_like(length)
        width = cells.turns[..., 1] - cells.turns[..., 0]
        return (2 * math.pi * width / length).square() * self.spread / 12

    def _weigh(self, number: int, cells: Cells, x: Tensor, y: Tensor) -> Tensor:
        """The log of prior times likelihood of each cell and output scale, ``[T, N, G]``.

        One eigendecomposition of a gram matrix serves all output scales.
        """
        parameters = self.kinds[number].parameters
        (length, turns), blur = cells.centre, self._blur(number, cells)
        log_prior = (cells.length[..., 1] - cells.length[..., 0]).log() - _log_width(parameters["length"])
        if "period" in parameters:
            log_prior += (1 / cells.turns[..., 0] - 1 / cells.turns[..., 1]).log() - _log_width(parameters["period"])
        log_scale_prior = self.log_scale_prior - _log_width(parameters["scale"])
        distance = (x.unsqueeze(-1) - x.unsqueeze(-2)).abs()  # [T, S, S]
        task = torch.arange(len(x)).repeat_interleave(length.shape[1])
        variance = self.scale.square()
        parts = []
        for t, at, f, b in self._chunks(x.shape[1] ** 2, task, length.flatten(), turns.flatten(), blur.flatten()):
            value, vector = torch.linalg.eigh(self._correlation(number, distance[t], at, f))
            square = (vector.mT @ y[t]).square()  # [n, S, 1]
            spread = variance * (value.clamp_min(0) + b.unsqueeze(-1)).unsqueeze(-1) + self.noise  # [n, S, G]
            parts.append(-0.5 * (square / spread + spread.log()).sum(1))
        log_likelihood = torch.cat(parts).view(*length.shape, -1)
        return log_likelihood + log_prior.unsqueeze(-1) + log_scale_prior

    def _found(self, number: int, cells: Cells, log_weight: Tensor) -> Found:
        """Some of the cells and output scales to stand for all, given the weights ``[T, N, G]``."""
        shape = log_weight.shape
        nugget = self._blur(number, cells).unsqueeze(-1) + self.noise / self.scale.square()
        wide = (part.unsqueeze(-1).expand(shape) for part in cells.centre)
        parts = (log_weight, torch.full(shape, number), *wide, self.scale.expand(shape), nugget)
        return Found(*(part.flatten(1) for part in parts)).thinned(self.COMPONENTS * self.finer)

    def _predict(self, found: Found, x: Tensor, y: Tensor, query: Tensor) -> Components:
        """The Gaussian process of each of the hyper-parameters at ``query [T, Q]``."""
        tasks, size = found.scale.shape
        distance = (x.unsqueeze(-1) - torch.cat([x, query], dim=1).unsqueeze(-2)).abs()  # [T, S, S + Q]
        task = torch.arange(tasks).repeat_interleave(size)
        shape = (tasks * size, query.shape[1])
        mean, reduction = (torch.empty(shape, dtype=torch.double) for _ in range(2))
        support, identity = x.shape[1], torch.eye(x.shape[1], dtype=torch.double)
        for number in range(len(self.kinds)):
            rows = (found.kind.flatten() == number).nonzero().squeeze(1)
            hyper = (part.flatten()[rows] for part in (found.length, found.turns, found.nugget))
            for row, t, at, f, nugget in self._chunks(distance[0].numel(), rows, task[rows], *hyper):
                correlation = self._correlation(number, distance[t], at, f)
                gram, cross = correlation.split([support, query.shape[1]], dim=2)
                factor = torch.linalg.cholesky(gram + nugget[:, None, None] * identity)
                solved = torch.linalg.solve_triangular(factor, torch.cat([cross, y[t]], dim=2), upper=False)
                cross, target = solved.split([query.shape[1], 1], dim=2)
                mean[row] = (cross * target).sum(1)
                reduction[row] = cross.square().sum(1)
        variance = found.scale.square().unsqueeze(1) * (1 - reduction.view(tasks, size, -1).mT).clamp_min(0)
        log_weights = found.log_weight.log_softmax(1)
        return Components(log_weights, mean.view(tasks, size, -1).mT, variance + self.noise)

    def _correlation(self, number: int, distance: Tensor, length: Tensor, turns: Tensor) -> Tensor:
        """The kernel at scale 1 of ``distance [n, S, M]``, each with its own hyper-parameters ``[n]``."""
        given = {"length": length, "period": 1 / turns}
        names = self.kinds[number].parameters.keys() - {"scale"}
        return self.kinds[number].correlation(distance, **{name: given[name].view(-1, 1, 1) for name in names})

    def _chunks(self, numbers: int, *flat: Tensor) -> list[tuple[Tensor, ...]]:
        """Tensors ``[n]`` in parts of which matrices of that many numbers fit at once."""
        size = max(1, self.NUMBERS // numbers)
        return list(zip(*(part.split(size) for part in flat), strict=True))


def _log_width(ends: tuple[float, float]) -> float:
    return math.log(ends[1] - ends[0])


def _padded(part: Components, size: int) -> Components:
    """The same mixtures with standard normals of weight 0 up to ``size`` components."""
    more = size - part.log_weights.shape[1]
    values = (-math.inf, 0.0, 1.0)
    return Components(*(torch.nn.functional.pad(p, (0, more), value=v) for p, v in zip(part, values, strict=True)))
