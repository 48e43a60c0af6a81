"""A run that starts from the embedding of another."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from metavrf.errors import UserError
from metavrf.files import load_weights
from metavrf.learners.base import Learner
from metavrf.runs.directory import Run
from metavrf.spec import TaskSpec


def start_from(path: str, learner: Learner, spec: TaskSpec) -> dict[str, Any]:
    """Give ``learner`` the embedding of the run at ``path``, and its classifier if both have one and it fits.

    Returns what a result must say of it. A run that has trained on classes which are validated or tested on here is
    refused: they would not be new.
    """
    run = Run.open(path)
    held_out = {name for part in ("val", "test") for name in spec.classes.get(part, ())}
    if seen := held_out & set(run.spec().classes.get("train", ())):
        raise UserError(
            f"{path} was trained on {sorted(seen)[0]!r}, which is a class to validate or test on here: start from a "
            "run with the same split"
        )
    tensors, _ = run.load_model()

    def part(name: str) -> dict[str, Tensor]:
        return {key.removeprefix(f"{name}."): value for key, value in tensors.items() if key.startswith(f"{name}.")}

    load_weights(learner.embedding, part("embedding"), f"the embedding of {path}")
    head, weights = learner.classifier, part("classifier")
    if head is not None and _shapes(head.state_dict()) == _shapes(weights):  # or it starts anew
        load_weights(head, weights, f"the classifier of {path}")
    result = run.result() or {}
    return {
        "run": path,
        "sha256": hashlib.sha256(run.model_file.read_bytes()).hexdigest(),
        **{name: result[name] for name in ("learner", "train_seconds", "command", "commit") if name in result},
        **({"started_from": before} if (before := run.start() or result.get("started_from")) else {}),
    }


def _shapes(tensors: Mapping[str, Tensor]) -> dict[str, torch.Size]:
    return {name: tensor.shape for name, tensor in tensors.items()}
