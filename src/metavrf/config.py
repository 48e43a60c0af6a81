"""The one source of every setting: these dataclasses are the configuration file and the command line's help.

This module imports no torch, so that ``metavrf --help`` is fast.
"""

from __future__ import annotations

import math
import tomllib
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path
from typing import Any, Literal, get_args, get_type_hints

from metavrf.errors import UserError

TEST_SEED = 2020
TEST_TASKS = 4000  # of functions
TEST_EPISODES = 3000  # of classes


@dataclass(frozen=True)
class EpisodeSettings:
    """The shape of the tasks."""

    way: int = 5
    """Classes a task, in classification."""
    shot: int = 5
    """Support samples a task (a class, in classification)."""
    query: int = 15
    """Query samples a training task (a class, in classification)."""
    batch: int = 25
    """Tasks a training step."""
    train_way: int = 0
    """Classes of a training task: harder tasks teach more; 0 for as many as --way."""
    train_shot: int = 0
    """Support samples of a training task (a class, in classification); 0 for as many as --shot."""
    most_shot: int = 0
    """Draw the shots of each training step anew, from --train-shot to this many; 0 for --train-shot alone."""
    test_query: int = 15
    """Query samples a class of a validation or test task."""


@dataclass(frozen=True)
class DataSettings:
    """Pictures: where they are and how their classes are split."""

    data: str = ""
    """Folder of the named data sets; else METAVRF_DATA, else the cache."""
    split: str = ""
    """How classes are split: for omniglot vinyals, random or lake; empty for the data set's usual split."""
    split_seed: int = 0
    """Seed of a random split."""
    augment: Literal["none", "crop-flip", "affine"] = "none"
    """Change training images at random: shift and flip (photographs), or turn, stretch and shift (drawings)."""
    rotate: bool = False
    """Train on the rotations of images by 90° as classes of their own (omniglot has them in any case)."""
    image_size: int = 84
    """Side to which pictures of your own are resized."""
    grey: bool = False
    """Read pictures of your own without colour."""


@dataclass(frozen=True)
class EmbeddingSettings:
    """The network that turns an image into features; functions have a fixed one, ready features none."""

    embedding: Literal["conv4", "conv5", "resnet12", "wrn28-10"] = "conv4"
    """Four or five blocks as in the paper's tables, or one of the deep residual networks."""
    channels: int = 64
    """Channels of conv4 and conv5."""
    dropout: float = 0.0
    """Share of activations dropped after each block while training."""
    project: int = 0
    """Map ready features to this many, if they are more, by a learned linear map; 0 to leave them as they are."""


@dataclass(frozen=True)
class MetaVRFSettings:
    """The learner. Plain RFF reads the same settings, less those of the inference networks."""

    context: Literal["none", "lstm", "bilstm"] = "bilstm"
    """What the bases are inferred from: this task alone, or the tasks before it too."""
    context_inputs: Literal["x", "xy"] = "x"
    """Does the context see the support's inputs only (the paper's reading) or its targets too?"""
    context_skip: bool = True
    """Add this task's own summary to the LSTM's output, which is bounded and slow to learn to pass it on."""
    bases: int = 780
    """Number D of random Fourier features."""
    train_bases: int = 256
    """Features of a training step where bases are resampled: fewer are faster and as good; 0 for as many as --bases."""
    feature_map: Literal["cosine", "sincos"] = "sincos"
    """The paper's cos(ωz + b), or pairs of cos(ωz) and sin(ωz)."""
    orthogonal: bool = False
    """Draw the bases orthogonal in blocks."""
    draw: Literal["fixed", "resampled"] = "resampled"
    """Random numbers behind the bases while training: the same at every step, or fresh ones."""
    samples: int = 1
    """Number L of posterior samples, each of D bases."""
    kl_weight: float = 1e-3
    """Weight of the KL divergence in the loss; 1 is the paper's."""
    ridge: float = 1e-6
    """λ of ridge regression at the start; it is learned."""
    gamma: float = 1.0
    """Output scale γ at the start; it is learned."""
    unit_features: bool = False
    """Scale each sample's features to length 1 before the kernel sees them."""
    distance: float = 0.0
    """Mean distance of support features at the start, in length scales; 0 for 0.4 a shot, but at least 2."""


@dataclass(frozen=True)
class InnerSettings:
    """The inner loop of maml and meta-sgd; other learners have none."""

    inner_steps: int = 1
    """Gradient steps on a task's support while training."""
    test_inner_steps: int = 0
    """Gradient steps at test time; 0 for as many as while training."""
    inner_lr: float = 0.4
    """Learning rate of these steps; meta-sgd learns its own, and starts them at up to this."""
    first_order: bool = False
    """Leave out the derivative of the steps themselves."""


