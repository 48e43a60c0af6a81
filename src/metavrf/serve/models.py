"""The learners behind the page: drawings of a few classes, and curves through a few points."""

from __future__ import annotations

import base64
import binascii
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from metavrf.episodes import Episodes
from metavrf.errors import UserError
from metavrf.files import PathLike
from metavrf.learners.metavrf import MetaVRF
from metavrf.model import TrainedModel, load
from metavrf.runs.directory import SHIPPED
from metavrf.tasks.functions import FAMILIES, family
from metavrf.tasks.images import Preprocessing

MOST_CLASSES = 50  # of a task
MOST_PICTURES = 200  # of a task, or of a request to classify some
MOST_POINTS = 100  # of a curve's task
MOST_QUERIES = 1000  # points of a curve that are asked for at once
MOST_PIXELS = 4_000_000  # of a picture that is sent, before it is decoded
MOST_IN_ALL = 20_000_000  # pixels of all pictures of a request
GRID = 101  # inputs over which a kernel's frequency is taken
PNG = b"\x89PNG\r\n\x1a\n"

Rows = list[list[int]]


def about(model: TrainedModel) -> dict[str, Any]:
    """What the page says of a model: what is kept with it, and the figures of its card as the page answers."""
    result, card = model.result or {}, model.card or {}
    names = ("metric", "mean", "ci95", "way", "shot", "tasks", "protocol")
    tests = [test for test in card.get("tests", []) if not test.keys() & {"views", "own_share"}]
    return {
        "name": model.name,
        "task": model.config.task,
        "learner": model.config.learner,
        "context": getattr(model.config.model, "context", None),
        "command": result.get("command"),
        "steps": result.get("steps"),
        "tests": [{name: test.get(name) for name in names} for test in tests],
        "protocol": model.learner.label(),
        "split": model.spec.split,
        "kernels": model.learner.components if isinstance(model.learner, MetaVRF) else None,
    }


@dataclass
class DrawingTask:
    """A support set of drawings: names of the C classes, labels ``[S]``, and the learner adapted to them."""

    names: list[str]
    labels: Tensor
    predictor: nn.Module
    known: dict[bytes, Tensor] = field(default_factory=dict)
    """Features by the picture's bytes: a picture is embedded once in a task's life."""


class Drawings:
    """Few-shot classification of drawings."""

    def __init__(self, run: PathLike) -> None:
        self.model = load(run)
        self.about = about(self.model)
        spec = self.model.spec
        shape = spec.inputs
        if spec.regression or len(shape) != 3 or shape[0] != 1 or shape[1] != shape[2]:
            raise UserError(f"{run} does not classify square grey pictures, which the page's drawings are")
        self.size = shape[1]
        trained = self.model.preprocessing
        inverted = trained is not None and trained.invert  # as the model was trained on: ink bright or dark
        self.preprocessing = Preprocessing(self.size, channels=1, invert=inverted)

    def fit(self, classes: Mapping[str, Sequence[str | Rows]], before: DrawingTask | None = None) -> DrawingTask:
        """A task with these classes; pictures that ``before`` knows are not embedded again."""
        pictures = self.decoded(
            [
                (picture, f"picture {number} of class {name!r}")
                for name, given in classes.items()
                for number, picture in enumerate(given, 1)
            ]
        )
        known = {} if before is None else before.known
        keys = [picture.tobytes() for picture in pictures]
        new = {key: picture for key, picture in zip(keys, pictures, strict=True) if key not in known}
        if new:
            known = known | dict(zip(new, self.embed(list(new.values())), strict=True))
        labels = torch.tensor([number for number, given in enumerate(classes.values()) for _ in given])
        support = Episodes.of_support(torch.stack([known[key] for key in keys]), labels, len(classes))
        predictor = self.model.adapt(support, embedded=True)
        return DrawingTask(list(classes), labels, predictor, {key: known[key] for key in keys})

    def predict(self, task: DrawingTask, pictures: Sequence[str | Rows]) -> Tensor:
        """Probabilities ``[Q, C]``."""
        named = [(picture, f"picture {number}") for number, picture in enumerate(pictures, 1)]
        probabilities: Tensor = task.predictor(self.embed(self.decoded(named)))
        return probabilities.detach()

    def embed(self, pictures: Sequence[NDArray[np.uint8]]) -> Tensor:
        """Features ``[N, d]``."""
        return self.model.embed(torch.from_numpy(np.stack(pictures)))

    def decode(self, picture: str | Rows, name: str) -> NDArray[np.uint8]:
        """One picture ``[1, size, size]`` as the model was trained on."""
        return self.decoded([(picture, name)])[0]

    def decoded(self, named: Sequence[tuple[str | Rows, str]]) -> list[NDArray[np.uint8]]:
        """Pictures ``[1, size, size]`` as the model was trained on, each with its name for errors.

        A PNG in base64 is dark ink on light paper; rows are from 0 (paper) to 255 (ink). A file of few bytes may have
        many pixels, so that those of all pictures are counted before the first is decoded.
        """
        files = [(_png(picture, name) if isinstance(picture, str) else picture, name) for picture, name in named]
        left = MOST_IN_ALL
        for picture, name in files:
            if isinstance(picture, bytes):
                width, height = struct.unpack(">II", picture[16:24])
                left -= width * height
                if width * height > MOST_PIXELS:
                    raise UserError(f"{name} has {width} x {height} pixels, more than {MOST_PIXELS:,}: make it smaller")
                if left < 0:
                    raise UserError(f"the pictures have more than {MOST_IN_ALL:,} pixels in all: send smaller ones")
        return [
            self.preprocessing.decode(picture, name) if isinstance(picture, bytes) else self._rows(picture, name)
            for picture, name in files
        ]

    def _rows(self, rows: Rows, name: str) -> NDArray[np.uint8]:
        if len(rows) != self.size or any(len(row) != self.size for row in rows):
            raise UserError(f"{name} must have {self.size} rows of {self.size} numbers")
        if not all(min(row) >= 0 and max(row) <= 255 for row in rows):
            raise UserError(f"{name} must hold whole numbers from 0 (paper) to 255 (ink)")
        ink = np.array([rows], np.uint8)
        return ink if self.preprocessing.invert else 255 - ink


