"""Kernels by their spectral distribution: M of them for each task, exactly or by random features.

A basis ω ~ N(μ, diag σ²) has the kernel (Bochner; Eq. rfs of the paper, Wilson & Adams 2013 for the mixture)

    k(z, z') = E cos(ωᵀΔ) = cos(μᵀΔ) · exp(-½ ‖σ ⊙ Δ‖²),      Δ = z - z'.

One peak at μ cannot repeat itself with sharp corners. A *comb* has peaks at all multiples j·μ, of weights e⁻ᵏIⱼ(κ):

    k(z, z') = exp(κ(cos μᵀΔ - 1)) · exp(-½ ‖σ ⊙ Δ‖²),

the periodic kernel, which fades over 1/σ. κ is how many harmonics count. A *rough* kernel has heavier tails than a
Gaussian: ω - μ is Student's t of 5 degrees of freedom, whose kernel is Matérn's of smoothness 5/2,

    k(z, z') = cos(μᵀΔ) · (1 + r + r²/3)·e⁻ʳ,      r = √5·‖σ ⊙ Δ‖.

A kernel that *jumps* has no spectrum: it is r(z)·r(z') + l, where r falls from 1 to -1 at every multiple of 2π of
μᵀz + b and rises evenly between. With l = 0 its functions are saw teeth, with l = 1 and a μ close to 0 they are steps.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, Protocol

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import once_differentiable

from metavrf.kernels import ridge
from metavrf.kernels.random_features import Draws, fourier_features
from metavrf.memory import check_room

TINY = 1e-24  # a square distance at which a rough kernel has a gradient


class Spectral(NamedTuple):
    """M kernels of each of T tasks: Gaussians over bases, with what a Gaussian process of each needs beside.

    Attributes:
        mean: ``[M, T, d]``, μ.
        std: ``[M, T, d]``, σ.
        amplitude: ``[M, T]``, a², the prior variance of the function.
        noise: ``[M, T]``, λ/a², the variance of the observations about it, in units of a².
        log_prior: ``[M, T]``, log π, up to a constant.
        comb: ``[P, T]``, κ of the last P kernels, which are combs; or None.
        rough: ``[M, T]``, which kernels are rough, the same ones of every task; or None.
        jump: ``[M, T, 2]``, b and l of kernels that jump, which come first, the same ones of every task; l = -1 of all
            others; or None.
    """

    mean: Tensor
    std: Tensor
    amplitude: Tensor
    noise: Tensor
    log_prior: Tensor
    comb: Tensor | None = None
    rough: Tensor | None = None
    jump: Tensor | None = None

    def repeated(self, times: int) -> Spectral:
        """The same kernels ``times`` over, for as many draws of bases."""
        repeated = (None if value is None else torch.cat([value] * times) for value in self)
        return Spectral(*repeated)  # type: ignore[arg-type]

    def of(self, kernels: Tensor) -> Spectral:
        """Some of the kernels, by their numbers in order."""
        peaks = len(self.mean) - (0 if self.comb is None else len(self.comb))
        combs = kernels[kernels >= peaks] - peaks
        comb = None if self.comb is None or not len(combs) else self.comb[combs]
        mean, std, amplitude, noise, log_prior = (value[kernels] for value in self[:5])
        rough = None if self.rough is None else self.rough[kernels]
        jump = None if self.jump is None else self.jump[kernels]
        return Spectral(mean, std, amplitude, noise, log_prior, comb, rough, jump)

    def joined(self, more: Spectral) -> Spectral:
        """These kernels, then ``more``; none is drawn several times.

        Combs must come last and those that jump first: where these have combs, ``more`` are combs, and none of them
        jumps.
        """
        assert more.jump is None and (self.comb is None or (more.comb is not None and len(more.comb) == len(more.mean)))
        pairs = zip(self[:5], more[:5], strict=True)
        mean, std, amplitude, noise, log_prior = (torch.cat(pair) for pair in pairs)
        combs = [q.comb for q in (self, more) if q.comb is not None]
        rough = jump = None
        if self.rough is not None or more.rough is not None:
            smooth = (torch.zeros_like(q.amplitude, dtype=torch.bool) for q in (self, more))
            rough = torch.cat([s if q.rough is None else q.rough for q, s in zip((self, more), smooth, strict=True)])
        if self.jump is not None:
            jump = F.pad(self.jump, (0, 0, 0, 0, 0, len(more.mean)), value=-1.0)
        return Spectral(mean, std, amplitude, noise, log_prior, torch.cat(combs) if combs else None, rough, jump)

    @property
    def jumping(self) -> int:
        """How many kernels jump: the first."""
        return 0 if self.jump is None else int((self.jump[:, 0, 1] >= 0).sum())

    def parted(self) -> tuple[Spectral, Spectral]:
        """The kernels that jump, and the others."""
        count = self.jumping
        first, others = (
            Spectral(*(None if value is None else value[part] for value in self._replace(comb=None)))  # type: ignore[arg-type]
            for part in (slice(count), slice(count, None))
        )
        return first._replace(rough=None), others._replace(comb=self.comb, jump=None)

    def rough_ones(self) -> Tensor | None:
        """The numbers of the rough kernels; None where there are none."""
        if self.rough is None or not bool(self.rough.any()):
            return None
        return self.rough[:, 0].nonzero()[:, 0]

    def at(self, tasks: Tensor | slice) -> Spectral:
        """The kernels of some tasks."""
        return Spectral(*(None if value is None else value[:, tasks] for value in self))  # type: ignore[arg-type]


class Kernel(Protocol):
    """Gives the Gram blocks of the M kernels of each task."""

    def gram(self, z: Tensor, q: Spectral, support: int) -> Tensor:
        """K | K̃ ``[K, T, S, S + Q]`` of the first ``support`` of ``z [T, S + Q, d]`` with all, in double precision."""


class Exact:
    """The kernels themselves. What they cost does not depend on a number of bases."""

    def gram(self, z: Tensor, q: Spectral, support: int) -> Tensor:
        """See :class:`Kernel`. K is M. In double precision: λ may be far below what single precision resolves."""
        if q.jumping:
            jumping, others = q.parted()
            r, level = ramps(z, jumping)
            products = r[:, :, :support, None] * r[:, :, None] + level[..., None]
            return torch.cat([products, self.gram(z, others, support)])
        tasks, points, _ = z.shape
        room = 24 * len(q.mean) * tasks * support * points
        check_room(room, f"{len(q.mean):,} kernels of {tasks:,} tasks of {support:,} support samples")
        kernel: Tensor = _Gram.apply(z, q.mean, q.std, q.comb, support, q.rough_ones())
        return kernel

    def cross(self, z: Tensor, support: Tensor, q: Spectral) -> Tensor:
        """K̃ ``[M, S, N]`` of one task, for ``z [N, d]`` and ``support [S, d]``; without gradients."""
        if q.jumping:
            jumping, others = q.parted()
            (asked, level), (told, _) = (ramps(values.unsqueeze(0), jumping) for values in (z, support))
            products = told.squeeze(1).unsqueeze(-1) * asked + level
            return torch.cat([products, self.cross(z, support, others)])
        shift = q.mean[:, 0].double() @ (support.unsqueeze(1) - z).double().flatten(0, 1).mT  # [M, S·N]
        distance = q.std[:, 0].double().square() @ (support.unsqueeze(1) - z).double().square().flatten(0, 1).mT
        cosine = shift.cos()
        if q.comb is not None:
            peaks = len(cosine) - len(q.comb)
            cosine = torch.cat([cosine[:peaks], torch.exp(q.comb.double() * (cosine[peaks:] - 1))])
        return (cosine * _envelope(distance, q)).unflatten(1, (len(support), -1))


def sawtooth(angle: Tensor) -> Tensor:
    """From -1 up to 1 over every 2π, and then down at once."""
    turns = angle / (2 * math.pi)
    return 2 * (turns - turns.floor()) - 1


def ramps(z: Tensor, q: Spectral) -> tuple[Tensor, Tensor]:
    """r(z) ``[M, T, N]`` of kernels that jump, for ``z [T, N, d]``, and l ``[M, T, 1]``, in double precision."""
    assert q.jump is not None
    offset, level = q.jump.double().unsqueeze(-2).unbind(-1)
    return sawtooth(torch.einsum("tnd,mtd->mtn", z.double(), q.mean.double()) + offset), level


def diagonal(z: Tensor, q: Spectral) -> Tensor | float:
    """k(z, z) under each kernel, ``[M, T, N]`` of ``z [T, N, d]``; 1 for all where none jumps."""
    if q.jump is None:
        return 1.0
    r, level = ramps(z, q)
    return torch.where(level >= 0, r.square() + level, 1.0)


def plain_gram(z: Tensor, q: Spectral, support: int) -> Tensor:
    """:meth:`Exact.gram` by the formulas, with the gradient that PyTorch derives: what tests and benchmark compare."""
    z = z.double()
    delta = z[:, :support, None] - z[:, None]  # [T, S, N, d]
    cosine = torch.einsum("tsnd,mtd->mtsn", delta, q.mean.double()).cos()
    distance = torch.einsum("tsnd,mtd->mtsn", delta.square(), q.std.double().square())
    if q.comb is not None:
        peaks = len(q.mean) - len(q.comb)
        combs = torch.exp(q.comb.double()[..., None, None] * (cosine[peaks:] - 1))
        cosine = torch.cat([cosine[:peaks], combs])
    return cosine * _envelope(distance, q)


def _envelope(distance: Tensor, q: Spectral) -> Tensor:
    """How each kernel fades, of ``distance [M, ...]`` = ‖σ ⊙ Δ‖²."""
    envelope, rough = torch.exp(-0.5 * distance), q.rough_ones()
    return envelope if rough is None else envelope.index_copy(0, rough, matern(distance[rough]))


def matern(distance: Tensor) -> Tensor:
    """Matérn's kernel of smoothness 5/2: (1 + r + r²/3)·e⁻ʳ with r = √(5·``distance``)."""
    r = (5 * distance.clamp_min(TINY)).sqrt()
    return (1 + r + r.square() / 3) * torch.exp(-r)


