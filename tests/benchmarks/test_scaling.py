"""What the cost curves are made of."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch

import scaling

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("power", [0.5, 1.0, 2.0, 3.0])
@pytest.mark.parametrize("constant", [0.0, 5.0])
def test_the_power_of_a_curve_is_found_with_or_without_a_constant(power: float, constant: float) -> None:
    x = np.array([1.0, 2, 5, 10, 20, 50, 100])
    found = scaling.fitted(x.tolist(), (constant + 3 * x**power).tolist())
    assert found["power"] == pytest.approx(power, abs=0.051)
    assert found["constant"] == pytest.approx(constant, abs=0.3)


def test_a_curve_that_hardly_grows_has_no_power() -> None:
    assert scaling.fitted([1, 2, 4], [10.0, 30.0, 11.0])["power"] is None


def test_memory_is_the_most_that_is_held_at_a_time() -> None:
    def piece() -> None:
        first = torch.zeros(2**18)  # one megabyte
        del first
        second = torch.zeros(2**19)
        second.add(1)

    assert scaling.peak_megabytes(piece) == pytest.approx(4, abs=0.1)


def test_operations_are_those_of_products_and_all_that_are_sent() -> None:
    a, b = torch.ones(10, 20), torch.ones(20, 30)
    flops, sent = scaling.operations(lambda: torch.relu((a @ b).T))
    assert flops == 2 * 10 * 20 * 30
    assert sent == 2  # the transpose is a view


def test_a_small_step_on_a_gpu_is_bound_by_sending_and_a_large_one_by_arithmetic() -> None:
    assert scaling.gpu_seconds(1.0, 1000) == pytest.approx(1000 * scaling.ASSUMED.seconds_per_launch)
    reached = scaling.ASSUMED.peak_flops * scaling.ASSUMED.reached_share
    assert scaling.gpu_seconds(2 * reached, 1000) == pytest.approx(2.0)


@pytest.mark.parametrize("name", ["ways", "shots-features", "kernels", "rows", "rows-classes"])
def test_an_axis_is_measured_at_its_first_point(name: str) -> None:
    (axis,) = (one for one in scaling.AXES if one.name == name)
    pieces = axis.make(axis.values[0])
    assert scaling.cpu_milliseconds(pieces.adapt, 1, 0.0) > 0
    if pieces.step is not None:
        pieces.step()


def test_the_figures_are_of_the_axes_that_are_asked_for() -> None:
    kept = json.loads((ROOT / "results" / "scaling.json").read_text())
    assert [one["name"] for one in kept["axes"]] == [one.name for one in scaling.AXES]
    assert [[point["value"] for point in one["points"]] for one in kept["axes"]] == [
        list(one.values) for one in scaling.AXES
    ]
    assert kept["assumed"] == scaling.ASSUMED._asdict()
