"""Commands of metavrf in processes of their own, to be killed, starved and compared."""

from __future__ import annotations

import json
import multiprocessing
import os
import shlex
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import metavrf
from metavrf.files import read_tensors
from metavrf.runs import training
from metavrf.runs.directory import Run

TIMEOUT = 120  # seconds; generous, a command takes one or two
# One kernel of random features, inferred from x in the context of the tasks before.
TINY = shlex.split(
    "--iterations 60 --validate-every 20 --validate-tasks 10 --bases 32 --batch 4 --query 5 --threads 1 --warmup 10 "
    "--components 1 --train-kernel features --context bilstm --context-inputs x --kl-weight 1e-3 --lr 2e-3 "
    "--train-shot 0 --most-shot 0 --embedding mlp --guards 0"
)
TINY_OPTIONS: dict[str, Any] = {
    "iterations": 60,
    "validate_every": 20,
    "validate_tasks": 10,
    "bases": 32,
    "batch": 4,
    "query": 5,
    "threads": 1,
    "warmup": 10,
    "components": 1,
    "train_kernel": "features",
    "context": "bilstm",
    "context_inputs": "x",
    "kl_weight": 1e-3,
    "lr": 2e-3,
    "train_shot": 0,
    "most_shot": 0,
    "embedding": "mlp",
    "guards": 0,
}
OF_METAVRF = ("components", "context", "context_inputs", "kl_weight", "guards")
TINY_KERNEL_OPTIONS = {name: value for name, value in TINY_OPTIONS.items() if name not in OF_METAVRF}  # of rff, shared
DOCUMENTED = {
    "config.toml",
    "data.json",
    "manifest.json",
    "model.safetensors",
    "state.safetensors",
    "metrics.jsonl",
    "result.json",
}

# A fork server imports torch once; each command then starts in milliseconds, in a process as real as any other.
_server = multiprocessing.get_context("forkserver")
_server.set_forkserver_preload(
    ["pytest", "metavrf.cli", "metavrf.commands.train", "metavrf.commands.runs", "metavrf.testing.compare"]
)


@dataclass
class Done:
    """How a command ended; a negative code is the signal that killed it."""

    code: int
    out: str
    err: str


class Command:
    """``metavrf`` with arguments in a process of its own; ``before`` is called there first."""

    def __init__(
        self,
        arguments: list[str],
        log: Path,
        *,
        before: Callable[[], None] | None = None,
        environment: dict[str, str] | None = None,
    ) -> None:
        log.mkdir(parents=True, exist_ok=True)
        self._log = log
        os.environ.setdefault("OMP_NUM_THREADS", "1")  # for the server and all that it starts
        self.process = _server.Process(
            target=_child, args=(arguments, str(log), before, environment or {}), daemon=True
        )
        self.process.start()

    def kill(self) -> None:
        """SIGKILL, as a crash or a power cut would."""
        self.process.kill()
        self.process.join(TIMEOUT)

    def send(self, number: int) -> None:
        """Send a signal."""
        assert self.process.pid is not None
        os.kill(self.process.pid, number)

    def wait(self, timeout: float = TIMEOUT) -> Done:
        """The end of the command."""
        self.process.join(timeout)
        code = self.process.exitcode
        if code is None:
            self.kill()
            raise TimeoutError(f"the command hangs: {(self._log / 'err').read_text()[-2000:]}")
        return Done(code, (self._log / "out").read_text(), (self._log / "err").read_text())


