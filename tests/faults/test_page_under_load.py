"""The page under clients that mean no good: bombs, half-sent requests, one that wants all turns."""

from __future__ import annotations

import asyncio
import base64
import socket
import struct
import threading
import time
import zlib
from collections.abc import Iterator

import pytest

pytest.importorskip("fastapi", reason="the extra 'serve' is not installed")
pytest.importorskip("uvicorn", reason="the extra 'serve' is not installed")

from metavrf.serve import app as application
from metavrf.serve import protocol
from metavrf.serve.app import Served
from metavrf.serve.command import is_local
from metavrf.serve.models import Curves, Drawings
from metavrf.serve.worker import BusyError, Worker
from servers import Server, running


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with running(Served(Drawings("omniglot"), Curves("sine"))) as started:
        yield started


def bomb(side: int) -> str:
    """A small PNG of many white pixels."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    rows = zlib.compress((b"\0" + b"\xff" * ((side + 7) // 8)) * side, 9)
    head = chunk(b"IHDR", struct.pack(">IIBBBBB", side, side, 1, 0, 0, 0, 0))
    return base64.b64encode(b"\x89PNG\r\n\x1a\n" + head + chunk(b"IDAT", rows) + chunk(b"IEND", b"")).decode()


def test_many_small_files_of_many_pixels_are_refused_before_one_is_decoded(server: Server) -> None:
    pictures = [bomb(1999)] * 100
    began = time.monotonic()
    classes = [{"name": "a", "pictures": pictures}, {"name": "b", "pictures": pictures}]
    reply = server.post("/api/fit", {"kind": "drawing", "classes": classes})
    assert reply.status == 422
    assert "more than 20,000,000 pixels in all" in reply.sentence
    assert time.monotonic() - began < 3  # decoding them takes twelve seconds


def test_headers_that_never_end_are_hung_up_on(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(protocol, "HEADER_SECONDS", 0.3)
    for sent in (b"", b"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\nX-Slow: "):
        with socket.create_connection(("127.0.0.1", server.port), timeout=30) as connection:
            connection.sendall(sent)
            assert connection.recv(1) == b""
    with socket.create_connection(("127.0.0.1", server.port), timeout=30) as connection:  # after a whole one
        connection.sendall(b"GET /api/models HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")
        assert connection.recv(12) == b"HTTP/1.1 200"
        connection.sendall(b"GET / HTTP/1.1\r\nHost: ")
        while connection.recv(65536):
            pass


@pytest.mark.parametrize("host", ["evil.com@127.0.0.1", "evil.com:80@127.0.0.1", "127.0.0.1/x", "127.0.0.1#", "[::1"])
def test_a_host_with_more_than_a_name_and_a_port_is_refused(server: Server, host: str) -> None:
    assert server.get("/", {"Host": host}).status in (400, 403)


def test_a_body_that_is_no_text_is_answered_as_documented(server: Server) -> None:
    reply = server.ask("POST", "/api/fit", b"\xff\xfe{", {"Content-Type": "application/json"})
    known = server.get("/openapi.json").body["paths"]["/api/fit"]["post"]["responses"]
    assert str(reply.status) in known
    assert reply.sentence


def test_a_page_for_everybody_is_told_from_a_local_one() -> None:
    assert [is_local(host) for host in ("127.0.0.1", "::1", "localhost", "0.0.0.0", "::", "192.168.0.2")] == [
        True,
        True,
        True,
        False,
        False,
        False,
    ]


def test_one_client_with_much_to_do_does_not_hold_up_another() -> None:
    done: list[str] = []
    go = threading.Event()

    def work(name: str) -> None:
        go.wait(30)
        done.append(name)

    async def clients() -> None:
        worker = Worker(most=20, each=10)
        asked = [asyncio.create_task(worker.run("greedy", work, f"greedy {number}")) for number in range(10)]
        await asyncio.sleep(0)
        with pytest.raises(BusyError):
            await worker.run("greedy", work, "one too many")
        asked.append(asyncio.create_task(worker.run("other", work, "other")))
        await asyncio.sleep(0)
        asked[3].cancel()
        go.set()
        await asyncio.gather(*asked, return_exceptions=True)
        assert await worker.run("greedy", len, "free again") == 10

    asyncio.run(clients())
    assert done[:3] == ["greedy 0", "greedy 1", "other"]
    assert len(done) == 10
    assert application.MOST_WAITING < application.MOST_OF_ALL
