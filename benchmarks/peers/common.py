"""What every peer is given: the same network, the same random pictures, the same tasks.

Imported in a peer's own environment: it needs torch and the standard library, and of ours only the work's sizes.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator

import torch
from torch import Tensor, nn

from speed.turns import Makers, serve
from speed.work import Work

Task = tuple[Tensor, Tensor, Tensor, Tensor]
"""Support images and class numbers, query images and class numbers."""


def conv4(work: Work) -> nn.Sequential:
    """Four blocks of convolution, normalisation, ReLU and pooling: 256 features of a 28 x 28 picture."""
    layers: list[nn.Module] = []
    planes = 1
    for _ in range(4):
        layers += [
            nn.Conv2d(planes, work.channels, 3, padding=1, bias=False),
            nn.BatchNorm2d(work.channels),
            nn.ReLU(),
            nn.MaxPool2d(2, ceil_mode=True),
        ]
        planes = work.channels
    return nn.Sequential(*layers, nn.Flatten())


def features(work: Work) -> int:
    """How many :func:`conv4` gives."""
    side = work.side
    for _ in range(4):
        side = (side + 1) // 2
    return work.channels * side * side


def pictures(work: Work, classes: int) -> Tensor:
    """Random ink as floats ``[classes, samples, 1, side, side]``."""
    generator = torch.Generator().manual_seed(0)
    shape = (classes, work.samples, 1, work.side, work.side)
    return (torch.rand(shape, generator=generator) < 0.1).float()


def tasks(work: Work, bank: Tensor) -> Iterator[Task]:
    """Tasks without end: classes and pictures without replacement."""
    generator = torch.Generator().manual_seed(1)
    labels = torch.arange(work.way)
    while True:
        chosen = bank[torch.randperm(len(bank), generator=generator)[: work.way]]
        order = torch.randperm(work.samples, generator=generator)[: work.shot + work.query]
        support, query = chosen[:, order].split([work.shot, work.query], dim=1)
        yield (
            support.flatten(0, 1),
            labels.repeat_interleave(work.shot),
            query.flatten(0, 1),
            labels.repeat_interleave(work.query),
        )


def torchvision_without_its_library() -> None:
    """Let torchvision's Python import where its compiled library does not fit torch: declare what it registers on."""
    _LIBRARIES.append(torch.library.Library("torchvision", "DEF"))
    for name in ("nms", "qnms"):
        _LIBRARIES[-1].define(f"{name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")


_LIBRARIES: list[torch.library.Library] = []  # a declaration lasts as long as its library


def serve_peer(makers: Makers, version: str) -> None:
    """What a peer's script does in the end."""
    serve(makers, {"threads": torch.get_num_threads(), "version": version, "torch": torch.__version__})


def work() -> Work:
    """From the command line."""
    return Work.from_json(sys.argv[1])
