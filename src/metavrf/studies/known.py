"""What learners stand beside: the oracles of a family, and Gaussian processes fitted to each task alone."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch

from metavrf.config import Config
from metavrf.episodes import Episodes
from metavrf.prediction import Prediction
from metavrf.studies.study import Known
from metavrf.tasks.functions import family
from metavrf.testing import limits
from metavrf.testing.evaluate import test_tasks
from metavrf.testing.evaluation import Evaluation, evaluate_learner
from metavrf.testing.settings import EvalSettings

FITTED = "a Gaussian process per task, the better of RBF and RBF × periodic"
RESTARTS = 2


def evaluate_known(known: Known, test: Mapping[str, Any]) -> Evaluation:
    """Test it on the tasks of its family, or on those of the one that the test names with ``on``."""
    options = dict(test)
    episodes = test_tasks(Config.of(options.pop("on", known.task)), None, EvalSettings(**options))
    oracle = limits.Known(fit) if known.name == FITTED else limits.limits(family(known.task))[known.name]
    return evaluate_learner(oracle, episodes, EvalSettings(**options).seed)


def fit(episodes: Episodes) -> Prediction:
    """The better of two processes by its marginal likelihood on the support, for each task."""
    from sklearn.exceptions import ConvergenceWarning

    means, deviations = [], []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)  # bounds of hyper-parameters are reached with so few points
        for x, y, asked in zip(episodes.support_x, episodes.support_y, episodes.query_x, strict=True):
            mean, deviation = _best(x.double().numpy(), y[:, 0].double().numpy()).predict(asked.double().numpy(), True)
            means.append(mean)
            deviations.append(deviation)
    mean, std = (torch.from_numpy(np.stack(values)).unsqueeze(-1).float() for values in (means, deviations))
    return Prediction(mean, mean.unsqueeze(0), std.clamp_min(1e-4))


def _best(x: Any, y: Any) -> Any:
    from sklearn.gaussian_process import GaussianProcessRegressor
    from sklearn.gaussian_process.kernels import RBF, ConstantKernel, ExpSineSquared, WhiteKernel

    def amplitude() -> Any:
        return ConstantKernel(1.0, (1e-3, 1e3))

    kernels = (
        amplitude() * RBF(1.0, (0.1, 100)) + WhiteKernel(1e-3, (1e-8, 1.0)),
        amplitude() * RBF(10.0, (1.0, 100)) * ExpSineSquared(1.0, 3.0, (0.1, 10), (0.5, 20))
        + WhiteKernel(1e-3, (1e-8, 1.0)),
    )
    fits = [
        GaussianProcessRegressor(kernel, n_restarts_optimizer=RESTARTS, random_state=0, normalize_y=True).fit(x, y)
        for kernel in kernels
    ]
    return max(fits, key=lambda fit: fit.log_marginal_likelihood_value_)
