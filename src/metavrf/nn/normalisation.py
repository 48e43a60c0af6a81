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
    """Batch normalisation. Running statistics in evaluation and the batch's in training, unless a task's ``own``.

    With its support's own statistics a query's prediction still depends on no other query; with the whole episode's it
    does: that is the transductive protocol.
    """

    def forward(self, x: Tensor, own: Own | None = None) -> Tensor:
        """Normalise ``x [N, channels, height, width]``; with ``own``, N is tasks times samples of a task."""
        if own is None:
            return super().forward(x)
        rows = x.permute(0, 2, 3, 1).reshape(own.tasks, -1, x.shape[1])  # [T, N·height·width, channels], no copy
        seen = rows.shape[1] // (len(x) // own.tasks) * own.samples
        mean = rows[:, :seen].mean(1, keepdim=True)
        centred = rows - mean
        variance = centred[:, :seen].square().mean(1, keepdim=True)  # two passes: as exact as var_mean, and faster
        normalised = torch.addcmul(self.bias, centred, (variance + self.eps).rsqrt() * self.weight)
        return normalised.view(x.permute(0, 2, 3, 1).shape).permute(0, 3, 1, 2)
