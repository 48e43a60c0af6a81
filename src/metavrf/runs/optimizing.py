"""Optimisers, learning rates and clipped gradients of a training."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from metavrf.config import TrainingSettings

MOMENTUM = 0.9
DECAYING = ("embedding.", "classifier.")


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
    kind = torch.optim.AdamW if settings.weight_decay else torch.optim.Adam
    return kind(groups, lr=settings.lr, fused=True)


def moments(optimizer: torch.optim.Optimizer) -> tuple[str, ...]:
    """The names of what the optimiser keeps of each weight."""
    return ("momentum_buffer",) if isinstance(optimizer, torch.optim.SGD) else ("step", "exp_avg", "exp_avg_sq")


def clip_gradients(parameters: Sequence[Tensor], limit: float) -> float:
    """Scale all gradients so that their joint norm is at most ``limit``, unless that is 0; returns the norm before."""
    gradients = [parameter.grad for parameter in parameters if parameter.grad is not None]
    norm = torch.stack(torch._foreach_norm(gradients)).norm().item()
    if limit and norm > limit:
        torch._foreach_mul_(gradients, limit / norm)
    return norm


def learning_rate(settings: TrainingSettings, step: int) -> float:
    """Linear warm-up, then constant or a cosine down to zero."""
    rate = settings.lr * min(1.0, (step + 1) / max(1, settings.warmup))
    if settings.schedule == "cosine":
        rate *= 0.5 * (1 + math.cos(math.pi * step / settings.iterations))
    return rate
