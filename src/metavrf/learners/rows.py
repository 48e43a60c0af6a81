"""Rows of numbers that no model was trained on: many exact kernels, weighted by how well they explain the support.

The prior over kernels is a few hundred candidates, drawn once. Bayes' rule, in closed form, says which of them a task
is made of, and the prediction is their mixture. Nothing is fitted by gradient. Two families of candidates:

- on standardised columns, k = (1 - b)·exp(-½Σ sⱼ²δⱼ²)·cos(Σ ωⱼδⱼ) + b·Σ sⱼ²zⱼz'ⱼ/Σ sⱼ²: smooth plus linear, on random
  columns with random lengths 1/s; waves ω for one column;
- on rows of length 1 (features of a network), exp(-½‖u - u'‖²/ℓ²), with or without square roots and centring.

Regression weighs by evidence, the amplitude a² integrated out under an inverse gamma prior, which makes it a Student t.
Classes weigh by the leave-one-out likelihood of softmax(γ·fit + log frequency), γ in a grid; by evidence where each has
one sample.
"""

from __future__ import annotations

import math
from typing import ClassVar, NamedTuple, Self

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor, nn

from metavrf.episodes import Episodes
from metavrf.errors import UserError
from metavrf.kernels.mixing import mix
from metavrf.learners.adapted import Answer
from metavrf.learners.base import Learner, Prediction
from metavrf.learners.untrained import Untrained
from metavrf.nn.mlp import Raw
from metavrf.spec import TaskSpec

CANDIDATES, REFINED = 200, 100
MOST_ROWS = 400  # that weigh all candidates; a larger task chooses them on so many of its rows
MOST_EXACT = 4000  # rows; a larger task is solved on random features
VALUES_AT_ONCE = 250_000  # of kernels between rows while candidates are weighed: what a cache holds
MOST_VALUES = 8_000_000  # of the kernels of an answer
KEPT, NEGLIGIBLE = 32, 1e-3  # components of the answer; the weight beside the heaviest's below which none is kept
FREEDOM = 4.0  # of the amplitude's prior, whose scale is the targets' variance
GAMMAS = (1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0)
USUAL_GAMMA, USUAL_OF_UNITS = 8.0, 32.0  # rows of length 1 are all alike: what tells them apart is small
COMMENSURABLE = 10  # columns that share the variance: with fewer, one unit of measure drowns the others
LENGTHS = (0.35, 0.53, 0.79, 1.2, 1.8, 2.7, 4.0)  # of rows of length 1
NOISES = (0.01, 0.1, 1.0)
LEAST_NOISE = 1e-6


