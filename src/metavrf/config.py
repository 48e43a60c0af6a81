"""Everything that defines a run: the settings of task, embedding, learner and training, composed.

These dataclasses are the configuration file and the command line's help. The learner's own settings are its affair
(``Learner.Settings``), so a learner of one's own brings its settings along.
"""

from __future__ import annotations

import math
import tomllib
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields, replace
from typing import Annotated, Any, Generic, Literal, TypeVar

from metavrf.errors import UserError
from metavrf.formats import FORMAT, upgraded
from metavrf.learners import LEARNERS, build
from metavrf.learners.base import Learner
from metavrf.nn.embeddings import EmbeddingSettings
from metavrf.settings import (
    Count,
    DataSettings,
    EpisodeSettings,
    Natural,
    NotNegative,
    Positive,
    Range,
    added,
    check_settings,
)
from metavrf.spec import TaskSpec
from metavrf.tasks.datasets import DATASETS
from metavrf.tasks.functions import FAMILIES
from metavrf.tasks.source import task_kinds

PRESETS = ("default", "paper")
Own = TypeVar("Own")


@dataclass(frozen=True)
class TrainingSettings:
    """The training loop."""

    iterations: Count = 20_000
    """Training steps."""
    lr: Positive = 2e-3
    """Peak learning rate."""
    optimizer: Literal["adam", "sgd"] = added("adam", before="adam")
    """Adam, or gradient descent with momentum 0.9, which wants a rate of about 0.1."""
    weight_decay: NotNegative = added(0.0, before=0.0)
    """Pull the weights of the embedding, and of a classifier of the training classes, towards zero by this much."""
    classify_weight: NotNegative = added(0.0, before=0.0)
    """Weight of a second loss: a classifier of all training classes on the features of the same pictures. It teaches
    the embedding, and is not used at test time."""
    start_from: str = added("", before="")
    """A run whose embedding, and classifier of the training classes, this one starts from. Of several runs, with commas
    between them, it starts from the mean weights."""
    precision: Literal["32", "bf16-mixed"] = added("32", before="32")
    """Numbers the embedding of pictures is trained in: 32 bits, or mostly 16, which is faster where the processor has
    instructions for them. Everything else has 32 bits or more."""
    accelerator: Literal["auto", "cpu", "cuda", "mps"] = added("auto", before="cpu")
    """Where the learner is trained: on the CPU, or on a GPU of NVIDIA (cuda) or Apple (mps, without the double
    precision that kernels need). 'auto' takes cuda where it is there, else the CPU. Tasks are drawn on the CPU."""
    schedule: Literal["cosine", "constant"] = "cosine"
    """Learning rate after the warm-up: down to zero along a cosine, or constant."""
    warmup: Natural = 100
    """Steps over which the learning rate rises to its peak."""
    clip: NotNegative = 1.0
    """Largest gradient norm; 0 for no limit."""
    seed: Natural = 0
    """Seed of everything random in the run."""
    validate_every: Count = 1000
    """Steps between validations, each followed by a checkpoint."""
    validate_tasks: Annotated[int, Range(least=2)] = 1000
    """Validation tasks, the same at every validation."""
    patience: Natural = 0
    """Stop early after this many validations without a better one; 0 for never."""
    devices: Count = 1
    """Processes that share each batch of tasks; with --accelerator cuda, one for each GPU."""
    threads: Annotated[int, Range(least=0, below=1025)] = 0
    """CPU threads per process; 0 for PyTorch's own choice. Functions take 1: their steps are small."""
    tensorboard: bool = False
    """Also write TensorBoard files (needs the extra 'tensorboard')."""


