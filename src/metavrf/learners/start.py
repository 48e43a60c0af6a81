"""Where many kernels start: where candidates have evidence on the first tasks."""

from __future__ import annotations

import math
from dataclasses import replace

import torch
from torch import Tensor

from metavrf.episodes import Episodes
from metavrf.kernels.ridge import solve
from metavrf.kernels.spectral import Exact, Spectral
from metavrf.learners.head import MixtureHead
from metavrf.learners.kernel import KernelLearner
from metavrf.nn.mixture import MixturePosterior

# Many kernels start where tasks say: at such multiples of that ω, and of such deviations.
CANDIDATES = torch.cat([torch.zeros(1), torch.logspace(-1, 1, 80)])
WIDTHS = torch.logspace(-2, 0.5, 6)
TEETH = torch.linspace(0.5, 50.0, 400)  # likewise, of combs
STILL_WIDTHS = torch.logspace(-1.5, 1.0, 40)
AMPLITUDES_APART = torch.tensor([0.05, 3.0])
KAPPAS = torch.tensor([1.0, 4.0, 16.0, 64.0])
TRIED_AT_ONCE = 100
GUARD_WIDTHS = torch.tensor([30.0, 8.0, 3.0])
GUARD_NOISES = torch.tensor([0.01, 0.1, 1.0])
GOLDEN = 0.5 * (math.sqrt(5) - 1)
SMALLEST_AMPLITUDE = 1e-6


def spread(
    learner: KernelLearner, posterior: MixturePosterior, episodes: Episodes, rival: Tensor | None = None
) -> None:
    """Start M kernels apart: of functions along ω, of classes by their width.

    ``rival [T]`` is the log evidence of periodic kernels of each task's own, where there are such. What repeats itself
    is then theirs to tell: the others start without a frequency, and tasks have a say as far as the rival explains them
    no better.
    """
    components, size = posterior.mean.shape
    if episodes.way is not None:
        widths = torch.linspace(-1.0, 1.0, components).unsqueeze(1)
        posterior.start_at(torch.zeros_like(posterior.mean), widths.expand(-1, size))
        return
    omega = learner.even_phase(episodes)
    if omega is None:
        return
    level, spread_of_y = episodes.support_y.mean((0, 1)), episodes.support_y.std((0, 1))
    level = torch.where(level.abs() > spread_of_y, level, 0.0)  # targets farther from zero than they vary
    episodes = replace(episodes, support_y=episodes.support_y - level)
    if isinstance(learner.head, MixtureHead):
        learner.head.level.copy_(level)
    amplitude = max(float(episodes.support_y.square().mean()), SMALLEST_AMPLITUDE)
    peaks = components - posterior.combs - posterior.rough
    if rival is None:
        multiples, widths = torch.cartesian_prod(CANDIDATES, WIDTHS).unsqueeze(-1).unbind(1)  # [C, 1] each
    else:
        multiples, widths = torch.zeros(len(STILL_WIDTHS), 1), STILL_WIDTHS.unsqueeze(1)
    stds = widths.expand(-1, size) / math.sqrt(size)
    chosen = _chosen(learner, episodes, multiples * omega, stds, amplitude, peaks, rival=rival)
    between = (torch.arange(peaks) * GOLDEN % 1 - 0.5).unsqueeze(1) * (CANDIDATES[2] / CANDIDATES[1]).log()
    mean = multiples[chosen] * omega * between.exp()
    log_std = (widths[chosen] / math.sqrt(size)).log().expand(-1, size)
    if posterior.rough:
        widths = STILL_WIDTHS.unsqueeze(1).expand(-1, size) / math.sqrt(size)
        still = torch.zeros_like(widths)
        chosen = _chosen(learner, episodes, still, widths, amplitude, posterior.rough, rough=True, rival=rival)
        mean, log_std = torch.cat([mean, still[chosen]]), torch.cat([log_std, widths[chosen].log()])
    if posterior.log_comb is not None:
        teeth, kappa = torch.cartesian_prod(TEETH, KAPPAS).unsqueeze(-1).unbind(1)
        faint = WIDTHS[:1].expand(len(teeth), size) / math.sqrt(size)
        chosen = _chosen(learner, episodes, teeth * omega, faint, amplitude, posterior.combs, kappa)
        between = (torch.arange(posterior.combs) * GOLDEN % 1 - 0.5).unsqueeze(1) * (TEETH[1] - TEETH[0])
        mean = torch.cat([mean, (teeth[chosen] + between) * omega])
        log_std = torch.cat([log_std, faint[chosen].log()])
        posterior.log_comb.copy_(kappa[chosen, 0].log())
    posterior.start_at(mean, log_std, amplitude)
    if posterior.rough:  # where functions differ that much, apart in amplitude too, with the same noise
        apart = AMPLITUDES_APART.log()
        posterior.scale_by(torch.lerp(apart[0], apart[1], torch.arange(components) * GOLDEN % 1))
    if posterior.guards:
        number = torch.arange(posterior.guards)
        width = GUARD_WIDTHS[number % len(GUARD_WIDTHS)].log() - 0.5 * math.log(size)
        log_noise = GUARD_NOISES[number // len(GUARD_WIDTHS) % len(GUARD_NOISES)].log()
        log_amplitude = torch.full_like(log_noise, math.log(amplitude))
        posterior.guard_by(width.unsqueeze(1).expand(-1, size), log_amplitude, log_noise)


def _chosen(  # noqa: PLR0917
    learner: KernelLearner,
    episodes: Episodes,
    mean: Tensor,
    std: Tensor,
    amplitude: float,
    count: int,
    comb: Tensor | None = None,
    *,
    rough: bool = False,
    rival: Tensor | None = None,
) -> Tensor:
    """Which of candidate kernels ``[C, d]`` to start at: strata of their mean posterior weight on the tasks.

    All candidates together are as likely beforehand as the ``rival``.
    """
    task = learner.placed(learner.embedded(episodes.asking(episodes.query_x[:, :1])))[0]
    z = torch.cat([task.support_x, task.query_x], dim=1)
    evidence = []
    for part in torch.arange(len(mean)).split(TRIED_AT_ONCE):
        scalar = torch.full((len(part), task.tasks), amplitude, dtype=torch.double)
        means, stds = (value[part].unsqueeze(1).expand(-1, task.tasks, -1) for value in (mean, std))
        kappa = None if comb is None else comb[part].expand(-1, task.tasks)
        q = Spectral(means, stds, scalar, scalar, scalar, kappa, torch.ones_like(scalar).bool() if rough else None)
        kernel = Exact().gram(z, q, task.support_x.shape[1])
        noise = torch.full_like(scalar, learner.settings.noise)
        evidence.append(solve(kernel, task.support_targets.double(), noise).log_evidence(scalar))
    if rival is not None:
        evidence.append(rival.unsqueeze(0) + math.log(len(mean)))
    share = torch.softmax(torch.cat(evidence), dim=0)[: len(mean)].mean(1).cumsum(0)
    strata = (torch.arange(count, dtype=torch.double) + 0.5) / count * share[-1]
    return torch.searchsorted(share, strata).clamp_max(len(mean) - 1)
