"""Pictures of one's own: what they are, and how they are opened."""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from metavrf.errors import UserError
from metavrf.tasks.images import open_picture

if TYPE_CHECKING:
    from PIL import Image

Picture = Any  # a path, a Pillow image, or an array [height, width] or [height, width, channels]
ENOUGH = 512  # pixels of a photograph's shorter side: more are never looked at by a network
LOOKED_AT = 40  # pictures from which is told what kind they all are


def are_pictures(samples: Any) -> bool:
    """Whether samples are pictures (paths, Pillow images, arrays of two axes or more), rather than rows of numbers."""
    from PIL import Image

    if hasattr(samples, "ndim"):
        return samples.ndim > 2 or (samples.ndim == 1 and np.asarray(samples).dtype.kind in "OUS")
    if not isinstance(samples, Sequence) or isinstance(samples, str) or not len(samples):
        return False
    return isinstance(samples[0], str | os.PathLike | Image.Image) or getattr(samples[0], "ndim", 0) > 1


def as_image(picture: Any) -> Image.Image:
    """A Pillow image of one, or of an array as of a picture file: 0 is black; whole numbers to 255, or floats to 1."""
    from PIL import Image

    if isinstance(picture, Image.Image):
        return picture
    array = np.asarray(picture)
    array = array[..., 0] if array.ndim == 3 and array.shape[2] == 1 else array
    if array.dtype.kind not in "buif" or array.ndim not in (2, 3) or (array.ndim == 3 and array.shape[2] not in (3, 4)):
        raise UserError(
            f"a picture must be [height, width] or [height, width, 3], not {list(array.shape)} of {array.dtype}"
        )
    top = 1.0 if array.dtype.kind in "bf" else 255
    if array.size == 0 or not (array.min() >= 0 and array.max() <= top):
        raise UserError(f"a picture of {array.dtype} must hold values from 0 to {top:g}, and at least one")
    return Image.fromarray((array * (255 / top)).round().astype(np.uint8))


def opened(picture: Picture) -> Image.Image:
    """A picture of any kind as an upright Pillow image, a very large one at a fraction of its size."""
    from PIL import ImageOps

    if not isinstance(picture, str | os.PathLike):
        return as_image(picture)
    with open_picture(Path(picture), str(picture), "RGB", ENOUGH // 2) as file:
        image = ImageOps.exif_transpose(file)
    factor = min(image.size) // ENOUGH
    return image.reduce(factor) if factor > 1 and image.mode in ("RGB", "RGBA", "L", "LA") else image


def in_parallel(function: Callable[[Picture], Any], pictures: Iterable[Picture]) -> list[Any]:
    """What a function makes of each picture."""
    with (
        warnings.catch_warnings(action="ignore"),  # of odd metadata; here, for it is not safe in threads
        ThreadPoolExecutor(min(8, os.cpu_count() or 1)) as pool,
    ):
        return list(pool.map(function, pictures))


def fitting_model(pictures: Sequence[Picture]) -> tuple[str, str]:
    """The shipped model for pictures of that kind, and why it is: by most of some pictures spread over them."""
    step = max(1, len(pictures) // LOOKED_AT)
    drawn = [is_drawing(image) for image in in_parallel(opened, pictures[::step])]
    if 2 * sum(drawn) > len(drawn):
        return "omniglot", "the pictures are drawings: dark ink on bright paper, without colour"
    return "photos", "the pictures are no drawings, dark ink on bright paper without colour, but photographs"


def is_drawing(image: Image.Image) -> bool:
    """Whether a picture has no colour and is mostly bright paper with some dark ink."""
    small = image.convert("RGBA" if image.has_transparency_data else "RGB")
    small.thumbnail((64, 64))
    pixels = np.asarray(small, dtype=np.float64)
    if pixels.shape[2] == 4:  # what is transparent is paper
        pixels = 255 - (255 - pixels[..., :3]) * pixels[..., 3:] / 255
    colour = np.ptp(pixels, axis=2).mean()
    light = pixels.mean(2)
    paper, ink = light > 200, light < 140
    return bool(colour < 8 and paper.mean() > 0.5 and ink.any() and (paper | ink).mean() > 0.7)
