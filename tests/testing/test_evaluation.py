from __future__ import annotations

import json
import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import scipy.stats
import torch

from awake import awake
from metavrf.config import Config
from metavrf.episodes import Episodes
from metavrf.errors import UserError
from metavrf.learners.base import Learner, Prediction
from metavrf.learners.measuring import LeaveOneOut, Tasks, _threshold, leave_one_out, measure
from metavrf.learners.metavrf import MetaVRF, MetaVRFSettings
from metavrf.learners.untrained import Untrained
from metavrf.nn.mlp import MLP
from metavrf.randomness import stream
from metavrf.spec import TaskSpec
from metavrf.tasks.functions import family
from metavrf.testing.compare import limits as limits_of
from metavrf.testing.evaluate import test_tasks as tasks_of
from metavrf.testing.evaluation import Evaluation, evaluate_learner, fingerprint, interval95, paired_differences
from metavrf.testing.settings import TEST_SEED, EvalSettings


class Fixed(Learner):
    """Says the same mean and deviation everywhere."""

    def __init__(self, mean: float, std: float | None) -> None:
        super().__init__()
        self.mean, self.std = mean, std

    def solve(self, episodes: Episodes, memory: object = None, generator: torch.Generator | None = None) -> Prediction:
        mean = torch.full_like(episodes.query_x, self.mean)
        std = None if self.std is None else torch.full_like(mean, self.std)
        return Prediction(mean, mean.unsqueeze(0), std)


class Transductive(Fixed):
    transductive = True


def gaussian_tasks(tasks: int = 50, query: int = 200, mean: float = 1.0, std: float = 2.0) -> Episodes:
    """Tasks whose answers are N(mean, std²), whatever the input."""
    generator = torch.Generator().manual_seed(5)
    support, x = torch.zeros(tasks, 3, 1), torch.zeros(tasks, query, 1)
    return Episodes(support, support, x, mean + std * torch.randn(tasks, query, 1, generator=generator))


def metavrf_learner() -> MetaVRF:
    settings = MetaVRFSettings(context="bilstm", context_inputs="xy", bases=64, ridge=1e-2)
    model = awake(MetaVRF(MLP((1, 16, 16)), TaskSpec(), settings, generator=stream(0, "bases")))
    model.initialise(family("sine").sample(25, 5, 15, stream(0, "train")))
    with torch.no_grad():
        model.remember(model.train()(family("sine").sample(25, 5, 15, stream(0, "train", 1))))
    return model


@pytest.mark.parametrize("count", [2, 10, 1000])
def test_interval_is_students(count: int) -> None:
    values = torch.rand(count, generator=torch.Generator().manual_seed(count))
    low, high = scipy.stats.t.interval(0.95, count - 1, values.double().mean(), scipy.stats.sem(values.double()))
    assert interval95(values) == pytest.approx((high - low) / 2, rel=1e-9)


def test_interval_holds_the_truth_in_95_of_100_cases() -> None:
    values = torch.randn(4000, 5, generator=torch.Generator().manual_seed(0), dtype=torch.double)
    inside = [abs(row.mean().item()) <= interval95(row) for row in values]
    assert np.mean(inside) == pytest.approx(0.95, abs=4 * math.sqrt(0.95 * 0.05 / 4000))


@pytest.mark.parametrize(("claimed", "coverage"), [(2.0, 0.9), (1.0, 0.58912), (4.0, 0.99900)])
def test_coverage_is_90_percent_for_a_calibrated_learner_only(claimed: float, coverage: float) -> None:
    evaluation = evaluate_learner(Fixed(1.0, claimed), gaussian_tasks(), seed=0)
    expected = 2 * scipy.stats.norm.cdf(scipy.stats.norm.ppf(0.95) * claimed / 2) - 1
    assert expected == pytest.approx(coverage, abs=1e-4)
    assert evaluation.coverage90 == pytest.approx(coverage, abs=4 * math.sqrt(coverage * (1 - coverage) / 10_000))


def test_figures_of_a_task_are_those_of_torch_distributions_and_numpy() -> None:
    episodes = gaussian_tasks(tasks=4, query=10)
    figures = measure(Fixed(0.5, 1.5), episodes)
    assert episodes.query_y is not None
    log_density = torch.distributions.Normal(0.5, 1.5).log_prob(episodes.query_y)
    torch.testing.assert_close(figures["nll"], -log_density.double().mean((1, 2)))
    np.testing.assert_allclose(figures["mse"], ((episodes.query_y.numpy() - 0.5) ** 2).mean((1, 2)), rtol=1e-6)


