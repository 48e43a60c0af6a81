"""A classifier of the training classes, and the nearest class mean (Chen et al., ICLR 2019: "Baseline").

The embedding is trained as for any classification: tell all training classes apart. A new task is solved by the nearest
class mean on features of length one. No task is seen in training, yet few methods are better on photographs; and any
other learner can start from its embedding (``metavrf train ... --start-from RUN``).

The authors train a new linear classifier on the support of each test task, where ours takes class means. The preset
"paper" has their 16 pictures a step, for as many steps as their 400 epochs of miniImageNet and 5 of Omniglot. Pictures
are two each of eight classes, not any sixteen, and their colours are not changed.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import torch
import torch.nn.functional as F

from metavrf.episodes import Episodes
from metavrf.errors import UserError
from metavrf.learners.base import Learner, Prediction
from metavrf.learners.classifying import COSINE_SCALE, ClassHead
from metavrf.learners.head import of_logits


@dataclass(frozen=True)
class ClassifierSettings:
    """A classifier of the training classes."""

    cosine: bool = True
    """Compare features and class weights by their angle, rather than by their product."""


class Classifier(Learner):
    """A classifier of the training classes; new classes by the nearest mean of unit-length features. See the module."""

    citation = "Chen et al., A closer look at few-shot classification, ICLR 2019"
    solves = ("classification",)
    Settings = ClassifierSettings
    presets = {
        "classes": {
            "train_way": 128,  # of which there may be fewer: with a query each, 128 or 256 pictures per step
            "train_shot": 1,
            "query": 1,
            "optimizer": "sgd",
            "lr": 0.1,
            "weight_decay": 5e-4,
            "clip": 0.0,
            "iterations": 12_000,
        }
    }
    paper = {
        "classes": {"optimizer": "adam", "lr": 1e-3, "weight_decay": 0.0, "cosine": False, "iterations": 960_000}
        | {"batch": 1, "train_way": 8, "train_shot": 1, "query": 1, "dropout": 0.0},
        "photographs": {"augment": "crop-flip"},
        "omniglot": {"iterations": 25_700},
    }

    def setup(self, generator: torch.Generator) -> None:
        """See :meth:`Learner.setup`."""
        self.classify(1.0)

    def classify(self, weight: float) -> None:
        """The classifier is all that is trained."""
        if not self.spec.train_classes:
            raise UserError("this learner needs to know the training classes: open it with the data.json of its run")
        features: Any = self.embedding.features
        self.classifier = ClassHead(features, self.spec.train_classes, cosine=self.settings.cosine)
        self.classify_weight = weight

    def solve(self, episodes: Episodes, memory: Any = None, generator: torch.Generator | None = None) -> Prediction:
        """Logits are cosines with the class means, whose scale validation sets; the loss is the classifier's alone."""
        support, queries = (F.normalize(z, dim=-1) for z in (episodes.support_x, episodes.query_x))
        means = F.normalize(episodes.prototypes(support), dim=-1)  # [T, C, d]
        prediction = of_logits((COSINE_SCALE * queries @ means.mT).unsqueeze(0), episodes)
        return replace(prediction, loss=None if prediction.loss is None else torch.zeros(()))
