"""What no learner can beat, in the interface of a learner: the oracles that families of functions carry."""

from __future__ import annotations

from typing import Any

import torch

from metavrf.episodes import Episodes
from metavrf.learners.base import Learner, Prediction
from metavrf.tasks.functions import FunctionFamily
from metavrf.tasks.oracles import Oracle


class Known(Learner):
    """A predictor that knows the distribution of the tasks, and has no parameters."""

    def __init__(self, oracle: Oracle) -> None:
        super().__init__()
        self.oracle = oracle

    def solve(self, episodes: Episodes, memory: Any = None, generator: torch.Generator | None = None) -> Prediction:
        """What the oracle says."""
        return self.oracle(episodes)


def limits(family: FunctionFamily) -> dict[str, Learner]:
    """The family's limits by name, or none where they are not known."""
    return {name: Known(oracle) for name, oracle in family.oracles().items()}
