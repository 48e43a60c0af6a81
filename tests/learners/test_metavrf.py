from __future__ import annotations

import math
from dataclasses import replace
from typing import Any, Literal

import pytest
import torch
from torch import Tensor, nn
from torch.distributions import Independent, Normal, kl_divergence

from awake import awake, ridge_head
from metavrf.config import Config
from metavrf.episodes import Episodes
from metavrf.errors import UserError
from metavrf.kernels.random_features import exact_kernel
from metavrf.kernels.spectral import RandomFeatures
from metavrf.learners.base import Prediction
from metavrf.learners.metavrf import MetaVRF, MetaVRFSettings
from metavrf.learners.prototypical import Prototypical
from metavrf.nn.inference import laplace_attention
from metavrf.nn.mlp import MLP, GaussianMLP, Raw
from metavrf.randomness import stream
from metavrf.runs.optimizing import make_optimizer
from metavrf.spec import TaskSpec
from metavrf.tasks.functions import family

CONTEXTS = [(context, inputs) for context in ("none", "lstm", "bilstm") for inputs in ("x", "xy")]
each_context = pytest.mark.parametrize(("context", "inputs"), CONTEXTS)


def sine(tasks: int = 6, shot: int = 5, query: int = 9, seed: int = 0) -> Episodes:
    return family("sine").sample(tasks, shot, query, stream(seed, "train"))


def learner(**settings: Any) -> MetaVRF:
    """A small regression learner; λ is moderate, so that rounding is not magnified into the digits compared."""
    defaults: dict[str, Any] = {"bases": 64, "ridge": 1e-2, "context": "none"}
    generator = torch.Generator().manual_seed(7)
    merged = MetaVRFSettings(**{**defaults, **settings})
    return awake(MetaVRF(MLP((1, 16, 16)), TaskSpec(), merged, generator=generator))


def experienced(**settings: Any) -> MetaVRF:
    """A learner whose scale is set and whose context has state, as after some training batches."""
    model = learner(**settings)
    model.initialise(sine(25, seed=1))
    with torch.no_grad():
        for step in range(3):
            model.remember(model.train()(sine(seed=2 + step)))
    return model.eval()


def train_briefly(model: MetaVRF, batches: list[Episodes], lr: float) -> list[float]:
    optimizer = torch.optim.Adam(model.parameters(), lr=lr)
    losses = []
    for step, episodes in enumerate(batches):
        prediction: Prediction = model.train()(episodes, stream(0, "draws", step))
        assert prediction.loss is not None
        optimizer.zero_grad()
        prediction.loss.backward()
        optimizer.step()
        model.remember(prediction)
        losses.append(prediction.loss.item())
    return losses


def blobs(tasks: int, seed: int, way: int = 5, shot: int = 2, query: int = 10) -> Episodes:
    """Easy classes: Gaussian clouds in 8 dimensions around centres well apart."""
    generator = torch.Generator().manual_seed(seed)
    centres = 3 * torch.randn(tasks, way, 8, generator=generator)
    labels = torch.arange(way).repeat(shot + query).expand(tasks, -1)
    x = centres.gather(1, labels.unsqueeze(-1).expand(-1, -1, 8))
    x = x + torch.randn(x.shape, generator=generator)
    support = way * shot
    return Episodes(x[:, :support], labels[:, :support], x[:, support:], labels[:, support:], way=way)


class Map(nn.Linear):
    """A linear map, the least embedding that can learn."""

    def __init__(self) -> None:
        super().__init__(8, 8)
        self.features = 8


def classifier(embedding: Map | Raw, **settings: Any) -> MetaVRF:
    defaults: dict[str, Any] = {"bases": 128, "ridge": 1e-2, "gamma": 5.0}
    merged = MetaVRFSettings(**{**defaults, **settings})
    model = MetaVRF(embedding, TaskSpec((8,), None), merged, generator=torch.Generator().manual_seed(7))
    model.initialise(blobs(25, seed=100))
    return model


def accuracy(model: MetaVRF, episodes: Episodes) -> float:
    assert episodes.query_y is not None
    return (model.predict(episodes).mean.argmax(-1) == episodes.query_y).double().mean().item()


# A task is solved on its own


