"""Few-shot regression as a scikit-learn estimator, with its predictive distribution."""

from __future__ import annotations

import math
import os
from collections.abc import Iterator
from typing import Any, Self

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from sklearn.base import RegressorMixin
from sklearn.utils import check_array, check_consistent_length, check_random_state
from sklearn.utils.validation import check_is_fitted
from torch import Tensor

from metavrf.episodes import Episodes
from metavrf.errors import UserError
from metavrf.estimators.base import FewShot
from metavrf.learners import measuring
from metavrf.learners.row_mixture import RowsPredictor
from metavrf.prediction import Prediction

REFITTED = 50  # rows that intervals take a fit without each of; with more no single one decides much
MOST_LEFT_OUT = 100_000  # rows by left-out samples that intervals are found of at a time


class MetaVRFRegressor(RegressorMixin, FewShot):  # type: ignore[misc]
    """Few-shot regression with a predictive standard deviation.

    Args:
        model: a model that comes with the package ("sine") or a run's directory. Without one, samples are feature
            vectors, and the answer is a mixture of many exact kernels, weighted by evidence. Nothing is fitted by
            gradient. ``kernels_`` says what was inferred, ``log_marginal_likelihood()`` how well it explains them.
        bases: number of random features, if other than the model's own. Without a model it asks for one Gaussian kernel
            on that many random features instead of the mixture; so do more than 4,000 rows.
        ridge: fixes the noise λ without a model; by default it is inferred like the kernel.
        infer: without a model, whether a trained network looks at the samples and adds kernels of its own to those that
            need no training; off by default, as on real tables it did not help throughout (``docs/rows.md``).
        random_state: seed of the bases and of the candidates.
        coverage: the share of new targets that :meth:`predict_interval` is to hold.

    >>> import numpy as np
    >>> X = np.linspace(-3, 3, 12)[:, None]
    >>> mean, std = MetaVRFRegressor().fit(X, np.sin(X[:, 0])).predict([[0.5]], return_std=True)
    >>> bool(abs(mean[0] - np.sin(0.5)) < 0.05)
    True
    """

    kind = "regressor"

    def __init__(
        self,
        model: str | os.PathLike[str] | None = None,
        *,
        bases: int | None = None,
        ridge: float | None = None,
        infer: bool = False,
        random_state: Any = 0,
        coverage: float = 0.9,
    ) -> None:
        super().__init__(model, bases=bases, ridge=ridge, infer=infer, random_state=random_state)
        self.coverage = coverage

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
        mean, std = self._shaped(mean), self._shaped(std)
        return (mean, std) if return_std else mean

    def predict_quantiles(self, X: Any, q: float | ArrayLike = (0.05, 0.5, 0.95)) -> NDArray[np.float64]:
        """The values below which targets lie with probability ``q``; several are on a first axis, as numpy has it."""
        levels = np.asarray(q, dtype=np.float64)
        if levels.ndim > 1 or not ((levels > 0) & (levels < 1)).all():
            raise UserError(f"q = {levels.tolist()} must be a probability between 0 and 1, or a list of such")
        parts = [
            torch.stack([prediction.quantile(level)[0] for level in levels.ravel().tolist()])
            for prediction in self._predictions(X)
        ]
        found = self._shaped(torch.cat(parts, 1).double().numpy())
        return found if levels.ndim else found[0]

    def sample_y(self, X: Any, n_samples: int = 1, random_state: Any = 0) -> NDArray[np.float64]:
        """Targets drawn from the predictive distribution, noise included: ``[N, n_samples]`` or ``[N, p, n_samples]``.

        The rows of a draw share its kernel. Without a model they are drawn jointly, so that neighbours go together.
        """
        check_is_fitted(self, "predictor_")
        generator = torch.Generator().manual_seed(int(check_random_state(random_state).randint(2**31 - 1)))
        if isinstance(self.predictor_, RowsPredictor):
            drawn = self.predictor_.draw(self._features(X), n_samples, generator)
        else:
            drawn = torch.cat([p.draw(n_samples, generator)[:, 0] for p in self._predictions(X)], 1)
        return np.moveaxis(self._shaped(drawn.double().numpy()), 0, -1)

    def score_crps(self, X: Any, y: ArrayLike) -> float:
        """The mean continuous ranked probability score of targets, in the units of y; smaller is better."""
        check_consistent_length(X, y)
        targets = torch.from_numpy(self._targets(y)).reshape(len(self._targets(y)), -1)
        found = list(self._predictions(X))
        parts = targets.split([prediction.mean.shape[1] for prediction in found])
        return float(torch.cat([p.crps(part.unsqueeze(0))[0] for p, part in zip(found, parts, strict=True)]).mean())

    def leave_one_out(self) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """What to expect: mean and standard deviation of each support sample's target, as the others predict it."""
        check_is_fitted(self, "predictor_")
        mean, std = self._without_each(self.support_x_[:0])
        return self._shaped(mean[:, 0].double().numpy()), self._shaped(std[:, 0].double().numpy())

    @property
    def noise_(self) -> Any:
        """The standard deviation of the noise, in the units of y, averaged over the kernels; per output if several."""
        mixture = self._mixture()
        variance = mixture.amplitude * mixture.kernels.noise[mixture.index].unsqueeze(1)  # [P, p]
        noise = (mixture.log_weights.exp() @ variance).sqrt().numpy()
        return float(noise[0]) if self.support_y_.ndim == 1 else noise

    def predict_interval(self, X: Any) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Ends of intervals that hold new targets with probability ``coverage``, whatever their distribution.

        Conformal: each support sample is predicted by the others, and its error, in deviations, says how far the truth
        lies from predictions. The interval of a new sample reaches that far from every prediction of it that leaves one
        support sample out (the jackknife-minmax of Barber et al. 2021). It needs samples that are exchangeable, and
        at least coverage/(1 - coverage) of them: with fewer its ends are infinite.
        """
        check_is_fitted(self, "predictor_")
        if not 0 < self.coverage < 1:
            raise UserError(f"coverage = {self.coverage} must be between 0 and 1")
        targets = torch.from_numpy(self.support_y_).reshape(len(self.support_y_), 1, -1)
        samples = len(targets)
        rank = math.ceil(self.coverage * (samples + 1) - 1e-9)
        low, high = [], []
        for chunk in self._features(X).split(max(1, MOST_LEFT_OUT // samples)):
            if rank > samples:
                low.append(chunk.new_full((len(chunk), targets.shape[-1]), -math.inf))
                high.append(-low[-1])
                continue
            mean, std = self._without_each(chunk)
            errors = (targets - mean[:, :1]).abs() / std[:, :1]  # [S, 1, p]
            reach = errors.sort(0).values[rank - 1] * std[:, 1:]
            low.append((mean[:, 1:] - reach).amin(0))
            high.append((mean[:, 1:] + reach).amax(0))
        return self._shaped(torch.cat(low).double().numpy()), self._shaped(torch.cat(high).double().numpy())

    @torch.no_grad()
    def _without_each(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """As :func:`metavrf.learners.measuring.without_each`, in closed form where no single sample decides much."""
        if isinstance(self.predictor_, RowsPredictor) and len(self.support_x_) > REFITTED:
            return self.predictor_.without_each(x)
        return measuring.without_each(self.learner_, self._support(), x)

    @torch.no_grad()
    def _predictions(self, X: Any) -> Iterator[Prediction]:
        """The predictive distributions of all samples, as one task, some at a time."""
        check_is_fitted(self, "predictor_")
        size = getattr(self.predictor_, "at_once", measuring.SAMPLES_AT_ONCE)
        for chunk in self._features(X).split(size):
            if isinstance(self.predictor_, RowsPredictor):
                yield self.predictor_.prediction(chunk)
            else:
                yield self.learner_.predict(self._support().asking(chunk.unsqueeze(0)), embedded=True)

    def _shaped(self, values: NDArray[np.float64]) -> NDArray[np.float64]:
        """Without the axis of outputs where y has none."""
        return values[..., 0] if self.support_y_.ndim == 1 else values

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
