"""Small learners with an inner loop, tasks for them, and the gradients of a loss."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from metavrf.episodes import Episodes
from metavrf.learners.maml import MAML, InnerLoop
from metavrf.nn.embeddings import ConvNet
from metavrf.nn.mlp import MLP
from metavrf.spec import TaskSpec
from metavrf.tasks.functions import family


class Smooth(MLP):
    """Fully connected layers without kinks, so that finite differences are exact enough."""

    def forward(self, x: Tensor, own: int | None = None, views: str = "one") -> Tensor:
        for layer in self:
            x = layer(x) if isinstance(layer, nn.Linear) else torch.tanh(x)
        return x


def sine(shot: int = 5, seed: int = 0) -> Episodes:
    episodes = family("sine").sample(4, shot, 6, torch.Generator().manual_seed(seed))
    assert episodes.query_y is not None
    return Episodes(
        episodes.support_x.double(), episodes.support_y.double(), episodes.query_x.double(), episodes.query_y.double()
    )


def curve_learner(kind: type[MAML], **settings: Any) -> MAML:
    torch.manual_seed(5)
    inner = InnerLoop(**{"inner_steps": 2, "inner_lr": 0.05, **settings})
    return kind(Smooth((1, 6, 5)), TaskSpec(), inner).double()


def pictures(way: int = 3, tasks: int = 3, seed: int = 0) -> Episodes:
    generator = torch.Generator().manual_seed(seed)
    support_y = torch.arange(way).repeat(2).expand(tasks, -1)
    query_y = torch.arange(way).repeat(4).expand(tasks, -1)
    support, query = (
        torch.randint(0, 256, (tasks, y.shape[1], 1, 9, 9), dtype=torch.uint8, generator=generator)
        for y in (support_y, query_y)
    )
    return Episodes(support, support_y, query, query_y, way)


def picture_learner(kind: type[MAML], **settings: Any) -> MAML:
    torch.manual_seed(6)
    inner = InnerLoop(**{"inner_steps": 2, "inner_lr": 0.3, **settings})
    return kind(ConvNet((1, 9, 9), blocks=2, channels=4), TaskSpec((1, 9, 9), None, way=3), inner)


def gradients(learner: MAML, loss: Tensor) -> dict[str, Tensor]:
    learner.zero_grad()
    loss.backward()
    return {name: p.grad.clone() for name, p in learner.named_parameters() if p.grad is not None}
