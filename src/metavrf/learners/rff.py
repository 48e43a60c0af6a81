"""Plain random Fourier features (Rahimi & Recht, NeurIPS 2007), the paper's baseline.

The same embedding and ridge as MetaVRF, but one kernel for all tasks: bases are ω ~ N(0, I), and there is no
inference network. What MetaVRF gains over this is what inferring the kernel gains.
"""

from __future__ import annotations

from typing import Any, Self

import torch
from torch import Tensor

from metavrf.config import Config
from metavrf.episodes import Episodes
from metavrf.learners.base import Prediction
from metavrf.learners.metavrf import KernelLearner
from metavrf.tasks.source import Description


class RFF(KernelLearner):
    """Ridge regression on standard random Fourier features of the embedding."""

    citation = "Rahimi & Recht, Random features for large-scale kernel machines, NeurIPS 2007"

    @classmethod
    def of(cls, embedding: Any, config: Config, data: Description, generator: torch.Generator) -> Self:
        """With the settings of the model; ``generator`` draws the bases."""
        regression = data.targets is not None
        return cls(embedding, embedding.features, config.model, regression=regression, generator=generator)

    def infer(self, episodes: Episodes) -> tuple[Tensor, Tensor]:
        """Standard bases, whatever the task."""
        mean = episodes.support_x.new_zeros(episodes.tasks, self.features)
        return mean, torch.zeros_like(mean)

    def solve(self, episodes: Episodes, generator: torch.Generator | None = None) -> Prediction:
        """Solve the tasks with the Gaussian kernel of unit bandwidth."""
        episodes, _ = self.placed(episodes)
        mean, log_variance = self.infer(episodes)
        return self.regress(episodes, mean, torch.exp(0.5 * log_variance), generator)
