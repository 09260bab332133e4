"""Damaged files for every reader, in processes with limits.

A case is a number: with the reader's name and the seed it decides the file and what is done to it. Allowed are the right result and an
error of one line (:data:`tools.faults.readers.REFUSED`). Failures are any other exception, a process that dies, more than
:data:`MOST_SECONDS`, more than :data:`MOST_MEMORY` beyond the start, a line that is none, and, of an exact reader, another result than
that of the whole file. What failed runs once more in a process of its own, and only then counts.
"""

from __future__ import annotations

import contextlib
import mmap
import os
import resource
import shutil
import signal
import struct
import sys
import tempfile
import time
import traceback
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import torch

from tests.verbs.processes import CONTEXT
from tools.faults.mutations import mutate
from tools.faults.readers import READERS, REFUSED, Reader, digest
from tools.faults.report import Row
from tools.faults.world import World

MOST_SECONDS, MOST_MEMORY = 10.0, 2 << 30
GRACE = 5.0
"""Seconds that a process has, beyond the limit, until it is killed from outside."""
LONGEST_LINE = 2000
OUTCOMES = ("as the whole file", "another result", "refused")
NO_MEMORY = ("Insufficient memory", "bad_alloc", "Unable to allocate", "DefaultCPUAllocator", "not enough memory")
_SHARED = struct.Struct(f"qd{len(OUTCOMES)}q")
"""What a worker tells while it works: the case it is at, when that began, and how many ended in each way."""


class _TooLongError(BaseException):
    """Nothing catches it by accident."""


def too_long(*_: object) -> None:
    raise _TooLongError


@dataclass(frozen=True)
class Given:
    """What all workers at a reader are given."""

    name: str
    reader: Reader  # without its seeds
    files: Sequence[Path]  # to damage
    top: Path  # the folder of folders in which they are whole
    seed: int
    seconds: float = MOST_SECONDS


class Cases:
    """The cases of a reader: whole files laid out in a folder of its own, and what damaged ones give."""

    def __init__(self, given: Given, folder: Path) -> None:
        self.given, self.reader = given, given.reader
        self._folder = folder
        self._files = [path.relative_to(given.top) for path in given.files]
        self._whole = [path.read_bytes() for path in given.files]
        self._expected: dict[int, str] = {}
        shutil.copytree(given.top, folder)

    def damaged(self, case: int) -> tuple[int, bytes]:
        """Which file it is of, and the damaged bytes."""
        random = np.random.default_rng([zlib.crc32(self.given.name.encode()), self.given.seed, case])
        place = int(random.integers(len(self._files)))
        data = mutate(self._whole[place], self._files[place].suffix[1:], random)
        return place, data if self.reader.finish is None else self.reader.finish(data, random)

    def lay(self, place: int, data: bytes) -> tuple[Path, Path]:
        """The folder and the file of a case, with these bytes in it."""
        file = self._folder / self._files[place]
        root = self._folder / self._files[place].parts[0]
        if self.reader.writes:
            shutil.rmtree(root)
            shutil.copytree(self.given.top / root.name, root)
        file.unlink(missing_ok=True)
        file.write_bytes(data)
        return root, file

    def expected(self, place: int) -> str:
        """What the whole file gives; nothing where it is of a kind that is refused."""
        if place not in self._expected:
            self._expected[place] = ""
            with contextlib.suppress(*REFUSED):
                self._expected[place] = digest(self.reader.read(*self.lay(place, self._whole[place])))
        return self._expected[place]

    def restore(self, place: int) -> None:
        """The whole file again in its place."""
        self.lay(place, self._whole[place])

    def run(self, case: int, begun: Any = lambda: None) -> tuple[str, str]:
        """How a case ended: one of :data:`OUTCOMES` with nothing, or the cause of a failure with a line."""
        place, data = self.damaged(case)
        right = self.expected(place)
        root, file = self.lay(place, data)
        begun()
        signal.setitimer(signal.ITIMER_REAL, self.given.seconds)
        try:
            found = digest(self.reader.read(root, file))
        except _TooLongError:
            return f"too slow at {where(sys.exc_info()[2])}", ""
        except Exception as error:
            signal.setitimer(signal.ITIMER_REAL, 0)
            return judge(error)
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
            self.restore(place)
        if found == right:
            return OUTCOMES[0], ""
        if self.reader.exact and data != self._whole[place]:
            return f"a wrong result of {self._files[place].name} without a word", f"{len(data)} bytes"
        return OUTCOMES[1], ""


