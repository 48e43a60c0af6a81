from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from metavrf.episodes import Episodes
from metavrf.learners.prototypical import nearest_prototype
from metavrf.learners.tadam import TADAM, TADAMSettings
from metavrf.nn.embeddings import ConvNet
from metavrf.protocol import Protocol
from metavrf.spec import TaskSpec

WAY, TASKS, CHANNELS, BLOCKS = 3, 2, 4, 3
SPEC = TaskSpec((1, 9, 9), None, way=WAY, train_classes=7)


def pictures() -> Episodes:
    generator = torch.Generator().manual_seed(0)
    support_y, query_y = (torch.arange(WAY).repeat(n).expand(TASKS, -1) for n in (2, 4))
    support, query = (
        torch.randint(0, 256, (TASKS, y.shape[1], 1, 9, 9), dtype=torch.uint8, generator=generator)
        for y in (support_y, query_y)
    )
    return Episodes(support, support_y, query, query_y, WAY, classes=torch.tensor([[0, 3, 5], [6, 1, 2]]))


def tadam(post: float = 0.0, **settings: Any) -> TADAM:
    """An untrained learner whose post-multipliers are set."""
    torch.manual_seed(0)
    learner = TADAM(ConvNet((1, 9, 9), blocks=BLOCKS, channels=CHANNELS), SPEC, TADAMSettings(**settings))
    with torch.no_grad():
        learner.post.add_(post * torch.randn_like(learner.post))
        layers: Any = learner.layers
        for norm in layers:
            norm.running_mean.normal_()
            norm.running_var.uniform_(0.5, 2)
    return learner.eval()


def test_with_zero_post_multipliers_it_is_a_scaled_prototypical_network() -> None:
    learner, episodes = tadam(scale=2.5), pictures()
    with torch.no_grad():
        embedded = learner.embedded(episodes)
    for task in range(TASKS):
        means = torch.stack([embedded.support_x[task][c == episodes.support_y[task]].mean(0) for c in range(WAY)])
        expected = (-2.5 * torch.cdist(embedded.query_x[task], means).square()).log_softmax(-1)
        torch.testing.assert_close(learner.predict(episodes).mean[task], expected, rtol=1e-4, atol=1e-4)


def film_network(learner: TADAM, images: Tensor, gammas: Tensor, betas: Tensor) -> Tensor:
    """One task's pictures through the network, layer by layer."""
    embedding: Any = learner.embedding
    x = images.float() / 255
    for layer in range(BLOCKS):
        norm, own = embedding.norms[layer], slice(layer * CHANNELS, (layer + 1) * CHANNELS)
        x = F.conv2d(x, embedding.convolutions[layer].weight, padding=1)
        x = F.batch_norm(x, norm.running_mean, norm.running_var, norm.weight, norm.bias)
        x = gammas[own].view(1, -1, 1, 1) * x + betas[own].view(1, -1, 1, 1)
        x = F.relu(F.max_pool2d(x, 2, ceil_mode=True))
    return x.flatten(1)


@torch.no_grad()
def test_the_embedding_is_conditioned_on_the_mean_prototype() -> None:
    learner, episodes = tadam(post=0.5), pictures()
    answer = learner.predict(episodes).samples[0]
    plain = learner.embedded(episodes)
    size = BLOCKS * CHANNELS
    for task in range(TASKS):
        support_y = episodes.support_y[task]
        mean = torch.stack([plain.support_x[task][c == support_y].mean(0) for c in range(WAY)]).mean(0)
        read = learner.post * learner.condition(mean)
        support, query = (
            film_network(learner, x[task], 1 + read[:size], read[size:]) for x in (episodes.support_x, episodes.query_x)
        )
        one = Episodes(support[None], support_y[None], query[None], None, WAY)
        torch.testing.assert_close(answer[task], nearest_prototype(one).samples[0, 0], rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(learner.embedded(episodes).support_x, plain.support_x)  # no hook is left


@pytest.mark.parametrize("protocol", [Protocol(), Protocol(statistics="support")])
def test_a_query_is_answered_as_if_there_were_no_other(protocol: Protocol) -> None:
    learner, episodes = tadam(post=0.5), pictures()
    whole = learner.predict(episodes, protocol=protocol).mean
    for query in range(3):
        alone = episodes.asking(episodes.query_x[:, query : query + 1])
        answer = learner.predict(alone, protocol=protocol).mean
        torch.testing.assert_close(answer[:, 0], whole[:, query], rtol=1e-3, atol=1e-4)
    both = Protocol(statistics="episode")
    seen = learner.predict(episodes, protocol=both).mean[:, :1]
    assert not torch.allclose(learner.predict(episodes.asking(episodes.query_x[:, :1]), protocol=both).mean, seen)


def test_the_loss_of_the_training_classes_decays_with_the_steps() -> None:
    learner, episodes = tadam(post=0.1, decay_steps=2, post_penalty=0.2), pictures()
    learner.train()
    weights = []
    for _ in range(6):
        prediction = learner(episodes)
        rest = prediction.terms["nll"] + 0.2 * learner.post.square().sum()
        weights.append(((prediction.loss - rest) / prediction.terms["training_classes"]).item())
        learner.remember(prediction)
    assert weights == pytest.approx([1.0, 1.0, 0.9, 0.9, 0.81, 0.81], rel=1e-3)


def test_the_condition_is_learned_from_a_start_that_has_none() -> None:
    learner = tadam().train()
    loss = learner(pictures()).loss
    loss.backward()
    assert learner.post.grad is not None and learner.post.grad.abs().max() > 0
    assert learner.log_scale.grad is not None and learner.log_scale.grad.abs() > 0
    assert learner.classifier.weight.grad is not None and learner.classifier.weight.grad.abs().max() > 0
