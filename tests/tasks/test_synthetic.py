"""Synthetic tables."""

from __future__ import annotations

import pytest
import torch

from metavrf.randomness import stream
from metavrf.tasks.synthetic import MOST_CLASSES, MOST_COLUMNS, Size, some_size, tables


@pytest.mark.parametrize("size", [Size(3, 1, None), Size(30, 6, None), Size(4, 1, 2), Size(40, 50, 10)])
def test_tables_have_the_size_that_was_asked_for_and_finite_values(size: Size) -> None:
    found = tables(size, 8, 16, stream(0, "train"))
    assert found.x.shape == (8, size.rows + 16, size.columns)
    assert found.y.shape == found.x.shape[:2]
    assert bool(found.x.isfinite().all()) and bool(found.y.double().isfinite().all())
    if size.classes is not None:
        assert int(found.y.min()) >= 0 and int(found.y.max()) < size.classes


def test_equal_seeds_draw_equal_tables() -> None:
    one, other = (tables(Size(10, 3, None), 4, 8, stream(5, "train")) for _ in range(2))
    assert torch.equal(one.x, other.x)
    assert torch.equal(one.y, other.y)


def test_sizes_stay_within_their_bounds() -> None:
    generator = stream(0, "train")
    sizes = [some_size(generator, classes=classes) for _ in range(200) for classes in (False, True)]
    assert all(3 <= size.rows <= 200 and 1 <= size.columns <= MOST_COLUMNS for size in sizes)
    ways = [size.classes for size in sizes if size.classes is not None]
    assert min(ways) == 2 and max(ways) <= MOST_CLASSES
