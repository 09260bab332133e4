"""Code in C++ on a CPU: built with the machine's compiler at first use, kept on disk, and called
without the GIL.

Its threads are those of torch, by OpenMP. Threads of torch wait for more work for some milliseconds
and keep their cores busy meanwhile, so others beside them would be slow.
"""

from __future__ import annotations

import ctypes
import functools
import hashlib
import math
import os
import shutil
import stat
import subprocess
import tempfile
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from segunc.core.device import processor_lines
from segunc.core.files import own_folder, read_bytes, user_folder, write_atomically

FLAGS = (
    "-O3",
    "-std=c++17",
    "-shared",
    "-fPIC",
    "-fno-math-errno",
    "-fno-trapping-math",
    "-fno-signed-zeros",
)
TUNINGS = (
    ("-march=native", "-mprefer-vector-width=512"),
    ("-march=native",),
    ("-mcpu=native",),
    (),
)
"""Tried in this order: not every compiler knows every option."""
THREADS = (("-fopenmp",), ())
"""Likewise: not every compiler has the library."""


PIECES = (ctypes.c_int64, ctypes.c_int64, ctypes.c_int64, ctypes.c_int32)
"""Types of the last arguments of each function: first and last number, pieces and threads."""


@dataclass(frozen=True)
class Library:
    """What a source was compiled to.

    Attributes:
        functions: None where they could not be built. Each takes the first and the last number of
            what it works on, and in how many pieces and threads it does so, as its last arguments.
        reason: why there are none, or what a user should know of them.
    """

    functions: ctypes.CDLL | None
    reason: str = ""

    def call(self, name: str, arguments: Sequence[Any], count: int) -> None:
        """Call a function for 0..count-1 on as many threads as torch uses; what it gives must not
        depend on the pieces.
        """
        assert self.functions is not None
        function = getattr(self.functions, name)
        threads = torch.get_num_threads()
        # Finer than there are threads, so that a core that is busy elsewhere does not hold up the
        # others.
        pieces = 1 if threads == 1 else threads * 4
        if self.functions.segunc_has_threads():
            function(*arguments, 0, count, pieces, threads)
        else:
            in_threads(lambda first, last: function(*arguments, first, last, 1, 1), count, threads)


def compiled(source: Path) -> Library:
    """Return the functions of a C++ source, built once for each version of it, of the compiler and
    of the kind of CPU.
    """
    compiler = _compiler()
    if compiler is None:
        return Library(None, "no C++ compiler was found")
    try:
        key = _build_key(compiler, source)
        cache = user_folder("XDG_CACHE_HOME", ".cache")
        if cache is not None and own_folder(cache) and os.access(cache, os.W_OK):
            path = cache / f"{source.stem}-{key}.so"
            if not _is_own(path):
                _build(compiler, source, path)
            return Library(_load(path))
        with tempfile.TemporaryDirectory(prefix="segunc-") as folder:  # for this process alone
            path = Path(folder) / f"{source.stem}.so"
            _build(compiler, source, path)
            note = (
                f"{cache or 'a missing home'} is not this user's own alone (0700): {source.name} "
                "is compiled anew in every run"
            )
            return Library(_load(path), note)
    except (OSError, subprocess.SubprocessError) as error:
        detail = getattr(error, "stderr", None) or str(error)
        return Library(None, f"{compiler} cannot build it ({detail.strip().splitlines()[0]})")


def _compiler() -> str | None:
    """Return the C++ compiler that ``CXX`` names, else the first one that is installed."""
    named = os.environ.get("CXX")
    if named:
        return named
    for command in ("c++", "g++", "clang++"):
        if shutil.which(command):
            return command
    return None


def _build_key(compiler: str, source: Path) -> str:
    """Return a short hash of all that decides the library."""
    version = subprocess.run([compiler, "--version"], capture_output=True, text=True, check=True)
    headers = sorted(source.parent.glob("*.h"))
    texts = [path.read_text("utf-8") for path in (source, *headers)]
    parts = [*texts, version.stdout, *FLAGS, _cpu()]
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:16]


def _build(compiler: str, source: Path, path: Path) -> None:
    ways = [(*threads, *tuning) for threads in THREADS for tuning in TUNINGS]
    for way in ways:
        # Built in another folder and renamed: two processes may build at once, and a killed one
        # leaves nothing half finished.
        with tempfile.TemporaryDirectory(dir=path.parent) as folder:
            made = Path(folder) / path.name
            command = [compiler, *FLAGS, *way, str(source), "-o", str(made)]
            try:
                subprocess.run(command, capture_output=True, text=True, check=True, timeout=120)
                _load(made)  # a library of threads may be missing
            except (subprocess.CalledProcessError, OSError):
                if way == ways[-1]:
                    raise
                continue
            write_atomically(path, read_bytes(made))
            return


def _load(path: Path) -> ctypes.CDLL:
    return ctypes.CDLL(str(path))


def _is_own(path: Path) -> bool:
    """Return whether a library is there that only this user can have written; any other is built
    anew.
    """
    if not os.path.lexists(path):
        return False
    status = path.lstat()
    is_regular = stat.S_ISREG(status.st_mode)
    others_may_write = bool(status.st_mode & 0o022)
    return is_regular and status.st_uid == os.getuid() and not others_may_write


def _cpu() -> str:
    """Return what decides the instructions of this CPU."""
    kept = ("model name", "flags", "Features", "CPU part")
    lines = [line for line in processor_lines() if line.startswith(kept)]
    return "\n".join(dict.fromkeys(lines))


def in_threads(work: Callable[[int, int], None], count: int, threads: int) -> None:
    """Call ``work(first, last)`` for pieces of 0..count on threads of Python."""
    if threads == 1:
        work(0, count)
        return
    step = max(1, math.ceil(count / (threads * 4)))
    starts = range(0, count, step)
    ends = [min(start + step, count) for start in starts]
    list(_pool(threads).map(work, starts, ends))  # raises what a thread raised


@functools.cache
def _pool(threads: int) -> ThreadPoolExecutor:
    return ThreadPoolExecutor(threads, thread_name_prefix="segunc")


# A process that is forked has none of the threads.
os.register_at_fork(after_in_child=_pool.cache_clear)
