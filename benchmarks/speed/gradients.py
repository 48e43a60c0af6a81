"""Gradients written by hand, each beside the one that PyTorch derives from the same formulas.

Inputs are those of training steps: on sine tasks with many exact kernels, or with one by random features; and on one
task of many classes of Omniglot.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from unittest.mock import patch

import torch
import torch.nn.functional as F
from torch import Tensor

from metavrf.episodes import Episodes
from metavrf.kernels import ridge
from metavrf.kernels.mixing import Scales, log_density, mean_nll, scaled_nll, tailed, tailed_log_density
from metavrf.kernels.random_features import _SineCosine
from metavrf.kernels.spectral import Exact, RandomFeatures, Spectral, plain_gram
from metavrf.learners.base import Learner
from metavrf.learners.head import GaussianLikelihood, MixtureHead, weighed
from metavrf.learners.metavrf import MetaVRF
from metavrf.learners.proposing import inverse_and_log_det, inverse_and_log_det_plainly
from metavrf.nn.columns import PROPOSALS
from metavrf.nn.inference import gaussian_kl, mean_kl
from metavrf.nn.pooling import max_pool
from metavrf.randomness import stream
from speed.step import OneKernel, random_bank, random_tasks, sine_config, sine_trainer, step_config
from speed.turns import Call
from speed.work import ON_OMNIGLOT, ON_SINE, ON_TABLES, Work

Forward = Callable[[], Sequence[Tensor]]


@dataclass(frozen=True)
class Gradient:
    """The same function of ``inputs`` twice, with the gradient by hand and with the one that PyTorch derives."""

    inputs: Sequence[Tensor]
    by_hand: Forward
    derived: Forward

    def call(self, forward: Forward) -> Call:
        """Forward and backward of one of the two, as a step takes them."""
        inputs, ones = list(self.inputs), [torch.ones_like(output) for output in forward()]
        return lambda: torch.autograd.grad(list(forward()), inputs, ones)


class Gradients:
    """Makes them by name; what several of them need is made once."""

    def __init__(self, work: Work) -> None:
        self.work = work

    @cached_property
    def all(self) -> dict[str, Gradient]:
        """Each by its name, as in :data:`speed.work.GRADIENTS`."""
        on_sine, on_omniglot = self.sine_features(), self.omniglot_features()
        found = {
            f"ridge, {ON_SINE}": self.sine_ridge(),
            f"ridge, {ON_OMNIGLOT}": self.omniglot_ridge(),
            f"exact kernels, {ON_SINE}": exact_kernels(*self.sine_kernels[1:]),
            f"exact kernels, {ON_OMNIGLOT}": exact_kernels(*self.omniglot_kernel[1:]),
            f"likelihood with tails, {ON_SINE}": self.sine_likelihood(),
            f"likelihood of one kernel, {ON_SINE}": self.one_likelihood(),
            f"KL of one kernel, {ON_SINE}": self.one_kl(),
        }
        for place, (phi, support) in {ON_SINE: on_sine, ON_OMNIGLOT: on_omniglot}.items():
            found[f"kernel of features, {place}"] = kernel_of_features(phi, support)
            found[f"cosine and sine, {place}"] = cosine_and_sine(phi.shape)
        return found | {f"pooling, {ON_OMNIGLOT}": self.pooling(), f"inverse, {ON_TABLES}": self.inverse()}

    @cached_property
    def sine_kernels(self) -> tuple[Learner, Episodes, Spectral]:
        """The learner with many kernels, the tasks of a step as the kernels take them, and their kernels."""
        trainer = sine_trainer(sine_config(self.work, many=True))
        learner = trainer.learner
        assert isinstance(learner, MetaVRF)
        return inferred(learner, trainer.tasks_of(0))

    @cached_property
    def omniglot_kernel(self) -> tuple[Learner, Episodes, Spectral]:
        """Likewise with one kernel, on one task of many classes."""
        work = self.work
        config = step_config(work, batch=1, train_way=work.hard_way, query=work.hard_query, context="none")
        tasks = random_tasks(random_bank(work.hard_way, work.samples, work.side))
        learner = config.build(tasks.spec)
        assert isinstance(learner, MetaVRF)
        episodes = tasks.training(config.episode, stream(0, "train"))
        learner.initialise(episodes)
        return inferred(learner, episodes)

    def sine_ridge(self) -> Gradient:
        """Under each of many kernels, with all that follows: mean, variance, energy and determinant."""
        learner, task, q = self.sine_kernels
        assert isinstance(learner.head, MixtureHead)
        with torch.no_grad():
            kernel, _ = weighed(Exact().gram(samples(task), q, task.support_x.shape[1]), task)
            targets = task.support_targets.double() - learner.head.mean_function(task.support_x, q)
            lam = learner.head.noise(q)

        def outputs(fit: ridge.Fit) -> Sequence[Tensor]:
            assert fit.log_det is not None
            return fit.mean, fit.variance, fit.energy, fit.log_det

        return solved(leaves(kernel, targets, lam), outputs)

    def sine_likelihood(self) -> Gradient:
        """The loss of many kernels, each a normal with tails."""
        learner, task, q = self.sine_kernels
        assert isinstance(learner.head, MixtureHead)
        assert task.query_y is not None
        kernels, tasks, target = len(q.mean), task.tasks, task.query_y
        with torch.no_grad():
            fit = learner.head.fit(Exact().gram(samples(task), q, task.support_x.shape[1]), q, task)
            weights = torch.zeros(kernels, tasks, dtype=torch.double).log_softmax(0)
            variance = (fit.variance + learner.head.noise(q).unsqueeze(-1)).unsqueeze(-1).expand_as(fit.mean)
            mean, variance, weights = leaves(fit.mean, variance, weights)
            factors, shares = leaves(*learner.head.tails_at(fit.samples))
        tails = (factors, shares)
        return Gradient(
            [mean, variance, weights, *tails],
            lambda: [tailed_log_density(mean, variance, weights, tails, target)],
            lambda: [log_density(*tailed(mean, variance, weights, tails), target)],
        )

    def one_likelihood(self) -> Gradient:
        """The loss of one exact kernel."""
        trainer = sine_trainer(sine_config(self.work, context="none", train_kernel="exact"))
        assert isinstance(trainer.learner, MetaVRF)
        learner, task, q = inferred(trainer.learner, trainer.tasks_of(0))
        head = OneKernel(learner).head
        assert isinstance(head.likelihood, GaussianLikelihood)
        assert task.query_y is not None
        target = task.query_y
        with torch.no_grad():
            fit = head.fit(Exact().gram(samples(task), q, task.support_x.shape[1]), task)
        mean, variance, energy = leaves(fit.mean, fit.variance, fit.energy)
        scales = Scales(*leaves(*head.likelihood.scales(head)))
        return Gradient(
            [mean, variance, energy, *scales],
            lambda: [scaled_nll(mean, variance, energy, fit.samples, scales, target)],
            lambda: [mean_nll(*scales.normals(mean, variance, energy, fit.samples), target).to(target)],
        )

    def one_kl(self) -> Gradient:
        """The KL of what is inferred of each task to the prior of each query."""
        trainer = sine_trainer(sine_config(self.work, context="none", train_kernel="exact"))
        assert isinstance(trainer.learner, MetaVRF)
        learner, task, q = inferred(trainer.learner, trainer.tasks_of(0))
        with torch.no_grad():
            prior = OneKernel(learner).prior(task.query_x, task.prototypes(task.support_x))
            mean, log_variance, *other = leaves(q.mean[0], 2 * q.std[0].log(), *prior)
        return Gradient(
            [mean, log_variance, *other],
            lambda: [mean_kl(mean, log_variance, *other)],
            lambda: [gaussian_kl(mean.unsqueeze(1), log_variance.unsqueeze(1), *other).mean()],
        )

    def omniglot_ridge(self) -> Gradient:
        """Of one-hot targets, of which the loss sees the mean alone."""
        learner, task, q = self.omniglot_kernel
        head = OneKernel(learner).head
        with torch.no_grad():
            kernel, targets = weighed(Exact().gram(samples(task), q, task.support_x.shape[1]), task)
            kernel, lam = leaves(kernel, head.lam.double())
        return solved([kernel, targets, lam], lambda fit: [fit.mean])

    def sine_features(self) -> tuple[Tensor, int]:
        """Random features of a step with one kernel, and how many are of the support."""
        trainer = sine_trainer(sine_config(self.work, context="none"))
        return random_features(trainer.learner, trainer.tasks_of(0))

    def omniglot_features(self) -> tuple[Tensor, int]:
        """Likewise of one task of many classes."""
        learner, task, q = self.omniglot_kernel
        kernel = RandomFeatures(OneKernel(learner).draws(None))
        return kernel.features(samples(task), q).detach(), task.support_x.shape[1]

    def inverse(self) -> Gradient:
        """Inverse and determinant of the kernels that are proposed for some tables, with their noise."""
        work = self.work
        z = torch.randn(work.tables, PROPOSALS, work.table_rows, 5, dtype=torch.double)
        (noisy,) = leaves(torch.exp(-0.5 * torch.cdist(z, z).square()) + 0.1 * torch.eye(work.table_rows))
        return Gradient([noisy], lambda: inverse_and_log_det(noisy), lambda: inverse_and_log_det_plainly(noisy))

    def pooling(self) -> Gradient:
        """Of the first block of the embedding, the largest."""
        work = self.work
        shape = (work.hard_way * (work.shot + work.hard_query), work.channels, work.side, work.side)
        x, before = (torch.randn(shape).to(memory_format=torch.channels_last) for _ in range(2))
        (x,) = leaves(x)
        return Gradient(
            [x],
            lambda: [max_pool(x, before, ceil=True)],
            lambda: [F.max_pool2d(x, 2, ceil_mode=True)],
        )


def inferred(learner: MetaVRF, episodes: Episodes) -> tuple[Learner, Episodes, Spectral]:
    """A learner, tasks as its kernels take them, and their kernels, in training mode but without a graph."""
    with torch.no_grad():
        task, _ = learner.train().placed(learner.embedded(episodes))
        return learner, task, learner.infer(task)


def random_features(learner: Learner, episodes: Episodes) -> tuple[Tensor, int]:
    """φ as a training step draws it."""
    assert isinstance(learner, MetaVRF)
    _, task, q = inferred(learner, episodes)
    kernel = RandomFeatures(OneKernel(learner).draws(stream(0, "draws")))
    return kernel.features(samples(task), q).detach(), task.support_x.shape[1]


def samples(task: Episodes) -> Tensor:
    """Support and queries, ``[T, S + Q, d]``."""
    return torch.cat([task.support_x, task.query_x], dim=1)


def leaves(*tensors: Tensor) -> list[Tensor]:
    """Copies that gradients are taken for."""
    return [tensor.detach().clone().requires_grad_() for tensor in tensors]


def solved(inputs: Sequence[Tensor], outputs: Callable[[ridge.Fit], Sequence[Tensor]]) -> Gradient:
    """Ridge regression of ``inputs``: kernel, targets and λ."""
    kernel, targets, lam = inputs
    wanted = [value for value in inputs if value.requires_grad]
    return Gradient(
        wanted,
        lambda: outputs(ridge.solve(kernel, targets, lam)),
        lambda: outputs(ridge.solve_plainly(kernel, targets, lam)),
    )


def exact_kernels(task: Episodes, q: Spectral) -> Gradient:
    """Kernels themselves, in samples and bases."""
    z, mean, std = leaves(samples(task), q.mean, q.std)
    kernels, support = q._replace(mean=mean, std=std), task.support_x.shape[1]
    return Gradient(
        [z, mean, std],
        lambda: [Exact().gram(z, kernels, support)],
        lambda: [plain_gram(z, kernels, support)],
    )


def kernel_of_features(phi: Tensor, support: int) -> Gradient:
    """The product of some rows with all, in double precision."""
    (phi,) = leaves(phi)

    def derived() -> list[Tensor]:
        double = phi.double()
        return [double[..., :support, :] @ double.mT]

    return Gradient([phi], lambda: [ridge.kernel_of(phi, support)], derived)


def cosine_and_sine(shape: torch.Size, scale: float = 0.1) -> Gradient:
    """The last step of random features of that shape, of angles in a few turns."""
    (angle,) = leaves(5 * torch.randn(*shape[:-1], shape[-1] // 2))
    return Gradient(
        [angle],
        lambda: [_SineCosine.apply(angle, scale)],
        lambda: [torch.cat([angle.cos(), angle.sin()], dim=-1) * scale],
    )


def pooling_derived(step: Call) -> Call:
    """A step whose embedding pools with the gradient that PyTorch derives."""

    def derived(x: Tensor, _: Tensor, *, ceil: bool) -> Tensor:
        return F.max_pool2d(x, 2, ceil_mode=ceil)

    def run() -> None:
        with patch("metavrf.nn.embeddings.max_pool", derived):
            step()

    return run
