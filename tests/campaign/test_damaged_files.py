"""Damaged files for every reader: the right result, or an error of one line.

A case is a number: with the reader's name it decides the file and what is done to it. Failures are
any other exception, a line that is none, and, of an exact reader, another result than that of the
whole file. Time and memory are bounded. ``SEGUNC_CASES=4711:4712 pytest tests/campaign -k labels``
runs one case of a reader again.
"""

import hashlib
import resource
import shutil
import signal
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.campaign.mutations import mutate
from tests.campaign.readers import READERS, REFUSED, Reader, in_folders
from tests.campaign.world import CASES, World

MOST_SECONDS, MOST_MEMORY, LONGEST_LINE = 10, 2 << 30, 2000


@pytest.fixture
def limits() -> Iterator[None]:
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    old, most = resource.getrlimit(resource.RLIMIT_AS), pages * resource.getpagesize() + MOST_MEMORY
    # What fails a test is a BaseException, which no reader catches.
    handler = signal.signal(
        signal.SIGALRM, lambda *_: pytest.fail(f"a case takes more than {MOST_SECONDS} s")
    )
    resource.setrlimit(resource.RLIMIT_AS, (most, old[1]))
    yield
    resource.setrlimit(resource.RLIMIT_AS, old)
    signal.signal(signal.SIGALRM, handler)


def digest(value: Any) -> str:
    if isinstance(value, dict):
        value = [*value.items()]
    if isinstance(value, list | tuple):
        text = " ".join(map(digest, value)).encode()
    elif isinstance(value, np.ndarray):
        text = f"{value.dtype}{value.shape}".encode() + np.ascontiguousarray(value).tobytes()
    else:
        text = repr(value).encode("utf-8", "surrogatepass")
    return hashlib.sha256(text).hexdigest()


def outcome(read: Callable[[], Any], seconds: int = MOST_SECONDS) -> str:
    """The hash of what is read, ``refused``, or what is wrong with an error."""
    signal.alarm(seconds)
    try:
        return digest(read())
    except REFUSED as error:
        return (
            "refused"
            if 0 < len(str(error).strip()) < LONGEST_LINE
            else f"a line of {len(str(error))} characters"
        )
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    finally:
        signal.alarm(0)


def failures(name: str, reader: Reader, world: World, folder: Path) -> Iterator[str]:
    top, damaged = folder / "whole", folder / "damaged"
    files = reader.seeds(world, top)
    shutil.copytree(top, damaged)
    places = [
        (damaged / path.relative_to(top).parts[0], damaged / path.relative_to(top))
        for path in files
    ]
    whole = [path.read_bytes() for path in files]
    expected = [
        outcome(lambda root=root, file=file: reader.read(root, file), 60) for root, file in places
    ]
    yield from (f"a whole file is {said}" for said in expected if " " in said or said == "refused")
    for case in CASES:
        random = np.random.default_rng([zlib.crc32(name.encode()), case])
        place = int(random.integers(len(files)))
        root, file = places[place]
        data = mutate(whole[place], file.suffix[1:], random)
        if reader.writes:
            shutil.rmtree(root)
            shutil.copytree(top / root.name, root)
        file.unlink(missing_ok=True)
        file.write_bytes(data)
        said = outcome(lambda root=root, file=file: reader.read(root, file))
        file.unlink(missing_ok=True)
        file.write_bytes(whole[place])
        wrong = reader.exact and data != whole[place] and said not in (expected[place], "refused")
        if " " in said or wrong:
            yield (
                f"case {case}, {file.name}:"
                f" {'another result, without a word' if ' ' not in said else said}"
            )


@pytest.mark.parametrize("name", READERS)
@pytest.mark.usefixtures("limits")
def test_damaged_files_are_read_right_or_refused(name: str, world: World, tmp_path: Path) -> None:
    assert list(failures(name, READERS[name], world, tmp_path)) == []


def test_what_is_planted_is_reported(world: World, tmp_path: Path) -> None:
    whole = b"whole" * 20
    seeds = in_folders(["a.bin"], lambda name, path: path.write_bytes(whole))
    for said, bad in (
        ("KeyError", lambda: {}["key"]),
        ("another result, without a word", lambda: 2),
    ):
        planted = Reader(
            seeds,
            lambda root, file, bad=bad: 1 if file.read_bytes() == whole else bad(),
            exact=True,
        )
        found = list(failures("planted", planted, world, tmp_path / said))
        assert len([one for one in found if said in one]) == len(found) > 4
