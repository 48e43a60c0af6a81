"""What no learner can beat on sine tasks: exact limits, in the interface of a learner.

Both know the distribution of tasks; neither has a parameter. ``AffineLimit`` bounds every predictor that is
affine in the support's y, as MetaVRF is when its context sees only x. ``BayesLimit`` bounds every predictor.
"""

from __future__ import annotations

import math

import numpy as np
import torch
from torch import Tensor

from metavrf.episodes import Episodes
from metavrf.errors import UserError
from metavrf.learners.base import Learner, Prediction
from metavrf.tasks.functions import FunctionFamily, Sine

NEGLIGIBLE = 1e-9  # posterior weight
JITTER = 1e-9  # of the prior variance; the tasks are noise-free


def sine_limits(family: FunctionFamily) -> dict[str, Learner]:
    """The limits by name, or none for a family whose limits are not known."""
    if not isinstance(family, Sine):
        return {}
    return {"best affine predictor": AffineLimit(family), "Bayes-optimal": BayesLimit(family)}


def _quadrature(low: float, high: float, nodes: int) -> tuple[Tensor, Tensor]:
    """Gauss-Legendre points and weights of the uniform distribution on [low, high]."""
    if low == high:
        return torch.tensor([low], dtype=torch.double), torch.ones(1, dtype=torch.double)
    points, weights = np.polynomial.legendre.leggauss(nodes)
    return torch.from_numpy(0.5 * (low + high) + 0.5 * (high - low) * points), torch.from_numpy(weights / 2)


def _waves(x: Tensor, frequency: Tensor) -> Tensor:
    """sin(wx) and cos(wx) for every frequency: ``[..., 2, W]`` of ``x [...]``."""
    angle = x.unsqueeze(-1) * frequency
    return torch.stack([angle.sin(), angle.cos()], dim=-2)


class AffineLimit(Learner):
    """The exact Gaussian process of the task distribution: its mean and covariance, by quadrature.

    A·sin(wx + b) = A·cos b·sin(wx) + A·sin b·cos(wx), so moments of A and b suffice for each w.
    """

    def __init__(self, family: Sine) -> None:
        super().__init__()
        (a_low, a_high), phase = family.parameters["amplitude"], family.parameters["phase"]
        b, b_weight = _quadrature(*phase, 64)
        ab = torch.stack([b.cos(), b.sin()])  # [2, B]
        self.amplitude = 0.5 * (a_low + a_high)
        amplitude_square = (a_low**2 + a_low * a_high + a_high**2) / 3
        self.first = self.amplitude * (ab @ b_weight)  # E[A cos b], E[A sin b]
        self.second = amplitude_square * (ab * b_weight) @ ab.mT  # [2, 2]
        self.frequency, self.weight = _quadrature(*family.parameters["frequency"], 32)

    def solve(self, episodes: Episodes, generator: torch.Generator | None = None) -> Prediction:
        """Gaussian process regression in double precision."""
        size = episodes.support_x.shape[1]
        x = torch.cat([episodes.support_x, episodes.query_x], dim=1).squeeze(-1).double()
        waves = _waves(x, self.frequency)  # [T, N, 2, W]
        mean = torch.einsum("tnaw,a,w->tn", waves, self.first, self.weight)
        moved = torch.einsum("tnaw,ab,w->tnbw", waves, self.second, self.weight)
        covariance = moved.flatten(2) @ waves.flatten(2).mT - mean.unsqueeze(-1) * mean.unsqueeze(-2)
        scale = self.second.trace()
        gram = covariance[:, :size, :size] + JITTER * scale * torch.eye(size, dtype=torch.double)
        factor = torch.linalg.cholesky(gram)
        cross = torch.linalg.solve_triangular(factor, covariance[:, :size, size:], upper=False)  # [T, S, Q]
        residual = episodes.support_y.double() - mean[:, :size, None]
        fit = mean[:, size:, None] + cross.mT @ torch.linalg.solve_triangular(factor, residual, upper=False)
        variance = covariance.diagonal(dim1=1, dim2=2)[:, size:] - cross.square().sum(1)
        std = (variance.clamp_min(0) + JITTER * scale).sqrt().unsqueeze(-1)
        return Prediction(fit.float(), fit.float().unsqueeze(0), std.float())


