"""What a task looks like: all that a model must know of its tasks, and a result must say of them."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from metavrf.errors import Caution, UserError
from metavrf.schema import check_shape

_SHAPE = {"inputs": [int], "targets": (int, None), "split": str, "sha256": str, "pretraining": str}
_SHAPE |= {"classes": {str: [str]}, "embedder?": str, "pictures?": str}  # the last two are younger
_OF_EPISODES = ("way", "stream")  # kept with the settings, not with the data


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
        return {name: value for name, value in asdict(self).items() if name not in _OF_EPISODES}

    @classmethod
    def from_dict(cls, values: Mapping[str, Any], where: Path | str = "data.json") -> TaskSpec:
        """What :meth:`to_dict` gave; ``where`` names the file in errors."""
        check_shape(values, _SHAPE, where)
        if strange := values.keys() - {name.removesuffix("?") for name in _SHAPE}:
            raise UserError(f"{where} was not written by this version of metavrf: {sorted(strange)[0]!r} is unknown")
        if not values["inputs"] or min(values["inputs"]) < 1 or (values["targets"] or 1) < 1:
            raise UserError(f"{where} is damaged: its inputs or targets have no size")
        return cls(**{**values, "inputs": tuple(values["inputs"])})

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
            raise UserError(f"the classes of {task} are not those the run was split by: use the same data")
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
