"""Meta-SGD (Li, Zhou, Chen & Li, 2017).

MAML whose inner learning rate is a weight too: one for each weight of the network, learned with it. So the direction
and length of the inner step are learned, and a single one suffices.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from metavrf.learners.maml import CLASSES, MAML, PHOTOGRAPHS


class MetaSGD(MAML):
    """MAML with a learned inner learning rate for each weight. They start at random in 0.05 to 1 times ``inner_lr``."""

    citation = "Li, Zhou, Chen & Li, Meta-SGD: learning to learn quickly for few-shot learning, arXiv 1707.09835, 2017"
    presets = {"functions": {"inner_lr": 0.1}, "classes": CLASSES | {"inner_lr": 0.1}}
    paper = {
        "all": {"lr": 1e-3, "dropout": 0.0, "inner_lr": 0.1},
        "functions": {"batch": 4, "iterations": 60_000},
        "classes": PHOTOGRAPHS | {"inner_lr": 0.1, "iterations": 60_000},
        "omniglot": {"batch": 32, "channels": 64},
    }

    def setup(self, generator: torch.Generator) -> None:
        """See :meth:`Learner.setup`."""
        super().setup(generator)
        low, high = 0.05 * self.settings.inner_lr, self.settings.inner_lr
        self.rates = nn.ParameterDict(
            {_key(name): nn.Parameter(torch.empty_like(w).uniform_(low, high)) for name, w in self.start().items()}
        )

    def rate(self, name: str) -> Tensor | float:
        """α of a weight."""
        alpha: Tensor = self.rates[_key(name)]
        return alpha


def _key(name: str) -> str:
    return name.replace(".", "_")  # a name of a parameter may hold no dot
