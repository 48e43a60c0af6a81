"""CAVIA against explicit loops: FiLM and concatenated inputs, and an inner loop that changes the context alone."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from inner_loops import Smooth, gradients, sine
from inner_loops import pictures as whole_numbers
from metavrf.config import Config
from metavrf.episodes import Episodes
from metavrf.errors import UserError
from metavrf.learners.cavia import GAIN, Cavia, CaviaSettings
from metavrf.learners.inferred import Inferred
from metavrf.nn.embeddings import ConvNet
from metavrf.nn.mlp import Raw
from metavrf.spec import TaskSpec
from metavrf.testing.adaptivity import adaptivity

SETTINGS = CaviaSettings(inner_steps=2, inner_lr=0.5, context=3)


def pictures() -> Episodes:
    episodes = whole_numbers()
    return replace(episodes, support_x=episodes.support_x.double() / 255, query_x=episodes.query_x.double() / 255)


def of_curves() -> Cavia:
    torch.manual_seed(5)
    return Cavia(Smooth((1, 6, 5)), TaskSpec(), SETTINGS).double()


def of_pictures(**settings: Any) -> Cavia:
    torch.manual_seed(6)
    chosen = replace(SETTINGS, **settings)
    learner = Cavia(ConvNet((1, 9, 9), blocks=2, channels=4), TaskSpec((1, 9, 9), None, way=3), chosen).double()
    for change in learner.context:  # which start at zero
        nn.init.normal_(change.weight, std=0.3)  # type: ignore[arg-type]
    for norm in learner.embedding.norms:  # type: ignore[union-attr]
        nn.init.uniform_(norm.weight, 0.5, 2)
        nn.init.uniform_(norm.bias, -1, 1)
    return learner


def film(z: Tensor, change: Tensor) -> Tensor:
    """(1 + γ)·z + β of ``z [N, d, ...]``."""
    scale, shift = (half.reshape(1, -1, *[1] * (z.ndim - 2)) for half in change.chunk(2))
    return z * (1 + scale) + shift


def plain_curves(learner: Cavia, context: Tensor, x: Tensor, own: int) -> Tensor:
    """The context concatenated to the input."""
    first, second = (layer for layer in learner.embedding.modules() if isinstance(layer, nn.Linear))
    context_weight: Any = learner.context[0].weight
    joined = torch.cat([first.weight, context_weight], dim=1)
    z = torch.tanh(torch.cat([x, context.expand(len(x), -1)], dim=1) @ joined.T + first.bias)
    return learner.last(torch.tanh(second(z)))


def plain_pictures(learner: Cavia, context: Tensor, x: Tensor, own: int) -> Tensor:
    """FiLM after each normalisation, by the support's statistics, and on the features."""
    net = learner.embedding
    z = x
    for conv, norm, change in zip(net.convolutions, net.norms, learner.context, strict=True):  # type: ignore[arg-type]
        z = F.conv2d(z, conv.weight, padding=1)
        mean, variance = z[:own].mean((0, 2, 3), keepdim=True), z[:own].var((0, 2, 3), correction=0, keepdim=True)
        z = (z - mean) / (variance + norm.eps).sqrt()
        z = z * norm.weight.view(1, -1, 1, 1) + norm.bias.view(1, -1, 1, 1)
        z = F.relu(F.max_pool2d(film(z, change(context)), 2, ceil_mode=True))
    assert learner.film is not None
    z = z.flatten(1)
    if learner.settings.centred:
        z = z - sum(z[i] for i in range(own)) / own
    return learner.last(film(z, learner.film(context)))


@pytest.mark.parametrize("what", ["curves", "pictures", "centred"])
def test_all_tasks_at_once_give_what_a_plain_loop_over_tasks_gives(what: str) -> None:
    curves = what == "curves"
    learner, episodes = (of_curves(), sine()) if curves else (of_pictures(centred=what == "centred"), pictures())
    network = plain_curves if what == "curves" else plain_pictures
    error = F.mse_loss if what == "curves" else F.cross_entropy
    outputs, losses = [], []
    assert episodes.query_y is not None
    for x, y, asked, target in zip(
        episodes.support_x, episodes.support_y, episodes.query_x, episodes.query_y, strict=True
    ):
        context = torch.zeros(3, dtype=torch.float64, requires_grad=True)
        for _ in range(2):
            loss = error(network(learner, context, x, len(x)), y)
            context = context - 0.5 * torch.autograd.grad(loss, context, create_graph=True)[0]
        outputs.append(network(learner, context, torch.cat([x, asked]), len(x))[len(x) :])
        losses.append(error(outputs[-1], target))
    expected = torch.stack(losses).mean()
    prediction = learner.train()(episodes)
    loss = prediction.terms["mse"] if what == "curves" else prediction.loss
    torch.testing.assert_close(prediction.samples[0], torch.stack(outputs), rtol=1e-6, atol=1e-8)
    torch.testing.assert_close(loss, expected, rtol=1e-6, atol=1e-8)
    batched, looped = gradients(learner, loss), gradients(learner, expected)
    assert {name for name in batched if name != "log_noise"} == looped.keys()
    assert looped["context.0.weight"].abs().max() > 0  # learned through the inner steps alone: the context starts at 0
    for name, gradient in looped.items():
        torch.testing.assert_close(batched[name], gradient, rtol=1e-5, atol=1e-8)


