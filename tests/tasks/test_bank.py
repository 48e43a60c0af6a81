from __future__ import annotations

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
    assert bank.inputs.tolist() == [1, 4, 0, 2, 5, 3]
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


def test_a_compact_bank_has_the_same_classes_and_no_other_samples() -> None:
    bank = glyph_bank(classes=6, drawers=4)
    chosen = bank.select([name_of(4), name_of(1)], "a list")
    compact = chosen.compact()
    assert len(compact.inputs) == 8
    assert compact.names == [name_of(4), name_of(1)]
    for number in range(2):
        mine, theirs = (b.inputs[b.starts[number] :][: b.counts[number]] for b in (compact, chosen))
        assert torch.equal(mine, theirs)
