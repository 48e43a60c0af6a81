"""Tasks on ready features for tests: classes overlap, so that probabilities are moderate."""

from __future__ import annotations

import torch

from metavrf.episodes import Episodes
from metavrf.spec import TaskSpec

TASKS, WAY, FEATURES, QUERIES, TRAIN_CLASSES = 3, 4, 6, 8, 9
SUPPORT_Y = torch.tensor([0, 1, 1, 2, 2, 2, 3, 3, 0, 1])  # unequal shots: 2, 3, 3, 2
SPEC = TaskSpec((FEATURES,), None, way=WAY, train_classes=TRAIN_CLASSES)


def tasks(*, training: bool = False, draw: int = 0) -> Episodes:
    """Tasks of four of nine classes; ``training`` tasks know which."""
    centres = torch.randn(TRAIN_CLASSES, FEATURES, generator=torch.Generator().manual_seed(3))
    generator = torch.Generator().manual_seed(draw)
    classes = torch.stack([torch.randperm(TRAIN_CLASSES, generator=generator)[:WAY] for _ in range(TASKS)])
    support_y = SUPPORT_Y.expand(TASKS, -1)
    query_y = torch.arange(WAY).repeat(QUERIES)[:QUERIES].expand(TASKS, -1)
    support_x, query_x = (
        centres[classes.gather(1, y)] + 0.6 * torch.randn(*y.shape, FEATURES, generator=generator)
        for y in (support_y, query_y)
    )
    return Episodes(support_x, support_y, query_x, query_y, WAY, classes=classes if training else None)
