from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.distributions import Independent, Normal, kl_divergence

from metavrf.episodes import Episodes
from metavrf.nn.inference import (
    Carry,
    Context,
    Memory,
    Prior,
    SetEncoder,
    TaskSummary,
    gaussian_kl,
    laplace_attention,
    mean_kl,
)

FEATURES = 6
RECURRENT = ["lstm", "bilstm"]


def regression(support_x: Tensor, support_y: Tensor | None = None) -> Episodes:
    if support_y is None:
        support_y = torch.zeros(*support_x.shape[:2], 1)
    return Episodes(support_x, support_y, support_x[:, :1])


def step(context: Context, summary: Tensor) -> Tensor:
    """A training step's h, whose state is left to the next."""
    h, memory = context(summary)
    context.remember(memory)
    return h


def of(context: Context, summary: Tensor) -> Tensor:
    """h alone."""
    return context(summary)[0]


def carried(context: Context, batches: int = 3) -> Context:
    """The context after training batches, so that its state is not zero."""
    context.train()
    for _ in range(batches):
        step(context, torch.randn(4, FEATURES))
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


def test_the_mean_kl_is_that_over_queries_with_the_gradient_that_pytorch_derives() -> None:
    shapes = (5, FEATURES), (5, FEATURES), (5, 7, FEATURES), (5, 7, FEATURES)
    inputs = [torch.randn(shape, dtype=torch.double, requires_grad=True) for shape in shapes]
    mean, log_variance, *other = inputs
    plain = gaussian_kl(mean.unsqueeze(1), log_variance.unsqueeze(1), *other).mean()
    found = mean_kl(mean, log_variance, *other)
    torch.testing.assert_close(found, plain)
    for own, expected in zip(
        torch.autograd.grad(3 * found, inputs), torch.autograd.grad(3 * plain, inputs), strict=True
    ):
        torch.testing.assert_close(own, expected)


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
    blind, seeing = TaskSummary(FEATURES, targets=1), TaskSummary(FEATURES, targets=1, labels=True)
    assert torch.equal(blind(regression(z, y)), blind(regression(z, other)))
    assert (seeing(regression(z, y)) - seeing(regression(z, other))).abs().max() > 1e-3
    assert seeing(regression(z, y)).shape == (3, FEATURES)


@pytest.mark.parametrize("labels", [False, True])
def test_summary_does_not_depend_on_the_order_of_the_support(labels: bool) -> None:
    z, y, order = torch.randn(3, 5, FEATURES), torch.randn(3, 5, 1), torch.randperm(5)
    summary = TaskSummary(FEATURES, 1, labels=labels)
    shuffled = summary(regression(z[:, order], y[:, order]))
    torch.testing.assert_close(summary(regression(z, y)), shuffled, rtol=0, atol=1e-6)


def test_a_task_whose_targets_are_all_zero_has_finite_gradients() -> None:
    z = torch.randn(2, 5, FEATURES, requires_grad=True)
    summary = TaskSummary(FEATURES, targets=1, labels=True)
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
    assert of(context, torch.randn(4, FEATURES)).shape == (4, size)


def test_no_context_is_the_identity_and_has_no_weights() -> None:
    context, summary = Context("none", FEATURES), torch.randn(4, FEATURES)
    assert torch.equal(of(context, summary), summary)
    assert len(context.state_dict()) == 0


@pytest.mark.parametrize("kind", RECURRENT)
def test_training_carries_the_state_from_batch_to_batch(kind: str) -> None:
    context, summary = Context(kind, FEATURES).train(), torch.randn(4, FEATURES)
    first, second = step(context, summary), step(context, summary)
    assert (first - second)[:, :FEATURES].abs().max() > 1e-3
    assert context.hidden.abs().max() > 1e-3
    assert context.cell.abs().max() > 1e-3


@pytest.mark.parametrize("kind", RECURRENT)
def test_two_training_batches_are_one_long_sequence_to_the_forward_direction(kind: str) -> None:
    context, summary = Context(kind, FEATURES).train(), torch.randn(8, FEATURES)
    halves = torch.cat([step(context, summary[:4]), step(context, summary[4:])])
    assert context.lstm is not None
    whole = context.lstm(summary.unsqueeze(1))[0].squeeze(1)
    torch.testing.assert_close(halves[:, :FEATURES], whole[:, :FEATURES], rtol=0, atol=1e-6)
    torch.testing.assert_close(context.hidden[0, 0], whole[-1, :FEATURES], rtol=0, atol=1e-6)