class Standardised(nn.Module):
    """Kernels on standardised columns, between any rows and the support's."""

    own: ClassVar[tuple[str, ...]] = ("scale", "wave", "linear", "noise")
    centre: Tensor
    deviation: Tensor
    support: Tensor
    scale: Tensor
    wave: Tensor
    linear: Tensor
    noise: Tensor

    def __init__(self, **tensors: Tensor) -> None:
        """``scale`` s and ``wave`` ω are ``[K, d]``, ``linear`` b and ``noise`` λ ``[K]``, ``support [S, d]``."""
        super().__init__()
        for name, tensor in tensors.items():
            self.register_buffer(name, tensor)

    @classmethod
    def on(cls, x: Tensor, **own: Tensor) -> Self:
        """On a support ``x [S, d]``. A constant column says nothing and has no part in any kernel."""
        centre, deviation = x.mean(0), x.std(0, correction=0)
        varies = deviation > 1e-10 * x.abs().amax(0)
        deviation = torch.where(varies, deviation, 1.0)
        own |= {"scale": own["scale"] * varies, "wave": own["wave"] * varies}
        return cls(**own, centre=centre, deviation=deviation, support=(x - centre) / deviation)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """K̃ ``[K, N, S]`` and k(x, x) ``[K, N]`` of rows ``x [N, d]``."""
        z = (x - self.centre) / self.deviation
        ours, theirs = z * self.scale.unsqueeze(1), self.support * self.scale.unsqueeze(1)
        length, other = ours.square().sum(-1), theirs.square().sum(-1)
        inner = ours @ theirs.mT
        smooth = (inner - 0.5 * length.unsqueeze(-1)).sub_(0.5 * other.unsqueeze(-2)).exp_()  # in place: may be large
        if self.waves:
            ours, theirs = self.wave @ z.mT, self.wave @ self.support.mT
            smooth *= torch.cos(ours.unsqueeze(-1) - theirs.unsqueeze(-2))
        smoothness = 1 - self.linear.unsqueeze(-1)
        slope = (self.linear / self.scale.square().sum(-1).clamp_min(1e-12)).unsqueeze(-1)
        kernel = inner.mul_(slope.unsqueeze(-1)).addcmul_(smoothness.unsqueeze(-1), smooth)
        return kernel, smoothness + slope * length

    @property
    def waves(self) -> bool:
        """Whether any kernel is one."""
        return self.scale.shape[1] == 1

    def chosen(self, index: Tensor) -> Self:
        """Some of the kernels."""
        return type(self)(**{name: t[index] if name in self.own else t for name, t in self.named_buffers()})

    def on_support(self, x: Tensor) -> Self:
        """The same kernels on another support."""
        return type(self).on(x, **{name: getattr(self, name) for name in self.own})

    def lengths(self) -> Tensor:
        """``[K, d]``, in the units of the columns; infinite where a column has no part."""
        return self.deviation / self.scale

    def relevance(self) -> Tensor:
        """``[K, d]``: how much each column counts, beside the most relevant."""
        share = self.scale.square()
        return share / share.amax(1, keepdim=True).clamp_min(1e-12)


class UnitLength(Standardised):
    """Gaussian kernels on rows scaled to length 1, of which there are four views: with square roots, centred."""

    own: ClassVar[tuple[str, ...]] = ("view", "length", "noise")
    view: Tensor
    length: Tensor

    @classmethod
    def grid(cls, x: Tensor, ridge: float | None) -> Self:
        """All candidates on a support ``x [S, d]``."""
        noises = NOISES if ridge is None else (ridge,)
        grid = torch.cartesian_prod(torch.arange(4.0), torch.tensor(LENGTHS), torch.tensor(noises)).to(x)
        return cls.on(x, view=grid[:, 0].long(), length=grid[:, 1], noise=grid[:, 2])

    @classmethod
    def on(cls, x: Tensor, **own: Tensor) -> Self:
        """On a support ``x [S, d]``."""
        centre = torch.stack([cls.unit(x).mean(0), cls.unit(cls.rooted(x)).mean(0)])
        made = cls(**own, centre=centre, support=x[:0])
        made.support = made.views(x)
        return made

    @staticmethod
    def unit(x: Tensor) -> Tensor:
        """Rows of length 1."""
        return F.normalize(x, dim=-1)

    @staticmethod
    def rooted(x: Tensor) -> Tensor:
        """Square roots, with the sign kept."""
        return x.sign() * x.abs().sqrt()

    def views(self, x: Tensor) -> Tensor:
        """``[4, N, d]``."""
        plain, rooted = self.unit(x), self.unit(self.rooted(x))
        return torch.stack([plain, rooted, self.unit(plain - self.centre[0]), self.unit(rooted - self.centre[1])])

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """K̃ ``[K, N, S]`` and k(x, x) ``[K, N]`` of rows ``x [N, d]``."""
        if len(self.view) < len(self.support):
            inner = self.views(x)[self.view] @ self.support[self.view].mT
        else:
            inner = (self.views(x) @ self.support.mT)[self.view]
        kernel = inner.sub_(1).div_(self.length.square()[:, None, None]).exp_()
        return kernel, torch.ones_like(kernel[..., 0])

    def lengths(self) -> Tensor:
        """``[K, d]``, of rows of length 1."""
        return self.length.unsqueeze(1).expand(-1, self.support.shape[-1])

    def relevance(self) -> Tensor:
        """``[K, d]``: all columns alike."""
        return torch.ones_like(self.lengths())


