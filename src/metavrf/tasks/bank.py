"""A bank of samples by class, and the batched sampler of classification tasks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from metavrf.episodes import Episodes
from metavrf.errors import UserError

DRAWS_AT_ONCE = 4_000_000  # random numbers the sampler holds at a time


@dataclass(frozen=True, eq=False)
class Bank:
    """Samples of some classes: images as uint8, or their features.

    Attributes:
        inputs: ``[N, channels, height, width]`` uint8 images, or ``[N, d]`` features; a class's samples are neighbours.
        starts: ``[K]`` row of each class's first sample.
        counts: ``[K]`` samples of each class.
        names: the K class names.
        groups: ``[K]`` number of the group (alphabet) a class belongs to, for tasks within one group; or None.
    """

    inputs: Tensor
    starts: Tensor
    counts: Tensor
    names: Sequence[str]
    groups: Tensor | None = None

    @classmethod
    def of_labels(cls, inputs: Tensor, labels: Tensor, names: Sequence[str]) -> Bank:
        """Sort samples by class; a class without samples stays, with a count of zero."""
        order = torch.argsort(labels, stable=True)
        counts = torch.bincount(labels, minlength=len(names))
        if not torch.equal(order, torch.arange(len(order))):
            inputs = inputs[order]
        return cls(inputs, counts.cumsum(0) - counts, counts, list(names))

    def select(self, classes: Sequence[str], where: str) -> Bank:
        """The bank of some classes, by name; ``where`` names their list in the error."""
        number = {name: index for index, name in enumerate(self.names)}
        if missing := [name for name in classes if name not in number]:
            raise UserError(f"{where} names {len(missing)} classes the data does not have, such as {missing[0]!r}")
        rows = torch.tensor([number[name] for name in classes], dtype=torch.long)
        groups = None if self.groups is None else self.groups[rows]
        return replace(self, starts=self.starts[rows], counts=self.counts[rows], names=list(classes), groups=groups)

    def compact(self) -> Bank:
        """The same classes without the samples of others."""
        rows = torch.cat([torch.arange(s, s + c) for s, c in zip(self.starts, self.counts, strict=True)])
        return replace(self, inputs=self.inputs[rows], starts=self.counts.cumsum(0) - self.counts)

    def sample(
        self,
        tasks: int,
        way: int,
        shot: int,
        query: int,
        generator: torch.Generator,
        *,
        within_group: bool = False,
    ) -> Episodes:
        """Tasks of ``way`` classes, ``shot`` support and ``query`` query samples a class.

        Classes of a task, and samples of a class, are drawn without replacement, all equally likely. Samples are
        ordered class by class: ``support_y`` is 0…0 1…1 ….
        """
        self._check(way, shot, query)
        chunk = max(1, DRAWS_AT_ONCE // max(len(self.names), way * int(self.counts.max())))
        parts = []
        for size in [chunk] * (tasks // chunk) + [tasks % chunk] * (tasks % chunk > 0):
            classes = self._draw_classes(size, way, generator, within_group)  # [T, C]
            parts.append(self._draw_samples(classes, shot + query, generator))  # [T, C, shot + query]
        support, query_rows = torch.cat(parts).split([shot, query], dim=2)
        target = torch.arange(way)
        return Episodes(
            support.flatten(1),
            target.repeat_interleave(shot).expand(tasks, -1),
            query_rows.flatten(1),
            target.repeat_interleave(query).expand(tasks, -1),
            way,
            self.inputs,
        )

    def _check(self, way: int, shot: int, query: int) -> None:
        """Refuse tasks that cannot be drawn."""
        if min(way - 1, shot, query) < 1:
            raise UserError(
                f"{way=}, {shot=}, {query=}: a task needs two classes, and a support and a query sample each"
            )
        if way > len(self.names):
            raise UserError(f"{way=} exceeds the {len(self.names)} classes at hand")
        enough = self.counts >= shot + query
        if not enough.all():
            few = [
                f"{name!r} ({count})" for name, count, ok in zip(self.names, self.counts, enough, strict=True) if not ok
            ]
            more = f" and {len(few) - 5} more" if len(few) > 5 else ""
            raise UserError(
                f"{shot=} and {query=} need {shot + query} samples a class; too few have {', '.join(few[:5])}{more}: "
                "ask for fewer, or add samples"
            )

    def _draw_classes(self, tasks: int, way: int, generator: torch.Generator, within_group: bool) -> Tensor:
        key = torch.rand(tasks, len(self.names), generator=generator)
        if within_group:
            if self.groups is None:
                raise UserError("these classes have no groups (alphabets) to draw tasks within: only omniglot has")
            groups, sizes = torch.unique(self.groups, return_counts=True)
            groups = groups[sizes >= way]
            if not len(groups):
                raise UserError(f"{way=} exceeds the {int(sizes.max())} classes of the largest group (alphabet)")
            chosen = groups[torch.randint(len(groups), (tasks, 1), generator=generator)]
            key = key.masked_fill(self.groups != chosen, -1.0)
        return key.topk(way, dim=1).indices

    def _draw_samples(self, classes: Tensor, samples: int, generator: torch.Generator) -> Tensor:
        counts = self.counts[classes]  # [T, C]
        most = int(counts.max())
        key = torch.rand(*classes.shape, most, generator=generator)
        key = key.masked_fill(torch.arange(most) >= counts.unsqueeze(-1), -1.0)
        return self.starts[classes].unsqueeze(-1) + key.topk(samples, dim=2).indices
