"""Small tasks on ready features, of classes and of curves, for learners beside slow references."""

from __future__ import annotations

import torch

from metavrf.episodes import Episodes


def classes(*, tasks: int = 2, way: int = 3, shot: int = 2, query: int = 4, size: int = 5, seed: int = 3) -> Episodes:
    """Classes that overlap, so that probabilities are moderate; queries of all classes in turn."""
    generator = torch.Generator().manual_seed(seed)
    centres = torch.randn(tasks, way, size, generator=generator)
    support_y, query_y = torch.arange(way).repeat(shot), torch.arange(way).repeat(query)[:query]
    support_x, query_x = (
        centres[:, y] + 0.6 * torch.randn(tasks, len(y), size, generator=generator) for y in (support_y, query_y)
    )
    return Episodes(support_x, support_y.expand(tasks, -1), query_x, query_y.expand(tasks, -1), way)


def curves(
    *, tasks: int = 2, shot: int = 4, query: int = 3, inputs: int = 2, outputs: int = 2, seed: int = 3
) -> Episodes:
    """Sums of sines of several inputs and outputs."""
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(tasks, shot + query, inputs, generator=generator)
    y = torch.sin(x @ torch.randn(tasks, inputs, outputs, generator=generator))
    (support_x, query_x), (support_y, query_y) = (v.split([shot, query], dim=1) for v in (x, y))
    return Episodes(support_x, support_y, query_x, query_y)
