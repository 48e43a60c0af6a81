from __future__ import annotations

from collections.abc import Callable
from itertools import product

import numpy as np
import pytest
import torch
from scipy.stats import chisquare
from torch import Tensor

from glyphs import glyph_bank
from metavrf.tasks import augment
from metavrf.tasks.augment import AUGMENTATIONS, affine, crop_and_flip

Change = Callable[[Tensor, torch.Generator], Tensor]


def noise(*shape: int) -> Tensor:
    return torch.from_numpy(np.random.default_rng(0).integers(0, 256, shape, dtype=np.uint8))


def shifts_and_flips(image: Tensor, result: Tensor, reach: int) -> list[tuple[int, int, bool]]:
    """The ways to cut ``result`` from the mirrored ``image``."""
    side, steps = image.shape[-1], range(2 * reach + 1)
    padded = np.pad(image.numpy(), ((0, 0), (reach, reach), (reach, reach)), mode="reflect")
    return [
        (down, right, flipped)
        for down, right, flipped in product(steps, steps, (False, True))
        if np.array_equal(
            result.numpy(), padded[:, down : down + side, right : right + side][..., :: -1 if flipped else 1]
        )
    ]


@pytest.mark.parametrize("change", AUGMENTATIONS.values(), ids=list(AUGMENTATIONS))
def test_a_change_is_seeded_and_each_image_has_its_own_but_all_channels_one(change: Change) -> None:
    images, state = noise(16, 16).expand(2, 10, 3, 16, 16).contiguous(), torch.get_rng_state()
    before = images.clone()
    first, again, other = (change(images, torch.Generator().manual_seed(seed)) for seed in (0, 0, 1))
    assert (first.shape, first.dtype) == (images.shape, torch.uint8)
    assert torch.equal(first, again)
    assert not torch.equal(first, other)
    assert torch.equal(first[:, :, :1].expand_as(first), first)
    assert len(first.flatten(0, 1).unique(dim=0)) > 10
    assert torch.equal(images, before)
    assert torch.equal(torch.get_rng_state(), state)


@pytest.mark.parametrize(("side", "reach"), [(16, 2), (28, 4), (5, 1), (2, 1)])
def test_a_crop_is_the_mirrored_image_shifted_by_at_most_an_eighth(
    side: int, reach: int, generator: torch.Generator
) -> None:
    images = noise(60, 3, side, side)
    pairs = zip(images, crop_and_flip(images, generator), strict=True)
    assert all(shifts_and_flips(*pair, reach) for pair in pairs)


def test_all_shifts_are_equally_likely_and_half_of_the_images_are_flipped(generator: torch.Generator) -> None:
    images = noise(1000, 1, 8, 8)
    seen = dict.fromkeys(product(range(3), range(3), (False, True)), 0)
    for pair in zip(images, crop_and_flip(images, generator), strict=True):
        (way,) = shifts_and_flips(*pair, 1)
        seen[way] += 1
    assert chisquare(list(seen.values())).pvalue > 0.01


def test_an_affine_map_without_extent_is_the_identity(
    monkeypatch: pytest.MonkeyPatch, generator: torch.Generator
) -> None:
    for name in ("TURN", "STRETCH", "SHIFT"):
        monkeypatch.setattr(augment, name, 0.0)
    images = noise(4, 3, 28, 28)
    assert torch.equal(affine(images, generator), images)


def test_an_affine_map_moves_the_centre_by_up_to_a_tenth_of_the_side(generator: torch.Generator) -> None:
    dot = torch.zeros(400, 1, 50, 50, dtype=torch.uint8)
    dot[:, :, 23:27, 23:27] = 255
    moved = affine(dot, generator).float().squeeze(1)
    place = torch.arange(50) - 24.5
    shift = torch.stack([moved.sum(axis) @ place / moved.sum((1, 2)) for axis in (1, 2)])
    for extreme in (shift.amax(1), -shift.amin(1)):
        assert ((extreme > 4.7) & (extreme < 6.5)).all()  # 5 before stretching


def test_an_affine_map_leaves_about_as_much_ink(generator: torch.Generator) -> None:
    drawn = torch.nn.functional.pad(glyph_bank(30, 4, side=20).inputs, (6, 6, 6, 6))
    ratio = affine(drawn, generator).float().sum((1, 2, 3)) / drawn.float().sum((1, 2, 3))
    assert ratio.mean().item() == pytest.approx(1, abs=0.03)
    assert 0.75 < ratio.min() < 0.9
    assert 1.1 < ratio.max() < 1.35
