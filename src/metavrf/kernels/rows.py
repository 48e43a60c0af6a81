"""Exact kernels on rows of numbers, many at a time, between any rows and the support's.

Three families: on standardised columns, smooth plus linear, and waves for one column; on rows of length 1 (features of
a network), Gaussian, with or without square roots and centring; on binary columns, parity.
"""

from __future__ import annotations

import math
from typing import ClassVar, Self

import torch
import torch.nn.functional as F
from torch import Tensor, nn

LENGTHS = (0.35, 0.53, 0.79, 1.2, 1.8, 2.7, 4.0)  # of rows of length 1
NOISES = (0.01, 0.1, 1.0)
PARITY_NOISES = (0.01, 0.3)
MOST_SUBSETS = 50  # of binary columns


class Standardised(nn.Module):
    """Kernels on standardised columns, between any rows and the support's."""

    own: ClassVar[tuple[str, ...]] = ("scale", "wave", "linear", "noise")
    centre: Tensor
    deviation: Tensor
    support: Tensor
    scale: Tensor
    wave: Tensor
    linear: Tensor
    noise: Tensor

    def __init__(self, **tensors: Tensor) -> None:
        """``scale`` s and ``wave`` ω are ``[K, d]``, ``linear`` b and ``noise`` λ ``[K]``, ``support [S, d]``."""
        super().__init__()
        for name, tensor in tensors.items():
            self.register_buffer(name, tensor)

    @classmethod
    def on(cls, x: Tensor, **own: Tensor) -> Self:
        """On a support ``x [S, d]``. A constant column says nothing and has no part in any kernel."""
        centre, deviation = x.mean(0), x.std(0, correction=0)
        varies = deviation > 1e-10 * x.abs().amax(0)
        deviation = torch.where(varies, deviation, 1.0)
        own |= {"scale": own["scale"] * varies, "wave": own["wave"] * varies}
        return cls(**own, centre=centre, deviation=deviation, support=(x - centre) / deviation)

    def forward(self, x: Tensor, other: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """K̃ ``[K, N, M]`` and k(x, x) ``[K, N]`` of rows ``x [N, d]`` with ``other [M, d]``, or with the support."""
        z = (x - self.centre) / self.deviation
        beside = self.support if other is None else (other - self.centre) / self.deviation
        ours, theirs = z * self.scale.unsqueeze(1), beside * self.scale.unsqueeze(1)
        length, other = ours.square().sum(-1), theirs.square().sum(-1)
        inner = ours @ theirs.mT
        smooth = (inner - 0.5 * length.unsqueeze(-1)).sub_(0.5 * other.unsqueeze(-2)).exp_()  # in place: may be large
        if self.waves:
            ours, theirs = self.wave @ z.mT, self.wave @ beside.mT
            smooth *= torch.cos(ours.unsqueeze(-1) - theirs.unsqueeze(-2))
        smoothness = 1 - self.linear.unsqueeze(-1)
        slope = (self.linear / self.scale.square().sum(-1).clamp_min(1e-12)).unsqueeze(-1)
        kernel = inner.mul_(slope.unsqueeze(-1)).addcmul_(smoothness.unsqueeze(-1), smooth)
        return kernel, smoothness + slope * length

    @property
    def waves(self) -> bool:
        """Whether any kernel is one."""
        return self.scale.shape[1] == 1

    def chosen(self, index: Tensor) -> Self:
        """Some of the kernels."""
        return type(self)(**{name: t[index] if name in self.own else t for name, t in self.named_buffers()})

    def on_support(self, x: Tensor) -> Self:
        """The same kernels on another support."""
        return type(self).on(x, **{name: getattr(self, name) for name in self.own})

    def lengths(self) -> Tensor:
        """``[K, d]``, in the units of the columns; infinite where a column has no part."""
        return self.deviation / self.scale

    def relevance(self) -> Tensor:
        """``[K, d]``: how much each column counts, beside the most relevant."""
        share = self.scale.square()
        return share / share.amax(1, keepdim=True).clamp_min(1e-12)


class UnitLength(Standardised):
    """Gaussian kernels on rows scaled to length 1, of which there are four views: with square roots, centred."""

    own: ClassVar[tuple[str, ...]] = ("view", "length", "noise")
    view: Tensor
    length: Tensor

    @classmethod
    def grid(cls, x: Tensor, ridge: float | None) -> Self:
        """All candidates on a support ``x [S, d]``."""
        noises = NOISES if ridge is None else (ridge,)
        grid = torch.cartesian_prod(torch.arange(4.0), torch.tensor(LENGTHS), torch.tensor(noises)).to(x)
        return cls.on(x, view=grid[:, 0].long(), length=grid[:, 1], noise=grid[:, 2])

    @classmethod
    def on(cls, x: Tensor, **own: Tensor) -> Self:
        """On a support ``x [S, d]``."""
        centre = torch.stack([cls.unit(x).mean(0), cls.unit(cls.rooted(x)).mean(0)])
        made = cls(**own, centre=centre, support=x[:0])
        made.support = made.views(x)
        return made

    @staticmethod
    def unit(x: Tensor) -> Tensor:
        """Rows of length 1."""
        return F.normalize(x, dim=-1)

    @staticmethod
    def rooted(x: Tensor) -> Tensor:
        """Square roots, with the sign kept."""
        return x.sign() * x.abs().sqrt()

    def views(self, x: Tensor) -> Tensor:
        """``[4, N, d]``."""
        plain, rooted = self.unit(x), self.unit(self.rooted(x))
        return torch.stack([plain, rooted, self.unit(plain - self.centre[0]), self.unit(rooted - self.centre[1])])

    def forward(self, x: Tensor, other: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """As of :class:`Standardised`."""
        beside = self.support if other is None else self.views(other)
        if len(self.view) < len(self.support):
            inner = self.views(x)[self.view] @ beside[self.view].mT
        else:
            inner = (self.views(x) @ beside.mT)[self.view]
        kernel = inner.sub_(1).div_(self.length.square()[:, None, None]).exp_()
        return kernel, torch.ones_like(kernel[..., 0])

    def lengths(self) -> Tensor:
        """``[K, d]``, of rows of length 1."""
        return self.length.unsqueeze(1).expand(-1, self.support.shape[-1])

    def relevance(self) -> Tensor:
        """``[K, d]``: all columns alike."""
        return torch.ones_like(self.lengths())


class Parity(Standardised):
    """Kernels cos(π·Σ δⱼ) over some of the binary columns: 1 where an even number of them differ, else -1.

    Their spectrum is a point at π in those columns, and the product of signs χ(x)·χ(x') is what they are between rows
    of two values per column. Sums of products of columns (exclusive or, parity) are far from smooth: no other kernel
    here sees them from a few rows.
    """

    own: ClassVar[tuple[str, ...]] = ("use", "noise")
    use: Tensor

    @classmethod
    def on(cls, x: Tensor, **own: Tensor) -> Self:
        """On a support ``x [S, d]``; ``use [K, d]`` says which columns."""
        low, high = x.amin(0), x.amax(0)
        step = torch.where(high > low, high - low, 1.0)
        return cls(**own, centre=low, deviation=step, support=(x - low) / step)

    @classmethod
    def subsets(cls, x: Tensor, ridge: float | None) -> list[Self]:
        """All binary columns, and all pairs, triples and so on of them while they are few; none without two such."""
        low, high = x.amin(0), x.amax(0)
        binary = (((x == low) | (x == high)).all(0) & (high > low)).nonzero().squeeze(1)
        if len(binary) < 2:
            return []
        sets = [torch.arange(len(binary))]
        for size in range(2, len(binary)):
            if len(sets) + math.comb(len(binary), size) > MOST_SUBSETS:
                break
            sets += list(torch.combinations(torch.arange(len(binary)), size))
        use = torch.zeros(len(sets), x.shape[1], dtype=x.dtype)
        for row, some in zip(use, sets, strict=True):
            row[binary[some]] = 1
        noises = x.new_tensor(PARITY_NOISES if ridge is None else (ridge,))
        return [cls.on(x, use=use.repeat(len(noises), 1), noise=noises.repeat_interleave(len(use)))]

    def forward(self, x: Tensor, other: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """As of :class:`Standardised`."""
        beside = self.support if other is None else (other - self.centre) / self.deviation
        ours, theirs = self.use @ ((x - self.centre) / self.deviation).mT, self.use @ beside.mT
        kernel = torch.cos(math.pi * (ours.unsqueeze(-1) - theirs.unsqueeze(-2)))
        return kernel, torch.ones_like(kernel[..., 0])

    def lengths(self) -> Tensor:
        """``[K, d]``: the step that turns the sign; infinite where a column has no part."""
        return self.deviation / self.use

    def relevance(self) -> Tensor:
        """``[K, d]``: 1 of the columns that have a part."""
        return self.use


class Kernels(nn.Module):
    """The candidates of all families as one list."""

    def __init__(self, families: list[Standardised]) -> None:
        super().__init__()
        self.families = nn.ModuleList([family for family in families if len(family.noise)])

    @property
    def noise(self) -> Tensor:
        """``[K]``."""
        return torch.cat([family.noise for family in self._families()])

    def forward(self, x: Tensor, other: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """As of :class:`Standardised`."""
        kernels, own = zip(*(family(x, other) for family in self.families), strict=True)
        return torch.cat(kernels), torch.cat(own)

    def chosen(self, index: Tensor) -> Kernels:
        """Some of them, in the order of the list: ``index`` must rise."""
        parts, start = [], 0
        for family in self._families():
            inside = (index >= start) & (index < start + len(family.noise))
            parts.append(family.chosen(index[inside] - start))
            start += len(family.noise)
        return Kernels(parts)

    def lengths(self) -> Tensor:
        """``[K, d]``."""
        return torch.cat([family.lengths() for family in self._families()])

    def relevance(self) -> Tensor:
        """``[K, d]``."""
        return torch.cat([family.relevance() for family in self._families()])

    def on_support(self, x: Tensor) -> Kernels:
        """The same kernels on another support ``x [S, d]``."""
        return Kernels([family.on_support(x) for family in self._families()])

    def linear(self) -> Tensor:
        """``[K]``, the linear share."""
        return torch.cat([getattr(family, "linear", torch.zeros_like(family.noise)) for family in self._families()])

    def _families(self) -> list[Standardised]:
        return list(self.families)  # type: ignore[arg-type]
