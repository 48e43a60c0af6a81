"""Pre-trained networks that make features of pictures, for models on ready features."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from functools import cache
from itertools import islice
from typing import TYPE_CHECKING

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from metavrf.errors import UserError
from metavrf.nn.deep import EfficientNetLite0, load_efficientnet_lite0
from metavrf.tasks.images import Preprocessing

if TYPE_CHECKING:
    from PIL import Image

BATCH = 64  # images at a time
NETWORK = "efficientnet-lite0"


@torch.inference_mode()
def picture_features(name: str, pictures: Sequence[Image.Image]) -> Tensor:
    """Features ``[N, d]`` of pictures of any size and mode, as a model on ready features takes them.

    ``name`` is the model's ``TaskSpec.embedder``, such as "efficientnet-lite0@160": the network and the side to
    which it resizes. Pictures are turned upright and cut to the square in their middle. Needs the extra 'deep'.
    """
    if not pictures:
        raise UserError("there is not a single picture to embed")
    network = picture_network(name)
    squares = (torch.from_numpy(_square(picture, network.resolution)).unsqueeze(0) for picture in pictures)
    return torch.cat([network.network(torch.cat(batch)) for batch in _batches(map(network.prepared, squares))])


def picture_network(name: str) -> EfficientNetLite0:
    """The network of a model's ``TaskSpec.embedder``."""
    by, _, resolution = name.partition("@")
    if by != NETWORK or not resolution.isdecimal() or int(resolution) < 1:
        raise UserError(f"{name!r} is no known network that makes features of pictures: it must be {NETWORK}@PIXELS")
    return _network(int(resolution))


def _batches(items: Iterable[Tensor]) -> Iterator[list[Tensor]]:
    """At most ``BATCH`` at a time."""
    rest = iter(items)
    while batch := list(islice(rest, BATCH)):
        yield batch


@cache
def _network(resolution: int) -> EfficientNetLite0:
    return load_efficientnet_lite0(resolution)


def _square(picture: Image.Image, most: int) -> NDArray[np.uint8]:
    """The middle of a picture as uint8 ``[3, side, side]``; a small one is left for the network to enlarge."""
    return np.array(Preprocessing(min(*picture.size, most)).pixels(picture))
