from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.distributions import Independent, Normal, kl_divergence

from metavrf.episodes import Episodes
from metavrf.nn.inference import Context, Prior, SetEncoder, TaskSummary, gaussian_kl, laplace_attention

FEATURES = 6
RECURRENT = ["lstm", "bilstm"]


def regression(support_x: Tensor, support_y: Tensor | None = None) -> Episodes:
    if support_y is None:
        support_y = torch.zeros(*support_x.shape[:2], 1)
    return Episodes(support_x, support_y, support_x[:, :1])


def carried(context: Context, batches: int = 3) -> Context:
    """The context after training batches, so that its state is not zero."""
    context.train()
    for _ in range(batches):
        context(torch.randn(4, FEATURES))
    return context


# gaussian_kl


def test_kl_is_that_of_torch_distributions() -> None:
    mean, log_variance, other_mean, other_log_variance = torch.randn(4, 5, 7, FEATURES).unbind()
    q = Independent(Normal(mean, (0.5 * log_variance).exp()), 1)
    p = Independent(Normal(other_mean, (0.5 * other_log_variance).exp()), 1)
    kl = gaussian_kl(mean, log_variance, other_mean, other_log_variance)
    assert kl.shape == (5, 7)
    torch.testing.assert_close(kl, kl_divergence(q, p), rtol=1e-5, atol=1e-5)


def test_kl_of_equal_gaussians_is_zero() -> None:
    mean, log_variance = torch.randn(2, 5, FEATURES).unbind()
    assert gaussian_kl(mean, log_variance, mean, log_variance).abs().max() == 0


# laplace_attention and the prior


def test_attention_weighs_keys_by_the_softmax_of_negative_manhattan_distances() -> None:
    query, keys = torch.randn(2, 4, FEATURES), torch.randn(2, 3, FEATURES)
    expected = np.empty((2, 4, FEATURES))
    for task in range(2):
        for i in range(4):
            distance = np.abs(query[task, i].numpy() - keys[task].numpy()).sum(axis=1)
            weight = np.exp(-distance) / np.exp(-distance).sum()
            expected[task, i] = weight @ keys[task].numpy()
    np.testing.assert_allclose(laplace_attention(query, keys), expected, atol=1e-6)


def test_prior_of_a_query_does_not_depend_on_the_other_queries() -> None:
    prior, query, keys = Prior(FEATURES), torch.randn(2, 4, FEATURES), torch.randn(2, 3, FEATURES)
    mean, log_variance = prior(query, keys)
    assert mean.shape == log_variance.shape == (2, 4, FEATURES)
    alone_mean, alone_log_variance = prior(query[:, 2:3], keys)
    torch.testing.assert_close(mean[:, 2:3], alone_mean, rtol=0, atol=1e-6)
    torch.testing.assert_close(log_variance[:, 2:3], alone_log_variance, rtol=0, atol=1e-6)


# TaskSummary


def test_summary_of_regression_is_the_mean_of_the_samples() -> None:
    z = torch.randn(3, 5, FEATURES)
    torch.testing.assert_close(TaskSummary(FEATURES)(regression(z)), z.mean(1))


def test_summary_of_unequal_shots_is_the_mean_of_class_means() -> None:
    z, labels = torch.randn(1, 5, 2), torch.tensor([[0, 1, 0, 0, 1]])
    episodes = Episodes(z, labels, z[:, :1], way=2)
    zero, one = z[0, [0, 2, 3]].mean(0), z[0, [1, 4]].mean(0)
    summary = TaskSummary(2)(episodes)
    torch.testing.assert_close(summary[0], (zero + one) / 2)
    assert (summary[0] - z[0].mean(0)).abs().max() > 0.01  # so class balance makes a difference here


def test_summary_sees_targets_only_when_asked_to() -> None:
    z, y, other = torch.randn(3, 5, FEATURES), torch.randn(3, 5, 1), torch.randn(3, 5, 1)
    blind, seeing = TaskSummary(FEATURES), TaskSummary(FEATURES, targets=1)
    assert torch.equal(blind(regression(z, y)), blind(regression(z, other)))
    assert (seeing(regression(z, y)) - seeing(regression(z, other))).abs().max() > 1e-3
    assert seeing(regression(z, y)).shape == (3, FEATURES)


@pytest.mark.parametrize("targets", [0, 1])
def test_summary_does_not_depend_on_the_order_of_the_support(targets: int) -> None:
    z, y, order = torch.randn(3, 5, FEATURES), torch.randn(3, 5, 1), torch.randperm(5)
    summary = TaskSummary(FEATURES, targets)
    shuffled = summary(regression(z[:, order], y[:, order]))
    torch.testing.assert_close(summary(regression(z, y)), shuffled, rtol=0, atol=1e-6)


def test_a_task_whose_targets_are_all_zero_has_finite_gradients() -> None:
    z = torch.randn(2, 5, FEATURES, requires_grad=True)
    summary = TaskSummary(FEATURES, targets=1)
    summary(regression(z, torch.zeros(2, 5, 1))).square().sum().backward()
    assert z.grad is not None
    assert torch.isfinite(z.grad).all()
    assert all(p.grad is not None and torch.isfinite(p.grad).all() for p in summary.parameters())


