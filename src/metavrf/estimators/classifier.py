"""Few-shot classification as a scikit-learn estimator."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any, Self

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from sklearn.base import ClassifierMixin
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import check_is_fitted
from torch import Tensor

from metavrf.episodes import Episodes
from metavrf.estimators.base import FewShot
from metavrf.learners import measuring
from metavrf.learners.measuring import LeaveOneOut


class MetaVRFClassifier(ClassifierMixin, FewShot):  # type: ignore[misc]
    """Few-shot classification: any number of classes, of equal or unequal shots, from a handful of samples.

    Args:
        model: a model that comes with the package ("omniglot" for drawings, "photos" for photographs) or a run's
            directory. Without one, samples are rows of numbers, and the answer is a mixture of many exact kernels,
            weighted by how well each predicts the rows one after another (by evidence where each class has one
            sample). Nothing is fitted by gradient. ``kernels_`` says what was inferred, ``log_marginal_likelihood()``
            how well it explains them.
        bases: number of random features, if other than the model's own. Without a model it asks for one Gaussian kernel
            on that many random features instead of the mixture; so do more than 4,000 rows.
        ridge: fixes the noise λ without a model; by default it is inferred like the kernel.
        infer: without a model, whether a trained network looks at the samples and adds kernels of its own to those that
            need no training; off by default, as on real tables it did not help throughout (``docs/rows.md``).
        random_state: seed of the bases and of the candidates.

    >>> import numpy as np
    >>> X = np.array([[0.0, 0.1], [0.1, 0.0], [2.0, 2.1], [2.1, 2.0]])
    >>> MetaVRFClassifier().fit(X, ["low", "low", "high", "high"]).predict([[1.9, 1.9]]).item()
    'high'
    """

    kind = "classifier"

    def partial_fit(self, X: Any, y: ArrayLike, classes: ArrayLike | None = None) -> Self:
        """Add samples, of known classes or new ones; features of the others are kept, not computed again.

        ``classes`` is there for scikit-learn's sake: a class is known once it has a sample.
        """
        return self._learn(X, y, afresh=not hasattr(self, "predictor_"))

    def predict_proba(self, X: Any) -> NDArray[np.float64]:
        """Calibrated probabilities ``[N, classes]``, in the order of ``classes_``."""
        return torch.cat(self._answers(X)).double().numpy()

    def predict(self, X: Any) -> NDArray[Any]:
        """The likeliest class of each sample."""
        likeliest = self.predict_proba(X).argmax(1)
        return self.classes_[likeliest]

    def leave_one_out(self) -> LeaveOneOut:
        """What to expect: the accuracy on each support sample given the others, and from which probability on to trust.

        Kept as ``leave_one_out_`` and saved with the estimator.
        """
        check_is_fitted(self, "predictor_")
        self.leave_one_out_ = measuring.leave_one_out(self.learner_, self._support())
        return self.leave_one_out_

    def _targets(self, y: ArrayLike) -> NDArray[Any]:
        labels = np.asarray(y)
        if labels.dtype.kind not in "biuUS":  # what else could be no classes
            check_classification_targets(labels)
        return labels

    def _support(self) -> Episodes:
        self.classes_, numbers = np.unique(self.support_y_, return_inverse=True)
        return Episodes.of_support(self.support_x_, torch.from_numpy(numbers), len(self.classes_))

    def _saved(self, *, pretrained: bool) -> dict[str, Any]:
        kept = getattr(self, "leave_one_out_", None)
        own = {"classes": self.classes_.tolist(), "dtype": self.classes_.dtype.str}
        return super()._saved(pretrained=pretrained) | own | {"leave_one_out": kept and asdict(kept)}

    def _restore(self, numbers: Tensor, values: dict[str, Any]) -> None:
        self.support_y_ = np.array(values["classes"], dtype=values["dtype"])[numbers.numpy()]
        if values["leave_one_out"] is not None:
            self.leave_one_out_ = LeaveOneOut(**values["leave_one_out"])
