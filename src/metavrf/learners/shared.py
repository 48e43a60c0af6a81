"""One learned kernel for all tasks: what stands between plain random features and MetaVRF.

The same embedding and ridge, and a spectral distribution N(μ, σ²) that is learned but not inferred. What this gains
over plain random features is what a learned spectrum gains; what MetaVRF gains over this is what inference gains.
"""

from __future__ import annotations

import torch
from torch import nn

from metavrf.episodes import Episodes
from metavrf.kernels.spectral import Spectral
from metavrf.learners.kernel import KERNEL_PRESETS, PAPER, START_LOG_VARIANCE, one_kernel
from metavrf.learners.rff import RFF


class Shared(RFF):
    """Ridge regression under one learned kernel, the same for every task. See the module."""

    citation = "the control of this package; spectra are learned as by Lazaro-Gredilla et al., JMLR 2010"
    presets = KERNEL_PRESETS
    paper = {"all": PAPER}

    def setup(self, generator: torch.Generator) -> None:
        """See :meth:`Learner.setup`."""
        super().setup(generator)
        self.mean = nn.Parameter(torch.zeros(self.features))
        self.log_variance = nn.Parameter(torch.zeros(self.features))

    @torch.no_grad()
    def initialise(self, episodes: Episodes) -> None:
        """Start as MetaVRF does: of functions close to a basis whose phase grows evenly with the input."""
        super().initialise(episodes)
        omega = self.even_phase(episodes) if episodes.way is None and self.settings.aligned else None
        if omega is not None:
            self.mean.copy_(omega)
            self.log_variance.fill_(START_LOG_VARIANCE)

    def infer(self, episodes: Episodes) -> Spectral:
        """N(μ, σ²), whatever the task."""
        shape = (episodes.tasks, self.features)
        return one_kernel(self.mean.expand(shape), torch.exp(0.5 * self.log_variance).expand(shape))
