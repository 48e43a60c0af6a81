"""The inference networks: what the task looks like, its context, and the two Gaussians over its bases."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from metavrf.episodes import Episodes
from metavrf.nn.mlp import GaussianMLP

SET_ENCODER_WIDTH = 128
BASE_KERNEL_RIDGE = 1e-3
LSTM_WEIGHTS = ("weight_ih_l0", "weight_hh_l0", "bias_ih_l0", "bias_hh_l0")


class TaskSummary(nn.Module):
    """S̄: instance pooling, then the mean over classes (over samples, for regression): ``[T, d]``.

    With ``labels`` it sees the support's answers too (``context_inputs="xy"``). Of regression (``targets`` outputs),
    samples pass with their targets through a :class:`SetEncoder` before the mean. Beside y it sees α, how the base
    kernel would explain y: the gradient of a kernel's marginal likelihood is a quadratic form in α, so α says in which
    direction this task's kernel lies. Of classes (``targets`` None), samples meet the means of their class and of the
    task; the order of samples and the numbering of classes do not matter.
    """

    def __init__(self, features: int, targets: int | None = None, *, labels: bool = False) -> None:
        super().__init__()
        inputs = features if targets is None else features + 4 * targets
        self.encoder = (
            SetEncoder(inputs, SET_ENCODER_WIDTH, features, levels=2 if targets is None else 1) if labels else None
        )

    def forward(self, episodes: Episodes) -> Tensor:
        """Summaries of episodes whose inputs are features already."""
        z = episodes.support_x
        if self.encoder is not None and episodes.way is None:
            y = episodes.support_targets
            shape = y / _amplitude(y)
            dual = _base_kernel_solution(z, shape)
            z = self.encoder(torch.cat([z, y, shape, dual.asinh(), dual / _amplitude(dual)], dim=-1))
        elif self.encoder is not None:
            z = self.encoder(z, episodes.support_targets.to(z))
        return episodes.prototypes(z).mean(dim=1)


def _amplitude(y: Tensor) -> Tensor:
    """Root mean square over a task's samples ``[T, 1, p]``, kept away from zero."""
    return (y.square().mean(1, keepdim=True) + 1e-6).sqrt()


def _base_kernel_solution(z: Tensor, y: Tensor) -> Tensor:
    """α = (K + λI)⁻¹y under the kernel of bases N(0, I), where every task starts: ``[T, S, p]``."""
    gram = torch.exp(-0.5 * torch.cdist(z, z).square())
    return torch.linalg.solve(gram + BASE_KERNEL_RIDGE * torch.eye(z.shape[1], device=z.device), y)


class SetEncoder(nn.Module):
    """Permutation-equivariant layers (deep sets, Zaheer et al. 2017): a sample's code sees the whole set's mean.

    What identifies a task is how its samples relate (a frequency is not in any one point), so codes must meet
    before they are pooled. With ``levels=2`` a sample sees the mean of its class as well.
    """

    def __init__(self, inputs: int, width: int, outputs: int, layers: int = 3, levels: int = 1) -> None:
        super().__init__()
        self.first = nn.Linear(inputs, width)
        self.layers = nn.ModuleList(nn.Linear((1 + levels) * width, width) for _ in range(layers))
        self.last = nn.Linear(width, outputs)

    def forward(self, x: Tensor, members: Tensor | None = None) -> Tensor:
        """Codes ``[T, S, outputs]`` of ``x [T, S, inputs]``; ``members [T, S, C]`` says which class a sample is of."""
        h = self.first(x)
        if members is not None:
            together = members @ (members / members.sum(1, keepdim=True).clamp_min(1)).mT  # [T, S, S], the class means
        for layer in self.layers:
            seen = [h, h.mean(dim=1, keepdim=True).expand_as(h)]
            if members is not None:
                seen.append(together @ h)
            h = h + F.elu(layer(torch.cat(seen, dim=-1)))
        return self.last(h)


class Memory(NamedTuple):
    """What is remembered of earlier tasks, in B sequences; passed in and handed back, never changed in place.

    Attributes:
        hidden: ``[1, B, d]`` of the LSTM; None without one.
        cell: likewise.
        evidence: ``[M, B]``, the log weights that earlier supports give the kernels; None where it is not carried.
    """

    hidden: Tensor | None = None
    cell: Tensor | None = None
    evidence: Tensor | None = None

    def detached(self) -> Memory:
        """The same without the way back for gradients."""
        return Memory(*(None if value is None else value.detach() for value in self))


