from __future__ import annotations

from typing import get_args

import pytest
import torch
from torch import Tensor

from metavrf.errors import UserError
from metavrf.nn.embeddings import ConvNet
from metavrf.nn.views import shifted, views_of
from metavrf.settings import Views


def pictures(side: int = 16) -> Tensor:
    return torch.randint(0, 256, (3, 2, side, side), dtype=torch.uint8)


@pytest.mark.parametrize(("views", "count"), list(zip(get_args(Views), (1, 2, 5, 10), strict=True)))
def test_the_first_view_is_the_picture_and_all_differ(views: str, count: int) -> None:
    images = pictures()
    seen = views_of(images, views)
    assert len(seen) == count
    assert torch.equal(seen[0], images)
    assert len(torch.stack(seen).flatten(1).unique(dim=0)) == count
    assert {(view.shape, view.dtype) for view in seen} == {(images.shape, torch.uint8)}


def test_a_mirror_image_is_flipped_left_to_right() -> None:
    images = pictures()
    assert torch.equal(views_of(images, "flip")[1], images.flip(3))


@pytest.mark.parametrize(("side", "step"), [(8, 1), (28, 1), (84, 3)])
def test_a_picture_moves_by_a_thirty_second_of_its_side_and_its_edge_repeats(side: int, step: int) -> None:
    images = pictures(side)
    down = shifted(images, 1, 0)
    assert torch.equal(down[..., step:, :], images[..., :-step, :])
    assert torch.equal(down[..., :step, :], images[..., :1, :].expand(-1, -1, step, -1))
    left = shifted(images, 0, -1)
    assert torch.equal(left[..., :-step], images[..., step:])
    assert torch.equal(left[..., -step:], images[..., -1:].expand(-1, -1, -1, step))


def test_features_are_the_mean_over_the_views_at_test_time_alone() -> None:
    embedding = ConvNet((2, 16, 16), blocks=2, channels=4).eval()
    images = pictures().unsqueeze(0)
    one = embedding(images)
    expected = torch.stack([embedding(view) for view in views_of(images, "flip-shift")]).mean(0)
    torch.testing.assert_close(embedding(images, None, "flip-shift"), expected)
    assert not torch.allclose(expected, one)
    assert torch.equal(embedding(images), one)  # the next call knows nothing of views
    embedding.train()
    assert torch.equal(embedding(images, None, "flip-shift"), embedding(images))


def test_an_unknown_view_is_refused() -> None:
    with pytest.raises(UserError, match="views = 'upside-down' is unknown: choose from one, flip, shift, flip-shift"):
        views_of(pictures(), "upside-down")
