"""MetaVRF: learning to learn kernels with variational random features (Zhen, Sun, Du et al., ICML 2020).

From a task's support set, and from the tasks before it, an inference network predicts the distribution of random
Fourier bases, that is, the kernel of this task; ridge regression with that kernel solves it in closed form. Beyond the
paper, the posterior is a mixture of many kernels, each weighted by its evidence on the support. Nothing is fine-tuned
at test time.

Numbers in comments are the steps of ``docs/method.md``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor, nn

from metavrf.episodes import Episodes
from metavrf.errors import UserError
from metavrf.kernels import ridge
from metavrf.kernels.mixing import log_weights
from metavrf.kernels.ridge import Fit
from metavrf.kernels.search import Combs, search
from metavrf.kernels.shapes import KINDS, Shapes, search_shapes
from metavrf.kernels.spectral import Exact, Spectral
from metavrf.learners.adapted import AdaptedMixture
from metavrf.learners.head import MixtureHead
from metavrf.learners.inferred import Inference
from metavrf.learners.kernel import (
    CLASSES,
    KERNEL_PRESETS,
    PAPER,
    START_LOG_VARIANCE,
    KernelLearner,
    KernelSettings,
    one_kernel,
)
from metavrf.learners.prototypical import nearest_prototype
from metavrf.learners.start import spread
from metavrf.nn.combs import CombPrior
from metavrf.nn.inference import Carry, Context, Memory, Prior, TaskSummary, mean_kl
from metavrf.nn.mixture import Mixture, MixturePosterior
from metavrf.nn.mlp import GaussianMLP
from metavrf.nn.recall import OWN, Recall
from metavrf.nn.shapes import ShapePrior
from metavrf.prediction import Prediction
from metavrf.settings import Count, Natural, NotNegative, Positive, added

NOTHING = Memory()
NOISY = 1e-3  # noise in units of the amplitude, from which on it is the noise of observations


@dataclass(frozen=True)
class MetaVRFSettings(KernelSettings):
    """MetaVRF: kernels, ridge regression, and how the kernels are inferred."""

    context: Literal["none", "bayes", "lstm", "bilstm"] = "bilstm"
    """What the kernels are inferred from: this task alone, or the tasks before it too. 'bayes' carries the kernels'
    weights from task to task of a stream, and learns nothing for it."""
    context_inputs: Literal["x", "xy"] = "x"
    """Does the context see the support's inputs only (the paper's reading) or its targets too?"""
    context_skip: bool = True
    """Add this task's own summary to the LSTM's output, which is bounded and slow to learn to pass it on."""
    context_size: Natural = added(0, before=0)
    """Units of the LSTM of many kernels. It reads what each task's support says of every kernel, corrects the weights
    that are carried on, and places kernels between the others. With 0 it has as many as there are features, and reads
    the task's summary, as with one kernel."""
    between: bool = added(False, before=False)
    """With context = 'bayes', place two kernels of the task's own between the others, as an LSTM does."""
    components: Count = 1
    """Number M of kernels, each weighted by its evidence on the support; 1 is the paper's."""
    combs: Natural = 0
    """How many of these kernels are combs: harmonics of one frequency, for functions that repeat themselves."""
    guards: Natural = 0
    """How many of these kernels are not learned: broad ones, with more noise, for tasks unlike any seen in training."""
    rough: Natural = 0
    """How many of these kernels are rough, Matérn's instead of Gaussian: for functions that bend sharply."""
    candidates: Natural = 0
    """Periodic kernels of each task's own, beside these: this many are kept of over a thousand that are tried, from
    coarse to fine. For functions whose period matters to a thousandth."""
    shapes: Natural = added(0, before=0)
    """Kernels of each task's own that stand for waves, for ramps that repeat and for steps: this many of each are kept
    of thousands that are tried. For functions that jump, or whose frequency matters to a hundredth."""
    moves: bool = True
    """Move the kernels by what a network infers from the support, beside weighing them (with 2 kernels or more)."""
    evidence: Literal["marginal", "leave-one-out"] = "marginal"
    """What weighs the kernels of classes: ridge regression's evidence, or how well each sample is predicted by the
    others (with 2 shots or more)."""
    noise: Positive = 1e-4
    """Noise of each of many kernels at the start, in units of its amplitude; it is learned. From 0.001 on, observations
    are taken to be noisy: the likelihood starts with hardly any tails."""
    kl_weight: NotNegative = 1e-3
    """Weight of the KL divergence in the loss; 1 is the paper's."""
    prototype_weight: NotNegative = 0.0
    """Weight of a prototypical network's loss on the same features, in classification: it teaches the embedding where
    samples are so far apart that the kernel has no gradient left. 0 is the paper's."""

    def check(self) -> None:
        """Combs, guards and rough kernels must leave others."""
        super().check()
        if self.components > 1 and self.combs + self.guards + self.rough >= self.components:
            raise UserError(
                f"combs = {self.combs}, guards = {self.guards} and rough = {self.rough} leave no other of the "
                f"{self.components} kernels"
            )
        if self.context == "bayes" and self.components < 2:
            raise UserError("context = 'bayes' carries the weights of kernels on: it needs --components of 2 or more")
        if self.between and self.context != "bayes":
            raise UserError(f"between = true is for context = 'bayes', not {self.context!r}")


