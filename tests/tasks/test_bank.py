from __future__ import annotations

from dataclasses import replace
from itertools import permutations

import numpy as np
import pytest
import torch
from scipy.stats import chisquare
from torch import Tensor

from glyphs import glyph_bank, name_of, refused
from metavrf.episodes import Episodes
from metavrf.tasks import bank as module
from metavrf.tasks.bank import Bank

COUNTS = [5, 9, 6, 12, 5, 7]


def numbered(counts: list[int], groups: list[int] | None = None) -> Bank:
    """Each sample is its class number and its number within the class; the last class's samples come first."""
    inputs = [torch.tensor([[number, k] for k in range(count)]) for number, count in enumerate(counts)]
    starts = torch.tensor(counts[::-1]).cumsum(0).flip(0) - torch.tensor(counts)
    numbers = None if groups is None else torch.tensor(groups)
    return Bank(torch.cat(inputs[::-1]), starts, torch.tensor(counts), list("abcdefghij")[: len(counts)], numbers)


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def checked(episodes: Episodes, way: int, shot: int, query: int) -> tuple[Tensor, Tensor]:
    """Labels are classes and nothing is drawn twice; gives classes ``[T, C]`` and samples ``[T, C, shot + query]``."""
    assert episodes.query_y is not None
    for labels, size in ((episodes.support_y, shot), (episodes.query_y, query)):
        assert torch.equal(labels, torch.arange(way).repeat_interleave(size).expand(episodes.tasks, -1))
    drawn = torch.cat([x.view(episodes.tasks, way, -1) for x in (episodes.support_x, episodes.query_x)], dim=2)
    assert drawn.shape == (episodes.tasks, way, shot + query)
    assert all(len(set(rows)) == way * (shot + query) for rows in drawn.flatten(1).tolist())
    assert episodes.bank is not None
    classes, samples = episodes.bank[drawn].unbind(-1)
    assert torch.equal(classes, classes[:, :, :1].expand_as(classes))
    assert all(len(set(task)) == way for task in classes[:, :, 0].tolist())
    return classes[:, :, 0], samples


@pytest.mark.parametrize(("counts", "way", "shot", "query"), [(COUNTS, 4, 2, 3), ([4, 4, 4], 3, 1, 3)])
def test_a_task_has_distinct_classes_and_distinct_samples_of_them(
    counts: list[int], way: int, shot: int, query: int
) -> None:
    classes, _ = checked(numbered(counts).sample(300, way, shot, query, seeded()), way, shot, query)
    assert classes.unique().tolist() == list(range(len(counts)))


def test_every_order_of_classes_is_equally_likely() -> None:
    classes, _ = checked(numbered(COUNTS).sample(6000, 3, 1, 1, seeded()), 3, 1, 1)
    seen = dict.fromkeys(permutations(range(6), 3), 0)
    for first, second, third in classes.tolist():
        seen[first, second, third] += 1
    assert chisquare(list(seen.values())).pvalue > 0.01


def test_every_pair_of_samples_of_a_class_is_equally_likely() -> None:
    counts = [3, 4, 6]
    classes, samples = checked(numbered(counts).sample(6000, 2, 1, 1, seeded()), 2, 1, 1)
    for number, count in enumerate(counts):
        support, query = samples[classes == number].unbind(1)
        seen = np.bincount(support * count + query, minlength=count**2).reshape(count, count)
        assert np.trace(seen) == 0
        assert chisquare(seen[~np.eye(count, dtype=bool)]).pvalue > 0.01


def test_a_seed_gives_the_same_tasks_whatever_else_is_random() -> None:
    first = numbered(COUNTS).sample(50, 3, 2, 2, seeded())
    torch.manual_seed(7)
    state = torch.get_rng_state()
    again, other = (numbered(COUNTS).sample(50, 3, 2, 2, seeded(seed)) for seed in (0, 1))
    assert torch.equal(torch.get_rng_state(), state)
    assert torch.equal(first.support_x, again.support_x)
    assert torch.equal(first.query_x, again.query_x)
    assert not torch.equal(first.support_x, other.support_x)


