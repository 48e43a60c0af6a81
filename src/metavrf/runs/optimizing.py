"""Optimisers, learning rates and clipped gradients of a training."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from metavrf.config import TrainingSettings

MOMENTUM = 0.9
MOMENTS = ("step", "exp_avg", "exp_avg_sq")  # what Adam keeps of each weight
DECAYING = ("embedding.", "classifier.")


class Adam(torch.optim.Adam):
    """PyTorch's fused Adam without what its step does around that one operation, which takes longer than a small step.

    Its own step sorts the weights by device and type each time. Here they are of one of each, and none decays.
    """

    @torch.no_grad()
    def step(self, closure: Any = None) -> Any:
        """Move all weights that have gradients, which are divided by ``grad_scale`` where that is set."""
        (group,) = self.param_groups
        weights = [weight for weight in group["params"] if weight.grad is not None]
        states = [self.state[weight] for weight in weights]
        if not (all(states) and group["fused"]) or closure is not None:
            return super().step(closure)  # which makes the states
        steps, means, squares = ([state[name] for state in states] for name in MOMENTS)
        gradients = [weight.grad for weight in weights]
        torch._foreach_add_(steps, 1)
        torch._fused_adam_(
            weights,
            gradients,
            means,
            squares,
            [],
            steps,
            lr=group["lr"],
            beta1=group["betas"][0],
            beta2=group["betas"][1],
            weight_decay=0.0,
            eps=group["eps"],
            amsgrad=False,
            maximize=False,
            grad_scale=getattr(self, "grad_scale", None),
        )
        return None


def make_optimizer(settings: TrainingSettings, module: nn.Module) -> torch.optim.Optimizer:
    """Adam or gradient descent with momentum; only matrices of the embedding and of a classifier decay."""
    named = {name: weight for name, weight in module.named_parameters() if weight.requires_grad}
    groups: list[dict[str, object]] = [{"params": list(named.values())}]
    if settings.weight_decay:
        decaying = {name for name, weight in named.items() if name.startswith(DECAYING) and weight.ndim > 1}
        groups = [
            {"params": [named[name] for name in named if name in decaying], "weight_decay": settings.weight_decay},
            {"params": [named[name] for name in named if name not in decaying], "weight_decay": 0.0},
        ]
    if settings.optimizer == "sgd":
        return torch.optim.SGD(groups, lr=settings.lr, momentum=MOMENTUM, nesterov=True, fused=True)
    kind = torch.optim.AdamW if settings.weight_decay else Adam
    return kind(groups, lr=settings.lr, fused=True)


def moments(optimizer: torch.optim.Optimizer) -> tuple[str, ...]:
    """The names of what the optimiser keeps of each weight."""
    return ("momentum_buffer",) if isinstance(optimizer, torch.optim.SGD) else MOMENTS


def clip_gradients(optimizer: torch.optim.Optimizer, parameters: Sequence[Tensor], limit: float) -> float:
    """Let the next step scale all gradients so that their joint norm is at most ``limit``, unless that is 0.

    Returns the norm. A fused step divides by ``grad_scale`` on its way, so that nothing passes over the gradients
    before; for another they are scaled here.
    """
    gradients = [parameter.grad for parameter in parameters if parameter.grad is not None]
    joint = torch.stack(torch._foreach_norm(gradients)).norm()
    norm = joint.item()
    exceeds = bool(limit) and norm > limit
    fused = all(group["fused"] for group in optimizer.param_groups)
    optimizer.grad_scale = joint / limit if exceeds and fused else None  # type: ignore[attr-defined]
    if exceeds and not fused:
        torch._foreach_mul_(gradients, limit / norm)
    return norm


def learning_rate(settings: TrainingSettings, step: int) -> float:
    """Linear warm-up, then constant or a cosine down to zero."""
    rate = settings.lr * min(1.0, (step + 1) / max(1, settings.warmup))
    if settings.schedule == "cosine":
        rate *= 0.5 * (1 + math.cos(math.pi * step / settings.iterations))
    return rate
