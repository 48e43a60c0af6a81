"""The interface of every learner: episodes in, prediction out."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from typing import ClassVar

import torch
from torch import Tensor, nn

from metavrf.episodes import Episodes


@dataclass(eq=False)
class Prediction:
    """What a learner says of the query samples.

    Attributes:
        mean: ``[T, Q, p]`` predictive mean, or ``[T, Q, C]`` logits (log probabilities up to a constant).
        samples: ``[L, T, Q, p]`` the means or logits of the L posterior samples.
        std: ``[T, Q, p]`` predictive standard deviation of y, for regression.
        loss: the training objective, where the query's targets are known.
        terms: its parts by name.
    """

    mean: Tensor
    samples: Tensor
    std: Tensor | None = None
    loss: Tensor | None = None
    terms: dict[str, Tensor] = field(default_factory=dict)


class Learner(nn.Module, ABC):
    """A meta-learner: parameters shared by all tasks, and a way to solve a task in one forward pass.

    ``transductive`` says whether a query's prediction may depend on the other queries. In training mode a learner
    may carry state from batch to batch; in evaluation mode tasks are independent of each other.
    """

    transductive: ClassVar[bool] = False

    @abstractmethod
    def forward(self, episodes: Episodes, generator: torch.Generator | None = None) -> Prediction:
        """Solve the tasks; ``generator`` feeds whatever the learner draws at random while it trains."""

    def initialise(self, episodes: Episodes) -> None:
        """Set scales from a first batch of training tasks, before the first step."""

    @torch.inference_mode()
    def predict(self, episodes: Episodes) -> Prediction:
        """Solve tasks as at test time: evaluation mode, no gradients, input checked for NaN."""
        episodes.check_finite()
        training = self.training
        self.eval()
        try:
            return self(episodes)
        finally:
            self.train(training)

    @property
    def protocol(self) -> str:
        """``inductive`` or ``transductive``: the label every result carries."""
        return "transductive" if self.transductive else "inductive"
