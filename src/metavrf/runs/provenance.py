"""Where a figure comes from: kept beside every figure that is kept."""

from __future__ import annotations

import os
import platform
import shlex
import subprocess
import sys
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any


def provenance(seed: int) -> dict[str, Any]:
    """Command, seed, commit, versions and time."""
    return {
        "command": " ".join([_program(), shlex.join(sys.argv[1:])]),
        "seed": seed,
        "commit": _commit(),
        "metavrf": version("metavrf"),
        "torch": version("torch"),
        "python": platform.python_version(),
        "finished": datetime.now(UTC).isoformat(timespec="seconds"),
    }


def hardware() -> dict[str, Any]:
    """The machine: its processor, how many of its cores there are, and its memory."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        name = next(line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        name = platform.processor() or platform.machine()
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    return {"processor": name, "cores": os.cpu_count(), "memory_gb": round(memory, 1), "system": platform.system()}


def _program() -> str:
    """The name of the program as one types it."""
    started = Path(sys.argv[0])
    if started.suffix == ".py" and started.name != "__main__.py":
        return f"python {started.name if started.is_absolute() else started}"
    return started.parent.name if started.name == "__main__.py" else started.name


def _commit() -> str | None:
    """The commit this package is run from, if from a checkout; '+' marks uncommitted changes, benchmarks' too."""

    def git(*arguments: str) -> str:
        here = Path(__file__).parent
        return subprocess.run(["git", *arguments], cwd=here, capture_output=True, text=True, check=True).stdout.strip()

    try:
        dirty = git("status", "--porcelain", "--untracked-files=no", "--", ".", ":(top)benchmarks")
        return git("rev-parse", "--short=12", "HEAD") + ("+" if dirty else "")
    except (OSError, subprocess.CalledProcessError):
        return None
