"""iMAML's implicit gradient against the gradient through a converged inner loop, and its memory."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.func import functional_call

from inner_loops import Smooth, gradients, pictures, sine
from metavrf.config import Config
from metavrf.episodes import Episodes
from metavrf.errors import UserError
from metavrf.learners.imaml import IMAML, ImplicitSettings
from metavrf.nn.embeddings import ConvNet
from metavrf.spec import TaskSpec

PARAMETERS = 53  # of the network on curves: conjugate gradients are exact after as many steps


def of_curves(**settings: Any) -> IMAML:
    torch.manual_seed(5)
    chosen = {"inner_steps": 400, "inner_lr": 0.05, "proximal": 5.0, "conjugate_steps": PARAMETERS, **settings}
    return IMAML(Smooth((1, 6, 5)), TaskSpec(), ImplicitSettings(**chosen)).double()


def of_pictures(**settings: Any) -> IMAML:
    torch.manual_seed(6)
    chosen = {"inner_steps": 3, "inner_lr": 0.1, "proximal": 2.0, **settings}
    return IMAML(ConvNet((1, 9, 9), blocks=2, channels=4), TaskSpec((1, 9, 9), None, way=3), ImplicitSettings(**chosen))


def unrolled(learner: IMAML, episodes: Episodes) -> Tensor:
    """The queries' error after gradient descent on the proximal problem, task by task, with the graph of every step."""
    settings = learner.settings
    losses = []
    for task in range(episodes.tasks):
        x, y, asked = episodes.support_x[task], episodes.support_y[task], episodes.query_x[task]
        start = learner.start()
        weights = start

        def answer(weights: dict[str, Tensor], x: Tensor) -> Tensor:
            inner = {name: w for name, w in weights.items() if name not in ("last", "offset")}
            z = functional_call(learner.embedding, inner, (x.unsqueeze(0),)).squeeze(0)
            return z @ weights["last"].T + weights["offset"]

        for _ in range(settings.inner_steps):
            away = sum((w - start[name]).square().sum() for name, w in weights.items())
            loss = F.mse_loss(answer(weights, x), y) + 0.5 * settings.proximal * away
            slopes = torch.autograd.grad(loss, list(weights.values()), create_graph=True)
            pairs = zip(weights.items(), slopes, strict=True)
            weights = {name: w - settings.inner_lr * slope for (name, w), slope in pairs}
        assert episodes.query_y is not None
        losses.append(F.mse_loss(answer(weights, asked), episodes.query_y[task]))
    return torch.stack(losses).mean()


def test_the_implicit_gradient_is_that_through_a_converged_inner_loop() -> None:
    learner, episodes = of_curves(), sine()
    assert sum(value.numel() for value in learner.start().values()) == PARAMETERS
    found = learner.train()(episodes).terms["mse"]
    expected = unrolled(learner, episodes)
    torch.testing.assert_close(found, expected, rtol=1e-8, atol=1e-10)
    implicit, explicit = gradients(learner, found), gradients(learner, expected)
    assert {name for name in implicit if name != "log_noise"} == explicit.keys()
    for name, gradient in explicit.items():
        torch.testing.assert_close(implicit[name], gradient, rtol=1e-5, atol=1e-7)
    assert max(gradient.abs().max() for gradient in explicit.values()) > 0.01


def test_few_conjugate_steps_come_close_and_many_closer() -> None:
    episodes = sine()

    def gradient(steps: int) -> dict[str, Tensor]:
        learner = of_curves(conjugate_steps=steps)
        return gradients(learner, learner.train()(episodes).terms["mse"])

    exact = gradient(PARAMETERS)

    def gap(steps: int) -> float:
        found = gradient(steps)
        return sum((found[name] - exact[name]).square().sum().item() for name in found if name != "log_noise") ** 0.5

    gaps = [gap(steps) for steps in (1, 4, 10)]
    assert gaps[0] > gaps[1] > gaps[2]
    assert gaps[2] < 0.01 * gaps[0]


