"""What every peer is given: the same network, the same random pictures, the same tasks.

Imported in a peer's own environment: it needs torch and the standard library, and of ours only the work's sizes.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from speed.turns import Makers, serve
from speed.work import Work

Task = tuple[Tensor, Tensor, Tensor, Tensor]
"""Support images and class numbers, query images and class numbers."""
PARTS = ("support_x", "support_y", "query_x", "query_y")


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


def saved(file: Path) -> dict[str, Tensor]:
    """Tensors that the driver wrote down, as bytes with their types and shapes beside."""
    about = json.loads(file.with_suffix(".json").read_text())
    data = bytearray(file.read_bytes())
    found = {}
    for name, (kind, shape, first, last) in about.items():
        found[name] = torch.frombuffer(data[first:last], dtype=getattr(torch, kind)).reshape(shape)
    return found


def drawn(bank: Tensor, way: int, shot: int, query: int) -> Iterator[Task]:
    """Tasks without end on pictures ``[classes, samples, 1, side, side]`` of bytes."""
    generator = torch.Generator().manual_seed(1)
    labels = torch.arange(way)
    while True:
        classes = torch.randperm(len(bank), generator=generator)[:way]
        order = torch.rand(way, bank.shape[1], generator=generator).argsort(1)[:, : shot + query]
        support, asked = (bank[classes[:, None], order].float() / 255).split([shot, query], dim=1)
        support_y, asked_y = labels.repeat_interleave(shot), labels.repeat_interleave(query)
        yield support.flatten(0, 1), support_y, asked.flatten(0, 1), asked_y


def race(step: Callable[[], object], figure: Callable[[], float], seconds: float) -> dict[str, Any]:
    """Train for that long, then measure; a first step, which sets things up, is not counted."""
    step()
    began, steps = time.perf_counter(), 0
    while time.perf_counter() - began < seconds:
        step()
        steps += 1
    return {"steps": steps, "seconds": time.perf_counter() - began, "figure": figure()}


def in_race() -> tuple[str, Path, float] | None:
    """The racer that is asked for, the folder of its tasks and its seconds; None where turns are taken instead."""
    return None if len(sys.argv) < 3 else (sys.argv[2], Path(sys.argv[3]), float(sys.argv[4]))


def serve_peer(makers: Makers, version: str) -> None:
    """What a peer's script does in the end."""
    serve(makers, {"threads": torch.get_num_threads(), "version": version, "torch": torch.__version__})


def work() -> Work:
    """From the command line."""
    return Work.from_json(sys.argv[1])