def test_evaluation_averages_over_tasks() -> None:
    episodes = gaussian_tasks(tasks=6, query=10)
    figures, evaluation = measure(Fixed(0.5, 1.5), episodes), evaluate_learner(Fixed(0.5, 1.5), episodes, seed=3)
    assert evaluation.mean == pytest.approx(figures["mse"].mean().item())
    assert evaluation.nll == pytest.approx(figures["nll"].mean().item())
    assert evaluation.ci95 == pytest.approx(interval95(figures["mse"]))
    assert (evaluation.metric, evaluation.tasks, evaluation.shot, evaluation.seed) == ("mse", 6, 3, 3)
    assert torch.equal(evaluation.per_task, figures["mse"])


def test_results_carry_the_protocol() -> None:
    assert evaluate_learner(Fixed(0, 1), gaussian_tasks(2), seed=0).protocol == "inductive"
    assert evaluate_learner(Transductive(0, 1), gaussian_tasks(2), seed=0).protocol == "transductive"


def test_results_do_not_depend_on_the_batch_size() -> None:
    model, episodes = metavrf_learner(), family("sine").sample_grid(100, 5, stream(0, "test"))
    one, seven, hundred = (evaluate_learner(model, episodes, seed=0, batch=batch) for batch in (1, 7, 100))
    for other in (one, seven):
        assert other.mean == pytest.approx(hundred.mean, rel=1e-6)
        assert other.ci95 == pytest.approx(hundred.ci95, rel=1e-6)
        assert other.nll == pytest.approx(hundred.nll, rel=1e-5)
        torch.testing.assert_close(other.per_task, hundred.per_task, rtol=1e-5, atol=1e-6)


def test_evaluating_leaves_the_learner_as_it_was() -> None:
    model, episodes = metavrf_learner().train(), family("sine").sample_grid(10, 5, stream(0, "test"))
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    measure(model, episodes)
    assert model.training
    assert all(torch.equal(tensor, before[name]) for name, tensor in model.state_dict().items())


def test_summary_is_plain_data_without_single_tasks() -> None:
    evaluation = evaluate_learner(Fixed(0, 1), gaussian_tasks(3), seed=0)
    summary = json.loads(json.dumps(evaluation.to_dict()))
    assert "per_task" not in summary
    assert summary["mean"] == evaluation.mean


def test_one_task_is_too_few_for_an_interval() -> None:
    with pytest.raises(UserError, match="tasks=1"):
        evaluate_learner(Fixed(0, 1), gaussian_tasks(1), seed=0)


def test_evaluation_needs_answers_and_a_deviation() -> None:
    episodes = gaussian_tasks(3)
    with pytest.raises(UserError, match="query targets"):
        measure(Fixed(0, 1), replace(episodes, query_y=None))
    with pytest.raises(UserError, match="standard deviation"):
        measure(Fixed(0, None), episodes)


@pytest.mark.parametrize("name", ["support_x", "support_y", "query_x", "query_y"])
def test_fingerprint_changes_with_any_number(name: str) -> None:
    first, second = gaussian_tasks(), gaussian_tasks()
    assert fingerprint(first) == fingerprint(second)
    setattr(second, name, getattr(second, name).clone())
    getattr(second, name)[-1, -1] += 1e-3
    assert fingerprint(second) != fingerprint(first)


def test_paired_differences_are_those_of_each_task() -> None:
    episodes = gaussian_tasks()
    evaluations = [evaluate_learner(Fixed(mean, 1.0), episodes, seed=0) for mean in (1.0, 0.0, 1.2)]
    differences = paired_differences(evaluations)
    assert (differences[0].mean, differences[0].ci95) == (0, 0)
    for evaluation, difference in zip(evaluations[1:], differences[1:], strict=True):
        gap = evaluation.per_task.double().numpy() - evaluations[0].per_task.double().numpy()
        assert difference.mean == pytest.approx(gap.mean(), rel=1e-9)
        test = scipy.stats.ttest_rel(evaluation.per_task.double(), evaluations[0].per_task.double())
        interval = test.confidence_interval(0.95)
        assert difference.ci95 == pytest.approx((interval.high - interval.low) / 2, rel=1e-6)
    assert differences[2].ci95 < 0.5 * evaluations[2].ci95  # pairing pays


def test_differences_on_different_tasks_are_refused() -> None:
    first = evaluate_learner(Fixed(0, 1), gaussian_tasks(), seed=0)
    second = evaluate_learner(Fixed(0, 1), gaussian_tasks(mean=1.1), seed=0)
    with pytest.raises(UserError, match="not on the same tasks"):
        paired_differences([first, second])