class _Gram(torch.autograd.Function):
    """cos(μᵀΔ)·exp(-½ ‖σ ⊙ Δ‖²), or of a comb exp(κ(cos μᵀΔ - 1) - ½ ‖σ ⊙ Δ‖²), ``[M, T, S, N]``; some are rough.

    With u = σ ⊙ z, -½ ‖u - u'‖² = uᵀu' - ½ ‖u‖² - ½ ‖u'‖² is one product for all pairs; cosine and sine of μᵀΔ are
    products of waves. The gradient by hand passes less often over ``[M, T, S, N]`` than the one PyTorch derives.
    """

    @staticmethod
    def forward(  # noqa: PLR0917 - as autograd calls it
        ctx: Any, z: Tensor, mean: Tensor, std: Tensor, comb: Tensor | None, support: int, rough: Tensor | None
    ) -> Tensor:
        ctx.dtypes = [None if value is None else value.dtype for value in (z, mean, std, comb)]
        z, mean, std, comb = z.double(), mean.double(), std.double(), None if comb is None else comb.double()
        phase = (mean.transpose(0, 1) @ z.mT).transpose(0, 1).contiguous()  # μᵀz  [M, T, N]
        cos, sin = phase.cos(), phase.sin()
        u = z * std.unsqueeze(2)  # [M, T, N, d]
        if z.shape[-1] == 1:
            envelope = (u[:, :, :support] - u.mT).square_().mul_(-0.5)
        else:
            half = u.square().sum(-1).mul_(0.5)
            envelope = (u[:, :, :support] @ u.mT).sub_(half[..., :support, None]).sub_(half[..., None, :]).clamp_max_(0)
        cosine = _outer(cos, cos, sin, sin, support)
        peaks = len(mean) - (0 if comb is None else len(comb))
        if comb is not None:
            envelope[peaks:] += comb[..., None, None] * (cosine[peaks:] - 1)
        distance = None if rough is None else envelope[rough] * -2
        envelope.exp_()
        slope = None
        if rough is not None and distance is not None:
            envelope[rough] = matern(distance)
            r = (5 * distance.clamp_min(TINY)).sqrt()
            slope = (1 + r).mul_(torch.exp(-r)).mul_(5 / 3).mul_(cosine[rough])  # -2·∂k/∂‖σ ⊙ Δ‖²
        kernel = envelope.clone() if comb is not None else envelope * cosine
        if comb is not None:
            kernel[:peaks] *= cosine[:peaks]
        ctx.save_for_backward(z, mean, std, comb, u, cos, sin, envelope, cosine, kernel, rough, slope)
        return kernel

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        z, mean, std, comb, u, cos, sin, envelope, cosine, kernel, rough, slope = ctx.saved_tensors
        support = kernel.shape[2]
        by_log = gradient * kernel  # of the logarithm  [M, T, S, N]
        if rough is not None:
            by_log[rough] = gradient[rough] * slope
        by_cosine, of_comb = gradient * envelope, None
        if comb is not None:
            combs = slice(len(mean) - len(comb), None)
            of_comb = (by_log[combs] * (cosine[combs] - 1)).sum((2, 3))
            by_cosine[combs] *= comb[..., None, None]
        by_shift = by_cosine.mul_(_outer(sin, cos, cos, -sin, support))  # of μᵀΔ, sign changed
        of_phase = by_shift.sum(2)  # of μᵀz  [M, T, N]
        of_phase[..., :support] -= by_shift.sum(3)
        of_mean = torch.matmul(of_phase.transpose(0, 1), z).transpose(0, 1)
        told = u[:, :, :support]
        of_u = (by_log.mT @ told).addcmul_(by_log.sum(2).unsqueeze(-1), u, value=-1)
        of_u[:, :, :support] += (by_log @ u).addcmul_(by_log.sum(3).unsqueeze(-1), told, value=-1)
        of_std = (of_u * z).sum(2)
        of_z = None
        if ctx.needs_input_grad[0]:
            of_u *= std.unsqueeze(2)
            if len(mean) == 1:
                of_z = of_u[0].addcmul_(of_phase[0].unsqueeze(-1), mean[0].unsqueeze(1))
            else:
                of_z = torch.matmul(of_phase.permute(1, 2, 0), mean.transpose(0, 1)).add_(of_u.sum(0))
        found = zip((of_z, of_mean, of_std, of_comb), ctx.dtypes, strict=True)
        return *(None if value is None else value.to(dtype) for value, dtype in found), None, None


