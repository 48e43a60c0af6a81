"""Exact kernels on rows of numbers, many at a time, between any rows and the support's.

Three families: on standardised columns, smooth plus linear, and waves for one column; on rows of length 1 (features of
a network), Gaussian, with or without square roots and centring; on binary columns, parity.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import ClassVar, Self

import torch
import torch.nn.functional as F
from torch import Tensor

LENGTHS = (0.35, 0.53, 0.79, 1.2, 1.8, 2.7, 4.0)  # of rows of length 1
NOISES = (0.01, 0.1, 1.0)
PARITY_NOISES = (0.01, 0.3)
BETWEEN = 0.2  # of the squared distance of two classes' samples, the part that is between the classes' means
MOST_SUBSETS = 50  # of binary columns


class Standardised:
    """Kernels on standardised columns, between any rows and the support's.

    Plain objects: many are made and thrown away in each fit.
    """

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
        vars(self).update(tensors)

    @classmethod
    def on(cls, x: Tensor, **own: Tensor) -> Self:
        """On a support ``x [S, d]``. A constant column says nothing and has no part in any kernel."""
        centre, deviation = x.mean(0), x.std(0, correction=0)
        varies = deviation > 1e-10 * x.abs().amax(0)
        deviation = torch.where(varies, deviation, torch.inf)
        own |= {"scale": own["scale"] * varies, "wave": own["wave"] * varies}
        return cls(**own, centre=centre, deviation=deviation, support=(x - centre) / deviation)

    def __call__(self, x: Tensor, other: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """K̃ ``[K, N, M]`` and k(x, x) ``[K, N]`` of rows ``x [N, d]`` with ``other [M, d]``, or with the support."""
        return self.between(self.seen(x), self.support if other is None else self.seen(other))

    def gram(self) -> Tensor:
        """K ``[K, S, S]`` of the support."""
        return self.between(self.support, self.support)[0]

    def seen(self, x: Tensor) -> Tensor:
        """Rows as the kernels see them, ``[N, d]``."""
        return (x - self.centre) / self.deviation

    def between(self, z: Tensor, other: Tensor) -> tuple[Tensor, Tensor]:
        """The same of rows that are :meth:`seen` already."""
        ours = z * self.scale.unsqueeze(1)
        theirs = ours if other is z else other * self.scale.unsqueeze(1)
        length = ours.square().sum(-1)  # [K, N]
        its = length if other is z else theirs.square().sum(-1)
        smoothness, slope = 1 - self.linear, self.linear / self.scale.square().sum(-1).clamp_min(1e-12)
        own = smoothness.log().unsqueeze(1) - 0.5 * length
        inner = ours @ theirs.mT
        kernel = (inner + own.unsqueeze(-1)).sub_(0.5 * its.unsqueeze(1)).exp_()  # in place: may be large
        if self.waves:
            ours_in_turn, theirs_in_turn = self.wave @ z.mT, self.wave @ other.mT
            kernel *= torch.cos(ours_in_turn.unsqueeze(-1) - theirs_in_turn.unsqueeze(-2))
        kernel.addcmul_(slope[:, None, None], inner)
        return kernel, smoothness.unsqueeze(-1) + slope.unsqueeze(-1) * length

    @property
    def waves(self) -> bool:
        """Whether any kernel is one."""
        return self.scale.shape[1] == 1

    def chosen(self, index: Tensor | slice) -> Self:
        """Some of the kernels."""
        return type(self)(**vars(self) | {name: getattr(self, name)[index] for name in self.own})

    def first(self, rows: int) -> Self:
        """The same kernels between so many of the support's rows, standardised with all of them."""
        return type(self)(**vars(self) | {"support": self.support[:rows]})

    def to(self, dtype: torch.dtype) -> Self:
        """In another precision."""
        return self.applied(lambda tensor: tensor.to(dtype) if tensor.is_floating_point() else tensor)

    def applied(self, fn: Callable[[Tensor], Tensor]) -> Self:
        """With ``fn`` of every tensor in its place."""
        return type(self)(**{name: fn(tensor) for name, tensor in vars(self).items()})

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
        made.support = made.seen(x)
        return made

    @staticmethod
    def unit(x: Tensor) -> Tensor:
        """Rows of length 1."""
        return F.normalize(x, dim=-1)

    @staticmethod
    def rooted(x: Tensor) -> Tensor:
        """Square roots, with the sign kept."""
        return x.sign() * x.abs().sqrt()

    def seen(self, x: Tensor) -> Tensor:
        """The four views, ``[4, N, d]``."""
        plain, rooted = self.unit(x), self.unit(self.rooted(x))
        return torch.stack([plain, rooted, self.unit(plain - self.centre[0]), self.unit(rooted - self.centre[1])])

    def between(self, z: Tensor, other: Tensor) -> tuple[Tensor, Tensor]:
        """As of :class:`Standardised`."""
        inner = z[self.view] @ other[self.view].mT if len(self.view) < len(self.support) else (z @ other.mT)[self.view]
        kernel = inner.sub_(1).div_(self.length.square()[:, None, None]).exp_()
        return kernel, torch.ones_like(kernel[..., 0])

    def standing_out(self, gram: Tensor, labels: Tensor) -> Tensor:
        """How far ridge regression's fit of a new sample's own class stands above that of the others, ``[K]``.

        That is nb/(w + nb + λ) with n samples of a class, where kernels have the value k within classes and k' between:
        b = k - k' and w = 1 - k. The support ``gram [K, S, S]`` with its ``labels [S]`` says k'; for k a share of the
        squared distances is taken to be between classes, as in features of networks. Support samples of one class are
        too few to say.
        """
        apart = (labels.unsqueeze(1) != labels).to(gram)
        between = (gram * apart).sum((1, 2)) / apart.sum().clamp_min(1)
        between = between.clamp(1e-12, 1 - 1e-6)
        within = between ** (1 - BETWEEN)
        shots = len(labels) / len(labels.unique())
        told = shots * (within - between)
        return told / (1 - within + told + self.noise)

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

    def between(self, z: Tensor, other: Tensor) -> tuple[Tensor, Tensor]:
        """As of :class:`Standardised`."""
        ours, theirs = self.use @ z.mT, self.use @ other.mT
        kernel = torch.cos(math.pi * (ours.unsqueeze(-1) - theirs.unsqueeze(-2)))
        return kernel, torch.ones_like(kernel[..., 0])

    def lengths(self) -> Tensor:
        """``[K, d]``: the step that turns the sign; infinite where a column has no part."""
        return self.deviation / self.use

    def relevance(self) -> Tensor:
        """``[K, d]``: 1 of the columns that have a part."""
        return self.use


