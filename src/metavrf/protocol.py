"""Under which protocol a task is answered: a value that is passed along."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

from metavrf.errors import UserError
from metavrf.settings import Views

Statistics = Literal["running", "support", "episode"]


@dataclass(frozen=True)
class Protocol:
    """What a prediction may depend on.

    Attributes:
        statistics: what the embedding is normalised by: "running" statistics, those of the task's "support", or those
            of the whole "episode", which makes any learner transductive. None for the learner's own inductive choice.
        views: of a picture, over which its features are averaged (:mod:`metavrf.nn.views`).
    """

    statistics: Statistics | None = None
    views: Views = "one"

    def __post_init__(self) -> None:
        for name, value, allowed in (
            ("statistics", self.statistics, (None, *get_args(Statistics))),
            ("views", self.views, get_args(Views)),
        ):
            if value not in allowed:
                raise UserError(f"{name} = {value!r} is unknown: choose from {', '.join(map(str, allowed))}")

    @classmethod
    def named(cls, name: str, statistics: str | None = None, views: Views = "one") -> Protocol:
        """The "inductive" protocol, with "running" statistics or those of the "support"; or the "transductive" one."""
        match name, statistics:
            case "transductive", None:
                return cls("episode", views)
            case "inductive", None | "running" | "support":
                return cls(statistics, views)
        raise UserError(
            f"protocol = {name!r} with statistics = {statistics!r} is not a choice: give inductive (with running or "
            "support statistics) or transductive"
        )


INDUCTIVE = Protocol()