@pytest.mark.parametrize("draws", [1, 40, 100, 10_000])
def test_drawing_in_pieces_gives_as_many_and_as_good_tasks(draws: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "DRAWS_AT_ONCE", draws)
    episodes = numbered(COUNTS).sample(23, 3, 2, 2, seeded())
    checked(episodes, 3, 2, 2)
    assert len(episodes.support_x.unique(dim=0)) == 23


def test_tasks_within_a_group_take_all_groups_large_enough_equally() -> None:
    groups = [0, 1, 0, 2, 2, 2, 0, 0, 1, 2]
    classes, _ = checked(numbered([4] * 10, groups).sample(3000, 3, 1, 2, seeded(), within_group=True), 3, 1, 2)
    chosen = torch.tensor(groups)[classes]
    assert torch.equal(chosen, chosen[:, :1].expand(-1, 3))
    assert set(chosen.unique().tolist()) == {0, 2}
    assert chisquare(torch.bincount(classes[:, 0])[torch.tensor(groups) != 1]).pvalue > 0.01


GROUPS = [0, 1, 0, 2, 2, 2, 0, 0, 1, 2]


@pytest.mark.parametrize("draws", [1, 70, 100_000])
def test_tasks_of_a_stream_share_a_group_and_draw_their_classes_afresh(
    draws: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "DRAWS_AT_ONCE", draws)  # a stream stays whole where tasks are drawn in pieces
    episodes = numbered([4] * 10, GROUPS).sample(1200, 3, 1, 2, seeded(), stream=4)
    classes, _ = checked(episodes, 3, 1, 2)
    assert episodes.stream == 4
    chosen = torch.tensor(GROUPS)[classes].view(300, 12)
    assert torch.equal(chosen, chosen[:, :1].expand(-1, 12))
    assert chisquare(torch.bincount(chosen[:, 0], minlength=3)[[0, 2]]).pvalue > 0.01  # group 1 has two classes only
    seen = np.zeros((10, 10))
    np.add.at(seen, tuple(classes.view(300, 4, 3)[:, 1:3, 0].T.numpy()), 1)
    for group in (0, 2):
        own = torch.tensor(GROUPS) == group
        assert chisquare(seen[own][:, own].flatten()).pvalue > 0.01  # a task says nothing of the next one's classes


@pytest.mark.parametrize("within_group", [False, True])
def test_a_stream_of_one_draws_what_was_drawn_without(within_group: bool) -> None:
    bank, generators = numbered([4] * 10, GROUPS), [seeded(), seeded()]
    plain = bank.sample(40, 3, 1, 2, generators[0], within_group=within_group)
    stream = bank.sample(40, 3, 1, 2, generators[1], within_group=within_group, stream=1)
    assert torch.equal(plain.support_x, stream.support_x)
    assert torch.equal(plain.query_x, stream.query_x)
    assert torch.equal(generators[0].get_state(), generators[1].get_state())
    assert plain.stream == 1


@pytest.mark.parametrize(
    ("groups", "tasks", "way", "named"),
    [
        (None, 4, 2, ("no groups", "omniglot", "cifar-fs", "fc100")),
        ([0, 0, 0, 1, 1, 2], 4, 4, ("way=4", "3 classes of the largest group")),
        ([0, 0, 0, 1, 1, 2], 5, 2, ("tasks=5", "streams of 2")),
    ],
)
def test_a_stream_that_cannot_be_drawn_is_refused(
    groups: list[int] | None, tasks: int, way: int, named: tuple[str, ...]
) -> None:
    with refused(*named):
        numbered(COUNTS, groups).sample(tasks, way, 1, 1, seeded(), stream=2)


