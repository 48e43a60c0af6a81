"""A network that looks at a small table and proposes kernels for it: whatever the number of columns, in any order.

Each column is described by statistics in closed form: how the targets go with it, alone (correlation, cosines of its
ranks) and beside the others (ridge coefficients, the slope of a Gaussian process's evidence in its length), and how its
values are spread. A column is then a token; tokens see each other through a few attentive means over all of them. For
each of M kernels the network says how relevant each column is, the length, the linear share and the noise.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor, nn

PROPOSALS = 32
WIDTH, BLOCKS, HEADS = 64, 3, 8
COSINES = 5
RIDGES = (0.1, 1.0)
SMOOTH = ((0.7, 0.1), (1.5, 0.1))  # length over √columns, and noise
OF_COLUMN, OF_TABLE = COSINES + 15, 14
LEAST_NOISE, MOST_NOISE = 2e-4, 10.0
LENGTH = 1.5  # over √columns: of the kernels to start from
REACH = 4.0  # how far the logarithm of a scale may move from the default; smoothly, so that gradients stay


class Proposals(NamedTuple):
    """M kernels for each of T tables: ``scale [T, M, c]``; ``linear``, ``noise`` and ``log_prior`` are ``[T, M]``."""

    scale: Tensor
    linear: Tensor
    noise: Tensor
    log_prior: Tensor


def described(z: Tensor, y: Tensor, *, classes: bool) -> tuple[Tensor, Tensor]:
    """Statistics of columns ``[T, c, F]`` and of tables ``[T, G]``; sums over rows, so in no order of them.

    Args:
        z: standardised columns ``[T, n, c]``; one that is constant is 0.
        y: targets ``[T, n, p]`` less their means; one-hot of classes.
        classes: whether they are.
    """
    _, n, c = z.shape
    power = y.square().mean(1)  # [T, p]
    y = y / power.sum(-1).clamp_min(1e-12).sqrt()[:, None, None]
    linear = (z.mT @ y / n).square().sum(-1)  # [T, c]
    ordered = z.mT.contiguous().sort(-1).values
    low, high = (torch.searchsorted(ordered, z.mT.contiguous(), side=side) for side in ("left", "right"))
    rank = (low + high).to(z) * (math.pi / (2 * n))  # [T, c, n], from 0 to π
    cosines = []
    for k in range(1, COSINES + 1):
        wave = torch.cos(k * rank)
        wave = wave - wave.mean(-1, keepdim=True)
        wave = wave / wave.square().mean(-1, keepdim=True).clamp_min(1e-4).sqrt()
        cosines.append((wave @ y / n).square().sum(-1))
    cosine = torch.stack(cosines, -1)  # [T, c, k]
    distinct = 1 / (high - low).to(z).mean(-1)  # of n equal values 1/n, of all different ones 1
    gram = z @ z.mT
    among = (z * (gram @ z)).sum(1) / n**2  # Σ of squared correlations, its own too
    columns = [linear.sqrt(), (n * linear).log1p(), *cosine.sqrt().unbind(-1), (n * cosine.sum(-1)).log1p()]
    columns += [distinct, (n * distinct).clamp_min(1).log(), (n * distinct < 2.5).to(z), z.abs().mean(1)]
    columns += [z.abs().amax(1).log1p(), z.pow(3).mean(1).abs().log1p(), (among / c), among.clamp_min(0).log1p()]
    size = z.new_tensor([math.log(n), math.log(c), math.log(c / n), float(classes), math.log(y.shape[-1])])
    share = power / power.sum(-1, keepdim=True).clamp_min(1e-12)
    tables = [*size.expand(len(z), -1).unbind(-1), -(share * share.clamp_min(1e-9).log()).sum(-1)]
    length = gram.diagonal(dim1=-2, dim2=-1)
    for noise in RIDGES:
        inverse = _inverse(gram / c, noise)
        solution = inverse @ y
        columns.append((z.mT @ solution / c).square().sum(-1).mul(c).sqrt())
        tables += _errors(inverse, solution, y)
    squares = length.unsqueeze(-1) + length.unsqueeze(-2) - 2 * gram
    for factor, noise in SMOOTH:
        over = 1 / (factor**2 * c)
        kernel = torch.exp(-0.5 * over * squares)
        inverse = _inverse(kernel, noise)
        solution = inverse @ y
        amplitude = (y * solution).sum((1, 2)).clamp_min(1e-9)[:, None, None] / n
        pull = (solution @ solution.mT / amplitude - inverse) * kernel
        slope = over * ((z * (pull @ z)).sum(1) - (pull.sum(-1, keepdim=True) * z.square()).sum(1))
        columns.append(torch.asinh(c * slope) / 3)
        tables += _errors(inverse, solution, y)
    return torch.stack(columns, -1), torch.stack(tables, -1)


def _inverse(gram: Tensor, noise: float) -> Tensor:
    return torch.cholesky_inverse(torch.linalg.cholesky_ex(gram + noise * torch.eye(gram.shape[-1]).to(gram))[0])


def _errors(inverse: Tensor, solution: Tensor, y: Tensor) -> list[Tensor]:
    """The log of the mean squared error of each row by the others, and of the amplitude."""
    left = solution / inverse.diagonal(dim1=-2, dim2=-1).unsqueeze(-1)
    error = left.square().sum(-1).mean(-1)
    return [error.clamp(1e-4, 1e3).log(), ((y * solution).sum(-1).mean(-1)).clamp(1e-4, 1e3).log()]


class Block(nn.Module):
    """A residual layer of tokens, each beside attentive means, the mean and the maximum of all."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.attend = nn.Linear(width, HEADS)
        self.value = nn.Linear(width, width)
        self.context = nn.Linear(3 * width, width)
        self.layers = nn.Sequential(nn.Linear(2 * width, 2 * width), nn.GELU(), nn.Linear(2 * width, width))

    def forward(self, tokens: Tensor) -> tuple[Tensor, Tensor]:
        """Tokens ``[T, c, w]``, and what all say together ``[T, w]``."""
        known = self.norm(tokens)
        weights = self.attend(known).softmax(1)  # [T, c, H]
        values = self.value(known).unflatten(-1, (HEADS, -1))  # [T, c, H, w / H]
        pooled = (weights.unsqueeze(-1) * values).sum(1).flatten(1)
        context = self.context(torch.cat([pooled, known.mean(1), known.amax(1)], -1))
        beside = context.unsqueeze(1).expand_as(known)
        return tokens + self.layers(torch.cat([known, beside], -1)), context


