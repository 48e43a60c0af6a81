"""MetaVRF: learning to learn kernels with variational random features (ICML 2020).

>>> import metavrf
>>> run = metavrf.train("sine", shot=5, out="runs/sine")      # doctest: +SKIP
>>> metavrf.evaluate("runs/sine").mean                        # doctest: +SKIP

Names are imported when first used, so ``import metavrf`` costs nothing.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from metavrf.api import compare, evaluate, load
    from metavrf.config import Config
    from metavrf.episodes import Episodes
    from metavrf.errors import UserError
    from metavrf.estimators import MetaVRFClassifier, MetaVRFRegressor
    from metavrf.evaluation import Evaluation
    from metavrf.learners import register_learner
    from metavrf.learners.base import Learner, Prediction
    from metavrf.learners.metavrf import MetaVRF
    from metavrf.learners.rff import RFF
    from metavrf.pack import save_pretrained
    from metavrf.plots import plot_fits
    from metavrf.run import Run
    from metavrf.tasks.functions import FunctionFamily, register_family
    from metavrf.training import train

_HOMES = {
    "Config": "config",
    "Episodes": "episodes",
    "Evaluation": "evaluation",
    "FunctionFamily": "tasks.functions",
    "Learner": "learners.base",
    "MetaVRF": "learners.metavrf",
    "MetaVRFClassifier": "estimators",
    "MetaVRFRegressor": "estimators",
    "Prediction": "learners.base",
    "RFF": "learners.rff",
    "Run": "run",
    "UserError": "errors",
    "compare": "api",
    "evaluate": "api",
    "load": "api",
    "plot_fits": "plots",
    "register_family": "tasks.functions",
    "register_learner": "learners",
    "save_pretrained": "pack",
    "train": "training",
}
__all__ = [  # noqa: RUF022 - as in _HOMES
    "Config",
    "Episodes",
    "Evaluation",
    "FunctionFamily",
    "Learner",
    "MetaVRF",
    "MetaVRFClassifier",
    "MetaVRFRegressor",
    "Prediction",
    "RFF",
    "Run",
    "UserError",
    "compare",
    "evaluate",
    "load",
    "plot_fits",
    "register_family",
    "register_learner",
    "save_pretrained",
    "train",
]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'metavrf' has no attribute {name!r}")
    value = globals()[name] = getattr(import_module(f"metavrf.{_HOMES[name]}"), name)
    return value


def __dir__() -> list[str]:
    return __all__
