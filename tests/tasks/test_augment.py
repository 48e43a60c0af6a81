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
from metavrf.tasks.augment import AUGMENTATIONS, affine, crop_and_flip, photographed_anew

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
    drawn = torch.nn.functional.pad(glyph_bank(30, 4, side=20).inputs[:], (6, 6, 6, 6))
    ratio = affine(drawn, generator).float().sum((1, 2, 3)) / drawn.float().sum((1, 2, 3))
    assert ratio.mean().item() == pytest.approx(1, abs=0.03)
    assert 0.75 < ratio.min() < 0.9
    assert 1.1 < ratio.max() < 1.35


def test_a_photograph_taken_anew_without_any_change_is_the_image_or_its_mirror_image(
    monkeypatch: pytest.MonkeyPatch, generator: torch.Generator
) -> None:
    for name, still in (("SMALLEST_CUT", 1.0), ("LARGEST_HOLE", 0.0), ("JITTER", 0.0)):
        monkeypatch.setattr(augment, name, still)
    images = noise(200, 3, 16, 16)
    same, flipped = (
        (photographed_anew(images, torch.Generator().manual_seed(0)) == way).flatten(1).all(1)
        for way in (images, images.flip(-1))
    )
    assert (same | flipped).all()
    assert 70 < same.sum() < 130


def test_a_photograph_taken_anew_is_cut_from_within_the_image(
    monkeypatch: pytest.MonkeyPatch, generator: torch.Generator
) -> None:
    for name in ("LARGEST_HOLE", "JITTER"):
        monkeypatch.setattr(augment, name, 0.0)
    ramp = (torch.arange(50, dtype=torch.uint8) * 5).expand(300, 1, 50, 50)  # brighter from left to right
    cut = photographed_anew(ramp, generator).float()
    span = (cut.amax((1, 2, 3)) - cut.amin((1, 2, 3))) / 245
    assert 0.58 < span.min() < 0.63
    assert 0.97 < span.max() <= 1
    assert torch.equal(cut, cut[:, :, :1].expand_as(cut))


def test_light_changes_by_up_to_two_fifths_and_the_hole_is_as_bright_as_the_image(
    generator: torch.Generator,
) -> None:
    grey = torch.full((2000, 3, 8, 8), 100, dtype=torch.uint8)
    changed = photographed_anew(grey, generator).float()
    assert torch.equal(changed, changed[:, :1, :1, :1].expand_as(changed))  # contrast, colour and hole show nothing
    assert 60 <= changed.min() < 62
    assert 138 < changed.max() <= 140


def test_a_hole_covers_at_most_a_quarter_of_a_photograph(
    monkeypatch: pytest.MonkeyPatch, generator: torch.Generator
) -> None:
    for name, still in (("SMALLEST_CUT", 1.0), ("JITTER", 0.0)):
        monkeypatch.setattr(augment, name, still)
    checks = (255 * ((torch.arange(32) + torch.arange(32).unsqueeze(1)) % 2)).to(torch.uint8).expand(500, 1, 32, 32)
    changed = photographed_anew(checks, generator)
    covered = ((changed != 0) & (changed != 255)).float().mean((1, 2, 3))
    assert 0.2 < covered.max() <= 0.26
    assert covered.mean().item() == pytest.approx(1 / 16, abs=0.01)  # sides of a quarter on average
