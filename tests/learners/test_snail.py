"""SNAIL's causal layers against explicit loops over places, one query at a time."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from metavrf.config import Config
from metavrf.episodes import Episodes
from metavrf.errors import UserError
from metavrf.learners.snail import SCALE, SNAIL, Attention, Convolution, SNAILSettings, reordered
from metavrf.nn.mlp import Raw
from metavrf.spec import TaskSpec
from ready_tasks import classes, curves

SIZE = 5


def snail(spec: TaskSpec | None = None) -> SNAIL:
    torch.manual_seed(1)
    spec = TaskSpec((SIZE,), None, way=3) if spec is None else spec
    learner = SNAIL(Raw(spec.inputs[0]), spec, SNAILSettings(features=6, filters=8, length=8, least_std=0.1))
    torch.nn.init.uniform_(learner.norm.running_mean, -0.3, 0.3)  # type: ignore[arg-type]
    torch.nn.init.uniform_(learner.norm.running_var, 0.3, 1.0)  # type: ignore[arg-type]
    return learner.eval()


def features(learner: SNAIL, x: Tensor) -> Tensor:
    """Of one sample, normalised by running statistics."""
    norm = learner.norm
    assert norm.running_mean is not None and norm.running_var is not None
    return (learner.sample.weight @ x - norm.running_mean) / (norm.running_var + norm.eps).sqrt()


def sequences(samples: int) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    return torch.randn(2, samples, SIZE, generator=generator), torch.randn(2, 3, SIZE, generator=generator)


def slow_convolution(layer: Convolution, sequence: Tensor) -> Tensor:
    """One sequence ``[N, d]``, place by place."""
    rows = []
    for t, x in enumerate(sequence):
        both = layer.here(x)
        if t >= layer.dilation:
            both = both + layer.back(sequence[t - layer.dilation])
        half = len(both) // 2
        rows.append(torch.cat([x, both[:half].tanh() * both[half:].sigmoid()]))
    return torch.stack(rows)


def slow_attention(layer: Attention, sequence: Tensor) -> Tensor:
    """Likewise."""
    keys = layer.sizes[0]
    rows = []
    for t, x in enumerate(sequence):
        asks = layer.all(x)[:keys]
        weights, values = [], []
        for s in range(t + 1):
            _, key, value = layer.all(sequence[s]).split(layer.sizes)
            weights.append(math.exp((asks @ key).item() / math.sqrt(keys)))
            values.append(value)
        read = sum((w / sum(weights) * v for w, v in zip(weights, values, strict=True)), torch.zeros(layer.sizes[2]))
        rows.append(torch.cat([x, read]))
    return torch.stack(rows)


@pytest.mark.parametrize("samples", [1, 2, 5, 9])
@pytest.mark.parametrize("dilation", [1, 2, 4])
@torch.no_grad()
def test_a_convolution_looks_back_so_many_places(samples: int, dilation: int) -> None:
    layer, (support, query) = Convolution(SIZE, dilation, 6), sequences(samples)
    found_support, found_query = layer(support, query)
    for t in range(2):
        for q in range(3):
            expected = slow_convolution(layer, torch.cat([support[t], query[t, q : q + 1]]))
            torch.testing.assert_close(found_support[t], expected[:-1])
            torch.testing.assert_close(found_query[t, q], expected[-1])


@pytest.mark.parametrize("samples", [1, 5])
@torch.no_grad()
def test_attention_looks_back_at_everything_and_at_itself(samples: int) -> None:
    layer, (support, query) = Attention(SIZE, 6, 4), sequences(samples)
    found_support, found_query = layer(support, query)
    for t in range(2):
        for q in range(3):
            expected = slow_attention(layer, torch.cat([support[t], query[t, q : q + 1]]))
            torch.testing.assert_close(found_support[t], expected[:-1], rtol=1e-4, atol=1e-5)
            torch.testing.assert_close(found_query[t, q], expected[-1], rtol=1e-4, atol=1e-5)


def through(learner: SNAIL, episodes: Episodes) -> tuple[Tensor, Tensor]:
    support, query = learner.places(episodes)
    for layer in learner.layers:
        support, query = layer(support, query)
    return support, query


@torch.no_grad()
def test_a_new_learner_reads_the_targets_of_samples_like_the_query() -> None:
    episodes = classes()
    torch.manual_seed(1)
    learner = SNAIL(Raw(SIZE), TaskSpec((SIZE,), None, way=3))
    support, query = learner.places(episodes)
    first: Any = learner.layers[0]
    keys, _, values = first.sizes
    weights = first.all.weight[1:keys, :64]
    torch.testing.assert_close(weights @ weights.T, torch.eye(keys - 1), rtol=0, atol=1e-5)
    scores = (query[..., :64] @ weights.T) @ (support[..., :64] @ weights.T).mT / math.sqrt(keys)
    own = (query[..., :64] @ weights.T).square().sum(-1, keepdim=True) / math.sqrt(keys) - 10
    matched = torch.cat([scores, own], dim=-1).softmax(-1)[..., :-1] @ episodes.support_targets.float()
    read = first(support, query)[1][..., -values:]
    size = query.shape[-1]
    torch.testing.assert_close(read @ learner.last.weight[:, size : size + values].T, SCALE * matched)
    asked = replace(episodes, query_x=episodes.support_x, query_y=episodes.support_y)
    assert torch.equal(learner(asked).mean.argmax(-1), episodes.support_y)  # from one of a batch


@torch.no_grad()
def test_the_whole_learner_is_its_layers_on_a_sequence_that_ends_with_the_query() -> None:
    learner, episodes = snail(), classes()
    found = learner.predict(episodes).mean
    kinds = [type(layer).__name__[0] for layer in learner.layers]
    assert "".join(kinds) == "ACCCACCCA"  # three convolutions reach across eight places
    assert [layer.dilation for layer in learner.layers if isinstance(layer, Convolution)] == [1, 2, 4, 1, 2, 4]
    for t in range(2):
        for q in range(4):
            known = [
                torch.cat([features(learner, x), torch.eye(3)[y], torch.zeros(1)])
                for x, y in zip(episodes.support_x[t], episodes.support_y[t], strict=True)
            ]
            asked = torch.cat([features(learner, episodes.query_x[t, q]), torch.tensor([0.0, 0.0, 0.0, 1.0])])
            sequence = torch.stack([*known, asked])
            layer: Any
            for layer in learner.layers:
                slow: Any = slow_convolution if isinstance(layer, Convolution) else slow_attention
                sequence = slow(layer, sequence)
            torch.testing.assert_close(found[t, q], learner.last(sequence[-1]).log_softmax(-1), rtol=1e-4, atol=1e-4)


def test_the_support_does_not_know_of_the_query_nor_of_what_comes_after() -> None:
    learner, episodes = snail(), classes()
    episodes.query_x.requires_grad_()
    episodes.support_x.requires_grad_()
    support, query = through(learner, episodes)
    support[:, 2].sum().backward(retain_graph=True)
    assert episodes.query_x.grad is None or not episodes.query_x.grad.any()
    assert episodes.support_x.grad is not None
    assert episodes.support_x.grad.abs().sum((0, 2)).bool().tolist() == [True, True, True, False, False, False]
    query[:, 1].sum().backward()
    assert episodes.query_x.grad is not None
    assert episodes.query_x.grad.abs().sum((0, 2)).bool().tolist() == [False, True, False, False]
    assert episodes.support_x.grad.abs().sum((0, 2)).bool().all()


def test_curves_of_several_inputs_and_outputs_are_answered_by_normals() -> None:
    learner, episodes = snail(TaskSpec((2,), 2)), curves()
    found = learner(episodes)
    assert found.mean.shape == (2, 3, 2)
    outputs = learner.last(through(learner, episodes)[1])
    torch.testing.assert_close(found.mean, outputs[..., :2])
    torch.testing.assert_close(found.std, 0.1 + 0.9 * torch.nn.functional.softplus(outputs[..., 2:]))
    assert episodes.query_y is not None
    nll = -torch.distributions.Normal(found.mean, found.std).log_prob(episodes.query_y).mean()
    torch.testing.assert_close(found.loss, nll)


def test_training_draws_the_order_of_the_support_and_keeps_each_target_with_its_sample() -> None:
    episodes = classes(tasks=5)
    once, again = (reordered(episodes, torch.Generator().manual_seed(7)) for _ in range(2))
    assert torch.equal(once.support_x, again.support_x)
    pairs = [
        sorted((y, *x) for x, y in zip(e.support_x[t].tolist(), e.support_y[t].tolist(), strict=True))
        for e in (episodes, once)
        for t in range(5)
    ]
    assert pairs[:5] == pairs[5:]
    assert len({tuple(row.tolist()) for row in once.support_y}) > 1  # each task has an order of its own
    learner = snail().train()
    losses = [learner(episodes, torch.Generator().manual_seed(seed)).loss.item() for seed in (7, 7, 8)]
    assert losses[0] == losses[1] != losses[2]
    learner.eval()
    losses = [learner(episodes, torch.Generator().manual_seed(seed)).loss.item() for seed in (7, 8)]
    assert losses[0] == losses[1]


@pytest.mark.parametrize("name", ["snail", "gnn"])
def test_the_number_of_classes_is_fixed(name: str) -> None:
    config = Config.of("omniglot", name)
    assert config.episode.train_way == 0
    learner = config.build(TaskSpec((1, 28, 28), None))
    with pytest.raises(UserError, match="train_way = 20 must be 0 or the 5 of --way"):
        type(learner).check_tasks(replace(config.episode, train_way=20), regression=False)
    features = classes(size=256)
    with pytest.raises(UserError, match="answers 5 classes"):
        learner.predict(features, embedded=True)
