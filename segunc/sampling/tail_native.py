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
    """The compiled functions, or the reason why there are none; or what a user should
    know of them.
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
        """Add draws ``[S, C, h, w]`` of any floating type and strides to sums of ``earlier`` ones,
        in their order: H(p) in nats ``[H, W]`` float64, p ``[C, H, W]`` float32, and the planes of
        :class:`segunc.sampling.tail.LogitSums`, all contiguous.
        """
        assert self.library is not None
        if logits.dtype not in (torch.float32, torch.bfloat16):
            logits = logits.float()
        (draws, classes), (height, width) = logits.shape[:2], upsampling.kept
        source = (
            logits.data_ptr(),
            logits.dtype == torch.bfloat16,
            (ctypes.c_int64 * 4)(*logits.stride()),
        )
        taps = [
            line for axis in (0, 1) for line in upsampling.taps(axis)
        ]  # held while their memory is read
        lines = [line.data_ptr() for line in taps]
        sums = (probabilities, entropy, *(planes or [None] * 4))
        targets = [None if values is None else values.data_ptr() for values in sums]
        add = self.library.segunc_add_draws

        def rows(first: int, last: int) -> None:
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

        _in_threads(rows, height)

    def finish(
        self, probabilities: Tensor, entropy: Tensor, draws: int
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Prediction (uint8), total and expected entropy (float64, shares of ln C), each ``[H,
        W]``, from the sums.
        """
        assert self.library is not None
        classes, height, width = probabilities.shape
        made = (
            torch.empty(height, width, dtype=torch.uint8),
            torch.empty_like(entropy),
            torch.empty_like(entropy),
        )
        sums = (
            probabilities.data_ptr(),
            entropy.data_ptr(),
            classes,
            height * width,
            draws,
            per_ln(classes),
        )
        pointers = [tensor.data_ptr() for tensor in made]
        finish = self.library.segunc_finish
        _in_threads(
            lambda first, last: finish(*sums, first * width, last * width, *pointers), height
        )
        return made


@functools.cache
def native_tail() -> NativeTail:
    """The compiled tail of this machine, built once for each version of its source, compiler and
    kind of CPU.
    """
    compiler = os.environ.get("CXX") or next(
        (c for c in ("c++", "g++", "clang++") if shutil.which(c)), None
    )
    if compiler is None:
        return NativeTail(None, "no C++ compiler was found")
    try:
        version = subprocess.run(
            [compiler, "--version"], capture_output=True, text=True, check=True
        ).stdout
        key = hashlib.sha256(
            "\0".join([SOURCE.read_text("utf-8"), version, *FLAGS, _cpu()]).encode()
        ).hexdigest()[:16]
        kept = user_folder("XDG_CACHE_HOME", ".cache")
        if kept is not None and own_folder(kept) and os.access(kept, os.W_OK):
            path = kept / f"tail-{key}.so"
            if not _is_own(path):
                _build(compiler, path)
            return NativeTail(_load(path))
        with tempfile.TemporaryDirectory(prefix="segunc-") as folder:  # for this process alone
            _build(compiler, Path(folder) / "tail.so")
            why = f"{kept or 'a missing home'} is not this user's own alone (0700): the compiled tail is built anew in every run"
            return NativeTail(_load(Path(folder) / "tail.so"), why)
    except (OSError, subprocess.SubprocessError) as error:
        detail = getattr(error, "stderr", None) or str(error)
        return NativeTail(None, f"{compiler} cannot build it ({detail.strip().splitlines()[0]})")


def _build(compiler: str, path: Path) -> None:
    for tuning in TUNINGS:
        # Built beside its place and renamed: two processes may build at once, and a killed one
        # leaves nothing half.
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
    library, p, n = ctypes.CDLL(str(path)), ctypes.c_void_p, ctypes.c_int64
    library.segunc_add_draws.argtypes = [
        p,
        ctypes.c_int32,
        p,
        n,
        n,
        ctypes.c_float,
        *[p] * 6,
        *[n] * 5,
        *[p] * 6,
    ]
    library.segunc_finish.argtypes = [p, p, n, n, n, ctypes.c_double, n, n, p, p, p]
    return library


def _is_own(path: Path) -> bool:
    """Return whether a library is there that nobody but this user can have written; another one is
    built over it.
    """
    if not os.path.lexists(path):
        return False
    status = path.lstat()
    return (
        stat.S_ISREG(status.st_mode) and status.st_uid == os.getuid() and not status.st_mode & 0o022
    )


def _cpu() -> str:
    """What decides the instructions of this CPU."""
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
    with ThreadPoolExecutor(threads) as pool:
        list(
            pool.map(rows, starts, [min(start + step, height) for start in starts])
        )  # raises what a thread raised