class Kernels(nn.Module):
    """The candidates of both families as one list."""

    def __init__(self, families: list[Standardised]) -> None:
        super().__init__()
        self.families = nn.ModuleList([family for family in families if len(family.noise)])

    @property
    def noise(self) -> Tensor:
        """``[K]``."""
        return torch.cat([family.noise for family in self._families()])

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """K̃ ``[K, N, S]`` and k(x, x) ``[K, N]`` of rows ``x [N, d]``."""
        kernels, own = zip(*(family(x) for family in self.families), strict=True)
        return torch.cat(kernels), torch.cat(own)

    def chosen(self, index: Tensor) -> Kernels:
        """Some of them, in the order of the list: ``index`` must rise."""
        parts, start = [], 0
        for family in self._families():
            inside = (index >= start) & (index < start + len(family.noise))
            parts.append(family.chosen(index[inside] - start))
            start += len(family.noise)
        return Kernels(parts)

    def lengths(self) -> Tensor:
        """``[K, d]``."""
        return torch.cat([family.lengths() for family in self._families()])

    def relevance(self) -> Tensor:
        """``[K, d]``."""
        return torch.cat([family.relevance() for family in self._families()])

    def on_support(self, x: Tensor) -> Kernels:
        """The same kernels on another support ``x [S, d]``."""
        return Kernels([family.on_support(x) for family in self._families()])

    def linear(self) -> Tensor:
        """``[K]``, the linear share."""
        return torch.cat([getattr(family, "linear", torch.zeros_like(family.noise)) for family in self._families()])

    def _families(self) -> list[Standardised]:
        return list(self.families)  # type: ignore[arg-type]


class Targets(NamedTuple):
    """What ridge regression fits, ``values [S, p]`` = (y - offset)/gain; of classes ``offset [C]`` are frequencies."""

    values: Tensor
    offset: Tensor
    gain: Tensor
    labels: Tensor | None

    @classmethod
    def of(cls, task: Episodes) -> Targets:
        """Of the support of one task."""
        if task.way is not None:
            y = F.one_hot(task.support_y[0], task.way).double()
            offset = (y.mean(0) * len(y) + 1e-3) / (len(y) + 1e-3 * task.way)  # of a class without samples too
            return cls(y - offset, offset, torch.ones_like(offset), task.support_y[0])
        y = task.support_y[0].double()
        gain = y.std(0, correction=0)
        gain = torch.where(gain > 1e-12 * y.abs().amax(0), gain, 1.0)
        return cls((y - y.mean(0)) / gain, y.mean(0), gain, None)

    def known(self) -> Tensor:
        """``[S]``: whether others of the sample's class are left without it."""
        assert self.labels is not None
        return self.labels.bincount()[self.labels] > 1

    def some(self, rows: Tensor) -> Targets:
        """Of some of the rows, and of the classes that they have."""
        if self.labels is None:
            return self._replace(values=self.values[rows])
        present, labels = torch.unique(self.labels[rows], return_inverse=True)
        share = self.offset[present] / self.offset[present].sum()
        return Targets(self.values[rows][:, present], share, self.gain[present], labels)


class Solved(NamedTuple):
    """Ridge regression under K kernels.

    Attributes:
        factor: L ``[K, S, S]``, with LLᵀ = K + λI.
        white: L⁻¹Y ``[K, S, p]``.
        amplitude: a² given the targets, ``[K, p]``, or ``[K, 1]`` of classes.
        evidence: log p(Y|X), ``[K]``.
    """

    factor: Tensor
    white: Tensor
    amplitude: Tensor
    evidence: Tensor

    def left_out(self, targets: Tensor) -> Tensor:
        """What each sample is predicted as by the others, ``[K, S, p]``: y - α/P with P the diagonal of A⁻¹."""
        inverse = torch.cholesky_inverse(self.factor)
        return targets - inverse @ targets / inverse.diagonal(dim1=-2, dim2=-1).unsqueeze(-1)


