"""One thread for all arithmetic, so that the server goes on answering while it computes."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import ParamSpec, TypeVar

Parameters = ParamSpec("Parameters")
Result = TypeVar("Result")


class BusyError(Exception):
    """The queue is full."""


class Worker:
    """Runs one piece of work at a time; at most ``most`` wait or run, more are refused at once."""

    def __init__(self, most: int) -> None:
        self.most = most
        self._pool = ThreadPoolExecutor(1, "metavrf-worker")
        self._open = 0

    async def run(
        self, work: Callable[Parameters, Result], *args: Parameters.args, **options: Parameters.kwargs
    ) -> Result:
        """The result of ``work``, done in the thread."""
        if self._open >= self.most:
            raise BusyError
        self._open += 1
        try:
            return await asyncio.wrap_future(self._pool.submit(work, *args, **options))
        finally:
            self._open -= 1