@dataclass(frozen=True)
class TrainingSettings:
    """The training loop."""

    iterations: int = 20_000
    """Training steps."""
    lr: float = 2e-3
    """Peak learning rate of Adam."""
    schedule: Literal["cosine", "constant"] = "cosine"
    """Learning rate after the warm-up: down to zero along a cosine, or constant."""
    warmup: int = 100
    """Steps over which the learning rate rises to its peak."""
    clip: float = 1.0
    """Largest gradient norm; 0 for no limit."""
    seed: int = 0
    """Seed of everything random in the run."""
    validate_every: int = 1000
    """Steps between validations, each followed by a checkpoint."""
    validate_tasks: int = 1000
    """Validation tasks, the same at every validation."""
    patience: int = 0
    """Stop early after this many validations without a better one; 0 for never."""
    devices: int = 1
    """Processes that share each batch of tasks."""
    threads: int = 0
    """CPU threads a process; 0 for PyTorch's own choice."""
    tensorboard: bool = False
    """Also write TensorBoard files (needs the extra 'tensorboard')."""


@dataclass(frozen=True)
class Config:
    """Everything that defines a run; saved as its config.toml."""

    task: str
    """sine, sine-maml or a family of your own (--plugin); omniglot, cifar-fs, fc100 or mini-imagenet; or a path:
    a Parquet file, a folder with one sub-folder a class, a feature file of 'metavrf embed'."""
    learner: str = "metavrf"
    """metavrf, rff, rbf, maml, meta-sgd, matching, prototypical, relation, r2d2 or versa ('metavrf learners' says what
    they are), or one of your own (--plugin)."""
    preset: Literal["default", "paper"] = "default"
    """Where the defaults come from: what validates best here, or the paper's own settings."""
    episode: EpisodeSettings = field(default_factory=EpisodeSettings)
    data: DataSettings = field(default_factory=DataSettings)
    embedding: EmbeddingSettings = field(default_factory=EmbeddingSettings)
    model: MetaVRFSettings = field(default_factory=MetaVRFSettings)
    inner: InnerSettings = field(default_factory=InnerSettings)
    training: TrainingSettings = field(default_factory=TrainingSettings)

    def with_options(self, **options: Any) -> Config:
        """A copy with settings changed by their own names, whatever their group: ``shot=3, context="lstm"``.

        The task, learner and preset decide the defaults, so they are given to :func:`preset` instead.
        """
        groups: dict[str, dict[str, Any]] = {name: {} for name in _GROUPS}
        for name, value in options.items():
            owner = next((g for g in groups if name in {f.name for f in fields(getattr(self, g))}), None)
            if owner is not None:
                groups[owner][name] = value
            else:
                raise UserError(f"there is no setting {name!r}: 'metavrf train {self.task} --help' lists them")
        nested = {g: replace(getattr(self, g), **changed) for g, changed in groups.items()}
        return replace(self, **nested)

    def validate(self) -> Config:
        """Refuse settings that cannot work, one clear sentence each."""
        for group in (self, *(getattr(self, name) for name in _GROUPS)):
            hints = get_type_hints(type(group))
            for item in fields(group):
                _check(item.name, getattr(group, item.name), hints[item.name])
        if self.training.validate_tasks < 2:
            raise UserError(f"validate_tasks = {self.training.validate_tasks} must be at least 2")
        for name in ("bases", "train_bases"):
            if self.model.feature_map == "sincos" and getattr(self.model, name) % 2:
                raise UserError(f"{name} = {getattr(self.model, name)} must be even for the sincos feature map")
        least = self.episode.train_shot or self.episode.shot
        if self.episode.most_shot and self.episode.most_shot < least:
            raise UserError(f"most_shot = {self.episode.most_shot} is less than the {least} shots to start from")
        if self.data.image_size < 8:
            raise UserError(f"image_size = {self.data.image_size} must be at least 8")
        if self.embedding.dropout >= 1:
            raise UserError(f"dropout = {self.embedding.dropout} must be less than 1")
        if self.training.devices > self.episode.batch:
            raise UserError(f"devices = {self.training.devices} exceeds the {self.episode.batch} tasks of a batch")
        return self

    def to_toml(self) -> str:
        """The text of config.toml."""
        import tomli_w

        return tomli_w.dumps(asdict(self))

    @classmethod
    def from_toml(cls, text: str, where: str) -> Config:
        """Read what :meth:`to_toml` wrote; ``where`` names the file in errors."""
        try:
            values = tomllib.loads(text)
            task, learner, preset = (values.pop(key) for key in ("task", "learner", "preset"))
            groups = {name: type(default)(**values.pop(name)) for name, default in _GROUPS.items()}
            if values:
                raise KeyError(*values)
            return cls(task, learner, preset, **groups).validate()
        except UserError as error:
            raise UserError(f"{where} is not a usable configuration: {error}") from error
        except (tomllib.TOMLDecodeError, KeyError, TypeError) as error:
            raise UserError(f"{where} is not a configuration of this version of metavrf ({error})") from error


