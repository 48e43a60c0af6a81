"""Let the C library keep freed memory.

By default glibc gives large blocks back to the kernel when a tensor dies and faults them in again for the next one,
at every operation of every step. Keeping them changes no result, only speed. Harmless where the C library is
another; ``METAVRF_ALLOCATOR=default`` leaves everything as it is.
"""

from __future__ import annotations

import ctypes
import os

_GIB = 1 << 30
_SETTINGS = {  # by their variable: number in malloc.h, value
    "MALLOC_MMAP_THRESHOLD_": (-3, _GIB),
    "MALLOC_TRIM_THRESHOLD_": (-1, 2 * _GIB - 1),
    "MALLOC_TOP_PAD_": (-2, _GIB // 4),
}


def keep_freed_memory() -> bool:
    """Raise the thresholds above which glibc returns memory; True if it took effect."""
    if os.environ.get("METAVRF_ALLOCATOR") == "default":
        return False
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (OSError, AttributeError, TypeError):  # not glibc
        return False
    return sum(mallopt(*setting) for setting in _SETTINGS.values()) == len(_SETTINGS)


def allocator_variables() -> dict[str, str]:
    """The same settings as environment variables, for a program that does not make them itself."""
    return {name: str(value) for name, (_, value) in _SETTINGS.items()}
