"""Kernel ridge regression in closed form (Eq. closed of the paper), batched over tasks.

Written in features φ so that both forms are at hand: the dual solves S × S, the primal D × D.

    dual    α = (K + λI)⁻¹Y,           ŷ = K̃ᵀα
    primal  w = (ΦᵀΦ + λI)⁻¹ΦᵀY,       ŷ = φ̃ᵀw

They are the same predictor (the matrix inversion lemma), and so is their variance as a Gaussian
process of unit prior scale and noise λ: k(x, x) - k̃ᵀ(K + λI)⁻¹k̃ = λ·φ̃ᵀ(ΦᵀΦ + λI)⁻¹φ̃.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from metavrf.errors import UserError
from metavrf.memory import check_room


class Ridge(NamedTuple):
    """A solved ridge problem, ready to predict; made by :func:`fit`.

    Attributes:
        solution: α ``[..., S, p]`` (dual) or w ``[..., D, p]`` (primal).
        factor: lower Cholesky factor, ``[..., S, S]`` (dual) or ``[..., D, D]`` (primal).
        support: ``[..., S, D]`` support features for the dual form, None for the primal.
        lam: λ, one for all or ``[...]``, one for each problem.
        energy: ``[..., p]``, Yᵀ(K + λI)⁻¹Y by output: the squared norm of the data under the kernel.
    """

    solution: Tensor
    factor: Tensor
    support: Tensor | None
    lam: Tensor
    energy: Tensor

    def posterior(self, phi: Tensor, *, unit_norm: bool = False) -> tuple[Tensor, Tensor]:
        """ŷ ``[..., Q, p]`` for features ``phi [..., Q, D]``, and the Gaussian process' variance ``[..., Q]``.

        ``unit_norm`` says that φ(x)ᵀφ(x) = 1, as it is of sine-cosine pairs, which saves computing it.
        """
        if self.support is None:
            solved = torch.linalg.solve_triangular(self.factor, phi.mT, upper=False)
            return phi @ self.solution, self.lam.unsqueeze(-1) * solved.square().sum(-2)
        cross = self.support @ phi.mT  # K̃  [..., S, Q]
        solved = torch.linalg.solve_triangular(self.factor, cross, upper=False)
        prior = 1.0 if unit_norm else torch.linalg.vecdot(phi, phi)  # k(x, x)
        return cross.mT @ self.solution, (prior - solved.square().sum(-2)).clamp_min(0)

    def predict(self, phi: Tensor) -> Tensor:
        """ŷ alone."""
        if self.support is None:
            return phi @ self.solution
        return (self.support @ phi.mT).mT @ self.solution

    @property
    def weights(self) -> Tensor:
        """The primal w ``[..., D, p]``; from the dual form Φᵀα."""
        return self.solution if self.support is None else self.support.mT @ self.solution

    @property
    def root(self) -> Tensor:
        """R ``[..., r, D]`` that gives the variance without a solve: ‖Rφ‖² (primal), k(x, x) - ‖Rφ‖² (dual)."""
        if self.support is not None:
            return torch.linalg.solve_triangular(self.factor, self.support, upper=False)
        identity = torch.eye(self.factor.shape[-1], dtype=self.factor.dtype, device=self.factor.device)
        inverse = torch.linalg.solve_triangular(self.factor, identity, upper=False)
        return self.lam[..., None, None].sqrt() * inverse

    def leave_one_out(self, phi: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
        """What each support sample is predicted as by the others, ``[..., S, p]``, and its variance ``[..., S]``.

        With P = (K + λI)⁻¹ and α = PY, leaving sample i out changes its prediction to yᵢ - αᵢ/Pᵢᵢ with the variance
        1/Pᵢᵢ - λ (Rasmussen & Williams 2006, section 5.4.2). ``phi [..., S, D]`` and ``targets`` are those of the fit.
        """
        lam = self.lam.unsqueeze(-1)
        if self.support is None:
            solved = torch.linalg.solve_triangular(self.factor, phi.mT, upper=False)
            precision = (1 - solved.square().sum(-2)) / lam  # diagonal of P
            dual = (targets - phi @ self.solution) / lam.unsqueeze(-1)
        else:
            precision = torch.cholesky_inverse(self.factor).diagonal(dim1=-2, dim2=-1)
            dual = self.solution
        precision = precision.clamp_min(torch.finfo(precision.dtype).tiny)
        fit = targets - dual / precision.unsqueeze(-1)
        return fit, (1 / precision - lam).clamp_min(0)


def fit(phi: Tensor, targets: Tensor, lam: Tensor | float, form: str = "auto") -> Ridge:
    """Solve ridge regression of ``targets [..., S, p]`` on support features ``phi [..., S, D]``.

    ``lam`` is one λ, or ``[...]``, which may have axes before those of ``phi`` to try several.
    ``form`` is "dual" (S × S), "primal" (D × D) or "auto": whichever system is smaller.
    """
    lam = torch.as_tensor(lam, dtype=phi.dtype, device=phi.device)
    if not bool((lam > 0).all()):
        raise UserError(f"the ridge penalty must be positive, but lambda = {lam.detach().min().item():g}")
    samples, bases = phi.shape[-2:]
    if form == "auto":
        form = "dual" if samples <= bases else "primal"
    if form == "dual":
        factor = _cholesky(phi @ phi.mT, lam)
        alpha = torch.cholesky_solve(targets, factor)
        energy = (targets * alpha).sum(-2)
        return Ridge(alpha, factor, phi, lam, energy)
    if form == "primal":
        factor = _cholesky(phi.mT @ phi, lam)
        weights = torch.cholesky_solve(phi.mT @ targets, factor)
        energy = (targets * (targets - phi @ weights)).sum(-2) / lam.unsqueeze(-1)
        return Ridge(weights, factor, None, lam, energy)
    raise UserError(f"ridge {form=} is unknown: choose auto, dual or primal")


class Fit(NamedTuple):
    """Ridge regression under each kernel: what it says of queries, and how well it explains the data.

    Attributes:
        mean: ŷ ``[..., Q, p]``.
        variance: of the Gaussian process of unit amplitude, ``[..., Q]``.
        energy: Yᵀ(K + λI)⁻¹Y by output, ``[..., p]``.
        log_det: log|K + λI|, ``[...]``; None where it was not asked for.
        samples: of the support, S.
    """

    mean: Tensor
    variance: Tensor
    energy: Tensor
    log_det: Tensor | None
    samples: int

    def log_evidence(self, amplitude: Tensor) -> Tensor:
        """Log p(Y|X) = -½ Yᵀ A⁻¹ Y - ½ log|A| - ½ S log 2π with A = a²(K + λI), summed over outputs: ``[...]``.

        ``amplitude [...]`` is a². The Cholesky factor of the solution has all of it.
        """
        assert self.log_det is not None
        outputs = self.energy.shape[-1]
        scale = self.samples * (amplitude.log() + math.log(2 * math.pi))
        return -0.5 * (self.energy.sum(-1) / amplitude + outputs * (self.log_det + scale))


def solve(
    kernel: Tensor, targets: Tensor, lam: Tensor, prior: Tensor | float = 1.0, *, determinant: bool = True
) -> Fit:
    """The dual form in one go: ``kernel [..., S, S + Q]`` is of the support with itself and with the queries, K | K̃.

    ``lam`` is λ, one for all or ``[...]``. ``prior`` is k(x, x) of each query, ``[..., Q]`` or one for all.
    ``determinant`` says whether the evidence will be asked for.
    """
    mean, explained, energy, log_det = _Solve.apply(kernel, targets, lam, determinant)
    return Fit(mean, (prior - explained).clamp_min(0), energy, log_det, kernel.shape[-2])


def solve_plainly(kernel: Tensor, targets: Tensor, lam: Tensor, prior: Tensor | float = 1.0) -> Fit:
    """:func:`solve` with the gradient that PyTorch derives: what the tests and the benchmark compare it with."""
    samples = kernel.shape[-2]
    gram, cross = kernel[..., :samples], kernel[..., samples:]
    factor = _cholesky(gram, lam)
    white = torch.linalg.solve_triangular(factor, cross, upper=False)
    targets = targets.expand(*kernel.shape[:-2], *targets.shape[-2:])
    of_targets = torch.linalg.solve_triangular(factor, targets, upper=False)
    explained, energy = white.square().sum(-2), of_targets.square().sum(-2)
    log_det = 2 * factor.diagonal(dim1=-2, dim2=-1).log().sum(-1)
    return Fit(white.mT @ of_targets, (prior - explained).clamp_min(0), energy, log_det, samples)


def factors(gram: Tensor, targets: Tensor, lam: Tensor) -> tuple[Tensor, Tensor]:
    """α = (K + λI)⁻¹Y ``[..., S, p]``, and R = L⁻¹ ``[..., S, S]`` with ‖Rk̃‖² the variance that is explained."""
    factor = _cholesky(gram, lam)
    identity = torch.eye(gram.shape[-1], dtype=gram.dtype, device=gram.device).expand_as(factor)
    root = torch.linalg.solve_triangular(factor, identity, upper=False)
    return root.mT @ (root @ targets), root


def leave_one_out(gram: Tensor, targets: Tensor, lam: Tensor) -> Tensor:
    """What each support sample is predicted as by the others, ``[..., S, p]``, under ``gram [..., S, S]``.

    With P = (K + λI)⁻¹ it is yᵢ - (PY)ᵢ/Pᵢᵢ (Rasmussen & Williams 2006, section 5.4.2).
    """
    inverse = torch.cholesky_inverse(_cholesky(gram, lam))
    return targets - inverse @ targets / inverse.diagonal(dim1=-2, dim2=-1).unsqueeze(-1)


def contradiction(x: Tensor, y: Tensor) -> Tensor | None:
    """By how much targets ``y [T, S, p]`` at the very same ``x [T, S, d]`` differ: their variance ``[T]``.

    It is pooled over all such samples, and the largest of the outputs'. None where no two samples are at one place.
    """
    tasks, samples, features = x.shape
    check_room(tasks * samples**2 * features, f"{tasks:,} tasks of {samples:,} support samples")
    same = (x.unsqueeze(2) == x.unsqueeze(1)).all(-1).to(y)  # [T, S, S]
    count = same.sum(-1, keepdim=True)
    if not bool((count > 1).any()):
        return None
    squares = (y - same @ y / count).square().sum(1)  # [T, p]
    freedom = (1 - 1 / count).sum(1)  # [T, 1]
    return (squares / freedom.clamp_min(torch.finfo(y.dtype).tiny)).amax(-1)


def kernel_of(phi: Tensor, samples: int) -> Tensor:
    """K | K̃ ``[..., S, S + Q]``: of the first ``samples`` of ``phi [..., S + Q, D]`` with all, in double precision."""
    kernel: Tensor = _Kernel.apply(phi, samples)
    return kernel


class _Kernel(torch.autograd.Function):
    """The product of some rows with all; written by hand, the gradients of the two meet without a copy."""

    @staticmethod
    def forward(ctx: Any, phi: Tensor, samples: int) -> Tensor:
        double = phi.double()
        ctx.save_for_backward(double)
        ctx.samples, ctx.dtype = samples, phi.dtype
        return double[..., :samples, :] @ double.mT

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, kernel: Tensor) -> tuple[Tensor, None]:
        (phi,) = ctx.saved_tensors
        gradient = kernel.mT @ phi[..., : ctx.samples, :]
        gradient[..., : ctx.samples, :] += kernel @ phi
        return gradient.to(ctx.dtype), None


class _Solve(torch.autograd.Function):
    """K̃ᵀP Y, the diagonal of K̃ᵀP K̃, that of YᵀP Y, and log|P⁻¹|, for P = (K + λI)⁻¹ = (LLᵀ)⁻¹.

    With W = L⁻¹[K̃ | Y] they are products of W with itself, and the determinant is in the diagonal of L. The gradient
    follows from dP = -P·dK·P and d log|P⁻¹| = tr(P·dK) with X = P[K̃ | Y] = L⁻ᵀW; written by hand it is a dozen
    operations on small matrices. Where the determinant is not asked for, nothing needs P itself.
    """

    @staticmethod
    def forward(
        ctx: Any, kernel: Tensor, targets: Tensor, lam: Tensor, determinant: bool
    ) -> tuple[Tensor, Tensor, Tensor, Tensor | None]:
        samples, queries = kernel.shape[-2], kernel.shape[-1] - kernel.shape[-2]
        gram, cross = kernel.split([samples, queries], dim=-1)
        factor = _cholesky(gram, lam)
        right = torch.cat([cross, targets.expand(*cross.shape[:-1], -1)], dim=-1)
        white = torch.linalg.solve_triangular(factor, right, upper=False)  # W
        ctx.save_for_backward(factor, right if determinant else white, targets, lam)
        ctx.determinant = determinant
        squares = white.square().sum(-2)
        of_queries, of_targets = white.split([queries, white.shape[-1] - queries], dim=-1)
        log_det = factor.diagonal(dim1=-2, dim2=-1).log().sum(-1).mul_(2) if determinant else None
        ctx.set_materialize_grads(False)
        return of_queries.mT @ of_targets, squares[..., :queries], squares[..., queries:], log_det

    @staticmethod
    @once_differentiable
    def backward(
        ctx: Any, mean: Tensor | None, explained: Tensor | None, energy: Tensor | None, log_det: Tensor | None
    ) -> tuple[Tensor, Tensor | None, Tensor, None]:
        factor, right, targets, lam = ctx.saved_tensors
        outputs = targets.shape[-1]
        queries = right.shape[-1] - outputs
        mean = right.new_zeros(*right.shape[:-2], queries, outputs) if mean is None else mean
        explained = right.new_zeros(*right.shape[:-2], queries) if explained is None else explained
        energy = right.new_zeros(*right.shape[:-2], outputs) if energy is None else energy
        if ctx.determinant:
            inverse = torch.cholesky_inverse(factor)  # P
            solved = inverse @ right  # X = [A | α]
        else:
            solved = torch.linalg.solve_triangular(factor.mT, right, upper=True)
        to_queries, to_targets = solved.split([queries, outputs], dim=-1)
        outer = to_targets * mean.mT if outputs == 1 else to_targets @ mean.mT  # batched products are slow for one
        by_mean = torch.cat([outer, to_queries @ mean], dim=-1)
        squares = solved * torch.cat([explained, energy], dim=-1).unsqueeze(-2)
        right = torch.add(by_mean, squares, alpha=2)  # of [K̃ | Y]
        squares[..., queries:] += by_mean[..., queries:]
        gram = -(squares @ solved.mT)  # of K
        if log_det is not None:
            gram += log_det[..., None, None] * inverse
        kernel = torch.cat([gram, right[..., :queries]], dim=-1)
        of_lam = gram.diagonal(dim1=-2, dim2=-1).sum(-1).sum_to_size(lam.shape)
        of_targets = right[..., queries:].sum_to_size(targets.shape) if ctx.needs_input_grad[1] else None
        return kernel, of_targets, of_lam, None


def _cholesky(gram: Tensor, lam: Tensor) -> Tensor:
    gram = gram + lam[..., None, None] * torch.eye(gram.shape[-1], dtype=gram.dtype, device=gram.device)
    factor, info = torch.linalg.cholesky_ex(gram)
    if bool(info.any()):
        raise UserError(
            f"the kernel matrix is not positive definite at lambda = {lam.detach().min().item():g}: "
            "the inputs or weights hold NaN or are too large, or lambda is too small for this precision"
        )
    return factor