# Many kernels, for functions (docs/inference.md): one model for any number of points.
MANY_KERNELS: dict[str, Any] = {
    "embedding": "raw",
    "moves": False,
    "components": 64,
    "guards": 9,
    "context": "none",
    "context_inputs": "xy",
    "context_size": 32,
    "train_kernel": "exact",
    "kl_weight": 0.0,
    "lr": 4e-3,
    "iterations": 12_000,
    "train_shot": 2,
    "most_shot": 20,
}
GAUSSIAN_PROCESSES: dict[str, Any] = {  # tasks have sizes of their own
    "shot": 12,
    "batch": 16,
    "train_shot": 0,
    "most_shot": 0,
    "noise": 1e-3,
    "rough": 16,
    "lr": 8e-3,
    "iterations": 1500,
    "validate_every": 500,
    "validate_tasks": 500,
}
PERIODIC_TOO: dict[str, Any] = GAUSSIAN_PROCESSES | {
    "batch": 8,
    "guards": 6,
    "rough": 26,
    "candidates": 64,
    "iterations": 800,
    "validate_every": 400,
    "validate_tasks": 200,
}
CURVES: dict[str, Any] = {  # measured, in few groups: the network warps the inputs and carries what groups share
    "embedding": "mlp",
    "components": 32,
    "guards": 3,
    "rough": 8,
    "noise": 0.03,
    "lr": 1e-2,
    "iterations": 400,
}
SEQUENCE = 4  # tasks of a training batch of classes whose context is recurrent, each of as many fewer classes


class Weighed(NamedTuple):
    """Many kernels and what the support gave them.

    Attributes:
        gram: K | K̃ ``[K, T, S, S + Q]``.
        kernels: repeated where bases were drawn several times.
        fit: ridge regression under each.
        log_weights: ``[K, T]``.
        at_queries: the mean function there ``[K, T, Q, p]``; None for classes.
        memory: after these tasks.
    """

    gram: Tensor
    kernels: Spectral
    fit: Fit
    log_weights: Tensor
    at_queries: Tensor | None
    memory: Memory


