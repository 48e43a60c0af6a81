"""The interface of every learner: episodes in, prediction out."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Literal

import numpy as np
import torch
from torch import Tensor, nn

from metavrf.episodes import Episodes
from metavrf.errors import UserError
from metavrf.learners.adapted import Solving
from metavrf.learners.classifying import ClassHead
from metavrf.learners.stream import Stream
from metavrf.nn.embeddings import Embedding, Ready
from metavrf.nn.mlp import Raw
from metavrf.prediction import Prediction
from metavrf.protocol import INDUCTIVE, Protocol, Statistics
from metavrf.randomness import stream
from metavrf.settings import EpisodeSettings, check_settings
from metavrf.spec import TaskSpec

__all__ = ["SHOT_NODES", "Kind", "Learner", "NoSettings", "Prediction"]

SHOT_NODES = (1, 2, 5, 10, 20)  # samples per class at which probabilities are calibrated

Kind = Literal["regression", "classification"]
Presets = Mapping[str, Mapping[str, Any]]


@dataclass(frozen=True)
class NoSettings:
    """A learner without settings of its own."""


class Learner(nn.Module, ABC):
    """A meta-learner: parameters shared by all tasks, and a way to solve a task in one forward pass.

    In training mode a learner may carry state from batch to batch; in evaluation mode tasks are independent of each
    other. Most learners override :meth:`solve`, which sees features; one that changes its embedding for a task (an
    inner loop, a conditioned embedding) overrides :meth:`forward` and says ``embeds_alone = False``.

    Attributes:
        Settings: the dataclass of its own settings (:mod:`metavrf.settings`); they stand in config.toml and in the help
            of ``metavrf train``.
        presets: where any setting starts, its own or another's, by the kind of task: "all", "functions", "classes",
            "drawings", "photographs", "features", then the task's own name.
        paper: likewise, what its paper says, for ``--preset paper``.
        citation: where the method was published.
        transductive: whether the method itself lets a query's prediction depend on the other queries.
        solves: the kinds of tasks that its paper solved.
        embeds_alone: whether a sample has the same features in every task, so that a bank can be embedded once.
        any_way: whether a trained model can be asked for another number of classes.
        inductive_statistics: what the embedding is normalised by under the inductive protocol, unless said otherwise.
        maps: whether it wants feature maps of a picture, rather than pooled features.
        embedding: turns inputs into features; called as ``embedding(x, own, views)``.
        spec: what its tasks look like.
        settings: its own.
        temperature: by which logits are divided at test time, for each of ``SHOT_NODES`` samples per class; fitted on
            validation classes.
    """

    Settings: ClassVar[type[Any]] = NoSettings
    presets: ClassVar[Presets] = {}
    paper: ClassVar[Presets] = {}
    citation: ClassVar[str] = ""
    transductive: ClassVar[bool] = False
    solves: ClassVar[tuple[Kind, ...]] = ("regression", "classification")
    embeds_alone: ClassVar[bool] = True
    any_way: ClassVar[bool] = True
    inductive_statistics: ClassVar[Statistics] = "running"
    maps: ClassVar[bool] = False
    embedding: nn.Module
    temperature: Tensor
    once_one_number: ClassVar[tuple[str, ...]] = ("temperature",)
    components = 1  # kernels, or whatever a prediction is a mixture of: how much room a task takes
    networks = 1  # that a task's pictures pass at test time: likewise

    def __init__(
        self,
        embedding: nn.Module | None = None,
        spec: TaskSpec | None = None,
        settings: Any = None,
        *,
        generator: torch.Generator | None = None,
    ) -> None:
        """For an embedding and tasks as ``spec`` says; ``generator`` is for what the learner draws once and keeps."""
        super().__init__()
        self.spec = TaskSpec() if spec is None else spec
        self.embedding: nn.Module = Raw(self.spec.inputs[0]) if embedding is None else embedding
        self.classifier: ClassHead | None = None
        self.classify_weight = 0.0
        self.settings = self.Settings() if settings is None else settings
        check_settings(self.settings)
        self.register_buffer("temperature", torch.ones(len(SHOT_NODES)))
        self.setup(stream(0, "bases") if generator is None else generator)

    def setup(self, generator: torch.Generator) -> None:
        """Make what the learner has beside its embedding; ``generator`` is for what it draws once and keeps.

        ``self.embedding``, ``self.spec`` and ``self.settings`` are there already.
        """

    @classmethod
    def arranged(cls, config: Any, asked: Mapping[str, Any]) -> Any:
        """A preset configuration, changed where what is ``asked`` for changes the other defaults."""
        return config

    @classmethod
    def check_tasks(cls, shape: EpisodeSettings, *, regression: bool) -> None:
        """Refuse shapes of tasks that this learner cannot be trained and tested on, before anything is written."""
        if not cls.any_way and not regression and shape.train_way not in (0, shape.way):
            raise UserError(
                f"train_way = {shape.train_way} must be 0 or the {shape.way} of --way: the last layer of this learner "
                "fixes the number of classes"
            )

    def check_way(self, episodes: Episodes) -> None:
        """Refuse tasks of another number of classes than a learner answers that is not of any way."""
        if episodes.way not in (None, self.spec.way):
            raise UserError(
                f"this model answers {self.spec.way} classes, which its last layer fixes: "
                f"give tasks of --way {self.spec.way}, not {episodes.way}, in training and test"
            )

    def forward(
        self,
        episodes: Episodes,
        generator: torch.Generator | None = None,
        memory: Any = None,
        protocol: Protocol = INDUCTIVE,
    ) -> Prediction:
        """Embed and solve the tasks; ``generator`` feeds whatever the learner draws at random while it trains."""
        embedded = self.embedded(episodes, protocol)
        return self.classified(self.solve(embedded, memory, generator), embedded)

    def classify(self, weight: float) -> None:
        """Train a classifier of the training classes beside the tasks, on the same features."""
        if not (self.embeds_alone and self.spec.train_classes):
            raise UserError(
                f"classify_weight = {weight} is for learners of classes whose embedding is the same in every task"
            )
        self.classifier = ClassHead(int(self.embedding.features), self.spec.train_classes)  # type: ignore[arg-type]
        self.classify_weight = weight

    def classified(self, prediction: Prediction, embedded: Episodes) -> Prediction:
        """The prediction with the loss of the classifier of the training classes added, where there is one."""
        if self.classifier is None or prediction.loss is None or embedded.classes is None:
            return prediction
        error = self.classifier.loss(embedded)
        loss = prediction.loss + self.classify_weight * error
        return replace(prediction, loss=loss, terms=dict(prediction.terms) | {"training_classes": error})

    @abstractmethod
    def solve(self, episodes: Episodes, memory: Any = None, generator: torch.Generator | None = None) -> Prediction:
        """Solve tasks whose inputs are features.

        ``memory`` is what an earlier prediction remembered (``Prediction.memory``), for learners that look back.
        """

    def remember(self, prediction: Prediction) -> None:
        """Take up what a training step leaves to the next; most learners keep nothing."""

    def inferred(self, episodes: Episodes) -> Any:
        """What is inferred of each task on features, for the adaptivity test; None where nothing is.

        See :class:`metavrf.learners.inferred.Inference` for what it must be able to do.
        """
        return None

    def answer(self, episodes: Episodes, inference: Any) -> Prediction:
        """Solve tasks on features with what :meth:`inferred` said of them, or of others."""
        raise UserError("this learner infers nothing that could be exchanged between tasks")

    def left_out(self, support: Episodes, rows: Tensor) -> Tensor | None:
        """Class probabilities ``[N, C]`` of support samples of one embedded task given all others, in closed form.

        None where there is none, and each must be left out in turn.
        """
        return None

    def stream(self) -> Stream:
        """Related tasks one after the other, each of which may look back at the supports of those before it."""
        return Stream(self)

    def embedded(self, episodes: Episodes, protocol: Protocol = INDUCTIVE) -> Episodes:
        """The same tasks with features for inputs."""
        own = None if self.training else self.own_samples(episodes, protocol)
        if own is None and protocol.views == "one":
            return episodes.embedded(self.embedding)
        return episodes.embedded(lambda x: self.embedding(x, own, protocol.views))

    def features_of(self, inputs: Tensor, views: str = "one") -> Tensor:
        """Features ``[N, d]`` of ``inputs [N, ...]``, wherever the learner is, on the inputs' own device."""
        features: Tensor = self.embedding(inputs.to(self.device).unsqueeze(0), None, views)
        return features.squeeze(0).to(inputs.device)

    def statistics(self, protocol: Protocol) -> Statistics:
        """What the embedding is normalised by at test time."""
        return protocol.statistics or self.inductive_statistics

    def own_samples(self, episodes: Episodes, protocol: Protocol = INDUCTIVE) -> int | None:
        """How many of a task's samples it is normalised by at test time, or None for running statistics."""
        support = episodes.support_x.shape[1]
        whole = support + episodes.query_x.shape[1]
        return {"running": None, "support": support, "episode": whole}[self.statistics(protocol)]

    def embeds_once(self, protocol: Protocol) -> bool:
        """Whether a sample has the same features in every task, so that each needs to be embedded but once."""
        return self.embeds_alone and self.statistics(protocol) == "running"

    def label(self, protocol: Protocol = INDUCTIVE) -> str:
        """``inductive`` or ``transductive``: the label that every result carries."""
        transductive = self.transductive or self.statistics(protocol) == "episode"
        return "transductive" if transductive else "inductive"

    def check_protocol(self, protocol: Protocol) -> None:
        """Refuse a protocol that means nothing for this learner and its tasks."""
        pictures = isinstance(self.embedding, Embedding) and not isinstance(self.embedding, Ready)
        if self.spec.regression and (protocol.statistics or protocol.views != "one"):
            raise UserError("protocol, statistics and views are for classes: functions are not normalised by a batch")
        if protocol.statistics == "running" and self.inductive_statistics != "running":
            raise UserError("a learner that adapts its embedding to a task is normalised by the task's own support")
        if protocol.views != "one" and not (pictures and self.embeds_alone):
            raise UserError(
                f"views = {protocol.views!r} is for learners that embed pictures, each in the same way in every task; "
                "leave it at 'one'"
            )

    def initialise(self, episodes: Episodes) -> None:
        """Set scales from a first batch of training tasks, before the first step."""
        if isinstance(self.embedding, Embedding):
            self.embedding.initialise(episodes.support_x)

    @torch.no_grad()  # not inference mode, in which an inner loop could not take gradients
    def predict(
        self, episodes: Episodes, *, embedded: bool = False, memory: Any = None, protocol: Protocol = INDUCTIVE
    ) -> Prediction:
        """Solve tasks as at test time: evaluation mode, no gradients, calibrated, input checked for NaN.

        ``embedded`` says that the inputs are this learner's features already. Answers, where they are known, are not
        shown to the learner. ``memory`` is that of tasks before these, as :meth:`solve` takes it. Tasks are moved to
        the learner's device, and predictions to where the tasks are.
        """
        episodes.check_finite()
        asked_from = episodes.support_y.device
        episodes = episodes.asking(episodes.query_x).to(self.device)
        with self.at_test_time():
            if embedded:
                prediction = self.solve(episodes.looked_up(), memory)
            else:
                prediction = self(episodes, None, memory, protocol)
        if episodes.way is not None:
            prediction = replace(prediction, mean=self.calibrated(prediction.mean, episodes))
        return prediction.to(asked_from)

    def temperature_for(self, episodes: Episodes) -> Tensor:
        """The temperature for as many samples per class as the tasks have; between nodes on a logarithmic scale."""
        found = np.interp(math.log(episodes.shot), np.log(SHOT_NODES), self.temperature.cpu().numpy())
        return self.temperature.new_tensor(float(found))

    def calibrated(self, logits: Tensor, episodes: Episodes) -> Tensor:
        """Log probabilities of the classes: logits divided by the temperature."""
        return (logits / self.temperature_for(episodes).to(logits)).log_softmax(-1)

    @property
    def device(self) -> torch.device:
        """Where its parameters are."""
        return self.temperature.device

    @contextmanager
    def at_test_time(self) -> Iterator[None]:
        """Evaluation mode, for a while."""
        if not self.training:  # setting the mode of every layer takes longer than solving a small task
            yield
            return
        self.eval()
        try:
            yield
        finally:
            self.train()

    def adapted(self, episodes: Episodes, *, embedded: bool = False) -> nn.Module:
        """A module that answers for one task's queries: ``x [N, ...]`` to probabilities, or to mean and deviation.

        ``episodes`` hold the support; ``embedded`` says that it, and what the module is asked, are features already.
        The module is on the learner's device; it may be asked from another, and answers there.
        """
        return Solving(self, episodes, embedded=embedded)
