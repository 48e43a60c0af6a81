"""What all tasks share of waves, ramps and steps whose frequency or place is each task's own."""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor, nn

from metavrf.nn.mixture import PACE

KINDS = 3
BINS = 32
LEAST_NOISE = 1e-4  # at the start, in units of the amplitude
LOG_SHARE = -2.0  # at the start: of each kind beside the other kernels


class Shared(NamedTuple):
    """The fields of :class:`metavrf.kernels.shapes.Shapes`."""

    amplitude: Tensor
    noise: Tensor
    log_prior: Tensor
    log_rates: Tensor
    ends: Tensor


class ShapePrior(nn.Module):
    """The prior over shapes: how often each kind is, how large, how noisy, and its frequencies or places."""

    direction: Tensor
    ends: Tensor

    def __init__(self, features: int) -> None:
        super().__init__()
        self.register_buffer("direction", torch.zeros(features))
        self.register_buffer("ends", torch.zeros(2))
        self.log_amplitude = nn.Parameter(torch.zeros(KINDS))
        self.log_noise = nn.Parameter(torch.zeros(KINDS))
        self.log_share = nn.Parameter(torch.full((KINDS,), LOG_SHARE / PACE))
        self.log_rates = nn.Parameter(torch.zeros(KINDS, BINS))

    @torch.no_grad()
    def start_at(self, direction: Tensor, phase: Tensor, amplitude: float, noise: float) -> None:
        """Where training starts: ω, the phases ωᵀz of samples, and about what a² and what λ/a²."""
        self.direction.copy_(direction)
        self.ends.copy_(torch.stack([phase.min(), phase.max()]))
        self.log_amplitude.fill_(math.log(amplitude) / PACE)
        self.log_noise.fill_(math.log(amplitude * max(noise, LEAST_NOISE)) / PACE)

    def forward(self, log_others: Tensor) -> Shared:
        """The shapes beside kernels whose prior weights sum to exp(``log_others``)."""
        return Shared(
            (PACE * self.log_amplitude).exp(),
            (PACE * self.log_noise).exp(),
            log_others + PACE * self.log_share,
            (PACE * self.log_rates).log_softmax(1) + math.log(BINS),
            self.ends,
        )
