"""Multi-layer perceptrons."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

LOG_VARIANCE_BOUND = 6.0  # a soft bound: σ stays between 0.05 and 20, and its exponential finite


class MLP(nn.Sequential):
    """The embedding ψ of regression (Table fcn-reg): fully connected layers, each followed by a ReLU."""

    def __init__(self, sizes: Sequence[int]) -> None:
        layers: list[nn.Module] = []
        for fan_in, fan_out in pairwise(sizes):
            layers += [nn.Linear(fan_in, fan_out), nn.ReLU()]
        super().__init__(*layers)
        self.features = sizes[-1]

    def forward(self, x: Tensor, own: int | None = None, views: str = "one") -> Tensor:
        """Features ``[..., d]``; there are no statistics to take from a task's ``own`` samples."""
        return super().forward(x)


class Raw(nn.Identity):
    """The inputs themselves, where the kernels are to see them as they are."""

    def __init__(self, inputs: int) -> None:
        super().__init__()
        self.features = inputs

    def forward(self, x: Tensor, own: int | None = None, views: str = "one") -> Tensor:
        """``x`` as it is."""
        return x


class GaussianMLP(nn.Module):
    """Two three-layer ELU networks, one for the mean and one for log σ² of a diagonal Gaussian.

    They have the same sizes, so each layer of both is one batched product. With ``alike`` every Gaussian starts as
    N(0, I).
    """

    def __init__(self, inputs: int, hidden: int, outputs: int, *, alike: bool = False) -> None:
        super().__init__()
        sizes = [inputs, hidden, hidden, outputs]
        self.weights = nn.ParameterList(nn.Parameter(torch.empty(2, i, o)) for i, o in pairwise(sizes))
        self.biases = nn.ParameterList(nn.Parameter(torch.empty(2, 1, o)) for o in sizes[1:])
        for weight, bias in zip(self.weights, self.biases, strict=True):
            bound = 1 / math.sqrt(weight.shape[1])  # as nn.Linear
            nn.init.uniform_(weight, -bound, bound)
            nn.init.uniform_(bias, -bound, bound)
        if alike:
            nn.init.zeros_(self.weights[-1])
            nn.init.zeros_(self.biases[-1])

    @torch.no_grad()
    def start_at(self, mean: Tensor, log_variance: float) -> None:
        """Move where Gaussians that are alike start, to ``mean [outputs]`` and (about, see the bound) a log σ²."""
        self.biases[-1][0].copy_(mean)
        self.biases[-1][1].fill_(log_variance)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Mean and log-variance, each ``[..., outputs]``, of ``x [..., inputs]``."""
        layers = (*self.weights._parameters.values(), *self.biases._parameters.values())
        if torch.is_grad_enabled():
            mean, log_variance = _Gaussian.apply(x.reshape(-1, x.shape[-1]), *layers)
            return mean.view(*x.shape[:-1], -1), log_variance.view(*x.shape[:-1], -1)
        return self.plainly(x)

    def plainly(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """:meth:`forward` with the gradient that PyTorch derives."""
        hidden = x.reshape(1, -1, x.shape[-1]).expand(2, -1, -1)
        for layer, (weight, bias) in enumerate(zip(self.weights, self.biases, strict=True)):
            hidden = torch.baddbmm(bias, F.elu(hidden) if layer else hidden, weight)
        mean, log_variance = hidden.unflatten(1, x.shape[:-1])
        return mean, LOG_VARIANCE_BOUND * torch.tanh(log_variance / LOG_VARIANCE_BOUND)


class _Gaussian(torch.autograd.Function):
    """The two networks of :class:`GaussianMLP` on ``x [N, inputs]``, in fewer operations than derived."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, *layers: Tensor) -> tuple[Tensor, Tensor]:
        first, second, third, *biases = layers
        inner = F.elu(torch.baddbmm(biases[0], x.expand(2, -1, -1), first))
        outer = F.elu(torch.baddbmm(biases[1], inner, second))
        mean, log_variance = torch.baddbmm(biases[2], outer, third).unbind()
        bounded = torch.tanh(log_variance / LOG_VARIANCE_BOUND)
        ctx.save_for_backward(x, first, second, third, inner, outer, bounded)
        return mean, LOG_VARIANCE_BOUND * bounded

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, mean: Tensor, log_variance: Tensor) -> tuple[Tensor | None, ...]:
        x, first, second, third, inner, outer, bounded = ctx.saved_tensors
        by_third = torch.stack([mean, torch.ops.aten.tanh_backward(log_variance, bounded)])  # [2, N, outputs]
        by_second = _elu_backward(torch.bmm(by_third, third.mT), outer)
        by_first = _elu_backward(torch.bmm(by_second, second.mT), inner)
        of_x = torch.bmm(by_first, first.mT).sum(0) if ctx.needs_input_grad[0] else None
        pairs = ((x.expand(2, -1, -1), by_first), (inner, by_second), (outer, by_third))
        of_weights = (torch.bmm(seen.mT, by) for seen, by in pairs)
        of_biases = (by.sum(1, keepdim=True) for _, by in pairs)
        return of_x, *of_weights, *of_biases


def _elu_backward(gradient: Tensor, result: Tensor) -> Tensor:
    found: Tensor = torch.ops.aten.elu_backward(gradient, 1, 1, 1, True, result)
    return found
