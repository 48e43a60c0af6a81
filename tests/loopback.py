"""Whether this machine can talk to itself: a network namespace of its own may have no interface at all."""

from __future__ import annotations

import socket

import pytest


def needs_loopback() -> None:
    """Skip where nothing can be reached at 127.0.0.1."""
    with socket.socket() as listener:
        try:
            listener.bind(("127.0.0.1", 0))
            listener.listen()
            socket.create_connection(listener.getsockname(), timeout=5).close()
        except OSError:
            pytest.skip("there is no loopback interface here")
