"""One process at a time: a lock on a folder that the system takes back when the process ends, however it ends."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from metavrf.errors import UserError

try:
    import fcntl
except ImportError:  # not on Windows
    fcntl = None  # type: ignore[assignment]


@contextmanager
def lock(folder: Path, taken: str) -> Iterator[None]:
    """Hold the lock of a folder, or say that it is ``taken``; where the file system has no locks, there is none."""
    if fcntl is None:
        yield
        return
    try:
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    except OSError as error:
        raise UserError(f"cannot use {folder}: {error.strerror}") from error
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            if error.errno in (errno.EAGAIN, errno.EACCES):
                raise UserError(taken) from None
        yield
    finally:
        os.close(descriptor)
