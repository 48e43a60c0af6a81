"""A trained model as one uses it: pictures or arrays of one's own in, the features it was trained on out."""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from metavrf import api
from metavrf.errors import UserError
from metavrf.evaluation import IMAGES_AT_ONCE
from metavrf.learners.base import Learner
from metavrf.run import Run
from metavrf.tasks.images import Preprocessing, open_picture
from metavrf.tasks.source import Description, preprocessing

if TYPE_CHECKING:
    from PIL import Image

Picture = Any  # a path, a Pillow image, or an array [height, width] or [height, width, channels]
ENOUGH = 512  # pixels of a photograph's shorter side: more are never looked at by a network
LOOKED_AT = 40  # pictures from which is told what kind they all are


@dataclass(frozen=True, eq=False)
class Pretrained:
    """A learner and what it must be given."""

    run: Run
    learner: Learner
    description: Description
    preprocessing: Preprocessing | None
    """Of pictures, where the learner embeds them itself."""

    @property
    def name(self) -> str:
        """As a user knows it."""
        return str(self.run.path.name)

    @property
    def columns(self) -> tuple[int, ...]:
        """Widths of a table that it takes: its inputs, or features as it makes them itself."""
        inputs = self.description.inputs
        return inputs if len(inputs) == 1 else (int(getattr(self.learner.embedding, "features", 0)),)

    def of_table(self, table: NDArray[Any]) -> Tensor:
        """Features ``[N, d]`` of rows of numbers."""
        if table.shape[1] not in self.columns:
            raise UserError(
                f"X has {table.shape[1]} columns, but {self.name} takes {self.columns[0]}"
                + ("" if len(self.description.inputs) == 1 else ", the features of its embedding; or pictures")
            )
        rows = torch.tensor(table, dtype=torch.float32)
        return self.embed(rows) if len(self.description.inputs) == 1 else rows

    def of_pictures(self, pictures: Sequence[Picture]) -> Tensor:
        """Features ``[N, d]`` of pictures."""
        if self.preprocessing is not None:
            return self.embed(torch.from_numpy(np.stack(_parallel(self.preprocessed, pictures))))
        if not self.description.embedder:
            raise UserError(f"{self.name} takes {' x '.join(map(str, self.columns))} numbers a sample, not pictures")
        from metavrf.features import BATCH, picture_features

        chunks = (pictures[start : start + BATCH] for start in range(0, len(pictures), BATCH))
        features = [picture_features(self.description.embedder, _parallel(opened, chunk)) for chunk in chunks]
        return self.embed(torch.cat(features))

    def preprocessed(self, picture: Picture) -> NDArray[np.uint8]:
        """One picture as the embedding was trained on."""
        assert self.preprocessing is not None
        if isinstance(picture, str | os.PathLike):
            return self.preprocessing.decode(Path(picture), str(picture))
        return self.preprocessing.pixels(as_image(picture))

    @torch.no_grad()
    def embed(self, inputs: Tensor) -> Tensor:
        """Features by the learner's own embedding."""
        embedding = self.learner.embedding
        return torch.cat([embedding(chunk.unsqueeze(0)).squeeze(0) for chunk in inputs.split(IMAGES_AT_ONCE)])


def pretrained(model: api.PathLike, bases: int | None = None, draw: int | None = None) -> Pretrained:
    """A shipped model by its name, or a run; the same object as long as its file is the same."""
    run = Run.open(model)
    stamp = run.model_file.stat().st_mtime_ns if run.model_file.exists() else 0
    return _load(str(run.path), stamp, bases, draw)


@lru_cache(maxsize=4)
def _load(path: str, _stamp: int, bases: int | None, draw: int | None) -> Pretrained:
    run = Run.open(path)
    description, config = api.describe(run), run.config()
    learner = api.load(path, bases=bases, draw=draw)
    if not getattr(learner, "embeds_alone", True):
        raise UserError(f"{path} changes its network for each task ({config.learner}): it has no features to keep")
    how = preprocessing(config.task, config.data) if len(description.inputs) == 3 else None
    if how is not None and how.shape != tuple(description.inputs):
        raise UserError(f"{path} was trained on pictures of another size than its settings say: {description.inputs}")
    return Pretrained(run, learner.requires_grad_(False), description, how)


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


def _parallel(function: Callable[[Picture], Any], pictures: Iterable[Picture]) -> list[Any]:
    with (
        warnings.catch_warnings(action="ignore"),  # of odd metadata; here, for it is not safe in threads
        ThreadPoolExecutor(min(8, os.cpu_count() or 1)) as pool,
    ):
        return list(pool.map(function, pictures))


def fitting_model(pictures: Sequence[Picture]) -> tuple[str, str]:
    """The shipped model for pictures of that kind, and why it is: by most of some pictures spread over them."""
    step = max(1, len(pictures) // LOOKED_AT)
    drawn = [is_drawing(image) for image in _parallel(opened, pictures[::step])]
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
