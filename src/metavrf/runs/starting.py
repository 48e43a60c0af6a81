"""A run that starts from the embedding of another, or from the mean of several."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from metavrf.errors import UserError
from metavrf.files import load_weights
from metavrf.learners.base import Learner
from metavrf.runs.directory import Run
from metavrf.spec import TaskSpec


def start_from(paths: str, learner: Learner, spec: TaskSpec) -> dict[str, Any]:
    """Give ``learner`` the embedding of a run, and its classifier if both have one and it fits.

    Of several runs, with commas between their paths, it gets the mean weights, as stochastic weight averaging does
    (Izmailov et al., 2018): runs that went on from each other lie about one minimum, and the middle of it is flatter.
    Returns what a result must say of where it started.
    """
    runs = [_checked(path, spec) for path in ([paths] if Path(paths).exists() else paths.split(","))]
    tensors = [run.load_model()[0] for run in runs]
    first, others = tensors[0], tensors[1:]
    for run, other in zip(runs[1:], others, strict=True):
        if _shapes(_part("embedding", other)) != _shapes(_part("embedding", first)):
            raise UserError(
                f"the embeddings of {runs[0].path} and {run.path} differ in shape: there is no mean of them"
            )
    fitting = {name for name in first if all(_shapes(other).get(name) == first[name].shape for other in others)}
    mean = {name: _mean([of_run[name] for of_run in tensors]) for name in fitting}
    load_weights(learner.embedding, _part("embedding", mean), f"the embedding of {paths}")
    head, weights = learner.classifier, _part("classifier", mean)
    if head is not None and _shapes(head.state_dict()) == _shapes(weights):  # or it starts anew
        load_weights(head, weights, f"the classifier of {paths}")
    about = [_about(path, run) for path, run in zip(paths.split(",") if others else [paths], runs, strict=True)]
    return {"mean_of": about} if others else about[0]


def _checked(path: str, spec: TaskSpec) -> Run:
    """A run to start from. One that has trained on classes which are validated or tested on here is refused."""
    run = Run.open(path)
    held_out = {name for part in ("val", "test") for name in spec.classes.get(part, ())}
    if seen := held_out & set(run.spec().classes.get("train", ())):
        raise UserError(
            f"{path} was trained on {sorted(seen)[0]!r}, which is a class to validate or test on here: start from a "
            "run with the same split"
        )
    return run


def _about(path: str, run: Run) -> dict[str, Any]:
    result = run.result() or {}
    return {
        "run": path,
        "sha256": hashlib.sha256(run.model_file.read_bytes()).hexdigest(),
        **{name: result[name] for name in ("learner", "train_seconds", "command", "commit") if name in result},
        **({"started_from": before} if (before := run.start() or result.get("started_from")) else {}),
    }


def _part(name: str, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {key.removeprefix(f"{name}."): value for key, value in tensors.items() if key.startswith(f"{name}.")}


def _mean(values: Sequence[Tensor]) -> Tensor:
    """The mean of weights; counts are those of the first."""
    first = values[0]
    return (
        torch.stack([value.float() for value in values]).mean(0)
        if len(values) > 1 and first.is_floating_point()
        else first
    )


def _shapes(tensors: Mapping[str, Tensor]) -> dict[str, torch.Size]:
    return {name: tensor.shape for name, tensor in tensors.items()}