class Kernels:
    """The candidates of all families as one list."""

    def __init__(self, families: list[Standardised]) -> None:
        self.families = [family for family in families if len(family.noise)]

    @property
    def noise(self) -> Tensor:
        """``[K]``."""
        return _joined([family.noise for family in self.families])

    def __call__(self, x: Tensor, other: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """As of :class:`Standardised`."""
        kernels, own = zip(*(family(x, other) for family in self.families), strict=True)
        return _joined(kernels), _joined(own)

    def applied(self, fn: Callable[[Tensor], Tensor]) -> Kernels:
        """With ``fn`` of every tensor in its place."""
        return Kernels([family.applied(fn) for family in self.families])

    def gram(self) -> Tensor:
        """K ``[K, S, S]`` of the support."""
        return _joined([family.gram() for family in self.families])

    def chosen(self, index: Tensor) -> Kernels:
        """Some of them, in the order of the list: ``index`` must rise."""
        parts, start = [], 0
        for family in self.families:
            inside = (index >= start) & (index < start + len(family.noise))
            parts.append(family.chosen(index[inside] - start))
            start += len(family.noise)
        return Kernels(parts)

    def lengths(self) -> Tensor:
        """``[K, d]``."""
        return torch.cat([family.lengths() for family in self.families])

    def relevance(self) -> Tensor:
        """``[K, d]``."""
        return torch.cat([family.relevance() for family in self.families])

    def on_support(self, x: Tensor) -> Kernels:
        """The same kernels on another support ``x [S, d]``."""
        return Kernels([family.on_support(x) for family in self.families])

    def linear(self) -> Tensor:
        """``[K]``, the linear share."""
        return torch.cat([getattr(family, "linear", torch.zeros_like(family.noise)) for family in self.families])


def _joined(parts: Sequence[Tensor]) -> Tensor:
    """One after the other; of one part itself, without a copy."""
    return parts[0] if len(parts) == 1 else torch.cat(list(parts))
