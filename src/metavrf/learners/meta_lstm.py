"""The LSTM meta-learner (Ravi & Larochelle, Optimization as a model for few-shot learning, ICLR 2017).

An LSTM whose cell state is the learner's weights: gradient descent θ - α·∇L is the cell's update c ← f·c + i·c̃ with
c̃ = -∇L. So forget gate f and input gate i, of each weight on its own, are learned:

    θ ← f ⊙ θ - i ⊙ ∇L,   f = σ(w·[h, θ, f] + b),   i = σ(v·[h, θ, i] + a),

where h is the state of a plain LSTM that reads the weight's gradient and the loss, both preprocessed as
(log|x|/p, sign x) where |x| ≥ e⁻ᵖ, else (-1, eᵖ·x), with p = 10. All weights share these two small networks, and the
start of θ is learned too. The gates start at f near 1 and i at the inner learning rate: plain gradient descent. As in
the paper, gradients and losses count as inputs, through which nothing is differentiated (first order).

The authors normalise by batches of support and queries in training and by the support's running statistics at test
time. Here a task is normalised by its support, in both. The preset "paper" has the numbers of their code for one shot.
Omniglot is in their code alone, not in the paper.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Annotated

import torch
from torch import Tensor, nn
from torch.func import grad_and_value

from metavrf.learners.maml import CLASSES, MAML, PHOTOGRAPHS, Weights
from metavrf.settings import Count, Range, added

DECADES = 10.0  # p of the preprocessing
KEPT = 5.0  # where the forget gate starts, before its sigmoid: 0.993
SMALL = 0.01  # of weights that a gate starts with


@dataclass(frozen=True)
class MetaLSTMSettings:
    """The LSTM meta-learner."""

    inner_steps: Count = 2
    """Updates of the weights on a task's support."""
    inner_lr: Annotated[float, Range(above=0, below=1)] = 0.3
    """Where the input gate starts: the learning rate of the first inner steps."""
    hidden: Count = 8
    """Size of the LSTM that reads gradient and loss."""
    centred: bool = added(False, before=False)
    """Subtract the mean of the support's features before the last layer."""


class MetaLSTM(MAML):
    """An LSTM that updates each weight of a network from its gradient, in place of gradient descent. See the module."""

    citation = "Ravi & Larochelle, Optimization as a model for few-shot learning, ICLR 2017"
    solves = ("classification",)
    Settings = MetaLSTMSettings
    presets = {"classes": CLASSES | {"channels": 32, "validate_tasks": 200}}
    paper = {
        "all": {"lr": 1e-3, "dropout": 0.0, "clip": 0.25, "batch": 1, "hidden": 20, "inner_lr": 0.01},
        "classes": PHOTOGRAPHS | {"batch": 1, "inner_lr": 0.01, "inner_steps": 12, "iterations": 75_000},
        "omniglot": {"inner_steps": 15, "iterations": 50_000},
    }

    def setup(self, generator: torch.Generator) -> None:
        """See :meth:`Learner.setup`."""
        super().setup(generator)
        hidden = self.settings.hidden
        self.reader = nn.Linear(4 + hidden, 4 * hidden)  # the plain LSTM: its input, forget and output gates, and cell
        self.gates = nn.Parameter(SMALL * torch.randn(2, hidden + 2))  # of forget and input gate: of h, θ, the gate
        rate = self.settings.inner_lr
        self.biases = nn.Parameter(torch.tensor([KEPT, math.log(rate / (1 - rate))]))

    def adapt(self, weights: Weights, x: Tensor, y: Tensor) -> Weights:
        """The weights after the updates on one task's support ``x [S, ...]``, ``y [S, ...]``."""
        sizes = [value.numel() for value in weights.values()]
        cell = torch.cat([value.flatten() for value in weights.values()])
        state = cell.new_zeros(2, len(cell), self.settings.hidden)
        gate = cell.new_zeros(2, len(cell))
        for _ in range(self.settings.inner_steps):
            with torch.no_grad():
                slopes, loss = grad_and_value(self.task_loss)(weights, x, y)
            slope = torch.cat([value.flatten() for value in slopes.values()])
            cell, state, gate = self.update(cell, state, gate, slope, loss)
            parts = zip(weights.items(), cell.split(sizes), strict=True)
            weights = {name: part.view_as(value) for (name, value), part in parts}
        return weights

    def update(
        self, cell: Tensor, state: Tensor, gate: Tensor, slope: Tensor, loss: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        """One step of all weights ``cell [n]``, given their gradients ``slope [n]`` and the ``loss``.

        Also of the ``state [2, n, hidden]`` of the plain LSTM, and of forget and input gate, ``gate [2, n]``.
        """
        seen = torch.cat([preprocessed(slope), preprocessed(loss).expand(len(slope), -1), state[0]], dim=-1)
        write, keep, show, new = self.reader(seen).chunk(4, dim=-1)
        inner = keep.sigmoid() * state[1] + write.sigmoid() * new.tanh()
        shown = show.sigmoid() * inner.tanh()
        hidden = self.settings.hidden
        score = self.gates[:, :hidden] @ shown.mT + self.gates[:, hidden : hidden + 1] * cell
        gate = (score + self.gates[:, hidden + 1 :] * gate + self.biases.unsqueeze(1)).sigmoid()
        return gate[0] * cell - gate[1] * slope, torch.stack([shown, inner]), gate


def preprocessed(value: Tensor) -> Tensor:
    """Size and sign of numbers of any scale, ``[..., 2]``."""
    size = value.abs()
    large = size >= math.exp(-DECADES)
    log_size = size.clamp_min(math.exp(-DECADES)).log() / DECADES
    return torch.stack([log_size, torch.where(large, value.sign(), math.exp(DECADES) * value)], dim=-1)
