"""Graph neural networks against explicit loops over nodes, one graph per query."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn

from metavrf.learners import gnn as module
from metavrf.learners.gnn import GNN, GNNSettings, adjacency
from metavrf.nn.mlp import Raw
from metavrf.spec import TaskSpec
from ready_tasks import classes

SIZE = 5


def gnn(layers: int = 2) -> GNN:
    torch.manual_seed(1)
    return GNN(Raw(SIZE), TaskSpec((SIZE,), None, way=3), GNNSettings(node=6, width=8, layers=layers))


def slow_adjacency(edges: nn.Module, nodes: Tensor) -> Tensor:
    """Of one graph ``[N, d]``, edge by edge."""
    size = len(nodes)
    rows = torch.zeros(size, size)
    for i in range(size):
        for j in range(size):
            if i != j:
                rows[i, j] = math.exp(edges((nodes[i] - nodes[j]).abs()).item())
        rows[i] /= rows[i].sum()
    return rows


@torch.no_grad()
def test_the_adjacency_is_learned_from_differences_and_its_rows_sum_to_one() -> None:
    learner = gnn()
    generator = torch.Generator().manual_seed(2)
    size = learner.edges[0][0].in_features
    support, query = (torch.randn(2, n, size, generator=generator) for n in (4, 3))
    shared = adjacency(learner.edges[0], support.unsqueeze(1), query)
    each = adjacency(learner.edges[0], support.unsqueeze(1).expand(-1, 3, -1, -1), query)
    torch.testing.assert_close(shared, each)
    torch.testing.assert_close(shared.sum(-1), torch.ones(2, 3, 5))
    for t in range(2):
        for q in range(3):
            expected = slow_adjacency(learner.edges[0], torch.cat([support[t], query[t, q : q + 1]]))
            torch.testing.assert_close(shared[t, q], expected, rtol=1e-4, atol=1e-6)
    assert (shared - shared.mean()).abs().max() > 0.05


@torch.no_grad()
def test_answers_are_those_of_one_graph_after_the_other() -> None:
    for layers in (1, 2, 3):
        learner, episodes = gnn(layers), classes()
        found = learner.predict(episodes).mean
        for t in range(2):
            for q in range(4):
                nodes = torch.stack(
                    [
                        torch.cat([learner.node(x), torch.eye(3)[y]])
                        for x, y in zip(episodes.support_x[t], episodes.support_y[t], strict=True)
                    ]
                    + [torch.cat([learner.node(episodes.query_x[t, q]), torch.full((3,), 1 / 3)])]
                )
                for edges, update in zip(list(learner.edges)[:-1], learner.updates, strict=True):
                    listens = slow_adjacency(edges, nodes)
                    heard = [
                        sum((listens[i, j] * nodes[j] for j in range(7)), torch.zeros_like(nodes[0])) for i in range(7)
                    ]
                    new = [update(torch.cat([nodes[i], heard[i]])) for i in range(7)]
                    nodes = torch.cat([nodes, torch.stack(new)], dim=1)
                last = slow_adjacency(learner.edges[-1], nodes)[-1] @ nodes
                logits = learner.last(torch.cat([nodes[-1], last]))
                torch.testing.assert_close(found[t, q], logits.log_softmax(-1), rtol=1e-4, atol=1e-4)


def test_no_query_hears_of_another_in_training_either() -> None:
    learner, episodes = gnn().train(), classes()
    episodes.query_x.requires_grad_()
    learner(episodes).samples[0, :, 1].sum().backward()
    assert episodes.query_x.grad is not None
    assert episodes.query_x.grad.abs().sum((0, 2)).bool().tolist() == [False, True, False, False]


def test_the_order_of_the_support_does_not_matter() -> None:
    learner, episodes = gnn(), classes()
    order = torch.tensor([3, 0, 4, 1, 5, 2])
    shuffled = replace(episodes, support_x=episodes.support_x[:, order], support_y=episodes.support_y[:, order])
    torch.testing.assert_close(learner.predict(shuffled).mean, learner.predict(episodes).mean)


def test_queries_in_parts_are_answered_alike(monkeypatch: pytest.MonkeyPatch) -> None:
    learner, episodes = gnn(), classes()
    whole = learner.predict(episodes).mean
    monkeypatch.setattr(module, "PAIRS_AT_ONCE", 1)
    torch.testing.assert_close(learner.predict(episodes).mean, whole)


def test_gradients_reach_every_weight() -> None:
    learner = gnn()
    learner(classes()).loss.backward()
    for name, parameter in learner.named_parameters():
        if not name.startswith("edges") or not name.endswith("12.bias"):  # what all scores share, a softmax removes
            assert parameter.grad is not None and parameter.grad.abs().max() > 0, name
