"""How proposed kernels are judged in training: many tables at once, with gradients, as :mod:`rows` uses them.

The loss of a table is minus the log likelihood of its query rows under the mixture of its M proposals, whose weights
are prior times evidence; of classes, times the likelihood of rows predicted in turn, over kernels and logit scales γ.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import once_differentiable

from metavrf.kernels.mixing import log_density, log_weights
from metavrf.learners.row_mixture import FREEDOM, usual_energy
from metavrf.learners.rows import GAMMAS, prior_of_gamma
from metavrf.nn.columns import Proposals, Proposer

OUTLIERS = 0.01  # a share of targets is from a Cauchy distribution, so that one of them does not decide a step
ABSENT = -30.0  # logit of a class without samples


class Support(NamedTuple):
    """Tables of one size, ready to be solved.

    Attributes:
        z: support columns, standardised, ``[T, n, c]``.
        query: query columns in the same units, ``[T, q, c]``.
        y: targets ``[T, n, p]`` less their mean, in regression over their deviation.
        target: of query rows ``[T, q]``, in the same units; labels of classes.
        labels: of support rows ``[T, n]``; None in regression.
    """

    z: Tensor
    query: Tensor
    y: Tensor
    target: Tensor
    labels: Tensor | None


def prepared(x: Tensor, y: Tensor, rows: int, classes: int | None) -> Support:
    """Tables ``x [T, N, c]``, ``y [T, N]`` of which the first ``rows`` are the support."""
    x = x.double()
    support = x[:, :rows]
    centre, deviation = support.mean(1, keepdim=True), support.std(1, correction=0, keepdim=True)
    varies = deviation > 1e-6 * support.abs().amax(1, keepdim=True)
    z = torch.where(varies, (x - centre) / torch.where(varies, deviation, 1.0), 0.0)
    z, query = z[:, :rows], z[:, rows:]
    if classes is not None:
        hot = F.one_hot(y[:, :rows], classes).double()
        return Support(z, query, hot - hot.mean(1, keepdim=True), y[:, rows:], y[:, :rows])
    y = y.double()
    mean, gain = y[:, :rows].mean(1, keepdim=True), y[:, :rows].std(1, correction=0, keepdim=True).clamp_min(1e-6)
    y = (y - mean) / gain
    return Support(z, query, y[:, :rows].unsqueeze(-1), y[:, rows:], None)


def kernel(q: Proposals, z: Tensor, other: Tensor) -> Tensor:
    """``[T, M, N, N']`` between ``z [T, N, c]`` and ``other [T, N', c]``: smooth plus linear, as of Standardised."""
    square = q.scale.square()
    ours, theirs = z.unsqueeze(1) * q.scale.unsqueeze(2), other.unsqueeze(1) * q.scale.unsqueeze(2)
    inner = ours @ theirs.mT
    smooth = torch.exp(inner - 0.5 * ours.square().sum(-1).unsqueeze(-1) - 0.5 * theirs.square().sum(-1).unsqueeze(-2))
    slope = q.linear / square.sum(-1).clamp_min(1e-12)
    return (1 - q.linear)[..., None, None] * smooth + slope[..., None, None] * inner


class _Inverse(torch.autograd.Function):
    """The inverse of positive definite matrices and their log determinant, with the short gradient of both."""

    @staticmethod
    def forward(ctx: Any, matrix: Tensor) -> tuple[Tensor, Tensor]:
        factor, _ = torch.linalg.cholesky_ex(matrix)
        inverse = torch.cholesky_inverse(factor)
        ctx.save_for_backward(inverse)
        return inverse, 2 * factor.diagonal(dim1=-2, dim2=-1).log().sum(-1)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, of_inverse: Tensor, of_log_det: Tensor) -> Tensor:
        (inverse,) = ctx.saved_tensors
        return of_log_det[..., None, None] * inverse - inverse @ of_inverse @ inverse


def inverse_and_log_det(matrix: Tensor) -> tuple[Tensor, Tensor]:
    """Of positive definite matrices ``[..., n, n]``: the inverse, and the log determinant ``[...]``."""
    return _Inverse.apply(matrix)


def inverse_and_log_det_plainly(matrix: Tensor) -> tuple[Tensor, Tensor]:
    """The same with the gradient that PyTorch derives."""
    factor = torch.linalg.cholesky(matrix)
    return torch.cholesky_inverse(factor), 2 * factor.diagonal(dim1=-2, dim2=-1).log().sum(-1)


class Judged(NamedTuple):
    """What kernels say of query rows, and how well they explain the support.

    Attributes:
        samples: ``[K, T, q, p]``: means, or logits; kernels by logit scales of classes.
        variance: of means, ``[K, T, q, p]``.
        log_prior: ``[K, T]``.
        score: ``[K, T]``: log evidence, or the log likelihood of rows in turn.
    """

    samples: Tensor
    variance: Tensor | None
    log_prior: Tensor
    score: Tensor

    def nll(self, support: Support) -> Tensor:
        """``[T]``, of the targets of query rows in nats, of which a few may lie anywhere."""
        weights = log_weights(self.log_prior, self.score)
        if self.variance is not None:
            density = log_density(self.samples, self.variance, weights, support.target.unsqueeze(-1))[..., 0]
            anywhere = -torch.log1p(support.target.square()) - math.log(math.pi)
            return -torch.logaddexp(density + math.log(1 - OUTLIERS), anywhere + math.log(OUTLIERS)).mean(1)
        assert support.labels is not None
        there = (support.target.unsqueeze(-1) == support.labels.unsqueeze(1)).any(-1)  # [T, q]: the class is known
        own = self.samples.log_softmax(-1).gather(-1, support.target.expand(len(weights), -1, -1).unsqueeze(-1))
        density = torch.logsumexp(own.squeeze(-1) + weights.unsqueeze(-1), 0).clamp_min(-15)
        return -(density * there).sum(1) / there.sum(1).clamp_min(1)


def judge(q: Proposals, support: Support) -> Judged:
    """Solve each table under each of its kernels."""
    q = Proposals(*(value.double() for value in q))
    gram = kernel(q, support.z, support.z)
    noisy = gram + torch.diag_embed(q.noise.unsqueeze(-1).expand(*gram.shape[:3]))
    inverse, log_det = inverse_and_log_det(noisy)
    y = support.y.unsqueeze(1)  # [T, 1, n, p]
    solution = inverse @ y
    energy = (y * solution).sum(-2)  # [T, M, p]
    rows, outputs = support.y.shape[1:]
    across = kernel(q, support.query, support.z)  # [T, M, q, n]
    fit = across @ solution  # [T, M, q, p]
    if support.labels is None:
        freedom, usual = FREEDOM + rows, usual_energy(q.noise).unsqueeze(-1)
        spread = freedom * torch.log1p(energy / usual) + rows * usual.log()  # [T, M, p]
        evidence = -0.5 * (outputs * log_det + spread.sum(-1))
        amplitude = (usual + energy) / (freedom - 2)
        smooth = 1 - q.linear.unsqueeze(-1)
        length = (support.query.square().unsqueeze(1) @ q.scale.square().unsqueeze(-1))[..., 0]
        own = smooth + (q.linear / q.scale.square().sum(-1).clamp_min(1e-12)).unsqueeze(-1) * length
        process = (own - ((across @ inverse) * across).sum(-1)).clamp_min(0) + q.noise.unsqueeze(-1)
        variance = process.unsqueeze(-1) * amplitude.unsqueeze(-2)
        return Judged(fit.transpose(0, 1), variance.transpose(0, 1), q.log_prior.T, evidence.T)
    gamma = fit.new_tensor(GAMMAS)
    counts = F.one_hot(support.labels, outputs).sum(1)  # [T, C]
    start = torch.where(counts > 0, counts.clamp_min(1).double().div(rows).log(), ABSENT)
    factor = torch.linalg.cholesky(noisy)
    white = torch.linalg.solve_triangular(factor, y.expand(-1, len(q.noise[0]), -1, -1), upper=False)
    turn = y - factor.diagonal(dim1=-2, dim2=-1).unsqueeze(-1) * white  # [T, M, n, p]: by the rows before
    shape = (len(gamma), 1, 1, 1, 1)
    logits = (gamma.view(shape) * turn + start[:, None, None]).log_softmax(-1)  # [G, T, M, n, C]
    labels = support.labels[None, :, None, :, None].expand(*logits.shape[:-1], 1)
    known = (support.labels.unsqueeze(1) == support.labels.unsqueeze(2)).tril(-1).any(-1)  # [T, n]: its class is there
    likelihood = (logits.gather(-1, labels)[..., 0] * known.unsqueeze(1)).sum(-1)  # [G, T, M]
    contrasts = _of_contrasts(inverse, log_det, energy, rows)
    alone = ~known.any(1)[:, None]
    of_one, of_more = prior_of_gamma(gamma, alone=True), prior_of_gamma(gamma, alone=False)
    prior = torch.where(alone, of_one.view(-1, 1, 1), of_more.view(-1, 1, 1))
    score = torch.where(alone, contrasts, likelihood) + prior
    samples = gamma.view(shape) * fit + start[:, None, None]  # [G, T, M, q, C]
    return Judged(
        samples.transpose(1, 2).flatten(0, 1),
        None,
        (q.log_prior.T - math.log(len(gamma))).repeat(len(gamma), 1),
        score.transpose(1, 2).flatten(0, 1),
    )


def _of_contrasts(inverse: Tensor, log_det: Tensor, energy: Tensor, rows: int) -> Tensor:
    """As :meth:`metavrf.learners.row_mixture.Solved.of_contrasts`, ``[T, M]``, up to a constant."""
    outputs = energy.shape[-1]
    total = torch.log1p(energy.sum(-1) / FREEDOM)
    evidence = -0.5 * (outputs * log_det + (FREEDOM + rows * outputs) * total)
    return evidence - 0.5 * outputs * inverse.sum((-2, -1)).clamp_min(1e-12).log()


def loss(network: Proposer, support: Support) -> Tensor:
    """``[T]``."""
    proposals = network(support.z, support.y, classes=support.labels is not None)
    return judge(proposals, support).nll(support)
