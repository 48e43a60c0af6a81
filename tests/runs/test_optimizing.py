from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from metavrf.config import TrainingSettings
from metavrf.runs.optimizing import Adam, clip_gradients, make_optimizer

STEPS = 4
OPTIMIZERS: list[dict[str, Any]] = [{}, {"weight_decay": 0.1}, {"optimizer": "sgd"}]


def network() -> nn.Module:
    generator = torch.Generator().manual_seed(0)
    found = nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 2))
    with torch.no_grad():
        for parameter in found.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=generator))
    return found


def gradients(step: int) -> list[Tensor]:
    generator = torch.Generator().manual_seed(1 + step)
    return [torch.randn(parameter.shape, generator=generator) for parameter in network().parameters()]


def give(module: nn.Module, step: int, scale: float = 1.0) -> None:
    for parameter, gradient in zip(module.parameters(), gradients(step), strict=True):
        parameter.grad = scale * gradient


def joint_norm(step: int) -> float:
    return math.sqrt(sum(gradient.square().sum().item() for gradient in gradients(step)))


def assert_same(ours: nn.Module, theirs: nn.Module) -> None:
    for own, other in zip(ours.parameters(), theirs.parameters(), strict=True):
        torch.testing.assert_close(own, other)


@pytest.mark.parametrize("settings", OPTIMIZERS)
@pytest.mark.parametrize("limit", [0.0, 1e3, 0.5])
def test_a_step_after_clipping_is_one_on_gradients_scaled_to_the_limit(settings: Any, limit: float) -> None:
    clipped, plain = network(), network()
    ours, theirs = (make_optimizer(TrainingSettings(lr=0.1, **settings), module) for module in (clipped, plain))
    for step in range(STEPS):
        norm = joint_norm(step)
        give(clipped, step)
        assert clip_gradients(ours, list(clipped.parameters()), limit) == pytest.approx(norm, rel=1e-5)
        ours.step()
        give(plain, step, min(1.0, limit / norm) if limit else 1.0)
        theirs.step()
    assert_same(clipped, plain)


def test_our_adam_takes_the_steps_of_pytorchs_own_also_where_a_weight_has_no_gradient_at_first() -> None:
    ours, theirs = network(), network()
    own, other = Adam(ours.parameters(), lr=0.1, fused=True), torch.optim.Adam(theirs.parameters(), lr=0.1)
    for step in range(STEPS):
        for module in (ours, theirs):
            give(module, step)
            if step < 2:
                next(module.parameters()).grad = None
        own.step()
        other.step()
    assert_same(ours, theirs)


def test_our_adam_goes_on_from_a_saved_state_to_the_same_bit() -> None:
    whole, parted = network(), network()
    optimizers = [Adam(module.parameters(), lr=0.1, fused=True) for module in (whole, parted)]
    for step in range(STEPS):
        for module, optimizer in zip((whole, parted), optimizers, strict=True):
            give(module, step)
            optimizer.step()
        state = optimizers[1].state_dict()
        optimizers[1] = Adam(parted.parameters(), lr=0.1, fused=True)
        optimizers[1].load_state_dict(state)
    for own, other in zip(whole.parameters(), parted.parameters(), strict=True):
        assert torch.equal(own, other)
