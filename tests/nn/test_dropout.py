"""Dropout: what it keeps, and how."""

import pytest
import torch

from metavrf.nn.dropout import dropout


@pytest.mark.parametrize("share", [0.05, 0.5, 0.9])
def test_a_share_of_elements_is_dropped_and_the_mean_is_kept(share: float) -> None:
    torch.manual_seed(0)
    x = torch.ones(40, 8, 25, 25)
    y = dropout(x, share)
    spread = 5 * (share * (1 - share) / x.numel()) ** 0.5
    assert (y == 0).float().mean().item() == pytest.approx(share, abs=spread)
    assert y.unique().tolist() == pytest.approx([0.0, 1 / (1 - share)], rel=1e-3)
    assert y.mean().item() == pytest.approx(1, abs=spread / (1 - share))


def test_neighbours_are_dropped_independently() -> None:
    torch.manual_seed(0)
    dropped = (dropout(torch.ones(400_000), 0.3) == 0).double() - 0.3
    for lag in (1, 2, 3, 4, 5):
        assert abs((dropped[lag:] * dropped[:-lag]).mean().item() / 0.21) < 0.01


def test_the_memory_format_is_kept_and_the_gradient_sees_the_same_elements() -> None:
    torch.manual_seed(0)
    x = torch.rand(3, 5, 7, 7).add(0.1).to(memory_format=torch.channels_last).requires_grad_()
    y = dropout(x, 0.4)
    assert y.is_contiguous(memory_format=torch.channels_last)
    y.sum().backward()
    assert x.grad is not None
    torch.testing.assert_close(x.grad * x, y)


def test_a_seed_gives_the_same_elements_and_another_call_gives_others() -> None:
    x = torch.ones(10_000)
    torch.manual_seed(3)
    first, second = dropout(x, 0.5), dropout(x, 0.5)
    torch.manual_seed(3)
    assert torch.equal(dropout(x, 0.5), first)
    assert not torch.equal(first, second)


def test_a_share_of_nearly_all_stays_finite() -> None:
    torch.manual_seed(0)
    assert torch.isfinite(dropout(torch.ones(1000), 0.9999999)).all()
