"""Freed memory is used again, in a process of its own: the setting cannot be undone."""

import os
import platform
import subprocess
import sys

import pytest

pytestmark = pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="other C libraries")

FAULTS_OF_SECOND_BLOCK = """
import resource
import numpy as np
from segunc.core.memory import keep_freed_memory

keep_freed_memory()

def fill_block() -> int:
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    np.full(100 << 20, 1, np.uint8)
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before

fill_block()
print(fill_block())
"""
PAGES = (100 << 20) // 4096


def faults(**environment: str) -> int:
    """Return how many pages of a block of 100 MiB the system has to give, after an equal block
    was freed.
    """
    kept = {name: text for name, text in os.environ.items() if not name.startswith("MALLOC_")}
    done = subprocess.run(
        [sys.executable, "-c", FAULTS_OF_SECOND_BLOCK],
        env={**kept, "NUMPY_MADVISE_HUGEPAGE": "0", **environment},
        capture_output=True,
        text=True,
        check=True,
    )
    return int(done.stdout)


def test_a_large_block_is_used_again() -> None:
    assert faults() < PAGES // 100


def test_what_a_user_has_chosen_is_kept() -> None:
    assert faults(MALLOC_MMAP_THRESHOLD_="1048576") > PAGES // 2
