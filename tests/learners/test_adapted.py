from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from awake import awake
from metavrf.config import Config
from metavrf.episodes import Episodes
from metavrf.errors import UserError
from metavrf.learners.adapted import Adapted, Solving
from metavrf.learners.base import Learner
from metavrf.learners.head import RidgeHead
from metavrf.learners.kernel import KernelLearner
from metavrf.learners.metavrf import MetaVRF, MetaVRFSettings
from metavrf.nn.mlp import MLP
from metavrf.randomness import stream
from metavrf.spec import TaskSpec
from metavrf.tasks.functions import family

SETTINGS: list[dict[str, Any]] = [
    {"feature_map": "cosine"},
    {"feature_map": "sincos"},
    {"samples": 3},
    {"unit_features": True},
    {"bases": 4},  # fewer than support samples: ridge in its primal form
    {"context": "bilstm"},
]
PARTS = ("support_x", "support_y", "query_x")
each_setting = pytest.mark.parametrize("settings", SETTINGS, ids=str)


def classes(learner: str = "metavrf", **settings: Any) -> KernelLearner:
    own = {name: value for name, value in settings.items() if learner == "metavrf" or name != "context"}
    config = Config.of("features.safetensors", learner).with_options(**{"bases": 32, **own})
    model = awake(config.build(TaskSpec((6,), None))).eval()
    assert isinstance(model, KernelLearner)
    with torch.no_grad():
        model.log_length.fill_(0.7)
        if isinstance(model.head, RidgeHead):
            model.head.beta.fill_(0.3)
        model.temperature.fill_(1.6)
    return model


def functions(**settings: Any) -> MetaVRF:
    merged = MetaVRFSettings(**{"bases": 32, "ridge": 1e-2, "context": "none", **settings})
    model = awake(MetaVRF(MLP((1, 8, 8)), TaskSpec(), merged, generator=torch.Generator().manual_seed(7)))
    model.initialise(family("sine").sample(4, 5, 3, stream(0, "train")))
    return model.eval()


def class_task(shots: tuple[int, ...] = (1, 3, 2), query: int = 7) -> Episodes:
    y = torch.arange(len(shots)).repeat_interleave(torch.tensor(shots)).unsqueeze(0)
    return Episodes(torch.randn(1, sum(shots), 6), y, torch.randn(1, query, 6), None, len(shots))


def close(value: Tensor, expected: Tensor, tolerance: float = 1e-5) -> None:
    torch.testing.assert_close(value.double(), expected.double(), rtol=0, atol=tolerance)


@each_setting
@pytest.mark.parametrize("learner", ["metavrf", "rff"])
def test_an_adapted_module_gives_the_probabilities_of_predict(learner: str, settings: dict[str, Any]) -> None:
    model, task = classes(learner, **settings), class_task()
    module = model.adapted(task)
    assert isinstance(module, Adapted)
    answer = module(task.query_x[0])
    close(answer, model.predict(task).mean[0].exp())
    close(answer.sum(-1), torch.ones(7))
    assert answer.std(0).min() > 1e-3


@each_setting
def test_an_adapted_module_gives_the_mean_and_the_band_of_predict(settings: dict[str, Any]) -> None:
    model, task = functions(**settings), family("sine").sample(1, 6, 9, stream(3, "train"))
    mean, std = model.adapted(task)(task.query_x[0])
    expected = model.predict(task.asking(task.query_x))
    assert expected.std is not None
    close(mean, expected.mean[0], 1e-4)
    close(std, expected.std[0], 1e-4)


def test_an_adapted_module_on_features_leaves_the_embedding_out() -> None:
    model, task = classes(), class_task()
    features = model.embedded(task)
    module = model.adapted(features, embedded=True)
    close(module(features.query_x[0]), model.adapted(task)(task.query_x[0]))
    assert isinstance(module.embedding, nn.Identity)


def test_an_adapted_module_does_not_change_with_its_learner() -> None:
    model, task = classes(), class_task()
    features = model.embedded(task)
    module = model.adapted(features, embedded=True)
    before = module(features.query_x[0])
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.5)
    assert torch.equal(module(features.query_x[0]), before)


def test_adapting_leaves_the_mode_and_the_memory_of_a_learner_alone() -> None:
    model, task = classes(context="lstm").train(), class_task()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    model.adapted(task)
    assert model.training
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())


@pytest.mark.parametrize("settings", [{}, {"components": 3, "train_kernel": "exact"}], ids=str)
def test_several_tasks_are_refused(settings: dict[str, Any]) -> None:
    model, task = classes(**settings), class_task()
    two = replace(task, **{name: getattr(task, name).repeat_interleave(2, 0) for name in PARTS})
    with pytest.raises(UserError, match="only one task can be folded into a module, not 2"):
        model.adapted(two)


@pytest.mark.parametrize("settings", [{}, {"components": 3, "train_kernel": "exact"}], ids=str)
def test_a_learner_normalised_by_the_support_is_adapted_under_its_own_statistics(settings: dict[str, Any]) -> None:
    class BySupport(MetaVRF):
        inductive_statistics = "support"

    running, task = classes(**settings), class_task(shots=(2, 3, 2))
    model = BySupport(running.embedding, running.spec, running.settings).eval()
    model.load_state_dict(running.state_dict())
    answer = model.adapted(task)(task.query_x[0])
    close(answer, model.predict(task).mean[0].exp())
    assert (answer - running.adapted(task)(task.query_x[0])).abs().max() > 1e-2


def test_any_other_learner_solves_the_task_at_every_call() -> None:
    model, task = classes(), class_task()
    module = Learner.adapted(model, task)
    assert isinstance(module, Solving)
    close(module(task.query_x[0]), model.adapted(task)(task.query_x[0]))
    regression, points = functions(), family("sine").sample(1, 6, 9, stream(3, "train"))
    answers = (
        module(points.query_x[0]) for module in (Learner.adapted(regression, points), regression.adapted(points))
    )
    for solved, folded in zip(*answers, strict=True):
        close(solved, folded, 1e-4)
