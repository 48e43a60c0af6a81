from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from metavrf.errors import UserError
from speed.turns import Turn, Worker, peak_memory, take_turns

SCRIPT = """
import os, sys
from speed.turns import serve

def noting(name):
    def make():
        print("a maker speaks")
        def run():
            print("and so does a piece")
            with open(sys.argv[1], "a") as log:
                log.write(f"{os.getpid()} {name}\\n")
        return run
    return make

def large():
    return lambda: bytearray(150_000_000).count(1)

serve({"a": noting("a"), "b": noting("b"), "large": large, "bad": lambda: (lambda: 1 / 0)}, {"who": os.getpid()})
"""


def worker(log: Path) -> Worker:
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    return Worker("noting", [sys.executable, "-c", SCRIPT, str(log)], environment)


def test_pieces_of_two_processes_take_turns_round_after_round(tmp_path: Path) -> None:
    log = tmp_path / "log"
    heard: list[int] = []
    with worker(log) as first, worker(log) as second:
        turns = [Turn("first", first, "a", calls=2), Turn("second", second, "b", warm=False)]
        seconds = take_turns(turns, 3, heard.append)
        one, two = f"{first.facts['who']} a", f"{second.facts['who']} b"
    assert heard == [1, 2, 3]
    assert {label: len(values) for label, values in seconds.items()} == {"first": 3, "second": 3}
    assert all(value > 0 for values in seconds.values() for value in values)
    # Each is set up by a call; then a turn is a call that is not counted, if asked for, and those that are.
    assert log.read_text().splitlines() == [one, two] + ([one] * 3 + [two]) * 3


def test_a_worker_says_how_much_memory_was_resident_at_most(tmp_path: Path) -> None:
    with worker(tmp_path / "log") as process:
        process.turn("a", warm=False)
        small = process.peak
        process.turn("large", warm=False)
        assert process.peak - small > 100_000_000
    assert peak_memory() > 1_000_000


def test_a_worker_that_fails_is_reported_by_its_last_words(tmp_path: Path) -> None:
    with worker(tmp_path / "log") as process, pytest.raises(UserError, match="'noting' failed: ZeroDivisionError"):
        process.turn("bad")
    missing = Worker("gone", [sys.executable, "-c", "raise SystemExit('no such luck')"], os.environ)
    with pytest.raises(UserError, match="'gone' failed: no such luck"), missing:
        pass