@dataclass(frozen=True)
class Config(Generic[Own]):
    """What to train on, by which learner, from which defaults."""

    task: str
    """A family of functions: sine, sine-maml, sine-drift, mixed, gp-rbf, gp-matern, gp-periodic, gp-mixed. A data set:
    omniglot, cifar-fs, fc100, mini-imagenet, mixed-images. A path: a Parquet file, a folder with one sub-folder per
    class, a feature file of 'metavrf embed', a CSV or Parquet file of curves (with --group). Or one of your own
    (--plugin)."""
    learner: str
    """The method: 'metavrf learners' lists them; or one of your own (--plugin)."""
    preset: Literal["default", "paper"]
    """Where the defaults come from: what validates best here, or the paper's own settings."""
    model: Own
    """The learner's own settings."""
    episode: EpisodeSettings
    data: DataSettings
    embedding: EmbeddingSettings
    training: TrainingSettings

    @classmethod
    def of(cls, task: str, learner: str = "metavrf", preset: str = "default", **asked: Any) -> Config[Any]:
        """The configuration of a task and learner: the preset's settings, with those that are ``asked`` for.

        Settings are laid over each other: the dataclasses' own, the kind of task's, the task's, the learner's; with the
        preset "paper" then the paper's, in the same order.
        """
        if preset not in PRESETS:
            raise UserError(f"preset {preset!r} is unknown: choose from {', '.join(PRESETS)}")
        method = LEARNERS[learner]
        group = str(asked.get("group", ""))
        groups = (EpisodeSettings(), DataSettings(group=group), EmbeddingSettings(), TrainingSettings())
        config: Config[Any] = Config(task, learner, preset, method.Settings(), *groups)  # type: ignore[arg-type]
        for options in _layers(task, method, group, paper=preset == "paper"):
            config = config.with_options(**options)
        return method.arranged(config, asked).with_options(**asked)

    @property
    def kind(self) -> str:
        """What its tasks are: functions or classes."""
        return task_kinds(self.task, self.data.group)[1]

    def with_options(self, **options: Any) -> Config[Any]:
        """A copy with settings changed by their own names, whatever their group: ``shot=3, context="lstm"``.

        The task, learner and preset decide the defaults, so they are given to :meth:`of` instead.
        """
        changed: dict[str, dict[str, Any]] = {name: {} for name in GROUPS}
        for name, value in options.items():
            owner = next((g for g in GROUPS if name in {f.name for f in fields(getattr(self, g))}), None)
            if owner is None:
                raise UserError(
                    f"there is no setting {name!r} of {self.task} with {self.learner}: "
                    f"'metavrf train {self.task} --learner {self.learner} --help' lists them"
                )
            changed[owner][name] = value
        return replace(self, **{g: replace(getattr(self, g), **values) for g, values in changed.items() if values})

    def validate(self) -> Config[Own]:
        """Refuse settings that cannot work, one clear sentence each."""
        if not isinstance(self.task, str):
            raise UserError(f"task = {self.task!r} must be a name")
        LEARNERS[self.learner]  # an unknown one is an error
        if self.preset not in PRESETS:
            raise UserError(f"preset {self.preset!r} is unknown: choose from {', '.join(PRESETS)}")
        for group in GROUPS:
            check_settings(getattr(self, group))
        for what, count in (
            ("tasks", self.episode.batch),
            ("streams", math.ceil(self.episode.batch / self.episode.stream)),
        ):
            if self.training.devices > count:
                raise UserError(f"devices = {self.training.devices} exceeds the {count} {what} of a batch")
        return self

    def build(self, spec: TaskSpec | None = None) -> Learner:
        """A new learner for tasks as ``spec`` says, its weights drawn from the seed."""
        spec = replace(spec or TaskSpec(), way=self.episode.way, stream=self.episode.stream)
        weight = self.training.classify_weight
        return build(self.learner, self.embedding, spec, self.model, self.training.seed, classify_weight=weight)

    def to_toml(self) -> str:
        """The text of config.toml."""
        import tomli_w

        return tomli_w.dumps({"format": FORMAT, **asdict(self)})

    @classmethod
    def from_toml(cls, text: str, where: str) -> Config[Any]:
        """Read what :meth:`to_toml` wrote, in this format or an older one; ``where`` names the file in errors."""
        try:
            values = upgraded(tomllib.loads(text))
            names = {name: values.pop(name) for name in ("task", "learner", "preset")}
            kinds = {**GROUPS, "model": LEARNERS[names["learner"]].Settings}
            groups = {name: _whole(kind, values.pop(name), name) for name, kind in kinds.items()}
            if values:
                raise KeyError(*values)
            return cls(**names, **groups).validate()
        except UserError as error:
            raise UserError(f"{where} is not a usable configuration: {error}") from error
        except (tomllib.TOMLDecodeError, KeyError, TypeError) as error:
            raise UserError(f"{where} is not a configuration of this version of metavrf ({error})") from error


