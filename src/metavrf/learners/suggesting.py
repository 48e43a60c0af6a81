"""Which samples to label next: those whose labels would tell most of what is not yet known, given each other.

Under a kernel the answers are a Gaussian process. A label at x lowers the variance at t by c(x, t)²/(v(x) + λ),
whatever it is. So a whole batch can be chosen in closed form: the best sample first, then the best once that one is
known, and so on. The kernels of the mixture are averaged.

- Classes: what a label lowers is counted where the class is open, and the sample's own class must be open too. Open is
  1 minus the gap between the two likeliest classes.
- Real targets: the sample whose distribution is widest, over kernels and within them. With noise that is alike
  everywhere, this is the label with the greatest expected information (BALD).
"""

from __future__ import annotations

import torch
from torch import Tensor

from metavrf.learners.row_mixture import RowsPredictor

MOST_KERNELS = 8  # the heaviest
MOST_ASKED = 200  # samples of a pool at which variance is lowered


@torch.no_grad()
def suggest(predictor: RowsPredictor, pool: Tensor, count: int, generator: torch.Generator) -> list[int]:
    """The numbers of ``count`` rows of ``pool [N, d]``, the most wanted first, beside the predictor's support."""
    of_kernel = torch.zeros_like(predictor.kernels.noise).index_add_(0, predictor.index, predictor.log_weights.exp())
    heavy = of_kernel.topk(min(MOST_KERNELS, len(of_kernel))).indices.sort().values
    weights = (of_kernel[heavy] / of_kernel[heavy].sum()).unsqueeze(1)
    kernels = predictor.kernels.chosen(heavy)
    noise = kernels.noise.unsqueeze(1)
    gram = kernels.gram()
    gram.diagonal(dim1=-2, dim2=-1).add_(noise)
    cross, prior = kernels(pool)
    known = torch.linalg.solve_triangular(torch.linalg.cholesky(gram), cross.mT, upper=False)  # [K, S, N]
    variance = (prior - known.square().sum(1)).clamp_min(0)  # [K, N]

    def covariance(rows: Tensor) -> Tensor:
        """``[K, N, R]``, given what is known."""
        return kernels(pool, pool[rows])[0] - known.mT @ known[..., rows]

    classes = hasattr(predictor, "gamma")
    if classes:
        asked = torch.randperm(len(pool), generator=generator)[:MOST_ASKED]
        unsure = _open(predictor(pool))
        together = covariance(asked)
    else:
        samples, _ = predictor.components(pool)
        share = predictor.log_weights.exp()[:, None, None]
        means = samples[:, 0] / predictor.gain  # [P, N, p]
        apart = (share * (means - (share * means).sum(0)).square()).sum((0, 2))  # [N], of the kernels' means
        size = torch.zeros_like(of_kernel)
        size[predictor.index] = (predictor.amplitude / predictor.gain.square()).sum(-1)
        size = size[heavy].unsqueeze(1)
    chosen: list[int] = []
    for _ in range(count):
        if classes:
            lowered = (together.square() @ unsure[asked]) / (variance + noise)
            score = unsure * (weights * lowered).sum(0)
        else:
            score = apart + (weights * size * (variance + noise)).sum(0)
        score[chosen] = -torch.inf
        best = int(score.argmax())
        chosen.append(best)
        now = covariance(torch.tensor([best]))[..., 0]
        now = now / (now[:, best : best + 1].clamp_min(0) + noise).sqrt()  # [K, N]
        known = torch.cat([known, now.unsqueeze(1)], 1)
        variance = (variance - now.square()).clamp_min(0)
        if classes:
            together -= now.unsqueeze(-1) * now[:, asked].unsqueeze(1)
    return chosen


def _open(probabilities: Tensor) -> Tensor:
    """How open the class of each sample is, between 0 and 1."""
    if probabilities.shape[1] == 1:
        return torch.ones_like(probabilities[:, 0])
    first, second = probabilities.topk(2, dim=1).values.unbind(1)
    return 1 - first + second