@each_context
def test_the_order_of_the_support_does_not_matter(context: str, inputs: str) -> None:
    model, episodes = experienced(context=context, context_inputs=inputs), sine()
    order = torch.randperm(5)
    shuffled = replace(episodes, support_x=episodes.support_x[:, order], support_y=episodes.support_y[:, order])
    first, second = model.predict(episodes), model.predict(shuffled)
    torch.testing.assert_close(first.mean, second.mean, rtol=0, atol=1e-5)
    torch.testing.assert_close(first.std, second.std, rtol=0, atol=1e-5)


@each_context
def test_a_query_does_not_depend_on_the_other_queries(context: str, inputs: str) -> None:
    model, episodes = experienced(context=context, context_inputs=inputs), sine()
    together = model.predict(episodes)
    other = torch.cat([episodes.query_x[:, :1], 5 * torch.randn(6, 3, 1)], dim=1)
    apart = model.predict(replace(episodes, query_x=other, query_y=None))
    torch.testing.assert_close(together.mean[:, :1], apart.mean[:, :1], rtol=0, atol=1e-5)
    torch.testing.assert_close(together.std[:, :1], apart.std[:, :1], rtol=0, atol=1e-5)  # type: ignore[index]
    assert model.label() == "inductive"


@each_context
def test_a_test_task_does_not_depend_on_its_batch(context: str, inputs: str) -> None:
    model, episodes = experienced(context=context, context_inputs=inputs), sine()
    together = model.predict(episodes).mean
    alone = torch.cat([model.predict(task).mean for task in episodes.batches(1)])
    torch.testing.assert_close(together, alone, rtol=0, atol=1e-5)


@each_context
def test_a_test_task_does_not_depend_on_the_order_of_tasks(context: str, inputs: str) -> None:
    model, episodes = experienced(context=context, context_inputs=inputs), sine()
    order = torch.tensor([3, 0, 5, 1, 4, 2])
    shuffled = Episodes(episodes.support_x[order], episodes.support_y[order], episodes.query_x[order])
    torch.testing.assert_close(model.predict(shuffled).mean, model.predict(episodes).mean[order], rtol=0, atol=1e-5)


@each_context
def test_predicting_twice_says_the_same_to_the_bit(context: str, inputs: str) -> None:
    model, episodes = experienced(context=context, context_inputs=inputs), sine()
    first = model.predict(episodes).mean
    model.predict(sine(seed=9))
    assert torch.equal(model.predict(episodes).mean, first)


@pytest.mark.parametrize("context", ["lstm", "bilstm"])
def test_training_tasks_before_it_change_a_prediction(context: str) -> None:
    model, episodes = learner(context=context).eval(), sine()
    before = model.predict(episodes).mean
    with torch.no_grad():
        model.remember(model.train()(sine(seed=3)))
    assert (model.predict(episodes).mean - before).abs().max() > 1e-4


def test_context_of_inputs_alone_is_affine_in_the_targets_and_that_of_both_is_not() -> None:
    """Only a predictor that is affine in y has the affine limit as its floor."""
    for inputs, affine in (("x", True), ("xy", False)):
        model, episodes = experienced(context_inputs=inputs), sine()
        y = episodes.support_y
        at_zero, at_y, at_twice = (
            model.predict(replace(episodes, support_y=targets)).mean for targets in (0 * y, y, 2 * y)
        )
        curvature = (at_twice - 2 * at_y + at_zero).abs().max().item()
        assert (curvature < 1e-4) == affine


# The loss


@each_context
def test_loss_is_the_likelihood_plus_the_weighted_kl(context: str, inputs: str) -> None:
    model = learner(context=context, context_inputs=inputs, kl_weight=0.3)
    prediction: Prediction = model.train()(sine())
    assert prediction.terms.keys() == {"nll", "kl"}
    assert prediction.loss is not None
    torch.testing.assert_close(prediction.loss, prediction.terms["nll"] + 0.3 * prediction.terms["kl"])
    assert prediction.terms["kl"] > 0


def test_without_a_kl_the_prior_is_left_out_of_training() -> None:
    model = learner(kl_weight=0.0)
    prediction: Prediction = model.train()(sine())
    assert prediction.terms.keys() == {"nll"}
    assert model.prior is not None
    optimizer = make_optimizer(Config.of("sine").training, model)
    (group,) = optimizer.param_groups
    assert {id(weight) for weight in group["params"]} == {
        id(weight) for name, weight in model.named_parameters() if not name.startswith("prior.")
    }


