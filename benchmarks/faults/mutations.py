"""Files changed in every way that a disk, a copy or a hand changes them: each must be refused or make no difference."""

from __future__ import annotations

import hashlib
import math
import random
import time
import warnings
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

from faults.folders import Kind, make_all
from metavrf import UserError
from metavrf.errors import Caution

Mutate = Callable[[bytes, random.Random], bytes]


def flip_bit(data: bytes, draw: random.Random) -> bytes:
    place = draw.randrange(len(data))
    return data[:place] + bytes([data[place] ^ (1 << draw.randrange(8))]) + data[place + 1 :]


def change_byte(data: bytes, draw: random.Random) -> bytes:
    place = draw.randrange(len(data))
    return data[:place] + draw.randbytes(1) + data[place + 1 :]


def change_digit(data: bytes, draw: random.Random) -> bytes:
    places = [at for at, byte in enumerate(data[:100_000]) if chr(byte).isdigit()] or [0]
    place = draw.choice(places)
    return data[:place] + str(draw.randrange(10)).encode() + data[place + 1 :]


def cut(data: bytes, draw: random.Random) -> bytes:
    return data[: draw.randrange(len(data))]


def drop_block(data: bytes, draw: random.Random) -> bytes:
    place = draw.randrange(len(data))
    return data[:place] + data[place + draw.randrange(1, 64) :]


def insert_block(data: bytes, draw: random.Random) -> bytes:
    place = draw.randrange(len(data))
    return data[:place] + draw.randbytes(draw.randrange(1, 64)) + data[place:]


def zero_block(data: bytes, draw: random.Random) -> bytes:
    place, size = draw.randrange(len(data)), draw.randrange(1, 4096)
    hole = data[place : place + size]
    return data[:place] + bytes(len(hole)) + data[place + len(hole) :]


def swap_blocks(data: bytes, draw: random.Random) -> bytes:
    size = draw.randrange(1, max(2, len(data) // 4))
    one, other = sorted(draw.randrange(max(1, len(data) - size)) for _ in range(2))
    if one + size > other:
        return data[::-1]
    middle = data[one + size : other]
    return data[:one] + data[other : other + size] + middle + data[one : one + size] + data[other + size :]


def empty(_: bytes, __: random.Random) -> bytes:
    return b""


def drop_line(data: bytes, draw: random.Random) -> bytes:
    lines = data.splitlines(keepends=True)
    del lines[draw.randrange(len(lines))]
    return b"".join(lines)


KINDS = (flip_bit, change_byte, change_digit, cut, drop_block, insert_block, zero_block, swap_blocks, drop_line, empty)
MUTATIONS = (*KINDS, flip_bit, change_byte, change_digit)  # the smallest changes are the hardest to see


def campaign(folder: Path, count: int, seed: int = 0, end: float = math.inf) -> dict[str, Any]:
    """Read each kind after ``count`` changes in all, or as many as there is time for; what came of them, by kind.

    Hypothesis chooses kind, file, change and place, the ends of the ranges too. What leaves a file as it is, or as it
    was before, is not counted.
    """
    import hypothesis
    from hypothesis import strategies

    kinds = make_all(folder)
    with warnings.catch_warnings(action="ignore"):
        truths = [[read() for read in kind.reads] for kind in kinds]
    found: dict[str, Counter[str]] = {kind.name: Counter() for kind in kinds}
    examples: list[str] = []
    share = strategies.integers(0, 10_000)
    kept = [{file: file.read_bytes() for file in kind.files()} for kind in kinds]
    numbers = [number for number, kind in enumerate(kinds) for _ in range(kind.share)]
    seen: set[tuple[int, Path, bytes | None]] = set()
    change = strategies.sampled_from(MUTATIONS)
    case = strategies.tuples(strategies.sampled_from(numbers), share, change, share, strategies.integers(0, 2**32))

    @hypothesis.seed(seed)
    @hypothesis.settings(
        max_examples=4 * count,  # some of them change nothing, or do it again
        database=None,
        deadline=None,
        phases=[hypothesis.Phase.generate],
        suppress_health_check=list(hypothesis.HealthCheck),
    )
    @hypothesis.given(case)
    def each(chosen: tuple[int, int, Mutate, int, int]) -> None:
        number, which, mutate, rare, place = chosen
        if time.monotonic() > end or sum(map(Counter.total, found.values())) >= count:
            return
        kind, whole = kinds[number], kept[number]
        file = list(whole)[which % len(whole)]
        changed = None if rare % 50 == 49 else mutate(whole[file], random.Random(place))
        mark = (number, file, None if changed is None else hashlib.sha256(changed).digest())
        if changed == whole[file] or mark in seen:
            return
        seen.add(mark)
        outcome, what = one(kind, truths[number], whole, file, changed)
        what += f" ({'removed' if changed is None else f'{mutate.__name__} {place}'})"
        found[kind.name][outcome] += 1
        if outcome in ("different", "traceback"):
            examples.append(f"{kind.name}: {what}")

    each()
    total = sum(found.values(), Counter())
    return {
        "mutations": total.total(),
        "refused": total["refused"],
        "said": total["said"],
        "same": total["same"],
        "different": total["different"],
        "traceback": total["traceback"],
        "by_kind": {name: dict(counts) for name, counts in found.items()},
        "examples": examples[:20],
    }


def one(kind: Kind, truth: list[str], whole: dict[Path, bytes], file: Path, changed: bytes | None) -> tuple[str, str]:
    """Change a file (or remove it), do all that is done with it, and put everything back.

    ``refused`` where any use of it ends in a sentence, ``said`` where a caution tells of it; each other use must give
    the same as before.
    """
    what = file.name
    outcomes = []
    try:
        if changed is None:
            file.unlink()
        else:
            file.write_bytes(changed)
        for read, before in zip(kind.reads, truth, strict=True):
            with warnings.catch_warnings(record=True) as told:
                warnings.simplefilter("always")
                try:
                    same = read() == before
                    cautioned = any(issubclass(warning.category, Caution) for warning in told)
                    outcomes.append("said" if cautioned else "same" if same else "different")
                except UserError as error:
                    outcomes.append("refused" if "\n" not in str(error) else "traceback")
    except Exception as error:
        return "traceback", f"{what}: {type(error).__name__}: {error}"
    finally:
        for new in set(kind.files()) - whole.keys():
            new.unlink()
        for known, data in whole.items():
            if not known.exists() or known.read_bytes() != data:
                known.write_bytes(data)
    worst = ("traceback", "different", "refused", "said", "same")
    return min(outcomes, key=worst.index), what
