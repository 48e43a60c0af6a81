"""How classes are divided into training, validation and test classes."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

Split = dict[str, list[str]]
"""Class names of ``train``, ``val`` and ``test``."""

PARTS = ("train", "val", "test")


def divide(names: Sequence[str], sizes: Sequence[int], seed: int) -> Split:
    """Divide classes at random into parts of these sizes."""
    order = np.random.default_rng(seed).permutation(len(names))
    ends = np.cumsum(sizes)
    return {
        part: [names[index] for index in sorted(order[end - size : end])]
        for part, size, end in zip(PARTS, sizes, ends, strict=True)
    }
