"""VERSA (Gordon, Bronskill, Bauer, Nowozin & Turner, ICLR 2019).

An inference network reads the mean support feature of a class and predicts a Gaussian over that class's weights in a
linear classifier: adaptation is one forward pass, whatever the number of classes or shots. Training maximises the
predictive likelihood itself, averaged over L samples of the weights (reparameterised); there is no KL term.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from metavrf.episodes import Episodes
from metavrf.learners.base import Learner, Prediction
from metavrf.learners.head import of_logits
from metavrf.nn.mlp import GaussianMLP
from metavrf.settings import Count


@dataclass(frozen=True)
class VersaSettings:
    """VERSA."""

    samples: Count = 10
    """Number L of samples of the weights."""


class Versa(Learner):
    """Linear classifiers whose weights a network infers, as Gaussians. See the module for the idea.

    The model keeps a seed: at test time ε is drawn from it anew, the same for all tasks and other for each class, so
    predictions are the same whenever they are made.
    """

    citation = "Gordon et al., Meta-learning probabilistic inference for prediction, ICLR 2019"
    solves = ("classification",)
    Settings = VersaSettings
    paper = {
        "classes": {"lr": 2.5e-4, "batch": 8, "iterations": 50_000},
        "omniglot": {"lr": 1e-4, "batch": 16, "iterations": 80_000},
    }
    seed: Tensor

    def setup(self, generator: torch.Generator) -> None:
        """See :meth:`Learner.setup`."""
        features: Any = self.embedding.features
        self.inference = GaussianMLP(features, features, features + 1)  # a weight for each feature, and an offset
        self.samples = self.settings.samples
        self.register_buffer("seed", torch.randint(2**31, (), generator=generator))

    def weights(self, episodes: Episodes, generator: torch.Generator | None = None) -> Tensor:
        """L samples ``[L, T, C, d + 1]`` of the classes' weights and offsets: μ + σ ⊙ ε."""
        mean, log_variance = self.inference(episodes.prototypes(episodes.support_x))
        tasks, classes, size = mean.shape
        if not self.training or generator is None:
            tasks, generator = 1, torch.Generator().manual_seed(int(self.seed))
        epsilon = torch.randn(classes, self.samples, tasks, size, generator=generator).permute(1, 2, 0, 3)
        return mean + torch.exp(0.5 * log_variance) * epsilon.to(mean)

    def solve(self, episodes: Episodes, memory: Any = None, generator: torch.Generator | None = None) -> Prediction:
        """Linear classifiers whose probabilities are averaged; the loss is that average's, not the samples'."""
        weights = self.weights(episodes, generator)
        logits = episodes.query_x @ weights[..., :-1].mT + weights[..., -1].unsqueeze(-2)  # [L, T, Q, C]
        prediction = of_logits(logits, episodes)
        if episodes.query_y is None:
            return prediction
        nll = F.nll_loss(prediction.mean.flatten(0, 1), episodes.query_y.flatten())
        return replace(prediction, loss=nll, terms={"nll": nll})