def _outer(a: Tensor, b: Tensor, c: Tensor, d: Tensor, support: int) -> Tensor:
    """a_i·b_j + c_i·d_j for i in the support: ``[M, T, S, N]`` of waves ``[M, T, N]``."""
    product = a[..., :support, None] * b[..., None, :]
    return product.addcmul_(c[..., :support, None], d[..., None, :])


@dataclass(frozen=True)
class RandomFeatures:
    """The kernels by D random features of each, L times; they converge to :class:`Exact` at the rate 1/√D."""

    draws: Draws

    def gram(self, z: Tensor, q: Spectral, support: int) -> Tensor:
        """See :class:`Kernel`. K is L·M, the draws' axis first."""
        return ridge.kernel_of(self.features(z, q), support)

    def features(self, z: Tensor, q: Spectral) -> Tensor:
        """φ ``[L·M, T, N, D]``."""
        q = q._replace(mean=q.mean.to(z), std=q.std.to(z))  # those that a context places are in double precision
        if q.jumping:
            jumping, others = q.parted()
            r, level = ramps(z, jumping)
            own = torch.stack([r, level.sqrt().expand_as(r)], dim=-1).to(z)
            phi = self.features(z, others).unflatten(0, (-1, len(others.mean)))
            own = F.pad(own, (0, phi.shape[-1] - 2)).expand(len(phi), *own.shape[:3], -1)
            return torch.cat([own, phi], dim=1).flatten(0, 1)
        rough = q.rough_ones()
        if rough is not None:
            phi = self.features(z, q._replace(rough=None)).unflatten(0, (-1, len(q.mean)))
            tailed = RandomFeatures(_tailed(self.draws)).features(z, q._replace(rough=None, comb=None).of(rough))
            return phi.index_copy(1, rough, tailed.unflatten(0, (-1, len(rough)))).flatten(0, 1)
        kernels, tasks, _ = q.mean.shape
        if kernels == 1 and q.comb is None:
            return fourier_features(z, q.mean[0], q.std[0], self.draws)
        spread = z.expand(kernels, *z.shape).flatten(0, 1)
        if q.comb is not None:
            return self._comb_features(spread, q)
        phi = fourier_features(spread, q.mean.flatten(0, 1), q.std.flatten(0, 1), self.draws)
        return phi.unflatten(1, (kernels, tasks)).flatten(0, 1)

    def _comb_features(self, spread: Tensor, q: Spectral) -> Tensor:
        """Bases of a comb: ω = j·μ + σ ⊙ ε with the harmonic j drawn by its weight e⁻ᵏIⱼ(κ)."""
        assert q.comb is not None
        if self.draws.phase is not None:
            raise ValueError("a comb of harmonics is drawn as pairs of sine and cosine")
        kernels, tasks, _ = q.mean.shape
        count = self.draws.epsilon.shape[-1]
        harmonic = spread.new_ones(kernels, tasks, count)
        harmonic[kernels - len(q.comb) :] = _harmonics(q.comb.detach().cpu(), count).to(spread)
        along = (spread @ q.mean.flatten(0, 1).unsqueeze(-1)) * harmonic.flatten(0, 1).unsqueeze(1)
        rows = (spread * q.std.flatten(0, 1).unsqueeze(1)).flatten(0, 1).expand(len(self.draws.epsilon), -1, -1)
        across = torch.bmm(rows, self.draws.epsilon).unflatten(1, spread.shape[:2])
        angle = across + along
        phi = torch.cat([angle.cos(), angle.sin()], dim=-1) * math.sqrt(1 / count)
        return phi.unflatten(1, (kernels, tasks)).flatten(0, 1)


