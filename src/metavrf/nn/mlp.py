"""Multi-layer perceptrons."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise

import torch
import torch.nn.functional as F
from torch import Tensor, nn

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
        hidden = x.reshape(1, -1, x.shape[-1]).expand(2, -1, -1)
        for layer, (weight, bias) in enumerate(zip(self.weights, self.biases, strict=True)):
            hidden = torch.baddbmm(bias, F.elu(hidden) if layer else hidden, weight)
        mean, log_variance = hidden.unflatten(1, x.shape[:-1])
        return mean, LOG_VARIANCE_BOUND * torch.tanh(log_variance / LOG_VARIANCE_BOUND)
