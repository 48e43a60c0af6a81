"""What MetaVRF and its baselines share: embedding, length scale, kernels and ridge regression."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass
from typing import Annotated, Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from metavrf.episodes import Episodes
from metavrf.errors import UserError
from metavrf.kernels.random_features import Draws, draw_bases, explicit_bases, explicit_features
from metavrf.kernels.spectral import Exact, Kernel, RandomFeatures, Spectral
from metavrf.learners.adapted import Adapted
from metavrf.learners.base import Learner
from metavrf.learners.head import MixtureHead, RidgeHead
from metavrf.learners.inferred import Inference
from metavrf.nn.inference import Memory
from metavrf.prediction import Prediction
from metavrf.settings import Count, Natural, Positive, Range

PHASES_APART = 2.0  # of two samples on average, where the bases of functions start: see KernelLearner.even_phase
START_LOG_VARIANCE = -2.0


# Where settings of kernel methods start, by the kind of task: chosen on validation classes (docs/data.md).
CLASSES: dict[str, Any] = {"gamma": 10.0, "ridge": 0.1, "distance": 2.0, "draw": "fixed"}
PHOTOGRAPHS: dict[str, Any] = {"distance": 1.0}
KERNEL_PRESETS: dict[str, dict[str, Any]] = {
    "classes": CLASSES,
    "photographs": PHOTOGRAPHS,
    "features": {"unit_features": True, "bases": 4096, "orthogonal": True},
}
# What the paper's text and tables say (docs/method.md tells where they contradict each other).
PAPER: dict[str, Any] = {
    "train_kernel": "features",
    "bases": 780,
    "train_bases": 0,
    "feature_map": "cosine",
    "orthogonal": False,
    "draw": "resampled",
    "unit_features": False,
    "aligned": False,
}


@dataclass(frozen=True)
class KernelSettings:
    """Kernels and ridge regression."""

    train_kernel: Literal["exact", "features"] = "features"
    """Compute kernels exactly, or estimate them by random features. Exact ones are replaced by random features at test
    time where --bases asks for it."""
    bases: Count = 780
    """Number D of random Fourier features."""
    train_bases: Natural = 256
    """Features of a training step where bases are resampled: fewer are faster and as good; 0 for as many as --bases."""
    feature_map: Literal["cosine", "sincos"] = "sincos"
    """The paper's cos(ωz + b), or pairs of cos(ωz) and sin(ωz)."""
    orthogonal: bool = False
    """Draw the bases orthogonal in blocks."""
    draw: Literal["fixed", "resampled"] = "resampled"
    """Random numbers behind the bases while training: the same at every step, or fresh ones."""
    samples: Count = 1
    """Number L of posterior samples, each of D bases."""
    ridge: Positive = 1e-6
    """λ of ridge regression at the start; it is learned."""
    gamma: Positive = 1.0
    """Output scale γ at the start; it is learned."""
    unit_features: bool = False
    """Scale each sample's features to length 1 before the kernel sees them."""
    distance: Annotated[float, Range(least=0, below=1e6)] = 0.0
    """Mean distance of support features at the start, in length scales; 0 for 0.4 per shot, but at least 2."""
    aligned: bool = True
    """Of functions, start with narrow bases whose phase grows evenly with the input; the paper starts at N(0, I)."""

    def check(self) -> None:
        """Pairs of sine and cosine come in even numbers."""
        for name in ("bases", "train_bases"):
            if self.feature_map == "sincos" and getattr(self, name) % 2:
                raise UserError(f"{name} = {getattr(self, name)} must be even for the sincos feature map")


def one_kernel(mean: Tensor, std: Tensor) -> Spectral:
    """One Gaussian of each task, ``[T, d]``, whose scale and noise are the head's affair."""
    nothing = mean.new_zeros(()).expand(1, len(mean))
    return Spectral(mean.unsqueeze(0), std.unsqueeze(0), nothing, nothing, nothing)


