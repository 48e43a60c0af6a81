"""The one source of every setting: these dataclasses are the configuration file and the command line's help.

This module imports no torch, so that ``metavrf --help`` is fast.
"""

from __future__ import annotations

import math
import tomllib
from dataclasses import asdict, dataclass, field, fields, replace
from typing import Any, Literal, get_args, get_type_hints

from metavrf.errors import UserError

TEST_SEED = 2020
TEST_TASKS = 4000  # of functions
TEST_EPISODES = 3000  # of classes

Views = Literal["one", "flip", "shift", "flip-shift"]


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
    stream: int = 1
    """Tasks of a stream: sequences of this many related tasks, each of which may look back at the supports (never the
    queries) of those before it. 1 for tasks that have nothing to do with each other."""


@dataclass(frozen=True)
class DataSettings:
    """Pictures: where they are and how their classes are split."""

    data: str = ""
    """Folder of the named data sets; else METAVRF_DATA, else the cache."""
    split: str = ""
    """How classes are split: for omniglot vinyals, random or lake; empty for the data set's usual split."""
    split_seed: int = 0
    """Seed of a random split."""
    augment: Literal["none", "crop-flip", "affine", "photo"] = "none"
    """Change training images at random: shift and flip, or more (photo: cut, flip, change light and colour, cover a
    part); turn, stretch and shift drawings (affine)."""
    rotate: bool = False
    """Train on the rotations of images by 90° as classes of their own (omniglot has them in any case)."""
    mirror: bool = False
    """Train on mirror images as classes of their own: more to learn from, where left and right matter."""
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
    function_embedding: Literal["mlp", "raw"] = "mlp"
    """Of functions: two layers of 40 as in the paper's table, or the input as it is."""
    project: int = 0
    """Map ready features to this many, if they are more, by a learned linear map; 0 to leave them as they are."""


@dataclass(frozen=True)
class MetaVRFSettings:
    """The learner. Plain RFF reads the same settings, less those of the inference networks."""

    context: Literal["none", "bayes", "lstm", "bilstm"] = "bilstm"
    """What the kernels are inferred from: this task alone, or the tasks before it too. 'bayes' carries the kernels'
    weights from task to task of a stream, and learns nothing for it."""
    context_inputs: Literal["x", "xy"] = "x"
    """Does the context see the support's inputs only (the paper's reading) or its targets too?"""
    context_skip: bool = True
    """Add this task's own summary to the LSTM's output, which is bounded and slow to learn to pass it on."""
    components: int = 1
    """Number M of kernels, each weighted by its evidence on the support; 1 is the paper's."""
    combs: int = 0
    """How many of these kernels are combs: harmonics of one frequency, for functions that repeat themselves."""
    guards: int = 0
    """How many of these kernels are not learned: broad ones, with more noise, for tasks unlike any seen in training."""
    rough: int = 0
    """How many of these kernels are rough, Matérn's instead of Gaussian: for functions that bend sharply."""
    candidates: int = 0
    """Periodic kernels of each task's own, beside these: this many are kept of over a thousand that are tried, from
    coarse to fine. For functions whose period matters to a thousandth."""
    moves: bool = True
    """Move the kernels by what a network infers from the support, beside weighing them (with 2 kernels or more)."""
    evidence: Literal["marginal", "leave-one-out"] = "marginal"
    """What weighs the kernels of classes: ridge regression's evidence, or how well each sample is predicted by the
    others (with 2 shots or more)."""
    noise: float = 1e-4
    """Noise of each of many kernels at the start, in units of its amplitude; it is learned. From 0.001 on, observations
    are taken to be noisy: the likelihood starts with hardly any tails."""
    train_kernel: Literal["exact", "features"] = "features"
    """Compute kernels exactly, or estimate them by random features. Exact ones are replaced by random features at test
    time where --bases asks for it."""
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
    prototype_weight: float = 0.0
    """Weight of a prototypical network's loss on the same features, in classification: it teaches the embedding where
    samples are so far apart that the kernel has no gradient left. 0 is the paper's."""
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
    """sine, sine-maml, sine-drift, mixed, gp-rbf, gp-matern, gp-periodic, gp-mixed or a family of your own (--plugin);
    omniglot, cifar-fs, fc100, mini-imagenet or mixed-images; or a path: a Parquet file, a folder with one sub-folder
    per class, a feature file of 'metavrf embed'."""
    learner: str = "metavrf"
    """metavrf, shared, rff, rbf, maml, meta-sgd, matching, prototypical, relation, r2d2 or versa ('metavrf learners'
    says what they are), or one of your own (--plugin)."""
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

        The task, learner and preset decide the defaults, so they are given to :func:`metavrf.presets.preset` instead.
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
        model = self.model
        if model.components > 1 and model.combs + model.guards + model.rough >= model.components:
            raise UserError(
                f"combs = {model.combs}, guards = {model.guards} and rough = {model.rough} leave no other of the "
                f"{model.components} kernels"
            )
        if self.data.image_size < 8:
            raise UserError(f"image_size = {self.data.image_size} must be at least 8")
        if self.embedding.dropout >= 1:
            raise UserError(f"dropout = {self.embedding.dropout} must be less than 1")
        if self.training.devices > self.episode.batch:
            raise UserError(f"devices = {self.training.devices} exceeds the {self.episode.batch} tasks of a batch")
        streams = math.ceil(self.episode.batch / self.episode.stream)
        if self.training.devices > streams:
            raise UserError(f"devices = {self.training.devices} exceeds the {streams} streams of a batch")
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
            groups = {name: type(default)(**values.pop(name, {})) for name, default in _GROUPS.items()}
            if values:
                raise KeyError(*values)
            return cls(task, learner, preset, **groups).validate()
        except UserError as error:
            raise UserError(f"{where} is not a usable configuration: {error}") from error
        except (tomllib.TOMLDecodeError, KeyError, TypeError) as error:
            raise UserError(f"{where} is not a configuration of this version of metavrf ({error})") from error


_AT_LEAST_ONE = {
    "stream",
    "components",
    "shot",
    "query",
    "test_query",
    "batch",
    "bases",
    "samples",
    "iterations",
    "validate_every",
    "devices",
}
_AT_LEAST_ONE |= {"channels", "inner_steps"}
_POSITIVE = {"noise", "ridge", "gamma", "lr", "inner_lr"}
_NOT_NEGATIVE = {
    "combs",
    "guards",
    "rough",
    "candidates",
    "kl_weight",
    "distance",
    "train_bases",
    "clip",
    "patience",
    "threads",
    "warmup",
    "seed",
}
_NOT_NEGATIVE |= {"train_way", "train_shot", "most_shot", "split_seed", "dropout", "project", "test_inner_steps"}
_NOT_NEGATIVE |= {"prototype_weight"}
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
