"""What learners have in common that need a classifier of the training classes to solve new tasks."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import replace
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor

from metavrf.episodes import Episodes
from metavrf.errors import UserError
from metavrf.learners.base import Learner, Prediction
from metavrf.learners.classifying import ClassHead, training_samples
from metavrf.learners.head import of_logits


class WithTrainingClasses(Learner):
    """A learner with a classifier of the training classes of its own, trained beside the tasks in any case.

    ``--classify-weight`` sets the weight of its loss, which is 1 otherwise; ``--start-from`` takes a trained one over.
    """

    cosine: ClassVar[bool] = True
    solves = ("classification",)
    classifier: ClassHead

    def setup(self, generator: torch.Generator) -> None:
        """See :meth:`Learner.setup`."""
        if not self.spec.train_classes:
            raise UserError("this learner needs to know the training classes: open it with the data.json of its run")
        features: Any = self.embedding.features
        self.classifier = ClassHead(features, self.spec.train_classes, cosine=self.cosine)
        self.classify_weight = 1.0

    def classify(self, weight: float) -> None:
        """Weigh the loss of the classifier."""
        self.classify_weight = weight


class NewWeights(WithTrainingClasses):
    """A learner that makes weights of new classes for the cosine classifier of the training classes.

    In training some of a task's classes are taken for new. Beside the loss among the task's classes, weighed by the
    setting ``task_weight``, samples must be told from all training classes, the new ones by the weights made for them.
    """

    @abstractmethod
    def weights(self, episodes: Episodes, generator: torch.Generator | None = None) -> Tensor:
        """Weights ``[T, C, d]`` of the tasks' classes, from their support; ``generator`` is for training."""

    def new(self, way: int) -> int:
        """How many of a training task's classes are taken for new."""
        return way

    def solve(self, episodes: Episodes, memory: Any = None, generator: torch.Generator | None = None) -> Prediction:
        """Classify the queries by the weights made for a task's classes; in training also among all classes."""
        weights = self.weights(episodes, generator if self.training else None)
        logits = self.logits(torch.cat([episodes.support_x, episodes.query_x], dim=1), weights)
        prediction = of_logits(logits[:, episodes.support_x.shape[1] :].unsqueeze(0), episodes)
        if episodes.classes is None or prediction.loss is None:
            return prediction
        own, among_all = self.losses(episodes, logits)
        loss = self.settings.task_weight * prediction.loss + among_all + self.classify_weight * own
        terms = dict(prediction.terms) | {"training_classes": own, "among_all": among_all}
        return replace(prediction, loss=loss, terms=terms)

    def classified(self, prediction: Prediction, embedded: Episodes) -> Prediction:
        """The loss of the classifier is in the prediction already."""
        return prediction

    def logits(self, z: Tensor, weights: Tensor) -> Tensor:
        """``[T, N, C]`` of features ``z [T, N, d]``, as the classifier's own: scaled cosines with the weights."""
        assert self.classifier.log_scale is not None
        return self.classifier.log_scale.exp() * F.normalize(z, dim=-1) @ F.normalize(weights, dim=-1).mT

    def losses(self, episodes: Episodes, logits: Tensor) -> tuple[Tensor, Tensor]:
        """Cross entropies over all training classes: by the classifier, and with new weights for the new classes.

        ``logits [T, S + Q, C]`` are those of a task's classes by weights made for them. A task's first classes are the
        new ones (their order is random). Samples that new weights were made of do not count in the second loss.
        """
        assert episodes.classes is not None and episodes.query_y is not None
        z, labels = training_samples(episodes)
        found = self.classifier(z).unflatten(0, logits.shape[:2])  # [T, S + Q, classes]
        own = F.cross_entropy(found.flatten(0, 1), labels)
        count = self.new(logits.shape[-1])
        columns = episodes.classes[:, None, :count].expand(-1, logits.shape[1], -1)
        mixed = found.scatter(2, columns, logits[..., :count])
        made_of = torch.cat([episodes.support_y < count, torch.zeros_like(episodes.query_y, dtype=torch.bool)], dim=1)
        counts = ~made_of.flatten()
        return own, F.cross_entropy(mixed.flatten(0, 1)[counts], labels[counts])