def test_set_encoder_is_permutation_equivariant_and_its_codes_see_the_set() -> None:
    encoder, x, order = SetEncoder(3, 16, FEATURES), torch.randn(2, 5, 3), torch.randperm(5)
    codes = encoder(x)
    torch.testing.assert_close(encoder(x[:, order]), codes[:, order], rtol=0, atol=1e-6)
    changed = x.clone()
    changed[:, 4] += 1
    assert (encoder(changed)[:, 0] - codes[:, 0]).abs().max() > 1e-4


# Context


@pytest.mark.parametrize(("kind", "size"), [("none", FEATURES), ("lstm", FEATURES), ("bilstm", 2 * FEATURES)])
@pytest.mark.parametrize("training", [True, False])
def test_context_has_the_size_it_says(kind: str, size: int, training: bool) -> None:
    context = Context(kind, FEATURES).train(training)
    assert context.size == size
    assert context(torch.randn(4, FEATURES)).shape == (4, size)


def test_no_context_is_the_identity_and_has_no_weights() -> None:
    context, summary = Context("none", FEATURES), torch.randn(4, FEATURES)
    assert torch.equal(context(summary), summary)
    assert len(context.state_dict()) == 0


@pytest.mark.parametrize("kind", RECURRENT)
def test_training_carries_the_state_from_batch_to_batch(kind: str) -> None:
    context, summary = Context(kind, FEATURES).train(), torch.randn(4, FEATURES)
    first, second = context(summary), context(summary)
    assert (first - second)[:, :FEATURES].abs().max() > 1e-3
    assert context.hidden.abs().max() > 1e-3
    assert context.cell.abs().max() > 1e-3


@pytest.mark.parametrize("kind", RECURRENT)
def test_two_training_batches_are_one_long_sequence_to_the_forward_direction(kind: str) -> None:
    context, summary = Context(kind, FEATURES).train(), torch.randn(8, FEATURES)
    halves = torch.cat([context(summary[:4]), context(summary[4:])])
    assert context.lstm is not None
    whole = context.lstm(summary.unsqueeze(1))[0].squeeze(1)
    torch.testing.assert_close(halves[:, :FEATURES], whole[:, :FEATURES], rtol=0, atol=1e-6)
    torch.testing.assert_close(context.hidden[0, 0], whole[-1, :FEATURES], rtol=0, atol=1e-6)


def test_backward_direction_starts_every_batch_from_zero() -> None:
    context, summary = Context("bilstm", FEATURES).train(), torch.randn(4, FEATURES)
    first, second = context(summary), context(summary)
    torch.testing.assert_close(first[:, FEATURES:], second[:, FEATURES:], rtol=0, atol=1e-7)


@pytest.mark.parametrize("kind", RECURRENT)
def test_carried_state_is_detached_so_that_each_batch_can_be_backpropagated(kind: str) -> None:
    context = Context(kind, FEATURES).train()
    first_input = torch.randn(4, FEATURES, requires_grad=True)
    context(first_input)
    assert not context.hidden.requires_grad
    assert not context.cell.requires_grad
    context(torch.randn(4, FEATURES)).sum().backward()
    assert first_input.grad is None


@pytest.mark.parametrize("kind", RECURRENT)
def test_evaluation_leaves_the_state_untouched(kind: str) -> None:
    context = carried(Context(kind, FEATURES))
    hidden, cell = context.hidden.clone(), context.cell.clone()
    context.eval()(torch.randn(4, FEATURES))
    assert torch.equal(context.hidden, hidden)
    assert torch.equal(context.cell, cell)


@pytest.mark.parametrize("kind", RECURRENT)
def test_in_evaluation_each_task_is_a_sequence_of_one_from_the_saved_state(kind: str) -> None:
    context, summary = carried(Context(kind, FEATURES)).eval(), torch.randn(5, FEATURES)
    together = context(summary)
    alone = torch.cat([context(row) for row in summary.split(1)])
    torch.testing.assert_close(together, alone, rtol=0, atol=1e-6)
    torch.testing.assert_close(context(summary.flip(0)).flip(0), together, rtol=0, atol=1e-6)


def test_evaluation_is_the_lstm_started_from_the_state() -> None:
    context, summary = carried(Context("bilstm", FEATURES)).eval(), torch.randn(1, FEATURES)
    lstm, zero = context.lstm, torch.zeros(1, 1, FEATURES)
    assert isinstance(lstm, nn.LSTM)
    start = (torch.cat([context.hidden, zero]), torch.cat([context.cell, zero]))
    torch.testing.assert_close(context(summary), lstm(summary.unsqueeze(1), start)[0][0], rtol=0, atol=1e-6)


@pytest.mark.parametrize("kind", RECURRENT)
def test_the_state_changes_what_evaluation_says(kind: str) -> None:
    context, summary = Context(kind, FEATURES).eval(), torch.randn(5, FEATURES)
    before = context(summary)
    after = carried(context).eval()(summary)
    assert (before - after).abs().max() > 1e-3


@pytest.mark.parametrize("kind", RECURRENT)
def test_the_state_is_saved_and_loaded_with_the_weights(kind: str) -> None:
    context, other, summary = carried(Context(kind, FEATURES)).eval(), Context(kind, FEATURES), torch.randn(5, FEATURES)
    other.load_state_dict(context.state_dict())
    assert {"hidden", "cell"} <= context.state_dict().keys()
    assert torch.equal(other.eval()(summary), context(summary))
