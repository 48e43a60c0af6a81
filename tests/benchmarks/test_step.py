from __future__ import annotations

import copy
import math
from typing import Any

import pytest
import torch
from torch import Tensor

from metavrf.kernels.spectral import Exact, RandomFeatures
from metavrf.learners.base import Learner
from metavrf.learners.metavrf import MetaVRF
from metavrf.nn.embeddings import ConvNet
from metavrf.randomness import stream
from speed.pieces import Pieces, lever_sets
from speed.step import (
    EXACT,
    CommonStep,
    Levers,
    convolutions_pass,
    ink,
    matrix_product,
    random_bank,
    sine_config,
    sine_trainer,
)
from speed.work import CONTEXTS, SINE_PARTS, Work

WORK = Work.quick()


def common_step(*levers: str) -> CommonStep:
    return CommonStep(WORK, random_bank(WORK.train_classes, WORK.samples, WORK.side), Levers.of(levers))


def loss_and_gradients(step: CommonStep) -> tuple[Tensor, dict[str, Tensor]]:
    loss = step.loss(step.draw())
    return loss.detach(), gradients(step.learner, loss)


def gradients(learner: Learner, loss: Tensor) -> dict[str, Tensor]:
    parameters = dict(learner.named_parameters())
    found = torch.autograd.grad(loss, list(parameters.values()), allow_unused=True)
    return {name: value for name, value in zip(parameters, found, strict=True) if value is not None}


def worst(found: dict[str, Tensor], expected: dict[str, Tensor]) -> float:
    """The largest difference of a gradient, relative to the largest entry of any."""
    scale = max(value.abs().max() for value in expected.values())
    assert found.keys() == expected.keys()
    return max(((found[name] - expected[name]).abs().max() / scale).item() for name in expected)


def test_the_step_as_commonly_written_has_the_loss_and_the_gradients_of_ours() -> None:
    step = common_step()
    ours = Pieces(WORK).trainer(WORK).learner.train()
    ours.load_state_dict(step.learner.state_dict())
    loss, expected = loss_and_gradients(step)
    prediction = ours(step.draw())
    torch.testing.assert_close(prediction.loss.detach(), loss, rtol=1e-4, atol=1e-5)
    assert worst(gradients(ours, prediction.loss), expected) < 1e-3


@pytest.mark.parametrize("name", [name for name in lever_sets() if "chunks" not in name])
def test_exact_levers_change_neither_loss_nor_gradients(name: str) -> None:
    loss, expected = loss_and_gradients(common_step())
    fast_loss, found = loss_and_gradients(common_step(*lever_sets()[name]))
    torch.testing.assert_close(fast_loss, loss, rtol=1e-4, atol=1e-5)
    assert worst(found, expected) < 1e-3


def test_a_chunk_a_task_is_another_function_in_training_and_the_same_in_evaluation() -> None:
    whole, chunked = common_step(), common_step("chunks")
    episodes = whole.draw()
    assert (whole.loss(episodes) - chunked.loss(episodes)).abs() > 1e-4
    chunked.learner.load_state_dict(copy.deepcopy(whole.learner.state_dict()))
    for step in (whole, chunked):
        step.learner.eval()
    torch.testing.assert_close(whole.loss(episodes), chunked.loss(episodes))


def test_a_common_step_trains() -> None:
    step = common_step(*EXACT)
    before = copy.deepcopy(step.learner.state_dict())
    for _ in range(2):
        step()
    moved = [name for name, value in step.learner.state_dict().items() if not torch.equal(value, before[name])]
    assert {"embedding.convolutions.0.weight", "posterior.weights.0", "head.log_lambda"} <= set(moved)


def test_the_convolutions_alone_have_the_operations_that_are_counted() -> None:
    from torch.utils.flop_counter import FlopCounterMode

    embedding = ConvNet((1, WORK.side, WORK.side), blocks=4, channels=WORK.channels)
    with FlopCounterMode(display=False) as counter:
        convolutions_pass(embedding, WORK.images, WORK.side)()
    assert counter.get_total_flops() == WORK.convolution_flops()
    for flops in (WORK.convolution_flops(), Work().convolution_flops() // 1000):
        with FlopCounterMode(display=False) as counter:
            matrix_product(flops)()
        assert counter.get_total_flops() == pytest.approx(flops, rel=0.02)


def test_the_work_is_what_the_figures_are_reported_for() -> None:
    work = Work()
    assert work.images == 480
    assert work.tasks * work.many_way * (work.many_shot + work.query) == 2400
    assert work.convolution_flops() == pytest.approx(28.6e9, rel=0.01)
    assert Work.from_json(work.to_json()) == work


def test_random_pictures_are_ink_on_black() -> None:
    pictures = ink(50, 28, stream(0, "train"))
    assert pictures.dtype == torch.uint8
    assert set(pictures.unique().tolist()) == {0, 255}
    assert 0.02 < (pictures == 255).float().mean() < 0.4


@pytest.mark.parametrize(
    ("options", "kernels", "kind"),
    [
        ({"context": "lstm"}, 1, RandomFeatures),
        ({"context": "none", "train_kernel": "exact"}, 1, Exact),
        ({"many": True}, WORK.kernels, Exact),
    ],
)
def test_the_steps_on_sine_have_the_kernels_they_are_named_after(
    options: dict[str, Any], kernels: int, kind: type
) -> None:
    trainer = sine_trainer(sine_config(WORK, **options))
    learner = trainer.learner
    assert isinstance(learner, MetaVRF)
    assert learner.components == kernels
    assert isinstance(learner.kernel(stream(0, "draws")), kind)
    for step in range(3):  # the number of points does not vary, as it does in the preset
        episodes = trainer.tasks_of(step)
        assert (episodes.tasks, episodes.support_x.shape[1]) == (WORK.sine_tasks, WORK.sine_shot)
        assert episodes.query_x.shape[1] == WORK.sine_query
    assert math.isfinite(trainer.train_step()["loss"].item())


@pytest.mark.parametrize(
    "name",
    [
        "step",
        "step as trained",
        "many",
        "many, pooling derived",
        "prototypical step",
        "maml step",
        "embedding",
        "nchw",
        "channels last",
        "chunks",
        "evaluation",
        "adaptation",
        "kernel ridge",
        *(f"sine {context}" for context in CONTEXTS),
        "sine exact",
        "sine exact, no KL",
        "sine many",
        *(f"sine: {part}" for part in SINE_PARTS),
    ],
)
def test_every_piece_runs_more_than_once(name: str) -> None:
    piece = Pieces(WORK).makers()[name]()
    piece()
    piece()
