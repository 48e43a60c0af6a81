"""A bank of samples by class, and the batched sampler of classification tasks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from metavrf.episodes import Episodes
from metavrf.errors import UserError
from metavrf.joined import Joined, Samples, as_it_is
from metavrf.memory import check_room

DRAWS_AT_ONCE = 4_000_000  # random numbers the sampler holds at a time


@dataclass(frozen=True, eq=False)
class Bank:
    """Samples of some classes: images as uint8, or their features.

    Attributes:
        inputs: ``[N, channels, height, width]`` uint8 images, or ``[N, d]`` features; a class's samples are neighbours.
            They may be a file that is larger than memory: look rows up, and do not write to them.
        starts: ``[K]`` row of each class's first sample.
        counts: ``[K]`` samples of each class.
        names: the K class names.
        groups: ``[K]`` number of the group (alphabet, superclass, data set) a class belongs to, for tasks and streams
            of tasks within one group; or None.
    """

    inputs: Samples
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

    @classmethod
    def join(cls, banks: Sequence[Bank]) -> Bank:
        """All samples and classes of several banks, whose names must differ; without groups. Nothing is copied."""
        sizes = torch.tensor([len(bank.inputs) for bank in banks])
        return cls(
            Joined([(bank.inputs, as_it_is) for bank in banks]),
            torch.cat([bank.starts + first for bank, first in zip(banks, sizes.cumsum(0) - sizes, strict=True)]),
            torch.cat([bank.counts for bank in banks]),
            [name for bank in banks for name in bank.names],
        )

    def select(self, classes: Sequence[str], where: str) -> Bank:
        """The bank of some classes, by name; ``where`` names their list in the error."""
        number = {name: index for index, name in enumerate(self.names)}
        if missing := [name for name in classes if name not in number]:
            raise UserError(f"{where} names {len(missing)} classes the data does not have, such as {missing[0]!r}")
        rows = torch.tensor([number[name] for name in classes], dtype=torch.long)
        groups = None if self.groups is None else self.groups[rows]
        return replace(self, starts=self.starts[rows], counts=self.counts[rows], names=list(classes), groups=groups)

    def compact(self) -> Bank:
        """The same classes without the samples of others, in memory."""
        rows = torch.cat([torch.arange(s, s + c) for s, c in zip(self.starts, self.counts, strict=True)])
        return replace(self, inputs=self.inputs[rows], starts=self.counts.cumsum(0) - self.counts)

    def group_sizes(self) -> Tensor:
        """How many classes each group has; refused where there are no groups."""
        return torch.unique(self._known_groups(), return_counts=True)[1]

    def sample(
        self,
        tasks: int,
        way: int,
        shot: int,
        query: int,
        generator: torch.Generator,
        *,
        within_group: bool = False,
        stream: int = 1,
    ) -> Episodes:
        """Tasks of ``way`` classes, ``shot`` support and ``query`` query samples per class.

        Classes of a task, and samples of a class, are drawn without replacement, all equally likely. Samples are
        ordered class by class: ``support_y`` is 0…0 1…1 …. ``classes`` are the tasks' classes by their numbers here.

        ``within_group`` draws a task's classes from one group; all groups of ``way`` classes or more are equally
        likely. With ``stream`` above 1, that many consecutive tasks are a stream: they share the group, and each draws
        its classes afresh. The samples of a class are then divided for the whole stream: what supports one of its tasks
        is no query of another, as later tasks may look back at supports.
        """
        self._check(way, shot, query)
        check_room(24 * tasks * way * (shot + query), f"{tasks:,} tasks of {way:,} classes")
        if stream < 1 or tasks % stream:
            raise UserError(f"{tasks=} cannot be divided into streams of {stream}")
        chunk = DRAWS_AT_ONCE // max(len(self.names), way * int(self.counts.max()))
        if stream > 1:
            chunk = min(chunk, stream * DRAWS_AT_ONCE // (len(self.names) * int(self.counts.max())))
        chunk = max(1, chunk // stream) * stream
        parts, drawn = [], []
        for size in [chunk] * (tasks // chunk) + [tasks % chunk] * (tasks % chunk > 0):
            classes = self._draw_classes(size, way, generator, within_group, stream)  # [T, C]
            drawn.append(classes)
            parts.append(self._draw_samples(classes, shot, query, generator, stream))  # [T, C, shot + query]
        support, query_rows = torch.cat(parts).split([shot, query], dim=2)
        target = torch.arange(way)
        return Episodes(
            support.flatten(1),
            target.repeat_interleave(shot).expand(tasks, -1),
            query_rows.flatten(1),
            target.repeat_interleave(query).expand(tasks, -1),
            way,
            self.inputs,
            stream,
            torch.cat(drawn),
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
                f"{shot=} and {query=} need {shot + query} samples per class; too few have {', '.join(few[:5])}{more}: "
                "ask for fewer, or add samples"
            )

    def _draw_classes(
        self, tasks: int, way: int, generator: torch.Generator, within_group: bool, stream: int
    ) -> Tensor:
        key = torch.rand(tasks, len(self.names), generator=generator)
        if within_group or stream > 1:
            known = self._known_groups()
            groups, sizes = torch.unique(known, return_counts=True)
            groups = groups[sizes >= way]
            if not len(groups):
                raise UserError(
                    f"{way=} exceeds the {int(sizes.max())} classes of the largest group (alphabet or superclass)"
                )
            chosen = groups[torch.randint(len(groups), (tasks // stream, 1), generator=generator)]
            key = key.masked_fill(known != chosen.repeat_interleave(stream, dim=0), -1.0)
        return key.topk(way, dim=1).indices

    def _known_groups(self) -> Tensor:
        if self.groups is None:
            raise UserError(
                "these classes have no groups (alphabets) to draw tasks within: "
                "omniglot has alphabets, cifar-fs and fc100 have superclasses"
            )
        return self.groups

    def _draw_samples(self, classes: Tensor, shot: int, query: int, generator: torch.Generator, stream: int) -> Tensor:
        counts = self.counts[classes]  # [T, C]
        most = int(counts.max())
        key = torch.rand(*classes.shape, most, generator=generator)
        key = key.masked_fill(torch.arange(most) >= counts.unsqueeze(-1), -1.0)
        starts = self.starts[classes].unsqueeze(-1)
        if stream == 1:
            return starts + key.topk(shot + query, dim=2).indices
        to_support = self._divided(shot, query, len(classes) // stream, generator)  # [B, K, most]
        streams = torch.arange(len(classes)).unsqueeze(1) // stream
        mine = to_support[streams, classes][..., :most]
        support = key.masked_fill(~mine, -1.0).topk(shot, dim=2).indices
        queries = key.masked_fill(mine, -1.0).topk(query, dim=2).indices
        return starts + torch.cat([support, queries], dim=2)

    def _divided(self, shot: int, query: int, streams: int, generator: torch.Generator) -> Tensor:
        """Which samples of each class support the tasks of each stream: ``[B, K, most]``; the others are queries.

        Half of a class, or fewer where there would not be enough queries.
        """
        counts, most = self.counts, int(self.counts.max())
        key = torch.rand(streams, len(counts), most, generator=generator)
        key = key.masked_fill(torch.arange(most) >= counts.unsqueeze(-1), 2.0)
        rank = key.argsort(2).argsort(2)
        return rank < torch.minimum(counts - query, torch.clamp_min(counts // 2, shot)).unsqueeze(-1)