class Proposer(nn.Module):
    """From a table to M kernels. It starts at a spread of plain ones, alike in all columns."""

    centre: Tensor
    spread: Tensor

    def __init__(self, generator: torch.Generator, proposals: int = PROPOSALS, width: int = WIDTH) -> None:
        super().__init__()
        self.proposals = proposals
        inputs = OF_COLUMN + OF_TABLE
        self.register_buffer("centre", torch.zeros(inputs))
        self.register_buffer("spread", torch.ones(inputs))
        self.start = nn.Linear(inputs, width)
        self.blocks = nn.ModuleList([Block(width) for _ in range(BLOCKS)])
        self.of_column = nn.Linear(width, proposals)
        self.of_table = nn.Sequential(nn.Linear(width, width), nn.GELU(), nn.Linear(width, 4 * proposals))
        for name, weight in self.named_parameters():
            if weight.ndim == 2:
                small = 0.1 if name in ("of_column.weight", "of_table.2.weight") else 1.0
                weight.data = small * torch.randn(weight.shape, generator=generator) / math.sqrt(weight.shape[1])
            elif "norm" not in name:
                weight.data.zero_()
        grid = (torch.arange(proposals) * 0.6180339887498949).frac(), torch.linspace(0, 1, proposals)
        third = (torch.arange(proposals) * 0.7548776662466927).frac()
        self.base = nn.Parameter(
            torch.stack([2 * grid[0] - 1, 5 * grid[1] - 3, 6 * third - 5, torch.zeros(proposals)])
        )  # log scale, logit of the linear share, log noise, log prior

    def forward(self, z: Tensor, y: Tensor, *, classes: bool) -> Proposals:
        """As :func:`described` takes them."""
        columns, table = described(z, y, classes=classes)
        return self.proposed(self.inputs(columns, table))

    def inputs(self, columns: Tensor, table: Tensor) -> Tensor:
        """Statistics beside each other, ``[T, c, F + G]``."""
        beside = table.unsqueeze(1).expand(-1, columns.shape[1], -1)
        return torch.cat([columns, beside], -1).to(self.centre)

    def proposed(self, inputs: Tensor) -> Proposals:
        """Kernels from statistics ``[T, c, F + G]``."""
        tokens = self.start(((inputs - self.centre) / self.spread).clamp(-6, 6))
        for block in self.blocks:
            tokens, context = block(tokens)
        table = self.of_table(context).unflatten(-1, (4, -1)) + self.base  # [T, 4, M]
        default = -math.log(LENGTH * math.sqrt(inputs.shape[1]))
        move = table[:, 0].unsqueeze(-1) + self.of_column(tokens).mT
        scale = torch.exp(default + REACH * torch.tanh(move / REACH))
        low, high = math.log(LEAST_NOISE), math.log(MOST_NOISE)
        noise = torch.exp(low + (high - low) * torch.sigmoid(4 * (table[:, 2] - low) / (high - low) - 2))
        return Proposals(scale, table[:, 1].sigmoid(), noise, table[:, 3].log_softmax(-1))
