"""Draw docs/streams.png from results/: python docs/streams.py. Error against the position in a stream, mean over seeds.

The lines are those of ``results/study-streams.json`` and, of the plain update with kernels between the others,
``results/stream-between-SEED.json``.
"""

from __future__ import annotations

import json
from pathlib import Path
from statistics import fmean
from typing import Any

from metavrf.plots import plot_lines

DOCS = Path(__file__).parent
RESULTS = DOCS.parent / "results"
BETWEEN = "bayes, kernels between"


def lines() -> dict[str, list[tuple[float, float, float]]]:
    """Points of each context's line; seeds vary by more than tasks, so there are no intervals."""
    rows = json.loads((RESULTS / "study-streams.json").read_text())["rows"]
    tests: dict[str, list[Any]] = {}
    for row in rows:
        tests.setdefault(row["training"], []).append(row)
    tests[BETWEEN] = [json.loads(file.read_text()) for file in sorted(RESULTS.glob("stream-between-*.json"))]
    found = {}
    for name, seeds in tests.items():
        places = zip(*(seed["by_position"] for seed in seeds), strict=True)
        found[name] = [(float(place), fmean(errors), 0.0) for place, errors in enumerate(places, 1)]
    return found


if __name__ == "__main__":
    title = "Streams of related sine curves, 3 points each"
    plot_lines(lines(), DOCS / "streams.png", title, "position in the stream", value="mean squared error", log=True)