def test_test_tasks_are_fixed_by_the_seed_and_differ_from_validation() -> None:
    config = Config.of("sine")

    def drawn(**options: Any) -> Tasks:
        return tasks_of(config, None, EvalSettings(tasks=5, **options))

    first, again, other = (drawn(seed=seed) for seed in (TEST_SEED, TEST_SEED, 1))
    validation = family("sine").sample_grid(5, 5, stream(TEST_SEED, "validation"))
    assert fingerprint(first) == fingerprint(again)
    assert len({fingerprint(tasks) for tasks in (first, other, validation)}) == 3
    other_shot = drawn(shot=3)
    assert isinstance(first, Episodes) and isinstance(other_shot, Episodes)
    assert (first.shot, other_shot.shot) == (config.episode.shot, 3)


@pytest.mark.parametrize(("tasks", "shot", "quoted"), [(1, 5, "tasks = 1"), (5, 0, "shot = 0"), (5, -1, "shot = -1")])
def test_impossible_test_tasks_are_refused(tasks: int, shot: int, quoted: str) -> None:
    with pytest.raises(UserError, match=quoted):
        tasks_of(Config.of("sine"), None, EvalSettings(tasks=tasks, shot=shot))


def test_limits_are_evaluated_on_the_same_tasks() -> None:
    limits = limits_of("sine", shot=3, tasks=10)
    expected = fingerprint(tasks_of(Config.of("sine"), None, EvalSettings(tasks=10, shot=3)))
    evaluations: list[Evaluation] = list(limits.values())
    assert [e.data_sha256 for e in evaluations] == [expected, expected]
    assert limits["Bayes-optimal"].mean < limits["best affine predictor"].mean


# Leaving one out


def blobs(shots: list[int], spread: float) -> Episodes:
    """One task of classes around the corners of a square."""
    y = torch.arange(len(shots)).repeat_interleave(torch.tensor(shots))
    corners = torch.tensor([[0.0, 0.0], [0.0, 4.0], [4.0, 0.0]], dtype=torch.double)
    noise = torch.randn(len(y), 2, generator=torch.Generator().manual_seed(0), dtype=torch.double)
    return Episodes.of_support(corners[y] + spread * noise, y, len(shots))


def untrained() -> Untrained:
    return Untrained(2, regression=False, generator=stream(0, "bases"))


def test_leaving_one_out_is_predicting_each_sample_from_the_others() -> None:
    task = blobs([5, 4, 6], 1.5)
    right = []
    for row in range(15):
        others = [other for other in range(15) if other != row]
        rest = Episodes.of_support(task.support_x[0, others], task.support_y[0, others], 3)
        answer = untrained().predict(rest.asking(task.support_x[:, row : row + 1]), embedded=True).mean
        right.append(answer.argmax().item() == task.support_y[0, row].item())
    expected = leave_one_out(untrained(), task)
    assert expected.tested == 15
    assert expected.accuracy == pytest.approx(100 * sum(right) / 15)
    assert 50 < 100 * sum(right) / 15 < 100  # some are wrong


def test_a_class_of_one_sample_is_not_tested() -> None:
    assert leave_one_out(untrained(), blobs([3, 1, 2], 0.1)).tested == 5
    assert leave_one_out(untrained(), blobs([1, 1, 1], 0.1)) == LeaveOneOut(None, 0, 0.95)


def test_of_many_samples_some_are_tested(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("metavrf.learners.measuring.MOST_LEFT_OUT", 7)
    monkeypatch.setattr("metavrf.learners.measuring.LEFT_OUT_AT_ONCE", 40)  # two tasks at a time
    expected = leave_one_out(untrained(), blobs([5, 5, 5], 0.1))
    assert (expected.tested, expected.accuracy) == (7, 100.0)


@pytest.mark.parametrize(
    ("probability", "right", "threshold"),
    [
        ([0.6, 0.9, 0.99], [1, 1, 1], 0.6),  # all right: as low as was seen
        ([0.98, 0.99, 0.999], [1, 1, 1], 0.95),  # no higher than calibration asks for
        ([0.6, 0.7, 0.8, 0.9], [1, 0, 1, 1], 0.8),
        ([0.6, 0.97, 0.98, 0.99], [1, 1, 0, 1], 0.99),  # sure, and wrong: more is asked for
        ([0.5, 0.99], [1, 0], 1.0),
    ],
)
def test_the_threshold_is_the_least_probability_to_trust(
    probability: list[float], right: list[int], threshold: float
) -> None:
    assert _threshold(torch.tensor(probability), torch.tensor(right).bool()) == pytest.approx(threshold)
