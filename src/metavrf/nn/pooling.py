"""Max-pooling that keeps less."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

_WINDOW = ([2, 2], [2, 2], [0, 0], [1, 1])  # size, stride, padding, dilation


def max_pool(x: Tensor, like: Tensor, *, ceil: bool) -> Tensor:
    """2x2 max-pooling. The backward pass needs of ``x`` its shape and memory format alone, and so keeps ``like``.

    Where that is the input of a normalisation, which is kept in any case, ``x`` can be freed: the largest tensor. In
    mixed precision the two may differ in type, and then ``x`` itself is kept.
    """
    pooled: Tensor = _MaxPool.apply(x, like.detach() if like.dtype == x.dtype else x.detach(), ceil)
    return pooled


class _MaxPool(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, like: Tensor, ceil: bool) -> Tensor:
        pooled, where = torch.ops.aten.max_pool2d_with_indices(x, *_WINDOW, ceil)
        ctx.save_for_backward(like, where)
        ctx.ceil = ceil
        return pooled

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None]:
        like, where = ctx.saved_tensors
        back = torch.ops.aten.max_pool2d_with_indices_backward(gradient, like, *_WINDOW, ctx.ceil, where)
        return back, None, None
