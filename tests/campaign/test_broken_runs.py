"""Runs that are killed or lack something: the same command again must end in the bytes of an
unbroken run.

A run that lacks something ends with 0, or with 1 or 2 and one line, and without a traceback.
"""

import contextlib
import ctypes
import hashlib
import os
import re
import resource
import shutil
import time
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path

import cv2
import numpy as np
import pytest

from segunc.core.files import PARTIAL_SUFFIX
from segunc.maps.shards import LOCK_STEM
from tests.campaign.world import COMMANDS, SMALL, World
from tests.verbs.processes import Command, Finished, segunc

LIBRARIES = re.compile(r"^\[ *(ERROR|WARN)[:@]")  # of OpenCV, from below Python


def written(out: Path) -> dict[str, str]:
    """A hash of each file that is compared: records in JSON say when they were made."""
    files = (path for path in sorted(out.rglob("*")) if path.is_file() and path.suffix != ".json")
    return {
        path.relative_to(out).as_posix(): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in files
    }


def verdict(out: Path, whole: dict[str, str], again: Finished) -> str:
    """What is wrong with the end of a run that was broken and begun again; nothing where it is
    right.
    """
    now = written(out)
    refused = (
        again.code == 2 and now == whole
    )  # it had ended before it was killed, and does not begin anew
    if not (again.code == 0 or refused) or "Traceback" in again.stderr:
        return f"the same command again ends with {again.code}: {again.stderr[-400:]}"
    left = [
        path.name
        for path in out.rglob("*")
        if PARTIAL_SUFFIX in path.name or path.name.startswith(LOCK_STEM)
    ]
    changed = sorted({name for name, _ in whole.items() ^ now.items()})
    return (
        f"temporary files or locks {left}, other files or bytes {changed[:5]}"
        if left or changed
        else ""
    )


def objection(done: Finished, codes: tuple[int, ...]) -> str:
    """What is wrong with the end of a run that lacked something."""
    lines = [line for line in done.error_lines if not LIBRARIES.match(line)]
    if (
        done.code in codes
        and "Traceback" not in done.stderr + done.stdout
        and (done.code == 0 or len(lines) == 1)
    ):
        return ""
    return f"ends with {done.code} and {len(lines)} lines: {done.stderr[-400:]}"


def unbroken(world: World, command: str) -> tuple[Path, dict[str, str], float]:
    """The folder, the files and the seconds of a run that nothing happens to; broken ones run in
    its place, where paths are the same.
    """
    out, words = world.folder / "out", world.words(command, world.folder / "out")
    runs = []
    for _ in range(2):  # the first may import and compile
        shutil.rmtree(out, ignore_errors=True)
        begun = time.monotonic()
        done = segunc(*words)
        assert done.code == 0, done.stderr
        runs.append((written(out), time.monotonic() - begun))
    assert runs[0][0] == runs[1][0], "two unbroken runs differ"
    shutil.rmtree(out)
    out.mkdir()
    return out, *runs[1]


@pytest.mark.parametrize("command", COMMANDS)
def test_a_killed_run_ends_in_the_same_bytes(command: str, world: World) -> None:
    """SIGKILL at a moment that is uniform over the seconds of an unbroken run."""
    out, whole, seconds = unbroken(world, command)
    words = world.words(command, out)
    moment = np.random.default_rng(zlib.crc32(command.encode())).uniform(0.0, seconds)
    run = Command(*words)
    time.sleep(moment)
    run.kill()
    assert verdict(out, whole, segunc(*words)) == "", f"killed after {moment} of {seconds} s"


def obey_permissions() -> None:
    """Take from root what lets it pass over permissions of files."""
    libc = ctypes.CDLL(None, use_errno=True)
    version, lost = 0x20080522, 0b1110  # CAP_DAC_OVERRIDE, CAP_DAC_READ_SEARCH, CAP_FOWNER
    header, data = (ctypes.c_uint32 * 2)(version, 0), (ctypes.c_uint32 * 6)()
    if libc.capget(header, data) == 0:
        data[0] &= ~lost
        data[1] &= ~lost
        libc.capset(header, data)


@contextlib.contextmanager
def not_permitted(out: Path) -> Iterator[None]:
    out.chmod(0o555)
    yield
    out.mkdir(exist_ok=True)  # a run that had nothing to keep may have removed it
    out.chmod(0o755)


def limit_files() -> None:
    resource.setrlimit(resource.RLIMIT_FSIZE, (2048, resource.getrlimit(resource.RLIMIT_FSIZE)[1]))


Around = Callable[[Path], contextlib.AbstractContextManager[None]]


@pytest.mark.parametrize(
    ("prepare", "around"),
    [
        (limit_files, contextlib.nullcontext),
        (obey_permissions, not_permitted),
    ],
)
def test_what_lacks_is_said_and_made_good(
    prepare: Callable[[], None], around: Around, world: World
) -> None:
    out, whole, _ = unbroken(world, "overlay")
    words = world.words("overlay", out)
    with around(out):
        done = Command(*words, prepare=prepare).wait(600.0)
    assert objection(done, (1, 2)) == ""
    out.mkdir(exist_ok=True)
    assert verdict(out, whole, segunc(*words)) == ""


def test_of_two_runs_in_one_folder_one_ends_well(world: World) -> None:
    """And so does the other, or it says that the folder is being written."""
    out, whole, _ = unbroken(world, "overlay")
    words = world.words("overlay", out)
    ended = [run.wait(600.0) for run in [Command(*words), Command(*words)]]
    assert [objection(done, (0, 1, 2)) for done in ended] == ["", ""]
    assert 0 in {done.code for done in ended}
    assert verdict(out, whole, segunc(*words)) == ""


NAMES = (
    "a b  c|a#b|a?b*c:h<f>|100%25|it's|<img src=x"
    " onerror=alert(1)>|=1+1|..a...|CON|straße-日本|a\nb|a\tb|a\\b|C:x|a[0]b|-rf"
)
HOSTILE = [
    *map(str.encode, NAMES.split("|")),
    b"a|b",
    b"a\xff\xfeb",
    b"n" * 251,
]  # frames, without ``.png``


def test_frames_of_hostile_names_leave_the_others_alone(world: World, tmp_path: Path) -> None:
    picture = cv2.imencode(
        ".png", np.random.default_rng(0).integers(0, 256, (64, 128, 3), np.uint8)
    )[1].tobytes()
    given, maps = tmp_path / "given", tmp_path / "maps"
    given.mkdir()
    for one in (b"first", *HOSTILE, b"last"):
        with open(os.fsencode(given) + b"/" + one + b".png", "wb") as file:
            file.write(picture)
    done = segunc("predict", "--model", world.job.abnn, "--input", given, "--out", maps, SMALL)
    assert objection(done, (0, 1)) == ""
    assert {"first", "last"} <= {path.stem for path in (maps / "entropy").glob("*.png")}
    assert objection(segunc("review --maps", maps, "--out", tmp_path / "page"), (0, 1)) == ""
