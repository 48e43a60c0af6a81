"""Schemathesis against the page's own description of its interface: sound and unsound requests, alone and in turn."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from faults.server import serving

SKIPPED = "Schemathesis is not installed: pip install --constraint constraints.txt schemathesis"
LEFT_OUT = {
    "positive_data_acceptance": "a text that the description allows may be no PNG file, and is refused",
}


def campaign(folder: Path, examples: int, seed: int = 0) -> dict[str, Any]:
    """All checks of Schemathesis but those left out, with ``examples`` for each operation; says what failed."""
    if find_spec("schemathesis") is None:
        return {"skipped": SKIPPED}
    report = folder / "events.ndjson"
    with serving() as (port, _):
        command = [sys.executable, "-m", "schemathesis.cli", "run", f"http://127.0.0.1:{port}/openapi.json"]
        command += ["--checks", "all", "--exclude-checks", ",".join(LEFT_OUT), "--max-examples", str(examples)]
        command += ["--seed", str(seed), "--continue-on-failure", "--no-color", "--report-ndjson-path", str(report)]
        done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=folder)
    cases = re.search(r"(\d+) generated", done.stdout)
    if done.returncode not in (0, 1) or cases is None:
        raise RuntimeError(f"Schemathesis fell over: {(done.stdout + done.stderr)[-2000:]}")
    found = re.findall(r"❌ (.+): (\d+)$", done.stdout, re.M)
    statuses = _statuses(report)
    return {
        "cases": int(cases[1]),
        "failures": sum(int(number) for _, number in found),
        "examples": [name for name, _ in found],
        "statuses": statuses,
        "left_out": LEFT_OUT,
        "schemathesis": version("schemathesis"),
    }


def _statuses(report: Path) -> dict[str, int]:
    """How often each status was answered."""
    counts: dict[str, int] = {}
    for line in report.read_text().splitlines():
        for status in re.findall(r'"status_code": ?(\d+)', json.dumps(json.loads(line))):
            counts[status] = counts.get(status, 0) + 1
    return dict(sorted(counts.items()))
