from __future__ import annotations

import errno
import os
from pathlib import Path

import matplotlib as mpl
import matplotlib.pyplot as plt
import numpy as np
import pytest

from metavrf.episodes import Episodes
from metavrf.errors import UserError
from metavrf.learners.base import Learner
from metavrf.plots import FORMATS, plot_fits
from metavrf.randomness import stream
from metavrf.tasks.functions import Sine
from metavrf.testing.limits import limits

mpl.use("agg")


@pytest.fixture
def tasks() -> Episodes:
    return Sine().sample_grid(2, 3, stream(0, "figure"))


@pytest.fixture
def learners() -> dict[str, Learner]:
    return {"best affine predictor": limits(Sine())["best affine predictor"]}


def test_a_picture_has_the_size_of_its_tasks_and_shows_the_fit(
    tmp_path: Path, tasks: Episodes, learners: dict[str, Learner]
) -> None:
    path = plot_fits(learners, tasks, tmp_path / "new" / "fits.png", title="sines")
    assert path == tmp_path / "new" / "fits.png"
    assert path.stat().st_size > 10_000
    image = plt.imread(path)
    assert image.shape == (525, 1080, 4)  # 3.5 in x 7.2 in at 150 dots an inch
    blue = np.abs(image[..., :3] - np.array([0x00, 0x72, 0xB2]) / 255).max(-1) < 0.02  # the first learner's line
    black = image[..., :3].max(-1) < 0.02  # the support's triangles, and text
    for half in (slice(0, 540), slice(540, None)):
        assert blue[:, half].sum() > 300
        assert black[:, half].sum() > 300
    assert [file.name for file in path.parent.iterdir()] == ["fits.png"]


@pytest.mark.parametrize(("suffix", "start"), [(".png", b"\x89PNG"), (".pdf", b"%PDF"), (".svg", b"<?xml")])
def test_the_suffix_decides_the_format(
    tmp_path: Path, tasks: Episodes, learners: dict[str, Learner], suffix: str, start: bytes
) -> None:
    assert suffix in FORMATS
    assert plot_fits(learners, tasks, tmp_path / f"fits{suffix}").read_bytes().startswith(start)


@pytest.mark.parametrize("name", ["fits.txt", "fits", "fits.png.gz"])
def test_a_wrong_suffix_is_refused_before_anything_is_written(
    tmp_path: Path, tasks: Episodes, learners: dict[str, Learner], name: str
) -> None:
    with pytest.raises(UserError, match=f"{name}.*\\.pdf, \\.png, \\.svg"):
        plot_fits(learners, tasks, tmp_path / "new" / name)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("failure", "raised"),
    [(OSError(errno.ENOSPC, "No space left on device"), UserError), (KeyboardInterrupt(), KeyboardInterrupt)],
)
def test_a_failed_write_leaves_the_old_picture_and_nothing_half_done(
    tmp_path: Path,
    tasks: Episodes,
    learners: dict[str, Learner],
    monkeypatch: pytest.MonkeyPatch,
    *,
    failure: BaseException,
    raised: type[BaseException],
) -> None:
    path = tmp_path / "fits.png"
    path.write_bytes(b"the old picture")

    def fail(_: int) -> None:  # when the bytes are in the temporary file, before it takes the picture's name
        raise failure

    monkeypatch.setattr(os, "fsync", fail)
    with pytest.raises(raised):
        plot_fits(learners, tasks, path)
    assert path.read_bytes() == b"the old picture"
    assert [file.name for file in tmp_path.iterdir()] == ["fits.png"]
    assert plt.get_fignums() == []


def test_a_folder_that_cannot_be_made_is_named(tmp_path: Path, tasks: Episodes, learners: dict[str, Learner]) -> None:
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(UserError, match=r"cannot write .*fits\.png"):
        plot_fits(learners, tasks, tmp_path / "file" / "fits.png")
    assert plt.get_fignums() == []


def test_tasks_without_answers_are_drawn_without_the_truth(
    tmp_path: Path, tasks: Episodes, learners: dict[str, Learner]
) -> None:
    tasks.query_y = None
    assert plot_fits(learners, tasks, tmp_path / "fits.png").stat().st_size > 10_000
    assert plt.get_fignums() == []
