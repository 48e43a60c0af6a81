from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from metavrf.nn.inference import Carry, Memory
from metavrf.nn.mixture import Mixture, MixturePosterior
from metavrf.nn.recall import OWN, Recall

KERNELS, STREAM = 20, 5
RECURRENT = ["lstm", "bilstm"]


def kernels(tasks: int) -> Mixture:
    """Evenly apart in μ from 1 to 2, else alike."""
    posterior = MixturePosterior(KERNELS, 1, 0, moves=False, noise=1e-3)
    with torch.no_grad():
        posterior.mean.copy_(torch.linspace(1, 2, KERNELS).unsqueeze(1))
        found: Mixture = posterior(None, tasks)
    return found


def parabolas(vertex: float, sharpness: float, tasks: int = STREAM) -> Tensor:
    """Evidence that falls off from one value of μ, ``[M, T]``."""
    distance = (torch.linspace(1, 2, KERNELS, dtype=torch.double) - vertex) * (KERNELS - 1)  # in kernels
    return (-sharpness * distance.square()).unsqueeze(1).expand(-1, tasks)


def varied(kind: str) -> Recall:
    recall = Recall(kind, KERNELS, 4)
    assert recall.correction is not None
    nn.init.uniform_(recall.correction.weight, -0.5, 0.5)
    return recall.eval()


@pytest.mark.parametrize("kind", RECURRENT)
def test_it_starts_with_the_prior_of_the_plain_update(kind: str) -> None:
    evidence = 3 * torch.randn(KERNELS, 2 * STREAM, dtype=torch.double)
    recall, q = Recall(kind, KERNELS, 4), kernels(2 * STREAM)
    found, memory = recall(q, evidence, None, STREAM)
    plain, after = Carry(learned=False)(evidence, None, STREAM)
    torch.testing.assert_close(found.log_prior[OWN:], q.log_prior + plain, rtol=0.01, atol=0.01)
    torch.testing.assert_close(memory.evidence, after, rtol=0.01, atol=0.01)
    together = found.log_prior[OWN:].logsumexp(0)
    assert (found.log_prior[:OWN] < together - 1).all()


@pytest.mark.parametrize("vertex", [1.3, 1.512, 1.64])
@pytest.mark.parametrize("sharpness", [0.3, 3.0, 300.0])
def test_its_own_kernels_lie_where_the_evidence_peaks_between_two_others(vertex: float, sharpness: float) -> None:
    found, _ = Recall("lstm", KERNELS, 4)(kernels(STREAM), parabolas(vertex, sharpness), None, STREAM)
    assert found.mean.shape == (OWN + KERNELS, STREAM, 1)
    apart = 1 / (KERNELS - 1)
    assert (found.mean[:OWN] - vertex).abs().max() < 0.1 * apart


def test_without_an_lstm_it_is_the_plain_update_to_the_bit_and_has_the_same_kernels_between() -> None:
    evidence, q = 3 * torch.randn(KERNELS, 2 * STREAM, dtype=torch.double), kernels(2 * STREAM)
    found, memory = Recall("bayes", KERNELS, 4)(q, evidence, None, STREAM)
    plain, after = Carry(learned=False)(evidence, None, STREAM)
    assert torch.equal(found.log_prior[OWN:], q.log_prior + plain)
    assert memory.evidence is not None and torch.equal(memory.evidence, after)
    with_lstm, _ = Recall("lstm", KERNELS, 4)(q, evidence, None, STREAM)
    torch.testing.assert_close(found.mean[:OWN], with_lstm.mean[:OWN], rtol=0.01, atol=0.01)


def test_its_own_kernels_become_narrower_as_the_evidence_grows() -> None:
    found, _ = Recall("lstm", KERNELS, 4)(kernels(STREAM), parabolas(1.4, 1.0), None, STREAM)
    own = found.std[:OWN, :, 0]
    assert (own.diff(dim=1) < 0).all()
    assert (own < found.std[OWN:, :, 0].amin(0)).all()


@pytest.mark.parametrize("kind", RECURRENT)
@pytest.mark.parametrize("training", [False, True])
def test_it_sees_nothing_of_later_tasks_in_training_either(kind: str, training: bool) -> None:
    recall, q, evidence = varied(kind).train(training), kernels(STREAM), torch.randn(KERNELS, STREAM).double()
    before, _ = recall(q, evidence, None, STREAM)
    changed = evidence.clone()
    changed[:, 3] += torch.randn(KERNELS)
    after, _ = recall(q, changed, None, STREAM)
    for name in ("mean", "std", "noise", "log_prior"):
        one, other = getattr(before, name), getattr(after, name)
        assert torch.equal(one[:, :3], other[:, :3])
        assert (one[:OWN, 4] != other[:OWN, 4]).all()


@pytest.mark.parametrize("kind", RECURRENT)
def test_a_stream_handed_over_task_by_task_is_the_stream_at_once(kind: str) -> None:
    recall, q, evidence = varied(kind), kernels(STREAM), torch.randn(KERNELS, STREAM).double()
    together, after = recall(q, evidence, None, STREAM)
    memory: Memory | None = None
    for position in range(STREAM):
        found, memory = recall(kernels(1), evidence[:, position : position + 1], memory, 1)
        torch.testing.assert_close(found.log_prior[:, 0], together.log_prior[:, position])
        torch.testing.assert_close(found.mean[:, 0], together.mean[:, position])
    assert memory is not None
    for one, other in zip(memory, after, strict=True):
        torch.testing.assert_close(one, other)
