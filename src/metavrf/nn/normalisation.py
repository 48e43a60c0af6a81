"""Batch normalisation whose statistics are chosen by the protocol."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor, nn


class Own(NamedTuple):
    """Normalise each of ``tasks`` tasks by its own first ``samples`` samples, instead of by running statistics."""

    tasks: int
    samples: int


class Normalisation(nn.BatchNorm2d):
    """Batch normalisation. In training the batch's statistics; in evaluation the running ones, unless a task's ``own``.

    With its support's own statistics a query's prediction still depends on no other query; with the whole episode's it
    does: that is the transductive protocol.
    """

    def forward(self, x: Tensor, own: Own | None = None) -> Tensor:
        """Normalise ``x [N, channels, height, width]``; with ``own``, N is tasks times samples of a task."""
        if own is None or self.training:
            return super().forward(x)
        by_task = x.unflatten(0, (own.tasks, -1))  # [T, N / T, channels, height, width]
        variance, mean = torch.var_mean(by_task[:, : own.samples].double(), (1, 3, 4), correction=0, keepdim=True)
        scale = (variance + self.eps).rsqrt().to(x) * self.weight.view(-1, 1, 1)
        return torch.addcmul(self.bias.view(-1, 1, 1) - mean.to(x) * scale, by_task, scale).flatten(0, 1)
