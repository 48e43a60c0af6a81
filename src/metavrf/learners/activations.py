"""Weights predicted from activations (Qiao, Liu, Shen & Yuille, CVPR 2018).

In a trained classifier the weight of a class and the mean activation of its pictures lie close together. So a small
network φ, the same for all classes, predicts the weight of a class from its mean activation, and a new class from the
few activations of its support:

    w_c = φ(mean of a(x) over the support of c)      logits = γ cos(a(x), w_c)

φ starts as the identity, which is the nearest class mean in angle. It is trained so that predicted weights do the work
of trained ones: the weights of a training task's classes in the classifier of all training classes are replaced by
predicted ones, and the queries must still be told from all training classes (``among_all``), and from those of the task
(``nll``). So that φ knows single activations and means alike, a class is now and then represented by one of its
support samples.

The authors train the network first and φ after it, on its features, with φ predicting the weights of all classes at
once. Here both are trained together unless a trained network is given (``--start-from``, or ready features), and other
classes keep the classifier's weights. Their published code for miniImageNet has the two layers and the start of
``predictor = "mlp"``, and scales activations and weights to length one, as here. The preset "paper" is the second stage
of that code, so give it a trained network; there the learning rate is constant in these 12,500 steps too.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from metavrf.episodes import Episodes
from metavrf.learners.with_classes import NewWeights
from metavrf.settings import NotNegative, Share


@dataclass(frozen=True)
class ActivationsSettings:
    """Weights from activations."""

    predictor: Literal["linear", "mlp"] = "mlp"
    """What predicts weights: a linear map, or two layers."""
    single: Share = 0.1
    """How often a class is represented by one support sample in place of their mean while training."""
    task_weight: NotNegative = 1.0
    """Weight of the loss among a task's own classes; 0 for that among all training classes alone."""


class Activations(NewWeights):
    """A classifier's weights for new classes, predicted from their mean activations. See the module."""

    citation = "Qiao et al., Few-shot image recognition by predicting parameters from activations, CVPR 2018"
    Settings = ActivationsSettings
    paper = {
        "classes": {"optimizer": "sgd", "lr": 1e-3, "weight_decay": 5e-4, "iterations": 12_500, "dropout": 0.0}
        | {"batch": 1, "train_way": 64, "train_shot": 1, "query": 1, "task_weight": 0.0},
        "omniglot": {"embedding": "conv4"},
    }

    def setup(self, generator: torch.Generator) -> None:
        """See :meth:`Learner.setup`."""
        super().setup(generator)
        features: Any = self.embedding.features
        first, second = (nn.Linear(features, features) for _ in range(2))
        for layer in (first, second):
            nn.init.eye_(layer.weight)
            nn.init.zeros_(layer.bias)
        self.predictor = nn.Sequential(first, nn.ReLU(), second) if self.settings.predictor == "mlp" else first

    def weights(self, episodes: Episodes, generator: torch.Generator | None = None) -> Tensor:
        """Predicted weights ``[T, C, d]`` of a task's classes; ``generator`` picks single samples."""
        unit = F.normalize(episodes.support_x, dim=-1)
        means = episodes.prototypes(unit)
        if generator is not None and self.settings.single:
            members = episodes.support_targets.mT  # [T, C, S]
            picked = (members * torch.rand(members.shape, generator=generator).to(members)).argmax(-1)  # [T, C]
            one = unit.gather(1, picked.unsqueeze(-1).expand(-1, -1, unit.shape[-1]))
            alone = torch.rand(picked.shape, generator=generator).to(unit) < self.settings.single
            means = torch.where(alone.unsqueeze(-1), one, means)
        predicted: Tensor = self.predictor(means)
        return predicted
