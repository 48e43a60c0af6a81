from __future__ import annotations

from itertools import product

import pytest
import torch

from metavrf.randomness import stream

PURPOSES = ("weights", "bases", "train", "draws", "validation", "test", "figure")


def draw(seed: int, purpose: str, counter: int = 0) -> tuple[float, ...]:
    return tuple(torch.rand(4, generator=stream(seed, purpose, counter)).tolist())


def test_the_same_stream_gives_the_same_numbers() -> None:
    assert draw(3, "train", 7) == draw(3, "train", 7)


def test_seeds_purposes_and_counters_all_give_different_numbers() -> None:
    streams = list(product((0, 1, 2020), PURPOSES, (0, 1, 2, 1000)))
    assert len({draw(*arguments) for arguments in streams}) == len(streams) == 84


def test_a_stream_does_not_touch_the_global_generator() -> None:
    before = torch.random.get_rng_state()
    draw(0, "bases")
    assert torch.equal(torch.random.get_rng_state(), before)


def test_numbers_of_consecutive_steps_are_uncorrelated() -> None:
    values = torch.stack([torch.rand(500, generator=stream(0, "train", step)) for step in range(20)])
    correlation = torch.corrcoef(values) - torch.eye(20)
    assert correlation.abs().max() < 5 / 500**0.5


def test_an_unknown_purpose_is_refused() -> None:
    with pytest.raises(ValueError, match="tuple"):
        stream(0, "lunch")
