"""Being asked to stop: signals are noted, and obeyed between two steps."""

from __future__ import annotations

import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType


class Interrupted(KeyboardInterrupt):
    """The run was asked to stop; it is saved, and the message says how to go on."""

    def __init__(self, message: str, signal_number: int) -> None:
        super().__init__(message)
        self.exit_code = 128 + signal_number


@contextmanager
def stop_signals() -> Iterator[list[int]]:
    """Collect Ctrl-C and SIGTERM instead of dying in the middle of a step; only the main thread can."""
    stopped: list[int] = []
    if threading.current_thread() is not threading.main_thread():
        yield stopped
        return

    def remember(number: int, _: FrameType | None) -> None:
        if stopped:  # asked twice: stop at once
            sys.exit(128 + number)
        stopped.append(number)

    before = {number: signal.signal(number, remember) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield stopped
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
