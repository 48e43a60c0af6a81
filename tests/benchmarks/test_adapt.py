"""The script that says how long a user waits."""

from __future__ import annotations

import pytest
import torch

import adapt


def test_curves_are_answered_by_a_model_of_many_kernels_the_same_in_every_way() -> None:
    name, learner = adapt.curve_model()
    assert f"{learner.components} kernels" in name
    assert learner.components > 1
    pieces = adapt.curve_methods(learner)
    for points in adapt.POINTS:
        task = adapt.curve(points)
        assert (task.support_x.shape[1], task.query_x.shape[1]) == (points, adapt.ASKED)
        expected = learner.predict(task)
        for how in ("adapted and asked", "asked again"):
            answer = pieces[f"{how}, {points} points"]()
            assert expected.std is not None
            torch.testing.assert_close(answer, (expected.mean[0], expected.std[0]), rtol=1e-3, atol=1e-3)


def test_the_time_of_every_way_is_kept(capsys: pytest.CaptureFixture[str]) -> None:
    values = adapt.measure_curves(2)
    assert values["curve_model"] in " ".join(capsys.readouterr().out.split())  # a title may be broken into lines
    rows = values["curve_milliseconds_quartiles"]
    assert len(rows) == 3 * len(adapt.POINTS)
    assert all(median > 0 for _, median, _ in rows.values())
