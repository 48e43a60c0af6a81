"""Train the network that proposes kernels for rows, on synthetic tables; a killed training goes on where it was.

    python benchmarks/train_rows.py --out RUN [--steps 10000] [--ship]

A step takes tables of one size, regression and classes in turn; larger ones fewer at a time. ``--ship`` writes the
finished network, in half precision, with its card to the package's models.
"""

from __future__ import annotations

import argparse
import json
import math
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from metavrf.files import load_weights, read_tensors, write_json, write_tensors
from metavrf.learners.proposing import Support, loss, prepared
from metavrf.manifest import seal
from metavrf.nn.columns import Proposer, described
from metavrf.randomness import stream
from metavrf.runs.directory import SHIPPED
from metavrf.runs.provenance import provenance
from metavrf.tasks.synthetic import some_size, tables

QUERY, RATE, WARMUP, CLIP = 32, 1e-3, 200, 0.3
WORK, MOST_TASKS, LEAST_TASKS = 16 * 50**2, 32, 2  # rows² of the tables of a step
KEEP_SECONDS, REPORT = 120, 200
VALIDATION = 60  # batches


def drawn(seed: int, purpose: str, step: int) -> Support:
    """The tables of one step."""
    generator = stream(seed, purpose, step)
    size = some_size(generator, classes=step % 2 == 1)
    tasks = min(MOST_TASKS, max(LEAST_TASKS, WORK // size.rows**2))
    found = tables(size, tasks, QUERY, generator)
    return prepared(found.x, found.y, size.rows, size.classes)


@torch.no_grad()
def measure_inputs(network: Proposer, seed: int) -> None:
    """Centre and spread of the statistics over a hundred steps' tables, which training does not see again."""
    parts = []
    for step in range(100):
        support = drawn(seed, "bases", step)
        columns, table = described(support.z, support.y, classes=support.labels is not None)
        parts.append(network.inputs(columns, table).flatten(0, 1)[:64])
    inputs = torch.cat(parts)
    network.centre.copy_(inputs.mean(0))
    network.spread.copy_(inputs.std(0).clamp_min(1e-3))


@torch.no_grad()
def validate(network: Proposer, seed: int) -> dict[str, float]:
    """Nll of query rows of the same new tables, each time."""
    found: dict[str, list[Tensor]] = {"regression": [], "classes": []}
    for step in range(VALIDATION):
        support = drawn(seed, "validation", step)
        found["regression" if support.labels is None else "classes"].append(loss(network, support))
    return {name: torch.cat(parts).mean().item() for name, parts in found.items()}


def state(network: Proposer, optimizer: torch.optim.Adam) -> dict[str, Tensor]:
    """All that a training goes on from."""
    kept = {f"network.{name}": tensor for name, tensor in network.state_dict().items()}
    for name, weight in network.named_parameters():
        for key in ("exp_avg", "exp_avg_sq"):
            kept[f"{key}.{name}"] = optimizer.state[weight][key]
    return kept


def resume(file: Path, network: Proposer, optimizer: torch.optim.Adam) -> dict[str, Any]:
    """Take up what :func:`state` kept."""
    tensors, about = read_tensors(file)
    load_weights(network, {n[8:]: t for n, t in tensors.items() if n.startswith("network.")}, str(file))
    for name, weight in network.named_parameters():
        moments = {key: tensors[f"{key}.{name}"].clone() for key in ("exp_avg", "exp_avg_sq")}
        optimizer.state[weight] = {"step": torch.tensor(float(about["step"])), **moments}
    return about


def rate(step: int, steps: int) -> float:
    """Of learning: it rises, then falls along a cosine."""
    return RATE * min(1.0, (step + 1) / WARMUP) * 0.5 * (1 + math.cos(math.pi * step / steps))


def train(out: Path, steps: int, seed: int) -> tuple[Proposer, dict[str, Any]]:
    """To the last step, from the last checkpoint if there is one."""
    network = Proposer(stream(seed, "weights"))
    optimizer = torch.optim.Adam(network.parameters(), lr=RATE)
    file, about = out / "state.safetensors", {"step": 0, "seconds": 0.0}
    out.mkdir(parents=True, exist_ok=True)
    if file.exists():
        about = resume(file, network, optimizer)
    else:
        measure_inputs(network, seed)
    before, start, kept = about["seconds"], time.process_time(), time.monotonic()
    recent: list[list[float]] = [[], []]
    for step in range(int(about["step"]), steps):
        for group in optimizer.param_groups:
            group["lr"] = rate(step, steps)
        value = loss(network, drawn(seed, "train", step)).mean()
        optimizer.zero_grad()
        value.backward()
        norm = torch.nn.utils.clip_grad_norm_(network.parameters(), CLIP)
        if bool(norm.isfinite()):
            optimizer.step()
        recent[step % 2].append(value.item())
        if (step + 1) % REPORT == 0 or step + 1 == steps:
            line: dict[str, Any] = {"step": step + 1, "seconds": before + time.process_time() - start}
            line |= {name: sum(part) / len(part) for name, part in zip(("regression", "classes"), recent, strict=True)}
            recent = [[], []]
            if (step + 1) % (5 * REPORT) == 0 or step + 1 == steps:
                line["validation"] = validate(network, seed)
            print(json.dumps(line), flush=True)
        if time.monotonic() - kept > KEEP_SECONDS or step + 1 == steps:
            about = {"step": step + 1, "seconds": before + time.process_time() - start}
            write_tensors(file, state(network, optimizer), about)
            kept = time.monotonic()
    return network, about | {"validation": validate(network, seed)}


def ship(network: Proposer, training: dict[str, Any], folder: Path) -> None:
    """Write the network in half precision, and its card, as a model of the package."""
    folder.mkdir(parents=True, exist_ok=True)
    halves = {name: tensor.half() for name, tensor in network.state_dict().items()}
    write_tensors(folder / "model.safetensors", halves, {"model": "rows"})
    write_json(folder / "card.json", training)
    seal(folder, "packed model", [folder / name for name in ("model.safetensors", "card.json", "README.md")])


def options() -> Iterator[tuple[str, dict[str, Any]]]:
    """Of the command."""
    yield "--out", {"type": Path, "required": True}
    yield "--steps", {"type": int, "default": 10_000}
    yield "--seed", {"type": int, "default": 0}
    yield "--ship", {"action": "store_true"}


def main() -> None:
    """Train, say how it went, ship."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, how in options():
        parser.add_argument(name, **how)
    asked = parser.parse_args()
    network, about = train(asked.out, asked.steps, asked.seed)
    training = {
        "task": "rows",
        "training": {"steps": asked.steps, "train_seconds": about["seconds"], "validation": about["validation"]},
        "provenance": provenance(asked.seed),
    }
    write_json(asked.out / "result.json", training)
    if asked.ship:
        ship(network, training, SHIPPED / "rows")


if __name__ == "__main__":
    main()
