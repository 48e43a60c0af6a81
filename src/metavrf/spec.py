"""What a task looks like: all that a model must know of its tasks, and a result must say of them."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from metavrf.episodes import Episodes
from metavrf.errors import Caution, UserError
from metavrf.schema import check_shape

_COLUMNS: dict[str, Any] = {"group": str, "inputs": [str], "targets": [str], "categories": {str: [str]}, "dropped": int}
_COLUMNS |= {name: [float] for name in ("input_mean", "input_std", "target_mean", "target_std")}
_SHAPE = {"inputs": [int], "targets": (int, None), "split": str, "sha256": str, "pretraining": str}
_SHAPE |= {"classes": {str: [str]}, "embedder?": str, "pictures?": str}  # these and what follows are younger
_SHAPE |= {"train_classes?": int, "columns?": (_COLUMNS, None)}
_OF_EPISODES = ("way", "stream")  # kept with the settings, not with the data


@dataclass(frozen=True)
class Columns:
    """The columns of a table of curves, and what was learned of them on the training groups."""

    group: str
    inputs: list[str]
    targets: list[str]
    categories: Mapping[str, list[str]]
    """Of inputs that are no numbers: each category is an input of the learner, 0 or 1."""
    input_mean: list[float] = field(default_factory=list)
    input_std: list[float] = field(default_factory=list)
    target_mean: list[float] = field(default_factory=list)
    target_std: list[float] = field(default_factory=list)
    dropped: int = 0
    """Rows that were left out for missing values."""

    def scaled_by(self, x: NDArray[np.float64], y: NDArray[np.float64], dropped: int = 0) -> Columns:
        """With mean and deviation of rows ``x [N, d]`` and ``y [N, p]``; categories stay 0 and 1."""
        numbers = np.concatenate([np.full(self.width(name), name not in self.categories) for name in self.inputs])
        scales = {
            "input_mean": np.where(numbers, x.mean(0), 0.0),
            "input_std": np.where(numbers, _deviation(x), 1.0),
            "target_mean": y.mean(0),
            "target_std": _deviation(y),
        }
        return replace(self, dropped=dropped, **{name: values.tolist() for name, values in scales.items()})

    def width(self, name: str) -> int:
        """How many inputs of the learner a column is."""
        return len(self.categories.get(name, [name]))

    def axis_name(self) -> str:
        """The input that curves are drawn over: the first that is a number."""
        return next((name for name in self.inputs if name not in self.categories), self.inputs[0])

    def axis(self) -> int:
        """Its number among the inputs of the learner."""
        return sum(self.width(name) for name in self.inputs[: self.inputs.index(self.axis_name())])

    def standardised(self, episodes: Episodes) -> Episodes:
        """Tasks in the units of the table as a learner sees them."""
        return self.standard_targets(episodes).embedded(self.standard_inputs)

    def standard_inputs(self, x: Tensor) -> Tensor:
        """Inputs ``[..., d]`` as a learner sees them."""
        mean, std = (torch.tensor(values, dtype=torch.double) for values in (self.input_mean, self.input_std))
        return ((x.double() - mean) / std).float()

    def standard_targets(self, episodes: Episodes) -> Episodes:
        """Tasks whose targets are as a learner sees them."""
        mean, std = self.target_scale()
        support, query = (
            None if y is None else ((y.double() - mean) / std).float() for y in (episodes.support_y, episodes.query_y)
        )
        assert support is not None
        return replace(episodes, support_y=support, query_y=query)

    def target_scale(self) -> tuple[Tensor, Tensor]:
        """Mean and deviation of the targets, ``[p]`` each."""
        return torch.tensor(self.target_mean, dtype=torch.double), torch.tensor(self.target_std, dtype=torch.double)


def _deviation(values: NDArray[np.float64]) -> NDArray[np.float64]:
    """Of each column; 1 where all values are the same."""
    deviation = values.std(0)
    return np.where(deviation > 1e-12 * np.abs(values).max(0), deviation, 1.0)


@dataclass(frozen=True)
class TaskSpec:
    """What a model must know of its tasks, and a result must say of them; kept with the run as data.json."""

    inputs: tuple[int, ...] = (1,)
    """Shape of a sample."""
    targets: int | None = 1
    """Real outputs of regression, or None for classes."""
    split: str = ""
    sha256: str = ""
    """Of the data and its preprocessing."""
    pretraining: str = ""
    """What the features were pre-trained on, if they were."""
    classes: Mapping[str, list[str]] = field(default_factory=dict)
    embedder: str = ""
    """What makes such features of pictures (:func:`metavrf.networks.picture_features`), if it is a known network."""
    pictures: str = ""
    """The data set whose pictures the features are of, if they are features."""
    train_classes: int = field(default=0, compare=False)
    """Training classes, rotations and mirror images included; 0 where there are none, or an older file has it not."""
    columns: Columns | None = None
    """Of curves from a file, whose ``classes`` are groups of rows."""
    way: int = 5
    """Classes per task, for learners that fix them."""
    stream: int = 1
    """Tasks per stream of the training tasks."""

    @property
    def regression(self) -> bool:
        """Whether targets are real numbers."""
        return self.targets is not None

    def to_dict(self) -> dict[str, Any]:
        """Plain values."""
        values = {name: value for name, value in asdict(self).items() if name not in _OF_EPISODES}
        return values | {"inputs": list(self.inputs)}

    @classmethod
    def from_dict(cls, values: Mapping[str, Any], where: Path | str = "data.json") -> TaskSpec:
        """What :meth:`to_dict` gave; ``where`` names the file in errors."""
        check_shape(values, _SHAPE, where)
        if strange := values.keys() - {name.removesuffix("?") for name in _SHAPE}:
            raise UserError(f"{where} was not written by this version of metavrf: {sorted(strange)[0]!r} is unknown")
        if not values["inputs"] or min(values["inputs"]) < 1 or (values["targets"] or 1) < 1:
            raise UserError(f"{where} is damaged: its inputs or targets have no size")
        columns = values.get("columns")
        own = {"inputs": tuple(values["inputs"]), "columns": None if columns is None else Columns(**columns)}
        return cls(**{**values, **own})

    def embed_command(self, task: str) -> str:
        """The command that makes the feature file ``task``."""
        network, _, resolution = self.embedder.partition("@")
        by = f" --by {network} --resolution {resolution}" if network else ""
        return f"metavrf embed {self.pictures or 'DATA'}{by} --out {Path(task).name}"

    def check_same(self, trained: TaskSpec, task: str) -> None:
        """Refuse to test on these what was ``trained`` on others: its test classes would not be new, or not alike.

        Where the classes are the same but the data is not, a warning says so.
        """
        if dict(self.classes) != dict(trained.classes):
            what = "classes" if trained.columns is None else "groups"
            raise UserError(f"the {what} of {task} are not those the run was split by: use the same data")
        both_known = self.embedder and trained.embedder
        unlike = (self.inputs, self.targets) != (trained.inputs, trained.targets)
        if unlike or (both_known and self.embedder != trained.embedder):
            own, others = (d._sample() for d in (self, trained))
            raise UserError(f"{task} holds samples of another kind ({own}) than the run was trained on ({others})")
        if self.sha256 and trained.sha256 and self.sha256 != trained.sha256:
            warnings.warn(
                f"the data of {task} is not the data the run was trained on: its classes are, but its SHA-256 sum is "
                "another, so figures may not be comparable",
                Caution,
                stacklevel=3,
            )

    def _sample(self) -> str:
        """What a sample is, in words."""
        shape = f"{self.embedder} {' x '.join(map(str, self.inputs))}".strip()
        return shape if self.targets is None else f"{shape} inputs, {self.targets} outputs"