def test_the_system_is_solved_as_by_a_dense_matrix() -> None:
    learner, episodes = of_curves(), sine()
    x, y = episodes.support_x[:1], episodes.support_y[:1]
    start = learner.start()
    sizes = [value.numel() for value in start.values()]

    def loss(flat: Tensor) -> Tensor:
        parts = flat.split(sizes)
        pairs = zip(start.items(), parts, strict=True)
        return learner.task_loss({name: part.view_as(w) for (name, w), part in pairs}, x[0], y[0])

    point = torch.cat([value.detach().flatten() for value in start.values()])
    hessian = torch.autograd.functional.hessian(loss, point)
    system = torch.eye(PARAMETERS, dtype=torch.float64) + hessian / learner.settings.proximal
    assert torch.linalg.eigvalsh(system).min() > 0.1
    gradient = torch.randn(1, PARAMETERS, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    expected = torch.linalg.solve(system, gradient[0])
    weights = {name: value.unsqueeze(0) for name, value in start.items()}
    torch.testing.assert_close(learner.implicit(weights, x, y, gradient)[0], expected, rtol=1e-6, atol=1e-8)


def test_negative_curvature_ends_the_conjugate_steps_with_what_they_have() -> None:
    """λ so small that the system has negative eigenvalues."""
    learner, episodes = of_curves(proximal=1e-4, conjugate_steps=30), sine()
    weights = {name: value.expand(4, *value.shape) for name, value in learner.start().items()}
    gradient = torch.randn(4, PARAMETERS, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    found = learner.implicit(weights, episodes.support_x, episodes.support_y, gradient)
    assert torch.isfinite(found).all()
    assert (found * gradient).sum(1).min() >= 0  # never against the gradient


def nodes(loss: Tensor) -> int:
    """Nodes of the graph that a backward pass goes through."""
    seen, queue = set(), [loss.grad_fn]
    while queue:
        node = queue.pop()
        if node is not None and node not in seen:
            seen.add(node)
            queue += [following for following, _ in node.next_functions]
    return len(seen)


@pytest.mark.parametrize(
    "make", [of_curves, of_pictures, partial(of_curves, inner_solver="gauss-newton", inner_lr=1.0)]
)
def test_memory_is_flat_in_inner_steps(make: Callable[..., IMAML]) -> None:
    episodes = pictures() if make is of_pictures else sine()

    def run(steps: int) -> Tensor:
        loss = make(inner_steps=steps).train()(episodes).loss
        assert loss is not None
        return loss

    assert nodes(run(2)) == nodes(run(20))


def test_pictures_have_a_gradient_of_every_weight() -> None:
    learner = of_pictures()
    loss = learner.train()(pictures()).loss
    assert loss is not None
    found = gradients(learner, loss)
    assert found.keys() == {name for name, _ in learner.named_parameters()}
    assert all(torch.isfinite(gradient).all() and gradient.abs().max() > 0 for gradient in found.values())


def test_weights_are_held_at_the_start() -> None:
    episodes = sine()

    def away(**settings: Any) -> float:
        learner = of_curves(**settings)
        start = learner.start()
        found = learner.adapt(start, episodes.support_x[0], episodes.support_y[0])
        return sum((found[name] - start[name]).square().sum().item() for name in start)

    assert away(proximal=0.5) > 4 * away(proximal=5.0) > 0
    assert away(inner_steps=400) == pytest.approx(away(inner_steps=800), rel=1e-6)  # it has converged


GAUSS_NEWTON: dict[str, Any] = {"inner_solver": "gauss-newton", "inner_lr": 1.0, "inner_steps": 80}


def test_gauss_newton_finds_where_gradient_descent_ends() -> None:
    episodes = sine()
    x, y = episodes.support_x[0], episodes.support_y[0]

    def found(**settings: Any) -> Tensor:
        learner = of_curves(**settings)
        return torch.cat([value.flatten() for value in learner.adapt(learner.start(), x, y).values()])

    torch.testing.assert_close(found(**GAUSS_NEWTON), found(), rtol=1e-5, atol=1e-6)
    far = (found(**GAUSS_NEWTON | {"inner_steps": 2}) - found()).norm()
    assert far < 0.1 * (found(inner_steps=2) - found()).norm()


def test_gauss_newton_has_the_same_implicit_gradient() -> None:
    episodes = sine()

    def gradient(**settings: Any) -> dict[str, Tensor]:
        learner = of_curves(**settings)
        return gradients(learner, learner.train()(episodes).terms["mse"])

    expected = gradient()
    for name, value in gradient(**GAUSS_NEWTON).items():
        torch.testing.assert_close(value, expected[name], rtol=1e-5, atol=1e-7)


def test_a_gauss_newton_step_is_ridge_regression_on_the_slopes_of_the_outputs() -> None:
    learner, episodes = of_curves(**GAUSS_NEWTON), sine()
    x, y = episodes.support_x[0], episodes.support_y[0]
    start = learner.start()
    weights = {name: value + 0.1 for name, value in start.items()}
    flat = torch.cat([value.detach().flatten() for value in weights.values()])
    sizes = [value.numel() for value in weights.values()]

    def outputs(flat: Tensor) -> Tensor:
        pairs = zip(weights.items(), flat.split(sizes), strict=True)
        return learner.outputs({name: part.view_as(w) for (name, w), part in pairs}, x, len(x)).flatten()

    slopes = torch.autograd.functional.jacobian(outputs, flat)  # one row at a time
    moved = flat - torch.cat([value.detach().flatten() for value in start.values()])
    # Least squares over the step: the linear outputs' error, and the distance to the start.
    root = (learner.settings.proximal / 2) ** 0.5
    system = torch.cat([slopes / len(x) ** 0.5, root * torch.eye(PARAMETERS, dtype=torch.float64)])
    wanted = torch.cat([(y.flatten() - outputs(flat)) / len(x) ** 0.5, -root * moved])
    expected = torch.linalg.lstsq(system, wanted.unsqueeze(1)).solution.squeeze(1)
    found = torch.cat([value.flatten() for value in learner.gauss_newton(start, weights, x, y).values()])
    torch.testing.assert_close(found, expected, rtol=1e-8, atol=1e-10)


@pytest.mark.parametrize("solver", ["gradient", "gauss-newton"])
def test_inner_steps_never_make_the_problem_worse(solver: str) -> None:
    learner, episodes = of_curves(inner_solver=solver, inner_lr=9.0, inner_steps=6, proximal=0.5), sine()
    start = learner.start()
    for x, y in zip(episodes.support_x, episodes.support_y, strict=True):
        found = learner.adapt(start, x, y)
        away = sum((found[name] - start[name]).square().sum() for name in start)
        assert learner.task_loss(found, x, y) + 0.25 * away <= learner.task_loss(start, x, y)


def test_gauss_newton_is_refused_on_classes() -> None:
    with pytest.raises(UserError, match=r"^inner_solver = 'gauss-newton' is for functions"):
        of_pictures(inner_solver="gauss-newton")


def test_the_paper_says_sixteen_steps_and_a_proximal_weight_of_two() -> None:
    model = Config.of("omniglot", "imaml", "paper").model
    assert (model.inner_steps, model.proximal, model.conjugate_steps) == (16, 2.0, 5)