def judge(error: Exception) -> tuple[str, str]:
    """Whether an error is one line of what is wrong with the input."""
    chain: list[BaseException] = [error]
    while (inner := chain[-1].__cause__ or chain[-1].__context__) is not None and inner not in chain:
        chain.append(inner)
    for one in chain:
        if isinstance(one, _TooLongError):
            return f"too slow at {where(one.__traceback__)}", ""
        # FFmpeg's of this name is its own bound on one block, of which nothing was taken.
        if (isinstance(one, MemoryError) and not type(one).__module__.startswith("av.")) or any(
            said in str(one) for said in NO_MEMORY
        ):
            return f"more than {MOST_MEMORY >> 30} GiB at {where(one.__traceback__)}", str(one)
    if not isinstance(error, REFUSED):
        return f"{type(error).__name__} at {where(error.__traceback__)}", str(error)
    if not str(error).strip() or len(str(error)) > LONGEST_LINE:
        return f"a line of {len(str(error)) // 1000} thousand characters at {where(error.__traceback__)}", str(error)
    return OUTCOMES[2], ""


def where(trace: Any) -> str:
    """The innermost line of ours in a traceback, without its number: else each edit would make other causes of the same."""
    ours = [frame for frame in traceback.extract_tb(trace) if f"{os.sep}segunc{os.sep}" in frame.filename]
    inner = [frame for frame in ours if not frame.name.startswith("<")] or ours
    return " in ".join([inner[-1].name, "/".join(Path(inner[-1].filename).parts[-2:])]) if inner else "no line of ours"


def _limit() -> None:
    """The limits of a worker; whatever decoders print is of no interest."""
    torch.set_num_threads(1)
    cv2.setNumThreads(1)
    with open("/proc/self/statm") as file:
        size = int(file.read().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (size + MOST_MEMORY, resource.RLIM_INFINITY))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    signal.signal(signal.SIGALRM, too_long)
    nothing = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nothing, 1)
    os.dup2(nothing, 2)


def _work(given: Given, folder: Path, numbers: Sequence[int]) -> None:
    """What a worker does: the cases of these numbers; failures go to ``failures`` and progress to ``shared`` beside its folder."""
    with open(f"{folder}.shared", "r+b") as file, open(f"{folder}.failures", "a", encoding="utf-8") as failures:
        shared = mmap.mmap(file.fileno(), _SHARED.size)
        counts = [0] * len(OUTCOMES)
        cases = Cases(given, folder)
        for place in range(len(given.files)):  # also what is only imported or compiled once
            cases.expected(place)
        _limit()
        for number in numbers:
            _SHARED.pack_into(shared, 0, number, 0.0, *counts)
            what, detail = cases.run(
                number, lambda n=number: _SHARED.pack_into(shared, 0, n, time.monotonic(), *counts)
            )
            if what in OUTCOMES:
                counts[OUTCOMES.index(what)] += 1
            else:
                line = " ".join(detail.split())[:400].encode("utf-8", "backslashreplace").decode()
                print(number, what, line, sep="\t", file=failures, flush=True)
        _SHARED.pack_into(shared, 0, -1, 0.0, *counts)


class _Worker:
    """A process at the cases of some numbers, begun anew behind each that it dies of."""

    def __init__(self, given: Given, folder: Path, numbers: range) -> None:
        self._given, self._folder, self._left = given, folder, numbers
        self.counts = [0] * len(OUTCOMES)
        self.failures: list[tuple[int, str, str]] = []
        self._start()

    def _start(self) -> None:
        shutil.rmtree(self._folder, ignore_errors=True)
        Path(f"{self._folder}.failures").write_bytes(b"")
        Path(f"{self._folder}.shared").write_bytes(_SHARED.pack(self._left[0], 0.0, *[0] * len(OUTCOMES)))
        self._process = CONTEXT.Process(target=_work, args=(self._given, self._folder, self._left))
        self._process.start()

    def done(self) -> bool:
        """Whether all cases are; a process that died or hangs is taken note of and begun anew."""
        alive = self._process.is_alive()  # before its last words are read
        number, began, *counts = _SHARED.unpack(Path(f"{self._folder}.shared").read_bytes())
        if alive:
            if not began or time.monotonic() - began < self._given.seconds + GRACE:
                return False
            self._process.kill()
            self._process.join()
            self._take(counts, number, "no end")
            return not self._left
        self._process.join()
        if self._process.exitcode == 0:
            self._take(counts)
            return True
        if not began:
            raise RuntimeError(f"the worker of {self._given.name} ended with {self._process.exitcode} at case {number}")
        self._take(counts, number, f"the process died of signal {-(self._process.exitcode or 0)}")
        return not self._left

    def _take(self, counts: Sequence[int], number: int | None = None, what: str = "") -> None:
        self.counts = [a + b for a, b in zip(self.counts, counts, strict=True)]
        for line in Path(f"{self._folder}.failures").read_text(encoding="utf-8").splitlines():
            case, cause, detail = (*line.split("\t", 2), "", "")[:3]
            self.failures.append((int(case), cause, detail))
        if number is not None:
            self.failures.append((number, what, ""))
            self._left = range(number + self._left.step, self._left.stop, self._left.step)
            if self._left:
                self._start()


