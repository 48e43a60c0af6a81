"""A real server in a thread, and requests to it that say exactly what they send."""

from __future__ import annotations

import http.client
import json
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import uvicorn

import metavrf
from loopback import needs_loopback
from metavrf.serve.app import Served, create_app
from metavrf.serve.command import listen
from metavrf.serve.models import Curves
from metavrf.serve.protocol import configured

JSON = {"Content-Type": "application/json"}


@dataclass
class Reply:
    """What came back; ``body`` is read as JSON where it is."""

    status: int
    headers: http.client.HTTPMessage
    body: Any

    @property
    def sentence(self) -> str:
        """The one sentence of an error."""
        assert self.status >= 400
        assert set(self.body) == {"detail"}, self.body
        detail = self.body["detail"]
        assert detail.endswith("."), detail
        assert "\n" not in detail
        assert len(detail) < 300
        return str(detail)


@dataclass
class Server:
    """Where a server listens."""

    port: int

    @property
    def url(self) -> str:
        """Of the page."""
        return f"http://127.0.0.1:{self.port}/"

    def ask(self, method: str, path: str, body: Any = None, headers: Mapping[str, str] | None = None) -> Reply:
        """One request on a connection of its own; a body that is no bytes is sent as JSON."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)
        try:
            data = body if body is None or isinstance(body, bytes) else json.dumps(body).encode()
            connection.request(method, path, data, dict(headers or {}))
            answer = connection.getresponse()
            text = answer.read()
            is_json = answer.headers.get_content_type() == "application/json"
            return Reply(answer.status, answer.headers, json.loads(text) if is_json else text.decode())
        finally:
            connection.close()

    def get(self, path: str, headers: Mapping[str, str] | None = None) -> Reply:
        """GET."""
        return self.ask("GET", path, headers=headers)

    def post(self, path: str, body: Any, headers: Mapping[str, str] | None = None) -> Reply:
        """POST of JSON."""
        return self.ask("POST", path, body, JSON | dict(headers or {}))


@contextmanager
def running(served: Served, hosts: tuple[str, ...] = ()) -> Iterator[Server]:
    """A server, until the block ends."""
    needs_loopback()
    listener = listen("127.0.0.1", 0)
    server = uvicorn.Server(configured(create_app(served, hosts), log_level="critical"))
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]}, daemon=True)
    thread.start()
    end = time.monotonic() + 60
    while not server.started:
        assert time.monotonic() < end, "the server does not start"
        time.sleep(0.01)
    try:
        yield Server(listener.getsockname()[1])
    finally:
        server.should_exit = True
        thread.join(60)
        listener.close()


def mixture_beside(other: Path, folder: Path) -> Curves:
    """A tiny model of 32 kernels, "mixture", trained in the folder, and the other run beside it."""
    path = folder / "mixture"
    metavrf.train(
        "sine", out=path, components=32, iterations=30, validate_every=30, validate_tasks=20, threads=1, quiet=True
    )
    return Curves(path, [other])
