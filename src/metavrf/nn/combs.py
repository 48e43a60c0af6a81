"""What all tasks share of periodic kernels whose frequency is each task's own."""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor, nn

from metavrf.nn.mixture import PACE

SHARPNESSES = 7
AMPLITUDES = 5
RATES = 32
LOWEST, HIGHEST = 3.0, 50.0  # frequencies, in multiples of the direction; a slower one hardly repeats in the data
BLUNTEST, SHARPEST = 2.0, 128.0
AMPLITUDE_RANGE = 10.0  # of the largest and the smallest to the mean square of targets


class Shared(NamedTuple):
    """The fields of :class:`metavrf.kernels.search.Combs`."""

    sharpness: Tensor
    amplitude: Tensor
    noise: Tensor
    log_prior: Tensor
    ends: tuple[float, float]
    log_rates: Tensor


class CombPrior(nn.Module):
    """The prior over periodic kernels: sharpness, amplitude and frequency are independent; all of it is learned.

    Frequencies lie between ``LOWEST`` and ``HIGHEST`` multiples of a direction ω, along which the phase ωᵀz grows
    evenly with the input.
    """

    direction: Tensor

    def __init__(self, features: int) -> None:
        super().__init__()
        self.register_buffer("direction", torch.zeros(features))
        self.log_sharpness = nn.Parameter(torch.linspace(math.log(BLUNTEST), math.log(SHARPEST), SHARPNESSES))
        self.log_amplitude = nn.Parameter(torch.zeros(AMPLITUDES))
        self.log_noise = nn.Parameter(torch.zeros(()))
        self.log_weights = nn.Parameter(torch.zeros(SHARPNESSES + AMPLITUDES))
        self.log_share = nn.Parameter(torch.zeros(()))
        middles = LOWEST + (HIGHEST - LOWEST) * (torch.arange(RATES) + 0.5) / RATES
        self.log_rates = nn.Parameter(-middles.log() / PACE)  # even in the logarithm

    @torch.no_grad()
    def start_at(self, direction: Tensor, amplitude: float, noise: float) -> None:
        """Where training starts: ω, and about what a² and what λ/a²."""
        self.direction.copy_(direction)
        reach = math.log(AMPLITUDE_RANGE)
        self.log_amplitude.copy_((math.log(amplitude) + torch.linspace(-reach, reach, AMPLITUDES)) / PACE)
        self.log_noise.fill_(math.log(amplitude * noise) / PACE)

    def forward(self, log_others: Tensor) -> Shared:
        """The combs beside kernels whose prior weights sum to exp(``log_others``)."""
        sharpness, amplitude = (PACE * self.log_weights).split([SHARPNESSES, AMPLITUDES])
        log_prior = sharpness.log_softmax(0).unsqueeze(1) + amplitude.log_softmax(0)
        width = (HIGHEST - LOWEST) / RATES
        return Shared(
            self.log_sharpness.exp(),
            (PACE * self.log_amplitude).exp(),
            (PACE * self.log_noise).exp(),
            log_prior + log_others + PACE * self.log_share,
            (LOWEST, HIGHEST),
            (PACE * self.log_rates).log_softmax(0) - math.log(width),
        )
