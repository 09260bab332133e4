"""Runs that are killed or lack something: the same command again must end in the bytes of an unbroken run, or say that it does not.

A run that lacks something ends with 0, or with 1 or 2 and one line, and without a traceback. What cannot be equal is not compared:
:data:`NOT_COMPARED` and the fields :data:`VOLATILE` of records. Weights of a training may differ where its record says ``"resumed": true``.
"""

from __future__ import annotations

import contextlib
import ctypes
import hashlib
import json
import os
import re
import resource
import shutil
import subprocess
import time
import zlib
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import pytest

from segunc.core.files import PARTIAL_SUFFIX
from segunc.maps.reader import MapsReader
from segunc.maps.shards import LOCK_STEM
from tests.campaign.conftest import CASES, LONG
from tests.campaign.world import COMMANDS, SMALL, World
from tests.verbs.processes import Command, Finished, segunc

NOT_COMPARED = re.compile(r"(^|/)(checkpoints|logs|tensorboard)/|(^|/)overlay\.(webm|mp4)$|\.(pdf|svg)$")
"""Checkpoints and logs of a training; videos and figures, into which their libraries write the moment."""
VOLATILE = re.compile(r"^(date|record_sha256|seconds|resumed|.*_seconds|frames_per_second|continued_by)$")
"""Fields of records: when and how fast, that a run was continued, and the hash that binds these, too."""
RECORDS = ("training.json", "posterior.json", "network.json")
LOADER = 127
"""The C library ends a process that has no memory for a new thread's data, with one line of its own; no program can catch that."""
LIBRARIES = re.compile(r"^\[ *(ERROR|WARN)[:@]")
"""Lines of OpenCV's, from below Python."""


def plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: plain(one) for key, one in value.items() if not VOLATILE.match(key)}
    return [plain(one) for one in value] if isinstance(value, list) else value


def written(out: Path) -> dict[str, str]:
    """A hash of each file that is compared; of records without their volatile fields."""
    found: dict[str, str] = {}
    for path in sorted(out.rglob("*")):
        name = path.relative_to(out).as_posix()
        if path.is_file() and not NOT_COMPARED.search(name):
            data = path.read_bytes()
            if path.suffix == ".json":
                data = json.dumps(plain(json.loads(data)), sort_keys=True).encode()
            found[name] = hashlib.sha256(data).hexdigest()
    return found


def resumed(out: Path) -> bool:
    """Whether a record in the folder says that a training was continued."""
    contents = (json.loads(path.read_text(encoding="utf-8")) for name in RECORDS for path in out.rglob(name))
    return any(
        (content if "resumed" in content else content.get("provenance", {})).get("resumed") for content in contents
    )


def verdict(out: Path, whole: dict[str, str], again: Finished) -> str:
    """What is wrong with the end of a run that was broken and begun again; nothing where it is right."""
    now = written(out)
    refused = again.code == 2 and now == whole  # it had ended before it was killed, and does not begin anew
    if not (again.code == 0 or refused) or "Traceback" in again.stderr:
        return f"the same command again ends with {again.code}: {again.stderr[-400:]}"
    names = [path.name for path in out.rglob("*")]
    if left := [name for name in names if PARTIAL_SUFFIX in name or name.startswith(LOCK_STEM)]:
        return f"temporary files or locks stay: {left}"
    if other := sorted(whole.keys() ^ now.keys()):
        return f"files are missing or left over: {other[:5]}"
    differing = [name for name, digest in whole.items() if now[name] != digest]
    return f"other bytes: {differing[:5]}" if differing and not resumed(out) else ""


def objection(done: Finished, codes: tuple[int, ...]) -> str:
    """What is wrong with the end of a run that lacked something."""
    lines = [line for line in done.error_lines if not LIBRARIES.match(line)]
    said = "thread-local data" in done.stderr if done.code == LOADER else len(lines) == 1
    if done.code in codes and "Traceback" not in done.stderr + done.stdout and (done.code == 0 or said):
        return ""
    return f"ends with {done.code} and {len(lines)} lines: {done.stderr[-400:]}"


def renew(out: Path) -> None:
    """An empty folder."""
    shutil.rmtree(out, ignore_errors=True)
    out.mkdir(parents=True)


def unbroken(world: World, command: str) -> tuple[Path, dict[str, str], float]:
    """The folder, the files and the seconds of a run that nothing happens to; broken ones run in its place, where paths are the same."""
    out, words = world.folder / "out", world.words(command, world.folder / "out")
    runs = []
    for _ in range(2):  # the first may import and compile
        renew(out)
        begun = time.monotonic()
        done = segunc(*words)
        assert done.code == 0, done.stderr
        runs.append((written(out), time.monotonic() - begun))
    assert runs[0][0] == runs[1][0], "two unbroken runs differ"
    renew(out)
    return out, *runs[1]


