"""What memory there is, and letting the C library keep what is freed.

By default glibc gives large blocks back to the kernel when a tensor dies and faults them in again for the next one,
at every operation of every step. Keeping them changes no result, only speed. Harmless where the C library is
another.

The larger the blocks that are kept, the more the heap is fragmented. ``METAVRF_ALLOCATOR`` sets their largest size in
MiB (1024 pays with batches of large pictures, where memory is plenty); ``default`` leaves everything as it is.
"""

from __future__ import annotations

import ctypes
import os
from contextlib import suppress
from pathlib import Path

from metavrf.errors import UserError

_MIB, _GIB = 1 << 20, 1 << 30
MOST = 1 << 80  # bytes: what is asked for may be a number of any length
SMALL = _GIB  # bytes that are not worth asking the system about
LARGEST_KEPT = 112  # MiB; what a layer of 64 channels takes for some 500 pictures of 28 x 28, or 100 of 64 x 64


def keep_freed_memory() -> bool:
    """Raise the thresholds above which glibc returns memory; True if it took effect."""
    wanted = os.environ.get("METAVRF_ALLOCATOR", str(LARGEST_KEPT))
    if wanted == "default":
        return False
    if not wanted.isdecimal() or not 1 <= int(wanted) <= 2047:
        raise UserError(f"METAVRF_ALLOCATOR={wanted} is neither 'default' nor a size from 1 to 2047 (MiB)")
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (OSError, AttributeError, TypeError):  # not glibc
        return False
    settings = _settings(int(wanted)).values()
    return sum(mallopt(*setting) for setting in settings) == len(settings)


def check_room(size: float, what: str) -> None:
    """Refuse what would take more bytes than are free, before they are asked for; ``what`` names it in the error."""
    if size < SMALL:
        return
    free = free_memory()
    if free is not None and size > free:
        wanted = f"{what} would take about {min(size, MOST) / _GIB:,.0f} GB of memory"
        raise UserError(f"{wanted}, and {free / _GIB:,.1f} GB are free: ask for less")


def free_memory() -> int | None:
    """Bytes that this process can still have, or None where the system does not say."""
    found = []
    with suppress(OSError, ValueError, StopIteration):
        lines = Path("/proc/meminfo").read_text().splitlines()
        found.append(1024 * int(next(line for line in lines if line.startswith("MemAvailable:")).split()[1]))
    with suppress(OSError, ValueError):  # of a container
        limit, used = (Path(f"/sys/fs/cgroup/memory.{name}").read_text() for name in ("max", "current"))
        found.append(int(limit) - int(used))
    with suppress(ImportError, OSError, ValueError):
        import resource

        limit_here, _ = resource.getrlimit(resource.RLIMIT_AS)
        if limit_here != resource.RLIM_INFINITY:
            pages = int(Path("/proc/self/statm").read_text().split()[0])
            found.append(limit_here - pages * resource.getpagesize())
    return max(0, min(found)) if found else None


def allocator_variables() -> dict[str, str]:
    """The same settings as environment variables, for a program that does not make them itself."""
    return {name: str(value) for name, (_, value) in _settings(LARGEST_KEPT).items()}


def _settings(largest: int) -> dict[str, tuple[int, int]]:
    """By their variable: number in malloc.h, and value."""
    return {
        "MALLOC_MMAP_THRESHOLD_": (-3, largest * _MIB),
        "MALLOC_TRIM_THRESHOLD_": (-1, 2048 * _MIB - 1),
        "MALLOC_TOP_PAD_": (-2, 256 * _MIB),
    }