def _run(given: Given, ranges: Sequence[range]) -> list[_Worker]:
    """Workers at these ranges of cases, at their end."""
    workers = [_Worker(given, given.top.with_name(f"worker-{i}"), numbers) for i, numbers in enumerate(ranges)]
    left = list(workers)
    while left:
        left = [worker for worker in left if not worker.done()]
        time.sleep(0.05)
    return workers


@contextlib.contextmanager
def whole_files(name: str, world: World, seed: int = 0, seconds: float = MOST_SECONDS) -> Iterator[Given]:
    """The whole files of a reader in ``whole`` of a folder that is removed again."""
    with tempfile.TemporaryDirectory(prefix="segunc-fuzz-") as folder:
        reader, top = READERS[name], Path(folder) / "whole"
        assert reader.seeds is not None
        yield Given(name, replace(reader, seeds=None), reader.seeds(world, top), top, seed, seconds)


def fuzz_reader(name: str, world: World, cases: int, seed: int, workers: int, seconds: float = MOST_SECONDS) -> Row:
    """So many cases of one reader."""
    row = Row("fuzz", name, seed)
    with row.timed(), whole_files(name, world, seed, seconds) as given:
        ranges = [range(start, cases, workers) for start in range(min(workers, cases))]
        found = _run(given, ranges)
        for worker in found:
            for outcome, number in zip(OUTCOMES, worker.counts, strict=True):
                if number:
                    row.count(outcome, number)
        failed = {case: (what, detail) for worker in found for case, what, detail in worker.failures}
        for cause in {what for what, _ in failed.values()}:
            of_cause = [case for case, (what, _) in failed.items() if what == cause]
            # Of a cause, its first cases again, alone: on a busy machine, what is slow is not always slow by itself.
            again = _run(given, [range(case, case + 1) for case in of_cause[:2]])
            confirmed = any(worker.failures for worker in again)
            for case in of_cause:
                if confirmed:
                    row.fail(cause, f"--case {name!r}:{case}", failed[case][1])
                else:
                    row.count("failed once, not again")
    return row


def fuzz(
    world: World, cases: int, seed: int = 0, names: Sequence[str] | None = None, workers: int = 2
) -> Iterator[Row]:
    """About so many cases over the readers, each by its share."""
    chosen = {name: READERS[name] for name in names or READERS}
    shares = sum(reader.share for reader in chosen.values())
    for name, reader in chosen.items():
        yield fuzz_reader(name, world, -(-cases * reader.share // shares), seed, workers)


def run_case(name: str, case: int, world: World, seed: int, keep: Path | None = None) -> str:
    """One case in this process, without limits of memory, with its traceback; ``keep`` is a folder for the damaged files."""
    signal.signal(signal.SIGALRM, too_long)
    with whole_files(name, world, seed) as given:
        cases = Cases(given, given.top.with_name("damaged"))
        place, data = cases.damaged(case)
        root, file = cases.lay(place, data)
        if keep is not None:
            shutil.copytree(root, keep, dirs_exist_ok=True)
        try:
            cases.reader.read(root, file)
        except Exception:
            traceback.print_exc()
        print(
            f"{file.relative_to(root)}: {given.files[place].stat().st_size} bytes damaged to {len(data)}: {data[:200]!r}"
        )
        return ": ".join(filter(None, cases.run(case)))
