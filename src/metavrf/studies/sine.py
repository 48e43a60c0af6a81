"""Studies on few-shot regression: many trainings of one question, tested on the same tasks."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from itertools import product
from pathlib import Path
from statistics import fmean
from typing import Any

from metavrf.config import Config
from metavrf.errors import UserError
from metavrf.runs.directory import Run
from metavrf.tasks.source import open_tasks
from metavrf.testing.compare import limits
from metavrf.testing.evaluate import evaluate

CONTEXTS = ("none", "lstm", "bilstm")
INNER_STEPS = (1, 5, 10)
SHOWN = ("context", "context_inputs", "draw", "feature_map", "inner_steps")
ONE_KERNEL: dict[str, Any] = {
    "components": 1,
    "guards": 0,
    "moves": True,
    "embedding": "mlp",
    "train_kernel": "features",
    "train_shot": 0,
    "most_shot": 0,
    "kl_weight": 1e-3,
    "lr": 2e-3,
}
BASES: tuple[dict[str, Any], ...] = (
    {"draw": "fixed", "feature_map": "cosine"},
    {"draw": "resampled", "feature_map": "cosine"},
    {"draw": "fixed", "feature_map": "sincos"},
    {"draw": "resampled", "feature_map": "sincos"},
    {"draw": "resampled", "feature_map": "sincos", "orthogonal": True},
)


def variants(
    name: str, shots: Sequence[int], seeds: Sequence[int], context_inputs: Sequence[str]
) -> dict[str, dict[str, Any]]:
    """The trainings of a study by name: settings that differ from the defaults."""
    found: dict[str, dict[str, Any]] = {}
    for seed in seeds:
        for shot in shots:
            common = {"shot": shot, "seed": seed}
            if name == "rff":
                found[f"{shot}shot-rff-seed{seed}"] = common | {"learner": "rff"}
            if name == "maml":
                for steps in INNER_STEPS:
                    found[f"{shot}shot-maml-{steps}-seed{seed}"] = common | {"learner": "maml", "inner_steps": steps}
            if name == "bases":
                for kind in BASES:
                    label = "-".join(str(value).lower() for value in kind.values())
                    found[f"{shot}shot-{label}-seed{seed}"] = common | {"context": "none"} | kind
            if name == "contexts":
                for inputs, context in product(context_inputs, CONTEXTS):
                    options = common | {"context": context, "context_inputs": inputs}
                    found[f"{shot}shot-{inputs}-{context}-seed{seed}"] = options
    return found


def study(trainings: dict[str, dict[str, Any]], out: Path, iterations: int, workers: int) -> list[dict[str, Any]]:
    """Train what is not trained yet, ``workers`` at a time in processes of one thread; then test everything."""
    configs = {name: _config(options, iterations) for name, options in trainings.items()}
    train_apart(configs, out, workers)
    return [_row(out / name, config) for name, config in configs.items()]


def train_apart(configs: dict[str, Config[Any]], out: Path, workers: int) -> None:
    """Train what is not trained yet, ``workers`` at a time in processes of one thread."""
    with ThreadPoolExecutor(workers) as pool:
        list(pool.map(lambda item: _train(out / item[0], item[1]), configs.items()))


def over_seeds(rows: Sequence[dict[str, Any]]) -> list[dict[str, str]]:
    """One line for each question: the mean over seeds, and the range of the error."""
    groups: dict[tuple[str, ...], list[dict[str, Any]]] = {}
    for row in rows:
        how = {
            "metavrf": f"{row.get('context')}, sees {row.get('context_inputs')}",
            "maml": f"{row.get('inner_steps')} inner steps",
        }
        bases = "" if row["learner"] == "maml" else f"{row['draw']} {row['feature_map']}"
        key = (str(row["shot"]), row["learner"], how.get(row["learner"], ""), bases)
        groups.setdefault(key, []).append(row)
    lines = []
    for (shot, learner, inference, bases), members in sorted(groups.items(), key=lambda g: int(g[0][0])):
        mse = [row["mse"] for row in members]
        lines.append(
            {
                "shots": shot,
                "learner": learner,
                "context or steps": inference,
                "bases": bases,
                "seeds": str(len(members)),
                "mse": f"{fmean(mse):.4g}",
                "range over seeds": f"{min(mse):.4g} to {max(mse):.4g}",
                "95 % (tasks)": f"± {fmean(row['ci95'] for row in members):.2g}",
                "nll": f"{fmean(row['nll'] for row in members):.3f}",
                "in the 90 % band": f"{100 * fmean(row['coverage90'] for row in members):.1f} %",
            }
        )
    return lines


def limit_rows(shots: Sequence[int]) -> list[dict[str, Any]]:
    """The exact limits on the same test tasks."""
    return [
        {"limit": name, **evaluation.to_dict()}
        for shot in shots
        for name, evaluation in limits("sine", shot=shot).items()
    ]


def _config(options: dict[str, Any], iterations: int) -> Config[Any]:
    one_kernel = ONE_KERNEL if "learner" not in options else {}  # these studies are of the paper's
    return Config.of("sine", **one_kernel | options, iterations=iterations)


def _train(path: Path, config: Config[Any]) -> None:
    run = Run(path)
    if run.result_file.exists():
        return
    if not run.config_file.exists():
        Run.create(path, config, open_tasks(config.task, config.data, quiet=True).spec)
    elif run.config() != config:
        raise UserError(f"{path} holds a run with other settings: choose another --out")
    command = [sys.executable, "-m", "metavrf", "train", "--resume", "--out", str(path), "--quiet"]
    done = subprocess.run(
        command, capture_output=True, text=True, env=os.environ | {"OMP_NUM_THREADS": "1"}, check=False
    )
    if done.returncode:
        raise UserError(f"the training in {path} failed: {done.stderr.strip()}")


def _row(path: Path, config: Config[Any]) -> dict[str, Any]:
    result = evaluate(path)
    trained = json.loads(Run(path).result_file.read_text())
    own = asdict(config.model)
    shown: dict[str, Any] = {name: own[name] for name in SHOWN if name in own}
    if own.get("orthogonal"):
        shown["feature_map"] += " orthogonal"
    return {
        "run": path.name,
        "learner": config.learner,
        "shot": config.episode.shot,
        **shown,
        "seed": config.training.seed,
        "mse": result.mean,
        "ci95": result.ci95,
        "nll": result.nll,
        "coverage90": result.coverage90,
        "val_mse": trained["validation"]["val_mse"],
        "train_seconds": trained["train_seconds"],
        "tasks": result.tasks,
        "protocol": result.protocol,
        "data_sha256": result.data_sha256,
    }
