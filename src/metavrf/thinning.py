"""A few of many weighted things to stand for all of them."""

from __future__ import annotations

import torch
from torch import Tensor


def stand_ins(log_weight: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """Numbers ``[T, count]`` of some of N weights to stand for all, and the log of the share that each is of them.

    Heavy ones are all taken, with share 1. Of the others every k-th is taken, counted by weight, and stands for its
    neighbours; weights divided by shares have the same sum as before, up to rounding, and so has about any function.
    """
    count = min(count, log_weight.shape[1])
    weight = log_weight.softmax(1) + 1e-12
    ordered = weight.sort(dim=1, descending=True).values
    rest = ordered.flip(1).cumsum(1).flip(1)[:, :count]  # of this weight and all lighter ones
    places = count - torch.arange(count, device=weight.device)
    heavy = (places * ordered[:, :count] > rest).long().cumprod(1).sum(1, keepdim=True)  # how many are taken for sure
    share = (weight * (count - heavy) / rest.gather(1, heavy.clamp_max(count - 1))).clamp(max=1)
    marks = (torch.arange(count, dtype=share.dtype, device=share.device) + 0.5).expand(len(share), -1)
    index = torch.searchsorted(share.cumsum(1), marks.contiguous()).clamp(max=share.shape[1] - 1)
    return index, share.gather(1, index).log()
