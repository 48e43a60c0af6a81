"""Views of a picture: itself, its mirror image, and it shifted a little. The mean of their features is less noisy.

A sample's views are made of that sample alone, so a protocol that is inductive stays so.
"""

from __future__ import annotations

from itertools import product
from typing import get_args

import torch
from torch import Tensor

from metavrf.errors import UserError
from metavrf.settings import Views

NEIGHBOURS = ((0, 0), (1, 0), (-1, 0), (0, 1), (0, -1))
SHIFT = 1 / 32  # of the side


def check_views(views: str) -> None:
    """Refuse a name that is not one of the views."""
    if views not in get_args(Views):
        raise UserError(f"views = {views!r} is unknown: choose from {', '.join(get_args(Views))}")


def views_of(images: Tensor, views: str) -> list[Tensor]:
    """``images [..., height, width]``, then as often changed as the ``views`` ask for."""
    check_views(views)
    flipped = [images, images.flip(-1)] if "flip" in views else [images]
    places = NEIGHBOURS if "shift" in views else NEIGHBOURS[:1]
    return [shifted(image, *place) for place, image in product(places, flipped)]


def shifted(images: Tensor, down: int, right: int) -> Tensor:
    """Pictures moved by a thirty-second of their side, at least a pixel, times ``down`` and ``right``; edges repeat."""
    if not down and not right:
        return images
    step = max(1, round(SHIFT * images.shape[-1]))
    rows, columns = (
        (torch.arange(length, device=images.device) - step * by).clamp(0, length - 1)
        for length, by in zip(images.shape[-2:], (down, right), strict=True)
    )
    return images[..., rows, :][..., columns]
