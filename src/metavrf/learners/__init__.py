"""MetaVRF and what it is compared with: one learner a file, one interface."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import TypeVar

import torch

from metavrf.config import Config
from metavrf.errors import UserError
from metavrf.learners.base import Learner
from metavrf.learners.maml import MAML
from metavrf.learners.matching import Matching
from metavrf.learners.meta_sgd import MetaSGD
from metavrf.learners.metavrf import MetaVRF
from metavrf.learners.prototypical import Prototypical
from metavrf.learners.r2d2 import R2D2
from metavrf.learners.rbf import RBF
from metavrf.learners.relation import Relation
from metavrf.learners.rff import RFF
from metavrf.learners.shared import Shared
from metavrf.learners.versa import Versa
from metavrf.nn.embeddings import make_embedding
from metavrf.randomness import stream
from metavrf.tasks.source import Description

Class = TypeVar("Class", bound=type[Learner])

_LEARNERS: dict[str, type[Learner]] = {
    "metavrf": MetaVRF,
    "shared": Shared,
    "rff": RFF,
    "rbf": RBF,
    "maml": MAML,
    "meta-sgd": MetaSGD,
    "matching": Matching,
    "prototypical": Prototypical,
    "relation": Relation,
    "r2d2": R2D2,
    "versa": Versa,
}


def register_learner(name: str) -> Callable[[Class], Class]:
    """Make a learner of your own known by ``name``, for ``metavrf train --learner``."""

    def register(cls: Class) -> Class:
        known = _LEARNERS.get(name)
        if known is not None and (known.__module__, known.__qualname__) != (cls.__module__, cls.__qualname__):
            raise UserError(f"there is a learner {name!r} already: choose another name")
        _LEARNERS[name] = cls
        return cls

    return register


def learners() -> dict[str, type[Learner]]:
    """Every learner by its name."""
    return dict(_LEARNERS)


def learner_class(name: str) -> type[Learner]:
    """The learner of a name."""
    if name not in _LEARNERS:
        raise UserError(
            f"there is no learner {name!r}: choose from {', '.join(_LEARNERS)} (or name its --plugin, if it is yours)"
        )
    return _LEARNERS[name]


def sentence(cls: type[Learner]) -> str:
    """What a learner is, in one sentence: the first of its docstring."""
    return " ".join((inspect.getdoc(cls) or cls.__name__).split("\n\n")[0].split()).partition(". ")[0].rstrip(".") + "."


def build(config: Config, data: Description | None = None) -> Learner:
    """A new learner for tasks as ``data`` describes them, its weights drawn from the configuration's seed."""
    data = Description() if data is None else data
    cls = learner_class(config.learner)
    regression = data.targets is not None
    kind = "regression" if regression else "classification"
    if kind not in cls.solves:
        raise UserError(f"the learner {config.learner} is for {' and '.join(cls.solves)}, and {config.task} is {kind}")
    seed = config.training.seed
    with torch.random.fork_rng(devices=[]):  # layers of torch draw their weights from the global generator
        torch.manual_seed(stream(seed, "weights").initial_seed())
        embedding = make_embedding(data.inputs, config.embedding, regression=regression, maps=cls.maps)
        return cls.of(embedding, config, data, stream(seed, "bases"))
