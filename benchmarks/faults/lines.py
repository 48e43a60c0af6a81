"""Command lines that ask for what cannot be: each ends in one sentence and code 2, or works."""

from __future__ import annotations

import contextlib
import io
import math
import os
import time
import warnings
from pathlib import Path
from typing import Any

from metavrf.cli import exit_code

NUMBERS = ("0", "-1", "1e300", "nan", "inf", "1000000000000000", "x", "", "9" * 400)
TRAIN = ("shot", "query", "batch", "iterations", "lr", "threads", "seed", "components", "bases", "ridge", "clip")
TEST = ("tasks", "shot", "seed", "bases", "samples", "draw", "batch", "way")
BAD = {"0", "-1", "1e300", "nan", "inf", "x", "", "9" * 400}
OTHER: tuple[list[str], ...] = (
    [],
    [""],
    ["nothing"],
    ["train", "no-such-task", "--out", "OUT"],
    ["train", "/dev/zero", "--out", "OUT"],
    ["train", "/dev/null", "--out", "OUT"],
    ["train", ".", "--out", "OUT"],
    ["train", "sine", "--out", ""],
    ["train", "sine", "--out", "/proc/x"],
    ["train", "sine", "--out", "a\0b"],
    ["train", "sine"],
    ["train", "--resume", "--out", "OUT"],
    ["train", "--resume", "--out", ""],
    ["train", "sine", "--learner", "[/red]", "--out", "OUT"],
    ["train", "sine", "--plugin", "none.py", "--out", "OUT"],
    ["evaluate", ""],
    ["evaluate", "/"],
    ["evaluate", "[red]x[/x]"],
    ["evaluate", "sine", "--plot", "x.exe", "--tasks", "2"],
    ["evaluate", "sine", "--save", "/proc/x.json", "--tasks", "2"],
    ["evaluate", "hf://x"],
    ["compare"],
    ["compare", "sine", "omniglot", "--tasks", "2"],
    ["info", "no\x1b[2Jrun"],
    ["info", "x" * 5000],
    ["fit", "none", "--out", "OUT"],
    ["fit", "/", "--out", "OUT"],
    ["predict"],
    ["predict", "none"],
    ["predict", "none", "[/x].png"],
    ["export", "none", "--out", "OUT"],
    ["embed", "sine", "--out", "OUT"],
    ["embed", "sine", "--out", "OUT.safetensors"],
    ["pack", "none", "--out", "OUT"],
    ["serve", "--port", "-1", "--no-open"],
    ["serve", "--host", "no host", "--no-open"],
    ["kernels", "omniglot", "--out", "OUT.png"],
    ["data", "--fetch", "none"],
    ["study", "none"],
)


def table() -> list[list[str]]:
    """All of them; OUT stands for a new place."""
    few = ["--iterations", "1", "--validate-every", "1", "--validate-tasks", "2", "--quiet"]
    lines = [list(line) for line in OTHER]
    for value in NUMBERS:
        kept = [name for name in TRAIN if value in BAD or name in ("shot", "batch", "threads", "bases")]
        lines += [["train", "sine", "--out", "OUT", *few, f"--{name}", value] for name in kept]
        kept = [name for name in TEST if value in BAD or name in ("tasks", "shot")]
        lines += [["evaluate", "sine-rff", f"--{name}", value] for name in kept if name != "seed" or value != "0"]
    return lines


def campaign(folder: Path, every: int = 1, end: float = math.inf) -> dict[str, Any]:
    """Run each ``every``-th line while there is time; names those that end in neither success nor one sentence."""
    wrong, tried = [], 0
    for number, line in enumerate(table()[::every]):
        if time.monotonic() > end:
            break
        tried += 1
        words = [word.replace("OUT", str(folder / f"out{number}")) for word in line]
        outcome = one(words)
        if outcome:
            wrong.append({"line": [word[:60] for word in line], "outcome": outcome})
    return {"lines": tried, "wrong": len(wrong), "examples": wrong[:20]}


def one(words: list[str]) -> str:
    """What is wrong with how a command ends, or nothing."""
    out, err = io.StringIO(), io.StringIO()
    try:
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err), warnings.catch_warnings(action="ignore"):
            code = exit_code(words)
    except SystemExit as stop:
        code = stop.code if isinstance(stop.code, int) else 1
    except BaseException as error:
        return f"{type(error).__name__}: {str(error)[:200]}"
    said = err.getvalue()
    if code not in (0, 2):
        return f"code {code}"
    if code == 2 and (said.count("\n") != 1 or not said.startswith("metavrf: ")):
        return f"not one sentence: {said[:200]!r}"
    return "escape codes" if "\x1b" in said + out.getvalue() and not os.environ.get("FORCE_COLOR") else ""