class Constant(GaussianMLP):
    """An inference network that always says the same."""

    def __init__(self, mean: Tensor, log_variance: Tensor) -> None:
        super().__init__(16, 16, 16)
        self.answer = mean, log_variance

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        shape = (*x.shape[:-1], 16)
        return self.answer[0].expand(shape), self.answer[1].expand(shape)


def test_bases_and_kl_agree_on_one_variance() -> None:
    """The authors' code samples with e^v and takes the KL with e^4v."""
    model, episodes = learner(bases=50_000, ridge=0.1), sine(tasks=3)
    mean, log_variance = 0.3 * torch.randn(16), torch.randn(16)
    model.posterior = Constant(mean, log_variance)
    assert model.prior is not None
    with torch.no_grad():
        prediction = model.eval()(episodes)
        support, query = (
            model.rescale(model.embedding(episodes.support_x)),
            model.rescale(model.embedding(episodes.query_x)),
        )
        spectrum = mean.expand(3, -1), (0.5 * log_variance).exp().expand(3, -1)
        gram = exact_kernel(support, support, *spectrum) + (0.1 + 1e-8) * torch.eye(5)
        expected = exact_kernel(query, support, *spectrum) @ torch.linalg.solve(gram, episodes.support_y)
        prior_mean, prior_log_variance = model.prior.gaussian(laplace_attention(query, support))
    assert (prediction.mean - expected).square().mean().sqrt() < 0.03  # 1/√D is 0.004; a wrong σ is off by 0.3
    q = Independent(Normal(mean, (0.5 * log_variance).exp()), 1)
    p = Independent(Normal(prior_mean, (0.5 * prior_log_variance).exp()), 1)
    torch.testing.assert_close(prediction.terms["kl"], kl_divergence(q.expand(p.batch_shape), p).mean())


@pytest.mark.parametrize("context", ["none", "lstm", "bilstm"])
def test_every_parameter_has_a_gradient(context: str) -> None:
    model = learner(context=context, context_inputs="xy")
    with torch.no_grad():
        model.remember(model.train()(sine(seed=1)))  # so that the LSTM's state is not zero
    prediction: Prediction = model(sine())
    assert prediction.loss is not None
    prediction.loss.backward()
    without = [
        name for name, p in model.named_parameters() if p.grad is None or not (p.grad.isfinite().all() and p.grad.any())
    ]
    assert without == []


@pytest.mark.parametrize("inputs", ["x", "xy"])
@pytest.mark.parametrize("shot", [4, 40])
def test_support_points_that_coincide_have_finite_gradients(inputs: str, shot: int) -> None:
    model, episodes = learner(context_inputs=inputs, ridge=1e-6), sine(shot=shot)
    episodes.support_x[:, 1], episodes.support_y[:, 1] = episodes.support_x[:, 0], episodes.support_y[:, 0]
    episodes.query_x[:, 0] = episodes.support_x[:, 0]
    prediction: Prediction = model.train()(episodes)
    assert prediction.loss is not None
    prediction.loss.backward()
    assert all(p.grad is not None and p.grad.isfinite().all() for p in model.parameters())


def test_a_few_steps_lower_the_loss() -> None:
    model = learner(context="bilstm", context_inputs="xy", draw="fixed")
    model.initialise(sine(25))
    losses = train_briefly(model, [sine(25, seed=step) for step in range(60)], lr=4e-3)
    assert sum(losses[-10:]) < 0.8 * sum(losses[:10])


# Uncertainty and posterior samples


