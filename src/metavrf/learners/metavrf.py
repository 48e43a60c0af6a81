"""MetaVRF: learning to learn kernels with variational random features (Zhen, Sun, Du et al., ICML 2020).

From a task's support set, and from the tasks before it, an inference network predicts the distribution of random
Fourier bases, that is, the kernel of this task; ridge regression with that kernel solves it in closed form. Beyond the
paper, the posterior is a mixture of many kernels, each weighted by its evidence on the support. Nothing is fine-tuned
at test time.

Numbers in comments are the steps of ``docs/method.md``.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, NamedTuple, Self

import torch
from torch import Tensor, nn

from metavrf.config import Config, MetaVRFSettings
from metavrf.episodes import Episodes
from metavrf.errors import UserError
from metavrf.kernels.mixing import log_weights
from metavrf.kernels.ridge import Fit
from metavrf.kernels.spectral import Exact, Spectral
from metavrf.learners.adapted import AdaptedMixture
from metavrf.learners.head import MixtureHead
from metavrf.learners.inferred import Inference
from metavrf.learners.kernel import START_LOG_VARIANCE, KernelLearner, one_kernel
from metavrf.learners.prototypical import nearest_prototype
from metavrf.learners.start import spread
from metavrf.nn.inference import Carry, Context, Memory, Prior, TaskSummary, gaussian_kl
from metavrf.nn.mixture import Mixture, MixturePosterior
from metavrf.nn.mlp import GaussianMLP
from metavrf.prediction import Prediction
from metavrf.tasks.source import Description

NOTHING = Memory()


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

    def __init__(
        self,
        embedding: nn.Module,
        features: int,
        settings: MetaVRFSettings,
        *,
        targets: int | None,
        generator: torch.Generator,
        stream: int = 1,
    ) -> None:
        """``stream`` is that of the training tasks: with more than 1, evidence is carried from task to task."""
        super().__init__(embedding, features, settings, targets=targets, generator=generator)
        self.stream_length = stream
        labels = settings.context_inputs == "xy"
        many = settings.components > 1
        recurrent = settings.context in ("lstm", "bilstm")
        if settings.context == "bayes" and not many:
            raise UserError("context = 'bayes' carries the weights of kernels on: it needs --components of 2 or more")
        looks = not many or settings.moves or recurrent  # or else the evidence alone tells tasks apart
        self.context = Context(settings.context, features, skip=settings.context_skip)
        self.summary = TaskSummary(features, targets, labels=labels) if looks else None
        self.prior = Prior(features) if not many or (settings.moves and settings.kl_weight) else None
        if not many:
            # From x alone, starting all tasks alike avoids poor minima; with y it slows the encoder down.
            self.posterior: GaussianMLP | MixturePosterior = GaussianMLP(
                self.context.size, features, features, alike=not labels
            )
            self.carry = None
            return
        self.head = MixtureHead(
            settings.components, features, targets=targets, gamma=settings.gamma, evidence=settings.evidence
        )
        self.log_power = nn.Parameter(torch.zeros(()))  # log τ
        self.posterior = MixturePosterior(
            settings.components,
            features,
            self.context.size if looks else 0,
            combs=settings.combs,
            guards=settings.guards,
            moves=settings.moves,
            noise=settings.noise,
        )
        carries = settings.context == "bayes" or (recurrent and stream > 1)
        self.carry = Carry(learned=recurrent) if carries else None
        self.components = settings.components

    @classmethod
    def of(cls, embedding: Any, config: Config, data: Description, generator: torch.Generator) -> Self:
        """With the settings of the model; ``generator`` draws ε and b."""
        stream = config.episode.stream
        return cls(
            embedding, embedding.features, config.model, targets=data.targets, generator=generator, stream=stream
        )

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
            spread(self, self.posterior, episodes)
        elif episodes.way is None and self.settings.context_inputs == "x":
            omega = self.even_phase(episodes)
            if omega is not None:
                self.posterior.start_at(omega, START_LOG_VARIANCE)

    @torch.no_grad()
    def adapted(self, episodes: Episodes, *, embedded: bool = False) -> nn.Module:
        """The task's predictor in closed form: nothing is left to solve when it is asked."""
        if not isinstance(self.head, MixtureHead) or self.epsilon is not None or self.statistics != "running":
            return super().adapted(episodes, embedded=embedded)
        episodes.check_finite()
        with self.at_test_time():
            task, _ = self.placed(episodes.looked_up() if embedded else self.embedded(episodes))
            found = self._weigh(task, self._infer(task, None)[0])
            gram = found.gram[..., : task.support_x.shape[1]]
            solution = self.head.solution(gram, found.kernels, found.log_weights, task)
        return AdaptedMixture(
            nn.Identity() if embedded else self.embedding, self.rescale_by(), solution, self.temperature
        )

    def remember(self, prediction: Prediction) -> None:
        """Let the next training step start from the state this one left; streams each start anew."""
        if self.stream_length == 1 and isinstance(prediction.memory, Memory):
            self.context.remember(prediction.memory)

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
        return Spectral(*mixture[:6]), state, mixture.inferred

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
        prediction = replace(prediction, memory=state)
        if prediction.loss is None:
            return prediction
        loss, terms = prediction.loss, dict(prediction.terms)
        if self.prior is not None and inferred is not None:
            keys = episodes.prototypes(episodes.support_x)
            prior = self.prior(episodes.query_x, keys)  # 5: p(ω|x, S)
            terms["kl"] = gaussian_kl(*(value.unsqueeze(1) for value in inferred), *prior).mean()  # over queries
            loss = loss + self.settings.kl_weight * terms["kl"]  # 9: the negative ELBO
        if self.settings.prototype_weight and episodes.way is not None:  # beyond the paper
            terms["prototypical"] = nearest_prototype(embedded).terms["nll"]
            loss = loss + self.settings.prototype_weight * terms["prototypical"]
        return replace(prediction, loss=loss, terms=terms)

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
        z = torch.cat([episodes.support_x, episodes.query_x], dim=1)
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
            phase = self.rescale(self.embedding(x))[0] @ found.kernels.mean.mT  # [M, G, T]
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
