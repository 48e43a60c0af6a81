"""Tasks held between requests: bounded in number and life, each under an id that cannot be guessed."""

from __future__ import annotations

import secrets
import time
from collections import OrderedDict
from collections.abc import Callable
from typing import Generic, TypeVar

Held = TypeVar("Held")


class Store(Generic[Held]):
    """At most ``most`` values; the one unused for longest goes first, and any that is unused for ``life`` seconds."""

    def __init__(self, most: int, life: float, clock: Callable[[], float] = time.monotonic) -> None:
        self.most, self.life, self._clock = most, life, clock
        self._held: OrderedDict[str, tuple[float, Held]] = OrderedDict()  # last used last

    def __len__(self) -> int:
        self._drop_old()
        return len(self._held)

    def put(self, value: Held, key: str | None = None) -> str:
        """Hold ``value`` under a new id, or in place of what has the id ``key``."""
        key = secrets.token_urlsafe(24) if key is None else key
        self._held[key] = (self._clock(), value)
        self._held.move_to_end(key)
        self._drop_old()
        return key

    def get(self, key: str) -> Held | None:
        """What is held under the id, or None; it counts as used."""
        self._drop_old()
        if key not in self._held:
            return None
        value = self._held[key][1]
        self._held[key] = (self._clock(), value)
        self._held.move_to_end(key)
        return value

    def _drop_old(self) -> None:
        now = self._clock()
        while self._held:
            used, _ = next(iter(self._held.values()))
            if len(self._held) <= self.most and now - used < self.life:
                return
            self._held.popitem(last=False)
