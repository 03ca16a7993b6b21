"""How a lease's process gives memory back: large blocks at once, instead of keeping them for later.

An epoch makes and drops arrays of some megabytes. Arrow's own pool and glibc's growing threshold keep such
blocks, hundreds of megabytes in all beside large state. Changes this process alone.
"""

from __future__ import annotations

import ctypes
import sys

import pyarrow as pa

LARGE_BYTES = 1 << 20
_M_MMAP_THRESHOLD = -3
_M_ARENA_MAX = -8


def return_large_blocks() -> None:
    """Let Arrow use the system's allocator, and the system give blocks of `LARGE_BYTES` back when they are freed.

    Where the C library knows no such setting, Arrow's part is all that changes.
    """
    pa.set_memory_pool(pa.system_memory_pool())
    if not sys.platform.startswith("linux"):
        return
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(_M_MMAP_THRESHOLD, LARGE_BYTES)
        mallopt(_M_ARENA_MAX, 1)