class KernelLearner(Learner):
    """Embedding, length scale, kernels and ridge: what MetaVRF and its baselines share.

    Kernels are exact or estimated by random features (``train_kernel``). ε and b of random features are buffers: a
    reloaded model predicts the same to the bit. In training they are either these (``draw="fixed"``, common random
    numbers) or fresh at every step (``draw="resampled"``). A model trained with exact kernels has none, until
    :meth:`redraw` gives it some.
    """

    epsilon: Tensor | None
    phase: Tensor | None
    head: RidgeHead | MixtureHead
    Settings = KernelSettings
    settings: Any

    def setup(self, generator: torch.Generator) -> None:
        """``generator`` draws ε and b."""
        settings = self.settings
        self.features: int = int(self.embedding.features)  # type: ignore[arg-type]
        self.log_length = nn.Parameter(torch.zeros(()))
        unit_norm = settings.feature_map == "sincos" or settings.train_kernel == "exact"
        self.head = RidgeHead(
            regression=self.spec.regression, lam=settings.ridge, gamma=settings.gamma, unit_norm=unit_norm
        )
        if settings.train_kernel == "exact":
            self.register_buffer("epsilon", None)
            self.register_buffer("phase", None)
        else:
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

    def kernel(self, generator: torch.Generator | None) -> Kernel:
        """How this forward pass computes its kernels."""
        if self.epsilon is None:
            return Exact()
        stored = Draws(self.epsilon, self.phase)
        if self.training and self.settings.draw == "resampled" and generator is not None:
            fresh = self._draw(
                generator, min(self.settings.train_bases or stored.bases, stored.bases), len(self.epsilon)
            )
            phase = None if fresh.phase is None else fresh.phase.to(self.epsilon)
            return RandomFeatures(Draws(fresh.epsilon.to(self.epsilon), phase))
        return RandomFeatures(stored)

    def rescale(self, z: Tensor) -> Tensor:
        """Features in units of the length scale, so that bases may start as N(0, I)."""
        z = F.normalize(z, dim=-1) if self.settings.unit_features else z
        return z * torch.exp(-self.log_length)

    def rescale_by(self) -> tuple[bool, Tensor]:
        """Whether features are scaled to length 1, and by what factor then: :meth:`rescale` as values."""
        return self.settings.unit_features, torch.exp(-self.log_length).detach()

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

    def even_phase(self, episodes: Episodes) -> Tensor | None:
        """ω ``[d]`` whose phase ωᵀz grows evenly with the (sum of the) inputs; None where all samples are alike."""
        z = self.rescale(self.embedding(episodes.support_x)).double()
        x = episodes.support_x.flatten(2).sum(-1, keepdim=True).double()
        omega = torch.linalg.lstsq(*(v.flatten(0, 1) - v.mean((0, 1)) for v in (z, x)), driver="gelsd").solution
        apart = _mean_distance(z @ omega)
        return (omega[:, 0] * PHASES_APART / apart).to(self.log_length) if apart > 0 else None

    @abstractmethod
    def infer(self, episodes: Episodes) -> Spectral:
        """Steps 2 to 4 on rescaled features: each task's kernels."""

    def solve(
        self, episodes: Episodes, memory: Memory | None = None, generator: torch.Generator | None = None
    ) -> Prediction:
        """Solve embedded (1) tasks."""
        episodes, _ = self.placed(episodes)
        return self.regress(episodes, self.infer(episodes), generator)

    def regress(self, episodes: Episodes, q: Spectral, generator: torch.Generator | None) -> Prediction:
        """Steps 6 to 8 on rescaled features with one kernel per task: bases, kernel, ridge."""
        assert not isinstance(self.head, MixtureHead)
        z = episodes.samples()
        kernel = self.kernel(generator)
        if isinstance(kernel, RandomFeatures):
            return self.head(kernel.features(z, q), episodes)
        return self.head.kernel(kernel.gram(z, q, episodes.support_x.shape[1]), episodes)

    @torch.no_grad()
    def inferred(self, episodes: Episodes) -> Inference:
        """What is inferred of tasks on features, at test time."""
        with self.at_test_time():
            return Inference(self.infer(self.placed(episodes)[0]))

    @torch.no_grad()
    def answer(self, episodes: Episodes, inference: Inference) -> Prediction:
        """Solve tasks on features with what was inferred of the same or of other ones."""
        with self.at_test_time():
            return self.regress(self.placed(episodes.asking(episodes.query_x))[0], inference.kernels, None)

    def origin(self, episodes: Episodes) -> Tensor | None:
        """Where each task's features are measured from, ``[T, 1, d]``; None for zero."""
        return None

    def placed(self, episodes: Episodes) -> tuple[Episodes, Tensor | None]:
        """Embedded tasks with features as the kernel takes them, and their origin."""
        episodes = episodes.embedded(self.rescale)
        origin = self.origin(episodes)
        return (episodes if origin is None else episodes.embedded(lambda z: z - origin)), origin

    @torch.no_grad()
    def adapted(self, episodes: Episodes, *, embedded: bool = False) -> nn.Module:
        """The task's predictor in closed form: nothing is left to solve when it is asked."""
        if episodes.tasks != 1:
            raise UserError(f"only one task can be folded into a module, not {episodes.tasks}")
        if isinstance(self.head, MixtureHead) or self.epsilon is None or self.inductive_statistics != "running":
            return super().adapted(episodes, embedded=embedded)
        episodes.check_finite()
        episodes = episodes.to(self.device)
        with self.at_test_time():
            task, origin = self.placed(episodes.looked_up() if embedded else self.embedded(episodes))
            q = self.infer(task)
            draws = Draws(self.epsilon, self.phase)
        length = self.log_length.exp()
        omega = explicit_bases(q.mean[0, 0] / length, q.std[0, 0] / length, draws)
        phi = explicit_features(task.support_x[0] * length, omega, draws.phase)
        return Adapted(
            nn.Identity() if embedded else self.embedding,
            omega,
            draws.phase,
            self.head.explicit(phi.unsqueeze(1), task),
            self.temperature_for(task),
            origin=None if origin is None else origin[0, 0] * length,
            unit_features=self.settings.unit_features,
        )


def _mean_distance(z: Tensor) -> Tensor:
    """Between two samples of a task, of ``z [T, S, d]``; 0 where there is but one."""
    tasks, samples, _ = z.shape
    return torch.cdist(z, z).sum() / (tasks * samples * max(1, samples - 1))
