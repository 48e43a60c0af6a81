"""What is made of a stream: the Bayesian update over M kernels, kernels between them, and an LSTM correcting both."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from metavrf.nn.inference import Carry, Context, Memory
from metavrf.nn.mixture import MOST_MOVED, PACE, Mixture

OWN = 2  # kernels of a task's own
NEAREST = 6  # of the most probable kernels, which say how sharply the posterior falls off
SOFTNESS = 4.0  # nats: what the LSTM reads of a kernel is the power 1/4 of its weight beside the others
START = (0.0, 0.0, 0.0, 0.0, -2.0)  # of what each of its own kernels learns, in the order of ``learned``


class Recall(nn.Module):
    """Prior weights over M kernels from the supports of earlier tasks, and ``OWN`` kernels of this task between them.

    The prior weight of kernel m is π_m·exp(eˢ·c_m + Δ_m), where c is the carried evidence (:class:`Carry`). An LSTM
    reads what this support and those before it say of each kernel, and gives s and Δ. Both start at 0, where this is
    the plain update; without an LSTM (``kind`` "bayes") they stay there.

    What a stream shares lies between two kernels, and the update can only choose one of them, however many tasks there
    were. So some kernels are this task's own. Each has the mean of all kernels' μ, and of the logarithms of their σ, a²
    and λ, under attention weights: the power β/(s₀ + d) of the posterior so far, where d is by how many nats the
    ``NEAREST`` most probable kernels fall behind on average. Where the evidence is a parabola in μ, these weights are
    as wide as the kernels are apart, however strong the evidence is, and the mean is the vertex. The deviation falls
    with d, as a posterior's would. β, s₀, what deviation and noise are multiplied by, and the prior weight are learned
    and corrected by the LSTM, if there is one.
    """

    def __init__(self, kind: str, components: int, units: int) -> None:
        """``kind`` and ``units`` are those of the :class:`Context`."""
        super().__init__()
        recurrent = kind != "bayes"
        self.carry = Carry(learned=recurrent)
        self.context = Context(kind, 2 * components, units=units, causal=True)
        self.sizes = [components, 1, OWN * components, OWN * 3]
        self.correction = nn.Linear(self.context.size, sum(self.sizes)) if recurrent else None
        if self.correction is not None:
            for parameter in self.correction.parameters():
                nn.init.zeros_(parameter)
        self.learned = nn.Parameter(torch.tensor(START).repeat(OWN, 1) / PACE)  # log β/2, s₀, and the factors

    def forward(self, q: Mixture, evidence: Tensor, memory: Memory | None, stream: int) -> tuple[Mixture, Memory]:
        """The task's own kernels, then those of ``q``, given their ``evidence [M, T]``; and the state afterwards."""
        carried, after = self.carry(evidence, memory, stream)
        read = torch.cat([(logits.log_softmax(0) / SOFTNESS).exp() for logits in (evidence, carried)])
        h, state = self.context(read.mT.to(self.learned).detach(), memory, stream)
        corrections = h.new_zeros(len(h), sum(self.sizes)) if self.correction is None else self.correction(h)
        shift, trust, chosen, scaled = corrections.mT.to(evidence).split(self.sizes)  # [.., T]
        shift, trust, scaled = (MOST_MOVED * torch.tanh(value / MOST_MOVED) for value in (shift, trust, scaled))
        log_prior = q.log_prior + trust.exp() * carried + shift
        posterior = (q.log_prior + carried + evidence).log_softmax(0)
        fallen = -posterior.topk(min(NEAREST, len(posterior)), 0).values.mean(0)  # [T]
        power, least, std, noise, weight = (PACE * self.learned).to(evidence).mT.unsqueeze(-1)  # [OWN, 1] each
        power = 2 * power.exp() / (least.exp() + fallen)  # [OWN, T]
        attention = torch.softmax(power.unsqueeze(1) * posterior + chosen.unflatten(0, (OWN, -1)), dim=1)  # [OWN, M, T]
        std_by, noise_by, weight_by = scaled.unflatten(0, (3, OWN))
        log_std = torch.einsum("omt,mtd->otd", attention, q.std.to(evidence).log())
        log_std = log_std + (std + std_by - 0.5 * fallen.log1p()).unsqueeze(-1)
        log_noise = torch.einsum("omt,mt->ot", attention, q.noise.to(evidence).log()) + noise + noise_by
        own = (
            torch.einsum("omt,mtd->otd", attention, q.mean.to(evidence)),
            log_std.exp(),
            torch.einsum("omt,mt->ot", attention, q.amplitude.to(evidence).log()).exp(),
            log_noise.exp(),
            log_prior.logsumexp(0) + weight + weight_by,
        )
        pairs = zip(own, (*q[:4], log_prior), strict=True)
        mean, stds, amplitude, noises, weights = (torch.cat([mine, shared.to(mine)]) for mine, shared in pairs)
        rough = None if q.rough is None else torch.cat([torch.zeros_like(q.rough[:1]).expand(OWN, -1), q.rough])
        joined = Mixture(mean, stds, amplitude, noises, weights, q.comb, rough, q.inferred)
        return joined, state._replace(evidence=after)
