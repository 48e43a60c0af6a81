"""GPyTorch: a step of deep kernel learning on sine tasks, all tasks of a batch at once."""

from __future__ import annotations

import math
from collections.abc import Callable
from importlib.metadata import version

import gpytorch
import torch
from common import serve_peer, work
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


def deep_kernel_step() -> Callable[[], object]:
    torch.manual_seed(0)
    likelihood = gpytorch.likelihoods.GaussianLikelihood()
    model = DeepKernel(*sines(), likelihood).train()
    objective = gpytorch.mlls.ExactMarginalLogLikelihood(likelihood, model)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)

    def step() -> None:
        x, y = sines()
        model.set_train_data(x, y, strict=False)
        optimizer.zero_grad()
        (-objective(model(x), y).mean()).backward()
        optimizer.step()

    return step


if __name__ == "__main__":
    serve_peer({"deep kernel step": deep_kernel_step}, f"gpytorch {version('gpytorch')}")
