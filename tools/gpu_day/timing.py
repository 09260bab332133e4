"""How steps are timed: jobs that are warm, medians of seconds, the kernels alone, and turns of
processes that share a device.
"""

from __future__ import annotations

import fcntl
import gc
import os
import statistics
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch

from segunc.core.errors import NoteWarning

WARM_UP_RUNS = 3
FEWEST_RUNS = 3
MOST_RUNS = 15
ENOUGH_SECONDS = 0.6
"""A job runs at least FEWEST_RUNS times, and then until it took ENOUGH_SECONDS or MOST_RUNS."""


@dataclass(frozen=True)
class Prepared:
    """A job that is warm.

    Attributes:
        run: does it once.
        images: how many images one run is worth.
        held_bytes: the most memory that it held beside what was held before it; None on a CPU,
            where it is not measured.
    """

    run: Callable[[], object]
    images: int = 1
    held_bytes: int | None = None


def wait(device: torch.device) -> None:
    """Wait until a GPU has done what was queued."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


@torch.no_grad()
def prepare(run: Callable[[], object], device: torch.device, images: int = 1) -> Prepared:
    """Run a job until it is warm, and measure the memory that it holds.

    Raises:
        NoteWarning: a sampler says that a pass could not be compiled and runs as it is.
    """
    with warnings.catch_warnings():
        warnings.filterwarnings("error", ".*could not be compiled", NoteWarning)
        return _prepare(run, device, images)


def _prepare(run: Callable[[], object], device: torch.device, images: int) -> Prepared:
    if device.type != "cuda":
        for _ in range(WARM_UP_RUNS):
            run()
        return Prepared(run, images)
    held_before = _free_memory()
    for _ in range(WARM_UP_RUNS - 1):  # compilation may hold more than a run
        run()
    _free_memory()
    run()
    held_bytes = torch.cuda.max_memory_reserved() - held_before
    torch.cuda.empty_cache()  # for the processes beside this one
    return Prepared(run, images, held_bytes)


def _free_memory() -> int:
    """Give free memory of the device back, and return how many bytes are still held."""
    gc.collect()
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    return torch.cuda.memory_reserved()


@torch.no_grad()
def seconds_of(job: Prepared, device: torch.device) -> float:
    """Return the median seconds an image."""
    times: list[float] = []
    while len(times) < FEWEST_RUNS or (len(times) < MOST_RUNS and sum(times) < ENOUGH_SECONDS):
        wait(device)
        start = time.perf_counter()
        job.run()
        wait(device)
        times.append(time.perf_counter() - start)
    return statistics.median(times) / job.images


def kernel_seconds(job: Prepared, device: torch.device) -> float | None:
    """Return the seconds an image of the kernels of one run, which a busy host does not lengthen;
    None on a CPU.
    """
    if device.type != "cuda":
        return None
    with torch.no_grad(), torch.profiler.profile() as profiler:
        job.run()
        wait(device)
    microseconds = 0.0
    for event in profiler.key_averages():
        if event.device_type.name == "CUDA":
            microseconds += event.self_device_time_total
    return microseconds / 1e6 / job.images


class Turns:
    """Lets processes that share a folder begin together, when all have come or a time is over, and
    then go one by one.

    Args:
        folder: that they share; None for a process alone.
        processes: how many there are.
        end: moment of ``time.monotonic()`` after which none waits for the others to come.
    """

    def __init__(self, folder: Path | None = None, processes: int = 1, end: float = 0.0) -> None:
        self.folder = folder
        self.processes = processes
        self.end = end
        self._lock: int | None = None

    def __enter__(self) -> None:
        if self.folder is None:
            return
        self.folder.mkdir(parents=True, exist_ok=True)
        (self.folder / str(os.getpid())).touch()
        while len(list(self.folder.iterdir())) < self.processes and time.monotonic() < self.end:
            time.sleep(0.2)
        self._lock = os.open(self.folder, os.O_RDONLY)
        fcntl.flock(self._lock, fcntl.LOCK_EX)

    def __exit__(self, *_: object) -> None:
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None
