"""Let the C library keep freed memory.

By default glibc gives large blocks back to the kernel when a tensor dies and faults them in again for the next one,
at every operation of every step. Keeping them changes no result, only speed. Harmless where the C library is
another.

The larger the blocks that are kept, the more the heap is fragmented. ``METAVRF_ALLOCATOR`` sets their largest size in
MiB (1024 pays with batches of large pictures, where memory is plenty); ``default`` leaves everything as it is.
"""

from __future__ import annotations

import ctypes
import os

from metavrf.errors import UserError

_MIB = 1 << 20
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
