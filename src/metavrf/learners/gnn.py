"""Few-shot learning with graph neural networks (Garcia & Bruna, ICLR 2018).

The support samples and one query are the nodes of a graph. A node has a sample's features and its label, one-hot; the
query's is uniform. Each layer learns how much a node listens to each other one, and adds what it hears to the node:

    A_ij = softmax_(j ≠ i) network(|x_i - x_j|),    x_i ← [x_i, leaky(norm(W [x_i, Σ_j A_ij x_j]))]

The last layer has as many outputs as classes, which are the logits at the query's node.

Of each pair the network is computed once, as |x_i - x_j| is symmetric; in the first layer, where the support's nodes
have not heard of the query, once for all queries; and in the last only for pairs with the query.

The last layer fixes the number of classes. The authors' code normalises by the batch, which mixes queries while it
trains; here layers are normalised by themselves. It also maps features to 64 first, which is the default here too. The
preset "paper" has its numbers for one shot (for five, 100 tasks a step on Omniglot, 40 on photographs). Of each task it
asks one query of one class, ours one of each class. Its networks of pictures widen, and those of photographs drop
activations in their last two blocks; here they are ``conv4``.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from metavrf.episodes import Episodes
from metavrf.learners.base import Learner, Prediction
from metavrf.learners.head import of_logits
from metavrf.settings import Count, Range

PAIRS_AT_ONCE = 100_000  # whose activations are held at a time where there is no gradient to take


@dataclass(frozen=True)
class GNNSettings:
    """Graph neural networks."""

    node: Count = 64
    """Features of a node, to which those of the embedding are mapped; beside the label."""
    width: Annotated[int, Range(least=2)] = 96
    """Width of the network on pairs, which is twice as wide at first; a layer adds half as many features."""
    layers: Count = 2
    """Layers before the last one."""


class GNN(Learner):
    """A graph of the support and one query, whose edges are learned. See the module for the idea."""

    citation = "Garcia & Bruna, Few-shot learning with graph neural networks, ICLR 2018"
    solves = ("classification",)
    any_way = False
    Settings = GNNSettings
    presets = {"classes": {"train_way": 0, "batch": 12, "lr": 2e-3}}
    paper = {
        "classes": {"lr": 1e-3, "batch": 100, "query": 1, "dropout": 0.0, "iterations": 80_000, "embedding": "conv4"}
        | {"weight_decay": 1e-6},
        "omniglot": {"batch": 300, "iterations": 100_000, "weight_decay": 0.0},
    }

    def setup(self, generator: torch.Generator) -> None:
        """See :meth:`Learner.setup`."""
        settings, way = self.settings, self.spec.way
        features: Any = self.embedding.features
        self.node = nn.Sequential(nn.Linear(features, settings.node), nn.LayerNorm(settings.node))
        sizes = [settings.node + way + layer * (settings.width // 2) for layer in range(settings.layers + 1)]
        self.edges = nn.ModuleList(edge_network(size, settings.width) for size in sizes)
        self.updates = nn.ModuleList(
            nn.Sequential(nn.Linear(2 * size, settings.width // 2), nn.LayerNorm(settings.width // 2), nn.LeakyReLU())
            for size in sizes[:-1]
        )
        self.last = nn.Linear(2 * sizes[-1], way)

    def solve(self, episodes: Episodes, memory: Any = None, generator: torch.Generator | None = None) -> Prediction:
        """One graph for each query."""
        self.check_way(episodes)
        support = torch.cat([self.node(episodes.support_x), episodes.support_targets], dim=-1)
        query = F.pad(self.node(episodes.query_x), (0, self.spec.way), value=1 / self.spec.way)
        size = query.shape[1]
        if not torch.is_grad_enabled():
            size = max(1, PAIRS_AT_ONCE // (episodes.tasks * (support.shape[1] + 1) ** 2))
        logits = torch.cat([self.logits(support, part) for part in query.split(max(1, size), dim=1)], dim=1)
        return of_logits(logits.unsqueeze(0), episodes)

    def logits(self, support: Tensor, query: Tensor) -> Tensor:
        """``[T, Q, C]`` of first nodes ``[T, S, d]`` and ``[T, Q, d]``."""
        samples, support = support.shape[1], support.unsqueeze(1)  # [T, 1, S, d]: the same for all queries, yet
        for edges, update in zip(self.edges, self.updates, strict=False):
            nodes = torch.cat([support.expand(-1, query.shape[1], -1, -1), query.unsqueeze(2)], dim=2)  # [T, Q, N, d]
            heard = adjacency(edges, support, query) @ nodes
            nodes = torch.cat([nodes, update(torch.cat([nodes, heard], dim=-1))], dim=-1)
            support, query = nodes[:, :, :samples], nodes[:, :, samples]
        weight = across(self.edges[-1], support, query).softmax(-1)  # the query's row is all that is read
        heard = (weight.unsqueeze(2) @ support).squeeze(2)
        logits: Tensor = self.last(torch.cat([query, heard], dim=-1))
        return logits


def edge_network(size: int, width: int) -> nn.Sequential:
    """From |x_i - x_j| to a score."""
    layers: list[nn.Module] = []
    for outputs in (2 * width, 2 * width, width, width):
        layers += [nn.Linear(size, outputs), nn.LayerNorm(outputs), nn.LeakyReLU()]
        size = outputs
    return nn.Sequential(*layers, nn.Linear(size, 1))


def across(edges: nn.Module, support: Tensor, query: Tensor) -> Tensor:
    """Scores ``[T, Q, S]`` of each query with the support's nodes."""
    scores: Tensor = edges((query.unsqueeze(2) - support).abs()).squeeze(-1)
    return scores


def adjacency(edges: nn.Module, support: Tensor, query: Tensor) -> Tensor:
    """A ``[T, Q, S + 1, S + 1]`` of ``support [T, Q, S, d]`` (or one for all queries) and ``query [T, Q, d]``.

    Rows sum to 1, and no node listens to itself. The query comes last.
    """
    samples = support.shape[2]
    one, other = torch.triu_indices(samples, samples, 1, device=support.device)
    among = edges((support[:, :, one] - support[:, :, other]).abs()).squeeze(-1)
    scores = among.new_full((*query.shape[:2], samples + 1, samples + 1), -torch.inf)
    scores[:, :, one, other] = scores[:, :, other, one] = among.expand(-1, query.shape[1], -1)
    scores[:, :, samples, :samples] = scores[:, :, :samples, samples] = across(edges, support, query)
    return scores.softmax(-1)
