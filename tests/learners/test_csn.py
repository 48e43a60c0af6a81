from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from few_shot import FEATURES, QUERIES, SPEC, TASKS, WAY, tasks
from metavrf.config import Config
from metavrf.episodes import Episodes
from metavrf.errors import UserError
from metavrf.learners.csn import CSN, CSNSettings
from metavrf.nn.mlp import Raw

each_feedback = pytest.mark.parametrize("feedback", ["direct", "gradient"])


def csn(**settings: Any) -> CSN:
    torch.manual_seed(0)
    return CSN(Raw(FEATURES), SPEC, CSNSettings(**{"width": 5, "value_width": 4, **settings})).double().eval()


def doubled() -> Episodes:
    return tasks().embedded(lambda z: z.double())


def activations(learner: CSN, x: Tensor) -> list[Tensor]:
    """Of one sample, layer by layer, without shifts; each is a leaf of the graph of the next."""
    found: list[Tensor] = []
    for layer in learner.weights:
        found.append(layer(F.relu(found[-1]) if found else x))
        found[-1].retain_grad()
    return found


def value(learner: CSN, layer: int, known: Tensor) -> Tensor:
    result: Tensor = learner.values[layer](known).squeeze()
    return result


def shifts_of(learner: CSN, x: Tensor, label: Tensor) -> list[Tensor]:
    """The shift of every neuron that one support sample stores, neuron by neuron, by torch.autograd."""
    layers = activations(learner, x)
    F.cross_entropy(layers[-1], label).backward(retain_graph=True)
    error = layers[-1].grad
    assert error is not None
    stored = []
    for number, layer in enumerate(layers):
        neurons = []
        for n in range(len(layer)):
            assert layer.grad is not None
            own = layer.grad[n].reshape(1)
            if number < len(layers) - 1 and learner.settings.feedback == "direct":
                own = error * (layer[n] > 0)
            neurons.append(value(learner, number, own))
        stored.append(torch.stack(neurons))
    return stored


@each_feedback
def test_queries_are_answered_by_neurons_shifted_from_memory(feedback: str) -> None:
    learner, episodes = csn(feedback=feedback), doubled()
    answer = learner.predict(episodes).samples[0]
    for task in range(TASKS):
        support = episodes.support_x[task]
        memory = [shifts_of(learner, x, y) for x, y in zip(support, episodes.support_y[task], strict=True)]
        for query in range(QUERIES):
            x = episodes.query_x[task, query]
            similar = [F.cosine_similarity(learner.key(x), learner.key(s), dim=0) for s in support]
            attention = (10.0 * torch.stack(similar)).softmax(0)
            h = x
            for number, layer in enumerate(learner.weights):
                shift = sum(a * stored[number] for a, stored in zip(attention, memory, strict=True))
                h = layer(h) + shift if number == len(learner.weights) - 1 else F.relu(layer(h)) + shift
            torch.testing.assert_close(answer[task, query], h)


@each_feedback
def test_a_memory_of_zeros_leaves_the_plain_classifier(feedback: str) -> None:
    learner, episodes = csn(feedback=feedback), doubled()
    networks: Any = learner.values
    for network in networks:
        torch.nn.init.zeros_(network[-1].weight)
        torch.nn.init.zeros_(network[-1].bias)
    plain = learner.shifted(episodes.query_x)[-1]
    torch.testing.assert_close(learner.predict(episodes).samples[0], plain.detach())


@each_feedback
def test_every_part_is_trained(feedback: str) -> None:
    learner = csn(feedback=feedback).train()
    learner(doubled()).loss.backward()
    for name, parameter in learner.named_parameters():
        assert parameter.grad is not None and torch.isfinite(parameter.grad).all(), name
        assert parameter.grad.abs().max() > 0, name


def test_another_number_of_classes_is_refused() -> None:
    episodes = doubled()
    fewer = Episodes(episodes.support_x, episodes.support_y, episodes.query_x, None, WAY + 1)
    with pytest.raises(UserError, match=r"answers 4 classes, .* give tasks of --way 4, not 5"):
        csn().predict(fewer)
    with pytest.raises(UserError, match="train_way = 9 must be 0 or the 5 of --way"):
        CSN.check_tasks(Config.of("omniglot", "csn", train_way=9).episode, regression=False)