def solve(gram: Tensor, noise: Tensor, targets: Targets) -> Solved:
    """With ``gram [K, S, S]``, to which λ ``noise [K]`` is added in place."""
    values = targets.values
    samples, outputs = values.shape
    gram.diagonal(dim1=-2, dim2=-1).add_(noise.unsqueeze(1))
    factor, info = torch.linalg.cholesky_ex(gram)
    if bool(info.any()):
        raise UserError(
            f"the kernel matrix is not positive definite at ridge = {noise.min().item():g}: give a larger one"
        )
    white = torch.linalg.solve_triangular(factor, values.expand(len(gram), -1, -1), upper=False)
    energy = white.square().sum(-2)  # [K, p]
    log_det = 2 * factor.diagonal(dim1=-2, dim2=-1).log().sum(-1)
    count = samples
    if targets.labels is not None:
        energy, count = energy.sum(-1, keepdim=True), samples * outputs
    freedom = FREEDOM + count
    evidence = -0.5 * (outputs * log_det + freedom * torch.log1p(energy / FREEDOM).sum(-1))
    constant = math.lgamma(freedom / 2) - math.lgamma(FREEDOM / 2) - 0.5 * count * math.log(math.pi * FREEDOM)
    evidence = evidence + energy.shape[-1] * constant
    return Solved(factor, white, (FREEDOM + energy) / (freedom - 2), evidence)


