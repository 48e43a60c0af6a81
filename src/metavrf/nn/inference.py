"""The inference networks: what the task looks like, its context, and the two Gaussians over its bases."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from metavrf.episodes import Episodes
from metavrf.nn.mlp import GaussianMLP

SET_ENCODER_WIDTH = 128
BASE_KERNEL_RIDGE = 1e-3
LSTM_WEIGHTS = ("weight_ih_l0", "weight_hh_l0", "bias_ih_l0", "bias_hh_l0")


class TaskSummary(nn.Module):
    """S̄: instance pooling, then the mean over classes (over samples, for regression): ``[T, d]``.

    With ``targets > 0`` the context sees the support's y too (``context_inputs="xy"``): samples pass with their targets
    through a :class:`SetEncoder` before the mean. Beside y it sees α, how the base kernel would explain y: the gradient
    of a kernel's marginal likelihood is a quadratic form in α, so α says in which direction this task's kernel lies.
    """

    def __init__(self, features: int, targets: int = 0) -> None:
        super().__init__()
        self.encoder = SetEncoder(features + 4 * targets, SET_ENCODER_WIDTH, features) if targets else None

    def forward(self, episodes: Episodes) -> Tensor:
        """Summaries of episodes whose inputs are features already."""
        z = episodes.prototypes(episodes.support_x)
        if self.encoder is not None:
            y = episodes.support_targets
            shape = y / _amplitude(y)
            dual = _base_kernel_solution(z, shape)
            z = self.encoder(torch.cat([z, y, shape, dual.asinh(), dual / _amplitude(dual)], dim=-1))
        return z.mean(dim=1)


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
    before they are pooled.
    """

    def __init__(self, inputs: int, width: int, outputs: int, layers: int = 3) -> None:
        super().__init__()
        self.first = nn.Linear(inputs, width)
        self.layers = nn.ModuleList(nn.Linear(2 * width, width) for _ in range(layers))
        self.last = nn.Linear(width, outputs)

    def forward(self, x: Tensor) -> Tensor:
        """Codes ``[T, S, outputs]`` of ``x [T, S, inputs]``."""
        h = self.first(x)
        for layer in self.layers:
            pooled = h.mean(dim=1, keepdim=True).expand_as(h)
            h = h + F.elu(layer(torch.cat([h, pooled], dim=-1)))
        return self.last(h)


class Context(nn.Module):
    """h of each task, from its summary and the tasks before it (Eq. vlstm): ``[T, size]``.

    ``none`` passes the summary on. ``lstm`` and ``bilstm`` read the tasks of a training batch as a sequence and
    carry the forward state from batch to batch, detached. That state is a buffer, so it is saved with the model. In
    evaluation every task is a sequence of one from that saved state: it depends neither on the other test tasks nor
    on their order. ``skip`` adds the summary to the LSTM's bounded output.
    """

    hidden: Tensor
    cell: Tensor

    def __init__(self, kind: str, features: int, *, skip: bool = False) -> None:
        super().__init__()
        self.skip = skip
        self.size = 2 * features if kind == "bilstm" else features
        self.lstm = None if kind == "none" else nn.LSTM(features, features, bidirectional=kind == "bilstm")
        if self.lstm is not None:
            self.register_buffer("hidden", torch.zeros(1, 1, features))
            self.register_buffer("cell", torch.zeros(1, 1, features))

    def forward(self, summary: Tensor) -> Tensor:
        """Context vectors of ``summary [T, d]``."""
        if self.lstm is None:
            return summary
        h = self._recur(self.lstm, summary)
        return h + summary.repeat(1, self.size // summary.shape[1]) if self.skip else h

    def _recur(self, lstm: nn.LSTM, summary: Tensor) -> Tensor:
        if not self.training:
            return self._step(lstm, summary)
        output, (hidden, cell) = lstm(summary.unsqueeze(1), (self._initial(self.hidden), self._initial(self.cell)))
        self.hidden, self.cell = hidden[:1].detach(), cell[:1].detach()  # the forward direction's
        return output.squeeze(1)

    def _step(self, lstm: nn.LSTM, summary: Tensor) -> Tensor:
        """One step of each direction for every task: a sequence of one, at a third of a sequence's cost."""
        zero = torch.zeros_like(summary)
        states = {"": (self.hidden[0].expand_as(summary), self.cell[0].expand_as(summary)), "_reverse": (zero, zero)}
        outputs = []
        for direction in list(states)[: 1 + lstm.bidirectional]:
            weights = [getattr(lstm, name + direction) for name in LSTM_WEIGHTS]
            outputs.append(torch.lstm_cell(summary, states[direction], *weights)[0])
        return torch.cat(outputs, dim=-1)

    def _initial(self, state: Tensor) -> Tensor:
        """The carried state for the forward direction; the backward one starts from zero."""
        assert self.lstm is not None
        return torch.cat([state, torch.zeros_like(state)]) if self.lstm.bidirectional else state


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
    return torch.softmax(-torch.cdist(query, keys, p=1), dim=-1) @ keys


def gaussian_kl(mean: Tensor, log_variance: Tensor, other_mean: Tensor, other_log_variance: Tensor) -> Tensor:
    """KL[N(mean, e^log_variance) ‖ N(other_mean, e^other_log_variance)], summed over the last axis."""
    squares = torch.exp(log_variance) + (mean - other_mean).square()
    terms = torch.addcmul(other_log_variance, squares, torch.exp(-other_log_variance))
    return 0.5 * (terms.sum(-1) - (log_variance + 1).sum(-1))
