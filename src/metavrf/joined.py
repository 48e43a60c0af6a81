"""Samples of several tensors as one, each seen in a view: nothing is copied but the rows that are looked up."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Union

import torch
from torch import Tensor

View = Callable[[Tensor], Tensor]


class Joined:
    """The rows of several tensors one after the other; a part is shown as its view has it: turned, mirrored, grey.

    It has of a tensor what banks are asked for: rows by their numbers or a slice, a length, a shape, pieces.
    """

    def __init__(self, parts: Sequence[tuple[Samples, View]]) -> None:
        self.parts = list(parts)
        sizes = torch.tensor([len(samples) for samples, _ in self.parts])
        self.ends = sizes.cumsum(0)
        self.starts = self.ends - sizes
        samples, view = self.parts[0]
        first = view(samples[:1])
        self.dtype = first.dtype
        self.shape = torch.Size([int(self.ends[-1]), *first.shape[1:]])

    def __len__(self) -> int:
        return self.shape[0]

    def __getitem__(self, rows: Tensor | int | slice) -> Tensor:
        """Rows by their numbers ``[...]`` from 0 on: a new tensor ``[..., *shape]``."""
        rows = rows if isinstance(rows, Tensor) else torch.arange(len(self))[rows]
        found = torch.empty(*rows.shape, *self.shape[1:], dtype=self.dtype)
        part = torch.bucketize(rows, self.ends, right=True)
        for number, (samples, view) in enumerate(self.parts):
            here = part == number
            if here.any():
                found[here] = view(samples[rows[here] - self.starts[number]])
        return found

    def split(self, size: int) -> Iterator[Tensor]:
        """All rows in pieces of at most ``size``."""
        return (self[rows] for rows in torch.arange(len(self)).split(size))


Samples = Union[Tensor, Joined]  # noqa: UP007 - a name that is defined later
"""A tensor, or several as one."""


def as_it_is(x: Tensor) -> Tensor:
    """The view that changes nothing."""
    return x
