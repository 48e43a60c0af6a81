"""How soon the page answers: 'metavrf serve' in a process of its own, asked over loopback as the page asks it.

    python benchmarks/page.py [--repeats 300] [--save FILE]

Drawings: five classes of three, then a drawing that grows dot by dot, and is asked about after each. Curves: five
points, one of which moves (each move is a fit and a question for 101 points). Every time is that of the whole request.
"""

from __future__ import annotations

import argparse
import http.client
import json
import re
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from metavrf.files import write_json
from metavrf.reports import print_table
from metavrf.runs.provenance import provenance

CLASSES, DRAWINGS, SIDE = 5, 3, 28
MOST_MILLISECONDS = 50

Ask = Callable[[str, dict[str, Any]], Any]


@contextmanager
def serving() -> Iterator[Ask]:
    """A server, and how to ask it on one connection that is kept, as a browser keeps it."""
    command = [sys.executable, "-m", "metavrf", "serve", "--port", "0", "--no-open"]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as server:
        assert server.stderr is not None
        try:
            said = server.stderr.readline()
            found = re.search(r":(\d+)/", said)
            if found is None:
                raise SystemExit(f"the server did not start: {said or server.stderr.read()}")
            connection = http.client.HTTPConnection("127.0.0.1", int(found[1]), timeout=60)

            def ask(path: str, body: dict[str, Any]) -> Any:
                connection.request("POST", path, json.dumps(body), {"Content-Type": "application/json"})
                answer = connection.getresponse()
                value = json.loads(answer.read())
                if answer.status != http.client.OK:
                    raise SystemExit(f"{path} answered {answer.status}: {value}")
                return value

            yield ask
        finally:
            server.terminate()


def strokes(random: np.random.Generator) -> np.ndarray[Any, Any]:
    """A drawing as a walk of thick dots: after each, the picture so far, ``[dots, side, side]``."""
    place = random.uniform(8, 20, 2)
    grid = np.indices((SIDE, SIDE)).transpose(1, 2, 0)
    ink, seen = np.zeros((SIDE, SIDE)), []
    for _ in range(30):
        place = np.clip(place + random.normal(0, 1.5, 2), 3, 24)
        ink = np.maximum(ink, 255 * np.exp(-((grid - place) ** 2).sum(-1) / 2))
        seen.append(ink.round())
    return np.stack(seen).astype(int)


def timed(call: Callable[..., Any], *arguments: Any) -> float:
    """Milliseconds."""
    start = time.perf_counter()
    call(*arguments)
    return 1e3 * (time.perf_counter() - start)


def measure(ask: Ask, repeats: int) -> dict[str, list[float]]:
    """Milliseconds of each kind of request."""
    random = np.random.default_rng(0)
    times: dict[str, list[float]] = {"a stroke moves": [], "a drawing is added": [], "a point of a curve moves": []}
    classes = [
        {"name": f"class {number}", "pictures": [strokes(random)[-1].tolist() for _ in range(DRAWINGS)]}
        for number in range(CLASSES)
    ]
    task = ask("/api/fit", {"kind": "drawing", "classes": classes})["task"]
    points = [[float(x), float(np.sin(x))] for x in (-4, -2, 0, 1, 3)]
    curve = ask("/api/fit", {"kind": "curve", "points": points})["task"]
    grid = np.linspace(-5, 5, 101).tolist()

    def move(x: float) -> None:
        ask("/api/fit", {"kind": "curve", "task": curve, "points": [*points[:-1], [x, float(np.sin(x))]]})
        ask("/api/predict", {"kind": "curve", "task": curve, "x": grid})

    while len(times["a stroke moves"]) < repeats:
        drawing = strokes(random)
        for picture in drawing.tolist():
            question = {"kind": "drawing", "task": task, "pictures": [picture]}
            times["a stroke moves"].append(timed(ask, "/api/predict", question))
        more = [*classes[:-1], {**classes[-1], "pictures": [*classes[-1]["pictures"], drawing[-1].tolist()]}]
        told = {"kind": "drawing", "task": task, "classes": more}
        times["a drawing is added"].append(timed(ask, "/api/fit", told))
        times["a point of a curve moves"] += [timed(move, x) for x in random.uniform(2, 5, 10).tolist()]
    return times


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=300)
    parser.add_argument("--save", type=Path)
    options = parser.parse_args(arguments)
    with serving() as ask:
        measure(ask, 30)
        times = measure(ask, options.repeats)
    rows = {name: statistics.quantiles(values, n=4) for name, values in times.items()}
    lines = [[name, f"{median:.1f}", f"{low:.1f} to {high:.1f}"] for name, (low, median, high) in rows.items()]
    title = f"The page's requests over loopback, {CLASSES} classes of {DRAWINGS} drawings; aim: {MOST_MILLISECONDS} ms"
    print_table(["", "ms", "quartiles"], lines, title)
    if options.save:
        write_json(options.save, {"milliseconds_quartiles": rows, "provenance": provenance(0)})


if __name__ == "__main__":
    main()