def _tailed(draws: Draws) -> Draws:
    """ε as draws of Student's t: each basis divided by √(χ²/5), of strata of χ² with 5 degrees of freedom."""
    from scipy.special import chdtri

    squares = torch.from_numpy(chdtri(5, _strata(draws.epsilon.shape[-1]).numpy()))
    return replace(draws, epsilon=draws.epsilon * (5 / squares).sqrt().to(draws.epsilon))


def _strata(count: int) -> Tensor:
    """Numbers in (0, 1), evenly spread, in a mixed-up order."""
    golden = 0.5 * (math.sqrt(5) - 1)
    return (torch.arange(count, dtype=torch.double) * golden + 0.5) % 1


def _harmonics(kappa: Tensor, count: int) -> Tensor:
    """``count`` harmonics of each comb, ``[P, T, count]``: strata of their distribution, in a mixed-up order."""
    from scipy.special import ive

    highest = int(6 * math.sqrt(float(kappa.max()) + 1)) + 6
    orders = torch.arange(-highest, highest + 1)
    weights = torch.from_numpy(ive(orders.abs().numpy(), kappa.double().unsqueeze(-1).numpy()))
    share = weights.cumsum(-1) / weights.sum(-1, keepdim=True)
    place = torch.searchsorted(share.contiguous(), _strata(count).expand(*kappa.shape, -1).contiguous())
    return orders[place.clamp_max(len(orders) - 1)]
