"""How the server reads requests: as uvicorn does, but a client that does not finish its headers is hung up on."""

from __future__ import annotations

import asyncio
from typing import Any

import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

HEADER_SECONDS = 10.0  # the headers of a request may take to arrive; bodies have a limit of their own


class Impatient(H11Protocol):
    """A connection that is closed where no whole headers arrive in time, after it is made or after an answer."""

    _due: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Wait for the first request."""
        super().connection_made(transport)
        self._watch()

    def data_received(self, data: bytes) -> None:
        """Wait no longer once a request has begun to be answered; a next one has as long from its first byte."""
        super().data_received(data)
        if self.cycle is not None and not self.cycle.response_complete:
            self._forget()
        elif self._due is None:
            self._watch()

    def connection_lost(self, exc: Exception | None) -> None:
        """Forget it."""
        self._forget()
        super().connection_lost(exc)

    def _watch(self) -> None:
        self._due = self.loop.call_later(HEADER_SECONDS, self._hang_up)

    def _forget(self) -> None:
        if self._due is not None:
            self._due.cancel()
            self._due = None

    def _hang_up(self) -> None:
        self._due = None
        if (self.cycle is None or self.cycle.response_complete) and not self.transport.is_closing():
            self.transport.close()


def configured(app: Any, log_level: str = "warning") -> uvicorn.Config:
    """How the application is served."""
    return uvicorn.Config(app, http=Impatient, log_level=log_level, access_log=False, server_header=False, ws="none")
