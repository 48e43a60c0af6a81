"""A learner that has seen its support set: a plain module from inputs to answers, with nothing left to solve."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from metavrf.episodes import Episodes
from metavrf.kernels.mixing import mix
from metavrf.kernels.random_features import explicit_features
from metavrf.kernels.spectral import Exact, Spectral, diagonal

if TYPE_CHECKING:
    from metavrf.learners.base import Learner

Answer = Tensor | tuple[Tensor, Tensor]


class Explicit(NamedTuple):
    """One task's solved head as plain tensors: φᵀw + offset, and for regression its variance scale·v(x) + noise.

    Attributes:
        weights: ``[L, D, p]``, the primal weights with the output scale.
        offset: ``[p]`` or one for all.
        scale: ``[L, p]``, or None for classes.
        noise: ``[L, p]`` or one for all.
        root: ``[L, r, D]``: v(x) is ‖Rφ‖², or k(x, x) - ‖Rφ‖² where it is ``dual``.
        dual: see ``root``.
    """

    weights: Tensor
    offset: Tensor
    scale: Tensor | None = None
    noise: Tensor | None = None
    root: Tensor | None = None
    dual: bool = True


class MixtureSolution(NamedTuple):
    """One task solved under M kernels, as plain tensors.

    Attributes:
        kernels: those that count.
        log_weights: ``[M]``.
        support: ``[S, d]``, as the kernels take it.
        solution: α ``[M, S, p]``, with the scale of logits.
        root: R ``[M, S, S]`` with k(x, x) - ‖Rk̃‖² the variance of unit amplitude; None for classes, like what follows.
        noise: λ/a² ``[M]``.
        finish: adds the mean function and the tails of the likelihood.
    """

    kernels: Spectral
    log_weights: Tensor
    support: Tensor
    solution: Tensor
    root: Tensor | None
    noise: Tensor | None
    finish: Callable[[Tensor, Tensor, Tensor], tuple[Tensor, Tensor, Tensor]] | None


class Answering(nn.Module):
    """A module that answers where it is asked from, on whatever device it is itself."""

    temperature: Tensor

    def forward(self, x: Tensor) -> Answer:
        """Probabilities ``[N, C]`` of ``x [N, ...]``; in regression mean and standard deviation, ``[N, p]`` each."""
        if x.device == self.temperature.device:
            return self.answer(x)
        found = self.answer(x.to(self.temperature.device))
        return found.to(x.device) if isinstance(found, Tensor) else (found[0].to(x.device), found[1].to(x.device))

    @abstractmethod
    def answer(self, x: Tensor) -> Answer:
        """As :meth:`forward`, of ``x`` on the module's own device."""


class AdaptedMixture(Answering):
    """Many kernels conditioned on one task, less those that its support rules out. Answers as :class:`Adapted`."""

    def __init__(
        self, embedding: nn.Module, rescale: tuple[bool, Tensor], solved: MixtureSolution, temperature: Tensor
    ) -> None:
        """``rescale`` says whether features are scaled to length 1, and by what they are multiplied then."""
        super().__init__()
        self.embedding, self.rescale, self.solved = embedding, rescale, solved
        self.temperature = temperature.clone()

    def answer(self, x: Tensor) -> Answer:
        """See :class:`Answering`."""
        solved, (unit, factor) = self.solved, self.rescale
        z = self.embedding(x.unsqueeze(0)).squeeze(0)
        z = (F.normalize(z, dim=-1) if unit else z) * factor
        cross = Exact().cross(z, solved.support, solved.kernels)  # [M, S, N]
        samples = (cross.mT @ solved.solution).unsqueeze(1)  # [M, 1, N, p]
        weights = torch.log_softmax(solved.log_weights, 0).unsqueeze(1)
        if solved.root is None or solved.noise is None or solved.finish is None:
            mean, _ = mix(samples, None, weights)
            return (mean[0].float() / self.temperature).softmax(-1)
        alone = diagonal(z.unsqueeze(0), solved.kernels)
        alone = alone if isinstance(alone, float) else alone.squeeze(1)
        process = (alone - (solved.root @ cross).square().sum(-2)).clamp_min(0)  # [M, N]
        variance = solved.kernels.amplitude * (process + solved.noise.unsqueeze(-1))
        mean, std = mix(*solved.finish(z, samples, variance[:, None, :, None].expand_as(samples)))
        assert std is not None
        return mean[0].float(), std[0].float()


class Adapted(Answering):
    """Embedding, random features, one linear map, and the likelihood: a kernel learner conditioned on one task.

    The bases ω = μ + σ ⊙ ε are one matrix, ridge's dual solution is folded into primal weights, and the length scale,
    γ, β and the temperature are inside. It answers as ``Learner.predict`` does.
    """

    omega: Tensor
    phase: Tensor | None
    origin: Tensor | None
    temperature: Tensor
    weights: Tensor
    offset: Tensor
    scale: Tensor | None
    noise: Tensor | None
    root: Tensor | None

    def __init__(
        self,
        embedding: nn.Module,
        omega: Tensor,
        phase: Tensor | None,
        head: Explicit,
        temperature: Tensor,
        *,
        origin: Tensor | None = None,
        unit_features: bool = False,
    ) -> None:
        super().__init__()
        self.embedding = embedding
        self.unit_features = unit_features
        self.dual = head.dual
        tensors = {"omega": omega, "phase": phase, "origin": origin, "temperature": temperature}
        tensors |= {"weights": head.weights, "offset": head.offset}
        tensors |= {"scale": head.scale, "noise": head.noise, "root": head.root}
        for name, tensor in tensors.items():
            self.register_buffer(name, None if tensor is None else tensor.detach())

    def answer(self, x: Tensor) -> Answer:
        """See :class:`Answering`."""
        z = self.embedding(x.unsqueeze(0)).squeeze(0)
        if self.unit_features:
            z = F.normalize(z, dim=-1)
        if self.origin is not None:
            z = z - self.origin
        phi = explicit_features(z, self.omega, self.phase).to(self.weights.dtype)  # [L, N, D]
        samples = phi @ self.weights + self.offset  # [L, N, p]
        if self.scale is None or self.root is None or self.noise is None:
            mean, _ = mix(samples)
            return (mean / self.temperature).softmax(-1)
        process = (phi @ self.root.mT).square().sum(-1)
        if self.dual:
            process = (phi.square().sum(-1) - process).clamp_min(0)
        variance = process.unsqueeze(-1) * self.scale.unsqueeze(-2) + self.noise.unsqueeze(-2)
        mean, std = mix(samples, variance)
        assert std is not None
        return mean, std


class Solving(nn.Module):
    """Any learner beside a support set: solves the task anew at every call. Answers as :class:`Adapted`."""

    def __init__(self, learner: Learner, support: Episodes, *, embedded: bool) -> None:
        super().__init__()
        self.learner, self.support, self.embedded = learner, support, embedded

    def forward(self, x: Tensor) -> Answer:
        """Probabilities ``[N, C]``; in regression mean and standard deviation, ``[N, p]`` each."""
        prediction = self.learner.predict(self.support.asking(x.unsqueeze(0)), embedded=self.embedded)
        if self.support.way is not None:
            return prediction.mean[0].softmax(-1)
        std = torch.zeros_like(prediction.mean) if prediction.std is None else prediction.std
        return prediction.mean[0], std[0]
