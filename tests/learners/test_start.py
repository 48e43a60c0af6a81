"""Where MetaVRF's bases start, before the first step."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from metavrf.episodes import Episodes
from metavrf.learners.metavrf import MetaVRF, MetaVRFSettings
from metavrf.nn.mixture import MixturePosterior
from metavrf.nn.mlp import MLP, GaussianMLP, Raw
from metavrf.randomness import stream
from metavrf.spec import TaskSpec
from metavrf.tasks.functions import family


@pytest.mark.parametrize("shot", [2, 10])
@pytest.mark.parametrize("seed", range(3))
def test_functions_start_with_a_phase_that_grows_evenly_with_the_input(seed: int, shot: int) -> None:
    torch.manual_seed(seed)
    model = MetaVRF(MLP((1, 40, 40)), TaskSpec(), MetaVRFSettings(bases=8))
    episodes = family("sine").sample(25, shot, 9, stream(0, "train"))
    model.initialise(episodes)
    with torch.no_grad():
        q = model.infer(episodes.embedded(model.embedding).embedded(model.rescale))
        mean, log_variance = q.mean[0], 2 * q.std[0].log()
        z = model.rescale(model.embedding(torch.linspace(-5, 5, 21).reshape(1, 21, 1)))[0]
    assert torch.equal(mean, mean[:1].expand_as(mean))
    torch.testing.assert_close(log_variance, torch.full_like(log_variance, -2), rtol=0.05, atol=0)
    steps = (z @ mean[0]).diff()
    assert (steps / steps.mean() > 0.5).all()
    apart = (episodes.support_x[:, :, None] - episodes.support_x[:, None]).abs().sum() / (25 * shot * (shot - 1))
    assert steps.mean().item() == pytest.approx(0.5 * 2 / apart.item(), rel=0.1)  # a half is the grid's step


def test_functions_of_several_inputs_start_with_a_phase_of_their_sum() -> None:
    model = MetaVRF(MLP((3, 32, 32)), TaskSpec((3,)), MetaVRFSettings(bases=8))
    x = torch.randn(25, 10, 3)
    episodes = Episodes(x[:, :6], torch.randn(25, 6, 1), x[:, 6:], torch.randn(25, 4, 1))
    model.initialise(episodes)
    assert isinstance(model.posterior, GaussianMLP)
    with torch.no_grad():
        phase = model.rescale(model.embedding(x)) @ model.posterior.biases[-1][0, 0]
    assert torch.corrcoef(torch.stack([phase.flatten(), x.sum(-1).flatten()]))[0, 1].abs() > 0.98


def test_classes_start_with_bases_about_zero() -> None:
    model = MetaVRF(MLP((8, 16, 16)), TaskSpec((8,), None), MetaVRFSettings(bases=8))
    episodes = Episodes(torch.randn(25, 10, 8), torch.arange(5).repeat(25, 2), torch.randn(25, 3, 8), way=5)
    model.initialise(episodes)
    q = model.infer(episodes.embedded(model.embedding))
    assert (q.mean == 0).all()
    assert (q.std == 1).all()


def lengths(model: MetaVRF) -> torch.Tensor:
    """Of the learned kernels that all tasks share, in units of the input, the shortest first."""
    assert isinstance(model.posterior, MixturePosterior)
    return (model.log_length.exp() / model.posterior.log_std.exp())[:, 0].detach().sort().values


def test_tasks_that_repeat_themselves_have_no_say_in_kernels_beside_periodic_ones_of_their_own() -> None:
    smooth, periodic = (family(name).sample(40, 20, 3, stream(0, "train")) for name in ("gp-rbf", "gp-periodic"))

    def joined(name: str) -> Tensor:
        return torch.cat([getattr(tasks, name) for tasks in (smooth, periodic)])

    both = Episodes(joined("support_x"), joined("support_y"), joined("query_x"))
    settings: dict[str, Any] = {
        "components": 16,
        "guards": 2,
        "rough": 4,
        "train_kernel": "exact",
        "context": "none",
        "moves": False,
    }
    found = []
    for episodes, candidates in ((smooth, 16), (both, 16), (both, 0)):
        model = MetaVRF(Raw(1), TaskSpec(), MetaVRFSettings(**settings, candidates=candidates, noise=1e-3))
        model.initialise(episodes)
        found.append(lengths(model))
        assert isinstance(model.posterior, MixturePosterior)
        assert bool((model.posterior.mean == 0).all()) == bool(candidates)
    alone, together, without = found
    assert ((together > 0.08) & (together < 1.5)).float().mean() > 0.8  # those of the family are from 0.1 to 0.6
    assert (together / alone).log().abs().mean() < 0.3
    assert (without / alone).log().abs().mean() > 0.6
