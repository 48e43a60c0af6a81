from __future__ import annotations

import torch
from torch import Tensor

from metavrf.learners.measuring import measure
from metavrf.randomness import stream
from metavrf.tasks.functions import FunctionFamily, Sine, SineMAML
from metavrf.testing.limits import limits


def test_limits_have_no_parameters_and_are_those_of_the_family() -> None:
    class Line(FunctionFamily):
        parameters = {"slope": (0.0, 1.0)}

        def evaluate(self, x: Tensor, **parameters: Tensor) -> Tensor:
            return parameters["slope"] * x

    assert limits(Line()) == {}
    known = limits(SineMAML())
    assert known.keys() == SineMAML().oracles().keys()
    assert [p for limit in known.values() for p in limit.parameters()] == []


def test_a_limit_says_what_the_oracle_says() -> None:
    episodes = Sine().sample(6, 3, 8, stream(0, "test"))
    oracles = Sine().oracles()
    for name, limit in limits(Sine()).items():
        prediction = limit.predict(episodes)
        assert torch.equal(prediction.mean, oracles[name](episodes).mean)
        assert prediction.std is not None


def test_limits_are_measured_as_learners_are() -> None:
    episodes = Sine().sample_grid(40, 5, stream(0, "test"))
    affine, bayes = (measure(limit, episodes)["mse"].mean() for limit in limits(Sine()).values())
    assert bayes < affine