def _child(arguments: list[str], log: str, before: Callable[[], None] | None, environment: dict[str, str]) -> None:
    for number, name in ((1, "out"), (2, "err")):
        file = os.open(Path(log) / name, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        os.dup2(file, number)
    sys.stdout = os.fdopen(1, "w", closefd=False)
    sys.stderr = os.fdopen(2, "w", buffering=1, closefd=False)
    os.environ.update(environment)
    sys.argv = ["metavrf", *arguments]
    from metavrf.cli import main

    if before is not None:
        before()
    main(arguments)


def run(arguments: list[str], log: Path, *, before: Callable[[], None] | None = None) -> Done:
    """Run a command to its end."""
    return Command(arguments, log, before=before).wait()


def run_ranks(
    arguments: list[str],
    log: Path,
    *,
    ranks: int = 2,
    before: Callable[[], None] | None = None,
    timeout: float = TIMEOUT,
) -> list[Done]:
    """Run a command as torchrun would: one process a rank, gloo between them."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    common = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "WORLD_SIZE": str(ranks)}
    common |= {"LOCAL_WORLD_SIZE": str(ranks), "TORCHELASTIC_RUN_ID": "tests", "GROUP_RANK": "0"}
    commands = [
        Command(
            arguments, log / str(rank), before=before, environment=common | {"RANK": str(rank), "LOCAL_RANK": str(rank)}
        )
        for rank in range(ranks)
    ]
    try:
        return [command.wait(timeout) for command in commands]
    finally:
        for command in commands:
            command.kill()


def real_command(*arguments: str, module: str = "metavrf") -> list[str]:
    """The command line of a fresh interpreter."""
    return [sys.executable, "-m", module, *arguments]


def run_real(*arguments: str, module: str = "metavrf") -> subprocess.CompletedProcess[str]:
    """A command in a fresh interpreter."""
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    return subprocess.run(
        real_command(*arguments, module=module),
        capture_output=True,
        text=True,
        timeout=TIMEOUT,
        env=environment,
        check=False,
    )


def wait_for(condition: Callable[[], bool], what: str) -> None:
    """Poll until ``condition`` holds."""
    end = time.monotonic() + TIMEOUT
    while not condition():
        if time.monotonic() > end:
            raise TimeoutError(what)
        time.sleep(0.002)


def validations(path: Path) -> int:
    """Whole lines of metrics.jsonl so far."""
    file = Run(path).metrics_file
    return file.read_text().count("\n") if file.exists() else 0


def snapshot(path: Path) -> dict[str, bytes]:
    """Every file below ``path`` with its bytes."""
    return {str(file.relative_to(path)): file.read_bytes() for file in sorted(path.rglob("*")) if file.is_file()}


def without(values: dict[str, Any], *names: str) -> dict[str, Any]:
    """A copy less what may differ between equal runs."""
    return {name: value for name, value in values.items() if name not in names}


TIMES = ("seconds", "cpu_seconds")


def assert_same_tensors(one: Path, other: Path) -> None:
    """Equal to the bit: names, types, values, and all metadata but the seconds."""
    (tensors, metadata), (others, other_metadata) = read_tensors(one), read_tensors(other)
    assert tensors.keys() == others.keys()
    for name, tensor in tensors.items():
        assert tensor.dtype == others[name].dtype, name
        assert torch.equal(tensor, others[name]), name
    assert without(metadata, *TIMES) == without(other_metadata, *TIMES)


def assert_same_run(one: Path, other: Path) -> None:
    """Two finished runs are equal to the bit in all but time and command."""
    first, second = Run(one), Run(other)
    assert first.config_file.read_bytes() == second.config_file.read_bytes()
    assert_same_tensors(first.model_file, second.model_file)
    assert_same_tensors(first.state_file, second.state_file)
    assert [without(r, *TIMES) for r in first.metrics()] == [without(r, *TIMES) for r in second.metrics()]
    timed = ("train_seconds", "train_cpu_seconds", "finished", "command")
    results = [json.loads(run.result_file.read_text()) for run in (first, second)]
    assert without(results[0], *timed) == without(results[1], *timed)


def broken_and_resumed(train: Callable[[], object], out: Path, step: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a training to ``out`` die at a step, and go on with it."""
    whole_step = training.Trainer.train_step

    def crash(trainer: training.Trainer) -> dict[str, Tensor]:
        if trainer.at.step == step:
            raise ZeroDivisionError
        return whole_step(trainer)

    with monkeypatch.context() as patch:
        patch.setattr(training.Trainer, "train_step", crash)
        with pytest.raises(ZeroDivisionError):
            train()
    metavrf.train(out=out, resume=True, quiet=True)


def largest_gap(one: Path, other: Path) -> float:
    """The largest difference of any two weights of two model files, relative for weights beyond 1.

    log λ is about -14, where neighbouring single-precision numbers are 1e-6 apart.
    """
    tensors, others = read_tensors(one)[0], read_tensors(other)[0]
    assert tensors.keys() == others.keys()
    gaps = ((tensor - others[name]).abs() / tensor.abs().clamp_min(1) for name, tensor in tensors.items())
    return max(gap.max().item() for gap in gaps)


def gradient_gap(one: Path, other: Path) -> float:
    """The largest difference of the gradients of two runs of one step.

    Adam's first moments after one step are a tenth of the gradient. Weights would tell less: Adam divides by the
    gradient's size, so one that is zero but for rounding moves its weight by a step of arbitrary sign.
    """
    tensors, others = read_tensors(one)[0], read_tensors(other)[0]
    names = [name for name in tensors if name.endswith(".exp_avg")]
    assert len(names) > 10
    assert max(tensors[name].abs().max().item() for name in names) > 1e-3
    return max(10 * (tensors[name] - others[name]).abs().max().item() for name in names)


@dataclass
class DieInWrite:
    """Dies by SIGKILL in the middle of the n-th file that is written: half of it is on the disk."""

    count: int
    where: str = "half"

    def __call__(self) -> None:
        """Patch this process."""
        fsync, replace, left = os.fsync, Path.replace, [self.count]

        def die() -> None:
            os.kill(os.getpid(), signal.SIGKILL)

        def half_fsync(descriptor: int) -> None:
            left[0] -= 1
            if left[0] == 0 and self.where == "half":
                os.ftruncate(descriptor, os.fstat(descriptor).st_size // 2)
                die()
            fsync(descriptor)

        def no_replace(path: Path, target: Path) -> Path:
            if left[0] == 0 and self.where == "before rename":
                die()
            done = replace(path, target)
            if left[0] == 0 and self.where == "after rename":
                die()
            return done

        os.fsync = half_fsync  # type: ignore[assignment]
        Path.replace = no_replace  # type: ignore[method-assign,assignment]


@dataclass
class DiskOf:
    """Makes every write beyond ``size`` bytes of a file fail, as a full disk does."""

    size: int

    def __call__(self) -> None:
        """Limit this process."""
        import resource

        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (self.size, self.size))
