"""Settings are frozen dataclasses: defaults, ranges and help stand at the field, and nowhere else.

A field is a ``bool``, ``str``, ``int``, ``float`` or ``Literal``, or one of them with a range: ``Count = 5``. A class
whose fields must fit together has a method ``check``. A field that comes to a released class later says what files
without it meant: ``wide: bool = added(True, before=False)``. This module imports no torch.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, fields
from typing import Annotated, Any, Literal, get_args, get_origin, get_type_hints

from metavrf.errors import UserError

Views = Literal["one", "flip", "shift", "flip-shift"]
LARGEST = 1e18
SMALLEST_SIDE = 8  # of pictures, in pixels
_KINDS = {bool: "true or false", str: "a name", int: "a whole number", float: "a number"}


@dataclass(frozen=True)
class Range:
    """Where a number must lie; to be put into ``Annotated``."""

    least: float | None = None
    above: float | None = None
    below: float | None = None

    def refused(self, value: float) -> str:
        """What is wrong with a value, or nothing."""
        if self.least is not None and value < self.least:
            return "must not be negative" if self.least == 0 else f"must be at least {self.least:g}"
        if self.above is not None and value <= self.above:
            return "must be positive" if self.above == 0 else f"must be more than {self.above:g}"
        if self.below is not None and value >= self.below:
            return f"must be less than {self.below:g}"
        return ""


Count = Annotated[int, Range(least=1)]
Natural = Annotated[int, Range(least=0)]
Positive = Annotated[float, Range(above=0)]
NotNegative = Annotated[float, Range(least=0)]
Share = Annotated[float, Range(least=0, below=1)]


def added(default: Any, *, before: Any) -> Any:
    """The default of a field that a released class did not have; ``before`` is what its older files meant."""
    return field(default=default, metadata={"before": before})


def check_settings(group: Any) -> None:
    """Refuse values of the wrong type, out of range or that do not fit together, one clear sentence each."""
    hints = get_type_hints(type(group), include_extras=True)
    for item in fields(group):
        _check(item.name, getattr(group, item.name), hints[item.name])
    together = getattr(group, "check", None)
    if together is not None:
        together()


def _check(name: str, value: Any, kind: Any) -> None:
    ranges: tuple[Any, ...] = ()
    if get_origin(kind) is Annotated:
        kind, *rest = get_args(kind)
        ranges = tuple(item for item in rest if isinstance(item, Range))
    given = f"{name} = {value!r}"
    choices = get_args(kind) if get_origin(kind) is Literal else ()
    if choices and value not in choices:
        raise UserError(f"{given} is not a choice: give one of {', '.join(map(str, choices))}")
    allowed = (int, float) if kind is float else kind
    if kind in _KINDS and (not isinstance(value, allowed) or (kind is not bool and isinstance(value, bool))):
        raise UserError(f"{given} must be {_KINDS[kind]}")
    if kind is float and not math.isfinite(value):
        raise UserError(f"{given} must be finite")
    if kind in (int, float) and abs(value) > LARGEST:
        raise UserError(f"{given} is more than single precision can take: give at most {LARGEST:g}")
    for item in ranges:
        if wrong := item.refused(value):
            raise UserError(f"{given} {wrong}")


@dataclass(frozen=True)
class EpisodeSettings:
    """The shape of the tasks."""

    way: Annotated[int, Range(least=2)] = 5
    """Classes per task, in classification."""
    shot: Count = 5
    """Support samples per task (per class, in classification)."""
    query: Count = 15
    """Query samples per training task (per class, in classification)."""
    batch: Count = 25
    """Tasks per training step."""
    train_way: Natural = 0
    """Classes per training task: harder tasks teach more; 0 for as many as --way."""
    train_shot: Natural = 0
    """Support samples per training task (per class, in classification); 0 for as many as --shot."""
    most_shot: Natural = 0
    """Draw the shots of each training step anew, from --train-shot to this many; 0 for --train-shot alone."""
    test_query: Count = 15
    """Query samples per class of a validation or test task."""
    stream: Count = 1
    """Tasks per stream: sequences of this many related tasks, each of which may look back at the supports (never the
    queries) of those before it. 1 for tasks that have nothing to do with each other."""

    def check(self) -> None:
        """Refuse an empty range of shots."""
        least = self.train_shot or self.shot
        if self.most_shot and self.most_shot < least:
            raise UserError(f"most_shot = {self.most_shot} is less than the {least} shots to start from")


@dataclass(frozen=True)
class DataSettings:
    """Pictures and curves: where they are, what is read of them, and how their classes or groups are split."""

    data: str = ""
    """Folder of the named data sets; else METAVRF_DATA, else the cache."""
    split: str = ""
    """How classes are split: for omniglot vinyals, random or lake; empty for the data set's usual split."""
    split_seed: Natural = 0
    """Seed of a random split."""
    augment: Literal["none", "crop-flip", "affine", "photo"] = "none"
    """Change training images at random: shift and flip, or more (photo: cut, flip, change light and colour, cover a
    part); turn, stretch and shift drawings (affine)."""
    rotate: bool = False
    """Train on the rotations of images by 90° as classes of their own (omniglot has them in any case)."""
    mirror: bool = False
    """Train on mirror images as classes of their own: more to learn from, where left and right matter."""
    image_size: Natural = 0
    """Side to which pictures are resized: small ones train faster. 0 for a named data set's own size, and for 84 of
    pictures of your own."""
    grey: bool = False
    """Read pictures of your own without colour."""
    group: str = added("", before="")
    """Of curves from a CSV or Parquet file: the column that names the group of a row. A group is a task."""
    inputs: tuple[str, ...] = added((), before=())
    """Of curves: the columns to predict from. Text is taken as categories."""
    targets: tuple[str, ...] = added((), before=())
    """Of curves: the columns to predict."""
    categorical: tuple[str, ...] = added((), before=())
    """Of curves: inputs whose numbers are categories."""
    missing: Literal["refuse", "drop"] = added("refuse", before="refuse")
    """Of curves: refuse missing values, or drop the rows that have some."""

    def __post_init__(self) -> None:
        for name in ("inputs", "targets", "categorical"):
            given = getattr(self, name)
            object.__setattr__(self, name, (given,) if isinstance(given, str) else tuple(given))

    def check(self) -> None:
        """Refuse pictures in which nothing can be seen."""
        if 0 < self.image_size < SMALLEST_SIDE:
            raise UserError(f"image_size = {self.image_size} must be at least {SMALLEST_SIDE}, or 0 for the usual size")
