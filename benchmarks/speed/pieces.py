"""The pieces of work, by name, and the worker process that holds them."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cached_property, partial
from typing import Any

import torch

from metavrf.config import Config
from metavrf.episodes import Episodes
from metavrf.kernels.spectral import RandomFeatures
from metavrf.learners.base import Learner
from metavrf.learners.kernel import one_kernel
from metavrf.memory import keep_freed_memory
from metavrf.nn.embeddings import ConvNet
from metavrf.nn.inference import gaussian_kl
from metavrf.randomness import stream
from metavrf.runs.training import Trainer
from metavrf.settings import DataSettings
from metavrf.spec import TaskSpec
from metavrf.tasks.bank import Bank
from metavrf.tasks.datasets import DATASETS
from metavrf.tasks.source import Tasks, open_tasks
from metavrf.testing.settings import TEST_SEED
from speed.gradients import Gradients, pooling_derived
from speed.step import (
    EXACT,
    CommonStep,
    Levers,
    OneKernel,
    backward,
    common_embedding,
    convolutions_pass,
    embedding_pass,
    make_trainer,
    matrix_product,
    random_bank,
    random_tasks,
    sine_config,
    sine_trainer,
    step_config,
)
from speed.turns import Call, Makers, serve
from speed.work import CONTEXTS, GRADIENTS, SINE_PARTS, Work


def lever_sets() -> dict[str, tuple[str, ...]]:
    """Which levers are pulled together, by the name of the piece: none, each alone, all, all but one."""
    alone = {f"common {name}": (name,) for name in (*EXACT, "chunks")}
    without = {f"common without {name}": tuple(n for n in EXACT if n != name) for name in EXACT}
    return {"common": (), **alone, **without, "common all": EXACT, "common all chunks": (*EXACT, "chunks")}


class Pieces:
    """Makes the pieces; what several of them need is made once."""

    def __init__(self, work: Work) -> None:
        self.work = work

    def makers(self) -> Makers:
        """Every piece by name."""
        found: dict[str, Callable[[], Call]] = {
            "step": lambda: self.trainer(self.work).train_step,
            "step as trained": self.step_as_trained,
            "many": self.many,
            "many, pooling derived": lambda: pooling_derived(self.many()),
            "prototypical step": lambda: self.trainer(self.work, "prototypical").train_step,
            "maml step": lambda: self.trainer(self.work, "maml").train_step,
            "embedding": lambda: embedding_pass(self.our_embedding(), self.images),
            "convolutions": lambda: convolutions_pass(self.our_embedding(), self.work.images, self.work.side),
            "arithmetic": lambda: matrix_product(self.work.convolution_flops()),
            "nchw": lambda: self.plain_embedding(channels_last=False),
            "channels last": lambda: self.plain_embedding(channels_last=True),
            "chunks": lambda: self.plain_embedding(channels_last=True, chunks=self.work.tasks),
            "evaluation": self.evaluation,
            "bank": lambda: lambda: open_tasks("omniglot", DataSettings(), quiet=True),
            "adaptation": self.adaptation,
            "kernel ridge": self.kernel_ridge,
        }
        for name, levers in lever_sets().items():
            found[name] = partial(self.common, levers)
        for context in CONTEXTS:
            found[f"sine {context}"] = partial(self.sine_step, context=context)
        found["sine exact"] = partial(self.sine_step, context="none", train_kernel="exact")
        found["sine exact, no KL"] = partial(self.sine_step, context="none", train_kernel="exact", kl_weight=0.0)
        found["sine many"] = partial(self.sine_step, many=True)
        found["sine tnp"] = lambda: self.curves("tnp").train_step
        found["adapt pictures"] = self.adapt_pictures
        for learner in ("metavrf", "tnp"):
            found[f"adapt curve, {learner}"] = partial(self.adapt_curve, learner)
        for part in SINE_PARTS:
            found[f"sine: {part}"] = partial(self.sine_part, part)
        for name in GRADIENTS:
            found[f"gradient: {name}, by hand"] = partial(self.gradient, name, by_hand=True)
            found[f"gradient: {name}, derived"] = partial(self.gradient, name, by_hand=False)
        return found

    @cached_property
    def bank(self) -> Bank:
        """Training pictures."""
        return random_bank(self.work.train_classes, self.work.samples, self.work.side)

    @cached_property
    def images(self) -> torch.Tensor:
        """Of one step, ``[T, N, 1, side, side]`` bytes."""
        episodes = random_tasks(self.bank).training(step_config(self.work).episode, stream(0, "train"))
        return torch.cat([episodes.support_x, episodes.query_x], dim=1)

    def trainer(self, work: Work, learner: str = "metavrf") -> Trainer:
        """Our own loop on random pictures."""
        return make_trainer(step_config(work, learner), random_tasks(self.bank))

    def many(self) -> Call:
        """A step of large tasks."""
        return self.trainer(replace(self.work, way=self.work.many_way, shot=self.work.many_shot)).train_step

    def step_as_trained(self) -> Call:
        """With the dropout and the changes to images that the preset trains with."""
        usual = Config.of("omniglot")
        config = step_config(self.work, dropout=usual.embedding.dropout)
        return make_trainer(config, random_tasks(self.bank, usual.data.augment)).train_step

    def common(self, levers: Sequence[str]) -> Call:
        """The step as commonly written, with some levers pulled."""
        return CommonStep(self.work, self.bank, Levers.of(levers))

    def our_embedding(self) -> ConvNet:
        """The network of our step."""
        return ConvNet((1, self.work.side, self.work.side), blocks=4, channels=self.work.channels)

    def plain_embedding(self, *, channels_last: bool, chunks: int = 1) -> Call:
        """Plain PyTorch, on floats that are ready."""
        images = self.images.float() / 255
        if channels_last:
            tasks = images.shape[:2]
            images = images.flatten(0, 1).contiguous(memory_format=torch.channels_last).unflatten(0, tasks)
        return embedding_pass(common_embedding(self.work, channels_last=channels_last), images, chunks)

    def evaluation(self) -> Call:
        """3,000 episodes: drawn, their images embedded once, solved, and the figures of a result."""
        from metavrf.model import load
        from metavrf.testing.evaluation import evaluate_learner

        learner: Learner
        source: Tasks
        if self.work.real and omniglot_at_hand():
            learner, source = load("omniglot").learner, open_tasks("omniglot", DataSettings(), quiet=True)
        else:
            source = random_tasks(random_bank(self.work.test_classes, self.work.samples, self.work.side))
            learner = step_config(self.work).build(source.spec).eval()
        shape = replace(step_config(self.work).episode, test_query=self.work.query)

        def run() -> None:
            tasks = source.held_out("test", self.work.episodes, shape, stream(TEST_SEED, "test"))
            evaluate_learner(learner, tasks, TEST_SEED)

        return run

    @cached_property
    def ready(self) -> Episodes:
        """One task of ready features."""
        work, generator = self.work, stream(0, "test")
        classes = torch.arange(work.way)
        centres = torch.randn(work.way, work.ready, generator=generator)

        def around(shots: int) -> torch.Tensor:
            points = centres.repeat_interleave(shots, 0)
            return (points + 0.5 * torch.randn(points.shape, generator=generator)).unsqueeze(0)

        support_y, query_y = (classes.repeat_interleave(n).unsqueeze(0) for n in (work.ready_shot, work.query))
        return Episodes(around(work.ready_shot), support_y, around(work.query), query_y, work.way)

    def adaptation(self) -> Call:
        """One task on ready features, from its samples to its answers."""
        learner = step_config(self.work, embedding="ready").build(TaskSpec((self.work.ready,), None))
        learner.initialise(self.ready)
        learner.eval()
        support = self.ready.asking(self.ready.query_x[:, :0])
        return lambda: learner.adapted(support, embedded=True)(self.ready.query_x[0])

    def adapt_pictures(self) -> Call:
        """One task of pictures, embedded anew, from its samples to its answers."""
        trainer = self.trainer(self.work)
        learner = trainer.learner.eval()
        task = trainer.tasks.training(trainer.config.with_options(batch=1).episode, stream(1, "train"))
        return lambda: learner.predict(task)

    def curves(self, learner: str) -> Trainer:
        """Our own loop on sine tasks, with the preset of a learner but for the tasks' size."""
        work = self.work
        shape = {"batch": work.sine_tasks, "shot": work.sine_shot, "query": work.sine_query}
        config = Config.of("sine", learner).with_options(train_shot=0, most_shot=0, **shape)
        return sine_trainer(config)

    def adapt_curve(self, learner: str) -> Call:
        """One curve, from its points to its answers."""
        trainer = self.curves(learner)
        solver = trainer.learner.eval()
        task = trainer.tasks.training(trainer.config.with_options(batch=1).episode, stream(1, "train"))
        return lambda: solver.predict(task)

    def kernel_ridge(self) -> Call:
        """The same by scikit-learn: one Gaussian kernel, one-hot targets."""
        from sklearn.kernel_ridge import KernelRidge

        task = self.ready
        x, y, asked = task.support_x[0].numpy(), task.support_targets[0].numpy(), task.query_x[0].numpy()
        return lambda: KernelRidge(alpha=0.1, kernel="rbf", gamma=1 / self.work.ready).fit(x, y).predict(asked)

    def sine_step(self, **options: Any) -> Call:
        """A whole step on sine tasks."""
        return sine_trainer(sine_config(self.work, **options)).train_step

    def sine_part(self, name: str) -> Call:
        """A part of it."""
        return self.sine_parts[name]

    @cached_property
    def sine_parts(self) -> dict[str, Call]:
        """The parts of a step as functions of ready inputs, each forward and backward."""
        trainer = sine_trainer(sine_config(self.work, context="bilstm"))
        for _ in range(5):
            trainer.train_step()
        learner = OneKernel(trainer.learner)
        embedding, rescale = trainer.learner.embedding, learner.learner.rescale
        episodes = trainer.tasks_of(0)
        features = episodes.embedded(embedding).embedded(rescale)
        support_x, query_x = (x.detach().requires_grad_() for x in (features.support_x, features.query_x))
        features = replace(features, support_x=support_x, query_x=query_x)
        z = torch.cat([features.support_x, features.query_x], dim=1).detach().requires_grad_()

        def posterior() -> tuple[torch.Tensor, torch.Tensor]:
            return learner.posterior(learner.context(learner.summary(features))[0])

        mean, log_variance = (v.detach().requires_grad_() for v in posterior())
        std = torch.exp(0.5 * log_variance).detach().requires_grad_()
        kernel = RandomFeatures(learner.draws(stream(0, "draws")))
        phi = kernel.features(z, one_kernel(mean, std)).detach().requires_grad_()

        def ridge() -> None:
            prediction = learner.head(phi, features)
            assert prediction.loss is not None
            backward(prediction.loss)

        def divergence() -> None:
            prior = learner.prior(features.query_x, features.prototypes(features.support_x))
            backward(gaussian_kl(mean.unsqueeze(1), log_variance.unsqueeze(1), *prior).mean())

        parts: tuple[Call, ...] = (
            lambda: trainer.tasks_of(1),
            lambda: backward(rescale(embedding(episodes.query_x))),
            lambda: backward(*posterior()),
            lambda: learner.draws(stream(0, "draws", 1)),
            lambda: backward(kernel.features(z, one_kernel(mean, std))),
            ridge,
            divergence,
            trainer.optimizer.step,
        )
        return dict(zip(SINE_PARTS, parts, strict=True))

    @cached_property
    def gradients(self) -> Gradients:
        """What has a gradient written by hand."""
        return Gradients(self.work)

    def gradient(self, name: str, *, by_hand: bool) -> Call:
        """Forward and backward of one, with its own gradient or the one that PyTorch derives."""
        gradient = self.gradients.all[name]
        return gradient.call(gradient.by_hand if by_hand else gradient.derived)


def omniglot_at_hand() -> bool:
    """Whether its files are there, so that nothing need be fetched."""
    return all(DATASETS["omniglot"].locate("").values())


def main() -> None:
    """A worker: its only argument is the work."""
    kept = keep_freed_memory()
    facts = {"threads": torch.get_num_threads(), "keeps_freed_memory": kept, "omniglot": omniglot_at_hand()}
    serve(Pieces(Work.from_json(sys.argv[1])).makers(), facts)