@pytest.mark.parametrize("command", COMMANDS if LONG else ["export"])
def test_a_killed_run_ends_in_the_same_bytes(command: str, world: World) -> None:
    """SIGKILL at a moment that is uniform over the seconds of an unbroken run; in a quarter of the cases the second run is killed, too."""
    out, whole, seconds = unbroken(world, command)
    words = world.words(command, out)
    for case in CASES if LONG else [1]:
        random = np.random.default_rng([zlib.crc32(command.encode()), case])
        renew(out)
        moments = random.uniform(0.0, seconds, 2 if random.random() < 0.25 else 1)
        for moment in moments:
            run = Command(*words)
            time.sleep(moment)
            run.kill()
        assert verdict(out, whole, segunc(*words)) == "", f"case {case}, killed after {moments} of {seconds} s"


def test_what_a_broken_run_leaves_is_seen(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("a")
    whole, done, refused = written(tmp_path), Finished(0, "", ""), Finished(2, "", "there is a network already")
    assert verdict(tmp_path, whole, done) == verdict(tmp_path, whole, refused) == ""
    assert verdict(tmp_path, whole, Finished(1, "", "no")).startswith("the same command again ends with 1")
    assert verdict(tmp_path, {}, refused).startswith("the same command again ends with 2")
    (tmp_path / f".a{PARTIAL_SUFFIX}").touch()
    assert verdict(tmp_path, whole, done).startswith("temporary files")
    (tmp_path / f".a{PARTIAL_SUFFIX}").rename(tmp_path / "b")
    assert verdict(tmp_path, whole, done) == "files are missing or left over: ['b']"
    (tmp_path / "b").rename(tmp_path / "a.txt")
    assert verdict(tmp_path, whole, done) == "other bytes: ['a.txt']"
    (tmp_path / "posterior.json").write_text('{"provenance": {"resumed": true}}')
    assert verdict(tmp_path, {**written(tmp_path), **whole}, done) == ""


# -- what a run can lack --------------------------------------------------------------------------------------------------------------


def limit(kind: int, most: int) -> None:
    """A limit of the process."""
    resource.setrlimit(kind, (most, resource.getrlimit(kind)[1]))


def limit_memory(more: int) -> None:
    """So many bytes of address space beyond what the process has."""
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    limit(resource.RLIMIT_AS, pages * resource.getpagesize() + more)


def obey_permissions() -> None:
    """Take from root what lets it pass over permissions of files."""
    libc = ctypes.CDLL(None, use_errno=True)
    version, lost = 0x20080522, 0b1110  # CAP_DAC_OVERRIDE, CAP_DAC_READ_SEARCH, CAP_FOWNER
    header, data = (ctypes.c_uint32 * 2)(version, 0), (ctypes.c_uint32 * 6)()
    if libc.capget(header, data) == 0:
        data[0] &= ~lost
        data[1] &= ~lost
        libc.capset(header, data)


def set_environment(names: str, value: str) -> None:
    os.environ.update(dict.fromkeys(names.split(), value))


def set_clock_back() -> None:
    """A clock that is set back by a day soon after the start."""
    real, begun = time.time, time.time()
    time.time = lambda: real() - (86_400.0 if real() - begun > 0.3 else 0.0)


@contextlib.contextmanager
def disk(out: Path, before: str, after: str) -> Iterator[None]:
    """A file system in memory, with other options behind the run."""
    mount = ["mount", "-t", "tmpfs", "-o", "size=2g", "tmpfs", str(out)]
    if subprocess.run(mount, capture_output=True, check=False).returncode:
        pytest.skip("a full disk needs the right to mount one")
    try:
        subprocess.run(["mount", "-o", f"remount,{before}", str(out)], check=True)
        yield
        subprocess.run(["mount", "-o", f"remount,{after}", str(out)], check=True)
    finally:
        subprocess.run(["umount", "-l", str(out)], capture_output=True, check=False)


@contextlib.contextmanager
def not_permitted(out: Path) -> Iterator[None]:
    out.chmod(0o555)
    yield
    out.mkdir(exist_ok=True)  # a run that had nothing to keep may have removed it
    out.chmod(0o755)


NOWHERE = "/proc/1/fdinfo"
Around = Callable[[Path], contextlib.AbstractContextManager[None]] | None
FAULTS: dict[str, tuple[Callable[[], None] | None, Around, tuple[int, ...]]] = {
    "full disk": (None, partial(disk, before="size=40k", after="size=2g"), (1, 2)),
    "read-only disk": (None, partial(disk, before="ro", after="rw"), (1, 2)),
    "files of 2 kB at most": (partial(limit, resource.RLIMIT_FSIZE, 2048), None, (1, 2)),
    "files of 200 kB at most": (partial(limit, resource.RLIMIT_FSIZE, 200_000), None, (0, 1, 2)),
    "no permission": (obey_permissions, not_permitted, (1, 2)),
    "no compiler": (partial(set_environment, "PATH XDG_CACHE_HOME TORCHINDUCTOR_CACHE_DIR", "/nowhere"), None, (0,)),
    "no home": (partial(set_environment, "HOME XDG_CACHE_HOME TMPDIR", NOWHERE), None, (0,)),
    "30 open files": (partial(limit, resource.RLIMIT_NOFILE, 30), None, (0, 1, 2)),
    "10 open files": (partial(limit, resource.RLIMIT_NOFILE, 10), None, (0, 1, 2)),
    "200 MiB of memory": (partial(limit_memory, 200 << 20), None, (0, 1, 2, LOADER)),
    "60 MiB of memory": (partial(limit_memory, 60 << 20), None, (0, 1, 2, LOADER)),
    "the clock set back": (set_clock_back, None, (0,)),
}
"""What is done in the process of a run, around it, and the codes it may end with."""
USUAL = ("predict, folder", "train", "finetune, swag", "evaluate, maps", "review", "export")


@pytest.mark.parametrize("command", USUAL if LONG else ["export"])
@pytest.mark.parametrize("fault", FAULTS if LONG else ["files of 2 kB at most"])
def test_what_lacks_is_said_and_made_good(fault: str, command: str, world: World) -> None:
    prepare, around, codes = FAULTS[fault]
    out, whole, _ = unbroken(world, command)
    words = world.words(command, out)
    with around(out) if around else contextlib.nullcontext():
        done = Command(*words, prepare=prepare).wait(600.0)
    assert objection(done, codes) == ""
    out.mkdir(exist_ok=True)
    found = verdict(out, whole, segunc(*words))
    other_tail = fault in ("no compiler", "10 open files") and found.startswith("other bytes")
    assert found == "" or (other_tail and near(out, world))


@pytest.mark.parametrize("command", USUAL if LONG else ["export"])
def test_of_two_runs_in_one_folder_one_ends_well(command: str, world: World) -> None:
    """And so does the other, or it says that the folder is being written."""
    out, whole, _ = unbroken(world, command)
    words = world.words(command, out)
    ended = [run.wait(600.0) for run in [Command(*words), Command(*words)]]
    assert [objection(done, (0, 1, 2)) for done in ended] == ["", ""]
    assert 0 in {done.code for done in ended}
    assert verdict(out, whole, segunc(*words)) == ""


def near(out: Path, world: World) -> bool:
    """Whether maps are those of the tail in Python, which rounds otherwise: within two codes of 16 bits, or one in 1024."""
    if not (out / "frames.jsonl").exists():
        return False
    found, right = MapsReader(out), MapsReader(world.job.maps)
    pairs = ((found.read(name, score), right.read(name, score)) for name in right.frames for score in right.scores)
    return all(np.allclose(one, other, rtol=2**-10, atol=2 / 65535) for one, other in pairs)


def test_an_end_that_nobody_may_see_is_reported() -> None:
    assert objection(Finished(0, "", ""), (1, 2)).startswith("ends with 0")
    assert objection(Finished(1, "", "Traceback (most recent call last)\n"), (1,)) != ""
    assert objection(Finished(1, "", "one line\n"), (1,)) == ""
    assert objection(Finished(1, "", "one line\nanother\n"), (1,)) != ""


NAMES = "a b  c|a#b|a?b*c:h<f>|100%25|it's|<img src=x onerror=alert(1)>|=1+1|..a...|CON|straße-日本|a\nb|a\tb|a\\b|C:x|a[0]b|-rf"
HOSTILE = [*map(str.encode, NAMES.split("|")), b"a|b", b"a\xff\xfeb", b"n" * 251]
"""Names of frames, without ``.png``."""


@pytest.mark.parametrize("name", HOSTILE if LONG else [HOSTILE[5]])
def test_frames_of_hostile_names_leave_the_others_alone(name: bytes, world: World, tmp_path: Path) -> None:
    picture = cv2.imencode(".png", np.random.default_rng(0).integers(0, 256, (64, 128, 3), np.uint8))[1].tobytes()
    given, maps = tmp_path / "given", tmp_path / "maps"
    given.mkdir()
    for one in (b"first", name, b"last"):
        with open(os.fsencode(given) + b"/" + one + b".png", "wb") as file:
            file.write(picture)
    done = segunc("predict", "--model", world.job.abnn, "--input", given, "--out", maps, SMALL)
    assert objection(done, (0, 1)) == ""
    assert {"first", "last"} <= {path.stem for path in (maps / "entropy").glob("*.png")}
    assert objection(segunc("review --maps", maps, "--out", tmp_path / "page"), (0, 1)) == ""