_AT_LEAST_ONE = {"shot", "query", "test_query", "batch", "bases", "samples", "iterations", "validate_every", "devices"}
_AT_LEAST_ONE |= {"channels", "inner_steps"}
_POSITIVE = {"ridge", "gamma", "lr", "inner_lr"}
_NOT_NEGATIVE = {"kl_weight", "distance", "train_bases", "clip", "patience", "threads", "warmup", "seed"}
_NOT_NEGATIVE |= {"train_way", "train_shot", "most_shot", "split_seed", "dropout", "project", "test_inner_steps"}
_KINDS = {bool: "true or false", str: "a name", int: "a whole number", float: "a number"}


def _check(name: str, value: Any, kind: Any) -> None:
    """Refuse a value of the wrong type or range."""
    given = f"{name} = {value!r}"
    choices = get_args(kind)
    if choices and value not in choices:
        raise UserError(f"{given} is not a choice: give one of {', '.join(map(str, choices))}")
    allowed = (int, float) if kind is float else kind
    if kind in _KINDS and (not isinstance(value, allowed) or (kind is not bool and isinstance(value, bool))):
        raise UserError(f"{given} must be {_KINDS[kind]}")
    if kind is float and not math.isfinite(value):
        raise UserError(f"{given} must be finite")
    if name in _AT_LEAST_ONE and value < 1:
        raise UserError(f"{given} must be at least 1")
    if name in _POSITIVE and value <= 0:
        raise UserError(f"{given} must be positive")
    if name in _NOT_NEGATIVE and value < 0:
        raise UserError(f"{given} must not be negative")


_GROUPS: dict[str, Any] = {
    "episode": EpisodeSettings(),
    "data": DataSettings(),
    "embedding": EmbeddingSettings(),
    "model": MetaVRFSettings(),
    "inner": InnerSettings(),
    "training": TrainingSettings(),
}

PRESETS = ("default", "paper")
FUNCTIONS = ("sine", "sine-maml")

# What the paper's text and tables say (see docs/method.md for where they contradict each other).
_PAPER: dict[str, Any] = {
    "feature_map": "cosine",
    "draw": "resampled",
    "train_bases": 0,
    "context_skip": False,
    "kl_weight": 1.0,
    "lr": 1e-4,
    "schedule": "constant",
    "warmup": 0,
    "clip": 0.0,
    "iterations": 20_000,
    "batch": 25,
}


# Classification, chosen on validation classes (docs/images.md): hard training tasks of many classes, one a step.
_CLASSES: dict[str, Any] = {
    "shot": 1,
    "batch": 1,
    "train_way": 60,
    "query": 5,
    "gamma": 10.0,
    "ridge": 0.1,
    "distance": 2.0,
    "draw": "fixed",
    "lr": 4e-3,
    "validate_every": 500,
    "validate_tasks": 600,
}
_PHOTOGRAPHS: dict[str, Any] = {
    "augment": "crop-flip",
    "train_way": 20,
    "train_shot": 5,
    "query": 6,
    "distance": 1.0,
    "lr": 2e-3,
    "iterations": 16_000,
}
_IMAGE_SETS: dict[str, dict[str, Any]] = {
    "omniglot": {"augment": "affine", "dropout": 0.05, "iterations": 7000},
    "cifar-fs": _PHOTOGRAPHS,
    "fc100": _PHOTOGRAPHS,
    "mini-imagenet": _PHOTOGRAPHS | {"embedding": "conv5", "query": 3, "iterations": 5000},
}
_OWN_IMAGES: dict[str, Any] = _PHOTOGRAPHS | {"embedding": "conv5", "train_shot": 0, "query": 5, "iterations": 5000}
_FEATURES: dict[str, Any] = _OWN_IMAGES | {
    "augment": "none",
    "unit_features": True,
    "project": 256,
    "bases": 4096,
    "orthogonal": True,
    "lr": 1e-3,
    "iterations": 300,
    "validate_every": 50,
}
_PAPER_SETS: dict[str, dict[str, Any]] = {  # Table opt, and the dropout of the CNN tables
    "omniglot": {"iterations": 100_000, "batch": 6, "dropout": 0.1},
    "cifar-fs": {"iterations": 200_000, "batch": 8, "dropout": 0.5},
    "fc100": {"iterations": 200_000, "batch": 8, "dropout": 0.5},
    "mini-imagenet": {"iterations": 150_000, "batch": 8, "dropout": 0.5, "embedding": "conv5"},
}


