"""Plain random Fourier features (Rahimi & Recht, NeurIPS 2007), the paper's baseline.

The same embedding and ridge as MetaVRF, but one kernel for all tasks: bases are ω ~ N(0, I), and there is no
inference network. What MetaVRF gains over this is what learning and inferring the kernel gain together;
:class:`metavrf.learners.shared.Shared` tells the two apart.
"""

from __future__ import annotations

from typing import ClassVar

import torch

from metavrf.episodes import Episodes
from metavrf.kernels.spectral import Spectral
from metavrf.learners.base import Presets
from metavrf.learners.kernel import CLASSES, PAPER, PHOTOGRAPHS, KernelLearner, one_kernel


class RFF(KernelLearner):
    """Ridge regression on standard random Fourier features of the embedding."""

    citation = "Rahimi & Recht, Random features for large-scale kernel machines, NeurIPS 2007"
    presets: ClassVar[Presets] = {
        "all": {"bases": 2048, "draw": "fixed"},  # standard features are drawn once
        "classes": CLASSES,
        "photographs": PHOTOGRAPHS,
        "features": {"unit_features": True, "orthogonal": True},
    }
    paper: ClassVar[Presets] = {"all": PAPER | {"bases": 2048, "draw": "fixed"}}

    def infer(self, episodes: Episodes) -> Spectral:
        """Standard bases, whatever the task."""
        mean = episodes.support_x.new_zeros(episodes.tasks, self.features)
        return one_kernel(mean, torch.ones_like(mean))