class Context(nn.Module):
    """h of each task, from its summary and the tasks before it (Eq. vlstm): ``[T, size]``.

    ``none`` and ``bayes`` pass the summary on. ``lstm`` and ``bilstm`` read tasks as a sequence. In training that is
    the batch, from the state that the batches before it left; that state is kept in a buffer, so it is saved with the
    model. In evaluation every task is a sequence of one from that saved state: it depends neither on the other test
    tasks nor on their order. Streams are sequences at both times, and causal at test time: the backward direction then
    sees a task alone; with ``causal`` in training too, so that it learns nothing that it will miss. ``skip`` adds the
    summary to the LSTM's bounded output. ``units`` is how many the LSTM has, 0 for as many as features.
    """

    hidden: Tensor
    cell: Tensor

    def __init__(self, kind: str, features: int, *, skip: bool = False, units: int = 0, causal: bool = False) -> None:
        super().__init__()
        self.skip, self.causal = skip, causal
        units = units or features
        self.size = 2 * units if kind == "bilstm" else units
        recurrent = kind in ("lstm", "bilstm")
        self.lstm = nn.LSTM(features, units, bidirectional=kind == "bilstm") if recurrent else None
        if self.lstm is not None:
            self.register_buffer("hidden", torch.zeros(1, 1, units))
            self.register_buffer("cell", torch.zeros(1, 1, units))

    def remember(self, memory: Memory) -> None:
        """Start from this state from now on: what a training step leaves to the next, and at last to the model."""
        if self.lstm is not None and memory.hidden is not None and memory.cell is not None:
            self.hidden, self.cell = memory.hidden[:, -1:].detach(), memory.cell[:, -1:].detach()

    def forward(self, summary: Tensor, memory: Memory | None = None, stream: int = 1) -> tuple[Tensor, Memory]:
        """Context vectors of ``summary [T, d]``, and the state after each sequence."""
        if self.lstm is None:
            return summary, Memory()
        start = (self.hidden, self.cell)
        if memory is not None and memory.hidden is not None and memory.cell is not None:
            start = (memory.hidden, memory.cell)
        length = len(summary) if self.training and stream == 1 else stream
        sequences = summary.unflatten(0, (-1, length)).transpose(0, 1)  # [N, B, d]
        batch = sequences.shape[1]
        hidden, cell = (state.expand(1, batch, -1) for state in start)
        if self.training and not self.causal:
            h, memory = self._sequence(self.lstm, sequences, hidden, cell)
        else:
            h, memory = self._causal(self.lstm, sequences, hidden, cell)
        h = h.transpose(0, 1).flatten(0, 1)
        return (h + summary.repeat(1, self.size // summary.shape[1]) if self.skip else h), memory

    def _sequence(self, lstm: nn.LSTM, x: Tensor, hidden: Tensor, cell: Tensor) -> tuple[Tensor, Memory]:
        """All of it at once, ``[N, B, size]``; the backward direction starts from zero."""
        if lstm.bidirectional:
            hidden, cell = (torch.cat([state, torch.zeros_like(state)]) for state in (hidden, cell))
        output, (hidden, cell) = lstm(x, (hidden.contiguous(), cell.contiguous()))
        return output, Memory(hidden[:1], cell[:1])

    def _causal(self, lstm: nn.LSTM, x: Tensor, hidden: Tensor, cell: Tensor) -> tuple[Tensor, Memory]:
        """Step by step; the backward direction sees each task alone, as a sequence of one from zero."""

        def weights(direction: str) -> list[Tensor]:
            return [getattr(lstm, name + direction) for name in LSTM_WEIGHTS]

        state, outputs, forward = (hidden[0], cell[0]), [], weights("")
        for task in x:
            state = torch.lstm_cell(task, state, *forward)
            outputs.append(state[0])
        output = torch.stack(outputs)
        if lstm.bidirectional:
            flat = x.flatten(0, 1)
            zero = flat.new_zeros(len(flat), lstm.hidden_size)
            alone = torch.lstm_cell(flat, (zero, zero), *weights("_reverse"))[0].unflatten(0, x.shape[:2])
            output = torch.cat([output, alone], dim=-1)
        return output, Memory(state[0].unsqueeze(0), state[1].unsqueeze(0))


class Carry(nn.Module):
    """Yesterday's weights are today's prior: the evidence of a stream's earlier supports, summed.

    Plain Bayes (``learned`` False) adds it up and forgets nothing. Learned, the sum fades from task to task, and counts
    as much as it turned out to be worth; both start at plain Bayes, or near it.
    """

    def __init__(self, *, learned: bool) -> None:
        super().__init__()
        self.learned = learned
        if learned:
            self.keep = nn.Parameter(torch.tensor(8.0))  # so much that ten tasks forget nothing
            self.log_trust = nn.Parameter(torch.tensor(0.0))

    def forward(self, evidence: Tensor, memory: Memory | None, stream: int) -> tuple[Tensor, Tensor]:
        """Prior logits ``[M, T]`` from ``evidence [M, T]`` of the tasks *before* each, and the sum after a sequence."""
        evidence = torch.log_softmax(evidence, dim=0).unflatten(1, (-1, stream))  # [M, B, N]
        before = evidence.new_zeros(evidence.shape[:2])
        if memory is not None and memory.evidence is not None:
            before = memory.evidence.to(evidence).expand_as(before)
        fade = torch.sigmoid(self.keep.to(evidence)) if self.learned else evidence.new_ones(())
        position = torch.arange(stream + 1, device=evidence.device)
        age = position.unsqueeze(0) - position[:-1].unsqueeze(1) - 1  # [N, N + 1], of what task s gave when t begins
        share = torch.where(age >= 0, fade ** age.clamp_min(0), 0.0)
        carried = evidence @ share + before.unsqueeze(-1) * fade**position  # [M, B, N + 1]
        trusted = carried[..., :-1].flatten(1)
        return (self.log_trust.exp() * trusted if self.learned else trusted), carried[..., -1]


class Prior(nn.Module):
    """p(ω|x, S): Laplace cross attention from each query to the class means, then a Gaussian (Eq. Laplace-att)."""

    def __init__(self, features: int) -> None:
        super().__init__()
        self.gaussian = GaussianMLP(features, features, features)

    def forward(self, query: Tensor, keys: Tensor) -> tuple[Tensor, Tensor]:
        """μ and log σ², each ``[T, Q, d]``, for ``query [T, Q, d]`` and ``keys [T, C, d]``."""
        return self.gaussian(laplace_attention(query, keys))


def laplace_attention(query: Tensor, keys: Tensor) -> Tensor:
    """Each query's mixture of the keys, weighted by softmax(-‖x - key‖₁): ``[T, Q, d]``."""
    weights = torch.softmax(-torch.cdist(keys, query, p=1), dim=1)  # [T, C, Q]: few keys are slow as the last axis
    return weights.mT @ keys


def gaussian_kl(mean: Tensor, log_variance: Tensor, other_mean: Tensor, other_log_variance: Tensor) -> Tensor:
    """KL[N(mean, e^log_variance) ‖ N(other_mean, e^other_log_variance)], summed over the last axis."""
    squares = torch.exp(log_variance) + (mean - other_mean).square()
    terms = torch.addcmul(other_log_variance, squares, torch.exp(-other_log_variance))
    return 0.5 * (terms.sum(-1) - (log_variance + 1).sum(-1))


def mean_kl(mean: Tensor, log_variance: Tensor, other_mean: Tensor, other_log_variance: Tensor) -> Tensor:
    """The mean of :func:`gaussian_kl` between one Gaussian of each task ``[T, d]`` and Q others ``[T, Q, d]``."""
    kl: Tensor = _MeanKL.apply(mean, log_variance, other_mean, other_log_variance)
    return kl


class _MeanKL(torch.autograd.Function):
    """½ of the mean over queries of Σ log s² + (v + (m - n)²)/s² - log v - 1, for N(m, v) and N(n, s²).

    The gradient needs 1/s² and (m - n)/s², which the forward pass has.
    """

    @staticmethod
    def forward(ctx: Any, mean: Tensor, log_variance: Tensor, other_mean: Tensor, other_log_variance: Tensor) -> Tensor:
        precision = torch.exp(-other_log_variance)  # 1/s²  [T, Q, d]
        apart = mean.unsqueeze(1) - other_mean
        pull = apart * precision
        ratio = (log_variance.exp().unsqueeze(1) * precision).addcmul_(pull, apart)
        ctx.save_for_backward(log_variance, precision, pull, ratio)
        queries, rows = other_mean.shape[1], other_mean.shape[0] * other_mean.shape[1]
        return ((ratio + other_log_variance).sum() - queries * (log_variance + 1).sum()) / (2 * rows)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, ...]:
        log_variance, precision, pull, ratio = ctx.saved_tensors
        tasks, queries, _ = pull.shape
        each = gradient / (tasks * queries)
        of_other_mean = pull * -each
        of_log_variance = (log_variance.exp() * precision.sum(1) - queries) * (0.5 * each)
        return -of_other_mean.sum(1), of_log_variance, of_other_mean, torch.sub(1, ratio).mul_(0.5 * each)
