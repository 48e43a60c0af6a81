"""MetaVRF and what it is compared with: one learner a file, one interface."""

from __future__ import annotations

import torch

from metavrf.config import Config
from metavrf.learners.base import Learner
from metavrf.learners.metavrf import MetaVRF
from metavrf.learners.rff import RFF
from metavrf.nn.embeddings import make_embedding
from metavrf.randomness import stream
from metavrf.tasks.source import Description


def build(config: Config, data: Description | None = None) -> Learner:
    """A new learner for tasks as ``data`` describes them, its weights drawn from the configuration's seed."""
    data = Description() if data is None else data
    seed = config.training.seed
    regression = data.targets is not None
    with torch.random.fork_rng(devices=[]):  # layers of torch draw their weights from the global generator
        torch.manual_seed(stream(seed, "weights").initial_seed())
        embedding = make_embedding(data.inputs, config.embedding, regression=regression)
        bases = stream(seed, "bases")
        if config.learner == "rff":
            return RFF(embedding, embedding.features, config.model, regression=regression, generator=bases)
        return MetaVRF(embedding, embedding.features, config.model, targets=data.targets, generator=bases)
