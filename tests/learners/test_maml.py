from __future__ import annotations

from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.func import functional_call

from inner_loops import curve_learner, gradients, picture_learner, pictures, sine
from metavrf.config import Config
from metavrf.episodes import Episodes
from metavrf.errors import UserError
from metavrf.learners.maml import MAML
from metavrf.learners.meta_sgd import MetaSGD
from metavrf.spec import TaskSpec

each_class = pytest.mark.parametrize("kind", [MAML, MetaSGD])
each_order = pytest.mark.parametrize("first_order", [False, True])


def plain_loop(learner: MAML, episodes: Episodes, *, create_graph: bool) -> tuple[Tensor, Tensor]:
    """MAML task by task with torch.autograd: query outputs ``[T, Q, p]`` and the mean loss."""
    embedding = learner.embedding
    outputs, losses = [], []
    for task in range(episodes.tasks):
        x, y, asked = episodes.support_x[task], episodes.support_y[task], episodes.query_x[task]
        weights = learner.start()

        def answer(weights: dict[str, Tensor], samples: Tensor, own: int) -> Tensor:
            inner = {name: w for name, w in weights.items() if name not in ("last", "offset")}
            z = functional_call(embedding, inner, (samples.unsqueeze(0), own)).squeeze(0)
            if learner.settings.centred:
                z = z - sum(z[i] for i in range(own)) / own
            return z @ weights["last"].T + weights["offset"]

        def error(out: Tensor, target: Tensor) -> Tensor:
            return F.mse_loss(out, target) if episodes.way is None else F.cross_entropy(out, target)

        for _ in range(learner.settings.inner_steps):
            loss = error(answer(weights, x, len(x)), y)
            gradient = torch.autograd.grad(loss, list(weights.values()), create_graph=create_graph)
            pairs = zip(weights.items(), gradient, strict=True)
            weights = {name: w - learner.rate(name) * g for (name, w), g in pairs}
        outputs.append(answer(weights, torch.cat([x, asked]), len(x))[len(x) :])
        assert episodes.query_y is not None
        losses.append(error(outputs[-1], episodes.query_y[task]))
    return torch.stack(outputs), torch.stack(losses).mean()