@pytest.mark.parametrize(
    ("bank", "shape", "named"),
    [
        (numbered(COUNTS), (7, 1, 1), ("way=7", "6 classes")),
        (numbered(COUNTS), (2, 2, 5), ("shot=2", "query=5", "7 samples", "'a' (5), 'c' (6), 'e' (5)")),
        (numbered([1] * 8), (2, 1, 1), ("'d' (1), 'e' (1) and 3 more",)),
        (numbered(COUNTS), (1, 1, 1), ("way=1",)),
        (numbered(COUNTS), (2, 0, 1), ("shot=0",)),
        (numbered(COUNTS), (2, 1, 0), ("query=0",)),
        (numbered(COUNTS), (2, 1, 1), ("no groups",)),
        (numbered(COUNTS, [0, 0, 0, 1, 1, 2]), (4, 1, 1), ("way=4", "3 classes of the largest group")),
    ],
)
def test_a_task_that_cannot_be_drawn_is_refused(
    bank: Bank, shape: tuple[int, int, int], named: tuple[str, ...]
) -> None:
    with refused(*named):
        bank.sample(2, *shape, seeded(), within_group=True)


def test_samples_are_sorted_by_label_and_keep_their_order() -> None:
    bank = Bank.of_labels(torch.arange(6), torch.tensor([2, 0, 2, 3, 0, 2]), ["w", "x", "y", "z"])
    assert bank.inputs[:].tolist() == [1, 4, 0, 2, 5, 3]
    assert (bank.starts.tolist(), bank.counts.tolist()) == ([0, 2, 2, 5], [2, 0, 3, 1])


def test_selected_classes_keep_their_samples_and_groups_in_the_order_asked_for() -> None:
    bank = numbered(COUNTS, [5, 4, 3, 2, 1, 0])
    chosen = bank.select(["e", "b", "f"], "the list")
    assert chosen.names == ["e", "b", "f"]
    assert chosen.inputs is bank.inputs
    assert chosen.groups is not None
    assert (chosen.counts.tolist(), chosen.groups.tolist()) == ([5, 9, 7], [1, 4, 0])
    assert checked(chosen.sample(100, 2, 2, 3, seeded()), 2, 2, 3)[0].unique().tolist() == [1, 4, 5]
    with refused("the vinyals split", "2 classes", "'y'"):
        bank.select(["a", "y", "z"], "the vinyals split")


def test_banks_are_joined_with_all_their_samples() -> None:
    first, second = numbered([3, 5]), numbered([4, 2, 6])
    joined = Bank.join([first, replace(second, names=["x", "y", "z"])])
    assert joined.names == ["a", "b", "x", "y", "z"]
    own = [bank.inputs[s : s + c] for bank in (first, second) for s, c in zip(bank.starts, bank.counts, strict=True)]
    for start, count, rows in zip(joined.starts, joined.counts, own, strict=True):
        assert torch.equal(joined.inputs[start : start + count], rows)


def test_a_compact_bank_has_the_same_classes_and_no_other_samples() -> None:
    bank = glyph_bank(classes=6, drawers=4)
    chosen = bank.select([name_of(4), name_of(1)], "a list")
    compact = chosen.compact()
    assert len(compact.inputs) == 8
    assert compact.names == [name_of(4), name_of(1)]
    for number in range(2):
        mine, theirs = (b.inputs[b.starts[number] :][: b.counts[number]] for b in (compact, chosen))
        assert torch.equal(mine, theirs)


@pytest.mark.parametrize(("shot", "query"), [(1, 4), (2, 3), (3, 1)])
def test_what_supports_one_task_of_a_stream_is_no_query_of_another(shot: int, query: int) -> None:
    labels = torch.arange(6).repeat_interleave(6)
    bank = replace(Bank.of_labels(torch.arange(36).unsqueeze(1), labels, list("abcdef")), groups=torch.zeros(6).long())
    episodes = bank.sample(60, 3, shot, query, torch.Generator().manual_seed(0), stream=10)
    for start in range(0, 60, 10):
        supports, queries = (
            set(rows[start : start + 10].flatten().tolist()) for rows in (episodes.support_x, episodes.query_x)
        )
        assert not supports & queries
        assert len(supports) > 3 * shot  # tasks of a stream do not all have the same
