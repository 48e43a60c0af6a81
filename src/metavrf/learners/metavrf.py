"""MetaVRF: learning to learn kernels with variational random features (Zhen, Sun, Du et al., ICML 2020).

From a task's support set, and an LSTM's memory of the tasks before it, an inference network predicts the
distribution of random Fourier bases, that is, the kernel of this task; ridge regression with that kernel
solves it in closed form. Nothing is fine-tuned at test time.

Numbers in comments are the steps of ``docs/method.md``.
"""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import replace
from typing import Any, Self

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from metavrf.config import Config, MetaVRFSettings
from metavrf.episodes import Episodes
from metavrf.errors import UserError
from metavrf.kernels.random_features import Draws, draw_bases, explicit_bases, explicit_features, fourier_features
from metavrf.learners.adapted import Adapted
from metavrf.learners.base import Learner, Prediction
from metavrf.learners.head import RidgeHead
from metavrf.learners.prototypical import nearest_prototype
from metavrf.nn.inference import Context, Prior, TaskSummary, gaussian_kl
from metavrf.nn.mlp import GaussianMLP
from metavrf.tasks.source import Description

# Where the bases of functions start: see MetaVRF.initialise.
PHASES_APART = 2.0
START_LOG_VARIANCE = -2.0


class KernelLearner(Learner):
    """Embedding, length scale, random features and ridge: what MetaVRF and plain random features share.

    ε and b are buffers: a reloaded model predicts the same to the bit. In training they are either these
    (``draw="fixed"``, common random numbers) or fresh at every step (``draw="resampled"``).
    """

    epsilon: Tensor
    phase: Tensor | None

    def __init__(
        self,
        embedding: nn.Module,
        features: int,
        settings: MetaVRFSettings,
        *,
        regression: bool,
        generator: torch.Generator,
    ) -> None:
        super().__init__(embedding)
        self.settings = settings
        self.features = features
        self.log_length = nn.Parameter(torch.zeros(()))
        paired = settings.feature_map == "sincos"
        self.head = RidgeHead(regression=regression, lam=settings.ridge, gamma=settings.gamma, unit_norm=paired)
        self.redraw(generator)

    def redraw(self, generator: torch.Generator, bases: int | None = None, samples: int | None = None) -> None:
        """Draw the stored ε and b anew; any number of bases D and posterior samples L can be asked for."""
        bases = self.settings.bases if bases is None else bases
        samples = self.settings.samples if samples is None else samples
        if bases < 1 or samples < 1:
            raise UserError(f"{bases=} and {samples=}: give at least 1 of each")
        draws = self._draw(generator, bases, samples)
        self.register_buffer("epsilon", draws.epsilon)
        self.register_buffer("phase", draws.phase)

    def _draw(self, generator: torch.Generator, bases: int, samples: int) -> Draws:
        return draw_bases(
            self.features,
            bases,
            samples=samples,
            feature_map=self.settings.feature_map,
            orthogonal=self.settings.orthogonal,
            generator=generator,
        )

    def draws(self, generator: torch.Generator | None) -> Draws:
        """ε and b of this forward pass."""
        stored = Draws(self.epsilon, self.phase)
        if self.training and self.settings.draw == "resampled" and generator is not None:
            fresh = self._draw(
                generator, min(self.settings.train_bases or stored.bases, stored.bases), len(self.epsilon)
            )
            return Draws(fresh.epsilon.to(self.epsilon), None if fresh.phase is None else fresh.phase.to(self.epsilon))
        return stored

    def rescale(self, z: Tensor) -> Tensor:
        """Features in units of the length scale, so that bases may start as N(0, I)."""
        z = F.normalize(z, dim=-1) if self.settings.unit_features else z
        return z * torch.exp(-self.log_length)

    @torch.no_grad()
    def initialise(self, episodes: Episodes) -> None:
        """Start the length scale where support features are ``settings.distance`` apart on average.

        The more points, the closer their neighbours: were they much closer than a length scale, any smooth kernel
        would do, and the embedding would not learn the family's own.
        """
        super().initialise(episodes)
        distance = self.settings.distance or max(2.0, 0.4 * episodes.shot)
        z = self.rescale(self.embedding(episodes.support_x))  # in training mode, so normalised by this batch
        apart = _mean_distance(z)
        if apart > 0:
            self.log_length.add_(torch.log(apart / distance))

    def regress(self, episodes: Episodes, mean: Tensor, std: Tensor, generator: torch.Generator | None) -> Prediction:
        """Steps 6 to 8 on rescaled features: bases under N(mean, std²), kernel, ridge."""
        z = torch.cat([episodes.support_x, episodes.query_x], dim=1)
        return self.head(fourier_features(z, mean, std, self.draws(generator)), episodes)

    @abstractmethod
    def infer(self, episodes: Episodes) -> tuple[Tensor, Tensor]:
        """Steps 2 to 4 on rescaled features: μ and log σ² of each task's bases, ``[T, d]`` each."""

    def origin(self, episodes: Episodes) -> Tensor | None:
        """Where each task's features are measured from, ``[T, 1, d]``; None for zero."""
        return None

    def placed(self, episodes: Episodes) -> tuple[Episodes, Tensor | None]:
        """Embedded tasks with features as the kernel takes them, and their origin."""
        episodes = episodes.embedded(self.rescale)
        origin = self.origin(episodes)
        return (episodes if origin is None else episodes.embedded(lambda z: z - origin)), origin

    @torch.no_grad()
    def adapted(self, episodes: Episodes, *, embedded: bool = False) -> Adapted:
        """The task's predictor in closed form: nothing is left to solve when it is asked."""
        if episodes.tasks != 1 or self.statistics != "running":
            raise UserError(
                f"only one task under running statistics can be folded into a module, not {episodes.tasks} under those "
                f"of the {self.statistics}"
            )
        episodes.check_finite()
        with self.at_test_time():
            task, origin = self.placed(episodes.looked_up() if embedded else self.embedded(episodes))
            mean, log_variance = self.infer(task)
            draws = self.draws(None)
        length = self.log_length.exp()
        omega = explicit_bases(mean[0] / length, torch.exp(0.5 * log_variance[0]) / length, draws)
        phi = explicit_features(task.support_x[0] * length, omega, draws.phase)
        return Adapted(
            nn.Identity() if embedded else self.embedding,
            omega,
            draws.phase,
            self.head.explicit(phi.unsqueeze(1), task),
            self.temperature,
            origin=None if origin is None else origin[0, 0] * length,
            unit_features=self.settings.unit_features,
        )


