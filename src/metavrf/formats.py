"""Older formats of config.toml, read with the defaults of their time."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from metavrf.errors import UserError
from metavrf.tasks.datasets import DATASETS

FORMAT = 3

# What a setting that format 1 did not write down meant then, whatever its default is today.
_FORMAT_1: dict[str, dict[str, Any]] = {
    "episode": {
        "way": 5,
        "shot": 5,
        "query": 15,
        "batch": 25,
        "train_way": 0,
        "train_shot": 0,
        "most_shot": 0,
        "test_query": 15,
        "stream": 1,
    },
    "data": {
        "data": "",
        "split": "",
        "split_seed": 0,
        "augment": "none",
        "rotate": False,
        "mirror": False,
        "image_size": 84,
        "grey": False,
    },
    "embedding": {
        "embedding": "conv4",
        "channels": 64,
        "dropout": 0.0,
        "project": 0,
        "function_embedding": "mlp",
    },
    "model": {
        "context": "bilstm",
        "context_inputs": "x",
        "context_skip": True,
        "components": 1,
        "combs": 0,
        "guards": 0,
        "rough": 0,
        "candidates": 0,
        "moves": True,
        "evidence": "marginal",
        "noise": 1e-4,
        "train_kernel": "features",
        "bases": 780,
        "train_bases": 256,
        "feature_map": "sincos",
        "orthogonal": False,
        "draw": "resampled",
        "samples": 1,
        "kl_weight": 1e-3,
        "prototype_weight": 0.0,
        "ridge": 1e-6,
        "gamma": 1.0,
        "unit_features": False,
        "distance": 0.0,
    },
    "inner": {"inner_steps": 1, "test_inner_steps": 0, "inner_lr": 0.4, "first_order": False},
    "training": {
        "iterations": 20_000,
        "lr": 2e-3,
        "schedule": "cosine",
        "warmup": 100,
        "clip": 1.0,
        "seed": 0,
        "validate_every": 1000,
        "validate_tasks": 1000,
        "patience": 0,
        "devices": 1,
        "threads": 0,
        "tensorboard": False,
    },
}
_SETS_OF_1 = ("omniglot", "cifar-fs", "fc100", "mini-imagenet", "mixed-images")
_KERNEL: tuple[str, ...] = ("train_kernel", "bases", "train_bases", "feature_map", "orthogonal", "draw", "samples")
_KERNEL += ("ridge", "gamma", "unit_features", "distance")
_INNER = tuple(_FORMAT_1["inner"])
# In format 1 all learners shared the settings of MetaVRF and of an inner loop: which of them each had a use for.
_USED_IN_1: dict[str, tuple[str, ...]] = {
    "shared": _KERNEL,
    "rff": _KERNEL,
    "rbf": ("ridge", "gamma"),
    "r2d2": ("ridge", "gamma"),
    "matching": ("gamma",),
    "versa": ("samples",),
    "maml": _INNER,
    "meta-sgd": _INNER,
}


def upgraded(values: Mapping[str, Any]) -> dict[str, Any]:
    """The values of a config.toml of any format as those of the present one."""
    written = values.get("format", 1)
    rest = {name: value for name, value in values.items() if name != "format"}
    if written not in range(1, FORMAT + 1):
        raise UserError(f"its format is {written!r}, which this version does not know: it reads 1 to {FORMAT}")
    if written == 1:
        rest = _from_1(rest)
    return rest if written == FORMAT else _from_2(rest)


def _from_2(values: Mapping[str, Any]) -> dict[str, Any]:
    """In format 2 the size of pictures was for one's own; a named data set took no notice of it."""
    if values.get("task") not in DATASETS or not isinstance(values.get("data"), Mapping):
        return dict(values)
    return {**values, "data": {**values["data"], "image_size": 0}}


def _from_1(values: Mapping[str, Any]) -> dict[str, Any]:
    """Fill in what was left out, and give each learner its own settings."""
    if "learner" not in values:
        raise KeyError("learner")
    groups = {name: {**defaults, **values.get(name, {})} for name, defaults in _FORMAT_1.items()}
    for name, defaults in _FORMAT_1.items():
        if strange := groups[name].keys() - defaults.keys():
            raise KeyError(f"{name}.{sorted(strange)[0]}")
    rest = {name: value for name, value in values.items() if name not in groups}
    embedding, every = groups["embedding"], groups["model"] | groups.pop("inner")
    task, learner = str(values.get("task")), values["learner"]
    of_functions = embedding.pop("function_embedding")
    pictures = task in _SETS_OF_1 or "/" in task or "." in task or Path(task).exists()
    if task.endswith(".safetensors"):
        embedding["embedding"] = "ready"
    elif not pictures:
        embedding["embedding"] = of_functions
    if learner == "metavrf":
        used: tuple[str, ...] = tuple(_FORMAT_1["model"])
    else:
        used = _USED_IN_1.get(learner, ())
    groups["model"] = {name: every[name] for name in used}
    if "bases" in used:
        groups["model"]["aligned"] = True
    return {**rest, **groups}
