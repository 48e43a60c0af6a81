"""Few-shot regression as a scikit-learn estimator, with its predictive distribution."""

from __future__ import annotations

from typing import Any, Self

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from sklearn.base import RegressorMixin
from sklearn.utils import check_array
from torch import Tensor

from metavrf.episodes import Episodes
from metavrf.errors import UserError
from metavrf.estimators.base import FewShot


class MetaVRFRegressor(RegressorMixin, FewShot):  # type: ignore[misc]
    """Few-shot regression with a predictive standard deviation.

    Args:
        model: a model that comes with the package ("sine") or a run's directory. Without one, samples are feature
            vectors, and the answer is a mixture of many exact kernels, weighted by evidence. Nothing is fitted by
            gradient. ``kernels_`` says what was inferred, ``log_marginal_likelihood()`` how well it explains them.
        bases: number of random features, if other than the model's own. Without a model it asks for one Gaussian kernel
            on that many random features instead of the mixture; so do more than 4,000 rows.
        ridge: fixes the noise λ without a model; by default it is inferred like the kernel.
        random_state: seed of the bases and of the candidates.

    >>> import numpy as np
    >>> X = np.linspace(-3, 3, 12)[:, None]
    >>> mean, std = MetaVRFRegressor().fit(X, np.sin(X[:, 0])).predict([[0.5]], return_std=True)
    >>> bool(abs(mean[0] - np.sin(0.5)) < 0.05)
    True
    """

    kind = "regressor"

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.target_tags.multi_output = True
        return tags

    def partial_fit(self, X: Any, y: ArrayLike) -> Self:
        """Add samples; features of the others are kept, not computed again."""
        return self._learn(X, y, afresh=not hasattr(self, "predictor_"))

    def predict(
        self, X: Any, return_std: bool = False
    ) -> NDArray[np.float64] | tuple[NDArray[np.float64], NDArray[np.float64]]:
        """The mean of each sample's target, and with ``return_std`` its standard deviation, as y was given."""
        answers = self._answers(X)
        mean, std = (torch.cat(parts).double().numpy() for parts in zip(*answers, strict=True))
        if self.support_y_.ndim == 1:
            mean, std = mean[:, 0], std[:, 0]
        return (mean, std) if return_std else mean

    def _targets(self, y: ArrayLike) -> NDArray[Any]:
        targets = check_array(y, ensure_2d=False, dtype=np.float64)
        outputs = 1 if targets.ndim == 1 else targets.shape[1]
        trained = self.model_
        if trained is not None and outputs != trained.spec.targets:
            raise UserError(f"y has {outputs} outputs, but {trained.name} was trained on {trained.spec.targets}")
        return targets

    def _support(self) -> Episodes:
        y = torch.tensor(self.support_y_.reshape(len(self.support_y_), -1), dtype=self.support_x_.dtype)
        return Episodes.of_support(self.support_x_, y)

    def _numbers(self) -> Tensor:
        return torch.tensor(self.support_y_)

    def _restore(self, numbers: Tensor, values: dict[str, Any]) -> None:
        self.support_y_ = numbers.numpy()
