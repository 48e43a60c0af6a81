"""Many kernels weighted by evidence: what a task's prediction depends on, and what it equals."""

from __future__ import annotations

import json
import math
import pickle
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from scipy.stats import multivariate_normal
from torch import Tensor, nn

from awake import awake
from metavrf.episodes import Episodes
from metavrf.errors import UserError
from metavrf.kernels import ridge
from metavrf.kernels.spectral import Exact, Spectral
from metavrf.learners.adapted import AdaptedMixture
from metavrf.learners.base import Prediction
from metavrf.learners.head import RIDGE_FLOOR, MixtureHead, RidgeHead
from metavrf.learners.kernel import KernelSettings
from metavrf.learners.measuring import calibrate_band, measure
from metavrf.learners.metavrf import MetaVRF, MetaVRFSettings
from metavrf.learners.prototypical import Prototypical
from metavrf.learners.shared import Shared
from metavrf.nn.mixture import MixturePosterior
from metavrf.nn.mlp import MLP, Raw
from metavrf.nn.recall import OWN
from metavrf.randomness import stream
from metavrf.spec import TaskSpec
from metavrf.tasks.functions import family
from metavrf.testing.adaptivity import adaptivity
from metavrf.testing.evaluation import evaluate_learner

FEATURES = 6
SETTINGS: list[dict[str, Any]] = [
    {},
    {"moves": False},
    {"combs": 2},
    {"moves": False, "rough": 2},
    {"moves": False, "rough": 2, "combs": 1, "candidates": 8},
    {"moves": False, "rough": 1, "combs": 1, "shapes": 3},
    {"context": "lstm"},
    {"context": "bilstm", "context_inputs": "x"},
    {"context": "lstm", "context_size": 8, "combs": 2, "rough": 1},
    {"unit_features": True},
]
each_setting = pytest.mark.parametrize("settings", SETTINGS, ids=str)


def sine(tasks: int = 5, shot: int = 4, query: int = 7, seed: int = 0) -> Episodes:
    return family("sine").sample(tasks, shot, query, stream(seed, "train"))


def drifting(streams: int = 2, length: int = 4, seed: int = 0) -> Episodes:
    return family("sine-drift").sample(streams * length, 3, 6, stream(seed, "train"), length)


def blobs(tasks: int = 3, way: int = 3, shot: int = 3, query: int = 5, seed: int = 0) -> Episodes:
    """Clouds around centres that are not far apart, so that kernels differ in what they say."""
    generator = torch.Generator().manual_seed(seed)
    labels = torch.arange(way).repeat(shot + query).expand(tasks, -1)
    centres = torch.randn(tasks, way, FEATURES, generator=generator)
    x = centres.gather(1, labels.unsqueeze(-1).expand(-1, -1, FEATURES))
    x = x + 0.7 * torch.randn(x.shape, generator=generator)
    support = way * shot
    return Episodes(x[:, :support], labels[:, :support], x[:, support:], labels[:, support:], way=way)


def vary(model: MetaVRF) -> MetaVRF:
    """Weights as after some training: nothing that would make a claim hold for nothing is left at its start."""
    awake(model)
    generator = torch.Generator().manual_seed(11)
    with torch.no_grad():
        if isinstance(model.posterior, MixturePosterior):
            posterior = model.posterior
            posterior.scalars.add_(0.1 * torch.randn(posterior.scalars.shape, generator=generator))
            posterior.mean.add_(0.05 * torch.randn(posterior.mean.shape, generator=generator))
            if posterior.moves is not None:
                last = posterior.moves[2]
                assert isinstance(last, nn.Linear)
                last.weight.uniform_(-0.2, 0.2, generator=generator)
            model.log_power.fill_(-1.0)
        if model.recall is not None:
            if model.recall.correction is not None:
                model.recall.correction.weight.uniform_(-0.5, 0.5, generator=generator)
            model.recall.learned.add_(0.1 * torch.randn(model.recall.learned.shape, generator=generator))
        if isinstance(model.head, MixtureHead):
            for parameter in model.head.parameters():
                parameter.add_(0.1 * torch.randn(parameter.shape, generator=generator))
    return model


def curves(*, length: int = 1, embedding: MLP | Raw | None = None, **settings: Any) -> MetaVRF:
    """Six kernels of curves, exact; noise is large, so that rounding is not magnified and several kernels count."""
    defaults: dict[str, Any] = {"components": 6, "train_kernel": "exact", "context": "none", "context_inputs": "xy"}
    merged = MetaVRFSettings(**{**defaults, "noise": 0.1, "kl_weight": 0.0, **settings})
    if embedding is None:  # combs have high frequencies, to which the rounding of features would matter
        embedding = Raw(1) if merged.combs or merged.candidates or merged.shapes else MLP((1, 12, FEATURES))
    model = MetaVRF(embedding, TaskSpec(stream=length), merged)
    model.initialise(sine(40, 6, seed=1))
    return vary(model).eval()


