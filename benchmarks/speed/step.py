"""A training step in every way it is measured: ours, its parts, and as one would commonly write it."""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from metavrf.config import Config
from metavrf.episodes import Episodes
from metavrf.kernels.random_features import Draws, fourier_features
from metavrf.kernels.spectral import RandomFeatures
from metavrf.learners.base import Learner
from metavrf.learners.head import RidgeHead
from metavrf.learners.metavrf import MetaVRF
from metavrf.nn.embeddings import ConvNet
from metavrf.nn.inference import Prior, TaskSummary, gaussian_kl
from metavrf.nn.mlp import GaussianMLP
from metavrf.nn.normalisation import Own
from metavrf.randomness import stream
from metavrf.runs.directory import Run
from metavrf.runs.training import Trainer, make_fabric
from metavrf.spec import TaskSpec
from metavrf.studies.catalog import ONE_KERNEL
from metavrf.tasks.bank import Bank
from metavrf.tasks.source import ClassTasks, Tasks, open_tasks
from metavrf.tasks.splits import PARTS
from speed.turns import Call
from speed.work import Work


def ink(count: int, side: int, generator: torch.Generator) -> Tensor:
    """Random pictures much like drawings, uint8 ``[count, 1, side, side]``: bright blots on black."""
    coarse = torch.rand(count, 1, (side + 3) // 4, (side + 3) // 4, generator=generator)
    smooth = F.interpolate(coarse, (side, side), mode="bilinear")
    return 255 * (smooth > 0.7).to(torch.uint8)


def random_bank(classes: int, samples: int, side: int) -> Bank:
    """A bank of random pictures."""
    inputs = ink(classes * samples, side, stream(0, "train"))
    return Bank.of_labels(inputs, torch.arange(classes).repeat_interleave(samples), [f"{n}" for n in range(classes)])


def random_tasks(bank: Bank, augment: str = "none") -> ClassTasks:
    """Tasks on a bank of pictures, whatever they are for."""
    names = list(bank.names)
    spec = TaskSpec(tuple(bank.inputs.shape[1:]), None, "none")
    return ClassTasks(bank, dict.fromkeys(PARTS, names), spec, augment=augment)


def step_config(work: Work, learner: str = "metavrf", **options: Any) -> Config[Any]:
    """Settings of the step: the preset's model with a biLSTM on the work's tasks, every image seen as it is."""
    shape: dict[str, Any] = {
        "way": work.way,
        "shot": work.shot,
        "query": work.query,
        "batch": work.tasks,
        "train_way": 0,
        "train_shot": 0,
        "channels": work.channels,
        "dropout": 0.0,
    }
    if learner == "metavrf":
        shape |= {"context": "bilstm", "bases": work.bases, "prototype_weight": 0.0}
    return Config.of("omniglot", learner).with_options(**shape | options)


def sine_config(work: Work, *, many: bool = False, **options: Any) -> Config[Any]:
    """Settings of a step on sine tasks: the paper's one kernel, by random features unless asked, or the preset's many.

    All have the same tasks of the same number of points; that number varies from step to step in the preset.
    """
    shape: dict[str, Any] = {
        "batch": work.sine_tasks,
        "shot": work.sine_shot,
        "query": work.sine_query,
        "bases": work.bases,
        "train_shot": 0,
        "most_shot": 0,
    }
    kernels = {"components": work.kernels} if many else ONE_KERNEL | {"context_inputs": "x"}
    return Config.of("sine").with_options(**kernels | shape | options)


def sine_trainer(config: Config[Any]) -> Trainer:
    """Our own loop on sine tasks."""
    return make_trainer(config, open_tasks("sine", config.data))


def make_trainer(config: Config[Any], tasks: Tasks) -> Trainer:
    """What ``metavrf train`` runs; it writes nothing, for only its steps are taken."""
    learner = config.build(tasks.spec)
    nowhere = Run(Path(os.devnull) / "run")
    return Trainer(config, nowhere, make_fabric(config.training), tasks, learner, stopped=[], quiet=True)


class OneKernel:
    """The parts of a MetaVRF of one kernel by random features, as in the paper: each is there, and of its one type."""

    def __init__(self, learner: Learner) -> None:
        assert isinstance(learner, MetaVRF)
        assert isinstance(learner.summary, TaskSummary)
        assert isinstance(learner.posterior, GaussianMLP)
        assert isinstance(learner.prior, Prior)
        assert isinstance(learner.head, RidgeHead)
        self.learner, self.head, self.prior = learner, learner.head, learner.prior
        self.summary, self.context, self.posterior = learner.summary, learner.context, learner.posterior

    def draws(self, generator: torch.Generator | None) -> Draws:
        """The randomness of a forward pass."""
        kernel = self.learner.kernel(generator)
        assert isinstance(kernel, RandomFeatures)
        return kernel.draws


def backward(*outputs: Tensor) -> None:
    """Backward through the sum of the outputs."""
    torch.autograd.backward(list(outputs), [torch.ones_like(output) for output in outputs])


def embedding_pass(embedding: ConvNet, images: Tensor, chunks: int = 1) -> Call:
    """Forward and backward of an embedding of ``images [T, N, ...]``, each chunk for itself."""
    embedding.train()

    def run() -> None:
        embedding.zero_grad(set_to_none=True)
        for part in images.chunk(chunks):
            backward(embedding(part))

    return run


def convolutions_pass(embedding: ConvNet, images: int, side: int) -> Call:
    """Forward and backward of the embedding's convolutions alone, on inputs of their shapes."""
    layers = []
    for number, layer in enumerate(embedding.convolutions):
        assert isinstance(layer, torch.nn.Conv2d)
        x = torch.rand(images, layer.in_channels, side, side).to(memory_format=torch.channels_last)
        x.requires_grad_(number > 0)
        gradient = torch.ones(images, layer.out_channels, side, side).to(memory_format=torch.channels_last)
        layers.append((layer, x, gradient))
        side = (side + 1) // 2

    def run() -> None:
        for layer, x, gradient in layers:
            layer.weight.grad = x.grad = None
            layer(x).backward(gradient)

    return run


def matrix_product(flops: int) -> Call:
    """A product of two large matrices that takes as many operations: the speed that arithmetic can have here."""
    size = min(2048, max(8, math.isqrt(flops) // 64))
    left, right = torch.rand(max(1, round(flops / (2 * size * size))), size), torch.rand(size, size)
    out = torch.empty(len(left), size)
    return lambda: torch.mm(left, right, out=out)


@dataclass(frozen=True)
class Levers:
    """What makes our step fast, each to be pulled or not; the allocator's settings are those of the process."""

    channels_last: bool = False
    """Images and filters in memory position by position, rather than channel by channel."""
    relu_last: bool = False
    """ReLU after pooling, on a quarter of the values: they commute."""
    bytes: bool = False
    """Images are bytes until the embedding converts them."""
    batched: bool = False
    """All tasks of the batch are solved at once, rather than in a loop."""
    implicit: bool = False
    """Random features from one product for all tasks; the ``[T, d, D]`` tensor of bases is never formed."""
    fused: bool = False
    """The optimiser's step is one operation."""
    chunks: bool = False
    """The embedding sees one task at a time. It is normalised by that task then, so this is *another function*."""

    @classmethod
    def of(cls, names: Sequence[str]) -> Levers:
        """With these pulled."""
        return cls(**dict.fromkeys(names, True))


EXACT = tuple(item.name for item in fields(Levers) if item.name != "chunks")


class CommonConvNet(ConvNet):
    """The same blocks in the usual order: ReLU, then pooling."""

    def network(self, images: Tensor, own: Own | None) -> Tensor:
        """The blocks, then all that is left as one vector."""
        x = images
        for convolution, norm in zip(self.convolutions, self.norms, strict=True):
            x = F.max_pool2d(F.relu(norm(convolution(x), own)), 2, ceil_mode=self.ceil)
        return x.flatten(1)


def common_embedding(work: Work, *, channels_last: bool, relu_last: bool = False) -> ConvNet:
    """Conv-4 in either memory format."""
    kind = ConvNet if relu_last else CommonConvNet
    embedding = kind((1, work.side, work.side), blocks=4, channels=work.channels)
    embedding.channels_last = channels_last
    if not channels_last:
        embedding.to(memory_format=torch.contiguous_format)  # type: ignore[call-overload]
    return embedding


class CommonStep:
    """MetaVRF's training step written from the paper, with our levers to be pulled one by one.

    Without any: images as floats, channels first, one batch; then, task by task, all bases formed, the kernel matrix
    and a general linear solver, in single precision; Adam with its defaults. It computes what :class:`MetaVRF`
    computes, whose networks it calls.
    """

    def __init__(self, work: Work, bank: Bank, levers: Levers) -> None:
        config = step_config(work)
        bank = bank if levers.bytes else replace(bank, inputs=bank.inputs[:].float() / 255)
        self.config, self.levers, self.step = config, levers, 0
        self.tasks = random_tasks(bank)
        learner = config.build(self.tasks.spec)
        assert isinstance(learner, MetaVRF)
        plain = common_embedding(work, channels_last=levers.channels_last, relu_last=levers.relu_last)
        plain.load_state_dict(learner.embedding.state_dict())
        learner.embedding = plain
        self.learner = learner.train()
        self.parts = OneKernel(learner)
        self.learner.initialise(self.draw())
        self.optimizer = torch.optim.Adam(learner.parameters(), lr=config.training.lr, fused=levers.fused or None)

    def __call__(self) -> None:
        """One gradient step."""
        loss = self.loss(self.draw())
        self.optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(self.learner.parameters(), self.config.training.clip)
        self.optimizer.step()
        self.step += 1

    def draw(self) -> Episodes:
        """The tasks of this step."""
        return self.tasks.training(self.config.episode, stream(0, "train", self.step))

    def loss(self, episodes: Episodes) -> Tensor:
        """The negative evidence lower bound of the tasks."""
        features = episodes.embedded(self._embed).embedded(self.learner.rescale)
        size = episodes.tasks if self.levers.batched else 1
        parts = features.batches(size)
        h, memory = self.parts.context(torch.cat([self.parts.summary(part) for part in parts]))
        if self.learner.training:
            self.parts.context.remember(memory)
        losses = [self._solve(part, context) for part, context in zip(parts, h.split(size), strict=True)]
        return torch.stack(losses).mean()

    def _embed(self, x: Tensor) -> Tensor:
        chunks = len(x) if self.levers.chunks else 1
        return torch.cat([self.learner.embedding(part) for part in x.chunk(chunks)])

    def _solve(self, episodes: Episodes, h: Tensor) -> Tensor:
        """The loss of some tasks, from their features and contexts."""
        learner = self.parts
        mean, log_variance = learner.posterior(h)
        z = torch.cat([episodes.support_x, episodes.query_x], dim=1)
        phi = self._features(z, mean, torch.exp(0.5 * log_variance))
        support, query = phi.split([episodes.support_x.shape[1], episodes.query_x.shape[1]], dim=1)
        ridge = learner.head.lam * torch.eye(support.shape[1])
        alpha = torch.linalg.solve(support @ support.mT + ridge, episodes.support_targets)
        logits = learner.head.scaled(query @ support.mT @ alpha)
        assert episodes.query_y is not None
        nll = F.cross_entropy(logits.flatten(0, 1), episodes.query_y.flatten())
        prior = learner.prior(episodes.query_x, episodes.prototypes(episodes.support_x))
        kl = gaussian_kl(mean.unsqueeze(1), log_variance.unsqueeze(1), *prior).mean()
        return nll + self.config.model.kl_weight * kl

    def _features(self, z: Tensor, mean: Tensor, std: Tensor) -> Tensor:
        draws = self.parts.draws(None)
        if self.levers.implicit:
            return fourier_features(z, mean, std, draws)[0]
        bases = mean.unsqueeze(-1) + std.unsqueeze(-1) * draws.epsilon[0]  # ω  [T, d, D/2]
        angle = z @ bases
        return math.sqrt(2 / draws.bases) * torch.cat([angle.cos(), angle.sin()], dim=-1)
