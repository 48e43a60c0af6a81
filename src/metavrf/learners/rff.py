"""Plain random Fourier features (Rahimi & Recht, NeurIPS 2007), the paper's baseline.

The same embedding and ridge as MetaVRF, but one kernel for all tasks: bases are ω ~ N(0, I), and there is no
inference network. What MetaVRF gains over this is what learning and inferring the kernel gain together;
:class:`metavrf.learners.shared.Shared` tells the two apart.
"""

from __future__ import annotations

from typing import Any, Self

import torch

from metavrf.config import Config
from metavrf.episodes import Episodes
from metavrf.kernels.spectral import Spectral
from metavrf.learners.kernel import KernelLearner, one_kernel
from metavrf.tasks.source import Description


class RFF(KernelLearner):
    """Ridge regression on standard random Fourier features of the embedding."""

    citation = "Rahimi & Recht, Random features for large-scale kernel machines, NeurIPS 2007"

    @classmethod
    def of(cls, embedding: Any, config: Config, data: Description, generator: torch.Generator) -> Self:
        """With the settings of the model; ``generator`` draws the bases."""
        return cls(embedding, embedding.features, config.model, targets=data.targets, generator=generator)

    def infer(self, episodes: Episodes) -> Spectral:
        """Standard bases, whatever the task."""
        mean = episodes.support_x.new_zeros(episodes.tasks, self.features)
        return one_kernel(mean, torch.ones_like(mean))
