from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

import pytest
import torch
from torch import Tensor

import metavrf
from metavrf.nn.embeddings import ConvNet
from speed.gradients import Gradients, pooling_derived
from speed.pieces import Pieces
from speed.work import GRADIENTS, Work

WORK = Work.quick()
FUNCTION = re.compile(r"class (\w+)\((?:torch\.autograd\.)?Function\)")


@pytest.fixture(scope="module")
def gradients() -> Gradients:
    return Gradients(WORK)


def functions_behind(outputs: Sequence[Tensor]) -> set[str]:
    """Names of the steps back from ``outputs``."""
    found, nodes = set(), {output.grad_fn for output in outputs}
    while nodes:
        node = nodes.pop()
        if node is not None:
            found.add(node.name().removesuffix("Backward"))
            nodes |= {before for before, _ in node.next_functions}
    return found


def symmetric(kernel: Tensor) -> Tensor:
    """A gradient of K | K̃ as it acts on what is symmetric, which K is: how it is spread over K and Kᵀ is free."""
    gram, cross = kernel.split([kernel.shape[-2], kernel.shape[-1] - kernel.shape[-2]], dim=-1)
    return torch.cat([0.5 * (gram + gram.mT), cross], dim=-1)


def written_by_hand() -> set[str]:
    files = Path(metavrf.__file__).parent.rglob("*.py")
    return {name for file in files for name in FUNCTION.findall(file.read_text())}


def test_every_gradient_written_by_hand_has_its_rows(gradients: Gradients) -> None:
    assert set(gradients.all) == set(GRADIENTS)
    timed = set().union(*(functions_behind(gradient.by_hand()) for gradient in gradients.all.values()))
    assert written_by_hand()
    assert (
        written_by_hand() - {"_Implicit"} <= timed
    )  # the implicit gradient is iMAML itself, no faster form of another


@pytest.mark.parametrize("name", GRADIENTS)
def test_both_forms_have_the_same_values_and_gradients(name: str, gradients: Gradients) -> None:
    gradient = gradients.all[name]
    by_hand, derived = gradient.by_hand(), gradient.derived()
    assert functions_behind(by_hand) & written_by_hand()
    assert not functions_behind(derived) & written_by_hand()
    for found, expected in zip(by_hand, derived, strict=True):
        torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)
    weights = [torch.rand_like(output) for output in derived]
    ours, plain = (torch.autograd.grad(list(o), list(gradient.inputs), weights) for o in (by_hand, derived))
    for found, expected in zip(ours, plain, strict=True):
        if (
            name.startswith(("ridge", "inverse"))
            and expected.ndim == 4
            and expected.shape[-1] >= expected.shape[-2] > 1
        ):
            found, expected = symmetric(found), symmetric(expected)  # noqa: PLW2901
        torch.testing.assert_close(found, expected, rtol=1e-3, atol=1e-4 * float(expected.abs().max()))


@pytest.mark.parametrize("how", ["by hand", "derived"])
@pytest.mark.parametrize("name", GRADIENTS)
def test_every_gradient_is_a_piece_of_the_benchmark_that_runs_more_than_once(name: str, how: str) -> None:
    piece = Pieces(WORK).makers()[f"gradient: {name}, {how}"]()
    piece()
    piece()


def test_shapes_are_those_of_training_steps() -> None:
    work = Work()
    shapes = {
        name: [tuple(value.shape) for value in gradient.inputs]
        for name, gradient in Gradients(work).all.items()
        if name.startswith(("ridge", "kernel of features", "pooling"))
    }
    samples = work.sine_shot + work.sine_query
    assert shapes["ridge, sine tasks"][0] == (32, 25, 5, samples)
    assert shapes["ridge, Omniglot"][0] == (1, 1, 60, 360)
    assert shapes["kernel of features, sine tasks"] == [(1, 25, samples, 256)]
    assert shapes["kernel of features, Omniglot"] == [(1, 1, 360, 780)]
    assert shapes["pooling, Omniglot"] == [(360, 64, 28, 28)]


def test_pooling_is_derived_during_the_step_alone() -> None:
    embedding, x = ConvNet((1, 8, 8), blocks=4, channels=4), torch.rand(1, 2, 1, 8, 8)
    seen: list[set[str]] = []

    def step() -> None:
        seen.append(functions_behind([embedding(x)]))

    pooling_derived(step)()
    step()
    assert ["_MaxPool" in functions for functions in seen] == [False, True]
