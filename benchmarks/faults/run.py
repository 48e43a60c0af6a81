"""Run the campaign, or a part of it, and keep what was found: ``python benchmarks/faults/run.py --save FILE``."""

from __future__ import annotations

import argparse
import json
import math
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent.parent))

from faults import clients, interface, kills, lines, mutations
from metavrf.files import write_json
from metavrf.runs.provenance import provenance


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--save", type=Path, required=True)
    parser.add_argument("--only", nargs="*", default=["kills", "mutations", "lines", "interface", "clients"])
    parser.add_argument("--kills", type=int, default=200)
    parser.add_argument("--mutations", type=int, default=5000)
    parser.add_argument("--examples", type=int, default=300, help="of Schemathesis, for each operation and phase")
    parser.add_argument("--clients", type=int, default=64)
    parser.add_argument("--seconds", type=float, default=120.0)
    parser.add_argument("--pause", type=float, default=1.0, help="of a client after an answer, in seconds")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--minutes", type=float, default=math.inf, help="of each part; then it stops where it is")
    asked = parser.parse_args()

    def ends() -> float:
        return time.monotonic() + 60 * asked.minutes

    parts: dict[str, Callable[[Path], dict[str, Any]]] = {
        "kills": lambda folder: kills.campaign(folder, asked.kills, asked.seed, ends()),
        "mutations": lambda folder: mutations.campaign(folder, asked.mutations, asked.seed, ends()),
        "lines": lambda folder: lines.campaign(folder, end=ends()),
        "interface": lambda folder: interface.campaign(folder, asked.examples, asked.seed),
        "clients": lambda folder: clients.campaign(folder, asked.clients, asked.seconds, asked.pause),
    }
    for name in asked.only:
        began = time.monotonic()
        with tempfile.TemporaryDirectory() as folder:
            result = parts[name](Path(folder))
        result |= {"took_seconds": round(time.monotonic() - began, 1), "provenance": provenance(asked.seed)}
        print(f"{name}: {json.dumps({k: v for k, v in result.items() if k != 'by_kind'})}", flush=True)
        if "skipped" in result:
            continue
        kept = json.loads(asked.save.read_text()) if asked.save.exists() else {}  # of the other parts
        write_json(asked.save, kept | {name: result})


if __name__ == "__main__":
    main()
