"""MetaVRF and what it is compared with: one learner a file, one interface."""

from __future__ import annotations

import torch

from metavrf.config import Config
from metavrf.learners.base import Learner
from metavrf.learners.metavrf import MetaVRF
from metavrf.learners.rff import RFF
from metavrf.nn.mlp import MLP
from metavrf.randomness import stream

EMBEDDING_SIZES = (1, 40, 40)  # Table fcn-reg


def build(config: Config) -> Learner:
    """A new learner, its weights drawn from the configuration's seed."""
    seed = config.training.seed
    with torch.random.fork_rng(devices=[]):  # layers of torch draw their weights from the global generator
        torch.manual_seed(stream(seed, "weights").initial_seed())
        embedding, features = MLP(EMBEDDING_SIZES), EMBEDDING_SIZES[-1]
        bases = stream(seed, "bases")
        if config.learner == "rff":
            return RFF(embedding, features, config.model, regression=True, generator=bases)
        return MetaVRF(embedding, features, config.model, targets=1, generator=bases)
