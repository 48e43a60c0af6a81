"""What a resumed run starts from: one file with weights, optimiser, every process' own buffers, step and clocks."""

from __future__ import annotations

import math
import warnings
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from metavrf.errors import Caution, UserError
from metavrf.files import load_weights, read_tensors
from metavrf.learners.base import Learner
from metavrf.manifest import NAME as MANIFEST
from metavrf.runs.directory import Run, missing_checkpoint
from metavrf.runs.optimizing import moments as kept_of_a_weight


@dataclass
class Position:
    """Where a training is."""

    step: int = 0
    best: float = math.inf
    """The least validation error."""
    best_step: int = 0
    seconds: float = 0.0
    cpu_seconds: float = 0.0
    """Of this process: unlike the wall clock, no other work on the machine adds to it."""


def save_checkpoint(
    run: Run, learner: Learner, optimizer: torch.optim.Optimizer, at: Position, seed: int, *, rank: int, ranks: int
) -> None:
    """Write the one file that a resumed run starts from; every process calls it, the first one writes."""
    tensors = {f"learner.{name}": tensor for name, tensor in learner.state_dict().items()}
    for index, state in optimizer.state_dict()["state"].items():
        tensors |= {f"optimizer.{index}.{name}": torch.as_tensor(value) for name, value in state.items()}
    if ranks > 1:  # buffers, such as the context state, differ between processes
        for name, buffer in learner.named_buffers():
            gathered = [torch.empty_like(buffer) for _ in range(ranks)]
            torch.distributed.all_gather(gathered, buffer.contiguous())
            tensors |= {f"rank{number}.{name}": value for number, value in enumerate(gathered)}
    if rank == 0:
        rounded = {"seconds": round(at.seconds, 3), "cpu_seconds": round(at.cpu_seconds, 3)}
        kept = {"seed": seed, "processes": ranks, "config": run.config_sum()}
        run.save_state(tensors, asdict(at) | kept | rounded)


def load_checkpoint(
    run: Run, learner: Learner, optimizer: torch.optim.Optimizer, *, rank: int, ranks: int
) -> tuple[Position, dict[str, Tensor]]:
    """Take up weights and optimiser of the newest sound checkpoint.

    Returns where the run was, and this process' own weights and buffers.
    """
    there = [file for file in run.checkpoints if file.exists()]
    refused: UserError | None = None
    for file in there:
        try:
            loaded = _load(file, learner, optimizer, rank, run.config_sum() if run.verified else None)
        except UserError as error:
            refused = refused or error
            continue
        at, weights, processes = loaded
        if processes != ranks:
            raise UserError(
                f"{run.path} was trained by {processes} processes, not {ranks}: resume it with as many, "
                "as each has a state of its own"
            )
        if refused is not None and rank == 0:
            warnings.warn(f"{refused}; the run goes on from {file.name}, step {at.step}", Caution, stacklevel=2)
        elif file != run.state_file and rank == 0:
            warnings.warn(missing_checkpoint(run, file), Caution, stacklevel=2)
        return at, weights
    assert refused is not None
    raise refused


def _load(
    file: Path, learner: Learner, optimizer: torch.optim.Optimizer, rank: int, config: str | None
) -> tuple[Position, dict[str, Tensor], int]:
    """One checkpoint; of how many processes it is comes last. ``config`` is the sum of the settings it must be of."""
    where = str(file)
    tensors, metadata = read_tensors(file)
    if config is not None and metadata.get("config", config) != config:  # it was not always kept
        raise UserError(
            f"{where} was written under other settings than those in config.toml: take both from one run, or remove "
            f"{MANIFEST} to go on with these"
        )
    groups: dict[str, dict[str, Tensor]] = {}
    for name, tensor in tensors.items():
        group, _, rest = name.partition(".")
        groups.setdefault(group, {})[rest] = tensor
    load_weights(learner, groups.get("learner", {}), where)
    ranks = sum(group.startswith("rank") for group in groups)
    weights = load_weights(learner, groups["learner"] | groups.get(f"rank{rank}", {}), where)
    _load_moments(optimizer, groups.get("optimizer", {}), where)
    try:
        at = Position(**{name: type(value)(metadata[name]) for name, value in asdict(Position()).items()})
    except (KeyError, TypeError, ValueError) as error:
        raise UserError(f"{where} is not a checkpoint of this version of metavrf ({error})") from error
    return at, weights, metadata.get("processes", max(1, ranks))  # it was not always kept


def _load_moments(optimizer: torch.optim.Optimizer, moments: dict[str, Tensor], where: str) -> None:
    parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    names = kept_of_a_weight(optimizer)
    expected = {
        f"{index}.{name}": () if name == "step" else tuple(parameter.shape)
        for index, parameter in enumerate(parameters)
        for name in names
    }
    sound = {name: tuple(tensor.shape) for name, tensor in moments.items()} == expected
    if not sound or not all(torch.isfinite(tensor).all() for tensor in moments.values()):
        raise UserError(
            f"{where} does not belong to this configuration, or is damaged: its optimiser state does not fit"
        )
    state: dict[int, dict[str, Any]] = {}
    for name, tensor in moments.items():
        index, _, key = name.partition(".")
        # The fused step reads moments in the memory layout of the weights (channels last), which files do not keep.
        laid_out = tensor if key == "step" else torch.empty_like(parameters[int(index)]).copy_(tensor)
        state.setdefault(int(index), {})[key] = laid_out
    optimizer.load_state_dict(optimizer.state_dict() | {"state": state})
