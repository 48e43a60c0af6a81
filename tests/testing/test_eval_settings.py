"""One set of test options: what means nothing is refused, in Python and on the shell."""

from __future__ import annotations

import inspect
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest

import metavrf
from metavrf.cli import main
from metavrf.errors import UserError
from metavrf.runs.directory import Run
from metavrf.testing.settings import EvalSettings


@pytest.mark.parametrize(
    "option",
    [
        {"way": 7},
        {"query": 3},
        {"protocol": "transductive"},
        {"views": "flip"},
        {"within_alphabet": True},
        {"data": "x"},
    ],
)
def test_options_of_classes_are_refused_on_functions(option: dict[str, Any]) -> None:
    with pytest.raises(UserError, match=f"{next(iter(option))} = .* is for classes, and this model is of functions"):
        metavrf.evaluate("sine", tasks=2, **option)


def test_options_of_functions_are_refused_on_classes() -> None:
    with pytest.raises(UserError, match="on = 'sine' is for functions"):
        metavrf.evaluate("omniglot", tasks=2, on="sine")


def test_an_unknown_option_is_named_with_the_known_ones() -> None:
    with pytest.raises(UserError, match="there is no test option 'shots': choose from tasks, way, shot"):
        metavrf.evaluate("sine", shots=3)


@pytest.mark.parametrize(("name", "value"), [("tasks", 1), ("shot", 0), ("stream", 0), ("batch", 0), ("bases", 0)])
def test_numbers_that_cannot_be_are_refused(name: str, value: int) -> None:
    options: dict[str, Any] = {"tasks": 2, name: value}
    with pytest.raises(UserError, match=f"{name} ?=.*{value}"):
        metavrf.evaluate("sine", **options)


def test_the_shell_has_the_options_of_python(capsys: pytest.CaptureFixture[str]) -> None:
    for command in ("evaluate", "compare"):
        with pytest.raises(SystemExit):
            main([command, "--help"])
        text = capsys.readouterr().out
        assert all(
            f"--{item.name.replace('_', '-')} " in text or f"--{item.name.replace('_', '-')}," in text
            for item in fields(EvalSettings)
        )
        assert "{None}" not in text


def test_compare_takes_every_option_of_evaluate() -> None:
    rows = metavrf.compare(["sine-rff", "sine-rff"], tasks=4, shot=5, bases=64, batch=2, part="val", floor=False)
    assert [row.evaluation.part for row in rows] == ["val", "val"]
    assert rows[1].difference.mean == 0
    assert "settings" in inspect.signature(metavrf.compare).parameters


def test_validation_tasks_of_functions_can_be_compared_with_their_limits() -> None:
    names = [row.name for row in metavrf.compare(["sine"], tasks=4, shot=3, part="val")]
    assert names[1:] == ["best affine predictor", "Bayes-optimal"]


def test_a_test_leaves_no_trace_in_a_loaded_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    opened = 0
    original = Run.config

    def counted(self: Run) -> Any:
        nonlocal opened
        opened += 1
        return original(self)

    monkeypatch.setattr(Run, "config", counted)
    metavrf.compare(["sine", "sine-rff"], tasks=4, shot=5, floor=False)
    assert opened == 2  # each configuration is read once
