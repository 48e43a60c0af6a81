"""Names that users may give, and what they stand for; more can be added by plugins."""

from __future__ import annotations

import difflib
from collections.abc import Iterator
from typing import Generic, TypeVar

from metavrf.errors import UserError

T = TypeVar("T")


class Registry(Generic[T]):
    """Entries of one kind by name. An unknown name is an error that lists what there is."""

    def __init__(self, kind: str) -> None:
        self.kind = kind
        self._entries: dict[str, T] = {}
        self._sealed: frozenset[str] = frozenset()

    def add(self, name: str, entry: T) -> T:
        """Make ``entry`` known by ``name``. The same class may be added again, as when a file is run twice."""
        known = self._entries.get(name)
        if name in self._sealed or (known is not None and _origin(known) != _origin(entry)):
            article = "an" if self.kind[0] in "aeiou" else "a"
            raise UserError(f"there is {article} {self.kind} {name!r} already: choose another name")
        self._entries[name] = entry
        return entry

    def seal(self) -> None:
        """Keep what is there now from being replaced: the package's own entries."""
        self._sealed = frozenset(self._entries)

    def remove(self, name: str) -> None:
        """Forget an entry that is not the package's own."""
        if name not in self._sealed:
            self._entries.pop(name, None)

    def __getitem__(self, name: str) -> T:
        if name not in self._entries:
            raise UserError(unknown(self.kind, name, list(self._entries)))
        return self._entries[name]

    def get(self, name: str) -> T | None:
        """The entry of that name, or None."""
        return self._entries.get(name)

    def __contains__(self, name: object) -> bool:
        return name in self._entries

    def __iter__(self) -> Iterator[str]:
        return iter(self._entries)

    def __len__(self) -> int:
        return len(self._entries)


def unknown(kind: str, name: str, names: list[str], advice: str = "or name the file that adds it with --plugin") -> str:
    """The sentence about a name that is not known, with the likeliest of those that are."""
    lower = {known.lower(): known for known in names}
    close = difflib.get_close_matches(name.lower(), lower, n=1)
    meant = f" (did you mean {lower[close[0]]}?)" if close else ""
    return f"there is no {kind} {name!r}{meant}: choose from {', '.join(names)}" + (f", {advice}" if advice else "")


def _origin(entry: object) -> tuple[object, object]:
    """Where a class or function was written; of a record that holds a function, where that was."""
    entry = getattr(entry, "make", entry)
    return getattr(entry, "__module__", None), getattr(entry, "__qualname__", None)