def classes(**settings: Any) -> MetaVRF:
    defaults: dict[str, Any] = {"components": 5, "train_kernel": "exact", "context": "none", "gamma": 6.0}
    merged = MetaVRFSettings(**{**defaults, "noise": 0.1, **settings})
    model = MetaVRF(Raw(FEATURES), TaskSpec((FEATURES,), None), merged)
    model.initialise(blobs(10, seed=1))
    return vary(model).eval()


def close(value: Tensor | None, expected: Tensor | None, tolerance: float = 1e-4) -> None:
    assert value is not None and expected is not None
    torch.testing.assert_close(value.double(), expected.double(), rtol=0, atol=tolerance)


def same(found: Prediction, expected: Prediction) -> None:
    close(found.mean, expected.mean)
    if expected.std is not None:
        close(found.std, expected.std)


def head_of(model: MetaVRF) -> MixtureHead:
    assert isinstance(model.head, MixtureHead)
    return model.head


# A task is solved on its own


@each_setting
def test_a_prediction_is_unchanged_by_other_queries_the_batch_and_the_order_of_tasks(settings: dict[str, Any]) -> None:
    model, episodes = curves(**settings), sine()
    together = model.predict(episodes)
    queries = torch.cat([episodes.query_x[:, :1], 5 * torch.randn(5, 3, 1)], dim=1)
    apart = model.predict(episodes.asking(queries))
    close(apart.mean[:, :1], together.mean[:, :1])
    alone = [model.predict(task) for task in episodes.batches(1)]
    close(torch.cat([found.mean for found in alone]), together.mean)
    order = torch.tensor([3, 0, 4, 1, 2])
    shuffled = Episodes(episodes.support_x[order], episodes.support_y[order], episodes.query_x[order])
    close(model.predict(shuffled).mean, together.mean[order])
    rows = torch.tensor([2, 0, 3, 1])
    reordered = replace(episodes, support_x=episodes.support_x[:, rows], support_y=episodes.support_y[:, rows])
    same(model.predict(reordered), together)
    assert model.label() == "inductive"


@pytest.mark.parametrize("settings", [{}, {"evidence": "leave-one-out"}, {"context_inputs": "xy"}], ids=str)
def test_classes_are_unchanged_by_other_queries_the_batch_and_their_numbering(settings: dict[str, Any]) -> None:
    model, episodes = classes(**settings), blobs()
    together = model.predict(episodes).mean
    close(model.predict(episodes.asking(episodes.query_x[:, 2:3])).mean, together[:, 2:3])
    close(torch.cat([model.predict(task).mean for task in episodes.batches(1)]), together)
    renamed = torch.tensor([2, 0, 1])
    close(model.predict(replace(episodes, support_y=renamed[episodes.support_y])).mean[..., renamed], together)
    close(together.exp().sum(-1), torch.ones(3, 15))


# What it equals


def test_the_mixture_is_gaussian_processes_weighted_by_their_evidence() -> None:
    model, episodes = curves(combs=2), sine()
    head, found = head_of(model), model.predict(episodes)
    with torch.no_grad():
        task = model.placed(model.embedded(episodes))[0]
        q = model.infer(task)
        gram = Exact().gram(torch.cat([task.support_x, task.query_x], 1), q, 4).numpy()
        before, asked = (head.mean_function(z, q)[..., 0].double().numpy() for z in (task.support_x, task.query_x))
    amplitude, prior = q.amplitude.detach().double().numpy(), q.log_prior.detach().double().numpy()
    noise = q.noise.detach().double().numpy() + RIDGE_FLOOR
    power = math.exp(model.log_power.item())
    for t in range(5):
        y, log_weight, means, variances = task.support_y[t, :, 0].double().numpy(), [], [], []
        for m in range(6):
            cross = amplitude[m, t] * gram[m, t, :, 4:]
            covariance = amplitude[m, t] * (gram[m, t, :, :4] + noise[m, t] * np.eye(4))
            evidence = multivariate_normal.logpdf(y, before[m, t], covariance)
            log_weight.append(prior[m, t] + power * evidence)
            means.append(asked[m, t] + cross.T @ np.linalg.solve(covariance, y - before[m, t]))
            process = amplitude[m, t] - np.einsum("sq,sq->q", cross, np.linalg.solve(covariance, cross))
            variances.append(process + amplitude[m, t] * noise[m, t])
        weight = np.exp(log_weight - np.max(log_weight))
        weight /= weight.sum()
        np.testing.assert_allclose(found.mean[t, :, 0], weight @ np.stack(means), atol=1e-4)
        log_weights = model.inferred(model.embedded(episodes)).log_weights
        assert log_weights is not None
        np.testing.assert_allclose(log_weights[:, t].exp(), weight, atol=1e-5)
        assert found.variance is not None
        widths = found.variance[:, t, :, 0].unflatten(0, (-1, 6)).numpy() / np.stack(variances)  # of the tails
        np.testing.assert_allclose(widths, np.broadcast_to(widths[:, :1, :1], widths.shape), rtol=1e-3)
        assert weight.max() < 0.999  # several do count