def _png(picture: str, name: str) -> bytes:
    """The file of a picture that was sent in base64."""
    try:
        data = base64.b64decode(picture, validate=True)
    except (binascii.Error, ValueError):
        raise UserError(f"{name} is not base64: send a PNG file in base64, or rows of numbers") from None
    if data[:8] != PNG or len(data) < 24:
        raise UserError(f"{name} is not a PNG file: pictures of other kinds are not read")
    return data


@dataclass
class CurveTask:
    """Points of a curve."""

    x: list[float]
    y: list[float]


@dataclass
class KernelWeight:
    """A kernel of a mixture: the frequency it peaks at, in radians per unit of x, and its weight given the points."""

    frequency: float
    weight: float


@dataclass
class Curve:
    """One learner's fit: the mean and, where it has them, the 90 % band and the kernels it is a mixture of."""

    name: str
    mean: list[float]
    low: list[float] | None = None
    high: list[float] | None = None
    kernels: list[KernelWeight] | None = None
    """By frequency; their weights sum to 1."""


class Curves:
    """Few-shot regression by one learner, and by others beside it."""

    def __init__(self, run: PathLike, beside: Sequence[PathLike] = ()) -> None:
        self.models = [load(path) for path in (run, *beside)]
        self.about = [about(model) for model in self.models]
        for path, model in zip((run, *beside), self.models, strict=True):
            if model.spec.targets != 1 or model.spec.inputs != (1,):
                raise UserError(f"{path} does not fit curves y(x): give a run on functions, such as sine")
        tasks = {model.config.task for model in self.models}
        if len(tasks) > 1:
            raise UserError(f"curves of learners trained on different tasks cannot be compared: {', '.join(tasks)}")
        task = self.models[0].config.task
        self.domain = family(task).domain if task in FAMILIES else (-5.0, 5.0)
        self._grid = torch.linspace(*self.domain, GRID)

    def predict(self, task: CurveTask, x: Sequence[float]) -> list[Curve]:
        """The fits of all learners at ``x``."""
        episodes = Episodes.of_task(task.x, task.y, x)
        return [self._curve(model, episodes) for model in self.models]

    def _curve(self, model: TrainedModel, episodes: Episodes) -> Curve:
        prediction = model.predict(episodes)
        curve = Curve(model.name, prediction.mean.flatten().tolist(), kernels=self._kernels(model.learner, episodes))
        if prediction.std is not None:
            curve.low, curve.high = (end.flatten().tolist() for end in prediction.band())
        return curve

    def _kernels(self, learner: nn.Module, episodes: Episodes) -> list[KernelWeight] | None:
        """What the support gives each kernel, by frequency; None where there is but one."""
        if not isinstance(learner, MetaVRF) or learner.components == 1:
            return None
        frequency, weight = learner.spectrum(episodes, self._grid)
        # Several draws of bases, or tails, stand for each kernel in turn: a kernel's weight is theirs together.
        weight = weight.unflatten(0, (-1, len(frequency))).sum(0)
        pairs = zip(frequency.flatten().tolist(), weight.flatten().tolist(), strict=True)
        return [KernelWeight(*pair) for pair in sorted(pairs)]


def shipped(name: str) -> bool:
    """Whether a model of that name comes with the package."""
    return (SHIPPED / name / "config.toml").is_file()
