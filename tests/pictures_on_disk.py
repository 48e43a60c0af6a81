"""Classes of small random pictures, as tasks and as a folder of files, and settings to train on them in a moment."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from PIL import Image
from torch import Tensor

from metavrf.episodes import Episodes
from metavrf.tasks.bank import Bank

CLASSES, SAMPLES, SIDE = 25, 8, 12
TINY: dict[str, Any] = {"way": 3, "shot": 1, "query": 5, "test_query": 5, "batch": 2, "train_way": 6}
TINY |= {"image_size": SIDE, "grey": True, "embedding": "conv4", "channels": 16, "context": "none", "bases": 64}
TINY |= {"train_bases": 32, "lr": 5e-3, "warmup": 5, "validate_tasks": 60, "threads": 1, "quiet": True}


def patterns() -> Tensor:
    """Classes that are coarse random pictures, their samples under fine noise: ``[classes, samples, 12, 12]``."""
    generator = torch.Generator().manual_seed(9)
    coarse = 255 * torch.rand(CLASSES, 1, 3, 3, generator=generator)
    centres = coarse.repeat_interleave(4, dim=2).repeat_interleave(4, dim=3)
    noise = torch.randn(CLASSES, SAMPLES, SIDE, SIDE, generator=generator)
    return (centres + 80 * noise).clamp(0, 255).byte()


def write_folder(folder: Path) -> Path:
    """The same as PNG files, one sub-folder a class."""
    for number, samples in enumerate(patterns().numpy()):
        (folder / f"class{number:02}").mkdir(parents=True)
        for index, pixels in enumerate(samples):
            Image.fromarray(pixels).save(folder / f"class{number:02}" / f"{index}.png")
    return folder


def tasks(count: int = 12, way: int = 4, shot: int = 2, query: int = 5, seed: int = 0) -> Episodes:
    """Tasks on a bank of them."""
    labels = torch.arange(CLASSES).repeat_interleave(SAMPLES)
    bank = Bank.of_labels(patterns().flatten(0, 1).unsqueeze(1), labels, [str(k) for k in range(CLASSES)])
    return bank.sample(count, way, shot, query, torch.Generator().manual_seed(seed))
