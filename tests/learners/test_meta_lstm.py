"""The LSTM meta-learner against an explicit loop over coordinates."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from inner_loops import gradients, pictures
from metavrf.config import Config
from metavrf.learners.maml import MAML, InnerLoop
from metavrf.learners.meta_lstm import MetaLSTM, MetaLSTMSettings, preprocessed
from metavrf.nn.embeddings import ConvNet
from metavrf.spec import TaskSpec


def learner_of(**settings: Any) -> MetaLSTM:
    torch.manual_seed(6)  # as picture_learner
    chosen = MetaLSTMSettings(**{"inner_steps": 2, "inner_lr": 0.3, "hidden": 3, **settings})
    return MetaLSTM(ConvNet((1, 9, 9), blocks=2, channels=4), TaskSpec((1, 9, 9), None, way=3), chosen)


def awake(learner: MetaLSTM) -> MetaLSTM:
    """With gates that have an opinion."""
    generator = torch.Generator().manual_seed(1)
    nn.init.normal_(learner.gates, generator=generator)
    return learner


def sigmoid(x: float) -> float:
    return 1 / (1 + math.exp(-x))


def plain_preprocessing(x: float) -> list[float]:
    return [math.log(abs(x)) / 10, math.copysign(1, x)] if abs(x) >= math.exp(-10) else [-1.0, math.exp(10) * x]


def plain_coordinate(learner: MetaLSTM, theta: float, slopes: list[float], losses: list[float]) -> float:
    """One weight after its updates, number by number."""
    weight, bias = learner.reader.weight.tolist(), learner.reader.bias.tolist()
    gates, biases = learner.gates.tolist(), learner.biases.tolist()
    size = learner.settings.hidden
    h, c = [0.0] * size, [0.0] * size
    forget = write = 0.0
    for slope, loss in zip(slopes, losses, strict=True):
        seen = plain_preprocessing(slope) + plain_preprocessing(loss) + h
        score = [sum(w * s for w, s in zip(row, seen, strict=True)) + b for row, b in zip(weight, bias, strict=True)]
        for k in range(size):
            kept = sigmoid(score[size + k]) * c[k]
            c[k] = kept + sigmoid(score[k]) * math.tanh(score[3 * size + k])
            h[k] = sigmoid(score[2 * size + k]) * math.tanh(c[k])
        before = theta
        forget, write = (
            sigmoid(sum(w * s for w, s in zip(row, [*h, before, gate], strict=True)) + b)
            for row, gate, b in zip(gates, (forget, write), biases, strict=True)
        )
        theta = forget * before - write * slope
    return theta


def test_the_update_is_that_of_a_loop_over_coordinates() -> None:
    learner = awake(learner_of()).double()
    generator = torch.Generator().manual_seed(2)
    count, steps = 7, 3
    start = torch.randn(count, dtype=torch.float64, generator=generator)
    slopes = torch.randn(steps, count, dtype=torch.float64, generator=generator)
    slopes[:, :2] *= 1e-6  # below e⁻¹⁰
    losses = torch.tensor([1.5, 0.7, 1e-5], dtype=torch.float64)
    cell, state, gate = start, start.new_zeros(2, count, 3), start.new_zeros(2, count)
    for slope, loss in zip(slopes, losses, strict=True):
        cell, state, gate = learner.update(cell, state, gate, slope, loss)
    expected = [
        plain_coordinate(learner, start[k].item(), slopes[:, k].tolist(), losses.tolist()) for k in range(count)
    ]
    torch.testing.assert_close(cell, torch.tensor(expected, dtype=torch.float64))


def test_its_first_layer_is_the_lstm_of_torch() -> None:
    learner = learner_of()
    cell = nn.LSTMCell(4, 3)
    order = torch.tensor([0, 1, 3, 2])  # torch has cell before output gate
    with torch.no_grad():
        weight, bias = (value.view(4, 3, -1)[order].flatten(0, 1) for value in learner.reader.parameters())
        cell.weight_ih.copy_(weight[:, :4])
        cell.weight_hh.copy_(weight[:, 4:])
        cell.bias_ih.copy_(bias.flatten())
        cell.bias_hh.zero_()
    generator = torch.Generator().manual_seed(2)
    state, slope, loss = torch.randn(2, 5, 3, generator=generator), torch.randn(5, generator=generator), torch.ones(())
    _, found, _ = learner.update(torch.zeros(5), state, torch.zeros(2, 5), slope, loss)
    seen = torch.cat([preprocessed(slope), preprocessed(loss).expand(5, 2)], dim=1)
    expected = cell(seen, (state[0], state[1]))
    torch.testing.assert_close(found[0], expected[0])
    torch.testing.assert_close(found[1], expected[1])


def test_a_task_is_updated_as_by_a_plain_loop_and_nothing_is_differentiated_through_gradients() -> None:
    learner, episodes = awake(learner_of()), pictures()
    outputs = []
    for task in range(episodes.tasks):
        x, y = episodes.support_x[task], episodes.support_y[task]
        weights = learner.start()
        cell = torch.cat([value.flatten() for value in weights.values()])
        state, gate = torch.zeros(2, len(cell), 3), torch.zeros(2, len(cell))
        for _ in range(2):
            leaves = {name: value.detach().requires_grad_() for name, value in weights.items()}
            loss = learner.task_loss(leaves, x, y)
            slope = torch.cat([g.flatten() for g in torch.autograd.grad(loss, list(leaves.values()))])
            cell, state, gate = learner.update(cell, state, gate, slope, loss.detach())
            parts = cell.split([value.numel() for value in weights.values()])
            weights = {n: part.view_as(v) for (n, v), part in zip(weights.items(), parts, strict=True)}
        outputs.append(learner.asked(weights, x, episodes.query_x[task], len(x)))
    prediction = learner.train()(episodes)
    torch.testing.assert_close(prediction.samples[0], torch.stack(outputs), rtol=1e-4, atol=1e-5)
    assert prediction.loss is not None and episodes.query_y is not None
    expected = F.cross_entropy(torch.stack(outputs).flatten(0, 1), episodes.query_y.flatten())
    found, plain = gradients(learner, prediction.loss), gradients(learner, expected)
    assert found.keys() == plain.keys() == {name for name, _ in learner.named_parameters()}
    for name, gradient in plain.items():
        torch.testing.assert_close(found[name], gradient, rtol=1e-3, atol=1e-5)


def test_it_starts_as_gradient_descent() -> None:
    learner, episodes = learner_of(), pictures()
    with torch.no_grad():
        learner.biases[0] = 50.0  # keep all
        learner.gates.zero_()  # which are small at the start
    torch.manual_seed(6)
    inner = InnerLoop(inner_steps=2, inner_lr=0.3)
    maml = MAML(ConvNet((1, 9, 9), blocks=2, channels=4), TaskSpec((1, 9, 9), None, way=3), inner)
    torch.testing.assert_close(learner.predict(episodes).mean, maml.predict(episodes).mean, rtol=1e-4, atol=1e-5)
    fresh = learner_of(inner_lr=0.01)
    gates = fresh.biases.sigmoid()
    assert gates[0] > 0.99
    assert gates[1].item() == pytest.approx(0.01)
    assert fresh.gates.abs().max() < 0.05


def test_gates_are_shared_over_coordinates() -> None:
    small, large = (
        learner_of(),
        MetaLSTM(
            ConvNet((1, 9, 9), blocks=2, channels=8), TaskSpec((1, 9, 9), None, way=3), MetaLSTMSettings(hidden=3)
        ),
    )

    def own(learner: MetaLSTM) -> int:
        return sum(p.numel() for n, p in learner.named_parameters() if n in ("gates", "biases") or "reader" in n)

    assert own(small) == own(large) == (4 + 3 + 1) * 12 + 2 * 5 + 2
    order = torch.tensor([2, 0, 1])
    cell, slope, loss = torch.randn(3), torch.randn(3), torch.tensor(0.4)
    state, gate = torch.zeros(2, 3, 3), torch.zeros(2, 3)
    straight = small.update(cell, state, gate, slope, loss)[0]
    turned = small.update(cell[order], state, gate, slope[order], loss)[0]
    torch.testing.assert_close(turned, straight[order])


def test_preprocessing_is_continuous_where_small_numbers_begin() -> None:
    edge = math.exp(-10)
    values = torch.tensor([edge * 0.999, edge * 1.001, -edge * 0.999, -edge * 1.001, 0.0, 1.0], dtype=torch.float64)
    found = preprocessed(values)
    expected = torch.tensor([[-1, 1], [-1, 1], [-1, -1], [-1, -1], [-1, 0], [0, 1]], dtype=torch.float64)
    torch.testing.assert_close(found, expected, rtol=0, atol=2e-3)


def test_the_paper_says_twelve_steps_and_twenty_units() -> None:
    config = Config.of("mini-imagenet", "meta-lstm", "paper")
    assert (config.model.inner_steps, config.model.hidden, config.training.clip) == (12, 20, 0.25)


def test_the_loss_is_of_all_tensors_alike() -> None:
    """One number for all coordinates: that of the task."""
    learner = awake(learner_of())
    cell, slope = torch.zeros(2), torch.ones(2)

    def after(loss: float) -> Tensor:
        return learner.update(cell, torch.zeros(2, 2, 3), torch.zeros(2, 2), slope, torch.tensor(loss))[0]

    assert after(0.3)[0] == after(0.3)[1]
    assert after(0.3)[0] != after(3.0)[0]
