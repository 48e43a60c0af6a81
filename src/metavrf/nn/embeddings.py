"""Embeddings ψ of images: the paper's convolutional networks, and two residual ones.

Images come as ``[T, N, channels, height, width]``, uint8 or float in 0..1, and leave as features ``[T, N, d]``. All
keep channels last, which is what makes convolutions fast on a CPU.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, TypeVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from metavrf.errors import UserError
from metavrf.nn.dropout import dropout
from metavrf.nn.mlp import MLP, Raw
from metavrf.nn.normalisation import Normalisation, Own
from metavrf.nn.pooling import max_pool
from metavrf.nn.views import views_of
from metavrf.registry import Registry
from metavrf.settings import Count, Natural, Share, added

FUNCTION_SIZES = (40, 40)  # Table fcn-reg
POOLED_FOR_MAPS = 2


@dataclass(frozen=True)
class EmbeddingSettings:
    """The network that turns a sample into features."""

    embedding: str = "conv4"
    """Of pictures: conv4 or conv5, the four or five blocks of the paper's tables, resnet12 or wrn28-10. Of functions:
    mlp, two layers of 40 as in the paper's table, or raw, the input as it is. Of ready features: ready. Or one of your
    own (--plugin)."""
    channels: Count = 64
    """Channels of conv4 and conv5."""
    last_channels: Natural = added(0, before=0)
    """Channels of the last block of conv4 and conv5, to which they grow from the second block on: later blocks see
    smaller maps, so width costs little there. 0 for as many as --channels."""
    dropout: Share = 0.0
    """Share of activations dropped after each block while training."""
    project: Natural = 0
    """Map ready features to this many, if they are more, by a learned linear map; 0 to leave them as they are."""

    def check(self) -> None:
        """Refuse a name that is not known."""
        EMBEDDINGS[self.embedding]


@dataclass(frozen=True)
class EmbeddingEntry:
    """How an embedding is made, and of what kind of samples: "pictures" or "numbers"."""

    make: Callable[..., Any]
    takes: str


EMBEDDINGS: Registry[EmbeddingEntry] = Registry("embedding")
Make = TypeVar("Make", bound=Callable[..., Any])


def register_embedding(name: str, *, takes: str = "pictures") -> Callable[[Make], Make]:
    """Make an embedding of your own known by ``name``, for ``metavrf train --embedding``.

    What is registered is called as ``make(inputs, settings, maps=False)`` with the shape of a sample and the
    :class:`EmbeddingSettings`; it returns a module with ``features``, such as an :class:`Embedding`.
    """
    if takes not in ("pictures", "numbers"):
        raise UserError(f"{takes=} is not a kind of samples: give pictures or numbers")

    def register(make: Make) -> Make:
        EMBEDDINGS.add(name, EmbeddingEntry(make, takes))
        return make

    return register


class Embedding(nn.Module):
    """A network on single images; ``features`` is the size d of what it returns, ``shape`` its maps' before flattening.

    The shape is (d, 1, 1) where there are no maps.
    """

    shape: tuple[int, int, int]
    channels_last: bool = True  # to be switched off under vmap, which does not know of it
    mixed: bool = False  # whether to train in bfloat16 where that is safe

    @property
    def features(self) -> int:
        """The size d of what it returns."""
        channels, height, width = self.shape
        return channels * height * width

    def forward(self, x: Tensor, own: int | None = None, views: str = "one") -> Tensor:
        """Features of ``x [T, N, ...]``; at test time the mean over an image's ``views``.

        ``own`` asks for normalisation by each task's first ``own`` samples, rather than by running statistics.
        """
        layout = None if own is None else Own(x.shape[0], own)
        images = x.flatten(0, 1)
        if self.training or views == "one":
            features = self._converted(images, layout)
        else:
            features = torch.stack([self._converted(view, layout) for view in views_of(images, views)]).mean(0)
        return features.unflatten(0, x.shape[:2])

    def _converted(self, images: Tensor, own: Own | None) -> Tensor:
        if self.channels_last:
            images = images.to(memory_format=torch.channels_last)
        if not images.is_floating_point():
            images = images.float() / 255
        if not (self.mixed and self.training):
            return self.network(images, own)
        with torch.autocast(images.device.type, torch.bfloat16):
            return self.network(images, own).float()

    def initialise(self, x: Tensor) -> None:
        """Set what is best set from data, ``x [T, N, ...]`` of training tasks, before the first step."""

    @abstractmethod
    def network(self, images: Tensor, own: Own | None) -> Tensor:
        """Features ``[N, d]`` of float images ``[N, channels, height, width]``."""


class ConvNet(Embedding):
    """Blocks of 3x3 convolution, batch normalisation, 2x2 max-pooling, ReLU (Tables cnn-Omn, cnn-cifar, cnn-mini).

    Pooling before the ReLU gives the same numbers as after it, on a quarter of the memory. ``ceil`` is SAME pooling.
    Only the first ``pooled`` blocks pool, where that is given.
    """

    def __init__(
        self,
        inputs: Sequence[int],
        *,
        blocks: int,
        channels: int = 64,
        last_channels: int = 0,
        ceil: bool = True,
        dropout: float = 0.0,
        pooled: int | None = None,
    ) -> None:
        super().__init__()
        self.ceil = ceil
        self.dropout = dropout
        self.pooled = blocks if pooled is None else pooled
        growth = ((last_channels or channels) - channels) / max(1, blocks - 2)
        widths = [channels, *(round(channels + step * growth) for step in range(blocks - 1))]
        planes = [inputs[0], *widths]
        self.convolutions = nn.ModuleList(nn.Conv2d(a, b, 3, padding=1, bias=False) for a, b in pairwise(planes))
        self.norms = nn.ModuleList(Normalisation(width) for width in widths)
        side = list(inputs[1:])
        for _ in range(self.pooled):
            side = [(length + 1) // 2 if ceil else length // 2 for length in side]
        if min(side) < 1:
            raise UserError(
                f"pictures of {inputs[1]} x {inputs[2]} pixels are too small for {blocks} blocks of pooling"
            )
        self.shape = (widths[-1], side[0], side[1])
        self.to(memory_format=torch.channels_last)  # type: ignore[call-overload]

    def network(self, images: Tensor, own: Own | None) -> Tensor:
        """The blocks, then all that is left as one vector."""
        x = images
        for block, (convolution, norm) in enumerate(zip(self.convolutions, self.norms, strict=True)):
            before = convolution(x)
            x = norm(before, own)
            if block < self.pooled:
                x = (
                    max_pool(x, before, ceil=self.ceil)
                    if self.channels_last
                    else F.max_pool2d(x, 2, ceil_mode=self.ceil)
                )
            x = F.relu(x, inplace=True)
            if self.training and self.dropout:
                x = dropout(x, self.dropout)
        return x.flatten(1)


class ResNet12(Embedding):
    """Four residual blocks of three convolutions, 64 to 512 channels, pooled to 512 features (Lee et al. 2019)."""

    def __init__(
        self, inputs: Sequence[int], *, widths: Sequence[int] = (64, 128, 256, 512), dropout: float = 0.0
    ) -> None:
        super().__init__()
        planes = [inputs[0], *widths]
        self.blocks = nn.ModuleList(_ResNet12Block(a, b, dropout) for a, b in pairwise(planes))
        self.shape = (widths[-1], 1, 1)
        self.to(memory_format=torch.channels_last)  # type: ignore[call-overload]

    def network(self, images: Tensor, own: Own | None) -> Tensor:
        """The blocks, then the mean over positions."""
        x = images
        for block in self.blocks:
            x = block(x, own)
        return x.mean((2, 3))


class _ResNet12Block(nn.Module):
    def __init__(self, inputs: int, outputs: int, dropout: float) -> None:
        super().__init__()
        self.dropout = dropout
        planes = [inputs, outputs, outputs, outputs]
        self.convolutions = nn.ModuleList(nn.Conv2d(a, b, 3, padding=1, bias=False) for a, b in pairwise(planes))
        self.norms = nn.ModuleList(Normalisation(outputs) for _ in range(3))
        self.shortcut = nn.Conv2d(inputs, outputs, 1, bias=False)
        self.shortcut_norm = Normalisation(outputs)

    def forward(self, x: Tensor, own: Own | None) -> Tensor:
        residual = self.shortcut_norm(self.shortcut(x), own)
        for layer, (convolution, norm) in enumerate(zip(self.convolutions, self.norms, strict=True)):
            x = norm(convolution(x), own)
            if layer < 2:
                x = F.leaky_relu(x, 0.1)
        x = F.max_pool2d(F.leaky_relu(x + residual, 0.1), 2, ceil_mode=True)
        return dropout(x, self.dropout) if self.training and self.dropout else x


class WideResNet(Embedding):
    """WRN-28-10 (Zagoruyko & Komodakis 2016): three groups of four blocks, average-pooled to 640 features."""

    def __init__(self, inputs: Sequence[int], *, depth: int = 28, widen: int = 10, dropout: float = 0.0) -> None:
        super().__init__()
        widths = [16, 16 * widen, 32 * widen, 64 * widen]
        self.first = nn.Conv2d(inputs[0], widths[0], 3, padding=1, bias=False)
        blocks = [
            _WideBlock(widths[group] if block == 0 else widths[group + 1], widths[group + 1], stride, dropout)
            for group in range(3)
            for block in range((depth - 4) // 6)
            for stride in [2 if group and block == 0 else 1]
        ]
        self.blocks = nn.ModuleList(blocks)
        self.norm = Normalisation(widths[-1])
        self.shape = (widths[-1], 1, 1)
        self.to(memory_format=torch.channels_last)  # type: ignore[call-overload]

    def network(self, images: Tensor, own: Own | None) -> Tensor:
        """The groups, then the mean over positions."""
        x = self.first(images)
        for block in self.blocks:
            x = block(x, own)
        return F.relu(self.norm(x, own)).mean((2, 3))


class _WideBlock(nn.Module):
    def __init__(self, inputs: int, outputs: int, stride: int, dropout: float) -> None:
        super().__init__()
        self.dropout = dropout
        self.norms = nn.ModuleList([Normalisation(inputs), Normalisation(outputs)])
        self.first = nn.Conv2d(inputs, outputs, 3, stride, padding=1, bias=False)
        self.second = nn.Conv2d(outputs, outputs, 3, padding=1, bias=False)
        same = inputs == outputs and stride == 1
        self.shortcut = None if same else nn.Conv2d(inputs, outputs, 1, stride, bias=False)

    def forward(self, x: Tensor, own: Own | None) -> Tensor:
        y = F.relu(self.norms[0](x, own))
        residual = x if self.shortcut is None else self.shortcut(y)
        y = F.relu(self.norms[1](self.first(y), own))
        if self.training and self.dropout:
            y = dropout(y, self.dropout)
        return residual + self.second(y)


class Ready(Embedding):
    """Features that are ready already: centred and scaled, one by one, by statistics of the training classes.

    ``project`` asks for a learned linear map to that many, if they are more, which starts at the principal axes: what
    comes after it is that much smaller.
    """

    def __init__(self, features: int, project: int = 0) -> None:
        super().__init__()
        projected = 0 < project < features
        self.shape = (project if projected else features, 1, 1)
        self.norm = Normalisation(features)
        self.projection = nn.Linear(features, project, bias=False) if projected else nn.Identity()

    @torch.no_grad()
    def initialise(self, x: Tensor) -> None:
        """Project onto the principal axes of normalised features."""
        if isinstance(self.projection, nn.Linear):
            samples = x.flatten(0, 1).double()
            correlation = torch.corrcoef(samples.T).nan_to_num()  # a feature that never varies has none
            axes = torch.linalg.eigh(correlation).eigenvectors  # in the order of their variance
            self.projection.weight.copy_(axes[:, -self.features :].T)

    def forward(self, x: Tensor, own: int | None = None, views: str = "one") -> Tensor:
        """Normalised features ``[T, N, d]`` of ``x [T, N, d]``."""
        layout = None if own is None else Own(x.shape[0], own)
        return self.network(x.flatten(0, 1), layout).unflatten(0, x.shape[:2])

    def network(self, images: Tensor, own: Own | None) -> Tensor:
        """Normalise and project ``[N, d]``."""
        return self.projection(self.norm(images[..., None, None], own).flatten(1))


@register_embedding("mlp", takes="numbers")
def _mlp(inputs: Sequence[int], _settings: EmbeddingSettings, **_: Any) -> MLP:
    return MLP((inputs[0], *FUNCTION_SIZES))


@register_embedding("raw", takes="numbers")
def _raw(inputs: Sequence[int], _settings: EmbeddingSettings, **_: Any) -> Raw:
    return Raw(inputs[0])


@register_embedding("ready", takes="numbers")
def _ready(inputs: Sequence[int], settings: EmbeddingSettings, **_: Any) -> Ready:
    return Ready(inputs[0], settings.project)


@register_embedding("conv4")
def _conv4(inputs: Sequence[int], settings: EmbeddingSettings, *, maps: bool) -> ConvNet:
    return _convolutional(inputs, settings, blocks=4, ceil=True, maps=maps)


@register_embedding("conv5")
def _conv5(inputs: Sequence[int], settings: EmbeddingSettings, *, maps: bool) -> ConvNet:
    return _convolutional(inputs, settings, blocks=5, ceil=False, maps=maps)


def _convolutional(
    inputs: Sequence[int], settings: EmbeddingSettings, *, blocks: int, ceil: bool, maps: bool
) -> ConvNet:
    return ConvNet(
        inputs,
        blocks=blocks,
        channels=settings.channels,
        last_channels=settings.last_channels,
        ceil=ceil,
        dropout=settings.dropout,
        pooled=POOLED_FOR_MAPS if maps else None,
    )


@register_embedding("resnet12")
def _resnet12(inputs: Sequence[int], settings: EmbeddingSettings, **_: Any) -> ResNet12:
    return ResNet12(inputs, dropout=settings.dropout)


@register_embedding("wrn28-10")
def _wrn(inputs: Sequence[int], settings: EmbeddingSettings, **_: Any) -> WideResNet:
    return WideResNet(inputs, dropout=settings.dropout)


EMBEDDINGS.seal()


def make_embedding(inputs: Sequence[int], settings: EmbeddingSettings, *, maps: bool = False) -> Any:
    """The embedding for samples of the shape ``inputs``: numbers, or a picture.

    ``maps`` asks a convolutional network for feature maps: it then pools in its first two blocks only.
    """
    entry = EMBEDDINGS[settings.embedding]
    takes = "pictures" if len(inputs) == 3 else "numbers"
    if entry.takes != takes:
        fitting = ", ".join(name for name in EMBEDDINGS if EMBEDDINGS[name].takes == takes)
        raise UserError(
            f"embedding = {settings.embedding!r} takes {entry.takes}, but a sample is {takes} {list(inputs)}: "
            f"choose from {fitting}"
        )
    return entry.make(inputs, settings, maps=maps)
