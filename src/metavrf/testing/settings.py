"""How a model is tested: one record, the signature of evaluate, compare and pack in Python and on the shell."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from typing import Annotated, Any, Literal

from tyro.conf import arg

from metavrf.errors import UserError
from metavrf.protocol import Protocol
from metavrf.settings import Views

TEST_SEED = 2020
TEST_TASKS = 4000  # of functions
TEST_EPISODES = 3000  # of classes

_INT = arg(metavar="INT")
_TEXT = arg(metavar="STR")


@dataclass(frozen=True, kw_only=True)
class EvalSettings:
    """How to test. What is left out is as in training."""

    tasks: Annotated[int | None, arg(aliases=["--episodes"], metavar="INT")] = None
    """Number of test tasks (episodes); by default 4,000 of functions, 3,000 of classes, each test group
    once of curves."""
    way: Annotated[int | None, _INT] = None
    """Classes per task."""
    shot: Annotated[int | None, _INT] = None
    """Support samples per class, or per task of functions; needed to compare runs trained for different ones."""
    query: Annotated[int | None, _INT] = None
    """Query samples per class."""
    seed: int = TEST_SEED
    """Seed of the test tasks."""
    part: Literal["test", "val"] = "test"
    """Tasks to test on: 'val' for validation ones, on which anything may be chosen before the test."""
    protocol: Literal["inductive", "transductive", "both"] = "inductive"
    """May predictions use the other queries (normalise by the whole episode)? 'both' shows both."""
    statistics: Annotated[Literal["running", "support"] | None, arg(metavar="{running,support}")] = None
    """What the inductive protocol normalises by: running statistics (the default), or the support's own."""
    views: Views = "one"
    """Take the mean of a picture's features over views of it: its mirror image, it shifted four ways, or both. Still
    inductive; takes 2, 5 or 10 times as long to embed."""
    within_alphabet: bool = False
    """Draw all classes of an omniglot task from one alphabet: much harder."""
    stream: Annotated[int | None, _INT] = None
    """Tasks per stream: each may look back at the supports of those before it; 1 for tasks that stand alone."""
    on: Annotated[str | None, _TEXT] = None
    """A family of functions to test on, if other than the one trained on."""
    data: Annotated[str | None, _TEXT] = None
    """Folder of the data sets, or the file of features or curves, if other than in training."""
    bases: Annotated[int | None, _INT] = None
    """Use another number of random features."""
    samples: Annotated[int | None, _INT] = None
    """Use another number of posterior samples."""
    draw: Annotated[int | None, _INT] = None
    """Draw the bases anew from this seed."""
    batch: Annotated[int | None, _INT] = None
    """Tasks solved at a time; it changes nothing but speed."""
    adaptivity: bool = False
    """Also answer the tasks with the mean inference and with another task's: does the learner infer anything?"""

    def check(self, *, regression: bool, curves: bool = False) -> None:
        """Refuse what cannot be, and what means nothing for the tasks at hand."""
        for name, least in _LEAST.items():
            value = getattr(self, name)
            if value is not None and value < least:
                raise UserError(f"{name} = {value} must be at least {least}")
        if self.part not in ("test", "val"):
            raise UserError(f"part = {self.part!r} is not a choice: give test or val")
        if curves and (self.on is not None or self.stream not in (None, 1)):
            raise UserError("on and stream are for families of functions, and this model is of curves of a file")
        for name in (
            ("way", "query", "protocol", "statistics", "views", "within_alphabet", "data") if regression else ("on",)
        ):
            if getattr(self, name) != _DEFAULTS[name] and not (curves and name == "data"):
                kind, others = ("functions", "classes") if regression else ("classes", "functions")
                raise UserError(f"{name} = {getattr(self, name)!r} is for {others}, and this model is of {kind}")

    def each(self) -> list[EvalSettings]:
        """One record per protocol."""
        names: list[Any] = ["inductive", "transductive"] if self.protocol == "both" else [self.protocol]
        return [replace(self, protocol=name) for name in names]

    def named_protocol(self) -> Protocol:
        """The protocol as a value."""
        if self.protocol == "both":
            raise UserError("protocol = 'both' is two tests: give inductive or transductive")
        return Protocol.named(self.protocol, self.statistics, self.views)


_OF_CLASSES = ("way", "query", "protocol", "statistics", "views", "within_alphabet", "data")
_OF_FUNCTIONS = ("on",)
_LEAST = {"tasks": 2, "way": 2, "shot": 1, "query": 1, "seed": 0, "stream": 1, "bases": 1, "samples": 1, "draw": 0}
_LEAST |= {"batch": 1}
_DEFAULTS = {item.name: item.default for item in fields(EvalSettings)}


def eval_settings(settings: EvalSettings | None, options: dict[str, Any]) -> EvalSettings:
    """Settings with some options changed, as functions of the package take both."""
    if strange := options.keys() - _DEFAULTS.keys():
        raise UserError(f"there is no test option {sorted(strange)[0]!r}: choose from {', '.join(_DEFAULTS)}")
    return replace(settings or EvalSettings(), **options)
