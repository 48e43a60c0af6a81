"""Files changed in every way that a disk, a copy or a hand changes them: each must be refused or make no difference."""

from __future__ import annotations

import math
import random
import shutil
import time
import warnings
from collections import Counter
from pathlib import Path
from typing import Any

from faults.folders import Kind, make_all
from metavrf import UserError


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
    """Read each kind after ``count`` changes in all, or as many as there is time for; what came of them, by kind."""
    draw = random.Random(seed)
    kinds = make_all(folder)
    truth = {kind.name: kind.read() for kind in kinds}
    found: dict[str, Counter[str]] = {kind.name: Counter() for kind in kinds}
    examples: list[str] = []
    for number in range(count):
        if time.monotonic() > end:
            break
        kind = kinds[number % len(kinds)]
        outcome, what = one(kind, truth[kind.name], folder / "kept", draw)
        found[kind.name][outcome] += 1
        if outcome in ("different", "traceback"):
            examples.append(f"{kind.name}: {what}")
    total = sum(found.values(), Counter())
    return {
        "mutations": total.total(),
        "refused": total["refused"],
        "same": total["same"],
        "different": total["different"],
        "traceback": total["traceback"],
        "by_kind": {name: dict(counts) for name, counts in found.items()},
        "examples": examples[:20],
    }


def one(kind: Kind, truth: str, kept: Path, draw: random.Random) -> tuple[str, str]:
    """Change one file, read, and put everything back."""
    file = draw.choice(kind.files())
    mutate = draw.choice(MUTATIONS)
    whole = file.read_bytes()
    shutil.rmtree(kept, ignore_errors=True)
    if kind.place.is_dir():
        shutil.copytree(kind.place, kept)
    missing = draw.random() < 0.02
    what = f"{file.name} {'removed' if missing else mutate.__name__}"
    try:
        if missing:
            file.unlink()
        else:
            file.write_bytes(mutate(whole, draw))
        with warnings.catch_warnings(action="ignore"):
            return ("same" if kind.read() == truth else "different"), what
    except UserError as error:
        return ("refused" if "\n" not in str(error) else "traceback"), what
    except Exception as error:
        return "traceback", f"{what}: {type(error).__name__}: {error}"
    finally:
        if kind.place.is_dir():
            shutil.rmtree(kind.place)
            kept.replace(kind.place)
        else:
            file.write_bytes(whole)
