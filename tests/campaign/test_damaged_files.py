"""Damaged files for every reader: the right result, or an error of one line.

A case is a number: with the reader's name it decides the file and what is done to it. Failures are any other exception, more than
:data:`MOST_SECONDS`, more than :data:`MOST_MEMORY` beyond the start, a line that is none, and, of an exact reader, another result than
that of the whole file. ``SEGUNC_CASES=4711:4712 pytest tests/campaign -k 'files and labels'`` runs one case of a reader again.
"""

from __future__ import annotations

import hashlib
import resource
import shutil
import signal
import time
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from segunc.core.errors import InputError
from tests.campaign.conftest import CASES, LONG
from tests.campaign.mutations import OF_KIND, mutate
from tests.campaign.readers import READERS, REFUSED, Reader, in_folders
from tests.campaign.world import World

MOST_SECONDS, MOST_MEMORY, LONGEST_LINE = 10.0, 2 << 30, 2000
NO_MEMORY = ("Insufficient memory", "bad_alloc", "Unable to allocate", "DefaultCPUAllocator", "not enough memory")


class TooLongError(BaseException):
    """Nothing catches it by accident."""


@pytest.fixture
def limits() -> Iterator[None]:
    """Bounds of memory and time in this process."""

    def too_long(*_: object) -> None:
        raise TooLongError

    pages = int(Path("/proc/self/statm").read_text().split()[0])
    old, most = resource.getrlimit(resource.RLIMIT_AS), pages * resource.getpagesize() + MOST_MEMORY
    handler = signal.signal(signal.SIGALRM, too_long)
    resource.setrlimit(resource.RLIMIT_AS, (most, old[1]))
    yield
    resource.setrlimit(resource.RLIMIT_AS, old)
    signal.signal(signal.SIGALRM, handler)


def digest(value: Any) -> str:
    """A hash of nested values and arrays."""
    if isinstance(value, dict):
        value = [part for pair in value.items() for part in pair]
    if isinstance(value, list | tuple):
        text = " ".join(map(digest, value)).encode()
    elif isinstance(value, np.ndarray):
        text = f"{value.dtype}{value.shape}".encode() + np.ascontiguousarray(value).tobytes()
    else:
        text = repr(value).encode("utf-8", "surrogatepass")
    return hashlib.sha256(text).hexdigest()


def outcome(read: Callable[[], Any], seconds: float = MOST_SECONDS) -> str:
    """The hash of what is read, ``refused``, or what is wrong with an error."""
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        return digest(read())
    except TooLongError:
        return "too slow"
    except Exception as error:
        signal.setitimer(signal.ITIMER_REAL, 0)
        chain: list[BaseException] = [error]
        while (inner := chain[-1].__cause__ or chain[-1].__context__) is not None and inner not in chain:
            chain.append(inner)
        if any(isinstance(one, TooLongError) for one in chain):
            return "too slow"
        for one in chain:  # FFmpeg's MemoryError is its own bound on one block, of which nothing was taken
            ours = isinstance(one, MemoryError) and not type(one).__module__.startswith("av.")
            if ours or any(said in str(one) for said in NO_MEMORY):
                return "too much memory"
        if not isinstance(error, REFUSED):
            return f"{type(error).__name__}: {error}"
        return "refused" if 0 < len(str(error).strip()) < LONGEST_LINE else f"a line of {len(str(error))} characters"
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)


def failures(name: str, reader: Reader, world: World, folder: Path, seconds: float = MOST_SECONDS) -> Iterator[str]:
    """What goes wrong with the cases of a reader."""
    top, damaged = folder / "whole", folder / "damaged"
    files = reader.seeds(world, top)
    shutil.copytree(top, damaged)
    places = [(damaged / path.relative_to(top).parts[0], damaged / path.relative_to(top)) for path in files]
    whole = [path.read_bytes() for path in files]
    expected = [outcome(lambda root=root, file=file: reader.read(root, file), 60.0) for root, file in places]
    yield from (f"a whole file is {said}" for said in expected if " " in said or said == "refused")
    for case in CASES:
        random = np.random.default_rng([zlib.crc32(name.encode()), case])
        place = int(random.integers(len(files)))
        root, file = places[place]
        data = reader.finish(mutate(whole[place], file.suffix[1:], random))
        if reader.writes:
            shutil.rmtree(root)
            shutil.copytree(top / root.name, root)
        file.unlink(missing_ok=True)
        file.write_bytes(data)
        said = outcome(lambda root=root, file=file: reader.read(root, file), seconds)
        file.unlink(missing_ok=True)
        file.write_bytes(whole[place])
        wrong = reader.exact and data != whole[place] and said not in (expected[place], "refused")
        if " " in said or wrong:
            yield f"case {case}, {file.name}: {'another result, without a word' if ' ' not in said else said}"


@pytest.mark.parametrize("name", [name for name, reader in READERS.items() if LONG or not reader.trained])
@pytest.mark.usefixtures("limits")
def test_damaged_files_are_read_right_or_refused(name: str, world: World, tmp_path: Path) -> None:
    assert list(failures(name, READERS[name], world, tmp_path)) == []


def refuse() -> None:
    raise InputError("bytes", "others", "write them again")


def long_line() -> None:
    raise InputError("more", "x" * 5000, "")


@pytest.mark.parametrize(
    ("bad", "said"),
    [
        (refuse, None),
        (lambda: {}["key"], "KeyError"),
        (lambda: 2, "another result, without a word"),
        (lambda: np.empty(1 << 55), "too much memory"),
        (long_line, "a line of 5"),
        (lambda: time.sleep(60.0), "too slow"),
    ],
)
@pytest.mark.usefixtures("limits")
def test_what_is_planted_is_reported(bad: Callable[[], Any], said: str | None, world: World, tmp_path: Path) -> None:
    whole = b"whole" * 20
    seeds = in_folders(["a.bin"], lambda name, path: path.write_bytes(whole))
    planted = Reader(seeds, lambda root, file: 1 if file.read_bytes() == whole else bad(), exact=True)
    found = list(failures("planted", planted, world, tmp_path, 0.2))
    assert len(found) > 4 if said else found == []
    assert all(said in one for one in found)  # type: ignore[operator]


def test_mutations_follow_from_their_case() -> None:
    data = b'{"a": [1, 2, {"b": "c"}], "d": null}'
    for kind in (*OF_KIND, "bin"):
        made = [[mutate(data, kind, np.random.default_rng(seed)) for seed in range(12)] for _ in range(2)]
        assert made[0] == made[1]
        assert sum(one != data for one in made[0]) > 6
