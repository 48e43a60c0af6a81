from __future__ import annotations

from metavrf.serve.store import Store


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def test_ids_are_long_and_never_the_same() -> None:
    store: Store[int] = Store(1000, 10.0)
    keys = {store.put(number) for number in range(500)}
    assert len(keys) == 500
    assert min(len(key) for key in keys) >= 32  # 24 random bytes


def test_the_one_unused_for_longest_makes_room() -> None:
    store: Store[str] = Store(2, 10.0)
    first, second = store.put("first"), store.put("second")
    assert store.get(first) == "first"  # now the second has been unused for longer
    third = store.put("third")
    assert [store.get(key) for key in (first, second, third)] == ["first", None, "third"]
    assert len(store) == 2


def test_what_is_not_used_is_dropped_in_time_and_use_prolongs() -> None:
    clock = Clock()
    store: Store[str] = Store(10, 10.0, clock)
    idle, used = store.put("idle"), store.put("used")
    clock.now = 9.0
    assert store.get(used) == "used"
    clock.now = 18.0
    assert store.get(idle) is None
    assert store.get(used) == "used"
    clock.now = 28.0
    assert len(store) == 0


def test_a_new_value_takes_the_place_of_the_old() -> None:
    store: Store[str] = Store(10, 10.0)
    key = store.put("old")
    assert store.put("new", key) == key
    assert store.get(key) == "new"
    assert len(store) == 1
