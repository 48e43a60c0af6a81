"""A run that starts from the embedding of another."""

from __future__ import annotations

import hashlib
from typing import Any

from metavrf.errors import UserError
from metavrf.files import load_weights
from metavrf.learners.base import Learner
from metavrf.runs.directory import Run
from metavrf.spec import TaskSpec

TAKEN = ("embedding", "classifier")


def start_from(path: str, learner: Learner, spec: TaskSpec) -> dict[str, Any]:
    """Give ``learner`` the embedding of the run at ``path``, and its classifier of training classes if both have one.

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
    for part in TAKEN:
        module = getattr(learner, part)
        weights = {name.removeprefix(f"{part}."): w for name, w in tensors.items() if name.startswith(f"{part}.")}
        if module is not None and (weights or part == "embedding"):
            load_weights(module, weights, f"the {part} of {path}")
    result = run.result() or {}
    return {
        "run": path,
        "sha256": hashlib.sha256(run.model_file.read_bytes()).hexdigest(),
        **{name: result[name] for name in ("learner", "train_seconds", "command", "commit") if name in result},
        **({"started_from": before} if (before := run.start()) else {}),
    }
