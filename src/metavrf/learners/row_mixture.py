"""One task of rows solved under many kernels, and their mixture: ridge regression, its evidence, what is left out."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple, Self

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
from metavrf.prediction import Prediction

MOST_VALUES = 8_000_000  # of the kernels of an answer
FREEDOM = 4.0  # of the prior of the amplitude; its scale is that of the targets' variance


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

    def to(self, dtype: torch.dtype) -> Targets:
        """In another precision."""
        return Targets(self.values.to(dtype), self.offset.to(dtype), self.gain.to(dtype), self.labels)

    def known(self) -> Tensor:
        """``[S]``: whether samples of its class stand before a sample."""
        assert self.labels is not None
        order = self.labels.argsort(stable=True)
        found = torch.zeros_like(self.labels, dtype=torch.bool)
        found[order[1:]] = self.labels[order[1:]] == self.labels[order[:-1]]
        return found

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

    def of_contrasts(self) -> Tensor:
        """The evidence ``[K]`` of differences between samples: targets that are less their mean say nothing of it.

        Of a few samples this matters: a kernel on centred columns is spared what it says of their mean. By Schur's
        complement the determinant of the contrasts is that of A times 1ᵀA⁻¹1, up to a constant.
        """
        ones = torch.ones_like(self.factor[..., :1])
        mean = torch.linalg.solve_triangular(self.factor, ones, upper=False).square().sum((1, 2))
        return self.evidence - 0.5 * self.white.shape[-1] * mean.log()

    def in_turn(self, targets: Tensor) -> Tensor:
        """What each sample is predicted as by those before it, ``[K, S, p]``: y - Lᵢᵢ·(L⁻¹y)ᵢ."""
        return targets - self.factor.diagonal(dim1=-2, dim2=-1).unsqueeze(-1) * self.white

    def left_out(self, targets: Tensor) -> Tensor:
        """What each sample is predicted as by the others, ``[K, S, p]``: y - α/P with P the diagonal of A⁻¹."""
        inverse = torch.cholesky_inverse(self.factor)
        return targets - inverse @ targets / inverse.diagonal(dim1=-2, dim2=-1).unsqueeze(-1)


def solve(gram: Tensor, noise: Tensor, targets: Targets) -> Solved:
    """With ``gram [K, S, S]``, to which λ ``noise [K]`` is added in place."""
    values = targets.values
    samples, outputs = values.shape
    gram.diagonal(dim1=-2, dim2=-1).add_(noise.unsqueeze(1))
    upper, info = torch.linalg.cholesky_ex(gram, upper=True)  # faster than the lower one
    if bool(info.any()):
        raise UserError(
            f"the kernel matrix is not positive definite at ridge = {noise.min().item():g}: give a larger one"
        )
    factor = upper.mT
    white = torch.linalg.solve_triangular(factor, values.expand(len(gram), -1, -1), upper=False)
    energy = white.square().sum(-2)  # [K, p]
    log_det = 2 * factor.diagonal(dim1=-2, dim2=-1).log().sum(-1)
    count = samples
    if targets.labels is not None:
        energy, count = energy.sum(-1, keepdim=True), samples * outputs
    freedom = FREEDOM + count
    usual = (usual_energy(noise) if targets.labels is None else torch.full_like(noise, FREEDOM)).unsqueeze(1)
    spread = outputs * log_det + freedom * torch.log1p(energy / usual).sum(-1)
    constant = math.lgamma(freedom / 2) - math.lgamma(FREEDOM / 2) - 0.5 * count * math.log(math.pi)
    evidence = energy.shape[-1] * (constant - 0.5 * count * usual.squeeze(1).log()) - 0.5 * spread
    return Solved(factor, white, (usual + energy) / (freedom - 2), evidence)


def usual_energy(noise: Tensor) -> Tensor:
    """What the prior of the amplitude counts as known of the energy: targets vary by a²(1 + λ), noise included.

    Were it a² alone, a kernel that is nearly all noise would have to claim more variance than targets have, and targets
    that depend on nothing would be explained by one that is not. Labels are no such targets: they always differ.
    """
    return FREEDOM / (1 + noise)


class RowsPredictor(nn.Module):
    """A mixture of K kernels conditioned on one task: a plain module that answers as :class:`Adapted`."""

    log_weights: Tensor
    index: Tensor
    solution: Tensor
    offset: Tensor
    evidence: Tensor
    gamma: Tensor
    root: Tensor
    amplitude: Tensor
    gain: Tensor
    targets: Tensor

    def __init__(self, kernels: Kernels, **tensors: Tensor) -> None:
        """With ``solution [K, S, p]`` of each kernel; of classes P components are kernel ``index [P]`` times ``gamma``.

        In regression each kernel is one component, ``root`` L⁻¹ is ``[K, S, S]`` and ``amplitude`` a² ``[K, p]``;
        ``targets [S, p]`` are less their ``offset``, and ``gain [p]`` is their deviation.
        """
        super().__init__()
        self.kernels = kernels
        for name, tensor in tensors.items():
            self.register_buffer(name, tensor)

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Self:
        """The kernels, which are no modules, go along to another precision or device."""
        self.kernels = self.kernels.applied(fn)
        return super()._apply(fn, recurse)

    @property
    def at_once(self) -> int:
        """Rows to answer for at a time."""
        kernels, samples, outputs = self.solution.shape
        return max(1, MOST_VALUES // max(kernels * samples, len(self.index) * outputs))

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
        samples, variance = self.components(x)
        mean, std = mix(samples, variance, self.log_weights.unsqueeze(1))
        return mean[0].softmax(-1) if std is None else (mean[0], std[0])

    def components(self, x: Tensor) -> tuple[Tensor, Tensor | None]:
        """Means and variances ``[P, 1, N, p]`` under each kernel; of classes logits, and None."""
        kernel, prior = self.kernels(x)  # [K, N, S]
        fit = kernel @ self.solution
        if hasattr(self, "gamma"):
            return torch.addcmul(self.offset, self.gamma[:, None, None], fit[self.index]).unsqueeze(1), None
        explained = (self.root @ kernel.mT).square().sum(-2)
        process = (prior - explained).clamp_min(0) + self.kernels.noise.unsqueeze(1)
        return (fit + self.offset).unsqueeze(1), (process.unsqueeze(-1) * self.amplitude.unsqueeze(1)).unsqueeze(1)

    def prediction(self, x: Tensor) -> Prediction:
        """The mixture itself, of real targets."""
        samples, variance = self.components(x)
        weights = self.log_weights.unsqueeze(1)
        mean, std = mix(samples, variance, weights)
        return Prediction(mean, samples, std, variance=variance, log_weights=weights)

    def draw(self, x: Tensor, count: int, generator: torch.Generator) -> Tensor:
        """Targets ``[count, N, p]`` drawn jointly: the rows of a draw share its kernel, and neighbours go together."""
        chosen = torch.multinomial(self.log_weights.exp(), count, replacement=True, generator=generator)
        mean = self.components(x)[0][:, 0]  # [P, N, p]
        noise = torch.randn(count, *mean.shape[1:], dtype=mean.dtype, generator=generator)
        drawn = torch.empty_like(noise)
        for number in chosen.unique():
            one, mine = self.kernels.chosen(number.unsqueeze(0)), chosen == number
            explained = self.root[number] @ one(x)[0][0].mT  # [S, N]
            covariance = one(x, x)[0][0] - explained.mT @ explained
            covariance.diagonal().add_(one.noise)
            factor = torch.linalg.cholesky(covariance)
            drawn[mine] = mean[number] + factor @ noise[mine] * self.amplitude[number].sqrt()
        return drawn

    def without_each(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Mean and deviation ``[S, 1 + N, p]`` of each support row, and of ``x [N, d]``, by the other support rows.

        In closed form: solutions, variances, amplitudes and weights are those without the row; the kernels to choose
        from, and the scales of columns and targets, are those with it.
        """
        samples, outputs = self.solution.shape[1:]
        kernel, prior = self.kernels(x)
        noise = self.kernels.noise
        inverse = self.root.mT @ self.root  # [P, S, S]
        precision = inverse.diagonal(dim1=-2, dim2=-1)  # [P, S]
        own = self.solution / precision.unsqueeze(-1)  # [P, S, p], of the row itself
        pull = kernel @ inverse  # [P, N, S]
        mean = (kernel @ self.solution).unsqueeze(1) - pull.mT.unsqueeze(-1) * own.unsqueeze(2)  # [P, S, N, p]
        process = (prior - (pull * kernel).sum(-1)).clamp_min(0).unsqueeze(1) + pull.mT.square() / precision[..., None]
        of_row = self.targets - own
        mean = torch.cat([of_row.unsqueeze(2), mean], 2) + self.offset
        variance = torch.cat([(1 / precision).unsqueeze(-1), process + noise[:, None, None]], -1)  # [P, S, 1 + N]
        freedom = FREEDOM + samples
        usual = usual_energy(noise).unsqueeze(1)
        energy = self.amplitude * (freedom - 2) / self.gain.square() - usual  # [P, p]
        left = energy.unsqueeze(1) - (self.solution * own / self.gain.square())  # [P, S, p]
        usual, energy, left = usual.unsqueeze(1), energy.unsqueeze(1), left.clamp_min(0)
        amplitude = (usual + left) / (freedom - 3) * self.gain.square()
        change = (freedom - 1) * torch.log1p(left / usual) - freedom * torch.log1p(energy / usual) - usual.log()
        evidence = -0.5 * (outputs * precision.log() + change.sum(-1))
        weights = (self.log_weights.unsqueeze(1) + evidence).log_softmax(0)  # [P, S]
        mean, std = mix(mean, variance.unsqueeze(-1) * amplitude.unsqueeze(2), weights)
        assert std is not None
        return mean, std
