"""The one record that flows through the package."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace

import torch
import torch.nn.functional as F
from numpy.typing import ArrayLike
from torch import Tensor

from metavrf.errors import UserError
from metavrf.joined import Samples


@dataclass(eq=False)
class Episodes:
    """A batch of T tasks: a labelled support set to learn from and a query set to predict.

    Regression and classification are the same type. With ``way=None`` targets are real vectors
    ``[T, S, p]``; with ``way=C`` they are class numbers ``[T, S]`` in ``0..C-1``.

    Attributes:
        support_x: ``[T, S, ...]`` inputs, or features once an embedding has been applied.
        support_y: ``[T, S, p]`` real targets, or ``[T, S]`` class numbers.
        query_x: ``[T, Q, ...]``.
        query_y: like ``support_y``, or None when the answers are not known.
        way: number of classes C, or None for regression.
        bank: ``[N, ...]``, or None. Where it is given, ``support_x [T, S]`` and ``query_x [T, Q]`` are row numbers in
            it, so that thousands of tasks on the same images hold each image once.
        stream: tasks of a stream: every ``stream`` consecutive tasks are a sequence of related ones, in which a task
            may look back at the *supports* of those before it. 1 for tasks that have nothing to do with each other.
        classes: ``[T, C]`` numbers of the tasks' classes among all training classes, or None. Only training tasks have
            them: they are what a classifier of the training classes learns from.
    """

    support_x: Tensor
    support_y: Tensor
    query_x: Tensor
    query_y: Tensor | None = None
    way: int | None = None
    bank: Samples | None = None
    stream: int = 1
    classes: Tensor | None = None
    _together: Tensor | None = field(default=None, init=False, repr=False)  # what support and query are views of

    def __post_init__(self) -> None:
        x, y = self.support_x, self.support_y
        if x.ndim < (3 if self.bank is None else 2) or x.shape[1] == 0:
            raise UserError(f"support_x must be [tasks, samples, ...] with a sample in it, not {tuple(x.shape)}")
        if self.query_x.shape[:1] != x.shape[:1] or self.query_x.shape[2:] != x.shape[2:]:
            raise UserError(
                f"query_x {tuple(self.query_x.shape)} and support_x {tuple(x.shape)} must agree "
                "in all but the number of samples"
            )
        if self.stream < 1 or len(x) % self.stream:
            raise UserError(f"{len(x)} tasks cannot be divided into streams of {self.stream}")
        target_rank = 3 if self.way is None else 2
        for name, inputs, targets in (("support", x, y), ("query", self.query_x, self.query_y)):
            if targets is not None and (targets.ndim != target_rank or targets.shape[:2] != inputs.shape[:2]):
                expected = "[tasks, samples, outputs]" if self.way is None else "[tasks, samples]"
                raise UserError(
                    f"{name}_y must be {expected} beside {name}_x {tuple(inputs.shape)}, not {tuple(targets.shape)}"
                )

    @classmethod
    def of_task(cls, support_x: ArrayLike, support_y: ArrayLike, query_x: ArrayLike) -> Episodes:
        """One regression task from arrays: inputs and targets of shape ``[S]`` or ``[S, p]``."""

        def batch(name: str, values: ArrayLike) -> Tensor:
            try:
                array = torch.as_tensor(values, dtype=torch.float32)
            except (TypeError, ValueError, RuntimeError) as error:
                raise UserError(f"{name} is not an array of numbers ({error})") from error
            return (array if array.ndim > 1 else array.unsqueeze(-1)).unsqueeze(0) if array.ndim in (1, 2) else array

        return cls(batch("support_x", support_x), batch("support_y", support_y), batch("query_x", query_x))

    @classmethod
    def of_support(cls, support_x: Tensor, support_y: Tensor, way: int | None = None) -> Episodes:
        """One task with nothing to ask yet, from ``support_x [S, ...]`` and ``support_y [S]`` or ``[S, p]``."""
        return cls(support_x.unsqueeze(0), support_y.unsqueeze(0), support_x[:0].unsqueeze(0), None, way)

    def asking(self, query_x: Tensor) -> Episodes:
        """The same tasks with other queries, whose answers are not known."""
        return replace(self, query_x=query_x, query_y=None)

    def leaving_one_out(self, rows: Tensor | None = None) -> Episodes:
        """Of one task on features, a task for each support sample in ``rows``: told by all the others.

        The features are their bank, so that each is held once.
        """
        samples = self.support_x.shape[1]
        if self.tasks != 1 or samples < 2:
            raise UserError(f"leaving one out needs one task of two samples or more, not {self.tasks} of {samples}")
        rows = torch.arange(samples) if rows is None else rows
        others = torch.arange(samples - 1).repeat(len(rows), 1)
        others += others >= rows.unsqueeze(1)
        y = self.support_y[0]
        return Episodes(others, y[others], rows.unsqueeze(1), y[rows].unsqueeze(1), self.way, self.support_x[0])

    @property
    def tasks(self) -> int:
        """Number of tasks T."""
        return self.support_x.shape[0]

    @property
    def shot(self) -> float:
        """Support samples per class, or per task for regression; a fraction where shots are unequal."""
        return self.support_x.shape[1] / (self.way or 1)

    @property
    def support_targets(self) -> Tensor:
        """``[T, S, p]``: the real targets, or one-hot class vectors, that ridge regression fits."""
        if self.way is None:
            return self.support_y
        return F.one_hot(self.support_y, self.way).to(torch.get_default_dtype())

    def prototypes(self, z: Tensor) -> Tensor:
        """Instance pooling of support features ``z [T, S, d]``: ``[T, C, d]`` class means.

        In regression each sample stands for itself: ``[T, S, d]``.
        """
        if self.way is None:
            return z
        members = self.support_targets.to(z).mT  # [T, C, S]
        return members @ z / members.sum(-1, keepdim=True).clamp_min(1)

    def samples(self) -> Tensor:
        """Inputs of support and query together, ``[T, S + Q, ...]``."""
        return torch.cat([self.support_x, self.query_x], dim=1) if self._together is None else self._together

    def embedded(self, embedding: Callable[[Tensor], Tensor]) -> Episodes:
        """The same tasks with inputs replaced by their features; support and query share the embedding."""
        x = self.samples()
        z = embedding(x if self.bank is None else self.bank[x])
        support, query = z.split([self.support_x.shape[1], self.query_x.shape[1]], dim=1)
        found = replace(self, support_x=support, query_x=query, bank=None)
        found._together = z
        return found

    def looked_up(self) -> Episodes:
        """The same tasks with the bank's rows in place of their numbers."""
        return self if self.bank is None else self.embedded(lambda x: x)

    def to(self, device: torch.device) -> Episodes:
        """The same tasks on a device. A bank stays where it is: of it the samples that the tasks use are moved."""
        if self.support_y.device == device:
            return self
        tasks = self.looked_up()
        query_y = None if tasks.query_y is None else tasks.query_y.to(device)
        classes = None if tasks.classes is None else tasks.classes.to(device)
        support_x, support_y, query_x = (t.to(device) for t in (tasks.support_x, tasks.support_y, tasks.query_x))
        return replace(
            tasks, support_x=support_x, support_y=support_y, query_x=query_x, query_y=query_y, classes=classes
        )

    def __getitem__(self, tasks: slice | Tensor) -> Episodes:
        """Some of the tasks, by a slice or by their numbers."""
        query_y = None if self.query_y is None else self.query_y[tasks]
        classes = None if self.classes is None else self.classes[tasks]
        support_x, support_y, query_x = self.support_x[tasks], self.support_y[tasks], self.query_x[tasks]
        return replace(
            self, support_x=support_x, support_y=support_y, query_x=query_x, query_y=query_y, classes=classes
        )

    def batches(self, size: int) -> list[Episodes]:
        """The same tasks in order, at most ``size`` at a time, but never less than a stream."""
        size = max(1, size // self.stream) * self.stream
        return [self[start : start + size] for start in range(0, self.tasks, size)]

    def share(self, rank: int, ranks: int) -> Episodes:
        """What one of several processes solves: every ``ranks``-th task, or whole stream, from number ``rank`` on."""
        if ranks == 1:
            return self
        if self.stream == 1:
            return self[rank::ranks]
        return self[torch.arange(self.tasks).view(-1, self.stream)[rank::ranks].flatten()]

    def check_finite(self) -> None:
        """Refuse NaN and infinity, naming where they stand."""
        for name in ("support_x", "support_y", "query_x", "query_y"):
            values = getattr(self, name)
            if values is not None and values.is_floating_point() and not torch.isfinite(values).all():
                bad = (~torch.isfinite(values)).nonzero()[0].tolist()
                raise UserError(f"{name} holds NaN or infinity, first at index {bad}; remove or replace such values")
