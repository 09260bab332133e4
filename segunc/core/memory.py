"""How a process treats memory that it has freed."""

from __future__ import annotations

import contextlib
import ctypes
import os

_TRIM_THRESHOLD = -1
_MMAP_THRESHOLD = -3
"""Parameters of ``mallopt``, by their numbers in ``malloc.h`` of glibc."""
_CHOSEN_BY_USER = ("MALLOC_MMAP_THRESHOLD_", "MALLOC_TRIM_THRESHOLD_", "GLIBC_TUNABLES")
LARGEST_KEPT_BLOCK = 1 << 30
"""Bytes above which a freed block goes back to the system at once."""


def keep_freed_memory() -> None:
    """Let this process use large blocks of memory again that it has freed.

    By default glibc gives blocks above 32 MiB back to the system as soon as they are freed. The
    system fills the next block with zeros, page by page, while the network waits. Feature maps and
    maps of large frames are such blocks. ``docs/benchmarks.md`` has what this costs.

    The setting holds for the whole process, so only the command line makes it. It changes no
    number. A C library other than glibc keeps its own ways, and so does a user who has chosen by
    the environment (``MALLOC_MMAP_THRESHOLD_``, ``MALLOC_TRIM_THRESHOLD_``, ``GLIBC_TUNABLES``).
    """
    if any(name in os.environ for name in _CHOSEN_BY_USER):
        return
    with contextlib.suppress(OSError, AttributeError, TypeError):
        library = ctypes.CDLL(None)
        library.mallopt(_MMAP_THRESHOLD, LARGEST_KEPT_BLOCK)
        library.mallopt(_TRIM_THRESHOLD, 2 * LARGEST_KEPT_BLOCK - 1)
