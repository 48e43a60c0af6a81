"""One thread for all arithmetic, so that the server goes on answering while it computes.

The clients that wait take turns: one who sends much waits for the others, and they do not wait for all of it.
"""

from __future__ import annotations

import asyncio
from collections import Counter, OrderedDict, deque
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import ParamSpec, TypeVar

Parameters = ParamSpec("Parameters")
Result = TypeVar("Result")


class BusyError(Exception):
    """The queue is full."""


class Worker:
    """Runs one piece of work at a time; at most ``most`` wait or run, ``each`` of them of one client."""

    def __init__(self, most: int, each: int) -> None:
        self.most, self.each = most, each
        self._pool = ThreadPoolExecutor(1, "metavrf-worker")
        self._waiting: OrderedDict[str, deque[asyncio.Future[None]]] = OrderedDict()  # whose turn is next comes first
        self._open: Counter[str] = Counter()
        self._busy = False

    async def run(
        self, client: str, work: Callable[Parameters, Result], *args: Parameters.args, **options: Parameters.kwargs
    ) -> Result:
        """The result of ``work``, done in the thread when it is the client's turn; too much is refused at once."""
        if self._open.total() >= self.most or self._open[client] >= self.each:
            raise BusyError
        self._open[client] += 1
        try:
            await self._turn(client)
            try:
                return await asyncio.shield(asyncio.wrap_future(self._pool.submit(work, *args, **options)))
            finally:
                self._next()
        finally:
            self._open[client] -= 1
            self._open += Counter()  # forgets those who are done

    async def _turn(self, client: str) -> None:
        """Wait until the thread is free for this client."""
        if not self._busy:
            self._busy = True
            return
        turn = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(client, deque()).append(turn)
        try:
            await turn
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled():
                self._next()
            raise

    def _next(self) -> None:
        """Give the thread to the client who has waited longest, and put it behind the others."""
        while self._waiting:
            client, turns = self._waiting.popitem(last=False)
            turn = turns.popleft()
            if turns:
                self._waiting[client] = turns
            if not turn.done():
                turn.set_result(None)
                return
        self._busy = False