class BayesLimit(Learner):
    """The posterior mean over A, w and b, by a fine grid over w.

    Given w, the curve is linear in u = A·cos b and v = A·sin b. Its likelihood under a very small noise is a
    narrow Gaussian around the least-squares (u, v), where the prior of (u, v) is flat: 1/A inside the ranges of A
    and b. The weight of each w follows. With noise 0.003 the figures are exact to about 1e-5.
    """

    NOISE = 3e-3
    GRID = 4001
    CHUNK = 4  # tasks at once: those few rule out most frequencies together

    def __init__(self, family: Sine) -> None:
        super().__init__()
        low, high = family.parameters["frequency"]
        self.amplitude, self.phase = family.parameters["amplitude"], family.parameters["phase"]
        self.frequency = torch.linspace(low, high, 1 if low == high else self.GRID, dtype=torch.double)

    def solve(self, episodes: Episodes, generator: torch.Generator | None = None) -> Prediction:
        """Posterior mean and deviation; needs two support points or more."""
        if episodes.support_x.shape[1] < 2:
            raise UserError("the Bayes limit needs at least 2 shots")
        parts = [self._solve(chunk) for chunk in episodes.batches(self.CHUNK)]
        mean, variance = (torch.cat(part).unsqueeze(-1) for part in zip(*parts, strict=True))
        return Prediction(mean.float(), mean.float().unsqueeze(0), (variance + self.NOISE**2).sqrt().float())

    def _solve(self, episodes: Episodes) -> tuple[Tensor, Tensor]:
        x, y = episodes.support_x.squeeze(-1).double(), episodes.support_y.squeeze(-1).double()
        sine, cosine = _waves(x, self.frequency).unbind(2)  # [T, S, W]
        # Least squares for (u, v) at each w: the 2 x 2 normal equations, by hand and for all at once.
        ss, cc, sc = sine.square().sum(1), cosine.square().sum(1), (sine * cosine).sum(1)  # [T, W]
        sy, cy = torch.einsum("tsw,ts->tw", sine, y), torch.einsum("tsw,ts->tw", cosine, y)
        determinant = (ss * cc - sc.square()).clamp_min(1e-12)
        u, v = (cc * sy - sc * cy) / determinant, (ss * cy - sc * sy) / determinant
        misfit = (y.unsqueeze(-1) - u.unsqueeze(1) * sine - v.unsqueeze(1) * cosine).square().sum(1)
        amplitude, inside = self._prior(u, v)
        log_weight = -misfit / (2 * self.NOISE**2) - 0.5 * determinant.log() - amplitude.log()
        # Where no grid point lies inside the ranges (the truth is at their edge), the prior gives way to the fit.
        inside = inside | ~inside.any(1, keepdim=True)
        weight = torch.softmax(log_weight.masked_fill(~inside, -math.inf), dim=1)  # [T, W]
        likely = weight.amax(0) > NEGLIGIBLE  # most frequencies are ruled out for every task of the chunk
        weight, uv = weight[:, likely], torch.stack([u, v])[:, :, likely]
        angle = episodes.query_x.squeeze(-1).double().unsqueeze(-1) * self.frequency[likely]  # [T, Q, W]
        curves = uv[0].unsqueeze(1) * angle.sin() + uv[1].unsqueeze(1) * angle.cos()
        mean = (curves @ weight.unsqueeze(-1)).squeeze(-1)
        variance = ((curves - mean.unsqueeze(-1)).square() @ weight.unsqueeze(-1)).squeeze(-1)
        return mean, variance

    def _prior(self, u: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        """Amplitude of (u, v), and whether it and the phase lie in the family's ranges (to the noise)."""
        amplitude = torch.hypot(u, v).clamp_min(1e-6)
        phase = torch.atan2(v, u)  # of (cos b, sin b)
        slack = self.NOISE / amplitude
        (a_low, a_high), (b_low, b_high) = self.amplitude, self.phase
        turn = 2 * math.pi
        offset = torch.remainder(phase - b_low + slack, turn) - slack
        inside = (amplitude >= a_low - self.NOISE) & (amplitude <= a_high + self.NOISE)
        return amplitude, inside & (offset <= b_high - b_low + slack)
