"""PLATIPUS against MAML, an explicit loop over tasks and the closed form of the divergence."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.distributions import Normal, kl_divergence
from torch.func import functional_call

from inner_loops import Smooth, curve_learner, gradients, picture_learner, pictures, sine
from metavrf.config import Config
from metavrf.learners.maml import MAML, InnerLoop
from metavrf.learners.measuring import measure, prepared
from metavrf.learners.platipus import Platipus, PlatipusSettings
from metavrf.nn.embeddings import ConvNet
from metavrf.spec import TaskSpec
from pictures_on_disk import tasks

NO_VARIANCE = -40.0  # its logarithm
INNER: dict[str, Any] = {"inner_steps": 2, "inner_lr": 0.05}


def of_curves(**settings: Any) -> Platipus:
    torch.manual_seed(5)  # as curve_learner
    return Platipus(Smooth((1, 6, 5)), TaskSpec(), PlatipusSettings(**{**INNER, **settings})).double()


def of_pictures(**settings: Any) -> Platipus:
    torch.manual_seed(6)  # as picture_learner
    chosen = PlatipusSettings(**{"inner_steps": 2, "inner_lr": 0.3, **settings})
    return Platipus(ConvNet((1, 9, 9), blocks=2, channels=4), TaskSpec((1, 9, 9), None, way=3), chosen)


def without_variance(learner: Platipus) -> Platipus:
    with torch.no_grad():
        learner.log_std.fill_(NO_VARIANCE)
        learner.log_inferred_std.fill_(NO_VARIANCE)
    return learner


@pytest.mark.parametrize("what", ["curves", "pictures"])
def test_without_variance_it_is_maml_in_training_and_test(what: str) -> None:
    curves = what == "curves"
    learner = without_variance(of_curves(start_lr=0.0) if curves else of_pictures(start_lr=0.0))
    maml, episodes = (curve_learner(MAML), sine()) if curves else (picture_learner(MAML), pictures())
    torch.testing.assert_close(learner.predict(episodes).mean, maml.predict(episodes).mean)
    found, expected = learner.train()(episodes), maml.train()(episodes)
    assert found.terms["kl"].item() == pytest.approx(0, abs=1e-6)
    assert found.loss is not None and expected.loss is not None
    torch.testing.assert_close(found.loss, expected.loss)
    mine, theirs = gradients(learner, found.loss), gradients(maml, expected.loss)
    for name, gradient in theirs.items():
        torch.testing.assert_close(mine[name], gradient, rtol=1e-4, atol=1e-6)


def test_without_variance_a_start_given_the_support_is_one_more_step_of_maml() -> None:
    learner, episodes = without_variance(of_curves(start_lr=0.05)), sine()
    torch.testing.assert_close(
        learner.predict(episodes).mean, curve_learner(MAML, inner_steps=3).predict(episodes).mean
    )


def test_all_tasks_at_once_give_what_a_plain_loop_over_tasks_gives() -> None:
    learner, episodes = of_curves(start_lr=0.03, start_std=0.1, kl_weight=0.2), sine()
    with torch.no_grad():
        learner.log_inferred_std.add_(0.3)
    prediction = learner.train()(episodes, torch.Generator().manual_seed(3))
    noise = torch.randn(4, len(learner.log_std), generator=torch.Generator().manual_seed(3)).double()
    start = list(learner.start().items())

    def error(values: list[Tensor], x: Tensor, y: Tensor) -> Tensor:
        weights = dict(zip((name for name, _ in start), values, strict=True))
        last, offset = weights.pop("last"), weights.pop("offset")
        z = functional_call(learner.embedding, weights, (x.unsqueeze(0),)).squeeze(0)
        return F.mse_loss(z @ last.T + offset, y)

    losses, divergences = [], []
    for task in range(4):
        x, y, asked = episodes.support_x[task], episodes.support_y[task], episodes.query_x[task]
        assert episodes.query_y is not None
        target = episodes.query_y[task]
        mu = [value for _, value in start]
        means = []
        for rate, (inputs, outputs) in zip(learner.rates, ((x, y), (asked, target)), strict=True):
            slopes = torch.autograd.grad(error(mu, inputs, outputs), mu, create_graph=True)
            means.append([value - rate * slope for value, slope in zip(mu, slopes, strict=True)])
        prior, inferred = means
        values, drawn, at = [], [], 0
        for p, q in zip(prior, inferred, strict=True):
            part = slice(at, at + p.numel())
            at += p.numel()
            sigma, v = (std[part].exp().view_as(p) for std in (learner.log_std, learner.log_inferred_std))
            divergences.append(kl_divergence(Normal(q, v), Normal(p, sigma)).sum())
            drawn.append(q + v * noise[task, part].view_as(q))
        values = drawn
        for _ in range(2):
            slopes = torch.autograd.grad(error(values, x, y), values, create_graph=True)
            values = [value - 0.05 * slope for value, slope in zip(values, slopes, strict=True)]
        losses.append(error(values, asked, target))
    mse, kl = torch.stack(losses).mean(), torch.stack(divergences).sum() / 4
    torch.testing.assert_close(prediction.terms["mse"], mse)
    torch.testing.assert_close(prediction.terms["kl"], kl)
    assert prediction.loss is not None
    found = gradients(learner, prediction.loss)
    expected = gradients(learner, mse + 0.2 * kl)
    found.pop("log_noise")
    assert found.keys() == expected.keys()
    for name, gradient in expected.items():
        torch.testing.assert_close(found[name], gradient, rtol=1e-6, atol=1e-9)


def test_the_answers_inform_the_start_in_training_only() -> None:
    learner, episodes = of_curves(start_lr=0.05), sine()
    assert episodes.query_y is not None
    other = replace(episodes, query_y=episodes.query_y + 1)

    def answers() -> tuple[Tensor, Tensor]:
        one, two = (learner(tasks, torch.Generator().manual_seed(1)).samples for tasks in (episodes, other))
        return one, two

    learner.train()
    one, two = answers()
    assert (one - two).abs().max() > 1e-3
    learner.eval()
    one, two = answers()
    assert torch.equal(one, two)


def test_starts_at_test_time_come_from_the_kept_seed() -> None:
    learner, episodes = of_curves(start_std=0.3, samples=4), sine()
    prediction = learner.predict(episodes)
    assert prediction.samples.shape == (4, 4, 6, 1)
    assert prediction.samples.std(0).min() > 1e-4  # the draws differ
    torch.manual_seed(9)
    assert torch.equal(learner.predict(episodes).samples, prediction.samples)
    torch.testing.assert_close(prediction.mean, prediction.samples.mean(0).float())
    one = learner.predict(episodes.asking(episodes.query_x[:, 2:3]))
    torch.testing.assert_close(one.samples, prediction.samples[:, :, 2:3])
    torch.testing.assert_close(learner.predict(episodes[2:3]).samples, prediction.samples[:, 2:3])
    noise = torch.randn(4, len(learner.log_std), generator=torch.Generator().manual_seed(int(learner.seed)))
    maml = curve_learner(MAML)
    assert isinstance(maml.settings, InnerLoop)
    for draw, epsilon in enumerate(noise.double()):  # MAML from each start, which here has no step before it
        with torch.no_grad():
            learner.rates.zero_()
            drawn = learner.weights(learner.mean(learner.start(), learner.rates[0], learner.start()) + 0.3 * epsilon)
            maml.load_state_dict(
                {f"embedding.{name}": value for name, value in drawn.items() if name not in ("last", "offset")}
                | {"last.weight": drawn["last"], "last.bias": drawn["offset"]},
                strict=False,
            )
        torch.testing.assert_close(learner.predict(episodes).samples[draw], maml.predict(episodes).samples[0])


def test_more_variance_is_a_wider_band() -> None:
    episodes = sine()
    wide, narrow = (of_curves(start_std=std).predict(episodes).std for std in (0.5, 0.01))
    assert wide is not None and narrow is not None
    assert wide.mean() > narrow.mean()


def test_fewer_tasks_are_tested_at_once_the_more_starts_are_drawn() -> None:
    """Each start has activations of its own, which should fit the cache."""
    episodes = tasks(60, way=3, shot=1)

    def at_once(samples: int) -> int:
        return prepared(of_pictures(samples=samples), episodes, None)[2]

    assert at_once(1) == at_once(5) * 5 + at_once(1) % 5 > 5
    found = measure(of_pictures(samples=3), episodes)
    torch.testing.assert_close(measure(of_pictures(samples=3), episodes, 7)["nll"], found["nll"])


def test_the_paper_says_five_inner_steps() -> None:
    model = Config.of("mini-imagenet", "platipus", "paper").model
    assert (model.inner_steps, model.samples) == (5, 10)