def test_the_inner_steps_change_the_context_alone_and_start_it_at_zero() -> None:
    learner, episodes = of_pictures(), pictures()
    before = {name: value.clone() for name, value in learner.state_dict().items()}
    start = learner.start()
    assert start.keys() == {"context"}
    assert torch.equal(start["context"], torch.zeros(3, dtype=torch.float64))
    adapted = learner.adapt(start, episodes.support_x[0], episodes.support_y[0])
    assert adapted.keys() == {"context"}
    assert adapted["context"].abs().min() > 0
    learner.predict(episodes)
    assert all(torch.equal(value, before[name]) for name, value in learner.state_dict().items())


def test_under_a_context_of_zero_the_network_is_the_plain_one() -> None:
    learner, episodes = of_pictures(), pictures()
    x = episodes.support_x[0]
    plain = learner.last(learner.embedding(x.unsqueeze(0), len(x)).squeeze(0))
    torch.testing.assert_close(learner.outputs(learner.start(), x, len(x)), plain)


def test_pictures_start_by_comparing_features_alone() -> None:
    """One inner step from the start gives a class the likeness to its sample, feature by feature, of either sign."""
    torch.manual_seed(6)
    settings = CaviaSettings(inner_steps=1, inner_lr=0.5, context=36, centred=True)
    learner = Cavia(ConvNet((1, 9, 9), blocks=2, channels=4), TaskSpec((1, 9, 9), None, way=3), settings).double()
    x, y, asked = pictures().support_x[0], pictures().support_y[0], pictures().query_x[0]
    z = learner.embedding(torch.cat([x, asked]).unsqueeze(0), len(x)).squeeze(0)
    z = z - z[: len(x)].mean(0)
    support, query, weight = z[: len(x)], z[len(x) :], learner.last.weight
    torch.testing.assert_close(weight @ weight.T, torch.eye(3, dtype=torch.float64))
    missing = F.one_hot(y, 3) - (support @ weight.T).softmax(-1)
    scale = 1 + GAIN**2 * ((missing @ weight) * support).mean(0)  # whatever the inner learning rate
    found = learner.asked(learner.adapt(learner.start(), x, y), x, asked, len(x))
    torch.testing.assert_close(found, (scale * query) @ weight.T, rtol=1e-4, atol=1e-5)  # drawn in single precision


def test_the_context_is_what_is_inferred_and_can_be_exchanged() -> None:
    learner, episodes = of_pictures().eval(), pictures()
    own = learner.inferred(episodes)
    assert own.values.shape == (3, 3)
    answered = learner.answer(episodes, own)
    torch.testing.assert_close(answered.mean, learner.predict(episodes).mean)
    other = learner.answer(episodes, own.other())
    assert (other.mean - answered.mean).abs().max() > 1e-3
    torch.testing.assert_close(other.mean[2:], learner.answer(episodes[2:], own.at(slice(0, 1))).mean)
    assert torch.equal(own.mean().values[0], own.values.mean(0))
    assert torch.equal(Inferred.joined([own.at(slice(0, 1)), own.at(slice(1, 3))]).values, own.values)


def test_the_adaptivity_test_takes_it() -> None:
    config = Config.of("sine", "cavia")
    learner: Any = config.build(TaskSpec())
    generator = torch.Generator().manual_seed(1)
    nn.init.normal_(learner.context[0].weight, generator=generator)
    episodes = sine()
    assert episodes.query_y is not None
    single = replace(
        episodes,
        support_x=episodes.support_x.float(),
        support_y=episodes.support_y.float(),
        query_x=episodes.query_x.float(),
        query_y=episodes.query_y.float(),
    )
    found = adaptivity(learner.eval(), single)
    predicted = learner.predict(single).mean
    assert single.query_y is not None
    assert found["own"]["mse"] == pytest.approx(F.mse_loss(predicted, single.query_y).item(), rel=1e-4)
    assert found["other"]["mse"] != found["own"]["mse"] != found["mean"]["mse"]
    assert "entropy" not in found


def test_an_embedding_without_a_place_for_the_context_is_refused() -> None:
    with pytest.raises(UserError, match="CAVIA needs an embedding with a layer Linear"):
        Cavia(Raw(1), TaskSpec(), SETTINGS)


def test_the_paper_says_one_or_two_steps_of_rate_one() -> None:
    curves, images = Config.of("sine", "cavia", "paper").model, Config.of("mini-imagenet", "cavia", "paper").model
    assert (curves.context, curves.inner_steps, curves.inner_lr) == (5, 1, 1.0)
    assert (images.context, images.inner_steps, images.inner_lr) == (100, 2, 1.0)
