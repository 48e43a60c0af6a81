"""What learners of Gaussian-process draws stand beside: processes fitted to each task alone, and oracles."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import torch

from metavrf.config import Config
from metavrf.episodes import Episodes
from metavrf.errors import UserError
from metavrf.prediction import Prediction
from metavrf.tasks.functions import family
from metavrf.testing.evaluate import test_tasks
from metavrf.testing.evaluation import evaluate_learner
from metavrf.testing.limits import Known
from metavrf.testing.limits import limits as known_limits
from metavrf.testing.settings import TEST_SEED, EvalSettings

RESTARTS = 2


def oracle_on(task: str, on: str, tasks: int, seed: int = TEST_SEED) -> dict[str, dict[str, Any]]:
    """The oracles of ``task`` on test tasks of another family: that of a mixture on one of its kinds."""
    episodes = test_tasks(Config.of(on), None, EvalSettings(tasks=tasks, seed=seed))
    known = known_limits(family(task))
    return {name: evaluate_learner(limit, episodes, seed).to_dict() for name, limit in known.items()}


def fitted_process(task: str, shot: int, tasks: int, seed: int = TEST_SEED) -> dict[str, Any]:
    """The better, by its marginal likelihood on the support, of RBF and RBF × periodic, for each test task."""
    episodes = test_tasks(Config.of(task), None, EvalSettings(tasks=tasks, shot=shot, seed=seed))
    if not isinstance(episodes, Episodes):
        raise UserError(f"{task} has tasks of unequal size: a fitted process is for a fixed number of shots")
    return evaluate_learner(Known(_fit), episodes, seed).to_dict()


def _fit(episodes: Episodes) -> Prediction:
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