GROUPS: dict[str, Any] = {
    "episode": EpisodeSettings,
    "data": DataSettings,
    "embedding": EmbeddingSettings,
    "model": None,
    "training": TrainingSettings,
}


def _whole(kind: Any, values: Mapping[str, Any], where: str) -> Any:
    """Settings of which each was written down: none takes a default that may have changed since.

    One that is newer than the file takes the value that says what was done before there was such a setting.
    """
    if not isinstance(values, Mapping):
        raise TypeError(f"{where} is no group of settings")
    known = {item.name for item in fields(kind)}
    if strange := values.keys() - known:
        raise KeyError(f"{where}.{sorted(strange)[0]} is unknown")
    before = {item.name: item.metadata["before"] for item in fields(kind) if "before" in item.metadata}
    if missing := known - values.keys() - before.keys():
        raise KeyError(f"{where}.{sorted(missing)[0]} is missing")
    return kind(**{**before, **values})


# Where configurations start, by the kind of task: what validated best on a plain CPU (docs/data.md).
_KINDS: dict[str, dict[str, Any]] = {
    "functions": {"embedding": "mlp", "threads": 1},  # several threads make small steps crawl
    "curves": {  # few groups: few steps, and the validation groups say when to stop
        "train_shot": 2,
        "most_shot": 20,
        "iterations": 400,
        "warmup": 20,
        "lr": 1e-2,
        "validate_every": 25,
        "validate_tasks": 200,
        "patience": 6,
    },
    "classes": {  # hard training tasks of many classes, one per step
        "shot": 1,
        "batch": 1,
        "train_way": 60,
        "query": 5,
        "lr": 4e-3,
        "validate_every": 500,
        "validate_tasks": 600,
    },
    "photographs": {
        "augment": "crop-flip",
        "train_way": 20,
        "train_shot": 5,
        "query": 6,
        "lr": 2e-3,
        "iterations": 16_000,
    },
    "features": {
        "embedding": "ready",
        "project": 256,
        "train_way": 20,
        "query": 5,
        "lr": 1e-3,
        "iterations": 300,
        "validate_every": 50,
    },
}
_OWN_PICTURES: dict[str, Any] = {"embedding": "conv5", "train_shot": 0, "query": 5, "iterations": 5000}
# What the paper says (docs/method.md tells where it contradicts itself); data sets and learners add their own.
_PAPER: dict[str, dict[str, Any]] = {
    "all": {
        "train_shot": 0,
        "most_shot": 0,
        "lr": 1e-4,
        "schedule": "constant",
        "warmup": 0,
        "clip": 0.0,
        "iterations": 20_000,
        "batch": 25,
    },
    "functions": {"embedding": "mlp"},
    "classes": {"train_way": 0, "query": 15, "augment": "none", "mirror": False},
    "features": {"project": 0},
}


def _layers(task: str, method: type[Learner], group: str, *, paper: bool) -> list[Mapping[str, Any]]:
    """Where settings start, each layer over those before it."""
    kinds = task_kinds(task, group)
    own: Mapping[str, Any] = {}
    papers: Mapping[str, Any] = {}
    if group:
        pass  # the kind says it all
    elif task in DATASETS:
        own, papers = DATASETS[task].preset, DATASETS[task].paper
    elif task in FAMILIES:
        own = FAMILIES[task].preset
    else:
        own = _OWN_PICTURES if kinds[-1] == "photographs" else {}
        papers = {**DATASETS["mini-imagenet"].paper, "embedding": "ready" if kinds[-1] == "features" else "conv5"}
    layers = [*(_KINDS.get(kind, {}) for kind in kinds), own, *(method.presets.get(kind, {}) for kind in kinds)]
    if paper:
        layers += [*(_PAPER.get(kind, {}) for kind in kinds), papers, *(method.paper.get(kind, {}) for kind in kinds)]
    return layers
