"""What a user can get wrong is one sentence, never a traceback or a wrong answer: names, sizes, numbers, places."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch

import metavrf
from metavrf import Episodes, MetaVRFClassifier, MetaVRFRegressor, UserError
from metavrf.errors import Caution, printable
from metavrf.files import tensors_as_bytes
from metavrf.kernels.ridge import contradiction
from metavrf.memory import check_room, free_memory
from metavrf.reports import print_table
from metavrf.runs.directory import SHIPPED, Run
from metavrf.schema import check_shape
from shell import refused

# Names


def test_names_that_look_like_markup_are_printed_as_they_are(capsys: pytest.CaptureFixture[str]) -> None:
    print_table(["picture", "[bold]"], [["new[/x].png", "[red]"], ["a\x1b[31mb", "ok"]], "[title]")
    printed = capsys.readouterr().out
    for text in ("new[/x].png", "[red]", "[bold]", "[title]", "a\\x1b[31mb"):
        assert text in printed
    assert "\x1b" not in printed


def test_escape_codes_and_broken_names_do_not_reach_the_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    assert printable("a\x1b]0;x\x07\udc80\tb\n") == "a\\x1b]0;x\\x07\\udc80\tb\n"
    assert "\x1b" not in refused(capsys, "info", "no\x1b[2Jrun")


# Sizes


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["train", "sine", "--threads", "100000"], "threads = 100000 must be less than 1025"),
        (["train", "sine", "--shot", "1000000000000"], "GB of memory"),
        (["train", "sine", "--batch", "1000000000000"], "GB of memory"),
        (["train", "sine", "--distance", "1e300"], "distance = 1e+300"),
        (["train", "sine", "--lr", "1e300"], "lr = 1e+300"),
        (["evaluate", "sine", "--tasks", "1000000000000"], "GB of memory"),
        (["evaluate", "sine", "--shot", "10000000", "--tasks", "2"], "GB of memory"),
        (["evaluate", "sine-rff", "--bases", "1000000000000", "--tasks", "2"], "bases = 1,000,000,000,000"),
        (["train", "/dev/zero"], "/dev/zero is neither a file nor a folder"),
    ],
)
def test_what_cannot_be_held_is_refused_before_it_is_allocated(
    arguments: list[str], words: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = ["--out", str(tmp_path / "run")] if arguments[0] == "train" else []
    assert words in refused(capsys, *arguments, *out)
    assert list(tmp_path.iterdir()) == []


def test_memory_is_estimated_beside_what_is_free() -> None:
    free = free_memory()
    assert free is None or free > 0
    check_room(1e6, "a little")
    if free is not None:
        with pytest.raises(UserError, match=r"everything would take about .* GB of memory, and .* GB are free"):
            check_room(1e18, "everything")


def test_an_out_without_a_name_does_not_train_into_the_current_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert "give --out a folder of its own" in refused(capsys, "train", "sine", "--out", "")
    assert list(tmp_path.iterdir()) == []


def test_a_task_without_samples_is_one_sentence() -> None:
    with pytest.raises(UserError, match="with a sample in it"):
        Episodes.of_task([], [], [1.0])
    assert Episodes.of_task([1.0], [2.0], []).query_x.shape == (1, 0, 1)


def test_predicting_nothing_is_one_sentence(capsys: pytest.CaptureFixture[str]) -> None:
    assert "give at least one picture" in refused(capsys, "predict", "model")


# Files of the wrong shape


@pytest.mark.parametrize(
    ("name", "change"),
    [
        ("card.json", {"tests": 5}),
        ("card.json", {"tests": [{"metric": "mse"}]}),
        ("card.json", {"training": None}),
        ("data.json", {"inputs": [0]}),
        ("data.json", {"inputs": "ab"}),
        ("data.json", {"targets": "one"}),
        ("data.json", {"classes": {"train": [1]}}),
        ("data.json", {"colour": "red"}),
        ("result.json", {"steps": "many"}),
        ("result.json", {"validation": [1]}),
        ("manifest.json", {"files": {"config.toml": "a"}}),
        ("manifest.json", {"kind": "other"}),
        ("manifest.json", {"format": 9}),
    ],
)
def test_a_file_of_another_shape_is_one_sentence(
    name: str, change: dict[str, object], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = Path(shutil.copytree(SHIPPED / "sine", tmp_path / "model"))
    file = folder / name
    file.write_text(json.dumps(json.loads(file.read_text()) | change))
    if name != "manifest.json":
        Run(folder, "packed model").seal()  # so that its shape is what is wrong
    assert name in refused(capsys, "info", folder)


@pytest.mark.parametrize(
    "change",
    [
        {"fitted": 5},
        {"classes": [[1]]},
        {"parameters": {"bases": "x"}},
        {"pretrained": "no"},
        {"dtype": 3},
        {"leave_one_out": []},
    ],
)
def test_a_fitted_model_of_another_shape_is_one_sentence(change: dict[str, object], tmp_path: Path) -> None:
    folder = MetaVRFClassifier().fit([[0.0], [1.0]], ["a", "b"]).save(tmp_path / "model")
    file = folder / "estimator.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | change))
    (folder / "manifest.json").unlink()
    with pytest.raises(UserError, match=r"estimator\.json"):
        MetaVRFClassifier.load(folder)


def test_a_shape_names_the_place_that_is_wrong() -> None:
    shape = {"a": [{"b": (int, None)}], "c?": {str: float}}
    check_shape({"a": [{"b": 1}, {"b": None}], "other": "x"}, shape, "f")
    for value, words in (
        ({"a": [{"b": True}]}, r"a\[0\].b must be a whole number"),
        ({"a": [], "c": {"x": float("nan")}}, "c.x must be a number"),
        ({}, "a is missing"),
        ([], "it must be an object"),
    ):
        with pytest.raises(UserError, match=words):
            check_shape(value, shape, "f")


# Numbers


def test_samples_that_contradict_each_other_widen_the_band() -> None:
    model = metavrf.load("sine")
    at_odds = model.predict(Episodes.of_task([1.0, 1.0, 1.0], [1.0, 2.0, 3.0], [1.0]))
    agreed = model.predict(Episodes.of_task([1.0, 1.0, 1.0], [2.0, 2.0, 2.0], [1.0]))
    assert at_odds.std is not None
    assert agreed.std is not None
    assert 0.3 < at_odds.std.item() < 2
    assert agreed.std.item() < 0.001
    _, std = MetaVRFRegressor("sine").fit([[1.0]] * 3, [1.0, 2.0, 3.0]).predict([[1.0]], return_std=True)
    assert std[0] == pytest.approx(at_odds.std.item(), rel=1e-3)


def test_a_contradiction_is_the_pooled_variance_at_one_place() -> None:
    x = torch.tensor([[[1.0], [1.0], [2.0], [2.0], [2.0], [3.0]]])
    y = torch.tensor([[[0.0], [2.0], [5.0], [6.0], [7.0], [9.0]]])
    found = contradiction(x, y)
    assert found is not None
    pooled = (np.var([0, 2]) * 2 + np.var([5, 6, 7]) * 3) / (1 + 2)
    assert found.item() == pytest.approx(pooled)
    assert contradiction(x[:, 1:3], y[:, 1:3]) is None


@pytest.mark.parametrize("size", [1e300, 1e-300])
@pytest.mark.parametrize("kind", [MetaVRFClassifier, MetaVRFRegressor])
def test_numbers_beyond_arithmetic_are_said(kind: type, size: float) -> None:
    x = size * np.array([[1.0, 2.0], [2.0, 1.0], [-1.0, 0.5], [0.5, -1.0]])
    with pytest.warns(Caution, match=r"numbers as large as 2e\+?-?30*"):
        kind().fit(x, [0, 0, 1, 1])


def test_equal_tensors_are_equal_bytes() -> None:
    tensors = {"a": torch.arange(3), "b": torch.zeros(())}
    assert tensors_as_bytes(tensors, {"x": 1}) == tensors_as_bytes(tensors, {"x": 1})
