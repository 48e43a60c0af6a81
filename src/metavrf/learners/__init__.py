"""MetaVRF and what it is compared with: one learner per file, one interface."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any, TypeVar

import torch

from metavrf.errors import UserError
from metavrf.learners.activations import Activations
from metavrf.learners.base import Learner
from metavrf.learners.cavia import Cavia
from metavrf.learners.classifier import Classifier
from metavrf.learners.cnp import CNP
from metavrf.learners.csn import CSN
from metavrf.learners.dynamic import Dynamic
from metavrf.learners.gnn import GNN
from metavrf.learners.imaml import IMAML
from metavrf.learners.imp import IMP
from metavrf.learners.kshot import KShot
from metavrf.learners.leo import LEO
from metavrf.learners.maml import MAML
from metavrf.learners.matching import Matching
from metavrf.learners.meta_lstm import MetaLSTM
from metavrf.learners.meta_sgd import MetaSGD
from metavrf.learners.metavrf import MetaVRF
from metavrf.learners.platipus import Platipus
from metavrf.learners.prototypical import Prototypical
from metavrf.learners.r2d2 import R2D2
from metavrf.learners.rbf import RBF
from metavrf.learners.relation import Relation
from metavrf.learners.rff import RFF
from metavrf.learners.shared import Shared
from metavrf.learners.siamese import Siamese
from metavrf.learners.snail import SNAIL
from metavrf.learners.tadam import TADAM
from metavrf.learners.tnp import TNP
from metavrf.learners.versa import Versa
from metavrf.nn.embeddings import make_embedding
from metavrf.randomness import stream
from metavrf.registry import Registry
from metavrf.spec import TaskSpec

Class = TypeVar("Class", bound=type[Learner])

LEARNERS: Registry[type[Learner]] = Registry("learner")


def register_learner(name: str) -> Callable[[Class], Class]:
    """Make a learner of your own known by ``name``, for ``metavrf train --learner``."""

    def register(cls: Class) -> Class:
        LEARNERS.add(name, cls)
        return cls

    return register


_OWN: dict[str, type[Learner]] = {
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
    "classifier": Classifier,
    "siamese": Siamese,
    "snail": SNAIL,
    "gnn": GNN,
    "imp": IMP,
    "tnp": TNP,
    "cnp": CNP,
    "csn": CSN,
    "leo": LEO,
    "activations": Activations,
    "kshot": KShot,
    "dynamic": Dynamic,
    "tadam": TADAM,
    "platipus": Platipus,
    "cavia": Cavia,
    "imaml": IMAML,
    "meta-lstm": MetaLSTM,
}
for _name, _class in _OWN.items():
    LEARNERS.add(_name, _class)
LEARNERS.seal()


def sentence(cls: type[Learner]) -> str:
    """What a learner is, in one sentence: the first of its docstring."""
    return " ".join((inspect.getdoc(cls) or cls.__name__).split("\n\n")[0].split()).partition(". ")[0].rstrip(".") + "."


def build(
    name: str, embedding: Any, spec: TaskSpec, settings: Any, seed: int, *, classify_weight: float = 0.0
) -> Learner:
    """A new learner for tasks as ``spec`` says, its weights drawn from the seed.

    ``embedding`` are the settings of the network before it, and ``settings`` the learner's own. ``classify_weight`` is
    that of a classifier of the training classes, if it is to have one.
    """
    cls = LEARNERS[name]
    kind = "regression" if spec.regression else "classification"
    if kind not in cls.solves:
        raise UserError(f"the learner {name} is for {' and '.join(cls.solves)}, and these tasks are {kind}")
    with torch.random.fork_rng(devices=[]):  # layers of torch draw their weights from the global generator
        torch.manual_seed(stream(seed, "weights").initial_seed())
        network = make_embedding(spec.inputs, embedding, maps=cls.maps)
        learner = cls(network, spec, settings, generator=stream(seed, "bases"))
        if classify_weight:
            learner.classify(classify_weight)
        return learner
