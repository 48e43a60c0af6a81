"""What stands before the application: who may ask, how much may be sent, and what browsers are told.

A server on the loopback address is within reach of every page the user has open. So the Host header must be an
address, ``localhost`` or a name the user allowed (a page that rebinds its own name to 127.0.0.1 is refused), and what
changes or computes something must come from this very page or from no page at all.
"""

from __future__ import annotations

import asyncio
import ipaddress
import re
from collections.abc import AsyncIterator, Iterable
from contextlib import suppress
from urllib.parse import urlsplit

from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

MOST_BYTES = 1_000_000  # of a request's body
MOST_READERS = 64  # bodies read at a time
READ_SECONDS = 10.0  # a body may take to arrive
DRAIN_SECONDS = 2.0  # for which more than that is thrown away, so that the client comes to read the answer

_HOST = re.compile(r"(\[(?P<six>[0-9a-f:.]+)\]|(?P<name>[a-z0-9._-]+))(:[0-9]{1,5})?")
POLICY = "; ".join(
    (
        "default-src 'none'",
        "script-src 'self'",
        "style-src 'self'",
        "img-src 'self'",
        "connect-src 'self'",
        "base-uri 'none'",
        "form-action 'none'",
        "frame-ancestors 'none'",
    )
)
HEADERS = {
    "content-security-policy": POLICY,
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
}


class RefusedError(Exception):
    """A request that is answered with a status and a sentence."""

    def __init__(self, status: int, sentence: str) -> None:
        super().__init__(sentence)
        self.status = status


class Guard:
    """ASGI middleware: refuses foreign, oversized and slow requests; adds headers to every answer."""

    def __init__(self, app: ASGIApp, hosts: Iterable[str] = (), posts: Iterable[str] = ()) -> None:
        """``hosts`` are names besides ``localhost`` and addresses under which it may be asked, ``posts`` take JSON."""
        self.app, self.posts = app, frozenset(posts)
        self.hosts = {"localhost", *(host.lower() for host in hosts)}
        self._readers = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Check, read the body, pass on."""
        if scope["type"] != "http":
            if scope["type"] == "lifespan":
                await self.app(scope, receive, send)
            return  # there are no web sockets here: the server answers 403

        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                headers.update(HEADERS)
                headers.setdefault("cache-control", "no-store" if scope["path"].startswith("/api/") else "no-cache")
            await send(message)

        headers = Headers(scope=scope)
        try:
            self._check_sender(headers, scope["method"])
            if scope["method"] != "POST" or scope["path"] not in self.posts:  # what is sent is not read
                await self.app(scope, receive, send_with_headers)
                return
            body = await self._read(headers, receive)
        except RefusedError as refused:
            answer = JSONResponse({"detail": str(refused)}, refused.status, {"connection": "close"})
            await answer(scope, receive, send_with_headers)
            return
        await self.app(scope, _replay(body, receive), send_with_headers)

    def _check_sender(self, headers: Headers, method: str) -> None:
        host = headers.get("host", "")
        if not self._known(host):
            raise RefusedError(
                403, "This server does not answer under that name; name it with --allow-host if it should."
            )
        if method in ("GET", "HEAD"):
            return
        origin = headers.get("origin")
        foreign = origin is not None and _place(origin) != host.lower()
        if foreign or headers.get("sec-fetch-site", "none") not in ("same-origin", "none"):
            raise RefusedError(403, "Requests from other pages are not answered.")

    def _known(self, host: str) -> bool:
        found = _HOST.fullmatch(host.lower())  # nothing else: a user name before the host would pass for it
        if found is None:
            return False
        name = found["six"] or found["name"]
        try:
            return name in self.hosts or bool(ipaddress.ip_address(name))
        except ValueError:
            return False

    async def _read(self, headers: Headers, receive: Receive) -> bytes:
        """The whole body, of which never more than is allowed is held."""
        if headers.get("content-type", "").split(";")[0].strip().lower() != "application/json":
            raise RefusedError(415, "Send JSON, with the header Content-Type: application/json.")
        declared = headers.get("content-length", "0")
        waits = "expect" in headers  # for a word from us before it sends
        if waits and declared.isdecimal() and int(declared) > MOST_BYTES:
            raise RefusedError(413, _TOO_LARGE)
        if self._readers >= MOST_READERS:
            raise RefusedError(503, "Too many requests at once: try again in a second.")
        self._readers += 1
        body, parts = bytearray(), _parts(receive)
        try:
            async with asyncio.timeout(READ_SECONDS):
                async for part in parts:
                    body += part
                    if len(body) > MOST_BYTES:
                        break
                else:
                    return bytes(body)
        except TimeoutError:
            raise RefusedError(408, f"The request took longer than {READ_SECONDS:.0f} seconds to arrive.") from None
        finally:
            self._readers -= 1
        body.clear()
        with suppress(TimeoutError):
            async with asyncio.timeout(DRAIN_SECONDS):
                async for _ in parts:
                    pass
        raise RefusedError(413, _TOO_LARGE)


_TOO_LARGE = f"The request is larger than {MOST_BYTES:,} bytes: send fewer or smaller pictures."


async def _parts(receive: Receive) -> AsyncIterator[bytes]:
    """The parts of a body as they arrive."""
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            return
        yield message.get("body", b"")
        if not message.get("more_body", False):
            return


def _place(origin: str) -> str:
    """Host and port of an origin; the empty string of one that is none."""
    try:
        return urlsplit(origin).netloc.lower()
    except ValueError:
        return ""


def _replay(body: bytes, receive: Receive) -> Receive:
    """A channel that gives the body at once, then whatever comes."""
    given = False

    async def replay() -> Message:
        nonlocal given
        if given:
            return await receive()
        given = True
        return {"type": "http.request", "body": body, "more_body": False}

    return replay
