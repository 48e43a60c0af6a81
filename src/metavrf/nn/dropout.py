"""Dropout whose random numbers cost little."""

from __future__ import annotations

import torch
from torch import Tensor

_STEPS = 1 << 16  # that a share is rounded to: two bytes an element


def dropout(x: Tensor, share: float) -> Tensor:
    """Set each element to zero with probability ``share`` and scale the others, so that the mean is kept.

    PyTorch's own draws one random number an element on a CPU, which takes long. This one cuts each into four.
    """
    threshold = min(round(share * _STEPS), _STEPS - 1)
    words = torch.empty(-(-x.numel() // 4), dtype=torch.int64).random_(-(1 << 63), None)
    factors = torch.empty_like(x)  # dense, in the memory format of x
    flat = factors.as_strided((x.numel(),), (1,))
    torch.ge(words.view(torch.int16)[: x.numel()].to(x.device), threshold - _STEPS // 2, out=flat)
    return x * factors.mul_(_STEPS / (_STEPS - threshold))