# Each learner's own settings, on top of those of the tasks: the house's ("default") and its authors' ("paper").
# Of classes where the keys say so: "classes" for all, then a named set.
_SAME_TASKS: dict[str, Any] = {"train_way": 0, "train_shot": 0}  # test tasks must be as training tasks were
_MAML_CLASSES: dict[str, Any] = _SAME_TASKS | {"batch": 4, "query": 5, "dropout": 0.0, "lr": 2e-3, "iterations": 20_000}
_BY_LEARNER: dict[str, dict[str, dict[str, Any]]] = {
    "rff": {"all": {"context": "none", "bases": 2048, "draw": "fixed"}},  # standard features are drawn once
    "r2d2": {"classes": {"ridge": 10.0}},
    "relation": {"classes": {"train_way": 20}},
    "versa": {"all": {"samples": 10}},
    "maml": {"functions": {"inner_lr": 0.01}, "classes": _MAML_CLASSES | {"test_inner_steps": 3}},
    "meta-sgd": {"functions": {"inner_lr": 0.1}, "classes": _MAML_CLASSES | {"inner_lr": 0.1}},
}
_MAML_PHOTOGRAPHS: dict[str, Any] = {"batch": 4, "channels": 32, "inner_lr": 0.01, "embedding": "conv4"}
_BY_LEARNER_PAPER: dict[str, dict[str, dict[str, Any]]] = {
    "maml": {
        "all": {"lr": 1e-3, "dropout": 0.0},
        "functions": {"iterations": 70_000},
        "classes": _MAML_PHOTOGRAPHS | {"inner_steps": 5, "test_inner_steps": 10, "iterations": 60_000},
        "omniglot": {
            "batch": 32,
            "channels": 64,
            "inner_lr": 0.4,
            "inner_steps": 1,
            "test_inner_steps": 3,
        },
    },
    "meta-sgd": {
        "all": {"lr": 1e-3, "dropout": 0.0, "inner_lr": 0.1},
        "functions": {"batch": 4, "iterations": 60_000},
        "classes": _MAML_PHOTOGRAPHS | {"inner_lr": 0.1, "iterations": 60_000},
        "omniglot": {"batch": 32, "channels": 64},
    },
    "matching": {"classes": {"lr": 1e-3, "gamma": 1.0, "batch": 1, "dropout": 0.0}},
    "prototypical": {
        "classes": {"lr": 1e-3, "batch": 1, "train_way": 30, "dropout": 0.0, "embedding": "conv4"},
        "omniglot": {"train_way": 60, "query": 5},
    },
    "relation": {
        "classes": {
            "lr": 1e-3,
            "batch": 1,
            "iterations": 500_000,
            "dropout": 0.0,
            "train_way": 0,
            "embedding": "conv4",
        },
        "omniglot": {"query": 19, "iterations": 1_000_000},
    },
    "r2d2": {
        "classes": {"lr": 5e-3, "batch": 1, "train_way": 16, "ridge": 50.0, "gamma": 1.0, "dropout": 0.0},
        "cifar-fs": {"train_way": 20},
        "omniglot": {"train_way": 60},
    },
    "versa": {
        "classes": {"lr": 2.5e-4, "batch": 8, "iterations": 50_000},
        "omniglot": {"lr": 1e-4, "batch": 16, "iterations": 80_000},
    },
}


def preset(task: str, learner: str = "metavrf", name: str = "default") -> Config:
    """The starting point of a configuration for a task and learner."""
    if name not in PRESETS:
        raise UserError(f"preset {name!r} is unknown: choose from {', '.join(PRESETS)}")
    config = replace(Config(task), learner=learner, preset=name)  # type: ignore[arg-type]
    classes = is_of_classes(task)
    kinds = ("all", "classes", task) if classes else ("all", "functions")
    if classes:
        own = _FEATURES if task.endswith(".safetensors") else _OWN_IMAGES
        config = config.with_options(**_CLASSES | _IMAGE_SETS.get(task, own))
    layers = [_BY_LEARNER.get(learner, {}).get(kind, {}) for kind in kinds]
    if name == "paper":
        layers.append(_PAPER)
        if classes:
            layers.append({"train_way": 0, "train_shot": 0, "query": 15, "augment": "none"})
            layers.append(_PAPER_SETS.get(task, _PAPER_SETS["mini-imagenet"]))
        layers += [_BY_LEARNER_PAPER.get(learner, {}).get(kind, {}) for kind in kinds]
    for options in layers:
        config = config.with_options(**options)
    return config


def is_of_classes(task: str) -> bool:
    """Whether a task is classification: a named image set, or a path; a family of functions goes before a folder."""
    return task not in FUNCTIONS and (task in _IMAGE_SETS or "/" in task or "." in task or Path(task).exists())
