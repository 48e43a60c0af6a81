"""Let the C library keep freed memory.

By default glibc gives large blocks back to the kernel when a tensor dies and faults them in again for the next one,
at every operation of every step. Keeping them changes no result, only speed. Harmless where the C library is
another; ``METAVRF_ALLOCATOR=default`` leaves everything as it is.
"""

from __future__ import annotations

import ctypes
import os

_M_TRIM_THRESHOLD, _M_TOP_PAD, _M_MMAP_THRESHOLD = -1, -2, -3  # malloc.h
_GIB = 1 << 30


def keep_freed_memory() -> bool:
    """Raise the thresholds above which glibc returns memory; True if it took effect."""
    if os.environ.get("METAVRF_ALLOCATOR") == "default":
        return False
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (OSError, AttributeError, TypeError):  # not glibc
        return False
    settings = ((_M_MMAP_THRESHOLD, _GIB), (_M_TRIM_THRESHOLD, 2 * _GIB - 1), (_M_TOP_PAD, _GIB // 4))
    return sum(mallopt(name, value) for name, value in settings) == len(settings)