class MetaVRF(KernelLearner):
    """Ridge regression with a kernel inferred for each task, from it and the tasks before it. See the module."""

    citation = "Zhen et al., Learning to learn kernels with variational random features, ICML 2020"

    def __init__(
        self,
        embedding: nn.Module,
        features: int,
        settings: MetaVRFSettings,
        *,
        targets: int | None,
        generator: torch.Generator,
    ) -> None:
        """``targets`` is the number of real outputs of a regression task, or None for classification."""
        if targets is None and settings.context_inputs == "xy":
            raise UserError("context_inputs = 'xy' is for regression: class numbers are names, not values to look at")
        super().__init__(embedding, features, settings, regression=targets is not None, generator=generator)
        self.summary = TaskSummary(features, targets or 0 if settings.context_inputs == "xy" else 0)
        self.context = Context(settings.context, features, skip=settings.context_skip)
        # From x alone, starting all tasks alike avoids poor minima; with y it slows the encoder down (docs/results.md).
        alike = settings.context_inputs == "x"
        self.posterior = GaussianMLP(self.context.size, features, features, alike=alike)
        self.prior = Prior(features)

    @classmethod
    def of(cls, embedding: Any, config: Config, data: Description, generator: torch.Generator) -> Self:
        """With the settings of the model; ``generator`` draws ε and b."""
        return cls(embedding, embedding.features, config.model, targets=data.targets, generator=generator)

    @torch.no_grad()
    def initialise(self, episodes: Episodes) -> None:
        """Of functions, also start all bases close to one ω, whose phase ωᵀz grows evenly with the input.

        A kernel is even in the mean of its bases, so at zero that mean has no gradient. Bases that start about it but
        wide become narrow first and forget their mean on the way; where the phase then comes to rise on both sides of
        a fold, the training seldom gets out again. ω is fitted to the (sum of the) inputs by least squares, and
        scaled to phases that are ``PHASES_APART`` between two samples on average.
        """
        super().initialise(episodes)
        if episodes.way is not None or self.settings.context_inputs != "x":
            return
        z = self.rescale(self.embedding(episodes.support_x)).double()
        x = episodes.support_x.flatten(2).sum(-1, keepdim=True).double()
        omega = torch.linalg.lstsq(*(v.flatten(0, 1) - v.mean((0, 1)) for v in (z, x)), driver="gelsd").solution
        apart = _mean_distance(z @ omega)
        if apart > 0:
            self.posterior.start_at(omega[:, 0] * PHASES_APART / apart, START_LOG_VARIANCE)

    def infer(self, episodes: Episodes) -> tuple[Tensor, Tensor]:
        """q(ω|h), h the context of the task's summary."""
        return self.posterior(self.context(self.summary(episodes)))

    def solve(self, episodes: Episodes, generator: torch.Generator | None = None) -> Prediction:
        """Solve embedded (1) tasks; in training mode they are a sequence, in evaluation independent of each other."""
        embedded = episodes
        episodes, _ = self.placed(episodes)
        mean, log_variance = self.infer(episodes)  # 2, 3, 4: q(ω|h)
        prediction = self.regress(episodes, mean, torch.exp(0.5 * log_variance), generator)  # 6, 7, 8
        if prediction.loss is None:
            return prediction
        keys = episodes.prototypes(episodes.support_x)
        prior_mean, prior_log_variance = self.prior(episodes.query_x, keys)  # 5: p(ω|x, S)
        kl = gaussian_kl(
            mean.unsqueeze(1), log_variance.unsqueeze(1), prior_mean, prior_log_variance
        ).mean()  # over queries
        loss = prediction.loss + self.settings.kl_weight * kl  # 9: the negative ELBO
        terms = prediction.terms | {"kl": kl}
        if self.settings.prototype_weight and episodes.way is not None:  # beyond the paper
            terms["prototypical"] = nearest_prototype(embedded).terms["nll"]
            loss = loss + self.settings.prototype_weight * terms["prototypical"]
        return replace(prediction, loss=loss, terms=terms)


def _mean_distance(z: Tensor) -> Tensor:
    """Between two samples of a task, of ``z [T, S, d]``; 0 where there is but one."""
    tasks, samples, _ = z.shape
    return torch.cdist(z, z).sum() / (tasks * samples * max(1, samples - 1))
