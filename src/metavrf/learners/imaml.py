"""iMAML: meta-learning with implicit gradients (Rajeswaran, Finn, Kakade & Levine, NeurIPS 2019).

The weights φ of a task solve a proximal problem: they fit the support, but stay close to the start θ,

    φ* = argmin L(φ, support) + λ/2·‖φ - θ‖².

The gradient of the queries' loss with regard to θ then follows from φ* alone, whatever path led there:

    dL(φ*, queries)/dθ = (I + ∇²L(φ*, support)/λ)⁻¹ ∇L(φ*, queries).

The inner steps keep nothing for the backward pass, so memory does not grow with them. The linear system is solved by
conjugate gradients, which need products of the Hessian with vectors only. A direction of negative curvature ends them
early: there the system is that of no minimum.

Only where the inner steps end matters, so they need not be plain: a step after which the problem is worse is taken
back, and the next is half as long. Without that some tasks run away, and nothing in the implicit gradient would tell.

The implicit gradient is that of a solved problem, and a dozen gradient steps do not solve that of a function. So there
the default is Gauss-Newton: with the outputs f for the N numbers of the support linear in the weights, f + J·d,
the problem is ridge regression, and has its solution in a system of N equations,

    φ ← θ + Jᵀ(JJᵀ + N·λ/2·I)⁻¹(y - f + J·(φ - θ)).

A few such steps solve it. (The authors have a Hessian-free inner solver beside gradient descent, to the same end.)

The authors damp the system, (2·I + ∇²L/(λ + 10)) in place of the above, and normalise each pass by its own batch, which
makes their figures transductive. Here a task is normalised by its support, in training too. Their settings for
functions are not published: those of the preset "paper" are like the ones of pictures.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.func import grad, grad_and_value, jacrev, vmap

from metavrf.episodes import Episodes
from metavrf.errors import UserError
from metavrf.learners.maml import CLASSES, MAML, PHOTOGRAPHS, Weights
from metavrf.settings import Count, Natural, Positive, added


@dataclass(frozen=True)
class ImplicitSettings:
    """The proximal inner problem and its implicit gradient."""

    inner_steps: Count = 5
    """Steps on a task's support while training."""
    test_inner_steps: Natural = 0
    """Steps at test time; 0 for as many as while training."""
    inner_lr: Positive = 0.2
    """Length of these steps: the learning rate of gradient steps; of Gauss-Newton ones 1 is to where they point."""
    inner_solver: Literal["gradient", "gauss-newton"] = added("gradient", before="gradient")
    """What a step follows: the gradient, or, of functions, Gauss-Newton, which needs few of them."""
    proximal: Positive = 1.0
    """How strongly a task's weights are held at the start (λ)."""
    conjugate_steps: Count = 3
    """Steps of conjugate gradients, by which the implicit gradient is found."""
    centred: bool = added(False, before=False)
    """Of classes, subtract the mean of the support's features before the last layer."""


