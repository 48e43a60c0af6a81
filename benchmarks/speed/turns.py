"""Measuring by turns: pieces of work in several processes, one at a time, round after round.

The allocator's settings hold for a whole process, and a peer lives in an environment of its own, so variants stand in
processes of their own. They take turns, A-B-A-B, and never work at the same time: whatever else the machine does hits
all alike, and a ratio taken within a round means something even where the times themselves drift.

Standard library only: a peer's environment imports this module without ours.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import IO, Any, Self

from metavrf.errors import UserError

Call = Callable[[], object]
Makers = Mapping[str, Callable[[], Call]]


class Worker:
    """A process that holds pieces of work and runs the one it is asked for; see :func:`serve`."""

    def __init__(self, name: str, command: Sequence[str], environment: Mapping[str, str]) -> None:
        self.name, self._command, self._environment = name, list(command), dict(environment)
        self.facts: dict[str, Any] = {}
        self.peak = 0  # bytes resident at most, as of the last turn

    def __enter__(self) -> Self:
        self._log: IO[str] = tempfile.TemporaryFile("w+")
        self._process = subprocess.Popen(
            self._command,
            env=self._environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
            text=True,
        )
        try:
            self.facts = self._answer()
        except BaseException:
            self.__exit__(None, None, None)
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._process.kill()
        self._process.communicate()
        self._log.close()

    def turn(self, piece: str, calls: int = 1, *, warm: bool = True) -> list[float]:
        """Seconds of each of ``calls`` calls in a row; ``warm`` asks for one before them that is not counted."""
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(json.dumps({"piece": piece, "calls": calls, "warm": warm}) + "\n")
            self._process.stdin.flush()
        except BrokenPipeError:
            pass  # the answer says why
        answer = self._answer()
        self.peak = int(answer["peak"])
        return [float(seconds) for seconds in answer["seconds"]]

    def _answer(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if line:
            return dict(json.loads(line))
        self._process.wait()
        self._log.seek(0)
        said = self._log.read().strip().splitlines()
        raise UserError(f"the worker {self.name!r} failed: {said[-1] if said else 'it said nothing'}")


def serve(makers: Makers, facts: Mapping[str, Any]) -> None:
    """What a worker does: say ``facts``, then run pieces as asked, until nobody asks any more.

    A maker is called when its piece is first asked for, outside the time that is measured.
    """
    with os.fdopen(os.dup(1), "w") as answers:
        os.dup2(2, 1)  # what libraries print must not mix with the answers
        made: dict[str, Call] = {}

        def answer(values: Mapping[str, Any]) -> None:
            print(json.dumps(values), file=answers, flush=True)

        answer(facts)
        for line in sys.stdin:
            asked = json.loads(line)
            name = asked["piece"]
            piece = made[name] if name in made else made.setdefault(name, makers[name]())
            if asked["warm"]:
                piece()
            answer({"seconds": [timed(piece) for _ in range(asked["calls"])], "peak": peak_memory()})


def timed(call: Call) -> float:
    """Seconds of one call."""
    start = time.perf_counter()
    call()
    return time.perf_counter() - start


def peak_memory() -> int:
    """Bytes of this process that were resident at most.

    Not ``ru_maxrss`` where it can be helped: that one starts at what the parent process held.
    """
    status = Path("/proc/self/status")
    if status.exists():
        lines = dict(line.split(":", 1) for line in status.read_text().splitlines() if ":" in line)
        return 1024 * int(lines["VmHWM"].split()[0])
    import resource

    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)


@dataclass(frozen=True)
class Turn:
    """A piece that takes part in the rounds; of ``calls`` calls in a row, the median is its time in a round.

    A call that is not counted comes before them, unless the piece is so long that nothing of it depends on that.
    """

    label: str
    worker: Worker
    piece: str
    calls: int = 1
    warm: bool = True


def take_turns(turns: Sequence[Turn], rounds: int, watch: Callable[[int], None]) -> dict[str, list[float]]:
    """Seconds of each turn by its label, one figure a round; ``watch`` hears of every finished round."""
    seconds: dict[str, list[float]] = {turn.label: [] for turn in turns}
    for turn in turns:
        turn.worker.turn(turn.piece, warm=False)  # sets things up, and is thrown away
    for number in range(rounds):
        for turn in turns:
            called = turn.worker.turn(turn.piece, turn.calls, warm=turn.warm)
            seconds[turn.label].append(statistics.median(called))
        watch(number + 1)
    return seconds
