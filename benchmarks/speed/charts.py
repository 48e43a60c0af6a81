"""Pictures of what was measured: times, and accuracy against wall time."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from itertools import cycle
from pathlib import Path

import numpy as np

from metavrf.plots import STYLES, picture_at
from speed.results import Section


def plot_times(sections: Sequence[Section], path: str | os.PathLike[str], title: str = "") -> Path:
    """Draw what was measured: a bar a row, its median with quartiles; the row that others are set beside is darker."""
    sizes = [len(section.rows) + 2 for section in sections]
    with picture_at(path, title, len(sections), figsize=(8, 0.24 * sum(sizes) + 0.8), height_ratios=sizes) as (_, axes):
        for axis, section in zip(axes[:, 0], sections, strict=True):
            low, median, high = np.transpose([row.quartiles for row in section.rows])
            spread = [median - low, high - median]
            colours = [STYLES[0 if row.name == section.reference else 4][0] for row in section.rows]
            places = range(len(section.rows))
            axis.barh(places, median, xerr=spread, color=colours, height=0.7, error_kw={"elinewidth": 1, "capsize": 2})
            axis.set_yticks(places, [row.name for row in section.rows], fontsize=8)
            axis.invert_yaxis()
            axis.set_title(section.title.partition(":")[0], fontsize=8, loc="left")
            axis.set_xlabel(section.unit, fontsize=8, loc="right", labelpad=0)
            axis.tick_params(axis="x", labelsize=8)
            axis.grid(axis="x", alpha=0.25)
    return Path(path)


def plot_curves(
    curves: Mapping[str, Sequence[Mapping[str, float]]],
    path: str | os.PathLike[str],
    title: str = "",
    quoted: Mapping[str, tuple[float, float]] | None = None,
) -> Path:
    """Draw accuracy against seconds of training, a line a learner; ``quoted`` points by name are not measured here."""
    with picture_at(path, title, figsize=(7, 4)) as (figure, axes):
        axis = axes[0][0]
        for (name, points), (colour, dash) in zip(curves.items(), cycle(STYLES), strict=False):
            x, y = ([point[key] for point in points] for key in ("seconds", "accuracy"))
            axis.plot(x, y, color=colour, linestyle=dash, marker=".", label=name)
        for name, point in (quoted or {}).items():
            axis.plot(*point, "D", color="0.4", fillstyle="none", label=name)
        axis.set_xlabel("seconds of training")
        axis.set_ylabel("accuracy (%)")
        axis.grid(alpha=0.25)
        figure.legend(loc="outside lower center", ncols=2, frameon=False, fontsize=9)
    return Path(path)
