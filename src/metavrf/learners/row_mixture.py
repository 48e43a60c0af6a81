"""One task of rows solved under many kernels, and their mixture: ridge regression, its evidence, what is left out."""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor, nn

from metavrf.episodes import Episodes
from metavrf.errors import UserError
from metavrf.kernels.mixing import mix
from metavrf.kernels.rows import Kernels
from metavrf.learners.adapted import Answer

MOST_VALUES = 8_000_000  # of the kernels of an answer
FREEDOM = 4.0  # of the amplitude's prior, whose scale is the targets' variance


class Targets(NamedTuple):
    """What ridge regression fits, ``values [S, p]`` = (y - offset)/gain; of classes ``offset [C]`` are frequencies."""

    values: Tensor
    offset: Tensor
    gain: Tensor
    labels: Tensor | None

    @classmethod
    def of(cls, task: Episodes) -> Targets:
        """Of the support of one task."""
        if task.way is not None:
            y = F.one_hot(task.support_y[0], task.way).double()
            offset = (y.mean(0) * len(y) + 1e-3) / (len(y) + 1e-3 * task.way)  # of a class without samples too
            return cls(y - offset, offset, torch.ones_like(offset), task.support_y[0])
        y = task.support_y[0].double()
        gain = y.std(0, correction=0)
        gain = torch.where(gain > 1e-12 * y.abs().amax(0), gain, 1.0)
        return cls((y - y.mean(0)) / gain, y.mean(0), gain, None)

    def known(self) -> Tensor:
        """``[S]``: whether others of the sample's class are left without it."""
        assert self.labels is not None
        return self.labels.bincount()[self.labels] > 1

    def some(self, rows: Tensor) -> Targets:
        """Of some of the rows, and of the classes that they have."""
        if self.labels is None:
            return self._replace(values=self.values[rows])
        present, labels = torch.unique(self.labels[rows], return_inverse=True)
        share = self.offset[present] / self.offset[present].sum()
        return Targets(self.values[rows][:, present], share, self.gain[present], labels)


class Solved(NamedTuple):
    """Ridge regression under K kernels.

    Attributes:
        factor: L ``[K, S, S]``, with LLᵀ = K + λI.
        white: L⁻¹Y ``[K, S, p]``.
        amplitude: a² given the targets, ``[K, p]``, or ``[K, 1]`` of classes.
        evidence: log p(Y|X), ``[K]``.
    """

    factor: Tensor
    white: Tensor
    amplitude: Tensor
    evidence: Tensor

    def left_out(self, targets: Tensor) -> Tensor:
        """What each sample is predicted as by the others, ``[K, S, p]``: y - α/P with P the diagonal of A⁻¹."""
        inverse = torch.cholesky_inverse(self.factor)
        return targets - inverse @ targets / inverse.diagonal(dim1=-2, dim2=-1).unsqueeze(-1)


def solve(gram: Tensor, noise: Tensor, targets: Targets) -> Solved:
    """With ``gram [K, S, S]``, to which λ ``noise [K]`` is added in place."""
    values = targets.values
    samples, outputs = values.shape
    gram.diagonal(dim1=-2, dim2=-1).add_(noise.unsqueeze(1))
    factor, info = torch.linalg.cholesky_ex(gram)
    if bool(info.any()):
        raise UserError(
            f"the kernel matrix is not positive definite at ridge = {noise.min().item():g}: give a larger one"
        )
    white = torch.linalg.solve_triangular(factor, values.expand(len(gram), -1, -1), upper=False)
    energy = white.square().sum(-2)  # [K, p]
    log_det = 2 * factor.diagonal(dim1=-2, dim2=-1).log().sum(-1)
    count = samples
    if targets.labels is not None:
        energy, count = energy.sum(-1, keepdim=True), samples * outputs
    freedom = FREEDOM + count
    evidence = -0.5 * (outputs * log_det + freedom * torch.log1p(energy / FREEDOM).sum(-1))
    constant = math.lgamma(freedom / 2) - math.lgamma(FREEDOM / 2) - 0.5 * count * math.log(math.pi * FREEDOM)
    evidence = evidence + energy.shape[-1] * constant
    return Solved(factor, white, (FREEDOM + energy) / (freedom - 2), evidence)


class RowsPredictor(nn.Module):
    """A mixture of P kernels conditioned on one task: a plain module that answers as :class:`Adapted`."""

    log_weights: Tensor
    index: Tensor
    solution: Tensor
    offset: Tensor
    evidence: Tensor
    gamma: Tensor
    root: Tensor
    amplitude: Tensor

    def __init__(self, kernels: Kernels, **tensors: Tensor) -> None:
        """With ``solution [P, S, p]`` of kernel ``index [P]``; of classes ``gamma [P]`` is in it already.

        In regression ``root`` L⁻¹ is ``[P, S, S]`` and ``amplitude`` a² ``[P, p]``.
        """
        super().__init__()
        self.kernels = kernels
        for name, tensor in tensors.items():
            self.register_buffer(name, tensor)

    @property
    def at_once(self) -> int:
        """Rows to answer for at a time."""
        samples, outputs = self.solution.shape[1:]
        return max(1, MOST_VALUES // (len(self.index) * max(samples, outputs)))

    def described(self) -> dict[str, NDArray[np.float64]]:
        """Weights, lengths, linear share and noise of the kernels, the heaviest first, and the relevance of columns."""
        number = len(self.kernels.noise)
        weights = torch.zeros(number).to(self.log_weights).index_add_(0, self.index, self.log_weights.exp())
        order = weights.argsort(descending=True)
        relevance = weights @ self.kernels.relevance()
        found = {"weights": weights, "lengths": self.kernels.lengths(), "linear": self.kernels.linear()}
        arrays = {name: tensor[order].numpy() for name, tensor in (found | {"noise": self.kernels.noise}).items()}
        return arrays | {"relevance": relevance.numpy()}

    def forward(self, x: Tensor) -> Answer:
        """Probabilities ``[N, C]`` of ``x [N, d]``; in regression mean and standard deviation, ``[N, p]`` each."""
        kernel, prior = self.kernels(x)
        kernel = kernel[self.index]  # [P, N, S]
        weights = self.log_weights.unsqueeze(1)
        samples = (kernel @ self.solution + self.offset).unsqueeze(1)  # [P, 1, N, p]
        if hasattr(self, "gamma"):
            return mix(samples, None, weights)[0][0].softmax(-1)
        explained = (self.root @ kernel.mT).square().sum(-2)
        process = (prior[self.index] - explained).clamp_min(0) + self.kernels.noise[self.index].unsqueeze(1)
        variance = (process.unsqueeze(-1) * self.amplitude.unsqueeze(1)).unsqueeze(1)
        mean, std = mix(samples, variance, weights)
        assert std is not None
        return mean[0], std[0]
