"""VERSA (Gordon, Bronskill, Bauer, Nowozin & Turner, ICLR 2019).

An inference network reads the mean support feature of a class and predicts a Gaussian over that class's weights in a
linear classifier: adaptation is one forward pass, whatever the number of classes or shots. Training maximises the
predictive likelihood itself, averaged over L samples of the weights (reparameterised); there is no KL term.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Self

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from metavrf.config import Config
from metavrf.episodes import Episodes
from metavrf.learners.base import Learner, Prediction
from metavrf.learners.head import of_logits
from metavrf.nn.mlp import GaussianMLP
from metavrf.tasks.source import Description


class Versa(Learner):
    """Linear classifiers whose weights a network infers, as Gaussians. See the module for the idea.

    The model keeps a seed: at test time ε is drawn from it anew, the same for all tasks and other for each class, so
    predictions are the same whenever they are made.
    """

    citation = "Gordon et al., Meta-learning probabilistic inference for prediction, ICLR 2019"
    solves = ("classification",)
    seed: Tensor

    def __init__(self, embedding: nn.Module, features: int, samples: int, generator: torch.Generator) -> None:
        super().__init__(embedding)
        self.inference = GaussianMLP(features, features, features + 1)  # a weight for each feature, and an offset
        self.samples = samples
        self.register_buffer("seed", torch.randint(2**31, (), generator=generator))

    @classmethod
    def of(cls, embedding: Any, config: Config, data: Description, generator: torch.Generator) -> Self:
        """With as many samples L as the settings say."""
        return cls(embedding, embedding.features, config.model.samples, generator)

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
