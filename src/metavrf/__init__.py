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
    from metavrf.config import Config
    from metavrf.episodes import Episodes
    from metavrf.errors import UserError
    from metavrf.estimators import MetaVRFClassifier, MetaVRFRegressor
    from metavrf.learners import register_learner
    from metavrf.learners.base import Learner
    from metavrf.learners.head import of_logits, of_normals
    from metavrf.learners.metavrf import MetaVRF, MetaVRFSettings
    from metavrf.learners.rff import RFF
    from metavrf.model import TrainedModel, load
    from metavrf.nn.embeddings import Embedding, EmbeddingSettings, register_embedding
    from metavrf.plots import plot_fits
    from metavrf.prediction import Prediction
    from metavrf.protocol import Protocol
    from metavrf.release.pack import save_pretrained
    from metavrf.runs.directory import Run
    from metavrf.runs.training import train
    from metavrf.settings import Range
    from metavrf.spec import TaskSpec
    from metavrf.studies.sweep import sweep
    from metavrf.tasks.datasets import NamedSet, register_dataset
    from metavrf.tasks.functions import FunctionFamily, register_family
    from metavrf.tasks.images import Preprocessing
    from metavrf.testing.compare import compare
    from metavrf.testing.evaluate import evaluate
    from metavrf.testing.evaluation import Evaluation
    from metavrf.testing.settings import EvalSettings

_HOMES = {
    "Config": "config",
    "Embedding": "nn.embeddings",
    "EmbeddingSettings": "nn.embeddings",
    "Episodes": "episodes",
    "EvalSettings": "testing.settings",
    "Evaluation": "testing.evaluation",
    "FunctionFamily": "tasks.functions",
    "Learner": "learners.base",
    "MetaVRF": "learners.metavrf",
    "MetaVRFClassifier": "estimators",
    "MetaVRFRegressor": "estimators",
    "MetaVRFSettings": "learners.metavrf",
    "NamedSet": "tasks.datasets",
    "Prediction": "prediction",
    "Preprocessing": "tasks.images",
    "Protocol": "protocol",
    "RFF": "learners.rff",
    "Range": "settings",
    "Run": "runs.directory",
    "TaskSpec": "spec",
    "TrainedModel": "model",
    "UserError": "errors",
    "compare": "testing.compare",
    "evaluate": "testing.evaluate",
    "load": "model",
    "of_logits": "learners.head",
    "of_normals": "learners.head",
    "plot_fits": "plots",
    "register_dataset": "tasks.datasets",
    "register_embedding": "nn.embeddings",
    "register_family": "tasks.functions",
    "register_learner": "learners",
    "save_pretrained": "release.pack",
    "sweep": "studies.sweep",
    "train": "runs.training",
}
__all__ = [  # noqa: RUF022 - as in _HOMES
    "Config",
    "Embedding",
    "EmbeddingSettings",
    "Episodes",
    "EvalSettings",
    "Evaluation",
    "FunctionFamily",
    "Learner",
    "MetaVRF",
    "MetaVRFClassifier",
    "MetaVRFRegressor",
    "MetaVRFSettings",
    "NamedSet",
    "Prediction",
    "Preprocessing",
    "Protocol",
    "RFF",
    "Range",
    "Run",
    "TaskSpec",
    "TrainedModel",
    "UserError",
    "compare",
    "evaluate",
    "load",
    "of_logits",
    "of_normals",
    "plot_fits",
    "register_dataset",
    "register_embedding",
    "register_family",
    "register_learner",
    "save_pretrained",
    "sweep",
    "train",
]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'metavrf' has no attribute {name!r}")
    value = globals()[name] = getattr(import_module(f"metavrf.{_HOMES[name]}"), name)
    return value


def __dir__() -> list[str]:
    return __all__