class IMAML(MAML):
    """MAML whose weights stay close to the start, so that the outer gradient needs no inner steps. See the module."""

    citation = "Rajeswaran, Finn, Kakade & Levine, Meta-learning with implicit gradients, NeurIPS 2019"
    Settings = ImplicitSettings
    presets = {
        "functions": {"inner_solver": "gauss-newton", "inner_lr": 1.0, "inner_steps": 3, "proximal": 0.3}
        | {"conjugate_steps": 8, "lr": 0.02},
        "classes": CLASSES | {"channels": 32, "lr": 4e-3, "validate_tasks": 200},
    }
    paper = {
        "all": {"lr": 1e-3, "dropout": 0.0, "conjugate_steps": 5},
        "functions": {"inner_solver": "gradient", "inner_lr": 0.01, "inner_steps": 16, "proximal": 1.0},
        "classes": PHOTOGRAPHS | {"inner_steps": 10, "proximal": 0.5, "iterations": 60_000},
        "omniglot": {"inner_steps": 16, "inner_lr": 0.1, "proximal": 2.0, "batch": 32, "query": 1, "channels": 64}
        | {"iterations": 20_000},
    }

    def setup(self, generator: torch.Generator) -> None:
        """See :meth:`Learner.setup`."""
        super().setup(generator)
        if self.settings.inner_solver == "gauss-newton" and not self.regression:
            raise UserError("inner_solver = 'gauss-newton' is for functions: classes have no squared error to solve")

    def answers(self, episodes: Episodes, own: int | None) -> Tensor:
        """Outputs of the adapted networks for the queries, ``[1, T, Q, outputs]``."""
        start = self.start()
        found = _Implicit.apply(self, episodes.support_x, episodes.support_y, *start.values())
        adapted = dict(zip(start, found, strict=True))

        def answer(weights: Weights, x: Tensor, asked: Tensor) -> Tensor:
            return self.asked(weights, x, asked, own)

        return vmap(answer, randomness="different")(adapted, episodes.support_x, episodes.query_x).unsqueeze(0)

    def adapt(self, weights: Weights, x: Tensor, y: Tensor) -> Weights:
        """The weights after the inner steps on one task's support ``x [S, ...]``, ``y [S, ...]``.

        A step after which the proximal problem is worse is taken back, and those that follow are half as long.
        """
        start, lam = weights, self.settings.proximal
        steps = self.settings.inner_steps
        if not self.training:
            steps = self.settings.test_inner_steps or steps

        def objective(at: Weights) -> Tensor:
            away = sum((at[name] - value).square().sum() for name, value in start.items())
            return self.task_loss(at, x, y) + 0.5 * lam * away

        def look(at: Weights) -> tuple[Weights, Tensor]:
            """Where a step from there goes, and how good it is there."""
            if self.settings.inner_solver == "gauss-newton":
                return self.gauss_newton(start, at, x, y), objective(at)
            slope, value = grad_and_value(objective)(at)
            return {name: -part for name, part in slope.items()}, value

        towards, best = look(weights)
        rate = torch.full_like(best, self.settings.inner_lr)
        for step in range(steps):
            tried = {name: value + rate * towards[name] for name, value in weights.items()}
            following, found = look(tried) if step < steps - 1 else (towards, objective(tried))
            better = found <= best
            best, rate = torch.where(better, found, best), torch.where(better, rate, 0.5 * rate)
            weights = {name: torch.where(better, tried[name], value) for name, value in weights.items()}
            towards = {name: torch.where(better, following[name], value) for name, value in towards.items()}
        return weights

    def gauss_newton(self, start: Weights, weights: Weights, x: Tensor, y: Tensor) -> Weights:
        """From the ``weights`` to the solution of the proximal problem with outputs linear in them, of one task."""

        def outputs(at: Weights) -> tuple[Tensor, Tensor]:
            found = self.outputs(at, x, len(x)).flatten()
            return found, found

        jacobian, found = jacrev(outputs, has_aux=True)(weights)
        slopes = torch.cat([part.flatten(1) for part in jacobian.values()], dim=1)  # J  [N, n]
        away = torch.cat([(value - start[name]).flatten() for name, value in weights.items()])
        ridge = 0.5 * self.settings.proximal * len(found) * torch.eye(len(found)).to(slopes)
        solved = torch.linalg.solve(slopes @ slopes.mT + ridge, y.flatten() - found + slopes @ away)
        parts = (solved @ slopes - away).split([value.numel() for value in weights.values()])
        return {name: part.view_as(weights[name]) for name, part in zip(weights, parts, strict=True)}

    def implicit(self, weights: Weights, x: Tensor, y: Tensor, gradient: Tensor) -> Tensor:
        """(I + ∇²L/λ)⁻¹ times a ``gradient [T, n]`` of T tasks at ``weights [T, ...]``, by conjugate gradients."""
        points = {name: value.detach().requires_grad_() for name, value in weights.items()}
        with torch.enable_grad():
            slopes = _flat(vmap(grad(self.task_loss), randomness="different")(points, x, y).values())

        def product(vector: Tensor) -> Tensor:
            found = torch.autograd.grad(slopes, list(points.values()), vector, retain_graph=True)
            return vector + _flat(found) / self.settings.proximal

        solution, residual, direction = torch.zeros_like(gradient), gradient, gradient
        square = residual.square().sum(1, keepdim=True)
        for _ in range(self.settings.conjugate_steps):
            image = product(direction)
            curvature = (direction * image).sum(1, keepdim=True)
            sound = curvature > torch.finfo(curvature.dtype).tiny  # once it is not, the direction is zero for good
            length = torch.where(sound, square / curvature.where(sound, 1), 0)
            solution, residual = solution + length * direction, residual - length * image
            before, square = square, residual.square().sum(1, keepdim=True)
            direction = torch.where(sound, residual + square / before.where(sound, 1) * direction, 0)
        return solution


class _Implicit(torch.autograd.Function):
    """All tasks' weights ``[T, ...]`` after the inner steps, and the implicit gradient of the start."""

    @staticmethod
    def forward(ctx: Any, learner: IMAML, x: Tensor, y: Tensor, *start: Tensor) -> tuple[Tensor, ...]:
        names = list(learner.start())
        weights = dict(zip(names, start, strict=True))
        found = vmap(lambda x, y: learner.adapt(weights, x, y), randomness="different")(x, y)
        ctx.learner, ctx.names = learner, names
        ctx.save_for_backward(x, y, *found.values())
        return tuple(found.values())

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        x, y, *found = ctx.saved_tensors
        weights = dict(zip(ctx.names, found, strict=True))
        solved = ctx.learner.implicit(weights, x, y, _flat(gradients)).sum(0)
        parts = solved.split([value[0].numel() for value in found])
        return None, None, None, *(part.view_as(value[0]) for part, value in zip(parts, found, strict=True))


def _flat(values: Iterable[Tensor]) -> Tensor:
    """Weights of T tasks, ``[T, ...]`` each, as one ``[T, n]``."""
    return torch.cat([value.flatten(1) for value in values], dim=1)