def test_every_tail_has_the_mean_of_its_kernel_and_all_weights_sum_to_one() -> None:
    found = curves().predict(sine())
    assert found.samples.shape[0] % 6 == 0
    by_tail = found.samples.unflatten(0, (-1, 6))
    assert torch.equal(by_tail, by_tail[:1].expand_as(by_tail))
    close(found.weights.sum(0), torch.ones(5))
    assert found.variance is not None
    widths = found.variance.unflatten(0, (-1, 6)).mean((1, 2, 3, 4))
    assert (widths.diff() > 0).all()


def test_the_band_of_validation_tasks_holds_90_percent_of_their_targets_and_changes_no_density() -> None:
    model, sizes = curves(), (2, 5, 10)
    groups = [sine(60, shot, 20, seed=shot) for shot in sizes]
    before = [measure(model, group) for group in groups]
    calibrate_band(model, groups)
    after = [measure(model, group) for group in groups]
    for old, new in zip(before, after, strict=True):
        assert new["coverage90"].mean().item() == pytest.approx(0.9, abs=0.005)
        assert torch.equal(old["nll"], new["nll"])
    assert max(abs(old["coverage90"].mean().item() - 0.9) for old in before) > 0.02  # so there was something to do
    shares = [head_of(model).band90(shot) for shot in (2, 3, 5, 10, 40)]
    assert min(shares[0], shares[2]) <= shares[1] <= max(shares[0], shares[2])
    assert shares[4] == pytest.approx(shares[3], abs=1e-6)


def test_the_band_has_ends_however_overconfident_a_model_is() -> None:
    model, episodes = curves(), sine(20, 5, 20)
    with torch.no_grad():
        head_of(model).tails[0, 0] -= 60  # deviations of nothing
    calibrate_band(model, [episodes])
    found = model.predict(episodes)
    assert found.band90 < 1
    low, high = found.band()
    assert (low < high).all()


def test_the_loss_is_the_density_of_the_mixture_at_the_queries() -> None:
    model, episodes = curves(), sine()
    assert episodes.query_y is not None
    with torch.no_grad():
        prediction: Prediction = model(episodes)
    expected = -model.predict(episodes).log_density(episodes.query_y).mean()
    close(prediction.loss, expected, 1e-6)
    assert measure(model, episodes)["nll"].mean().item() == pytest.approx(expected.item(), abs=1e-6)


def test_one_exact_kernel_is_the_papers_closed_form() -> None:
    model, episodes = curves(components=1, ridge=0.05, gamma=1.3), sine()
    assert isinstance(model.head, RidgeHead)
    predicted = model.predict(episodes).mean.squeeze(-1).numpy()
    with torch.no_grad():
        task = model.placed(model.embedded(episodes))[0]
        q = model.infer(task)
    z = torch.cat([task.support_x, task.query_x], 1).double().numpy()
    delta = z[:, :4, None] - z[:, None]
    mean, std = q.mean[0].double().numpy(), q.std[0].double().numpy()
    kernel = np.cos(np.einsum("tsnd,td->tsn", delta, mean))
    kernel *= np.exp(-0.5 * np.square(delta * std[:, None, None]).sum(-1))
    for t in range(5):
        ridged = kernel[t, :, :4] + (0.05 + RIDGE_FLOOR) * np.eye(4)
        alpha = np.linalg.solve(ridged, episodes.support_y[t, :, 0].double().numpy())
        np.testing.assert_allclose(predicted[t], 1.3 * kernel[t, :, 4:].T @ alpha, atol=1e-4)


@pytest.mark.parametrize("combs", [0, 2])
def test_random_features_at_test_time_converge_to_the_exact_kernels_prediction(combs: int) -> None:
    model, episodes = curves(combs=combs), sine()
    exact = model.predict(episodes).mean
    assert isinstance(model.kernel(None), Exact)
    errors = []
    for bases in (512, 8192):
        squares = []
        for seed in range(10):
            model.redraw(stream(seed, "bases"), bases=bases)
            squares.append((model.predict(episodes).mean - exact).square().mean())
        errors.append(torch.stack(squares).mean().sqrt().item())
    assert 0 < errors[1] < 0.05 * exact.std()
    assert errors[0] / errors[1] == pytest.approx(4, rel=0.35)  # as 1/√D


