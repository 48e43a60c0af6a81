from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import nn

from awake import awake
from metavrf.episodes import Episodes
from metavrf.nn.inference import TaskSummary
from metavrf.nn.mixture import Mixture, MixturePosterior

FEATURES, CONTEXT, TASKS = 5, 6, 4
FIELDS = ("mean", "std", "amplitude", "noise", "log_prior", "comb")


def posterior(**options: Any) -> MixturePosterior:
    """Seven kernels, two of them combs, started apart."""
    made = MixturePosterior(7, FEATURES, CONTEXT, **{"combs": 2, "moves": True, "noise": 0.01, **options})
    made.start_at(torch.randn(7 - made.guards, FEATURES), torch.randn(7 - made.guards, FEATURES), 3.0)
    return made


def moved(made: MixturePosterior) -> MixturePosterior:
    """As after some training: what is inferred is no longer nothing."""
    awake(made)
    assert made.moves is not None
    last = made.moves[2]
    assert isinstance(last, nn.Linear)
    nn.init.uniform_(last.weight, -0.5, 0.5)
    return made


def spread(mixture: Mixture, name: str) -> float:
    """How far tasks differ."""
    value = getattr(mixture, name)
    return float((value - value[:, :1]).detach().abs().max())


@pytest.mark.parametrize("moves", [True, False])
def test_everything_inferred_starts_at_nothing_so_that_tasks_start_alike(moves: bool) -> None:
    made = posterior(moves=moves)
    mixture = made(torch.randn(TASKS, CONTEXT), TASKS)
    shared = made(None, TASKS)
    for name in FIELDS:
        torch.testing.assert_close(getattr(mixture, name), getattr(shared, name))
        assert getattr(mixture, name).shape[1] == TASKS
        assert spread(mixture, name) == 0
    torch.testing.assert_close(mixture.mean[:, 0], made.mean)
    torch.testing.assert_close(mixture.std[:, 0], made.log_std.exp())
    torch.testing.assert_close(mixture.amplitude, torch.full((7, TASKS), 3.0))
    torch.testing.assert_close(mixture.noise, torch.full((7, TASKS), 0.01))


def test_what_is_inferred_moves_every_part_of_every_kernel() -> None:
    mixture = moved(posterior())(torch.randn(TASKS, CONTEXT), TASKS)
    for name in FIELDS:
        value = getattr(mixture, name)
        assert (value - value[:, :1]).abs().flatten(1).amax(1).min() > 1e-3, name
    assert mixture.inferred is not None
    assert [value.shape for value in mixture.inferred] == [(TASKS, FEATURES)] * 2


def test_without_moves_only_the_prior_weights_are_inferred() -> None:
    mixture = moved(posterior(moves=False))(torch.randn(TASKS, CONTEXT), TASKS)
    assert spread(mixture, "log_prior") > 1e-3
    assert [spread(mixture, name) for name in FIELDS if name != "log_prior"] == [0] * 5
    assert mixture.inferred is None


def test_without_context_there_is_nothing_to_infer_with() -> None:
    made = MixturePosterior(7, FEATURES, 0, moves=True, noise=0.01)
    assert {name for name, _ in made.named_parameters()} == {"mean", "log_std", "scalars"}
    assert made(None, TASKS).mean.shape == (7, TASKS, FEATURES)


def test_kernels_of_a_task_do_not_depend_on_the_other_tasks() -> None:
    made, h = moved(posterior()), torch.randn(TASKS, CONTEXT)
    together = made(h, TASKS)
    for task in range(TASKS):
        alone = made(h[task : task + 1], 1)
        for name in FIELDS:
            torch.testing.assert_close(getattr(together, name)[:, task : task + 1], getattr(alone, name))


def test_guards_are_not_learned_and_keep_their_share_of_the_prior() -> None:
    made = posterior(guards=3, moves=False)
    made.guard_by(torch.full((3, FEATURES), 0.7), torch.zeros(3), torch.full((3,), math.log(0.5)))
    with torch.no_grad():
        made.scalars[2].normal_()
    mixture = made(None, TASKS)
    torch.testing.assert_close(mixture.log_prior.softmax(0)[:3], torch.full((3, TASKS), 1 / 7))
    assert (mixture.mean[:3] == 0).all()
    torch.testing.assert_close(mixture.noise[:3], torch.full((3, TASKS), 0.5))
    assert {"guard_std", "guard_scalars"} <= made.state_dict().keys()
    assert not {name for name, _ in made.named_parameters() if name.startswith("guard")}


# The labelled summary of classes


def class_task() -> Episodes:
    labels = torch.tensor([[0, 1, 2, 0, 1, 2, 0]]).expand(3, -1)
    return Episodes(torch.randn(3, 7, FEATURES), labels, torch.randn(3, 2, FEATURES), way=3)


def test_the_labelled_summary_depends_neither_on_the_order_of_samples_nor_on_the_numbering_of_classes() -> None:
    summary, task, order = TaskSummary(FEATURES, labels=True), class_task(), torch.randperm(7)
    expected = summary(task)
    shuffled = Episodes(task.support_x[:, order], task.support_y[:, order], task.query_x, way=3)
    torch.testing.assert_close(summary(shuffled), expected, rtol=0, atol=1e-6)
    renamed = Episodes(task.support_x, torch.tensor([2, 0, 1])[task.support_y], task.query_x, way=3)
    torch.testing.assert_close(summary(renamed), expected, rtol=0, atol=1e-6)


def test_the_labelled_summary_knows_which_samples_belong_together() -> None:
    x = torch.randn(3, 6, FEATURES)
    pairs = [torch.tensor(labels).expand(3, -1) for labels in ([0, 1, 2, 0, 1, 2], [0, 0, 1, 1, 2, 2])]
    for labels in (True, False):
        summary = TaskSummary(FEATURES, labels=labels)
        one, other = (summary(Episodes(x, y, x[:, :1], way=3)) for y in pairs)
        assert ((one - other).abs().max().item() > 1e-4) == labels
