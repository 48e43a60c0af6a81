"""Random Fourier features of task-specific kernels (Rahimi & Recht 2008; Eq. rfs of the paper).

A basis ω ~ N(μ, diag σ²) is the spectral distribution of the kernel

    k(z, z') = E cos(ωᵀ(z - z')) = cos(μᵀ(z - z')) · exp(-½ ‖σ ⊙ (z - z')‖²),

and D draws of it give features φ with φ(z)ᵀφ(z') → k(z, z') at the rate 1/√D. The scale √(2/D) makes
the estimate unbiased (the paper's 1/√D is half the kernel). All functions are pure and batched:
task axes lead.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from metavrf.errors import UserError
from metavrf.memory import check_room


@dataclass(frozen=True)
class Draws:
    """The randomness of L sets of bases, shared by every task: ω = μ + σ ⊙ ε, phases b.

    Attributes:
        epsilon: ``[L, d, M]`` standard normal draws.
        phase: ``[L, M]`` uniform on [0, 2π] for cosine features (M = D), or None for
            sine-cosine pairs (M = D/2).
    """

    epsilon: Tensor
    phase: Tensor | None

    @property
    def bases(self) -> int:
        """Number of features D."""
        return self.epsilon.shape[-1] * (2 if self.phase is None else 1)


def draw_bases(
    features: int,
    bases: int,
    *,
    samples: int = 1,
    feature_map: str = "cosine",
    orthogonal: bool = False,
    generator: torch.Generator,
) -> Draws:
    """Draw ε and b for D = ``bases`` features of d = ``features`` inputs, ``samples`` times.

    ``feature_map="cosine"`` is the paper's cos(ωᵀz + b); ``"sincos"`` pairs cos(ωᵀz) with sin(ωᵀz), which
    makes every draw exactly translation invariant with φ(z)ᵀφ(z) = 1 and has the lower variance for
    distances that matter (Sutherland & Schneider 2015). ``orthogonal`` makes ε orthogonal in blocks of d
    with norms as of Gaussian vectors (Yu et al. 2016): unbiased, with lower variance again.
    """
    if feature_map not in ("cosine", "sincos"):
        raise UserError(f"{feature_map=} is unknown: choose cosine or sincos")
    if bases < 1 or (feature_map == "sincos" and bases % 2):
        need = "an even number, at least 2" if feature_map == "sincos" else "at least 1"
        raise UserError(f"{bases=} does not fit the {feature_map} feature map: give {need}")
    paired = feature_map == "sincos"
    frequencies = bases // 2 if paired else bases
    check_room(12 * samples * features * frequencies, f"bases = {bases:,}")
    epsilon = torch.randn(samples, features, frequencies, generator=generator)
    if orthogonal:
        epsilon = _orthogonalise(epsilon, generator)
    phase = None if paired else 2 * math.pi * torch.rand(samples, frequencies, generator=generator)
    return Draws(epsilon, phase)


def _orthogonalise(epsilon: Tensor, generator: torch.Generator) -> Tensor:
    """Replace each block of d columns by orthogonal directions, each with an independent Gaussian norm."""
    features = epsilon.shape[1]
    norms = torch.randn(epsilon.shape, generator=generator).norm(dim=1, keepdim=True)
    blocks = []
    for block in epsilon.split(features, dim=2):  # a short last block is orthogonal too
        q, r = torch.linalg.qr(block)
        blocks.append(q * r.diagonal(dim1=-2, dim2=-1).sign().unsqueeze(-2))  # Haar distributed
    return torch.cat(blocks, dim=2) * norms


def fourier_features(z: Tensor, mean: Tensor, std: Tensor, draws: Draws) -> Tensor:
    """φ(z) = √(2/D)·cos(ωᵀz + b) under q(ω) = N(``mean``, ``std``²): ``[L, T, N, D]``.

    With one ε for all tasks, ωᵀz + b = [σ ⊙ z, μᵀz, 1]·[ε; 1; b]: one matrix product, and the ``[T, D, d]``
    tensor of bases is never formed.

    Args:
        z: ``[T, N, d]`` features.
        mean: ``[T, d]``, μ of each task.
        std: ``[T, d]``, σ of each task.
        draws: ε and b.
    """
    tasks, points, _ = z.shape
    check_room(
        12 * len(draws.epsilon) * tasks * points * draws.bases, f"{tasks * points:,} samples on {draws.bases:,} bases"
    )
    left = [z * std.unsqueeze(-2), z @ mean.unsqueeze(-1)]
    right = [draws.epsilon, torch.ones_like(draws.epsilon[:, :1])]
    if draws.phase is not None:
        left.append(torch.ones_like(left[1]))
        right.append(draws.phase.unsqueeze(1))
    rows = torch.cat(left, dim=-1).flatten(0, 1).expand(len(draws.epsilon), -1, -1)  # [L, T·N, d + 1 or 2]
    angle = torch.bmm(rows, torch.cat(right, dim=1)).unflatten(1, (tasks, points))  # [L, T, N, M]
    scale = math.sqrt(2 / draws.bases)
    if draws.phase is None:
        pair: Tensor = _SineCosine.apply(angle, scale)
        return pair
    return angle.cos() * scale


def explicit_bases(mean: Tensor, std: Tensor, draws: Draws) -> Tensor:
    """The bases ω = μ + σ ⊙ ε of one task, ``[L, d, M]``, for ``mean [d]`` and ``std [d]``."""
    return torch.addcmul(mean.unsqueeze(-1), std.unsqueeze(-1), draws.epsilon)


def explicit_features(z: Tensor, omega: Tensor, phase: Tensor | None) -> Tensor:
    """:func:`fourier_features` of one task by its bases: ``[L, N, D]`` of ``z [N, d]``; for use without gradients."""
    angle = z @ omega  # [L, N, M]
    if phase is None:
        return torch.cat([angle.cos(), angle.sin()], dim=-1) * math.sqrt(1 / omega.shape[-1])
    return (angle + phase.unsqueeze(-2)).cos() * math.sqrt(2 / omega.shape[-1])


class _SineCosine(torch.autograd.Function):
    """scale·[cos a, sin a]; its gradient needs nothing but its output."""

    @staticmethod
    def forward(ctx: Any, angle: Tensor, scale: float) -> Tensor:
        out = torch.cat([angle.cos(), angle.sin()], dim=-1).mul_(scale)
        ctx.save_for_backward(out)
        return out

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        (out,) = ctx.saved_tensors
        half = out.shape[-1] // 2
        product = out[..., :half] * gradient[..., half:]
        return product.addcmul_(out[..., half:], gradient[..., :half], value=-1), None


def exact_kernel(z: Tensor, other: Tensor, mean: Tensor, std: Tensor) -> Tensor:
    """The kernel that the features estimate: cos(μᵀ(z - z'))·exp(-½ ‖σ ⊙ (z - z')‖²), ``[T, N, M]``."""
    shift = z @ mean.unsqueeze(-1) - (other @ mean.unsqueeze(-1)).mT
    distance = torch.cdist(z * std.unsqueeze(-2), other * std.unsqueeze(-2))
    return shift.cos() * torch.exp(-0.5 * distance.square())
