"""Processes killed at a random moment around their writes: nothing is lost, and the end is the same to the bit."""

from __future__ import annotations

import math
import os
import random
import shutil
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import tomli_w  # noqa: F401 - here, so that children find it imported

from faults.folders import TINY, silenced, summed
from metavrf import MetaVRFClassifier, UserError
from metavrf.files import read_tensors
from metavrf.runs import training
from metavrf.runs.directory import Run

ROWS = np.array([[0.0, 0.1], [0.1, 0.0], [2.0, 2.1], [2.1, 2.0]])
OLD, NEW = ["cat", "dog"], ["oak", "elm"]


def in_child(work: Callable[[], object], die_at: int | None = None) -> tuple[int, int]:
    """Work in a process of its own; its exit code, and how many moments around writes there were."""
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            with silenced():
                moments = watch(die_at)
                work()
            os.write(writer, str(moments[0]).encode())
            os._exit(0)
        except BaseException as error:
            print(f"{type(error).__name__}: {error}", file=sys.stderr)
            os._exit(1)
    os.close(writer)
    _, status = os.waitpid(child, 0)
    with os.fdopen(reader) as pipe:
        counted = pipe.read()
    return os.waitstatus_to_exitcode(status), int(counted or 0)


def watch(die_at: int | None) -> list[int]:
    """Count the moments before, in the middle of and after each write and rename; die by SIGKILL at one of them."""
    moments = [0]
    fsync, replace = os.fsync, Path.replace

    def moment(half: int | None = None) -> None:
        moments[0] += 1
        if moments[0] == die_at:
            if half is not None:
                os.ftruncate(half, os.fstat(half).st_size // 2)
            os.kill(os.getpid(), signal.SIGKILL)

    def watched_fsync(descriptor: int) -> None:
        moment(descriptor)
        fsync(descriptor)
        moment()

    def watched_replace(path: Path, target: Path) -> Path:
        done = replace(path, target)
        moment()
        return done

    os.fsync = watched_fsync  # type: ignore[assignment]
    Path.replace = watched_replace  # type: ignore[method-assign,assignment]
    return moments


def said(path: Path) -> str:
    """A finished run, without its times."""
    run = Run(path)
    parts = []
    for file in (run.model_file, run.state_file):
        tensors, _ = read_tensors(file)
        parts.append(summed(*(tensor for _, tensor in sorted(tensors.items()))))
    parts += [repr([record["step"] for record in run.metrics()]), repr(run.config())]
    return "\n".join(parts)


def campaign(folder: Path, count: int, seed: int = 0, end: float = math.inf) -> dict[str, Any]:
    """Kill trainings, resumed trainings and saves; ``count`` kills in all, or as many as there is time for."""
    draw = random.Random(seed)
    whole, broken, saved = folder / "whole", folder / "broken", folder / "saved"
    start(folder / "first")  # so that no child has to import anything
    code, moments = in_child(lambda: start(whole))
    assert code == 0
    truth = said(whole)
    fitted(OLD).save(saved)
    code, of_saving = in_child(lambda: fitted(NEW).save(folder / "other"))
    assert code == 0
    found = {"kills": 0, "trainings": 0, "saves": 0, "lost": 0, "different": 0, "left_behind": 0}
    while found["kills"] < count and time.monotonic() < end:
        if draw.random() < 0.25:
            found["saves"] += 1
            found["kills"] += in_child(lambda: fitted(NEW).save(saved), draw.randint(1, of_saving + 1))[0] < 0
            try:
                found["different"] += answer(saved) not in ("dog", "elm")
            except UserError:
                found["lost"] += 1
            fitted(OLD).save(saved)
            continue
        shutil.rmtree(broken, ignore_errors=True)
        found["trainings"] += 1
        found["kills"] += in_child(lambda: start(broken), draw.randint(1, moments))[0] < 0
        while draw.random() < 0.5 and found["kills"] < count and (broken / "config.toml").exists():
            found["kills"] += in_child(lambda: go_on(broken), draw.randint(1, moments))[0] < 0
        go = go_on if (broken / "config.toml").exists() else start  # killed before there was a run: it starts again
        code, _ = in_child(lambda go=go: go(broken))  # type: ignore[misc]
        found["lost"] += code != 0
        if code == 0:
            found["different"] += said(broken) != truth
            found["left_behind"] += any(file.suffix == ".tmp" for file in broken.iterdir())
    return found


def start(path: Path) -> None:
    training.train("sine", out=path, quiet=True, **TINY)


def go_on(path: Path) -> None:
    training.train(out=path, resume=True, quiet=True)


def fitted(names: list[str]) -> MetaVRFClassifier:
    return MetaVRFClassifier().fit(ROWS, np.repeat(names, 2))


def answer(path: Path) -> str:
    return str(MetaVRFClassifier.load(path).predict([[2.0, 2.0]]).item())
