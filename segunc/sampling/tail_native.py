"""The compiled tail on a CPU: built with the machine's C++ compiler at first use, kept on disk,
called without the GIL.
"""

from __future__ import annotations

import ctypes
import functools
import hashlib
import math
import os
import platform
import shutil
import stat
import subprocess
import tempfile
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from segunc.core.files import own_folder, read_bytes, user_folder, write_atomically
from segunc.sampling.shortcuts import Upsampling
from segunc.uncertainty import per_ln

SOURCE = Path(__file__).with_name("tail_native.cpp")
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


@dataclass(frozen=True)
class NativeTail:
    """The compiled functions.

    Attributes:
        library: None where they could not be built.
        reason: why there is no library, or what a user should know of it.
    """

    library: ctypes.CDLL | None
    reason: str = ""

    def add_draws(
        self,
        logits: Tensor,
        upsampling: Upsampling,
        entropy: Tensor,
        probabilities: Tensor | None = None,
        planes: Sequence[Tensor | None] = (),
        temperature: float = 1.0,
        earlier: int = 0,
    ) -> None:
        """Add draws to sums, in their order. All sums are contiguous.

        Args:
            logits: ``[S, C, h, w]`` of any floating type and strides.
            upsampling: of the logits to the frame.
            entropy: H(p) in nats, ``[H, W]`` float64.
            probabilities: p, ``[C, H, W]`` float32; None leaves them out.
            planes: of :class:`segunc.sampling.tail.LogitSums`; empty leaves them out.
            temperature: T, by which logits are divided before the softmax.
            earlier: how many draws the sums hold already.
        """
        assert self.library is not None
        if logits.dtype not in (torch.float32, torch.bfloat16):
            logits = logits.float()
        draws, classes = logits.shape[:2]
        height, width = upsampling.kept
        strides = (ctypes.c_int64 * 4)(*logits.stride())
        source = (logits.data_ptr(), logits.dtype == torch.bfloat16, strides)
        taps = (*upsampling.taps(0), *upsampling.taps(1))  # held while their memory is read
        lines = [line.data_ptr() for line in taps]
        sums = (probabilities, entropy, *(planes or [None] * 4))
        targets = [None if values is None else values.data_ptr() for values in sums]
        add = self.library.segunc_add_draws

        def add_rows(first: int, last: int) -> None:
            add(
                *source,
                draws,
                classes,
                2.0 / temperature,
                *lines,
                first,
                last,
                height,
                width,
                earlier,
                *targets,
            )

        _in_threads(add_rows, height)

    def finish(
        self, probabilities: Tensor, entropy: Tensor, draws: int
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Return prediction (uint8), total and expected entropy (float64, shares of ln C), each
        ``[H, W]``, from the sums.
        """
        assert self.library is not None
        classes, height, width = probabilities.shape
        prediction = torch.empty(height, width, dtype=torch.uint8)
        total = torch.empty_like(entropy)
        expected = torch.empty_like(entropy)
        targets = [tensor.data_ptr() for tensor in (prediction, total, expected)]
        sums = (probabilities.data_ptr(), entropy.data_ptr())
        sizes = (classes, height * width, draws, per_ln(classes))
        finish = self.library.segunc_finish

        def finish_rows(first: int, last: int) -> None:
            finish(*sums, *sizes, first * width, last * width, *targets)

        _in_threads(finish_rows, height)
        return prediction, total, expected


@functools.cache
def native_tail() -> NativeTail:
    """Return the compiled tail of this machine, built once for each version of its source, compiler
    and kind of CPU.
    """
    compiler = _compiler()
    if compiler is None:
        return NativeTail(None, "no C++ compiler was found")
    try:
        key = _build_key(compiler)
        cache = user_folder("XDG_CACHE_HOME", ".cache")
        if cache is not None and own_folder(cache) and os.access(cache, os.W_OK):
            path = cache / f"tail-{key}.so"
            if not _is_own(path):
                _build(compiler, path)
            return NativeTail(_load(path))
        with tempfile.TemporaryDirectory(prefix="segunc-") as folder:  # for this process alone
            path = Path(folder) / "tail.so"
            _build(compiler, path)
            note = (
                f"{cache or 'a missing home'} is not this user's own alone (0700): the compiled "
                "tail is built anew in every run"
            )
            return NativeTail(_load(path), note)
    except (OSError, subprocess.SubprocessError) as error:
        detail = getattr(error, "stderr", None) or str(error)
        return NativeTail(None, f"{compiler} cannot build it ({detail.strip().splitlines()[0]})")


def _compiler() -> str | None:
    """Return the C++ compiler that ``CXX`` names, else the first one that is installed."""
    named = os.environ.get("CXX")
    if named:
        return named
    for command in ("c++", "g++", "clang++"):
        if shutil.which(command):
            return command
    return None


def _build_key(compiler: str) -> str:
    """Return a short hash of all that decides the library."""
    version = subprocess.run([compiler, "--version"], capture_output=True, text=True, check=True)
    parts = [SOURCE.read_text("utf-8"), version.stdout, *FLAGS, _cpu()]
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:16]


def _build(compiler: str, path: Path) -> None:
    for tuning in TUNINGS:
        # Built in another folder and renamed: two processes may build at once, and a killed one
        # leaves nothing half finished.
        with tempfile.TemporaryDirectory(dir=path.parent) as folder:
            made = Path(folder) / path.name
            command = [compiler, *FLAGS, *tuning, str(SOURCE), "-o", str(made)]
            try:
                subprocess.run(command, capture_output=True, text=True, check=True, timeout=120)
            except subprocess.CalledProcessError:
                if not tuning:
                    raise
                continue
            write_atomically(path, read_bytes(made))
            return


def _load(path: Path) -> ctypes.CDLL:
    pointer = ctypes.c_void_p
    number = ctypes.c_int64
    library = ctypes.CDLL(str(path))
    library.segunc_add_draws.argtypes = [
        pointer,  # logits, whether they are bfloat16, and their strides
        ctypes.c_int32,
        pointer,
        number,  # draws and classes
        number,
        ctypes.c_float,  # factor of the half logits
        *[pointer] * 6,  # lines
        *[number] * 5,  # first and last row, height, width, earlier draws
        *[pointer] * 6,  # sums
    ]
    library.segunc_finish.argtypes = [
        pointer,  # sums
        pointer,
        number,  # classes, pixels and draws
        number,
        number,
        ctypes.c_double,  # 1 / ln C
        number,  # first and last pixel
        number,
        pointer,  # prediction, total and expected entropy
        pointer,
        pointer,
    ]
    return library


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
    try:
        lines = Path("/proc/cpuinfo").read_text("utf-8").splitlines()
    except OSError:
        return platform.processor() + platform.machine()
    kept = ("model name", "flags", "Features", "CPU part")
    return "\n".join(dict.fromkeys(line for line in lines if line.startswith(kept)))


def _in_threads(rows: Callable[[int, int], None], height: int) -> None:
    """Call ``rows(first, last)`` for pieces of 0..height; what a row gives does not depend on the
    pieces.
    """
    threads = torch.get_num_threads()
    if threads == 1:
        rows(0, height)
        return
    # Finer than there are threads, so that a core that is busy elsewhere does not hold up the
    # others.
    step = max(1, math.ceil(height / (threads * 4)))
    starts = range(0, height, step)
    ends = [min(start + step, height) for start in starts]
    with ThreadPoolExecutor(threads) as pool:
        list(pool.map(rows, starts, ends))  # raises what a thread raised
