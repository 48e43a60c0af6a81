"""Rows of numbers of any kind: many exact kernels, weighted by how well they explain the support.

The prior over kernels is a few hundred candidates, drawn once, and those that a trained network proposes for the task
at hand, half the prior mass each. Bayes' rule, in closed form, says which of them a task is made of, and the prediction
is their mixture. Nothing is fitted by gradient. Three families of candidates:

- on standardised columns, k = (1 - b)·exp(-½Σ sⱼ²δⱼ²)·cos(Σ ωⱼδⱼ) + b·Σ sⱼ²zⱼz'ⱼ/Σ sⱼ²: smooth plus linear, on random
  columns with random lengths 1/s; waves ω for one column;
- on rows of length 1 (features of a network), exp(-½‖u - u'‖²/ℓ²), with or without square roots and centring;
- on binary columns, cos(π·Σ δⱼ) over subsets of them: parity.

Regression weighs by evidence, the amplitude a² integrated out under an inverse gamma prior, which makes it a Student t.
Some of its kernels are faint, nearly all noise: where columns say nothing, they win, and the answer is about the mean.
Of many rows a few weigh all candidates first, and only those that these favour are weighed on all.
Classes weigh by the likelihood of softmax(γ·fit + log frequency), γ in a grid, each row predicted by those before it.
Like evidence that is a distribution over labels, so a kernel that fits a few rows by luck gains little; and the factor
of ridge regression has those predictions at no cost. Where each class has one sample, they weigh by evidence.
Rows of length 1 are all alike, and so are fits on them; there γ is about what makes up for that, in closed form. Where
they stand alone, as more columns than rows, half the log likelihood of each row given the others weighs them.
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from metavrf.episodes import Episodes
from metavrf.errors import UserError
from metavrf.kernels.rows import Kernels, Parity, Standardised, UnitLength
from metavrf.learners.base import Learner, Prediction
from metavrf.learners.row_mixture import MOST_VALUES, RowsPredictor, Solved, Targets, solve
from metavrf.learners.untrained import Untrained
from metavrf.nn.columns import Proposals, Proposer
from metavrf.nn.mlp import Raw
from metavrf.spec import TaskSpec

CANDIDATES, REFINED = 200, 100
MOST_ROWS = 400  # that weigh all candidates; a larger task chooses them on so many of its rows
MOST_EXACT = 4000  # rows; a larger task is solved on random features
SCREENED, SCREENED_OF_CLASS, SURVIVORS = 24, 4, 64  # rows on which all candidates are weighed, the best of which go on
VALUES_AT_ONCE = 175_000  # of kernels between rows while candidates are weighed: what a cache holds
KEPT, NEGLIGIBLE = 32, 1e-3  # components of the answer; the weight beside the heaviest's below which none is kept
GAMMAS = (0.5, 1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0)
USUAL_GAMMA = 1.0
USUAL_ALONE = 8.0  # where each class has one sample
# On rows of length 1: the gap of logits of many samples, how many make half of it, and powers of two about γ for it.
GAP, HALF_GAP = 8.4, 2.4
STEPS = (-5.0, -3.5, -2.25, -1.25, -0.5, 0.0, 0.5, 1.25)
STEP_BREADTH, STEP_BREADTH_ALONE = 0.5, 0.75
TEMPER = 0.5  # of the likelihood of each row given the others: no distribution over labels, and too sure as one
BREADTH = 2.0**0.5  # of the prior of γ in powers of two; 1 where each class has one sample
COMMENSURABLE = 10  # columns that share the variance: with fewer, one unit of measure drowns the others
MOST_PROPOSED = 100  # columns of a table that kernels are proposed for
LEAST_NOISE = 1e-6
FAINT, FAINT_NOISE = 100, (0.5, 50.0)  # more candidates for real targets, which explain little; their noise
SINGLE_PRECISION = 1e-4  # noise from which it is enough to weigh kernels


class Rows(Learner):
    """A mixture of exact kernels, in double precision; only the network that proposes some of them is trained."""

    scale: Tensor
    wave: Tensor
    linear: Tensor
    noise: Tensor
    moves: Tensor

    def __init__(
        self,
        columns: int,
        *,
        regression: bool,
        generator: torch.Generator,
        ridge: float | None = None,
        proposer: Proposer | None = None,
    ) -> None:
        """``ridge`` fixes the noise λ of all candidates; ``proposer`` looks at a task and adds some."""
        if ridge is not None and not ridge > 0:
            raise UserError(f"the ridge penalty must be positive, but {ridge = }")
        self.ridge, self.columns, self.regression = ridge, columns, regression
        super().__init__(Raw(columns), TaskSpec((columns,), targets=1 if regression else None), generator=generator)
        self.proposer = proposer
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
        drawn = {"scale": scale, "wave": wave, "linear": linear, "noise": noise.clamp_min(LEAST_NOISE)}
        self.register_buffer("moves", normal(REFINED, columns + 3))
        if self.regression:  # the same kernels with other noise, beside them: few of many columns find what matters
            least, most = FAINT_NOISE
            faint = drawn | {"noise": torch.exp(math.log(least) + uniform(count) * math.log(most / least))}
            drawn = {name: torch.cat([tensor, faint[name][:FAINT]]) for name, tensor in drawn.items()}
        for name, tensor in drawn.items():
            self.register_buffer(name, tensor)

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
        rows = rows[_mixed(x[rows], targets.some(rows), self.seed)]
        x, targets = x[rows], targets.some(rows)
        families, log_prior = self.candidates(x, targets)
        if isinstance(families[0], UnitLength):
            kernels = Kernels(families)
            return kernels, self.scores(kernels, targets)
        chosen = self.screened(families[0], log_prior, targets)
        first = families[0].chosen(chosen)
        kernels = Kernels([first, *families[1:]])
        log_prior = torch.cat([log_prior[chosen], log_prior[len(families[0].noise) :]])
        score = self.scores(kernels, targets) + log_prior.unsqueeze(1)
        refined, parent = self.refined(first, score[: len(chosen)])
        more = Kernels([refined, *kernels.families])
        of_refined = self.scores(Kernels([refined]), targets) + log_prior[parent].unsqueeze(1)
        return more, torch.cat([of_refined, score])

    def screened(self, family: Standardised, log_prior: Tensor, targets: Targets) -> Tensor:
        """Which of the drawn kernels the first rows weigh most: the others are not worth all rows."""
        samples, outputs = targets.values.shape
        rows = SCREENED if targets.labels is None else max(SCREENED, SCREENED_OF_CLASS * outputs)
        if rows >= samples:
            return torch.arange(len(family.noise))
        score = self.scores(Kernels([family.first(rows)]), targets.some(torch.arange(rows))).logsumexp(1)
        best = (score + log_prior[: len(score)]).topk(min(SURVIVORS, len(score)))
        return best.indices.sort().values

    def candidates(self, x: Tensor, targets: Targets) -> tuple[list[Standardised], Tensor]:
        """The families on a support ``x [S, d]``, proposals in the first, and the log prior ``[K]`` of all kernels.

        Proposals share as much prior mass as the drawn kernels beside them, so that they cost those half of it at most.
        """
        families = self.families(x)
        first = families[0]
        proposed = None if isinstance(first, UnitLength) else self.proposed(first, targets)
        log_prior = torch.zeros(sum(len(family.noise) for family in families)).to(x)
        if proposed is None:
            return families, log_prior
        count = len(first.noise)
        noise = proposed.noise[0] if self.ridge is None else torch.full_like(proposed.noise[0], self.ridge)
        own = {"scale": proposed.scale[0], "wave": torch.zeros_like(proposed.scale[0])}
        own |= {"linear": proposed.linear[0], "noise": noise}
        both = {name: torch.cat([getattr(first, name), tensor]) for name, tensor in own.items()}
        joined = Standardised.on(x, **both)
        of_proposals = math.log(count) + proposed.log_prior[0]
        return [joined, *families[1:]], torch.cat([log_prior[:count], of_proposals, log_prior[count:]])

    def proposed(self, family: Standardised, targets: Targets) -> Proposals | None:
        """What the network proposes for a task; columns that are constant have no part, in it or in what it sees."""
        varies = (family.support != 0).any(0)
        count = int(varies.sum())
        if self.proposer is None or not 0 < count <= MOST_PROPOSED:
            return None
        z, y = family.support[:, varies].unsqueeze(0), targets.values - targets.values.mean(0)
        found = self.proposer(z, y.unsqueeze(0), classes=targets.labels is not None)
        scale = found.scale.new_zeros(*found.scale.shape[:2], len(varies))
        scale[..., varies] = found.scale
        return found._replace(scale=scale)

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
        standardised = Standardised.on(x, scale=self.scale, wave=self.wave, linear=self.linear, noise=noise)
        return [standardised, *Parity.subsets(x, self.ridge), *unit]

    def refined(self, family: Standardised, score: Tensor) -> tuple[Standardised, Tensor]:
        """More candidates about the heavy ones, each of which has as many as its weight; and what each is about."""
        parent = torch.repeat_interleave(*_drawn(score.logsumexp(1), REFINED))
        made = family.chosen(parent)
        columns = self.columns
        made.scale = made.scale * torch.exp(0.4 * self.moves[:, :columns])
        made.wave = made.wave * torch.exp(0.05 * self.moves[:, columns : columns + 1])
        made.linear = (made.linear + 0.2 * self.moves[:, columns + 1]).clamp(0, 1)
        if self.ridge is None:
            made.noise = (made.noise * torch.exp(0.7 * self.moves[:, columns + 2])).clamp_min(LEAST_NOISE)
        return made, parent

    def scores(self, kernels: Kernels, targets: Targets) -> Tensor:
        """Log evidence ``[K, 1]``; of classes ``[K, G]`` that of rows predicted in turn, in the order they have."""
        samples = len(targets.values)
        size = max(samples, self.columns)
        others = all(isinstance(family, UnitLength) for family in kernels.families)
        if targets.labels is not None:
            size = max(size, len(GAMMAS) * targets.values.shape[1])
        at_once = max(1, VALUES_AT_ONCE // (samples * size))
        dtype = torch.float if float(kernels.noise.min()) >= SINGLE_PRECISION else torch.double
        targets = targets.to(dtype)
        parts = []
        for family in kernels.families:
            plain, units = family.to(dtype), isinstance(family, UnitLength)
            for start in range(0, len(family.noise), at_once):
                some = plain.chosen(slice(start, start + at_once))
                gram = some.gram()
                gamma = None if targets.labels is None else gammas(some, gram, targets.labels)
                solved = solve(gram, some.noise, targets)
                parts.append(self.score(solved, targets, gamma, units=units, others=others))
        return torch.cat(parts).double()

    def score(
        self, solved: Solved, targets: Targets, gamma: Tensor | None, *, units: bool, others: bool = False
    ) -> Tensor:
        """Of kernels that are solved, as :meth:`scores`, with ``gamma [K, G]``; ``units`` are rows of length 1.

        With ``others`` each row is predicted by all others instead of those before it.
        """
        if gamma is None or targets.labels is None:
            return solved.evidence.unsqueeze(1)
        alone = not bool(targets.known().any())
        log_prior = prior_of_steps(gamma, alone=alone) if units else prior_of_gamma(gamma[0], alone=alone)
        known = targets.labels.bincount()[targets.labels] > 1 if others else targets.known()
        if alone:
            return solved.of_contrasts().unsqueeze(1) + log_prior
        fit = solved.left_out(targets.values) if others else solved.in_turn(targets.values)
        fit, labels = fit[:, known], targets.labels[known]
        start = targets.offset.log()
        right = fit.gather(-1, labels.expand(len(fit), -1).unsqueeze(-1))
        wrong = torch.arange(fit.shape[-1]) != labels.unsqueeze(1)  # [S, C]
        gap = (fit - right)[:, wrong].unflatten(1, (len(labels), -1))  # [K, S, C - 1]
        head = (start - start[labels].unsqueeze(1))[wrong].unflatten(0, (len(labels), -1))
        logits = torch.addcmul(head, gamma[:, :, None, None], gap.unsqueeze(1))  # [K, G, S, C - 1]
        against = logits.squeeze(-1) if logits.shape[-1] == 1 else logits.logsumexp(-1)
        return -(TEMPER if others else 1.0) * F.softplus(against).sum(-1) + log_prior

    def conditioned(self, kernels: Kernels, score: Tensor, x: Tensor, targets: Targets) -> RowsPredictor:
        """Kernels drawn from the candidates by their weights, solved on the whole support.

        Where weights are alike, as of a few rows, the heaviest would be the luckiest: their mixture is far too sure.
        """
        number, count = _drawn(score.logsumexp(1), min(KEPT, max(1, MOST_VALUES // len(x) ** 2)))
        chosen = kernels.chosen(number).on_support(x)
        gram = chosen.gram()
        if targets.labels is not None:
            parts = zip(chosen.families, gram.split([len(family.noise) for family in chosen.families]), strict=True)
            scales = torch.cat([gammas(family, part, targets.labels) for family, part in parts])
        solved = solve(gram, chosen.noise, targets)
        solution = torch.linalg.solve_triangular(solved.factor.mT, solved.white, upper=True)
        weights = count.to(score).log().unsqueeze(1) + score[number].log_softmax(1)  # [K, G]
        index, scale = (weights - weights.max() > math.log(NEGLIGIBLE)).nonzero(as_tuple=True)
        log_weights = weights[index, scale].log_softmax(0)
        evidence = torch.logsumexp(solved.evidence[index] + log_weights, 0)
        common = {"log_weights": log_weights, "index": index, "evidence": evidence}
        if targets.labels is not None:
            gamma, offset = scales[index, scale], targets.offset.log()
            return RowsPredictor(chosen, **common, solution=solution, offset=offset, gamma=gamma)
        identity = torch.eye(len(x), dtype=x.dtype).expand_as(solved.factor)
        root = torch.linalg.solve_triangular(solved.factor, identity, upper=False)
        amplitude = solved.amplitude * targets.gain.square()
        known = {"targets": targets.values * targets.gain, "offset": targets.offset, "gain": targets.gain}
        solution = solution * targets.gain
        return RowsPredictor(chosen, **common, **known, solution=solution, root=root, amplitude=amplitude)

    @torch.no_grad()
    def left_out(self, support: Episodes, rows: Tensor) -> Tensor | None:
        """Probabilities ``[N, C]`` of some support samples given the others, in closed form.

        The weights of the kernels are without the sample's own likelihood.
        """
        targets, predictor = Targets.of(support), self.adapted(support, embedded=True)
        if targets.labels is None or not isinstance(predictor, RowsPredictor):
            return None
        solved = solve(predictor.kernels.gram(), predictor.kernels.noise, targets)
        fit = solved.left_out(targets.values)[:, rows][predictor.index]
        logits = (predictor.gamma[:, None, None] * fit + predictor.offset).log_softmax(-1)  # [P, N, C]
        own = logits.gather(-1, targets.labels[rows].expand(len(logits), -1).unsqueeze(-1)).squeeze(-1)
        weights = (predictor.log_weights.unsqueeze(1) - own).log_softmax(0)
        return torch.logsumexp(logits + weights.unsqueeze(-1), 0).exp()


def gammas(kernels: Standardised, gram: Tensor, labels: Tensor) -> Tensor:
    """The logit scales of kernels with a support ``gram [K, S, S]``, from small to large: ``[K, G]``.

    On rows of length 1 they stand about the one that makes the logits' usual gap of the fit's: fits are as different as
    lengths and noises are, and so few samples hardly say by how much.
    """
    if not isinstance(kernels, UnitLength):
        return gram.new_tensor(GAMMAS).expand(len(gram), -1)
    shots = len(labels) / len(labels.unique())
    usual = GAP * shots / (shots + HALF_GAP) / kernels.standing_out(gram, labels)
    return usual.unsqueeze(1) * 2 ** gram.new_tensor(STEPS)


def prior_of_steps(like: Tensor, *, alone: bool) -> Tensor:
    """Log prior of the logit scales of rows of length 1, Student's t: features of another kind may differ by much."""
    breadth = STEP_BREADTH_ALONE if alone else STEP_BREADTH
    return -1.5 * torch.log1p((like.new_tensor(STEPS) / breadth).square() / 2)