def test_samples_are_averaged_and_their_spread_is_in_the_deviation() -> None:
    model, episodes = experienced(samples=4), sine()
    prediction = model.predict(episodes)
    assert prediction.samples.shape == (4, 6, 9, 1)
    torch.testing.assert_close(prediction.mean, prediction.samples.mean(0))
    stored, variances = model.epsilon, []
    assert stored is not None
    for one in stored.split(1):
        model.epsilon = one
        alone = model.predict(episodes)
        assert alone.std is not None
        variances.append(alone.std.square())
    spread = prediction.samples.var(0, correction=0)
    assert prediction.std is not None
    torch.testing.assert_close(prediction.std.square(), torch.stack(variances).mean(0) + spread, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("feature_map", ["cosine", "sincos"])
def test_deviation_is_that_of_the_features_norm(feature_map: str) -> None:
    """Pairs are taken to have norm 1 without computing it; phases do not have it, and are not taken to."""
    model, episodes = experienced(feature_map=feature_map, ridge=1e-6), sine()
    std = model.predict(episodes).std
    ridge_head(model).unit_norm = False
    torch.testing.assert_close(std, model.predict(episodes).std, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("context", ["none", "bilstm"])
def test_deviation_is_small_at_the_support_and_large_far_from_it(context: Literal["none", "bilstm"]) -> None:
    generator = torch.Generator().manual_seed(0)
    settings = MetaVRFSettings(context=context, bases=512, ridge=1e-4)
    model = MetaVRF(Raw(1), TaskSpec(), settings, generator=generator)
    support_x = torch.tensor([[[-1.0], [-0.2], [0.4], [1.0]]])
    query_x = torch.cat([support_x, support_x + 8, support_x - 8], dim=1)
    std = model.predict(Episodes(support_x, 2 * support_x.sin(), query_x)).std
    assert std is not None
    assert std[0, 4:].min() > 5 * std[0, :4].max()


# Draws


def test_fixed_draws_make_training_independent_of_the_generator() -> None:
    model, episodes = learner(draw="fixed").train(), sine()
    first, second, none = (model(episodes, g).mean for g in (stream(0, "draws", 1), stream(0, "draws", 2), None))
    assert torch.equal(first, second)
    assert torch.equal(first, none)


@pytest.mark.parametrize("feature_map", ["cosine", "sincos"])
def test_resampled_draws_make_training_depend_on_the_generator(feature_map: str) -> None:
    model, episodes = learner(draw="resampled", feature_map=feature_map).train(), sine()
    first, again, other = (model(episodes, stream(0, "draws", step)).mean for step in (1, 1, 2))
    assert torch.equal(first, again)
    assert (first - other).abs().max() > 0.01


def bases_of(model: MetaVRF) -> int:
    """Random features of a forward pass."""
    kernel = model.kernel(stream(0, "draws"))
    assert isinstance(kernel, RandomFeatures)
    return kernel.draws.bases


@pytest.mark.parametrize(("train_bases", "drawn"), [(16, 16), (0, 64)])
def test_a_training_step_draws_its_own_number_of_bases_and_evaluation_all(train_bases: int, drawn: int) -> None:
    model = learner(train_bases=train_bases)
    assert bases_of(model.train()) == drawn
    assert bases_of(model.eval()) == 64
    assert bases_of(learner(train_bases=train_bases, draw="fixed").train()) == 64


def test_evaluation_uses_the_stored_draws_whatever_the_generator() -> None:
    model, episodes = learner(draw="resampled").eval(), sine()
    assert torch.equal(model(episodes, stream(0, "draws", 1)).mean, model.predict(episodes).mean)


def test_another_number_of_bases_and_samples_can_be_drawn() -> None:
    model, episodes = experienced(), sine()
    model.redraw(stream(1, "bases"), bases=200, samples=3)
    assert model.epsilon is not None
    assert model.epsilon.shape == (3, 16, 100)
    assert model.predict(episodes).samples.shape == (3, 6, 9, 1)
    model.redraw(stream(1, "bases"))
    assert model.epsilon.shape == (1, 16, 32)


@pytest.mark.parametrize("numbers", [{"bases": 0}, {"bases": -2}, {"samples": 0}, {"samples": -1}])
def test_impossible_numbers_of_bases_and_samples_are_refused(numbers: dict[str, int]) -> None:
    with pytest.raises(UserError, match=next(iter(numbers))):
        learner().redraw(stream(1, "bases"), **numbers)


@pytest.mark.parametrize("feature_map", ["cosine", "sincos"])
def test_predictions_converge_to_those_of_the_exact_kernel(feature_map: str) -> None:
    model, episodes = experienced(context="bilstm", feature_map=feature_map, ridge=0.1), sine(tasks=3)
    with torch.no_grad():
        embedded = episodes.embedded(model.embedding).embedded(model.rescale)
        q = model.infer(embedded)
        spectrum = q.mean[0], q.std[0]
        gram = exact_kernel(embedded.support_x, embedded.support_x, *spectrum) + (0.1 + 1e-8) * torch.eye(5)
        cross = exact_kernel(embedded.query_x, embedded.support_x, *spectrum)
        exact = cross @ torch.linalg.solve(gram, episodes.support_y)
    errors = []
    for bases in (64, 1024, 16_384):
        model.redraw(stream(1, "bases"), bases=bases, samples=20)
        errors.append((model.predict(episodes).samples - exact).square().mean().sqrt().item())
    assert errors[0] / errors[1] == pytest.approx(4, rel=0.35)
    assert errors[1] / errors[2] == pytest.approx(4, rel=0.35)


@pytest.mark.parametrize("feature_map", ["cosine", "sincos"])
@pytest.mark.parametrize("context", ["none", "lstm", "bilstm"])
def test_a_reloaded_model_predicts_the_same_to_the_bit(context: str, feature_map: str) -> None:
    model, episodes = experienced(context=context, feature_map=feature_map), sine()
    other = learner(context=context, feature_map=feature_map)
    other.redraw(stream(5, "bases"))
    other.load_state_dict(model.state_dict())
    assert torch.equal(other.predict(episodes).mean, model.predict(episodes).mean)


# Scales and modes


@pytest.mark.parametrize("distance", [0.5, 2.0])
@pytest.mark.parametrize("shot", [2, 5, 40])
def test_initialising_puts_support_features_the_asked_distance_apart(distance: float, shot: int) -> None:
    model, episodes = learner(distance=distance), sine(25, shot)
    model.initialise(episodes)
    with torch.no_grad():
        z = model.rescale(model.embedding(episodes.support_x)).double()
    row, column = torch.triu_indices(shot, shot, offset=1)
    assert (z[:, row] - z[:, column]).norm(dim=-1).mean().item() == pytest.approx(distance, rel=1e-3)


def test_initialising_with_one_shot_leaves_the_length_scale_alone() -> None:
    model = learner()
    model.initialise(sine(25, shot=1))
    assert model.log_length.item() == 0


def test_predicting_keeps_the_mode_and_makes_no_graph() -> None:
    for training in (True, False):
        model = learner(context="lstm").train(training)
        assert not model.predict(sine()).mean.requires_grad
        assert model.training == training
        assert model.context.hidden.abs().max() == 0


def test_predicting_refuses_values_that_are_not_finite() -> None:
    episodes = sine()
    episodes.support_y[1, 2, 0] = math.nan
    with pytest.raises(UserError, match=r"support_y.*\[1, 2, 0\]"):
        learner().predict(episodes)


def test_shots_may_differ_between_training_and_test() -> None:
    model = experienced(context="bilstm", context_inputs="xy")
    for shot in (1, 3, 20):
        prediction = model.predict(sine(shot=shot))
        assert prediction.mean.shape == (6, 9, 1)
        assert torch.isfinite(prediction.mean).all()


def test_the_seed_of_a_configuration_decides_the_weights() -> None:
    one_kernel: dict[str, Any] = {"components": 1, "guards": 0, "train_kernel": "features", "embedding": "mlp"}
    first, again, other = (Config.of("sine", seed=seed, **one_kernel).build().state_dict() for seed in (3, 3, 4))
    assert first.keys() == again.keys()
    assert all(torch.equal(first[name], again[name]) for name in first)
    assert not torch.equal(first["embedding.0.weight"], other["embedding.0.weight"])
    assert not torch.equal(first["epsilon"], other["epsilon"])


@pytest.mark.parametrize("settings", [MetaVRFSettings(), None])
def test_a_learner_needs_no_configuration(settings: MetaVRFSettings | None) -> None:
    spec = TaskSpec((3,), 2)
    model, same = (MetaVRF(MLP((3, 16)), spec, settings), MetaVRF(MLP((3, 16)), spec, settings))
    assert (model.spec, model.settings, model.features) == (spec, MetaVRFSettings(), 16)
    assert model.epsilon is not None and same.epsilon is not None
    assert torch.equal(model.epsilon, same.epsilon)  # bases are drawn from a seed where no generator is given
    x, weights = torch.randn(20, 13, 3), torch.randn(20, 3, 2)
    y = torch.sin(x @ weights)
    episodes = Episodes(x[:, :8], y[:, :8], x[:, 8:], y[:, 8:])
    model.initialise(episodes)
    losses = train_briefly(model, [episodes] * 20, lr=5e-3)
    assert losses[-1] < losses[0]
    prediction = model.predict(episodes)
    assert prediction.mean.shape == (20, 5, 2)
    assert prediction.std is not None
    assert (prediction.std > 0).all()


def test_a_learner_of_many_kernels_needs_no_configuration() -> None:
    settings = MetaVRFSettings(components=8, guards=2, train_kernel="exact", context="none", moves=False)
    model = MetaVRF(Raw(1), settings=settings)
    model.initialise(sine(25))
    assert model.predict(sine()).mean.shape == (6, 9, 1)


# Classification: the same learner, the same record


@pytest.mark.parametrize("context", ["none", "lstm", "bilstm"])
def test_classes_have_logits_and_the_two_terms(context: str) -> None:
    prediction: Prediction = classifier(Raw(8), context=context, kl_weight=0.5).train()(blobs(3, seed=0))
    assert prediction.mean.shape == (3, 50, 5)
    assert prediction.std is None
    assert prediction.terms.keys() == {"nll", "kl"}
    assert prediction.loss is not None
    assert torch.isfinite(prediction.loss)
    torch.testing.assert_close(prediction.loss, prediction.terms["nll"] + 0.5 * prediction.terms["kl"])


def test_a_prototypical_loss_is_added_where_asked_for_and_reaches_the_embedding_alone() -> None:
    episodes = blobs(3, seed=0)
    plain, taught = (classifier(Map(), kl_weight=0.5, prototype_weight=weight).train() for weight in (0.0, 2.0))
    taught.load_state_dict(plain.state_dict())
    without, together = plain(episodes), taught(episodes)
    prototypes = Prototypical(taught.embedding).train()(episodes)
    assert prototypes.loss is not None and together.loss is not None and without.loss is not None
    torch.testing.assert_close(together.terms["prototypical"], prototypes.loss)
    torch.testing.assert_close(together.loss, without.loss + 2 * prototypes.loss)
    together.terms["prototypical"].backward(retain_graph=True)
    reached = {name for name, weight in taught.named_parameters() if weight.grad is not None}
    assert reached == {"embedding.weight", "embedding.bias"}
    assert torch.equal(together.mean, without.mean)


def test_a_prototypical_loss_is_for_classes_alone() -> None:
    prediction: Prediction = learner(prototype_weight=1.0).train()(sine())
    assert "prototypical" not in prediction.terms


@pytest.mark.parametrize("context", ["none", "bilstm"])
def test_a_few_steps_teach_easy_classes(context: str) -> None:
    model, test = classifier(Map(), context=context), blobs(40, seed=999)
    losses = train_briefly(model, [blobs(8, seed=step) for step in range(40)], lr=5e-3)
    assert sum(losses[-5:]) < sum(losses[:5])
    assert accuracy(model, test) > 0.8  # chance is 0.2


def test_class_samples_are_averaged_as_probabilities_by_the_learner() -> None:
    prediction = classifier(Raw(8), samples=3).predict(blobs(2, seed=0))
    torch.testing.assert_close(prediction.mean.exp(), prediction.samples.softmax(-1).mean(0))


def test_renaming_the_classes_renames_the_logits() -> None:
    model, episodes = classifier(Raw(8)).eval(), blobs(2, seed=0)
    names = torch.tensor([3, 0, 4, 1, 2])
    renamed = replace(episodes, support_y=names[episodes.support_y], query_y=None)
    torch.testing.assert_close(model.predict(renamed).mean[..., names], model.predict(episodes).mean, rtol=0, atol=1e-4)


def test_ways_and_shots_may_differ_between_training_and_test() -> None:
    model = classifier(Raw(8))
    assert model.predict(blobs(2, seed=0, way=11, shot=1)).mean.shape == (2, 110, 11)


def test_a_query_of_classes_does_not_depend_on_the_other_queries() -> None:
    model, episodes = classifier(Raw(8), context="bilstm").eval(), blobs(3, seed=0)
    apart = replace(episodes, query_x=episodes.query_x[:, 7:8], query_y=None)
    torch.testing.assert_close(model.predict(apart).mean, model.predict(episodes).mean[:, 7:8], rtol=0, atol=1e-5)
