"""The campaign of ``make faults`` in short: nothing lost, nothing silently different, no traceback."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest

from faults import clients, interface, kills, lines, mutations
from loopback import needs_loopback


def test_changed_files_are_refused_or_make_no_difference(tmp_path: Path) -> None:
    pytest.importorskip("hypothesis", reason="Hypothesis is not installed")
    found = mutations.campaign(tmp_path, 60, seed=1)
    assert (found["different"], found["traceback"]) == (0, 0), found["examples"]
    assert found["refused"] + found["said"] + found["same"] == 60
    assert found["refused"] > 30


def test_every_change_changes_something() -> None:
    import random

    data = b"the quick brown fox, 12345\njumps over\nthe lazy dog\n" * 20
    for mutate in mutations.MUTATIONS:
        changed = [mutate(data, random.Random(seed)) != data for seed in range(20)]
        assert sum(changed) >= 15, mutate.__name__


def test_killed_processes_lose_nothing(tmp_path: Path) -> None:
    found = kills.campaign(tmp_path, 5, seed=1)
    assert found["kills"] >= 5
    assert (found["lost"], found["different"], found["left_behind"]) == (0, 0, 0)


def test_odd_command_lines_end_in_one_sentence(tmp_path: Path) -> None:
    found = lines.campaign(tmp_path, every=8)
    assert found["lines"] > 15
    assert found["wrong"] == 0, found["examples"]


def test_the_interface_is_what_it_says_it_is(tmp_path: Path) -> None:
    pytest.importorskip("uvicorn", reason="the extra 'serve' is not installed")
    if importlib.util.find_spec("schemathesis") is None:
        pytest.skip("Schemathesis is not installed")
    needs_loopback()
    found = interface.campaign(tmp_path, 5, seed=1)
    assert found["failures"] == 0, found["examples"]
    assert found["cases"] > 50
    assert {"200", "405", "422"} <= found["statuses"].keys()


def test_clients_at_once_are_all_answered(tmp_path: Path) -> None:
    pytest.importorskip("uvicorn", reason="the extra 'serve' is not installed")
    needs_loopback()
    found = clients.campaign(tmp_path, 8, 2.0, pause=0.5)
    assert found["requests"] >= 8
    assert found["errors"] == 0