def test_several_draws_of_bases_are_several_times_the_kernels() -> None:
    model, episodes = curves(), sine()
    single = model.predict(episodes).samples.shape[0]
    model.redraw(stream(1, "bases"), bases=64, samples=3)
    found = model.predict(episodes)
    assert found.samples.shape[0] == 3 * single
    close(found.weights.sum(0), torch.ones(5))


# Folded


@each_setting
def test_the_folded_predictor_of_curves_is_predict(settings: dict[str, Any]) -> None:
    model, task = curves(**settings), sine(1)
    module = model.adapted(task)
    assert isinstance(module, AdaptedMixture)
    mean, std = module(task.query_x[0])
    expected = model.predict(task)
    close(mean, expected.mean[0], 1e-4)
    assert expected.std is not None
    close(std, expected.std[0], 1e-4)


@pytest.mark.parametrize("settings", [{}, {"evidence": "leave-one-out"}, {"context_inputs": "xy"}], ids=str)
def test_the_folded_predictor_of_classes_is_predict(settings: dict[str, Any]) -> None:
    model, task = classes(**settings), blobs(1)
    model.temperature.fill_(1.7)
    task = replace(task, support_y=torch.tensor([[0, 1, 2, 0, 0, 2, 0, 1, 2]]), query_y=None)  # shots of 4, 2 and 3
    module = model.adapted(task, embedded=True)
    assert isinstance(module, AdaptedMixture)
    close(module(task.query_x[0]), model.predict(task).mean[0].exp())


def test_the_folded_predictor_does_not_change_with_its_learner_and_can_be_pickled() -> None:
    for model, task in ((curves(combs=2), sine(1)), (classes(), blobs(1))):
        features = model.embedded(task)
        module, x = model.adapted(features, embedded=True), features.query_x[0]
        before = module(x)
        with torch.no_grad():
            for tensor in model.state_dict().values():
                tensor.add_(0.5)
        for again in (module, pickle.loads(pickle.dumps(module))):
            answer = again(x)
            for value, expected in zip(answer, before, strict=True):
                assert torch.equal(value, expected)


# Evidence of classes


def by_kernel(model: MetaVRF, episodes: Episodes) -> tuple[Spectral, Tensor, Tensor]:
    """The kernels, K | K̃, and the evidence."""
    task, head = model.placed(model.embedded(episodes))[0], head_of(model)
    q = model.infer(task)
    kernel = Exact().gram(torch.cat([task.support_x, task.query_x], 1), q, task.support_x.shape[1])
    return q, kernel, head.evidence(head.fit(kernel, q, task), q, kernel, task)


@torch.no_grad()
def test_the_marginal_evidence_of_classes_is_that_of_one_hot_targets_summed_over_classes() -> None:
    model, episodes = classes(), blobs()
    q, kernel, evidence = by_kernel(model, episodes)
    lam = q.noise.double() + RIDGE_FLOOR
    covariance = q.amplitude.double()[..., None, None] * (kernel[..., :9] + lam[..., None, None] * torch.eye(9))
    normal = torch.distributions.MultivariateNormal(torch.zeros(9, dtype=torch.double), covariance)
    onehot = episodes.support_targets.double()
    close(evidence, sum((normal.log_prob(column) for column in onehot.unbind(-1)), torch.zeros(())), 1e-8)


@torch.no_grad()
def test_the_leave_one_out_evidence_is_how_well_each_sample_is_told_by_the_others() -> None:
    model, episodes = classes(evidence="leave-one-out"), blobs()
    q, kernel, evidence = by_kernel(model, episodes)
    onehot, expected = episodes.support_targets.double(), torch.zeros(5, 3, dtype=torch.double)
    for left_out in range(9):
        others = [row for row in range(9) if row != left_out]
        rest = kernel[..., others, :][..., [*others, left_out]]
        mean = ridge.solve(rest, onehot[:, others], q.noise.double() + RIDGE_FLOOR).mean.squeeze(-2)
        told = (head_of(model).log_gamma.exp().reshape(5, 1, 1) * mean).log_softmax(-1)
        expected += (told * onehot[:, left_out]).sum(-1)
    close(evidence, expected, 1e-6)


@torch.no_grad()
def test_one_shot_has_nothing_to_leave_out_so_the_marginal_evidence_counts() -> None:
    left_out, marginal = (classes(evidence=kind) for kind in ("leave-one-out", "marginal"))
    marginal.load_state_dict(left_out.state_dict())
    episodes = blobs(shot=1)
    close(by_kernel(left_out, episodes)[2], by_kernel(marginal, episodes)[2], 1e-9)


