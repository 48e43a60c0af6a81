from __future__ import annotations

import pytest
import torch
from torch import Tensor

from metavrf.nn.normalisation import Normalisation, Own

TASKS, SAMPLES = 3, 7


def layer() -> Normalisation:
    """A layer with weights and running statistics as after some training."""
    made = Normalisation(4)
    torch.nn.init.uniform_(made.weight, 0.5, 2)
    torch.nn.init.uniform_(made.bias, -1, 1)
    for _ in range(3):
        made.train()(5 + 2 * torch.randn(9, 4, 3, 3))
    return made.eval()


def images() -> Tensor:
    """Tasks of different brightness and contrast, far from zero."""
    by_task = torch.randn(TASKS, SAMPLES, 4, 5, 3) * torch.tensor([0.5, 1, 4]).view(-1, 1, 1, 1, 1)
    return (by_task + torch.tensor([100.0, -3, 30]).view(-1, 1, 1, 1, 1)).flatten(0, 1)


def normalised(layer: Normalisation, x: Tensor, chosen: Tensor | None = None) -> Tensor:
    """The textbook formula in double precision, by the statistics of ``chosen`` images or by the running ones."""
    mean, variance = layer.running_mean, layer.running_var
    if chosen is not None:
        mean, variance = chosen.double().mean((0, 2, 3)), chosen.double().var((0, 2, 3), correction=0)
    assert mean is not None
    assert variance is not None
    mean, variance, weight, bias = (v.double().view(-1, 1, 1) for v in (mean, variance, layer.weight, layer.bias))
    return (x.double() - mean) / (variance + layer.eps).sqrt() * weight + bias


def test_training_normalises_by_the_batch() -> None:
    made, x = layer().train(), 3 + 2 * torch.randn(6, 4, 5, 3)
    torch.testing.assert_close(made(x).double(), normalised(made, x, x), rtol=1e-4, atol=1e-4)


def test_evaluation_normalises_by_what_training_saw() -> None:
    made, x = layer(), images()
    torch.testing.assert_close(made(x).double(), normalised(made, x), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("training", [False, True])
@pytest.mark.parametrize("own", [1, 2, SAMPLES])
def test_own_statistics_are_those_of_each_tasks_first_samples(own: int, training: bool) -> None:
    made, x = layer().train(training), images()
    before = {name: value.clone() for name, value in made.state_dict().items()}
    expected = torch.cat([normalised(made, task, task[:own]) for task in x.split(SAMPLES)])
    torch.testing.assert_close(made(x, Own(TASKS, own)).double(), expected, rtol=1e-4, atol=1e-4)
    assert all(torch.equal(value, before[name]) for name, value in made.state_dict().items())


def test_own_statistics_see_nothing_beyond_the_first_samples_of_the_same_task() -> None:
    made, x = layer(), images()
    changed = x.clone()
    changed[2:SAMPLES] += 50  # later samples of the first task
    changed[2 * SAMPLES :] *= 3  # another task
    first, second = made(x, Own(TASKS, 2)), made(changed, Own(TASKS, 2))
    assert torch.equal(first[:2], second[:2])
    assert torch.equal(first[SAMPLES : 2 * SAMPLES], second[SAMPLES : 2 * SAMPLES])
    assert (made(x, Own(TASKS, 3))[:2] - made(changed, Own(TASKS, 3))[:2]).abs().max() > 0.1
