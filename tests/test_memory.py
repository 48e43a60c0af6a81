"""The allocator's settings: made, changed, left alone."""

import pytest

from metavrf.errors import UserError
from metavrf.memory import LARGEST_KEPT, allocator_variables, keep_freed_memory


@pytest.fixture
def settings(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, int]]:
    """What the C library is told, without telling it."""
    made: list[tuple[int, int]] = []

    class Library:
        def __init__(self, name: None) -> None:
            pass

        def mallopt(self, number: int, value: int) -> int:
            made.append((number, value))
            return 1

    monkeypatch.delenv("METAVRF_ALLOCATOR", raising=False)
    monkeypatch.setattr("metavrf.memory.ctypes.CDLL", Library)
    return made


def test_blocks_up_to_the_largest_are_kept_and_variables_say_the_same(settings: list[tuple[int, int]]) -> None:
    assert keep_freed_memory()
    assert (-3, LARGEST_KEPT << 20) in settings
    assert {str(value) for _, value in settings} == set(allocator_variables().values())


def test_the_largest_size_can_be_set(settings: list[tuple[int, int]], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("METAVRF_ALLOCATOR", "1024")
    assert keep_freed_memory()
    assert (-3, 1 << 30) in settings


def test_default_leaves_the_allocator_alone(settings: list[tuple[int, int]], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("METAVRF_ALLOCATOR", "default")
    assert not keep_freed_memory()
    assert settings == []


@pytest.mark.parametrize("wanted", ["big", "0", "-3", "99999", ""])
def test_any_other_wish_is_refused(wanted: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("METAVRF_ALLOCATOR", wanted)
    with pytest.raises(UserError, match="METAVRF_ALLOCATOR"):
        keep_freed_memory()


def test_another_c_library_is_no_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("METAVRF_ALLOCATOR", raising=False)
    monkeypatch.setattr("metavrf.memory.ctypes.CDLL", lambda name: object())
    assert not keep_freed_memory()