# What is learned


def train_briefly(model: Any, batches: list[Episodes], lr: float = 5e-3) -> list[float]:
    optimizer, losses = torch.optim.Adam(model.parameters(), lr=lr), []
    for step, episodes in enumerate(batches):
        prediction: Prediction = model.train()(episodes, stream(0, "draws", step))
        assert prediction.loss is not None
        optimizer.zero_grad()
        prediction.loss.backward()
        optimizer.step()
        model.remember(prediction)
        losses.append(prediction.loss.item())
    model.eval()
    return losses


@pytest.mark.parametrize(
    "settings",
    [
        {"combs": 2},
        {"kl_weight": 0.1},
        {"context": "lstm"},
        {"context": "bilstm"},
        {"context": "lstm", "context_size": 8, "moves": False},
    ],
    ids=str,
)
def test_every_parameter_of_a_mixture_has_a_gradient(settings: dict[str, Any]) -> None:
    streams = settings.get("context") in ("lstm", "bilstm")
    model = curves(length=4 if streams else 1, **settings)
    batch = drifting() if streams else sine()
    model.remember(model.train()(batch))  # so that the LSTM's state is not zero
    prediction: Prediction = model(batch)
    assert prediction.loss is not None
    prediction.loss.backward()
    without = [
        name for name, p in model.named_parameters() if p.grad is None or not (p.grad.isfinite().all() and p.grad.any())
    ]
    assert without == []


def test_a_few_steps_lower_the_loss_of_a_mixture() -> None:
    model = curves(embedding=Raw(1), moves=False)
    losses = train_briefly(model, [sine(20, seed=step) for step in range(40)], lr=2e-2)
    assert sum(losses[-10:]) < sum(losses[:10]) - 3


def test_kernels_start_where_the_tasks_are() -> None:
    x = torch.linspace(-5, 5, 12).reshape(1, 12, 1).expand(30, -1, -1)
    frequency = torch.linspace(0.8, 1.2, 30).reshape(30, 1, 1)
    y = 2 * torch.sin(frequency * x + torch.rand(30, 1, 1))
    settings = MetaVRFSettings(components=16, train_kernel="exact", context="none", moves=False)
    model = MetaVRF(Raw(1), TaskSpec(), settings)
    episodes = Episodes(x, y, x[:, :1])
    model.initialise(episodes)
    peaks, weights = model.spectrum(episodes, torch.linspace(-5, 5, 50))
    assert peaks.shape == weights.shape == (16, 30)
    close(weights.sum(0), torch.ones(30))
    told = (weights * peaks).sum(0)
    assert (told - frequency.flatten()).abs().max() < 0.15
    assert torch.corrcoef(torch.stack([told, frequency.flatten()]))[0, 1] > 0.8


def test_guards_do_not_move_while_the_other_kernels_learn() -> None:
    model = curves(guards=2, moves=False)
    assert isinstance(model.posterior, MixturePosterior)
    before = model.posterior(None, 1)
    train_briefly(model, [sine(seed=step) for step in range(3)])
    after = model.posterior(None, 1)
    for name in ("mean", "std", "amplitude", "noise"):
        one, other = getattr(before, name), getattr(after, name)
        assert torch.equal(one[:2], other[:2])
        assert (one[2:] != other[2:]).any()


def shared(**settings: Any) -> Shared:
    merged = KernelSettings(**{"bases": 64, "ridge": 1e-2, **settings})
    model = Shared(MLP((1, 12, FEATURES)), TaskSpec(), merged)
    model.initialise(sine(20, 6, seed=1))
    return model


@pytest.mark.parametrize("train_kernel", ["features", "exact"])
def test_shared_learns_one_kernel_that_is_the_same_for_all_tasks(train_kernel: str) -> None:
    model = shared(train_kernel=train_kernel)
    start = model.mean.detach().clone(), model.log_variance.detach().clone()
    train_briefly(model, [sine(seed=step) for step in range(3)])
    assert (model.mean != start[0]).all()
    assert (model.log_variance != start[1]).all()
    q = model.infer(model.placed(model.embedded(sine()))[0])
    for value in (q.mean, q.std):
        assert value.shape == (1, 5, FEATURES)
        assert torch.equal(value, value[:, :1].expand_as(value))
    assert "kl" not in model(sine()).terms


# Streams


each_context = pytest.mark.parametrize(
    "settings",
    [
        {"context": "bayes"},
        {"context": "lstm"},
        {"context": "bilstm"},
        {"context": "lstm", "context_size": 8, "moves": False},
        {"context": "bilstm", "context_size": 8},
        {"context": "bayes", "between": True, "moves": False},
    ],
    ids=str,
)


