"""Augmentation of training images: batched over all images of a step, seeded."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

PADDING = 1 / 8  # of the side, as is usual for pictures of 32 pixels (4 of them)
SMALLEST_CUT, LARGEST_HOLE, JITTER = 0.6, 0.5, 0.4  # of the side; and of brightness, contrast and saturation
TURN, STRETCH, SHIFT = math.radians(10), 0.1, 0.1  # largest rotation, change of scale and shear, and shift


def crop_and_flip(images: Tensor, generator: torch.Generator) -> Tensor:
    """Shift each image of ``[..., channels, side, side]`` by up to an eighth, mirroring the edge, and flip half."""
    flat = images.flatten(0, -4).flatten(2)  # [N, channels, side * side]
    count, side = len(flat), images.shape[-1]
    reach = max(1, round(PADDING * side))
    shift = torch.randint(-reach, reach + 1, (2, count, 1), generator=generator)
    rows, columns = (shift + torch.arange(side)).abs()  # [N, side] each, mirrored at the near edge
    rows, columns = (torch.minimum(index, 2 * (side - 1) - index) for index in (rows, columns))  # and at the far one
    flipped = torch.rand(count, 1, generator=generator) < 0.5
    columns = torch.where(flipped, columns.flip(1), columns)
    pixel = (side * rows.unsqueeze(2) + columns.unsqueeze(1)).flatten(1)  # [N, side * side]
    return flat.gather(2, pixel.unsqueeze(1).expand_as(flat)).view(images.shape)


def affine(images: Tensor, generator: torch.Generator) -> Tensor:
    """Turn, stretch, shear and shift each image of ``[..., channels, side, side]`` a little, as hands do."""
    flat = images.flatten(0, -4).float()
    turn, stretch_x, stretch_y, shear, shift_x, shift_y = 2 * torch.rand(6, len(flat), generator=generator) - 1
    cosine, sine = torch.cos(TURN * turn), torch.sin(TURN * turn)
    stretch_x, stretch_y = 1 + STRETCH * stretch_x, 1 + STRETCH * stretch_y
    first = torch.stack([cosine * stretch_x, sine * stretch_y + STRETCH * shear, 2 * SHIFT * shift_x], dim=-1)
    second = torch.stack([-sine * stretch_x, cosine * stretch_y, 2 * SHIFT * shift_y], dim=-1)
    grid = F.affine_grid(torch.stack([first, second], dim=1), list(flat.shape), align_corners=False)
    moved = F.grid_sample(flat, grid, mode="bilinear", padding_mode="zeros", align_corners=False)
    return moved.round().to(images.dtype).view(images.shape)


def photographed_anew(images: Tensor, generator: torch.Generator) -> Tensor:
    """Cut a square out of each image of ``[..., channels, side, side]``, flip half, change light, cover a part."""
    flat = images.flatten(0, -4).float()
    count, side = len(flat), flat.shape[-1]
    cut, right, down, flip, *light = torch.rand(7, count, generator=generator)
    cut = SMALLEST_CUT + (1 - SMALLEST_CUT) * cut
    zero = torch.zeros_like(cut)
    first = torch.stack([torch.where(flip < 0.5, -cut, cut), zero, (1 - cut) * (2 * right - 1)], dim=-1)
    second = torch.stack([zero, cut, (1 - cut) * (2 * down - 1)], dim=-1)
    grid = F.affine_grid(torch.stack([first, second], dim=1), list(flat.shape), align_corners=False)
    flat = F.grid_sample(flat, grid, mode="bilinear", padding_mode="border", align_corners=False)
    brightness, contrast, saturation = (1 + JITTER * (2 * torch.stack(light) - 1))[..., None, None, None]
    grey = flat.mean(1, keepdim=True)
    level = grey.mean((2, 3), keepdim=True)
    flat = brightness * (level + contrast * (grey + saturation * (flat - grey) - level))
    height, width, top, left = torch.rand(4, count, 1, generator=generator)
    place = (torch.arange(side) + 0.5) / side
    rows, columns = (
        (place >= start * (1 - extent)) & (place < start * (1 - extent) + extent)
        for start, extent in ((top, LARGEST_HOLE * height), (left, LARGEST_HOLE * width))
    )
    hole = (rows.unsqueeze(2) & columns.unsqueeze(1)).unsqueeze(1)
    flat = torch.where(hole, brightness * level, flat)
    return flat.round().clamp(0, 255).to(images.dtype).view(images.shape)


AUGMENTATIONS: dict[str, Callable[[Tensor, torch.Generator], Tensor]] = {
    "crop-flip": crop_and_flip,
    "affine": affine,
    "photo": photographed_anew,
}
