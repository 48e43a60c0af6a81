"""Where a configuration starts from: the house's settings and the papers', by task and learner.

``default`` is what validated best on a plain CPU (docs/images.md, docs/results.md); ``paper`` what the papers say.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from metavrf.config import Config
from metavrf.errors import UserError

PRESETS = ("default", "paper")
SEQUENCE = 4  # tasks of a training batch of classes whose context is recurrent, each of as many fewer classes
FUNCTIONS = ("sine", "sine-maml", "sine-drift", "mixed", "gp-rbf", "gp-matern", "gp-periodic", "gp-mixed")

# What the paper's text and tables say (see docs/method.md for where they contradict each other).
_PAPER: dict[str, Any] = {
    "components": 1,
    "combs": 0,
    "guards": 0,
    "rough": 0,
    "candidates": 0,
    "function_embedding": "mlp",
    "train_kernel": "features",
    "context_inputs": "x",
    "train_shot": 0,
    "most_shot": 0,
    "feature_map": "cosine",
    "draw": "resampled",
    "train_bases": 0,
    "context_skip": False,
    "kl_weight": 1.0,
    "prototype_weight": 0.0,
    "lr": 1e-4,
    "schedule": "constant",
    "warmup": 0,
    "clip": 0.0,
    "iterations": 20_000,
    "batch": 25,
}


# Classification, chosen on validation classes (docs/images.md): hard training tasks of many classes, one a step.
_CLASSES: dict[str, Any] = {
    "context": "none",
    "noise": 0.1,
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
    "omniglot": {"augment": "affine", "mirror": True, "dropout": 0.05, "iterations": 6500},
    "cifar-fs": _PHOTOGRAPHS,
    "fc100": _PHOTOGRAPHS,
    "mini-imagenet": _PHOTOGRAPHS | {"embedding": "conv5", "query": 3, "iterations": 5000},
    "mixed-images": _PHOTOGRAPHS,
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
    "mixed-images": {"iterations": 200_000, "batch": 8, "dropout": 0.5},
}


# Many kernels, for functions (docs/inference.md): one model for any number of points.
_MANY_KERNELS: dict[str, Any] = {
    "function_embedding": "raw",
    "moves": False,
    "components": 64,
    "guards": 9,
    "context": "none",
    "context_inputs": "xy",
    "train_kernel": "exact",
    "kl_weight": 0.0,
    "lr": 4e-3,
    "iterations": 12_000,
    "train_shot": 2,
    "most_shot": 20,
    "threads": 1,
}
_GAUSSIAN_PROCESSES: dict[str, Any] = {  # tasks have sizes of their own
    "shot": 12,
    "batch": 16,
    "train_shot": 0,
    "most_shot": 0,
    "noise": 1e-3,
    "rough": 16,
    "lr": 8e-3,
    "iterations": 1500,
    "validate_every": 500,
    "validate_tasks": 500,
}
_PERIODIC_TOO: dict[str, Any] = _GAUSSIAN_PROCESSES | {
    "batch": 8,
    "guards": 6,
    "rough": 26,
    "candidates": 64,
    "iterations": 800,
    "validate_every": 400,
    "validate_tasks": 200,
}


# Each learner's own settings, on top of those of the tasks: the house's ("default") and its authors' ("paper").
# Of classes where the keys say so: "classes" for all, then a named set.
_SAME_TASKS: dict[str, Any] = {"train_way": 0, "train_shot": 0}  # test tasks must be as training tasks were
_MAML_CLASSES: dict[str, Any] = _SAME_TASKS | {"batch": 4, "query": 5, "dropout": 0.0, "lr": 2e-3, "iterations": 20_000}
_BY_LEARNER: dict[str, dict[str, dict[str, Any]]] = {
    "metavrf": {"functions": _MANY_KERNELS, "omniglot": {"prototype_weight": 1.0}}
    | dict.fromkeys(("gp-rbf", "gp-matern"), _GAUSSIAN_PROCESSES)
    | dict.fromkeys(("gp-periodic", "gp-mixed"), _PERIODIC_TOO),
    "shared": {"all": {"context": "none"}},
    "rff": {"all": {"context": "none", "bases": 2048, "draw": "fixed"}},  # standard features are drawn once
    "r2d2": {"classes": {"ridge": 10.0}},
    "relation": {"classes": {"train_way": 20}},
    "versa": {"all": {"samples": 10}},
    "maml": {"functions": {"inner_lr": 0.01}, "classes": _MAML_CLASSES | {"test_inner_steps": 3}},
    "meta-sgd": {"functions": {"inner_lr": 0.1}, "classes": _MAML_CLASSES | {"inner_lr": 0.1}},
}
_MAML_PHOTOGRAPHS: dict[str, Any] = {"batch": 4, "channels": 32, "inner_lr": 0.01, "embedding": "conv4"}
_BY_LEARNER_PAPER: dict[str, dict[str, dict[str, Any]]] = {
    "metavrf": {"all": {"context": "bilstm"}},
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


def preset(task: str, learner: str = "metavrf", name: str = "default", context: str | None = None) -> Config:
    """The starting point of a configuration for a task and learner, and for the ``context`` that is to be asked for."""
    if name not in PRESETS:
        raise UserError(f"preset {name!r} is unknown: choose from {', '.join(PRESETS)}")
    config = replace(Config(task), learner=learner, preset=name)  # type: ignore[arg-type]
    classes = is_of_classes(task)
    kinds = ("all", "classes", task) if classes else ("all", "functions", task)
    if classes:
        own = _FEATURES if task.endswith(".safetensors") else _OWN_IMAGES
        config = config.with_options(**_CLASSES | _IMAGE_SETS.get(task, own))
    layers = [_BY_LEARNER.get(learner, {}).get(kind, {}) for kind in kinds]
    if name == "paper":
        layers.append(_PAPER)
        if classes:
            layers.append({"train_way": 0, "train_shot": 0, "query": 15, "augment": "none", "mirror": False})
            layers.append(_PAPER_SETS.get(task, _PAPER_SETS["mini-imagenet"]))
        layers += [_BY_LEARNER_PAPER.get(learner, {}).get(kind, {}) for kind in kinds]
    for options in layers:
        config = config.with_options(**options)
    if classes and name == "default" and context in ("lstm", "bilstm"):  # gradients flow from task to task of a batch
        ways = max(config.episode.way, config.episode.train_way // SEQUENCE)
        config = config.with_options(batch=SEQUENCE * config.episode.batch, train_way=ways)
    return config


def is_of_classes(task: str) -> bool:
    """Whether a task is classification: a named image set, or a path; a family of functions goes before a folder."""
    return task not in FUNCTIONS and (task in _IMAGE_SETS or "/" in task or "." in task or Path(task).exists())
