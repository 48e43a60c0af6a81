"""M kernels: what all tasks share of them, and how the network moves them for the task at hand."""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor, nn

from metavrf.nn.mlp import GaussianMLP

MOVES_WIDTH = 128
MOST_MOVED = 3.0  # a soft bound on the logarithms by which a kernel is scaled
MOVED = ("mean", "std", "amplitude", "noise", "prior")
LEAST_WEIGHT = 0.1
PACE = (
    4.0  # amplitudes, noises and weights range over decades: their logarithms move this much faster than other weights
)


class Mixture(NamedTuple):
    """The fields of :class:`metavrf.kernels.spectral.Spectral`, and what was inferred of the bases for the KL."""

    mean: Tensor
    std: Tensor
    amplitude: Tensor
    noise: Tensor
    log_prior: Tensor
    comb: Tensor | None
    rough: Tensor | None
    inferred: tuple[Tensor, Tensor] | None


class MixturePosterior(nn.Module):
    """M Gaussians over bases: learned parts that all tasks share, moved by what is inferred from h.

    Kernel m of a task is N(μ_m·eᵃ + Δμ, (σ_m·eᵇ ⊙ Δσ)²), with amplitude a_m² and noise λ_m scaled likewise, and with
    the prior weight π_m(h). N(Δμ, Δσ²) is the paper's q(ω|h), one for all kernels; the scalars are each kernel's own.
    Everything inferred starts at nothing, so that the tasks start alike. With one kernel, and its shared part N(0, I),
    this is the paper. The first of the kernels are guards, which are not learned: broad ones with much noise, for tasks
    unlike any seen. The last are combs, and those before them rough. The weight of a rough one does not fall below
    ``LEAST_WEIGHT`` of an equal share: functions may be rougher than any seen.
    """

    guard_std: Tensor
    guard_scalars: Tensor

    def __init__(
        self,
        components: int,
        features: int,
        context: int,
        *,
        combs: int = 0,
        guards: int = 0,
        rough: int = 0,
        moves: bool,
        noise: float,
    ) -> None:
        """``context`` is the size of h; 0 where nothing is inferred. ``moves`` is whether kernels are moved too."""
        super().__init__()
        self.components, self.combs, self.guards, self.rough = components, combs, guards, rough
        learned = components - guards
        self.mean = nn.Parameter(torch.zeros(learned, features))
        self.log_std = nn.Parameter(torch.zeros(learned, features))
        scalars = torch.zeros(3, learned)
        scalars[1] = math.log(noise)
        self.scalars = nn.Parameter(scalars / PACE)  # log a², log λ/a² and log π, in units of the pace
        if guards:
            self.register_buffer("guard_std", torch.zeros(guards, features))
            self.register_buffer("guard_scalars", torch.zeros(2, guards))
        self.log_comb = nn.Parameter(torch.linspace(0.0, 4.0, combs)) if combs else None
        self.gaussian = GaussianMLP(context, features, features, alike=True) if moves and context else None
        outputs = (len(MOVED) if moves else 1) * components + (combs if moves else 0)
        self.moves = (
            nn.Sequential(nn.Linear(context, MOVES_WIDTH), nn.ELU(), nn.Linear(MOVES_WIDTH, outputs))
            if context
            else None
        )
        if self.moves is not None:
            for parameter in self.moves[2].parameters():
                nn.init.zeros_(parameter)

    @torch.no_grad()
    def start_at(self, mean: Tensor, log_std: Tensor, amplitude: float = 1.0) -> None:
        """Where the shared kernels start: ``[M, d]`` each, and a²."""
        self.mean.copy_(mean)
        self.log_std.copy_(log_std)
        self.scalars[0].fill_(math.log(amplitude) / PACE)

    @torch.no_grad()
    def scale_by(self, log_amplitude: Tensor) -> None:
        """Multiply the amplitudes a² of the learned kernels, not their noise, ``[M]``."""
        self.scalars[0] += log_amplitude / PACE
        self.scalars[1] -= log_amplitude / PACE

    @torch.no_grad()
    def guard_by(self, log_std: Tensor, log_amplitude: Tensor, log_noise: Tensor) -> None:
        """Where the guards stand, for good: ``[G, d]``, ``[G]`` and ``[G]``."""
        self.guard_std.copy_(log_std)
        self.guard_scalars.copy_(torch.stack([log_amplitude, log_noise]))

    def _all(self) -> tuple[Tensor, Tensor, Tensor]:
        """Means and log deviations ``[M, 1, d]`` and scalars ``[3, M, 1]`` of guards and learned kernels.

        Guards come first; each has the prior weight 1/M, whatever training makes of the others' weights.
        """
        mean: Tensor = self.mean
        log_std: Tensor = self.log_std
        scalars = PACE * self.scalars
        if self.rough:
            first, last = len(mean) - self.combs - self.rough, len(mean) - self.combs
            least = torch.logsumexp(scalars[2], 0) - math.log(len(mean)) + math.log(LEAST_WEIGHT)
            log_prior = torch.cat(
                [scalars[2, :first], torch.logaddexp(scalars[2, first:last], least), scalars[2, last:]]
            )
            scalars = torch.cat([scalars[:2], log_prior.unsqueeze(0)])
        if self.guards:
            alike = torch.logsumexp(scalars[2], 0) - math.log(self.components - self.guards)
            guards = torch.cat([self.guard_scalars, alike.expand(1, self.guards)])
            mean = torch.cat([torch.zeros_like(self.guard_std), mean])
            log_std = torch.cat([self.guard_std, log_std])
            scalars = torch.cat([guards, scalars], dim=1)
        return mean.unsqueeze(1), log_std.unsqueeze(1), scalars.unsqueeze(-1)

    def forward(self, h: Tensor | None, tasks: int) -> Mixture:
        """The kernels of ``tasks`` tasks with context ``h [T, size]``; all alike where it is None."""
        mean, log_std, scalars = self._all()
        log_comb = None if self.log_comb is None else self.log_comb.unsqueeze(-1)  # [P, 1]
        inferred = None
        if self.moves is not None and h is not None:
            moved = MOST_MOVED * torch.tanh(self.moves(h) / MOST_MOVED).mT  # [.., T]
            if self.gaussian is None:
                scalars = torch.cat([scalars[:2].expand(-1, -1, tasks), (scalars[2] + moved).unsqueeze(0)])
            else:
                by_kernel = moved[: len(MOVED) * self.components].unflatten(0, (len(MOVED), self.components))
                number = torch.arange(self.components, device=mean.device)
                learned = (number >= self.guards).unsqueeze(1)  # guards stay as they are
                by_kernel = by_kernel * learned
                scalars = scalars + by_kernel[2:]
                inferred = self.gaussian(h)  # Δμ, log Δσ²  [T, d]
                mean = mean * by_kernel[0].unsqueeze(-1).exp() + learned.unsqueeze(-1) * inferred[0]
                log_std = log_std + by_kernel[1].unsqueeze(-1) + 0.5 * learned.unsqueeze(-1) * inferred[1]
                if log_comb is not None:
                    log_comb = log_comb + moved[len(MOVED) * self.components :]
        log_amplitude, log_noise, log_prior = scalars.expand(-1, -1, tasks)
        return Mixture(
            mean.expand(-1, tasks, -1),
            log_std.exp().expand(-1, tasks, -1),
            log_amplitude.exp(),
            log_noise.exp(),
            log_prior,
            None if log_comb is None else log_comb.exp().expand(-1, tasks),
            self._which_are_rough(tasks) if self.rough else None,
            inferred,
        )

    def _which_are_rough(self, tasks: int) -> Tensor:
        number = torch.arange(self.components, device=self.mean.device).unsqueeze(1).expand(-1, tasks)
        last = self.components - self.combs
        return (number >= last - self.rough) & (number < last)
