from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from few_shot import FEATURES, SPEC, SUPPORT_Y, TASKS, WAY, tasks
from metavrf.episodes import Episodes
from metavrf.learners.leo import LENGTH, LEO, LEOSettings, support_loss
from metavrf.nn.mlp import Raw
from metavrf.testing.adaptivity import adaptivity


def leo(**settings: Any) -> LEO:
    torch.manual_seed(0)
    return LEO(Raw(FEATURES), SPEC, LEOSettings(**{"latent": 3, "finetune_lr": 0.1, **settings})).double()


def doubled() -> Episodes:
    return tasks().embedded(lambda z: z.double())


def features(x: Tensor) -> Tensor:
    return LENGTH * x / x.norm(dim=-1, keepdim=True)


def relation(learner: LEO, one: Tensor, other: Tensor) -> Tensor:
    """The whole relation network on the pair side by side."""
    first = torch.cat([learner.first.weight, learner.second.weight], dim=1)
    layers: Any = learner.relation
    second, last = layers[1].weight, layers[3].weight
    return last @ F.relu(second @ F.relu(first @ torch.cat([one, other])))


def codes(learner: LEO, support: Tensor) -> tuple[Tensor, Tensor]:
    """Mean and deviation of one task's codes by loops over classes and samples: Eq. 4 of the paper."""
    encoded = support @ learner.encoder.weight.T
    found = []
    for own in range(WAY):
        pairs = []
        for other in range(WAY):
            of_class = [relation(learner, a, b) for a in encoded[own == SUPPORT_Y] for b in encoded[other == SUPPORT_Y]]
            pairs.append(torch.stack(of_class).mean(0))
        found.append(torch.stack(pairs).mean(0))
    mean, log_std = torch.stack(found).chunk(2, -1)
    return mean, log_std.exp()


def test_a_class_is_encoded_by_its_relations_to_all_classes() -> None:
    learner, episodes = leo(), doubled().embedded(features)
    mean, std = learner.encode(episodes)
    for task in range(TASKS):
        expected = codes(learner, episodes.support_x[task])
        torch.testing.assert_close(mean[task], expected[0])
        torch.testing.assert_close(std[task], expected[1])


def test_without_inner_steps_weights_are_the_decoded_code_of_the_encoder() -> None:
    learner, episodes = leo(inner_steps=0, finetune_steps=0), doubled()
    answer = learner.predict(episodes).samples[0]
    for task in range(TASKS):
        code, _ = codes(learner, features(episodes.support_x[task]))
        weights = code @ learner.decoder.weight[:FEATURES].T
        torch.testing.assert_close(answer[task], features(episodes.query_x[task]) @ weights.T)


def plain_loop(learner: LEO, episodes: Episodes) -> tuple[Tensor, Tensor]:
    """LEO task by task with torch.autograd and without noise: query logits, and their mean cross entropy."""
    outputs, losses = [], []
    for task in range(TASKS):
        x, y = features(episodes.support_x[task]), episodes.support_y[task]
        code, _ = codes(learner, x)
        decoder = learner.decoder.weight[:FEATURES]
        for _ in range(learner.settings.inner_steps):
            loss = F.cross_entropy(x @ (code @ decoder.T).T, y)
            (gradient,) = torch.autograd.grad(loss, code, create_graph=True)
            code = code - learner.log_inner_lr.exp() * gradient
        weights = code @ decoder.T
        for _ in range(learner.settings.finetune_steps):
            (gradient,) = torch.autograd.grad(F.cross_entropy(x @ weights.T, y), weights, create_graph=True)
            weights = weights - learner.log_finetune_lr.exp() * gradient
        outputs.append(features(episodes.query_x[task]) @ weights.T)
        assert episodes.query_y is not None
        losses.append(F.cross_entropy(outputs[-1], episodes.query_y[task]))
    return torch.stack(outputs), torch.stack(losses).mean()


def gradients(learner: LEO, loss: Tensor) -> dict[str, Tensor]:
    learner.zero_grad()
    loss.backward()
    return {name: p.grad.clone() for name, p in learner.named_parameters() if p.grad is not None}


def test_the_inner_loop_and_the_gradient_through_it_are_those_of_a_plain_loop_over_tasks() -> None:
    learner, episodes = leo(inner_steps=3, finetune_steps=2), doubled()
    expected, loss = plain_loop(learner, episodes)
    torch.testing.assert_close(learner.predict(episodes).samples[0], expected.detach())
    found = gradients(learner, learner.train()(episodes).terms["nll"])  # without a generator nothing is sampled
    looped = gradients(learner, loss)
    assert found.keys() == looped.keys()
    for name, gradient in looped.items():
        torch.testing.assert_close(found[name], gradient, rtol=1e-5, atol=1e-10)
    assert found["log_inner_lr"].abs() > 1e-6
    assert found["log_finetune_lr"].abs() > 1e-6


def test_inner_steps_lower_the_error_on_the_support() -> None:
    learner, episodes = leo(inner_lr=0.1), doubled().embedded(features)
    code, _ = learner.encode(episodes)
    adapted = learner.decode(learner.adapt_codes(episodes, code))
    assert support_loss(episodes, adapted) < support_loss(episodes, learner.decode(code))


def test_the_divergence_is_that_of_two_normals() -> None:
    learner, episodes = leo(), doubled()
    mean, std = learner.encode(episodes.embedded(features))
    normal = torch.distributions.Normal
    expected = torch.distributions.kl_divergence(normal(mean, std), normal(0.0, 1.0)).mean()
    assert learner(episodes).terms["kl"].item() == pytest.approx(expected.item())


def test_training_samples_codes_and_weights_and_testing_does_not() -> None:
    learner, episodes = leo(), doubled()
    learner.train()
    first, again, other = (learner(episodes, torch.Generator().manual_seed(seed)).samples for seed in (1, 1, 2))
    assert torch.equal(first, again)
    assert not torch.equal(first, other)
    assert torch.equal(learner.predict(episodes).mean, learner.predict(episodes).mean)


def test_answers_with_another_tasks_classifier_are_worse() -> None:
    learner, episodes = leo(), doubled()
    learner.eval()
    found = learner.inferred(episodes)
    torch.testing.assert_close(learner.answer(episodes, found).samples, learner.predict(episodes).samples)
    result = adaptivity(learner, episodes)
    assert result["other"]["accuracy"] < result["own"]["accuracy"]
