"""What a user adds by one file: a learner with settings, an embedding, a data set, a family of several inputs."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import metavrf
from glyphs import write_glyph_table
from metavrf.cli import main
from metavrf.config import Config

LEARNER = '''
from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

import torch

from metavrf import Learner, Range, of_logits, register_learner


@dataclass(frozen=True)
class NearestSettings:
    """The nearest class mean, by a distance of one's choice."""

    power: Annotated[float, Range(above=0)] = 2.0
    """To which differences are raised."""
    reduce: Literal["sum", "mean"] = "sum"
    """How they are taken together."""


@register_learner("nearest-power")
class Nearest(Learner):
    """The nearest class mean."""

    solves = ("classification",)
    Settings = NearestSettings
    presets = {"classes": {"power": 1.5, "train_way": 0}}
    paper = {"classes": {"power": 1.0}}

    def solve(self, episodes, memory=None, generator=None):
        means = episodes.prototypes(episodes.support_x)
        apart = (episodes.query_x.unsqueeze(2) - means.unsqueeze(1)).abs() ** self.settings.power
        return of_logits(-getattr(apart, self.settings.reduce)(-1).unsqueeze(0), episodes)
'''
EMBEDDING = '''
from torch import nn

from metavrf import Embedding, register_embedding


@register_embedding("flat")
class Flat(Embedding):
    """One linear layer on all pixels."""

    def __init__(self, inputs, settings, maps=False):
        super().__init__()
        self.shape = (settings.channels, 1, 1)
        self.layer = nn.Linear(inputs[0] * inputs[1] * inputs[2], settings.channels)

    def network(self, images, own):
        return self.layer(images.flatten(1))
'''
DATASET = """
from metavrf import NamedSet, Preprocessing, register_dataset


def split(names, seed):
    return {"train": list(names[:8]), "val": list(names[8:12]), "test": list(names[12:])}


register_dataset(
    NamedSet(
        "runes", ("runes.parquet",), Preprocessing(16, channels=1, invert=True), {"usual": split},
        "16 runes x 8", "none", "Nobody, 2026", kind="drawings", preset={"train_way": 4, "iterations": 7},
    )
)
"""
FAMILY = '''
import torch

from metavrf import FunctionFamily, register_family


@register_family("waves-3d")
class Waves(FunctionFamily):
    """Plane waves in three dimensions, and how fast they change along the first."""

    inputs, outputs, domain = 3, 2, (-1.0, 1.0)
    parameters = {"a": (-2.0, 2.0), "b": (-2.0, 2.0), "c": (-2.0, 2.0)}
    preset = {"shot": 9, "most_shot": 12}

    def evaluate(self, x, a, b, c):
        phase = x[..., 0] * a + x[..., 1] * b + x[..., 2] * c
        return torch.stack([phase.sin(), a * phase.cos()], dim=-1)
'''
SMALL = ["--way", "3", "--query", "3", "--test-query", "3", "--validate-tasks", "10", "--iterations", "3"]
SMALL += ["--validate-every", "3", "--quiet"]


def plugin(tmp_path: Path, code: str) -> str:
    file = tmp_path / "own.py"
    file.write_text(code)
    return str(file)


@pytest.fixture
def table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("METAVRF_CACHE", str(tmp_path / "cache"))
    return write_glyph_table(tmp_path / "runes.parquet", range(16), drawers=8)


def test_a_learner_brings_its_settings_along(table: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    own = ["--plugin", plugin(tmp_path, LEARNER)]
    task = [str(table), "--learner", "nearest-power", "--image-size", "16", "--grey", "--embedding", "conv4"]
    with pytest.raises(SystemExit):
        main(["train", *task, *own, "--help"])
    text = " ".join(capsys.readouterr().out.replace("│", " ").split())
    assert "--power FLOAT To which differences are raised. (default: 1.5)" in text
    assert "--bases" not in text
    run = tmp_path / "run"
    main(["train", *task, *own, *SMALL, "--channels", "8", "--reduce", "mean", "--out", str(run)])
    assert 'reduce = "mean"' in (run / "config.toml").read_text()
    assert Config.of(str(table), "nearest-power", "paper").model.power == 1.0
    main(["evaluate", str(run), *own, "--episodes", "5", "--json"])
    assert json.loads(capsys.readouterr().out)["mean"] > 0
    main(["info", str(run), *own, "--json"])
    assert json.loads(capsys.readouterr().out)["config"]["model"] == {"power": 1.5, "reduce": "mean"}
    main(["pack", str(run), *own, "--out", str(tmp_path / "packed"), "--ways", "3", "--shots", "1", "--episodes", "5"])
    assert "nearest-power" in capsys.readouterr().out
    with pytest.raises(SystemExit) as stop:
        main(["train", *task, *own, "--power", "-1", "--out", str(tmp_path / "bad")])
    assert stop.value.code == 2
    assert capsys.readouterr().err == "metavrf: power = -1.0 must be positive\n"
    assert not (tmp_path / "bad").exists()


def test_an_embedding_is_added(table: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    own = ["--plugin", plugin(tmp_path, EMBEDDING)]
    run, task = str(tmp_path / "run"), [str(table), "--image-size", "16", "--grey", "--embedding", "flat"]
    main(["train", *task, *own, *SMALL, "--channels", "6", "--bases", "32", "--out", run])
    main(["evaluate", run, *own, "--episodes", "5", "--json"])
    assert json.loads(capsys.readouterr().out)["metric"] == "accuracy"
    assert metavrf.load(run).learner.embedding.features == 6


def test_a_data_set_is_added_whole(
    table: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("METAVRF_DATA", str(table.parent))
    own = ["--plugin", plugin(tmp_path, DATASET)]
    main(["data", *own, "--json"])
    assert json.loads(capsys.readouterr().out)["sets"][-1]["classes"] == {"train": 8, "val": 4, "test": 4}
    assert Config.of("runes").training.iterations == 7
    run = str(tmp_path / "run")
    main(["train", "runes", *own, *SMALL, "--channels", "8", "--bases", "32", "--out", run])
    main(["evaluate", run, *own, "--episodes", "5", "--json"])
    assert json.loads(capsys.readouterr().out)["split"] == "usual"


def test_a_family_of_three_inputs_and_two_outputs_is_added(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    own, run = ["--plugin", plugin(tmp_path, FAMILY)], str(tmp_path / "run")
    small = [
        "--iterations",
        "3",
        "--validate-every",
        "3",
        "--validate-tasks",
        "10",
        "--components",
        "6",
        "--guards",
        "2",
    ]
    main(["train", "waves-3d", *own, *small, "--out", run])
    assert json.loads((tmp_path / "run" / "data.json").read_text())["inputs"] == [3]
    main(["evaluate", run, *own, "--tasks", "5", "--json"])
    assert json.loads(capsys.readouterr().out)["shot"] == 9
    for learner in ("rff", "maml", "shared"):
        metavrf.train("waves-3d", learner=learner, out=tmp_path / learner, iterations=2, validate_tasks=5, quiet=True)
        assert metavrf.evaluate(tmp_path / learner, tasks=4).mean > 0