class RowsPredictor(nn.Module):
    """A mixture of P kernels conditioned on one task: a plain module that answers as :class:`Adapted`."""

    log_weights: Tensor
    index: Tensor
    solution: Tensor
    offset: Tensor
    evidence: Tensor
    gamma: Tensor
    root: Tensor
    amplitude: Tensor

    def __init__(self, kernels: Kernels, **tensors: Tensor) -> None:
        """With ``solution [P, S, p]`` of kernel ``index [P]``; of classes ``gamma [P]`` is in it already.

        In regression ``root`` L⁻¹ is ``[P, S, S]`` and ``amplitude`` a² ``[P, p]``.
        """
        super().__init__()
        self.kernels = kernels
        for name, tensor in tensors.items():
            self.register_buffer(name, tensor)

    @property
    def at_once(self) -> int:
        """Rows to answer for at a time."""
        samples, outputs = self.solution.shape[1:]
        return max(1, MOST_VALUES // (len(self.index) * max(samples, outputs)))

    def described(self) -> dict[str, NDArray[np.float64]]:
        """Weights, lengths, linear share and noise of the kernels, the heaviest first, and the relevance of columns."""
        number = len(self.kernels.noise)
        weights = torch.zeros(number).to(self.log_weights).index_add_(0, self.index, self.log_weights.exp())
        order = weights.argsort(descending=True)
        relevance = weights @ self.kernels.relevance()
        found = {"weights": weights, "lengths": self.kernels.lengths(), "linear": self.kernels.linear()}
        arrays = {name: tensor[order].numpy() for name, tensor in (found | {"noise": self.kernels.noise}).items()}
        return arrays | {"relevance": relevance.numpy()}

    def forward(self, x: Tensor) -> Answer:
        """Probabilities ``[N, C]`` of ``x [N, d]``; in regression mean and standard deviation, ``[N, p]`` each."""
        kernel, prior = self.kernels(x)
        kernel = kernel[self.index]  # [P, N, S]
        weights = self.log_weights.unsqueeze(1)
        samples = (kernel @ self.solution + self.offset).unsqueeze(1)  # [P, 1, N, p]
        if hasattr(self, "gamma"):
            return mix(samples, None, weights)[0][0].softmax(-1)
        explained = (self.root @ kernel.mT).square().sum(-2)
        process = (prior[self.index] - explained).clamp_min(0) + self.kernels.noise[self.index].unsqueeze(1)
        variance = (process.unsqueeze(-1) * self.amplitude.unsqueeze(1)).unsqueeze(1)
        mean, std = mix(samples, variance, weights)
        assert std is not None
        return mean[0], std[0]


class Rows(Learner):
    """A mixture of exact kernels, in double precision; nothing in it is trained."""

    scale: Tensor
    wave: Tensor
    linear: Tensor
    noise: Tensor
    moves: Tensor

    def __init__(
        self, columns: int, *, regression: bool, generator: torch.Generator, ridge: float | None = None
    ) -> None:
        """``ridge`` fixes the noise λ of all candidates."""
        if ridge is not None and not ridge > 0:
            raise UserError(f"the ridge penalty must be positive, but {ridge = }")
        self.ridge, self.columns = ridge, columns
        super().__init__(Raw(columns), TaskSpec((columns,), targets=1 if regression else None), generator=generator)
        self.double()
        self.eval().requires_grad_(False)

    def setup(self, generator: torch.Generator) -> None:
        """Draw the candidates: columns, lengths, waves, linear share, noise."""
        self.seed = generator.initial_seed()

        def normal(*shape: int) -> Tensor:
            return torch.randn(*shape, generator=generator, dtype=torch.double)

        def uniform(*shape: int) -> Tensor:
            return torch.rand(*shape, generator=generator, dtype=torch.double)

        count, columns = CANDIDATES, self.columns
        taking = uniform(count, 1).mul(1.5).clamp_max(1)  # a third take all columns
        use = uniform(count, columns) < taking
        use[torch.arange(count), torch.randint(columns, (count,), generator=generator)] = True
        length = 1.5 * use.sum(1, keepdim=True).sqrt() * torch.exp(0.7 * normal(count, 1))
        relevance = torch.exp(0.5 * normal(count, columns))
        scale = use * relevance / length
        noise = 0.1 * torch.exp(1.5 * normal(count))
        wave = torch.zeros_like(scale)
        linear = uniform(count).mul(1.5).sub(0.25).clamp(0, 1)
        if columns == 1:
            scale = torch.exp(math.log(0.05) + uniform(count, 1) * math.log(100)).reciprocal()
            wave = torch.exp(math.log(0.8) + uniform(count, 1) * math.log(15)) * (uniform(count, 1) < 0.6)
            linear = linear * (wave[:, 0] == 0)
            noise = torch.exp(math.log(1e-6) + uniform(count) * math.log(1e6))
        for name, tensor in {
            "scale": scale,
            "wave": wave,
            "linear": linear,
            "noise": noise.clamp_min(LEAST_NOISE),
        }.items():
            self.register_buffer(name, tensor)
        self.register_buffer("moves", normal(REFINED, columns + 3))

    def solve(self, episodes: Episodes, memory: object = None, generator: torch.Generator | None = None) -> Prediction:
        """Solve tasks one by one."""
        answers = [self.adapted(task, embedded=True)(task.query_x[0].double()) for task in episodes.batches(1)]
        if episodes.way is not None:
            mean = torch.stack(answers).log()
            return Prediction(mean, mean.unsqueeze(0))
        mean, std = (torch.stack(parts) for parts in zip(*answers, strict=True))
        return Prediction(mean, mean.unsqueeze(0), std)

    @torch.no_grad()
    def adapted(self, episodes: Episodes, *, embedded: bool = False) -> nn.Module:
        """The mixture that the support of one task chooses."""
        x, targets = episodes.support_x[0].double(), Targets.of(episodes)
        if len(x) > MOST_EXACT:
            generator = torch.Generator().manual_seed(self.seed)
            plain = Untrained(self.columns, regression=targets.labels is None, generator=generator, ridge=self.ridge)
            return plain.adapted(episodes, embedded=True)
        kernels, score = self.weighed(x, targets)
        return self.conditioned(kernels, score, x, targets)

    def weighed(self, x: Tensor, targets: Targets) -> tuple[Kernels, Tensor]:
        """The candidates of a task and their log weights up to a constant, ``[K]``, or ``[K, G]`` of classes."""
        rows = _some_rows(targets, len(x), self.seed)
        x, targets = x[rows], targets.some(rows)
        families = self.families(x)
        kernels = Kernels(families)
        score = self.scores(kernels, x, targets)
        if isinstance(families[0], UnitLength):
            return kernels, score
        refined = self.refined(families[0], score[: len(families[0].noise)])
        more = Kernels([refined, *families])
        return more, torch.cat([self.scores(Kernels([refined]), x, targets), score])

    def families(self, x: Tensor) -> list[Standardised]:
        """The candidates on a support ``x [S, d]``.

        Rows of length 1 make sense where many columns share the variance, as in the features of a network; columns are
        not standardised there unless there are more rows than columns.
        """
        variance = x.var(0, correction=0)
        shared = variance.sum().square() / variance.square().sum().clamp_min(torch.finfo(x.dtype).tiny)
        unit = [UnitLength.grid(x, self.ridge)] if shared >= COMMENSURABLE else []
        if unit and x.shape[1] > x.shape[0]:
            return list(unit)
        noise = self.noise if self.ridge is None else torch.full_like(self.noise, self.ridge)
        return [Standardised.on(x, scale=self.scale, wave=self.wave, linear=self.linear, noise=noise), *unit]

    def refined(self, family: Standardised, score: Tensor) -> Standardised:
        """More candidates about the heavy ones, each of which has as many as its weight."""
        weight = score.flatten(1).logsumexp(1).softmax(0)
        marks = (torch.arange(REFINED, dtype=weight.dtype) + 0.5) / REFINED
        parent = torch.searchsorted(weight.cumsum(0), marks).clamp_max(len(weight) - 1)
        made = family.chosen(parent)
        columns = self.columns
        made.scale = made.scale * torch.exp(0.4 * self.moves[:, :columns])
        made.wave = made.wave * torch.exp(0.05 * self.moves[:, columns : columns + 1])
        made.linear = (made.linear + 0.2 * self.moves[:, columns + 1]).clamp(0, 1)
        if self.ridge is None:
            made.noise = (made.noise * torch.exp(0.7 * self.moves[:, columns + 2])).clamp_min(LEAST_NOISE)
        return made

    def scores(self, kernels: Kernels, x: Tensor, targets: Targets) -> Tensor:
        """Log evidence ``[K, 1]``; of classes the log leave-one-out likelihood ``[K, G]``, where it can be."""
        samples, columns = x.shape
        size = max(samples, columns)
        if targets.labels is not None:
            size = max(size, len(GAMMAS) * targets.values.shape[1])
        parts = []
        for index in torch.arange(len(kernels.noise)).split(max(1, VALUES_AT_ONCE // (samples * size))):
            some = kernels.chosen(index)
            solved = solve(some(x)[0], some.noise, targets)
            parts.append(self.score(solved, targets, USUAL_OF_UNITS if columns > samples else USUAL_GAMMA))
        return torch.cat(parts)

    def score(self, solved: Solved, targets: Targets, usual: float) -> Tensor:
        """Of kernels that are solved, as :meth:`scores`; ``usual`` γ is the centre of its prior."""
        if targets.labels is None:
            return solved.evidence.unsqueeze(1)
        gamma = targets.values.new_tensor(GAMMAS)
        prior = -0.5 * (torch.log(gamma / usual) / math.log(2)).square()
        known = targets.known()
        if not bool(known.any()):
            return solved.evidence.unsqueeze(1) + prior
        fit = solved.left_out(targets.values)[:, known]
        logits = gamma.view(-1, 1, 1) * fit.unsqueeze(1) + targets.offset.log()  # [K, G, S, C]
        labels = targets.labels[known]
        right = logits.gather(-1, labels.expand(*logits.shape[:2], -1).unsqueeze(-1)).squeeze(-1)
        return (right - logits.logsumexp(-1)).sum(-1) + 0.25 * prior

    def conditioned(self, kernels: Kernels, score: Tensor, x: Tensor, targets: Targets) -> RowsPredictor:
        """The heavy candidates, solved on the whole support."""
        most = min(KEPT, max(1, MOST_VALUES // len(x) ** 2))
        log_weights, pairs = score.flatten().sort(descending=True, stable=True)
        kept = (log_weights - log_weights[0] > math.log(NEGLIGIBLE)) & (torch.arange(len(pairs)) < most)
        log_weights, pairs = log_weights[kept].log_softmax(0), pairs[kept]
        number, index = torch.unique(pairs // score.shape[1], return_inverse=True)
        chosen = kernels.chosen(number).on_support(x)
        solved = solve(chosen(x)[0], chosen.noise, targets)
        solution = torch.linalg.solve_triangular(solved.factor.mT, solved.white, upper=True)[index]
        evidence = torch.logsumexp(solved.evidence[index] + log_weights, 0)
        common = {"log_weights": log_weights, "index": index, "evidence": evidence}
        if targets.labels is not None:
            gamma = targets.values.new_tensor(GAMMAS)[pairs % score.shape[1]]
            solution, offset = gamma[:, None, None] * solution, targets.offset.log()
            return RowsPredictor(chosen, **common, solution=solution, offset=offset, gamma=gamma)
        identity = torch.eye(len(x), dtype=x.dtype).expand_as(solved.factor)
        root = torch.linalg.solve_triangular(solved.factor, identity, upper=False)[index]
        amplitude = (solved.amplitude * targets.gain.square())[index]
        solution = solution * targets.gain
        return RowsPredictor(chosen, **common, solution=solution, offset=targets.offset, root=root, amplitude=amplitude)

    @torch.no_grad()
    def left_out(self, support: Episodes, rows: Tensor) -> Tensor | None:
        """Probabilities ``[N, C]`` of some support samples given the others, in closed form.

        The weights of the kernels are without the sample's own likelihood.
        """
        x, targets = support.support_x[0].double(), Targets.of(support)
        predictor = self.adapted(support, embedded=True)
        if targets.labels is None or not isinstance(predictor, RowsPredictor):
            return None
        solved = solve(predictor.kernels(x)[0], predictor.kernels.noise, targets)
        fit = solved.left_out(targets.values)[:, rows][predictor.index]
        logits = (predictor.gamma[:, None, None] * fit + predictor.offset).log_softmax(-1)  # [P, N, C]
        own = logits.gather(-1, targets.labels[rows].expand(len(logits), -1).unsqueeze(-1)).squeeze(-1)
        weights = (predictor.log_weights.unsqueeze(1) - own).log_softmax(0)
        return torch.logsumexp(logits + weights.unsqueeze(-1), 0).exp()


def _some_rows(targets: Targets, samples: int, seed: int) -> Tensor:
    """All rows, or of too many some: of classes as many of each, and at most a quarter as many classes as rows."""
    if samples <= MOST_ROWS:
        return torch.arange(samples)
    order = torch.randperm(samples, generator=torch.Generator().manual_seed(seed))
    if targets.labels is None:
        return order[:MOST_ROWS].sort().values
    labels = targets.labels[order]
    by_label = labels.argsort(stable=True)
    counts = labels.bincount(minlength=len(targets.offset))
    rank = torch.empty_like(labels)
    rank[by_label] = torch.arange(samples) - (counts.cumsum(0) - counts).repeat_interleave(counts)
    far = (labels >= MOST_ROWS // 4) * samples  # classes beyond come last
    return order[(rank + far).argsort(stable=True)[:MOST_ROWS]].sort().values