@each_context
def test_a_task_of_a_stream_sees_the_supports_before_it_and_nothing_else(settings: dict[str, Any]) -> None:
    model, episodes = curves(length=4, **settings), drifting()
    before = model.predict(episodes).mean
    other_queries = episodes.query_x.clone()
    other_queries[2] += 1
    after = model.predict(episodes.asking(other_queries)).mean
    rest = torch.arange(8) != 2
    close(after[rest], before[rest])
    support_y = episodes.support_y.clone()
    support_y[2] = -2 * support_y[2]
    moved = (model.predict(replace(episodes, support_y=support_y)).mean - before).abs().amax((1, 2))
    assert moved[[0, 1, 4, 5, 6, 7]].max() < 1e-4  # not the tasks before it, and not another stream
    assert moved[2] > 1e-2
    assert moved[3] > 1e-3


@each_context
def test_a_stream_one_by_one_is_the_stream_at_once(settings: dict[str, Any]) -> None:
    model, episodes = curves(length=4, **settings), drifting()
    together = model.predict(episodes)
    assert together.std is not None
    for number in range(2):
        tasks = model.stream()
        for position in range(4):
            row = 4 * number + position
            found = tasks.solve(
                (episodes.support_x[row, :, 0].numpy(), episodes.support_y[row, :, 0].numpy()), episodes.query_x[row]
            )
            close(found.mean[0], together.mean[row])
            assert found.std is not None
            close(found.std[0], together.std[row])


def test_tasks_that_stand_alone_remember_nothing_of_each_other() -> None:
    model = curves(length=4, context="bayes")
    alone = replace(drifting(), stream=1)
    close(torch.cat([model.predict(task).mean for task in alone.batches(1)]), model.predict(alone).mean)
    assert (model.predict(alone).mean - model.predict(drifting()).mean).abs().max() > 1e-2


def test_plain_bayes_in_a_stream_is_the_evidence_of_all_supports_so_far() -> None:
    model, episodes = curves(length=4, context="bayes", moves=False), drifting()
    features = model.embedded(episodes)
    alone = model.inferred(replace(features, stream=1))
    in_stream = model.inferred(features)
    assert alone.log_weights is not None and in_stream.log_weights is not None
    prior = alone.kernels.log_prior.log_softmax(0)
    likelihood = (alone.log_weights - prior).unflatten(1, (2, 4))
    expected = (prior.unflatten(1, (2, 4)) + likelihood.cumsum(-1)).log_softmax(0)
    close(in_stream.log_weights.unflatten(1, (2, 4)).exp(), expected.exp())


@pytest.mark.parametrize(
    "settings",
    [
        {"context": "lstm", "context_size": 8},
        {"context": "bilstm", "context_size": 8},
        {"context": "bayes", "between": True},
    ],
    ids=str,
)
def test_with_kernels_between_it_starts_as_plain_bayes_but_for_their_weight(settings: dict[str, Any]) -> None:
    plain = curves(length=4, context="bayes", moves=False, embedding=Raw(1))
    model = curves(length=4, **settings, moves=False, embedding=Raw(1))
    assert model.recall is not None and isinstance(model.head, MixtureHead)
    weights = plain.state_dict()
    weights["head.waves"] = torch.cat([torch.zeros(OWN, 1, 2, 1), weights["head.waves"]])
    model.load_state_dict(weights, strict=False)
    corrections = [] if model.recall.correction is None else list(model.recall.correction.parameters())
    for parameter in (*corrections, model.recall.learned):
        nn.init.zeros_(parameter)
    episodes = drifting()
    found, expected = (m.inferred(m.embedded(episodes)).log_weights for m in (model, plain))
    assert found is not None and expected is not None
    close(found[OWN:].softmax(0), expected.exp(), 3e-3)  # the carry forgets a three-thousandth a task
    nn.init.constant_(model.recall.learned, -10)
    close(model.predict(episodes).mean, plain.predict(episodes).mean, 3e-3)


@pytest.mark.parametrize("settings", [{"context": "bayes"}, {"context": "lstm", "context_size": 8}], ids=str)
def test_classes_may_form_streams(settings: dict[str, Any]) -> None:
    model, episodes = classes(**settings), replace(blobs(4), stream=4)
    together, tasks = model.predict(episodes).mean, model.stream()
    for row in range(4):
        close(tasks.solve(replace(episodes, stream=1)[row : row + 1]).mean[0], together[row])


def test_kernels_between_are_asked_for_where_the_plain_update_is() -> None:
    with pytest.raises(UserError, match="between = true is for context = 'bayes', not 'lstm'"):
        curves(context="lstm", between=True)


def test_a_single_kernel_has_no_weights_to_carry() -> None:
    with pytest.raises(UserError, match="needs --components of 2 or more"):
        curves(components=1, context="bayes")