@each_class
@each_order
@pytest.mark.parametrize("what", ["curves", "pictures", "pictures without what they have in common"])
def test_all_tasks_at_once_give_what_a_plain_loop_over_tasks_gives(
    kind: type[MAML], first_order: bool, what: str
) -> None:
    if what == "curves":
        learner, episodes = curve_learner(kind, first_order=first_order), sine()
    else:
        learner, episodes = picture_learner(kind, first_order=first_order, centred=what != "pictures"), pictures()
    prediction = learner.train()(episodes)
    loss = prediction.terms["mse"] if what == "curves" else prediction.loss
    batched = gradients(learner, loss)
    outputs, expected = plain_loop(learner, episodes, create_graph=not first_order)
    torch.testing.assert_close(prediction.samples[0], outputs.detach(), rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(loss, expected, rtol=1e-4, atol=1e-5)
    looped = gradients(learner, expected)
    assert {name for name in batched if name != "log_noise"} == looped.keys()
    for name, gradient in looped.items():
        torch.testing.assert_close(batched[name], gradient, rtol=1e-3, atol=1e-5)


@each_class
def test_the_outer_gradient_is_that_of_finite_differences(kind: type[MAML]) -> None:
    """So it goes through the inner steps, second derivatives and all."""
    learner, episodes = curve_learner(kind), sine()

    def error() -> Tensor:
        loss: Tensor = learner.train()(episodes).terms["mse"]
        return loss

    exact = gradients(learner, error())
    step = 1e-6
    for name, parameter in learner.named_parameters():
        if name == "log_noise":
            continue
        flat = parameter.data.view(-1)
        for index in range(0, len(flat), max(1, len(flat) // 4)):
            before = flat[index].item()
            values = []
            for sign in (1, -1):
                flat[index] = before + sign * step
                values.append(error().item())
            flat[index] = before
            numeric = (values[0] - values[1]) / (2 * step)
            assert exact[name].view(-1)[index].item() == pytest.approx(numeric, rel=1e-4, abs=1e-7), name


def test_first_and_second_order_agree_in_the_loss_and_differ_in_the_gradient() -> None:
    episodes = sine()
    second, first = (curve_learner(MAML, first_order=order) for order in (False, True))
    torch.testing.assert_close(second.train()(episodes).loss, first.train()(episodes).loss)
    one, other = (gradients(learner, learner.train()(episodes).terms["mse"]) for learner in (second, first))
    assert max((one[name] - other[name]).abs().max().item() for name in one) > 1e-3


@each_class
def test_inner_steps_lower_the_error_on_the_support(kind: type[MAML]) -> None:
    learner, episodes = curve_learner(kind, inner_steps=10), sine()
    start = learner.start()
    for task in range(episodes.tasks):
        x, y = episodes.support_x[task], episodes.support_y[task]
        assert learner.task_loss(learner.adapt(start, x, y), x, y) < learner.task_loss(start, x, y)


def test_test_time_may_take_other_inner_steps() -> None:
    episodes = sine()
    one, three = curve_learner(MAML, inner_steps=1, test_inner_steps=3), curve_learner(MAML, inner_steps=3)
    torch.testing.assert_close(one.predict(episodes).mean, three.predict(episodes).mean)
    torch.testing.assert_close(
        one.train()(episodes).samples, curve_learner(MAML, inner_steps=1).train()(episodes).samples
    )


def test_centred_features_of_the_support_have_no_mean_and_those_of_curves_stay() -> None:
    z = torch.randn(7, 5, generator=torch.Generator().manual_seed(1))
    seen = picture_learner(MAML, centred=True).features(z, 4)
    torch.testing.assert_close(seen[:4].mean(0), torch.zeros(5))
    torch.testing.assert_close(seen[6] - seen[0], z[6] - z[0])
    assert torch.equal(picture_learner(MAML).features(z, 4), z)
    assert torch.equal(curve_learner(MAML, centred=True).features(z, 4), z)


def test_centred_or_not_a_query_is_answered_as_if_there_were_no_other() -> None:
    learner, episodes = picture_learner(MAML, centred=True), pictures()
    alone = learner.predict(episodes.asking(episodes.query_x[:, 2:3]))
    torch.testing.assert_close(alone.samples, learner.predict(episodes).samples[:, :, 2:3], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", ["maml", "meta-sgd", "cavia", "platipus", "imaml", "meta-lstm"])
def test_classes_are_centred_by_default_and_not_in_the_papers(name: str) -> None:
    assert Config.of("omniglot", name).model.centred
    assert not Config.of("omniglot", name, "paper").model.centred


def test_by_default_tests_take_the_inner_steps_of_training_and_in_the_paper_more() -> None:
    """After one long step that training never went beyond, more of them break what it learned."""
    ours, paper = Config.of("omniglot", "maml").model, Config.of("omniglot", "maml", "paper").model
    assert ours.test_inner_steps == 0
    assert (paper.inner_steps, paper.test_inner_steps) == (1, 3)


def test_predicting_leaves_the_weights_as_they_were() -> None:
    learner = picture_learner(MAML)
    before = {name: value.clone() for name, value in learner.state_dict().items()}
    learner.predict(pictures())
    assert all(torch.equal(value, before[name]) for name, value in learner.state_dict().items())


def test_meta_sgd_starts_its_rates_at_random_and_learns_one_for_each_weight() -> None:
    learner = curve_learner(MetaSGD, inner_lr=0.1)
    assert isinstance(learner, MetaSGD)
    assert sum(rate.numel() for rate in learner.rates.values()) == sum(w.numel() for w in learner.start().values())
    flat = torch.cat([rate.flatten() for rate in learner.rates.values()])
    assert flat.min() >= 0.005
    assert flat.max() <= 0.1
    found = gradients(learner, learner.train()(sine()).terms["mse"])
    assert all(found[f"rates.{name}"].abs().max() > 0 for name in learner.rates)


def test_the_noise_of_curves_is_learned_beside_the_error_and_does_not_change_it() -> None:
    learner, episodes = curve_learner(MAML), sine()
    prediction = learner.train()(episodes)
    both, error = (gradients(learner, prediction.loss), gradients(learner, learner(episodes).terms["mse"]))
    assert both.pop("log_noise").abs() > 0
    for name, gradient in both.items():
        torch.testing.assert_close(gradient, error[name])
    assert prediction.std is not None
    torch.testing.assert_close(prediction.std, torch.ones_like(prediction.std))  # exp(log_noise) at the start


def test_another_number_of_classes_is_refused() -> None:
    with pytest.raises(UserError, match=r"answers 3 classes, .* give tasks of --way 3, not 5"):
        picture_learner(MAML).predict(pictures(way=5))


def test_ready_features_adapt_a_linear_layer() -> None:
    config = Config.of("./features.safetensors", "maml").with_options(way=3)
    learner = config.build(TaskSpec((6,), None))
    episodes = pictures()
    episodes = replace(
        episodes,
        support_x=torch.randn(*episodes.support_x.shape[:2], 6),
        query_x=torch.randn(*episodes.query_x.shape[:2], 6),
    )
    assert learner.predict(episodes).mean.shape == (3, 12, 3)
