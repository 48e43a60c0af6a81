"""Commands in this process: what they print, and the one sentence with which they refuse."""

from __future__ import annotations

import json
from typing import Any

import pytest

from metavrf.cli import main

PNG = b"\x89PNG\r\n\x1a\n"
SAWTOOTH = """
from metavrf import FunctionFamily, register_family

@register_family("sawtooth")
class Sawtooth(FunctionFamily):
    parameters = {"height": (0.5, 3.0), "period": (2.0, 4.0), "phase": (0.0, 1.0)}

    def evaluate(self, x, height, period, phase):
        return height * ((x / period + phase) % 1.0)
"""


def refused(capsys: pytest.CaptureFixture[str], *arguments: object) -> str:
    """The one sentence of a command that a user can mend."""
    with pytest.raises(SystemExit) as stop:
        main([str(argument) for argument in arguments])
    printed = capsys.readouterr()
    assert stop.value.code == 2
    assert printed.out == ""
    assert printed.err.startswith("metavrf: ")
    assert printed.err.count("\n") == 1
    assert printed.err.endswith("\n")
    return printed.err.removeprefix("metavrf: ").rstrip("\n")


def printed_json(capsys: pytest.CaptureFixture[str], *arguments: object) -> dict[str, Any]:
    """The one JSON object that a command prints."""
    main([str(argument) for argument in arguments])
    printed = capsys.readouterr()
    assert printed.err == ""
    assert printed.out.count("\n") == 1
    value = json.loads(printed.out)
    assert isinstance(value, dict)
    return value
