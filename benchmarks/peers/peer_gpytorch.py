"""GPyTorch: a step of deep kernel learning on sine tasks, all tasks of a batch at once."""

from __future__ import annotations

import json
import math
import warnings
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from typing import Any

import gpytorch
import torch
from common import in_race, race, saved, serve_peer, work
from torch import Tensor, nn

WORK = work()
WIDTH = 40


class DeepKernel(gpytorch.models.ExactGP):  # type: ignore[misc]
    """A Gaussian process a task; the network and the kernel on its features are shared by all."""

    def __init__(self, x: Tensor, y: Tensor, likelihood: gpytorch.likelihoods.Likelihood) -> None:
        super().__init__(x, y, likelihood)
        self.network = nn.Sequential(nn.Linear(1, WIDTH), nn.ReLU(), nn.Linear(WIDTH, WIDTH), nn.ReLU())
        self.mean = gpytorch.means.ZeroMean()
        self.kernel = gpytorch.kernels.ScaleKernel(gpytorch.kernels.RBFKernel())

    def forward(self, x: Tensor) -> gpytorch.distributions.MultivariateNormal:
        """The prior at ``x [T, N, 1]``."""
        z = self.network(x)
        return gpytorch.distributions.MultivariateNormal(self.mean(z), self.kernel(z))


def sines() -> tuple[Tensor, Tensor]:
    """Support and query points of a batch of tasks: a deep kernel maximises the likelihood of both."""
    x = 10 * torch.rand(WORK.sine_tasks, WORK.sine_shot + WORK.sine_query, 1) - 5
    amplitude, frequency, phase = torch.rand(3, WORK.sine_tasks, 1)
    y = (0.1 + 4.9 * amplitude) * torch.sin((0.8 + 0.4 * frequency) * x.squeeze(-1) + math.pi * phase)
    return x, y


def trained(lr: float) -> tuple[DeepKernel, Callable[[], object]]:
    """A deep kernel, and the step that trains it."""
    torch.manual_seed(0)
    likelihood = gpytorch.likelihoods.GaussianLikelihood()
    model = DeepKernel(*sines(), likelihood).train()
    objective = gpytorch.mlls.ExactMarginalLogLikelihood(likelihood, model)
    optimizer = torch.optim.Adam(model.parameters(), lr=lr)

    def step() -> None:
        x, y = sines()
        model.set_train_data(x, y, strict=False)
        optimizer.zero_grad()
        (-objective(model(x), y).mean()).backward()
        optimizer.step()

    return model, step


def answers(model: DeepKernel, x: Tensor, y: Tensor, asked: Tensor) -> Tensor:
    """The mean at ``asked [T, Q, 1]`` given the points of each task."""
    model.set_train_data(x, y, strict=False)
    model.eval()
    model.likelihood.eval()
    with torch.no_grad(), warnings.catch_warnings(action="ignore"):
        found: Tensor = model(asked).mean
    return found


def deep_kernel_adaptation() -> Callable[[], object]:
    model, _ = trained(1e-3)
    x, y = (part[:1] for part in sines())
    shot = WORK.sine_shot
    return lambda: answers(model, x[:, :shot], y[:, :shot], x[:, shot:])


def raced(lr: float, folder: Path, seconds: float) -> dict[str, Any]:
    """The mean squared error after that long."""
    tasks = saved(folder / "curves.bytes")
    model, step = trained(lr)

    def figure() -> float:
        found = answers(model, tasks["support_x"], tasks["support_y"], tasks["query_x"])
        return float((found - tasks["query_y"]).square().mean())

    return race(step, figure, seconds)


RACERS = {"lr 0.001": 1e-3, "lr 0.01": 1e-2}

if __name__ == "__main__":
    asked = in_race()
    if asked:
        print(json.dumps(raced(RACERS[asked[0]], *asked[1:])))
    else:
        pieces = {"deep kernel step": lambda: trained(1e-3)[1], "deep kernel adaptation": deep_kernel_adaptation}
        serve_peer(pieces, f"gpytorch {version('gpytorch')}")
