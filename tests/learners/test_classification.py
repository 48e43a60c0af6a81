"""Every learner on pictures: the two protocols, and the mathematics of classes."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from awake import awake, ridge_head
from metavrf.config import Config
from metavrf.episodes import Episodes
from metavrf.errors import UserError
from metavrf.learners import LEARNERS
from metavrf.learners.base import Learner
from metavrf.learners.csn import CSN
from metavrf.learners.head import RIDGE_FLOOR
from metavrf.learners.kernel import KernelLearner
from metavrf.learners.maml import MAML
from metavrf.learners.metavrf import MetaVRF
from metavrf.learners.relation import Relation
from metavrf.protocol import INDUCTIVE, Protocol, Statistics
from metavrf.spec import TaskSpec
from pictures_on_disk import CLASSES, SIDE
from pictures_on_disk import tasks as tasks_on_bank

KERNEL_LEARNERS = [("metavrf", "none"), ("metavrf", "lstm"), ("metavrf", "bilstm"), ("rff", "none")]
OF_CLASSES = [name for name in LEARNERS if "classification" in LEARNERS[name].solves]
EVERY_LEARNER = KERNEL_LEARNERS + [(name, "none") for name in OF_CLASSES if name not in ("metavrf", "rff")]
OF_ANY_WAY = [(name, context) for name, context in EVERY_LEARNER if LEARNERS[name].any_way]
OF_THE_TASK_ALONE: tuple[Statistics, ...] = ("running", "support")
each_kernel_learner = pytest.mark.parametrize(("name", "context"), KERNEL_LEARNERS)
each_learner = pytest.mark.parametrize(("name", "context"), EVERY_LEARNER)


def with_statistics(
    chosen: Sequence[Statistics], among: Sequence[tuple[str, str]] = EVERY_LEARNER
) -> pytest.MarkDecorator:
    """Every learner with all of these statistics that it has."""
    cases = [(n, c, s) for n, c in among for s in chosen if s != "running" or LEARNERS[n].embeds_alone]
    return pytest.mark.parametrize(("name", "context", "statistics"), cases)


def tasks(count: int = 4, way: int = 4, shot: int = 2, query: int = 3, seed: int = 0) -> Episodes:
    return tasks_on_bank(count, way, shot, query, seed).looked_up()


def noise(like: Tensor) -> Tensor:
    return torch.randint(0, 256, like.shape, dtype=torch.uint8)


def experienced(name: str = "metavrf", context: str = "none", **options: Any) -> Learner:
    """A learner with weights, scale, running statistics and context as after some training."""
    options = {"embedding": "conv4", "channels": 16, "way": 4, **options}
    if issubclass(LEARNERS[name], KernelLearner):
        options = {"bases": 64, **options}
    if name == "metavrf":
        options["context"] = context
    config = Config.of("./pictures", name).with_options(**options)
    learner = awake(config.build(TaskSpec((1, SIDE, SIDE), None, train_classes=CLASSES)))
    for norm in (module for module in learner.modules() if isinstance(module, nn.BatchNorm2d)):
        nn.init.uniform_(norm.weight, 0.5, 2)
        nn.init.uniform_(norm.bias, -1, 1)
        norm.momentum = 0.5  # a few steps are then many
    learner.initialise(tasks(seed=1))
    with torch.no_grad():
        for step in range(6):
            learner.remember(learner.train()(tasks(seed=2 + step)))
        if isinstance(learner, KernelLearner):
            ridge_head(learner).beta.fill_(0.2)
        if isinstance(learner, Relation):
            learner.score.weight.mul_(30)  # it starts with hardly an opinion
        if isinstance(learner, CSN):
            learner.weights[-1].get_parameter("weight").mul_(10)  # likewise
        if isinstance(learner, MAML) and learner.starts_level:
            nn.init.normal_(learner.last.weight, std=0.5)  # it starts with none
    return learner.eval()


def kernel_learner(*names: str, **options: Any) -> KernelLearner:
    learner = experienced(*names, **options)
    assert isinstance(learner, KernelLearner)
    return learner


def close(value: Tensor, expected: Tensor) -> None:
    torch.testing.assert_close(value, expected, rtol=0, atol=1e-4)


@with_statistics(OF_THE_TASK_ALONE)
def test_a_query_is_answered_as_if_there_were_no_other(name: str, context: str, statistics: Statistics) -> None:
    learner, episodes, protocol = experienced(name, context), tasks(), Protocol(statistics)
    together = learner.predict(episodes, protocol=protocol).mean
    alone = replace(episodes, query_x=episodes.query_x[:, 5:6], query_y=None)
    close(learner.predict(alone, protocol=protocol).mean, together[:, 5:6])
    others = noise(episodes.query_x)
    others[:, 5] = episodes.query_x[:, 5]
    close(learner.predict(replace(episodes, query_x=others), protocol=protocol).mean[:, 5], together[:, 5])
    assert learner.label(protocol) == "inductive"
    assert (together - together.mean(1, keepdim=True)).abs().max() > 0.1  # queries do differ


@pytest.mark.parametrize("statistics", OF_THE_TASK_ALONE)
def test_a_query_seen_from_several_views_is_answered_as_if_there_were_no_other(statistics: Statistics) -> None:
    learner, episodes, protocol = experienced(), tasks(), Protocol(statistics, "flip-shift")
    plain = learner.predict(episodes).mean
    learner.check_protocol(protocol)
    together = learner.predict(episodes, protocol=protocol).mean
    others = noise(episodes.query_x)
    others[:, 5] = episodes.query_x[:, 5]
    close(learner.predict(replace(episodes, query_x=others), protocol=protocol).mean[:, 5], together[:, 5])
    assert learner.label(protocol) == "inductive"
    assert (together - plain).abs().max() > 0.01
    close(learner.predict(episodes).mean, plain)


@each_learner
def test_a_prediction_under_one_protocol_leaves_the_next_as_it_was_to_the_bit(name: str, context: str) -> None:
    learner, episodes = experienced(name, context), tasks()
    before = learner.predict(episodes).mean
    state = {key: value.clone() for key, value in learner.state_dict().items()}
    protocols = [Protocol("support"), Protocol("episode")]
    if learner.embeds_alone:
        protocols += [replace(protocol, views="flip-shift") for protocol in (INDUCTIVE, *protocols)]
    for protocol in protocols:
        answer = learner.predict(episodes, protocol=protocol).mean
        usual = learner.statistics(INDUCTIVE) == protocol.statistics and protocol.views == "one"
        assert torch.equal(answer, before) == usual
        assert torch.equal(learner.predict(episodes).mean, before)
    assert all(torch.equal(value, state[key]) for key, value in learner.state_dict().items())


def test_features_that_are_ready_can_be_answered_under_any_protocol_without_an_embedding() -> None:
    features = tasks().embedded(lambda x: x.flatten(2).float() / 255)
    learner = LEARNERS["prototypical"](spec=TaskSpec((SIDE * SIDE,), None))
    answers = [learner.predict(features, protocol=Protocol(s)).mean for s in ("running", "support", "episode")]
    assert torch.equal(answers[0], answers[1]) and torch.equal(answers[0], answers[2])


def test_the_default_protocol_is_the_learners_own_inductive_one() -> None:
    for name, statistics in (("metavrf", "running"), ("maml", "support")):
        learner, episodes = experienced(name), tasks()
        assert learner.statistics(INDUCTIVE) == statistics
        named = learner.predict(episodes, protocol=Protocol.named("inductive", statistics)).mean
        assert torch.equal(learner.predict(episodes).mean, named)
        assert learner.statistics(Protocol.named("transductive")) == "episode"


def test_views_are_refused_where_there_is_no_picture_or_no_one_embedding() -> None:
    flipped = Protocol(views="flip")
    features = Config.of("ready.safetensors").build(TaskSpec((300,), None))
    for learner in (experienced("maml"), features):
        with pytest.raises(UserError, match="views = 'flip' is for learners that embed pictures"):
            learner.check_protocol(flipped)
    points = Config.of("sine").build(TaskSpec())
    with pytest.raises(UserError, match="views are for classes"):
        points.check_protocol(flipped)


@each_learner
def test_the_transductive_protocol_sees_the_other_queries_and_says_so(name: str, context: str) -> None:
    learner, episodes, protocol = experienced(name, context), tasks(), Protocol.named("transductive")
    others = noise(episodes.query_x)
    others[:, 5] = episodes.query_x[:, 5]
    one, other = (learner.predict(replace(episodes, query_x=x), protocol=protocol) for x in (episodes.query_x, others))
    assert (other.mean[:, 5] - one.mean[:, 5]).abs().amax(1).min() > 0.01  # in every task
    assert learner.label(protocol) == "transductive"


@with_statistics((*OF_THE_TASK_ALONE, "episode"))
def test_a_task_is_solved_on_its_own(name: str, context: str, statistics: Statistics) -> None:
    learner, episodes, protocol = experienced(name, context), tasks(), Protocol(statistics)
    together = learner.predict(episodes, protocol=protocol).mean
    close(torch.cat([learner.predict(task, protocol=protocol).mean for task in episodes.batches(1)]), together)
    order = torch.tensor([2, 0, 3, 1])
    shuffled = Episodes(episodes.support_x[order], episodes.support_y[order], episodes.query_x[order], way=4)
    close(learner.predict(shuffled, protocol=protocol).mean, together[order])


@each_kernel_learner
@pytest.mark.parametrize("feature_map", ["cosine", "sincos"])
def test_logits_are_kernel_ridge_regression_on_one_hot_targets(name: str, context: str, feature_map: str) -> None:
    learner, episodes = kernel_learner(name, context, feature_map=feature_map), tasks()
    unequal = torch.tensor([0, 1, 1, 2, 2, 2, 3, 3])  # shots of 1, 2, 3 and 2, the mean is 2
    weights = 2 / np.array([1, 2, 2, 3, 3, 3, 2, 2])  # every class weighs alike
    episodes = replace(episodes, support_y=unequal.expand(4, -1))
    learner.temperature.fill_(1.7)
    predicted = learner.predict(episodes).mean.double().numpy()
    onehot = np.eye(4)[unequal]
    with torch.inference_mode():
        length = math.exp(learner.log_length.item())
        support, query = (
            learner.embedding(x).double().numpy() / length for x in (episodes.support_x, episodes.query_x)
        )
        means = np.stack([[z[unequal.numpy() == k].mean(0) for k in range(4)] for z in support])  # instance pooling
        summary = torch.from_numpy(means.mean(1)).float()  # then the mean over classes
        mu, sigma = np.zeros(summary.shape), np.ones(summary.shape)
        if isinstance(learner, MetaVRF):
            gaussian = learner.posterior(learner.context(summary)[0])
            mu, sigma = gaussian[0].double().numpy(), np.exp(gaussian[1].double().numpy() / 2)
    assert learner.epsilon is not None
    head, epsilon = ridge_head(learner), learner.epsilon[0].double().numpy()
    gamma, lam = math.exp(head.log_gamma.item()), math.exp(head.log_lambda.item()) + RIDGE_FLOOR
    assert np.abs(sigma[0] - sigma[1]).max() > 1e-3 or not isinstance(learner, MetaVRF)  # kernels of their own
    for task in range(4):
        omega = mu[task][:, None] + sigma[task][:, None] * epsilon

        def phi(z: Any, omega: Any = omega) -> Any:
            if learner.phase is None:
                return np.concatenate([np.cos(z @ omega), np.sin(z @ omega)], axis=-1) / math.sqrt(omega.shape[1])
            return np.cos(z @ omega + learner.phase[0].double().numpy()) * math.sqrt(2 / omega.shape[1])

        s, q = phi(support[task]), phi(query[task])
        logits = gamma * q @ s.T @ np.linalg.solve(s @ s.T + lam * np.diag(1 / weights), onehot) + 0.2
        expected = logits / 1.7 - np.log(np.exp(logits / 1.7).sum(-1, keepdims=True))
        np.testing.assert_allclose(predicted[task], expected, rtol=1e-4, atol=1e-4)


@each_kernel_learner
def test_a_class_whose_samples_are_given_twice_weighs_as_before(name: str, context: str) -> None:
    learner, episodes = kernel_learner(name, context), tasks()
    once = learner.predict(episodes).mean
    rows = torch.tensor([0, 1, 0, 1, 2, 3, 4, 5, 6, 7])  # both of class 0 twice
    doubled = replace(episodes, support_x=episodes.support_x[:, rows], support_y=episodes.support_y[:, rows])
    # Weighed by class, the samples count as they did; but they weigh 1 on average, and there are 10 instead of 8.
    with torch.no_grad():
        ridge_head(learner).log_lambda.copy_((ridge_head(learner).lam * 2.5 / 2 - RIDGE_FLOOR).log())
    close(learner.predict(doubled).mean, once)


@each_learner
def test_answers_are_log_probabilities_and_a_temperature_divides_them(name: str, context: str) -> None:
    learner, episodes = experienced(name, context), tasks()
    cold = learner.predict(episodes).mean
    learner.temperature.fill_(2.5)
    warm = learner.predict(episodes).mean
    for answer in (cold, warm):
        close(answer.logsumexp(-1), torch.zeros(4, 12))
    close(warm, (cold / 2.5).log_softmax(-1))
    assert torch.equal(warm.argmax(-1), cold.argmax(-1))
    assert (warm.amax(-1) < cold.amax(-1)).all()


# VERSA draws a sample for each class in turn, so another order is another sample.
@with_statistics((*OF_THE_TASK_ALONE, "episode"), [case for case in OF_ANY_WAY if case[0] != "versa"])
def test_class_numbers_and_the_order_of_the_support_are_arbitrary(
    name: str, context: str, statistics: Statistics
) -> None:
    learner, episodes, protocol = experienced(name, context), tasks(), Protocol(statistics)
    expected = learner.predict(episodes, protocol=protocol).mean
    renamed, order = torch.tensor([2, 0, 3, 1]), torch.randperm(8)
    other_names = replace(episodes, support_y=renamed[episodes.support_y])
    close(learner.predict(other_names, protocol=protocol).mean[..., renamed], expected)
    shuffled = replace(episodes, support_x=episodes.support_x[:, order], support_y=episodes.support_y[:, order])
    close(learner.predict(shuffled, protocol=protocol).mean, expected)


@pytest.mark.parametrize(("name", "context"), OF_ANY_WAY)
def test_ways_and_shots_may_differ_between_training_and_test(name: str, context: str) -> None:
    learner = experienced(name, context)  # 4-way, 2-shot
    prediction = learner.predict(tasks(40, way=7, shot=3, query=5))
    assert prediction.mean.shape == (40, 35, 7)
    target = torch.arange(7).repeat_interleave(5)
    right = (prediction.mean.argmax(-1) == target).float().mean()
    untrained = name in ("relation", "versa")  # they compare by networks, which are at chance here: 0.143 ± 0.009
    assert right > 0.1 if untrained else right > 0.2


@pytest.mark.parametrize(("name", "context"), [*KERNEL_LEARNERS, ("versa", "none")])
def test_posterior_samples_are_averaged_as_probabilities(name: str, context: str) -> None:
    fewer = {} if name == "versa" else {"bases": 8}
    prediction = experienced(name, context, samples=4, **fewer).predict(tasks())
    assert prediction.samples.shape == (4, 4, 12, 4)
    assert prediction.samples.std(0).max() > 0.01  # they do differ
    close(prediction.mean.exp(), prediction.samples.softmax(-1).mean(0))
    assert (prediction.mean.exp() - prediction.samples.mean(0).softmax(-1)).abs().max() > 1e-3  # not as logits


@pytest.mark.parametrize("context", ["none", "lstm", "bilstm"])
def test_a_context_that_sees_labels_knows_what_one_of_pictures_alone_cannot(context: str) -> None:
    episodes = tasks()
    exchanged = replace(episodes, support_y=episodes.support_y.roll(1, dims=1))  # the same pictures, in other classes
    for inputs, same in (("x", True), ("xy", False)):
        learner = kernel_learner("metavrf", context, context_inputs=inputs)
        one, other = (learner.infer(learner.placed(learner.embedded(e))[0]).mean for e in (episodes, exchanged))
        assert ((one - other).abs().max().item() < 1e-5) == same


@pytest.mark.parametrize("context", ["none", "lstm", "bilstm"])
def test_the_numbering_of_classes_is_arbitrary_to_a_context_that_sees_labels(context: str) -> None:
    learner, episodes = experienced("metavrf", context, context_inputs="xy"), tasks()
    expected = learner.predict(episodes).mean
    renamed, order = torch.tensor([2, 0, 3, 1]), torch.randperm(8)
    close(learner.predict(replace(episodes, support_y=renamed[episodes.support_y])).mean[..., renamed], expected)
    shuffled = replace(episodes, support_x=episodes.support_x[:, order], support_y=episodes.support_y[:, order])
    close(learner.predict(shuffled).mean, expected)
