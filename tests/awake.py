"""Networks as after some training: their Gaussians start at N(0, I), which would make many a claim hold for nothing."""

from __future__ import annotations

import math
from typing import TypeVar

from torch import nn

from metavrf.learners.head import RidgeHead
from metavrf.learners.kernel import KernelLearner
from metavrf.nn.mlp import GaussianMLP

Module = TypeVar("Module", bound=nn.Module)


def awake(module: Module) -> Module:
    """Give the last layers of all Gaussians weights of the size that layers start with."""
    for network in module.modules():
        if isinstance(network, GaussianMLP):
            bound = 1 / math.sqrt(network.weights[-1].shape[1])
            nn.init.uniform_(network.weights[-1], -bound, bound)
            nn.init.uniform_(network.biases[-1], -bound, bound)
    return module


def ridge_head(learner: KernelLearner) -> RidgeHead:
    """The head of a learner with one kernel a task."""
    assert isinstance(learner.head, RidgeHead)
    return learner.head
