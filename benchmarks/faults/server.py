"""A real server in a process of its own."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def serving() -> Iterator[tuple[int, int]]:
    """``metavrf serve`` with the models of the package: its port and its process."""
    command = [sys.executable, "-m", "metavrf", "serve", "--port", "0", "--no-open"]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        try:
            assert process.stderr is not None
            found = re.search(r":(\d+)/", process.stderr.readline())
            assert found
            yield int(found[1]), process.pid
        finally:
            process.send_signal(signal.SIGINT)
            process.wait(60)