class MetaVRF(KernelLearner):
    """Ridge regression with kernels inferred for each task, from it and the tasks before it. See the module."""

    citation = "Zhen et al., Learning to learn kernels with variational random features, ICML 2020"
    Settings = MetaVRFSettings
    presets = KERNEL_PRESETS | {
        "functions": MANY_KERNELS,
        "curves": CURVES,
        "classes": CLASSES | {"context": "none", "noise": 0.1},
        "omniglot": {"prototype_weight": 1.0},
        "mixed": {"combs": 8, "shapes": 16, "iterations": 1000, "validate_every": 500},
        "gp-rbf": GAUSSIAN_PROCESSES,
        "gp-matern": GAUSSIAN_PROCESSES,
        "gp-periodic": PERIODIC_TOO,
        "gp-mixed": PERIODIC_TOO,
    }
    paper = {
        "all": PAPER
        | {
            "context": "bilstm",
            "context_inputs": "x",
            "context_skip": False,
            "context_size": 0,
            "components": 1,
            "combs": 0,
            "guards": 0,
            "rough": 0,
            "candidates": 0,
            "shapes": 0,
            "kl_weight": 1.0,
            "prototype_weight": 0.0,
        }
    }

    def setup(self, generator: torch.Generator) -> None:
        """Where the training tasks come in streams, evidence is carried from task to task."""
        super().setup(generator)
        settings, features, targets, stream = self.settings, self.features, self.spec.targets, self.spec.stream
        self.stream_length = stream
        labels = settings.context_inputs == "xy"
        many = settings.components > 1
        recurrent = settings.context in ("lstm", "bilstm")
        recalls = many and ((recurrent and settings.context_size > 0) or settings.between)
        looks = not many or settings.moves or (recurrent and not recalls)  # or the evidence alone tells tasks apart
        self.context = Context("none" if recalls else settings.context, features, skip=settings.context_skip)
        self.summary = TaskSummary(features, targets, labels=labels) if looks else None
        self.prior = Prior(features) if not many or (settings.moves and settings.kl_weight) else None
        if self.prior is not None and not settings.kl_weight:
            self.prior.requires_grad_(False)  # nothing is learned of it: training leaves it out
        if not many:
            # From x alone, starting all tasks alike avoids poor minima; with y it slows the encoder down.
            self.posterior: GaussianMLP | MixturePosterior = GaussianMLP(
                self.context.size, features, features, alike=not labels
            )
            self.carry = self.combs = self.shapes = self.recall = None
            for name in ("candidates", "shapes"):
                if count := getattr(settings, name):
                    raise UserError(
                        f"{name} = {count} are weighed beside --components of 2 or more: give --{name} 0 too"
                    )
            return
        self.recall = Recall(settings.context, settings.components, settings.context_size) if recalls else None
        self.head = MixtureHead(
            settings.components + (OWN if recalls else 0),
            features,
            targets=targets,
            gamma=settings.gamma,
            evidence=settings.evidence,
            tried=settings.candidates,
            shapes=len(KINDS) * settings.shapes,
            noisy=settings.noise >= NOISY,
        )
        self.log_power = nn.Parameter(torch.zeros(()))  # log τ
        self.posterior = MixturePosterior(
            settings.components,
            features,
            self.context.size if looks else 0,
            combs=settings.combs,
            guards=settings.guards,
            rough=settings.rough,
            moves=settings.moves,
            noise=settings.noise,
        )
        carries = settings.context == "bayes" or (recurrent and stream > 1)
        self.carry = Carry(learned=recurrent) if carries and not recalls else None
        self.components = settings.components
        self.combs = CombPrior(features) if settings.candidates else None
        self.shapes = ShapePrior(features) if settings.shapes else None
        for name in ("candidates", "shapes"):
            if (count := getattr(settings, name)) and (targets is None or carries or recalls):
                raise UserError(
                    f"{name} = {count} are kernels of one task of a function: leave them out for classes and where "
                    "weights are carried from task to task"
                )

    @classmethod
    def arranged(cls, config: Any, asked: Mapping[str, Any]) -> Any:
        """With a recurrent context of classes a step has several tasks, so that gradients flow from task to task."""
        recurrent = asked.get("context") in ("lstm", "bilstm") and config.preset == "default"
        if config.kind == "functions" or not recurrent:
            return config
        ways = max(config.episode.way, config.episode.train_way // SEQUENCE)
        return config.with_options(batch=SEQUENCE * config.episode.batch, train_way=ways)

    @torch.no_grad()
    def initialise(self, episodes: Episodes) -> None:
        """Of functions, also start all bases close to one ω, whose phase ωᵀz grows evenly with the input.

        A kernel is even in the mean of its bases, so at zero that mean has no gradient. Bases that start about it but
        wide become narrow first and forget their mean on the way; where the phase then comes to rise on both sides of
        a fold, the training seldom gets out again. ω is fitted to the (sum of the) inputs by least squares, and
        scaled to phases that are ``PHASES_APART`` between two samples on average. Many kernels start at multiples of
        it, where the evidence of these tasks is.
        """
        super().initialise(episodes)
        if isinstance(self.posterior, MixturePosterior):
            omega = self.even_phase(episodes) if self.combs is not None or self.shapes is not None else None
            if omega is None:
                spread(self, self.posterior, episodes)
                return
            amplitude = float(episodes.support_y.square().mean())
            rival: Tensor | None = None
            if self.combs is not None:
                self.combs.start_at(omega, amplitude, self.settings.noise)
                rival = self._periodic_evidence(self.placed(self.embedded(episodes))[0])
            spread(self, self.posterior, episodes, rival)
            if self.shapes is not None:
                phase = self.rescale(self.embedding(episodes.support_x)) @ omega
                self.shapes.start_at(omega, phase, amplitude, self.settings.noise)
        elif episodes.way is None and self.settings.aligned and self.settings.context_inputs == "x":
            omega = self.even_phase(episodes)
            if omega is not None:
                self.posterior.start_at(omega, START_LOG_VARIANCE)

    @torch.no_grad()
    def adapted(self, episodes: Episodes, *, embedded: bool = False) -> nn.Module:
        """The task's predictor in closed form: nothing is left to solve when it is asked."""
        folds = self.epsilon is None and episodes.tasks == 1 and self.inductive_statistics == "running"
        if not isinstance(self.head, MixtureHead) or not folds:
            return super().adapted(episodes, embedded=embedded)
        episodes.check_finite()
        episodes = episodes.to(self.device)
        with self.at_test_time():
            task, _ = self.placed(episodes.looked_up() if embedded else self.embedded(episodes))
            found = self._weigh(task, self._infer(task, None)[0])
            gram = found.gram[..., : task.support_x.shape[1]]
            solution = self.head.solution(gram, found.kernels, found.log_weights, task)
        return AdaptedMixture(
            nn.Identity() if embedded else self.embedding, self.rescale_by(), solution, self.temperature_for(task)
        )

    def remember(self, prediction: Prediction) -> None:
        """Let the next training step start from the state this one left; streams each start anew."""
        if self.stream_length == 1 and isinstance(prediction.memory, Memory):
            (self.context if self.recall is None else self.recall.context).remember(prediction.memory)

    def infer(self, episodes: Episodes) -> Spectral:
        """q(ω|h), h the context of the task's summary."""
        return self._infer(episodes, None)[0]

    def _infer(self, episodes: Episodes, memory: Memory | None) -> tuple[Spectral, Memory, Any]:
        """The kernels (2, 3, 4), the state of the context, and what was inferred of the bases: μ and log σ²."""
        h, state = None, Memory()
        if self.summary is not None:
            h, state = self.context(self.summary(episodes), memory, episodes.stream)
        if isinstance(self.posterior, GaussianMLP):
            assert h is not None
            mean, log_variance = self.posterior(h)
            return one_kernel(mean, torch.exp(0.5 * log_variance)), state, (mean, log_variance)
        mixture: Mixture = self.posterior(h, episodes.tasks)
        if self.recall is not None:
            mixture, state = self.recall(mixture, self._evidence(episodes, mixture), memory, episodes.stream)
        q = Spectral(*mixture[:7])
        q = q if self.combs is None and self.shapes is None else self._with_own(q, episodes)
        return q if self.training or episodes.way is not None else _doubted(q, episodes), state, mixture.inferred

    def _evidence(self, episodes: Episodes, mixture: Mixture) -> Tensor:
        """What the support says of the kernels that all tasks share, to the power τ: ``[M, T]``."""
        assert isinstance(self.head, MixtureHead)
        q, task = Spectral(*mixture[:7]), episodes.asking(episodes.query_x[:, :0])
        gram = Exact().gram(task.support_x, q, task.support_x.shape[1])
        return self.log_power.exp() * self.head.evidence(self.head.fit(gram, q, task), q, gram, task)

    def _with_own(self, q: Spectral, episodes: Episodes) -> Spectral:
        """The kernels, after them the periodic ones and before them the shapes that were found for each task.

        See ``kernels/search.py`` and ``kernels/shapes.py``. Gradients reach what all tasks share of them, not their
        frequencies.
        """
        assert isinstance(self.head, MixtureHead)
        log_others = torch.logsumexp(q.log_prior[:, 0], 0)
        residual = (episodes.support_y - self.head.line(episodes.support_x)).double()
        if self.combs is not None:
            q = q.joined(self._found_combs(episodes, residual, log_others))
        if self.shapes is not None:
            shapes = Shapes(*self.shapes(log_others))
            phase = (episodes.support_x @ self.shapes.direction).double()
            found = search_shapes(phase, residual, shapes, self.settings.shapes)
            q = shapes.of(found, self.shapes.direction).joined(q)
        return q

    def _found_combs(self, episodes: Episodes, residual: Tensor, log_others: Tensor) -> Spectral:
        """The periodic kernels found for each task, beside others whose prior weights sum to exp(``log_others``)."""
        assert self.combs is not None
        combs = Combs(*self.combs(log_others))
        phase = (episodes.support_x @ self.combs.direction).double()  # [T, S]
        return combs.of(search(phase, residual, combs, self.settings.candidates), self.combs.direction)

    def _periodic_evidence(self, episodes: Episodes) -> Tensor:
        """The log evidence of each task's own periodic kernels together, ``[T]``."""
        assert isinstance(self.head, MixtureHead)
        targets, samples = episodes.support_y.double(), episodes.support_x.shape[1]
        q = self._found_combs(episodes, targets, self.log_power.new_zeros(()))
        fit = ridge.solve(Exact().gram(episodes.support_x, q, samples), targets, self.head.noise(q))
        return (q.log_prior + fit.log_evidence(q.amplitude.double())).logsumexp(0)

    def solve(
        self, episodes: Episodes, memory: Memory | None = None, generator: torch.Generator | None = None
    ) -> Prediction:
        """Solve embedded (1) tasks; in training mode they are a sequence, in evaluation independent of each other.

        Tasks of a stream are a sequence at any time. ``memory`` is that of the tasks before, where there were any; the
        prediction's is for the tasks to come.
        """
        embedded = episodes
        episodes, _ = self.placed(episodes)
        q, state, inferred = self._infer(episodes, memory)  # 2, 3, 4: q(ω|h)
        if isinstance(self.head, MixtureHead):
            found = self._weigh(episodes, q, state, memory, generator)
            prediction = self.head.predict(found.fit, found.kernels, found.log_weights, episodes, found.at_queries)
            state = found.memory
        else:
            prediction = self.regress(episodes, q, generator)  # 6, 7, 8
        loss, terms = prediction.loss, dict(prediction.terms)
        if loss is None:
            return replace(prediction, memory=state)
        if self.prior is not None and inferred is not None and self.settings.kl_weight:
            keys = episodes.prototypes(episodes.support_x)
            prior = self.prior(episodes.query_x, keys)  # 5: p(ω|x, S)
            terms["kl"] = mean_kl(*inferred, *prior)  # over queries
            loss = loss + self.settings.kl_weight * terms["kl"]  # 9: the negative ELBO
        if self.settings.prototype_weight and episodes.way is not None:  # beyond the paper
            terms["prototypical"] = nearest_prototype(embedded).terms["nll"]
            loss = loss + self.settings.prototype_weight * terms["prototypical"]
        return replace(prediction, loss=loss, terms=terms, memory=state)

    def _weigh(
        self,
        episodes: Episodes,
        q: Spectral,
        state: Memory = NOTHING,
        memory: Memory | None = None,
        generator: torch.Generator | None = None,
    ) -> Weighed:
        """Steps 6 to 8 under each kernel, and Bayes' rule over them: w ∝ π(h)·p(Y_S|X_S, kernel)^τ."""
        assert isinstance(self.head, MixtureHead)
        kernel, q = self._gram(episodes, q, generator)
        at_support, at_queries = self.head.mean_functions(q, episodes)
        fit = self.head.fit(kernel, q, episodes, at_support)
        evidence = self.log_power.exp() * self.head.evidence(fit, q, kernel, episodes)
        log_prior = q.log_prior
        if self.carry is not None and (episodes.stream > 1 or not self.training):
            carried, after = self.carry(evidence, memory, episodes.stream)
            log_prior, state = log_prior + carried, state._replace(evidence=after)
        return Weighed(kernel, q, fit, log_weights(log_prior, evidence), at_queries, state)

    def _gram(self, episodes: Episodes, q: Spectral, generator: torch.Generator | None) -> tuple[Tensor, Spectral]:
        """K | K̃ ``[K, T, S, S + Q]``, and the kernels repeated where bases were drawn several times."""
        z = episodes.samples()
        kernel = self.kernel(generator).gram(z, q, episodes.support_x.shape[1])
        times = len(kernel) // len(q.mean)
        return kernel, q if times == 1 else q.repeated(times)

    @torch.no_grad()
    def spectrum(self, episodes: Episodes, grid: Tensor) -> tuple[Tensor, Tensor]:
        """Where each kernel's peak is over the input, and what the support gives it: ``[M, T]`` each.

        A peak at μ is the frequency, in radians per unit of x, at which the phase μᵀz(x) grows on average over the
        ``grid [G]`` of inputs x. Weights are 1 where there is one kernel.
        """
        with self.at_test_time():
            found = self.inferred(self.embedded(episodes.asking(episodes.support_x[:, :1])))
            x = grid.to(self.log_length).reshape(1, -1, 1)
            phase = self.rescale(self.embedding(x))[0] @ found.kernels.mean.to(x).mT  # [M, G, T]
        x = x.flatten() - x.mean()
        slope = torch.einsum("g,mgt->mt", x, phase) / x.square().sum()
        weights = torch.ones_like(slope) if found.log_weights is None else found.log_weights.exp()
        return slope.abs(), weights.to(slope)

    @torch.no_grad()
    def covariance(self, episodes: Episodes, at: float, grid: Tensor) -> Tensor:
        """k(``at``, ·) of each task on a ``grid [G]`` of inputs, as its kernels weigh together: ``[T, G]``."""
        with self.at_test_time():
            found = self.inferred(self.embedded(episodes.asking(episodes.support_x[:, :1])))
            x = torch.cat([grid.new_tensor([at]), grid]).to(self.log_length).reshape(1, -1, 1)
            z = self.rescale(self.embedding(x)).expand(episodes.tasks, -1, -1)
            kernel = Exact().gram(z, found.kernels, 1)[:, :, 0, 1:]  # [M, T, G]
        if found.log_weights is None:
            return kernel[0]
        share = found.log_weights.exp() * found.kernels.amplitude
        return (share.unsqueeze(-1) * kernel).sum(0)

    @torch.no_grad()
    def inferred(self, episodes: Episodes) -> Inference:
        """What is inferred of tasks on features at test time: the kernels, and their weights given the support."""
        if not isinstance(self.head, MixtureHead):
            return super().inferred(episodes)
        with self.at_test_time():
            episodes = self.placed(episodes.asking(episodes.query_x[:, :1]))[0]
            q = self._infer(episodes, None)[0]
            return Inference(q, self._weigh(episodes, q).log_weights)

    @torch.no_grad()
    def answer(self, episodes: Episodes, inference: Inference) -> Prediction:
        """Solve tasks on features with what was inferred of the same or of other ones."""
        if not isinstance(self.head, MixtureHead) or inference.log_weights is None:
            return super().answer(episodes, inference)
        with self.at_test_time():
            episodes = self.placed(episodes.asking(episodes.query_x))[0]
            kernel, q = self._gram(episodes, inference.kernels, None)
            return self.head.predict(self.head.fit(kernel, q, episodes), q, inference.log_weights, episodes)


def _doubted(q: Spectral, episodes: Episodes) -> Spectral:
    """The kernels with at least the noise that targets at the same place show: samples that contradict each other.

    Without such, which training tasks never have, they are left as they are.
    """
    variance = ridge.contradiction(episodes.support_x, episodes.support_y)
    return q if variance is None else q._replace(noise=torch.maximum(q.noise, variance / q.amplitude))
