from __future__ import annotations

import math
import re
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from metavrf.episodes import Episodes
from metavrf.errors import UserError


def regression(tasks: int = 4) -> Episodes:
    return Episodes(
        torch.randn(tasks, 3, 2), torch.randn(tasks, 3, 1), torch.randn(tasks, 6, 2), torch.randn(tasks, 6, 1)
    )


def classes(labels: list[int], way: int) -> Episodes:
    support_x = torch.randn(1, len(labels), 2)
    return Episodes(support_x, torch.tensor([labels]), support_x[:, :1], way=way)


def test_shot_counts_samples_a_task_or_a_class() -> None:
    assert regression().shot == 3
    assert classes([0, 0, 1, 1, 2, 2], way=3).shot == 2
    assert classes([0, 1, 1], way=2).shot == 1.5


def test_targets_of_regression_are_the_values_themselves() -> None:
    episodes = regression()
    assert torch.equal(episodes.support_targets, episodes.support_y)


def test_targets_of_classes_are_one_hot() -> None:
    assert classes([2, 0], way=3).support_targets.tolist() == [[[0, 0, 1], [1, 0, 0]]]


def test_prototypes_of_unequal_shots_are_the_means_of_each_class() -> None:
    episodes = classes([1, 0, 1, 1], way=2)
    z = torch.tensor([[[1.0, 0.0], [5.0, 7.0], [2.0, 0.0], [6.0, 3.0]]])
    assert episodes.prototypes(z).tolist() == [[[5, 7], [3, 1]]]


def test_prototypes_of_regression_are_the_samples_themselves() -> None:
    z = torch.randn(4, 3, 5)
    assert torch.equal(regression().prototypes(z), z)


def test_a_class_without_samples_gives_a_finite_prototype() -> None:
    assert torch.isfinite(classes([0, 0], way=2).prototypes(torch.randn(1, 2, 3))).all()


def test_embedding_is_shared_by_support_and_query() -> None:
    episodes = regression()
    embedded = episodes.embedded(lambda x: 2 * x.sum(-1, keepdim=True))
    torch.testing.assert_close(embedded.support_x, 2 * episodes.support_x.sum(-1, keepdim=True))
    torch.testing.assert_close(embedded.query_x, 2 * episodes.query_x.sum(-1, keepdim=True))
    assert embedded.support_y is episodes.support_y
    assert episodes.support_x.shape == (4, 3, 2)


def test_embedding_is_called_once_for_all_samples() -> None:
    calls: list[tuple[int, ...]] = []

    def embedding(x: Tensor) -> Tensor:
        calls.append(tuple(x.shape))
        return x

    regression().embedded(embedding)
    assert calls == [(4, 9, 2)]


@pytest.mark.parametrize(("size", "counts"), [(1, [1, 1, 1, 1]), (3, [3, 1]), (4, [4]), (100, [4])])
def test_batches_hold_all_tasks_in_order(size: int, counts: list[int]) -> None:
    episodes = regression()
    batches = episodes.batches(size)
    assert [batch.tasks for batch in batches] == counts
    for name in ("support_x", "support_y", "query_x", "query_y"):
        assert torch.equal(torch.cat([getattr(batch, name) for batch in batches]), getattr(episodes, name))


def test_a_slice_keeps_the_number_of_ways_and_missing_answers() -> None:
    part = classes([0, 1], way=2)[0:1]
    assert part.way == 2
    assert part.query_y is None


@pytest.mark.parametrize(
    ("name", "shape"),
    [
        ("support_x", (3, 1)),
        ("support_x", (4, 0, 1)),
        ("support_y", (4, 2, 1)),
        ("support_y", (4, 3)),
        ("query_x", (5, 6, 1)),
        ("query_x", (4, 6, 2)),
        ("query_y", (4, 5, 1)),
    ],
)
def test_shapes_that_do_not_fit_are_refused_and_quoted(name: str, shape: tuple[int, ...]) -> None:
    good = Episodes(torch.zeros(4, 3, 1), torch.zeros(4, 3, 1), torch.zeros(4, 6, 1), torch.zeros(4, 6, 1))
    wrong: dict[str, Any] = {name: torch.zeros(shape)}
    with pytest.raises(UserError, match=f"{name}.*{re.escape(str(shape))}"):
        replace(good, **wrong)


def test_class_numbers_need_no_output_axis() -> None:
    with pytest.raises(UserError, match="support_y"):
        Episodes(torch.zeros(1, 2, 3), torch.zeros(1, 2, 1, dtype=torch.long), torch.zeros(1, 1, 3), way=2)


@pytest.mark.parametrize("name", ["support_x", "support_y", "query_x", "query_y"])
@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_values_that_are_not_finite_are_refused_with_their_place(name: str, value: float) -> None:
    episodes = regression()
    episodes.check_finite()
    getattr(episodes, name)[2, 1, 0] = value
    with pytest.raises(UserError, match=f"{name} .*\\[2, 1, 0\\]"):
        episodes.check_finite()


def test_leaving_one_out_makes_a_task_of_each_sample() -> None:
    x, y = torch.arange(8.0).view(4, 2), torch.tensor([0, 1, 1, 2])
    tasks = Episodes.of_support(x, y, 3).leaving_one_out().looked_up()
    assert tasks.support_x.shape == (4, 3, 2)
    for row in range(4):
        others = [other for other in range(4) if other != row]
        assert torch.equal(tasks.support_x[row], x[others])
        assert torch.equal(tasks.support_y[row], y[others])
        assert torch.equal(tasks.query_x[row], x[row : row + 1])
        assert tasks.query_y is not None
        assert tasks.query_y[row] == y[row]
    some = Episodes.of_support(x, y, 3).leaving_one_out(torch.tensor([2]))
    assert torch.equal(some.support_x, torch.tensor([[0, 1, 3]]))
    with pytest.raises(UserError, match="not 1 of 1"):
        Episodes.of_support(x[:1], y[:1], 1).leaving_one_out()


def test_a_support_may_be_asked_anything() -> None:
    support = Episodes.of_support(torch.zeros(3, 2), torch.zeros(3, 1))
    assert support.query_x.shape == (1, 0, 2)
    assert support.asking(torch.ones(1, 5, 2)).query_x.shape == (1, 5, 2)
    with pytest.raises(UserError, match="must agree"):
        support.asking(torch.ones(1, 5, 3))


def test_processes_share_tasks_or_whole_streams() -> None:
    x = torch.arange(12.0).reshape(12, 1, 1)
    for stream, second in ((1, [1, 4, 7, 10]), (2, [2, 3, 8, 9]), (4, [4, 5, 6, 7])):
        episodes = Episodes(x, x, x, x, stream=stream)
        shares = [episodes.share(rank, 3) for rank in range(3)]
        assert shares[1].support_x.flatten().tolist() == second
        assert sorted(torch.cat([share.support_x for share in shares]).flatten().tolist()) == list(range(12))
        assert all(share.stream == stream for share in shares)
