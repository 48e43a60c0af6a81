"""A learner trained on standardised numbers, in the units of the table that they come from."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from metavrf.episodes import Episodes
from metavrf.errors import UserError
from metavrf.learners.base import Learner
from metavrf.prediction import Prediction
from metavrf.protocol import INDUCTIVE, Protocol
from metavrf.spec import Columns


class InUnits(Learner):
    """Takes inputs and targets in their own units, and answers in them; inside, a learner sees them standardised."""

    def __init__(self, inner: Learner, columns: Columns) -> None:
        super().__init__(_Standardised(inner.embedding, columns), inner.spec)
        self.inner, self.columns, self.components = inner, columns, inner.components
        self.embeds_alone, self.inductive_statistics = inner.embeds_alone, inner.inductive_statistics  # type: ignore[misc]
        self.eval()

    def forward(
        self,
        episodes: Episodes,
        generator: torch.Generator | None = None,
        memory: Any = None,
        protocol: Protocol = INDUCTIVE,
    ) -> Prediction:
        """Solve tasks in units."""
        return self._restored(self.inner(self.columns.standardised(episodes), generator, memory, protocol))

    def solve(self, episodes: Episodes, memory: Any = None, generator: torch.Generator | None = None) -> Prediction:
        """Solve tasks whose inputs are features, and whose targets are in units."""
        return self._restored(self.inner.solve(self.columns.standard_targets(episodes), memory, generator))

    def inferred(self, episodes: Episodes) -> Any:
        """What the learner inside infers."""
        return self.inner.inferred(self.columns.standard_targets(episodes))

    def answer(self, episodes: Episodes, inference: Any) -> Prediction:
        """What the learner inside answers, in units."""
        return self._restored(self.inner.answer(self.columns.standard_targets(episodes), inference))

    def _restored(self, found: Prediction) -> Prediction:
        """The same mixture in units; what was a loss is none any more."""
        if found.std is None:
            raise UserError("a learner of curves must give a standard deviation")
        mean, std = self.columns.target_scale()
        return replace(
            found,
            mean=found.mean * std + mean,
            samples=found.samples * std + mean,
            std=found.std * std,
            variance=None if found.variance is None else found.variance * std.square(),
            loss=None,
            terms={},
        )


class _Standardised(nn.Module):
    """An embedding of inputs in their own units."""

    def __init__(self, embedding: nn.Module, columns: Columns) -> None:
        super().__init__()
        self.embedding, self.columns = embedding, columns
        self.features = embedding.features

    def forward(self, x: Tensor, own: int | None = None, views: str = "one") -> Tensor:
        """Features of ``x [..., d]``."""
        return self.embedding(self.columns.standard_inputs(x), own, views)
