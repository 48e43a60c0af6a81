"""A classifier of all training classes: what several methods learn from beside their tasks."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from metavrf.episodes import Episodes
from metavrf.errors import UserError

COSINE_SCALE = 10.0  # at the start; it is learned


class ClassHead(nn.Module):
    """Logits of every training class, linear in the features or their cosine with the class's weight times a scale.

    The cosine (Gidaris & Komodakis 2018) leaves features of a class close in angle, as the nearest class mean wants it.
    """

    def __init__(self, features: int, classes: int, *, cosine: bool = True) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(classes, features) / math.sqrt(features))
        self.bias = None if cosine else nn.Parameter(torch.zeros(classes))
        self.log_scale = nn.Parameter(torch.tensor(math.log(COSINE_SCALE))) if cosine else None

    def forward(self, z: Tensor) -> Tensor:
        """Logits ``[..., classes]`` of features ``z [..., d]``."""
        if self.log_scale is None:
            return F.linear(z, self.weight, self.bias)
        return self.log_scale.exp() * F.linear(F.normalize(z, dim=-1), F.normalize(self.weight, dim=-1))

    def loss(self, episodes: Episodes) -> Tensor:
        """Cross entropy of all samples of embedded training tasks, support and queries alike."""
        z, labels = training_samples(episodes)
        return F.cross_entropy(self(z), labels)


def training_samples(episodes: Episodes) -> tuple[Tensor, Tensor]:
    """Features ``[N, d]`` of all samples of embedded training tasks, and the numbers of their training classes."""
    if episodes.classes is None or episodes.query_y is None:
        raise UserError("a classifier of the training classes learns from training tasks of classes")
    z = torch.cat([episodes.support_x, episodes.query_x], dim=1)
    own = torch.cat([episodes.support_y, episodes.query_y], dim=1)
    return z.flatten(0, 1), episodes.classes.gather(1, own).flatten()
