"""Augmentation of training images: batched, seeded, exact on uint8."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

PADDING = 1 / 8  # of the side, as is usual for 32 x 32 pictures (4 pixels)


def crop_and_flip(images: Tensor, generator: torch.Generator) -> Tensor:
    """Shift each image of ``[..., channels, side, side]`` by up to an eighth, mirroring the edge, and flip half."""
    flat = images.flatten(0, -4)
    count, channels, side = flat.shape[0], flat.shape[1], flat.shape[-1]
    padding = max(1, round(PADDING * side))
    padded = F.pad(flat.float(), [padding] * 4, mode="reflect").to(flat.dtype)
    rows, columns = torch.randint(2 * padding + 1, (2, count, 1), generator=generator) + torch.arange(side)
    flipped = torch.rand(count, 1, generator=generator) < 0.5
    columns = torch.where(flipped, columns.flip(1), columns)
    sample, channel = torch.arange(count).view(-1, 1, 1, 1), torch.arange(channels).view(1, -1, 1, 1)
    return padded[sample, channel, rows[:, None, :, None], columns[:, None, None, :]].view(images.shape)
