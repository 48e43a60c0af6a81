"""Being asked to stop: signals are noted, and obeyed between two steps."""

from __future__ import annotations

import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

SIGNALS = [getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, name)]


class Interrupted(KeyboardInterrupt):
    """The run was asked to stop; it is saved, and the message says how to go on."""

    def __init__(self, message: str, signal_number: int) -> None:
        super().__init__(message)
        self.exit_code = 128 + signal_number


@contextmanager
def stop_signals() -> Iterator[list[int]]:
    """Collect Ctrl-C, SIGTERM and SIGHUP instead of dying in the middle of a step; only the main thread can.

    A closed terminal sends SIGHUP, which stays ignored where nohup has said so.
    """
    stopped: list[int] = []
    if threading.current_thread() is not threading.main_thread():
        yield stopped
        return

    def remember(number: int, _: FrameType | None) -> None:
        if stopped:  # asked twice: stop at once
            sys.exit(128 + number)
        stopped.append(number)

    hung_up = getattr(signal, "SIGHUP", None)  # not on Windows
    wanted = [n for n in SIGNALS if n != hung_up or signal.getsignal(n) is not signal.SIG_IGN]
    before = {number: signal.signal(number, remember) for number in wanted}
    try:
        yield stopped
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