def test_backward_direction_starts_every_batch_from_zero() -> None:
    context, summary = Context("bilstm", FEATURES).train(), torch.randn(4, FEATURES)
    first, second = step(context, summary), step(context, summary)
    torch.testing.assert_close(first[:, FEATURES:], second[:, FEATURES:], rtol=0, atol=1e-7)


@pytest.mark.parametrize("kind", RECURRENT)
def test_carried_state_is_detached_so_that_each_batch_can_be_backpropagated(kind: str) -> None:
    context = Context(kind, FEATURES).train()
    first_input = torch.randn(4, FEATURES, requires_grad=True)
    step(context, first_input)
    assert not context.hidden.requires_grad
    assert not context.cell.requires_grad
    of(context, torch.randn(4, FEATURES)).sum().backward()
    assert first_input.grad is None


@pytest.mark.parametrize("kind", RECURRENT)
def test_evaluation_leaves_the_state_untouched(kind: str) -> None:
    context = carried(Context(kind, FEATURES))
    hidden, cell = context.hidden.clone(), context.cell.clone()
    of(context.eval(), torch.randn(4, FEATURES))
    assert torch.equal(context.hidden, hidden)
    assert torch.equal(context.cell, cell)


@pytest.mark.parametrize("kind", RECURRENT)
def test_in_evaluation_each_task_is_a_sequence_of_one_from_the_saved_state(kind: str) -> None:
    context, summary = carried(Context(kind, FEATURES)).eval(), torch.randn(5, FEATURES)
    together = of(context, summary)
    alone = torch.cat([of(context, row) for row in summary.split(1)])
    torch.testing.assert_close(together, alone, rtol=0, atol=1e-6)
    torch.testing.assert_close(of(context, summary.flip(0)).flip(0), together, rtol=0, atol=1e-6)


def test_evaluation_is_the_lstm_started_from_the_state() -> None:
    context, summary = carried(Context("bilstm", FEATURES)).eval(), torch.randn(1, FEATURES)
    lstm, zero = context.lstm, torch.zeros(1, 1, FEATURES)
    assert isinstance(lstm, nn.LSTM)
    start = (torch.cat([context.hidden, zero]), torch.cat([context.cell, zero]))
    torch.testing.assert_close(of(context, summary), lstm(summary.unsqueeze(1), start)[0][0], rtol=0, atol=1e-6)


@pytest.mark.parametrize("kind", RECURRENT)
def test_the_state_changes_what_evaluation_says(kind: str) -> None:
    context, summary = Context(kind, FEATURES).eval(), torch.randn(5, FEATURES)
    before = of(context, summary)
    after = of(carried(context).eval(), summary)
    assert (before - after).abs().max() > 1e-3


@pytest.mark.parametrize("kind", RECURRENT)
def test_the_state_is_saved_and_loaded_with_the_weights(kind: str) -> None:
    context, other, summary = carried(Context(kind, FEATURES)).eval(), Context(kind, FEATURES), torch.randn(5, FEATURES)
    other.load_state_dict(context.state_dict())
    assert {"hidden", "cell"} <= context.state_dict().keys()
    assert torch.equal(of(other.eval(), summary), of(context, summary))


@pytest.mark.parametrize("kind", RECURRENT)
def test_a_step_that_is_not_remembered_leaves_no_trace(kind: str) -> None:
    context, summary = Context(kind, FEATURES).train(), torch.randn(4, FEATURES)
    first, again = of(context, summary), of(context, summary)
    assert torch.equal(first, again)
    assert context.hidden.abs().max() == 0


# Streams


