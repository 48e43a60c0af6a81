"""Seeded random streams: no global random state, and nothing to save for a resumed run.

Every draw comes from a generator made of the run's seed, a purpose and a counter (the step). A run that
resumes at step n draws what it would have drawn, and training, validation and test tasks never share numbers.
"""

from __future__ import annotations

import numpy as np
import torch

from metavrf.errors import UserError

_PURPOSES = ("weights", "bases", "train", "draws", "validation", "test", "figure", "dropout", "sweep")


def stream(seed: int, purpose: str, counter: int = 0) -> torch.Generator:
    """A generator for one purpose at one point of a run."""
    if seed < 0:
        raise UserError(f"seed = {seed} must not be negative")
    entropy = (seed, _PURPOSES.index(purpose), counter)
    word = np.random.SeedSequence(entropy).generate_state(1, np.uint64)[0]
    return torch.Generator().manual_seed(int(word) >> 1)
