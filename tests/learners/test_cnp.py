"""Conditional neural processes against explicit loops."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import pytest
import torch

import metavrf
from metavrf.episodes import Episodes
from metavrf.errors import UserError
from metavrf.learners.cnp import CNP, CNPSettings
from metavrf.nn.mlp import Raw
from metavrf.randomness import stream
from metavrf.spec import TaskSpec
from metavrf.tasks.functions import family
from metavrf.testing.adaptivity import adaptivity
from pictures_on_disk import write_folder
from ready_tasks import curves


def cnp(inputs: int = 2, outputs: int = 2) -> CNP:
    torch.manual_seed(1)
    return CNP(Raw(inputs), TaskSpec((inputs,), outputs), CNPSettings(width=16, least_std=0.1))


def test_an_answer_is_decoded_from_the_mean_code_of_the_points() -> None:
    learner, episodes = cnp(), curves()
    found = learner(episodes)
    assert found.std is not None and episodes.query_y is not None
    losses = []
    for t in range(2):
        codes = [
            learner.encoder(torch.cat([x, y]))
            for x, y in zip(episodes.support_x[t], episodes.support_y[t], strict=True)
        ]
        mean_code = sum(codes[1:], codes[0]) / len(codes)
        for q, x in enumerate(episodes.query_x[t]):
            first, second, *raw = learner.decoder(torch.cat([x, mean_code])).tolist()
            for p, (mean, s) in enumerate(zip((first, second), raw, strict=True)):
                std = 0.1 + 0.9 * math.log1p(math.exp(s))
                assert found.mean[t, q, p].item() == pytest.approx(mean, rel=1e-4, abs=1e-5)
                assert found.std[t, q, p].item() == pytest.approx(std, rel=1e-4)
                error = (episodes.query_y[t, q, p].item() - mean) / std
                losses.append(0.5 * error**2 + math.log(std) + 0.5 * math.log(2 * math.pi))
    assert found.loss is not None
    assert found.loss.item() == pytest.approx(sum(losses) / len(losses), rel=1e-5)


def test_neither_the_order_of_the_points_nor_another_query_matters() -> None:
    learner, episodes = cnp(), curves(shot=5, query=6)
    expected = learner.predict(episodes).mean
    order = torch.tensor([3, 0, 4, 1, 2])
    shuffled = replace(episodes, support_x=episodes.support_x[:, order], support_y=episodes.support_y[:, order])
    torch.testing.assert_close(learner.predict(shuffled).mean, expected)
    torch.testing.assert_close(learner.predict(episodes.asking(episodes.query_x[:, 2:3])).mean, expected[:, 2:3])


def test_sizes_may_change_from_step_to_step() -> None:
    learner = cnp(1, 1)
    groups = family("gp-rbf").sample_groups(10, stream(0, "train"))
    assert len({group.support_x.shape[1] for group in groups}) > 1
    for group in groups:
        assert group.query_y is not None
        assert learner(group).mean.shape == group.query_y.shape


def test_what_is_inferred_of_a_task_is_its_mean_code(tmp_path: Path) -> None:
    run = metavrf.train(
        "sine",
        learner="cnp",
        shot=10,
        iterations=500,
        validate_every=500,
        validate_tasks=20,
        quiet=True,
        out=tmp_path / "run",
    )
    learner = metavrf.load(run.path).learner
    tasks = family("sine").sample_grid(40, 10, stream(0, "test"))
    found = adaptivity(learner, tasks, batch=7)
    assert tasks.query_y is not None
    own = (learner.predict(tasks).mean - tasks.query_y).square().mean().item()
    assert found["own"]["mse"] == pytest.approx(own, rel=1e-4)
    codes = learner.inferred(learner.embedded(tasks)).values
    code_of_next = Episodes(
        tasks.support_x.roll(-1, 0), tasks.support_y.roll(-1, 0), tasks.query_x, tasks.query_y
    )  # queries are on the same grid
    torch.testing.assert_close(learner.inferred(code_of_next).values, codes.roll(-1, 0))
    others = (learner.predict(code_of_next).mean - tasks.query_y).square().mean().item()
    assert found["other"]["mse"] == pytest.approx(others, rel=1e-4)
    assert found["other"]["mse"] > 1.5 * found["own"]["mse"]
    assert found["mean"]["mse"] > found["own"]["mse"]


@pytest.mark.parametrize("name", ["cnp", "tnp"])
def test_a_neural_process_refuses_classes(name: str, tmp_path: Path) -> None:
    write_folder(tmp_path / "pictures")
    with pytest.raises(UserError, match=f"^the learner {name} is for regression, and these tasks are classification$"):
        metavrf.train(str(tmp_path / "pictures"), learner=name, query=3, test_query=3, out=tmp_path / "run", quiet=True)
    assert not (tmp_path / "run").exists()