def prior_of_gamma(gamma: Tensor, *, alone: bool) -> Tensor:
    """Log prior of other logit scales up to a constant, where each class has one sample (``alone``) or more."""
    usual = USUAL_ALONE if alone else USUAL_GAMMA
    breadth = math.log(2) * (1 if alone else BREADTH)
    return -0.5 * (torch.log(gamma / usual) / breadth).square()


def _drawn(score: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """Which candidates are drawn, at even steps, by weights whose logarithms are ``score [K]``, and how often each."""
    weight = score.softmax(0)
    marks = (torch.arange(count, dtype=weight.dtype) + 0.5) / count
    found = torch.searchsorted(weight.cumsum(0), marks).clamp_max(len(weight) - 1)
    return torch.unique_consecutive(found, return_counts=True)


def _mixed(x: Tensor, targets: Targets, seed: int) -> Tensor:
    """An order of rows ``x [S, d]`` in which classes take turns; it is the same whatever order they came in."""
    generator = torch.Generator().manual_seed(seed)
    direction = torch.randn(x.shape[1], generator=generator, dtype=x.dtype)
    labels = targets.labels
    order = (targets.values[:, 0] if labels is None else labels).argsort(stable=True)
    order = order[(x[order] @ direction).argsort(stable=True)]
    order = order[torch.randperm(len(x), generator=generator)]
    return order if labels is None else order[_turn(labels[order], generator).argsort(stable=True)]


def _turn(labels: Tensor, generator: torch.Generator) -> Tensor:
    """``[S]``: how much of its class, as a share, stands before a sample, at random within its own place."""
    counts = labels.bincount()
    by_label = labels.argsort(stable=True)
    rank = torch.empty_like(labels)
    rank[by_label] = torch.arange(len(labels)) - (counts.cumsum(0) - counts).repeat_interleave(counts)
    return (rank + torch.rand(len(labels), generator=generator)) / counts[labels]


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
