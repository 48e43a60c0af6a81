"""Meta-SGD (Li, Zhou, Chen & Li, 2017).

MAML whose inner learning rate is a weight too: one for each weight of the network, learned with it. So the direction
and length of the inner step are learned, and a single one suffices.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from metavrf.config import InnerSettings
from metavrf.learners.maml import MAML


class MetaSGD(MAML):
    """MAML with a learned inner learning rate for each weight. They start at random in 0.05 to 1 times ``inner_lr``."""

    citation = "Li, Zhou, Chen & Li, Meta-SGD: learning to learn quickly for few-shot learning, arXiv 1707.09835, 2017"

    def __init__(self, embedding: Any, outputs: int, settings: InnerSettings, *, regression: bool) -> None:
        super().__init__(embedding, outputs, settings, regression=regression)
        low, high = 0.05 * settings.inner_lr, settings.inner_lr
        self.rates = nn.ParameterDict(
            {_key(name): nn.Parameter(torch.empty_like(w).uniform_(low, high)) for name, w in self.start().items()}
        )

    def rate(self, name: str) -> Tensor | float:
        """α of a weight."""
        alpha: Tensor = self.rates[_key(name)]
        return alpha


def _key(name: str) -> str:
    return name.replace(".", "_")  # a name of a parameter may hold no dot