@pytest.mark.parametrize("kind", RECURRENT)
@pytest.mark.parametrize("skip", [False, True])
def test_memory_handed_over_task_by_task_is_the_stream_at_once(kind: str, skip: bool) -> None:
    context = carried(Context(kind, FEATURES, skip=skip)).eval()
    summary = torch.randn(2, 5, FEATURES)  # two streams of five tasks
    together, after = context(summary.flatten(0, 1), None, 5)
    memory, steps = None, []
    for position in range(5):
        h, memory = context(summary[:, position], memory)
        steps.append(h)
    torch.testing.assert_close(together.unflatten(0, (2, 5)), torch.stack(steps, dim=1), rtol=0, atol=1e-6)
    assert memory is not None
    for ours, expected in zip(memory[:2], after[:2], strict=True):
        torch.testing.assert_close(ours, expected, rtol=0, atol=1e-6)


@pytest.mark.parametrize("kind", RECURRENT)
def test_at_test_time_a_stream_is_causal_and_its_past_counts(kind: str) -> None:
    context, summary = carried(Context(kind, FEATURES)).eval(), torch.randn(6, FEATURES)
    before = context(summary, None, 6)[0]
    changed = summary.clone()
    changed[3] += 1
    after = context(changed, None, 6)[0]
    torch.testing.assert_close(after[:3], before[:3], rtol=0, atol=0)
    assert (after[4:] - before[4:]).abs().amax(1).min() > 1e-4


@pytest.mark.parametrize("kind", RECURRENT)
def test_streams_do_not_see_each_other(kind: str) -> None:
    for training in (False, True):
        context, summary = carried(Context(kind, FEATURES)).train(training), torch.randn(6, FEATURES)
        together = context(summary, None, 3)[0]
        alone = torch.cat([context(half, None, 3)[0] for half in summary.split(3)])
        torch.testing.assert_close(together, alone, rtol=0, atol=1e-6)


def test_memory_can_be_cut_off_from_its_gradients() -> None:
    memory = Memory(torch.ones(1, requires_grad=True), None, torch.ones(1, requires_grad=True))
    detached = memory.detached()
    assert detached.cell is None
    assert detached.hidden is not None and detached.evidence is not None
    assert not (detached.hidden.requires_grad or detached.evidence.requires_grad)


# Carry


def test_plain_bayes_in_a_stream_multiplies_the_likelihoods_of_the_tasks_before() -> None:
    evidence = 3 * torch.randn(4, 2, 5, dtype=torch.double)  # of 4 kernels, in 2 streams of 5 tasks
    carried_on, after = Carry(learned=False)(evidence.flatten(1), None, 5)
    for stream in range(2):
        weights = np.full(4, 0.25)
        for position in range(5):
            prior = carried_on.unflatten(1, (2, 5))[:, stream, position].softmax(0)
            np.testing.assert_allclose(prior, weights, rtol=1e-9)
            weights = weights * evidence[:, stream, position].exp().numpy()
            weights /= weights.sum()
        np.testing.assert_allclose(after[:, stream].softmax(0), weights, rtol=1e-9)


@pytest.mark.parametrize("learned", [False, True])
def test_evidence_handed_over_task_by_task_is_that_of_the_stream_at_once(learned: bool) -> None:
    carry, evidence = Carry(learned=learned), torch.randn(4, 2, 5, dtype=torch.double)
    if learned:
        with torch.no_grad():
            carry.keep.fill_(0.5)
            carry.log_trust.fill_(-0.3)
    together, after = carry(evidence.flatten(1), None, 5)
    memory, steps = None, []
    for position in range(5):
        prior, kept = carry(evidence[:, :, position], memory, 1)
        memory = Memory(evidence=kept)
        steps.append(prior)
    torch.testing.assert_close(together.unflatten(1, (2, 5)), torch.stack(steps, dim=-1))
    assert memory is not None
    torch.testing.assert_close(memory.evidence, after)


def test_a_learned_carry_starts_near_plain_bayes_and_fades_with_age() -> None:
    evidence, carry = torch.randn(4, 6, dtype=torch.double), Carry(learned=True)
    plain, learned = (c(evidence, None, 6)[0] for c in (Carry(learned=False), carry))
    torch.testing.assert_close(learned, plain, rtol=0.05, atol=0.05)
    with torch.no_grad():
        carry.keep.fill_(-50.0)  # only yesterday counts
    last = carry(evidence, None, 6)[0]
    torch.testing.assert_close(last[:, 1:], evidence.log_softmax(0)[:, :-1])
    assert (last[:, 0] == 0).all()
