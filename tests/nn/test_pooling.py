"""Max-pooling that keeps less: the same numbers as PyTorch's."""

import pytest
import torch
import torch.nn.functional as F

from metavrf.nn.pooling import max_pool


@pytest.mark.parametrize("ceil", [True, False])
@pytest.mark.parametrize("side", [6, 7])
def test_values_and_gradients_are_those_of_pytorch(ceil: bool, side: int) -> None:
    torch.manual_seed(0)
    x = torch.randn(3, 4, side, side).to(memory_format=torch.channels_last)
    ours, theirs = x.clone().requires_grad_(), x.clone().requires_grad_()
    weights = torch.randn(3, 4, (side + ceil) // 2, (side + ceil) // 2)
    pooled, expected = max_pool(ours, torch.randn_like(x), ceil=ceil), F.max_pool2d(theirs, 2, ceil_mode=ceil)
    assert torch.equal(pooled, expected)
    (pooled * weights).sum().backward()
    (expected * weights).sum().backward()
    assert ours.grad is not None and theirs.grad is not None
    assert torch.equal(ours.grad, theirs.grad)
    assert ours.grad.is_contiguous(memory_format=torch.channels_last)


def test_the_input_is_not_kept() -> None:
    x, like = torch.randn(2, 3, 4, 4, requires_grad=True), torch.randn(2, 3, 4, 4)
    kept: list[int] = []
    with torch.autograd.graph.saved_tensors_hooks(lambda tensor: kept.append(tensor.data_ptr()) or tensor, lambda t: t):  # type: ignore[func-returns-value]
        max_pool(x * 1, like, ceil=True)
    assert like.data_ptr() in kept
    assert len(kept) == 2  # the stand-in and the indices


def test_a_stand_in_of_another_type_is_not_kept() -> None:
    x = torch.randn(2, 3, 6, 6, requires_grad=True)
    max_pool(x, x.to(torch.bfloat16), ceil=True).sum().backward()
    assert x.grad is not None and x.grad.sum() == 2 * 3 * 9