def test_an_evaluation_of_streams_says_so_and_shows_each_position() -> None:
    model, episodes = curves(length=4, context="bayes"), drifting(6)
    result = evaluate_learner(model, episodes, seed=0)
    assert (result.protocol, result.stream) == ("inductive, stream of 4", 4)
    by_hand = result.per_task.double().unflatten(0, (6, 4)).mean(0)
    assert result.by_position == pytest.approx(by_hand.tolist())
    for batch in (1, 9):  # never less than a stream
        assert evaluate_learner(model, episodes, seed=0, batch=batch).mean == pytest.approx(result.mean, rel=1e-5)
    assert evaluate_learner(model, replace(episodes, stream=1), seed=0).by_position is None


# Adaptivity


def slow_and_fast(tasks: int = 20) -> Episodes:
    """Every other task has three times the frequency."""
    generator = torch.Generator().manual_seed(4)
    x = 10 * torch.rand(tasks, 20, 1, generator=generator) - 5
    frequency = torch.tensor([0.6, 1.8]).repeat(tasks // 2).reshape(tasks, 1, 1)
    y = 2 * torch.sin(frequency * x + 3 * torch.rand(tasks, 1, 1, generator=generator))
    return Episodes(x[:, :7], y[:, :7], x[:, 7:], y[:, 7:])


def two_kernels() -> MetaVRF:
    """A kernel of slow waves and one of fast ones."""
    settings = MetaVRFSettings(components=2, train_kernel="exact", context="none", moves=False, noise=1e-3)
    model = MetaVRF(Raw(1), TaskSpec(), settings)
    assert isinstance(model.posterior, MixturePosterior)
    model.posterior.start_at(torch.tensor([[0.6], [1.8]]), torch.full((2, 1), math.log(0.05)), 2.0)
    return model.eval()


def test_a_learner_that_ignores_the_task_answers_as_well_with_any_inference() -> None:
    model, episodes = shared(), sine(10)
    found = adaptivity(model.eval(), episodes)
    usual = evaluate_learner(model, episodes, seed=0)
    for name in ("own", "mean", "other"):
        assert found[name]["mse"] == pytest.approx(usual.mean, rel=1e-4)
        assert found[name]["nll"] == pytest.approx(usual.nll, rel=1e-4)
    assert "entropy" not in found


@pytest.mark.parametrize("batch", [None, 3])
def test_of_sharply_different_kernels_a_tasks_own_weights_are_the_best(batch: int | None) -> None:
    model, episodes = two_kernels(), slow_and_fast()
    found = adaptivity(model, episodes, batch)
    own = evaluate_learner(model, episodes, seed=0)
    assert found["own"]["mse"] == pytest.approx(own.mean, rel=1e-4)
    assert found["own"]["nll"] == pytest.approx(own.nll, rel=1e-4)
    assert found["own"]["mse"] < 0.1 * found["mean"]["mse"] < found["other"]["mse"]
    for name in ("mean", "other"):
        for gap in ("difference", "nll_difference"):
            assert found[name][gap]["mean"] > found[name][gap]["ci95"] > 0
            assert found[name][gap]["p_value"] < 0.01
    assert found["entropy"]["before"] == pytest.approx(math.log(2), abs=0.01)
    assert found["entropy"]["after"] < 0.1
    assert found["entropy"]["removed"] > 0.9


def test_the_adaptivity_of_regression_and_of_classes_is_plain_data() -> None:
    for model, episodes, metric in ((curves(), sine(), "mse"), (classes(), blobs(), "accuracy")):
        found = json.loads(json.dumps(adaptivity(model, episodes)))
        assert found.keys() == {"metric", "own", "mean", "other", "entropy"}
        assert found["metric"] == metric
        assert found["own"].keys() == {metric, "nll"}
        for name in ("mean", "other"):
            assert found[name].keys() == {metric, "nll", "difference", "nll_difference"}
            assert found[name]["difference"].keys() == {"mean", "ci95", "p_value"}
        assert found["entropy"].keys() == {"before", "after", "removed"}


def test_tasks_of_several_sizes_are_tested_together() -> None:
    model, groups = two_kernels(), [slow_and_fast(6), slow_and_fast(10)[4:]]
    groups[1] = replace(groups[1], support_x=groups[1].support_x[:, :5], support_y=groups[1].support_y[:, :5])
    assert adaptivity(model, groups)["own"]["mse"] == pytest.approx(evaluate_learner(model, groups, 0).mean, rel=1e-4)


def test_the_adaptivity_of_a_learner_that_infers_nothing_is_nothing() -> None:
    assert adaptivity(Prototypical(Raw(FEATURES)), blobs()) == {"inferred": None}


def test_the_adaptivity_of_streams_is_refused() -> None:
    with pytest.raises(UserError, match="leave out --stream"):
        adaptivity(curves(length=4, context="bayes"), drifting())


def test_one_kernel_inferred_from_the_task_can_be_exchanged_too() -> None:
    model, episodes = curves(components=1, train_kernel="features", bases=64, ridge=1e-2), sine(10)
    found = adaptivity(model, episodes)
    assert found["own"]["mse"] == pytest.approx(evaluate_learner(model, episodes, 0).mean, rel=1e-4)
    assert found["other"]["mse"] != pytest.approx(found["own"]["mse"], rel=1e-3)


def test_targets_far_from_zero_are_answered_about_their_mean() -> None:
    x = torch.linspace(-5, 5, 12).reshape(1, 12, 1).expand(30, -1, -1)
    settings = MetaVRFSettings(components=16, train_kernel="exact", context="none", moves=False)
    for far in (0.0, 1000.0):
        model = MetaVRF(Raw(1), TaskSpec(), settings)
        model.initialise(Episodes(x, far + torch.sin(x + torch.rand(30, 1, 1)), x[:, :1]))
        assert isinstance(model.head, MixtureHead)
        assert model.head.level.item() == pytest.approx(far, abs=1.0)
        assert model.posterior(None, 1).amplitude.max() < 2.0


# Kernels of a task's own


@pytest.mark.parametrize("name", ["candidates", "shapes"])
def test_kernels_of_a_tasks_own_are_for_functions_whose_weights_are_not_carried(name: str) -> None:
    own: dict[str, Any] = {name: 4}
    with pytest.raises(UserError, match=f"{name} = 4 are kernels of one task"):
        classes(**own)
    with pytest.raises(UserError, match=f"{name} = 4 are kernels of one task"):
        curves(**own, context="bayes", length=3)
    with pytest.raises(UserError, match="beside --components of 2 or more"):
        curves(**own, components=1)


def test_candidates_come_after_the_learned_kernels_and_repeat_themselves() -> None:
    model = curves(candidates=8, moves=False)
    q = model.infer(model.placed(model.embedded(sine()))[0])
    assert q.mean.shape == (6 + 8, 5, 1)
    assert q.comb is not None and q.comb.shape == (8, 5)
    assert (q.std[6:] == 0).all()
    assert not torch.equal(q.mean[6:, 0], q.mean[6:, 1])  # each task's own
    assert torch.equal(q.mean[:6, 0], q.mean[:6, 1])


def test_shapes_come_before_the_learned_kernels_and_jump() -> None:
    model = curves(shapes=4, moves=False)
    q = model.infer(model.placed(model.embedded(sine()))[0])
    assert q.mean.shape == (3 * 4 + 6, 5, 1)
    assert q.jumping == 8
    assert torch.equal(q.mean[12:, 0], q.mean[12:, 1]) and not torch.equal(q.mean[:12, 0], q.mean[:12, 1])


def test_shapes_tell_saw_teeth_and_steps_from_few_points() -> None:
    errors = []
    episodes = family("mixed").sample(150, 8, 40, stream(3, "test"))
    assert episodes.query_y is not None
    for shapes in (0, 16):
        settings = MetaVRFSettings(
            components=16, train_kernel="exact", context="none", moves=False, noise=1e-3, shapes=shapes
        )
        model = MetaVRF(Raw(1), TaskSpec(), settings)
        model.initialise(family("mixed").sample(50, 8, 5, stream(4, "train")))
        errors.append((model.predict(episodes).mean - episodes.query_y).square().mean().item())
    assert errors[1] < 0.7 * errors[0]


def test_a_rough_kernels_weight_is_kept_from_falling_to_nothing() -> None:
    model = curves(rough=2, moves=False)
    assert isinstance(model.posterior, MixturePosterior)
    with torch.no_grad():
        model.posterior.scalars[2].zero_()
        model.posterior.scalars[2, 4:] = -100.0
    weights = model.posterior(None, 1).log_prior[:, 0].softmax(0)
    assert (weights[4:] > 0.05 * weights[:4].mean()).all()


def test_candidates_tell_a_period_that_no_learned_kernel_has() -> None:
    process = family("gp-periodic")
    episodes = process.sample(20, 25, 15, stream(3, "test"))
    assert episodes.query_y is not None
    density = []
    for candidates in (0, 32):
        settings = MetaVRFSettings(
            components=8, train_kernel="exact", context="none", moves=False, noise=1e-3, candidates=candidates
        )
        model = MetaVRF(Raw(1), TaskSpec(), settings)
        model.initialise(process.sample(50, 12, 5, stream(4, "train")))
        density.append(model.predict(episodes).log_density(episodes.query_y).mean().item())
    assert density[1] > density[0] + 0.5
