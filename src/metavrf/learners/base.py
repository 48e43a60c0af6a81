"""The interface of every learner: episodes in, prediction out."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Self

import torch
from torch import Tensor, nn

from metavrf.episodes import Episodes
from metavrf.errors import UserError
from metavrf.learners.adapted import Solving
from metavrf.learners.stream import Stream
from metavrf.nn.embeddings import Embedding, Ready
from metavrf.nn.normalisation import Normalisation
from metavrf.nn.views import check_views
from metavrf.prediction import Prediction

if TYPE_CHECKING:
    from metavrf.config import Config
    from metavrf.tasks.source import Description


__all__ = ["Kind", "Learner", "Prediction", "Statistics"]

Statistics = Literal["running", "support", "episode"]
Kind = Literal["regression", "classification"]


class Learner(nn.Module, ABC):
    """A meta-learner: parameters shared by all tasks, and a way to solve a task in one forward pass.

    In training mode a learner may carry state from batch to batch; in evaluation mode tasks are independent of each
    other. Most learners override :meth:`solve`, which sees features; one that changes its embedding for a task (an
    inner loop, a conditioned embedding) overrides :meth:`forward` and says ``embeds_alone = False``.

    Attributes:
        citation: where the method was published.
        transductive: whether the method itself lets a query's prediction depend on the other queries.
        solves: the kinds of tasks that its paper solved.
        embeds_alone: whether a sample has the same features in every task, so that a bank can be embedded once.
        any_way: whether a trained model can be asked for another number of classes.
        inductive_statistics: what the embedding is normalised by under the inductive protocol, unless said otherwise.
        maps: whether it wants feature maps of a picture, rather than pooled features.
        embedding: turns inputs into features; called as ``embedding(x, own)``.
        statistics: what the embedding normalises by at test time: "running" statistics, those of the task's "support",
            or those of the whole "episode", which makes any learner transductive.
        own_share: weight of the support's or the episode's statistics beside the running ones.
        temperature: by which logits are divided at test time; fitted on validation classes.
    """

    citation: ClassVar[str] = ""
    transductive: ClassVar[bool] = False
    solves: ClassVar[tuple[Kind, ...]] = ("regression", "classification")
    embeds_alone: ClassVar[bool] = True
    any_way: ClassVar[bool] = True
    inductive_statistics: ClassVar[Statistics] = "running"
    maps: ClassVar[bool] = False
    embedding: nn.Module
    temperature: Tensor
    components = 1  # kernels, or whatever a prediction is a mixture of: how much room a task takes

    def __init__(self, embedding: nn.Module | None = None) -> None:
        super().__init__()
        self.embedding = nn.Identity() if embedding is None else embedding
        self.statistics: Statistics = self.inductive_statistics
        self.own_share = 1.0
        self.register_buffer("temperature", torch.ones(()))

    @classmethod
    def of(cls, embedding: Any, config: Config, data: Description, generator: torch.Generator) -> Self:
        """A new learner for a configuration and tasks as ``data`` describes them; ``generator`` is for its draws."""
        return cls(embedding)

    def forward(self, episodes: Episodes, generator: torch.Generator | None = None, memory: Any = None) -> Prediction:
        """Embed and solve the tasks; ``generator`` feeds whatever the learner draws at random while it trains."""
        return self.solve(self.embedded(episodes), memory, generator)

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

    def stream(self) -> Stream:
        """Related tasks one after the other, each of which may look back at the supports of those before it."""
        return Stream(self)

    def embedded(self, episodes: Episodes) -> Episodes:
        """The same tasks with features for inputs."""
        own = None if self.training else self.own_samples(episodes)
        return episodes.embedded(self.embedding if own is None else lambda x: self.embedding(x, own))

    def own_samples(self, episodes: Episodes) -> int | None:
        """How many of a task's samples it is normalised by at test time, or None for running statistics."""
        support = episodes.support_x.shape[1]
        return {"running": None, "support": support, "episode": support + episodes.query_x.shape[1]}[self.statistics]

    def initialise(self, episodes: Episodes) -> None:
        """Set scales from a first batch of training tasks, before the first step."""
        if isinstance(self.embedding, Embedding):
            self.embedding.initialise(episodes.support_x)

    @torch.no_grad()  # not inference mode, in which an inner loop could not take gradients
    def predict(self, episodes: Episodes, *, embedded: bool = False, memory: Any = None) -> Prediction:
        """Solve tasks as at test time: evaluation mode, no gradients, calibrated, input checked for NaN.

        ``embedded`` says that the inputs are this learner's features already. Answers, where they are known, are not
        shown to the learner. ``memory`` is that of tasks before these, as :meth:`solve` takes it.
        """
        episodes.check_finite()
        episodes = episodes.asking(episodes.query_x)
        with self.at_test_time():
            prediction = self.solve(episodes.looked_up(), memory) if embedded else self(episodes, None, memory)
        if episodes.way is None:
            return prediction
        return replace(prediction, mean=(prediction.mean / self.temperature).log_softmax(-1))

    def follow(self, protocol: str, statistics: str | None = None, own_share: float = 1.0, views: str = "one") -> None:
        """Answer under a protocol; the inductive one takes "running" statistics, or those of the "support" alone.

        Statistics of the support or the episode can be mixed with running ones: ``own_share`` is their weight. A
        picture's features are the mean over its ``views`` (:mod:`metavrf.nn.views`).
        """
        if not 0 < own_share <= 1:
            raise UserError(f"own_share = {own_share:g} must be above 0 and at most 1")
        if statistics == "running" and not self.embeds_alone:
            raise UserError("a learner that adapts its embedding to a task is normalised by the task's own support")
        match protocol, statistics:
            case "transductive", None:
                self.statistics = "episode"
            case "inductive", None:
                self.statistics = self.inductive_statistics
            case "inductive", "running" | "support":
                self.statistics = statistics
            case _:
                raise UserError(
                    f"{protocol=} with {statistics=} is not a choice: give inductive (with running or support "
                    "statistics) or transductive"
                )
        self.own_share = 1.0 if self.statistics == "running" else own_share
        for layer in self.embedding.modules():
            if isinstance(layer, Normalisation):
                layer.own_share = self.own_share
        self._look(views)

    def _look(self, views: str) -> None:
        check_views(views)
        if views != "one" and (not isinstance(self.embedding, Embedding) or isinstance(self.embedding, Ready)):
            raise UserError(f"{views=} is for learners that embed pictures; leave it at 'one'")
        if views != "one" and not self.embeds_alone:
            raise UserError(f"{views=} is not for a learner that adapts its embedding to a task; leave it at 'one'")
        if isinstance(self.embedding, Embedding):
            self.embedding.views = views

    @property
    def views(self) -> str:
        """What the features of a picture are the mean over at test time."""
        return self.embedding.views if isinstance(self.embedding, Embedding) else "one"

    @property
    def protocol(self) -> str:
        """``inductive`` or ``transductive``: the label every result carries."""
        return "transductive" if self.transductive or self.statistics == "episode" else "inductive"

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
        """
        return Solving(self, episodes, embedded=embedded)
