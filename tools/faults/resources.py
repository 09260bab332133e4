"""Resources that fail while a command runs: space, permissions, memory, handles, time, names; then the same command with them back.

The command that lacks something must end with 0, or with 1 or 2 and one line, and without a traceback; the same command again must end
in the bytes of an unbroken run (:mod:`tools.faults.targets`).
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import re
import resource
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import cv2
import numpy as np

from segunc.maps.reader import MapsReader
from tests.verbs.processes import Command, Finished
from tools.faults.report import Row
from tools.faults.targets import TARGETS, Target, Unbroken, predict, renew, run, start, unbroken, verdict
from tools.faults.world import World, left_over, remove

USUAL = ("predict, folder", "train", "finetune, swag", "evaluate, maps", "review", "export")
NAMED = re.compile(r"\w(Error|Exception): ")
"""An error of Python, by its own name."""
"""Ends the line of an error that nobody foresaw."""
LOADER = 127
"""The C library ends a process that has no memory for a new thread's data, with one line of its own; no program can catch that."""
ENDS = {"equal": "equal to the byte", "said": "`resumed: true`", "near": "equal within two codes of 16 bits"}
IGNORED = re.compile(r"^\[ *(ERROR|WARN)[:@]")
"""Lines of OpenCV's, from below Python."""
Prepare = Callable[[], object] | None


# -- what is done in the process of the command -------------------------------------------------------------------------------------


def limit(kind: int, most: int) -> None:
    """A limit of the process."""
    resource.setrlimit(kind, (most, resource.getrlimit(kind)[1]))


def limit_memory(more: int) -> None:
    """So many bytes of address space beyond what the process has."""
    with open("/proc/self/statm") as file:
        limit(resource.RLIMIT_AS, int(file.read().split()[0]) * resource.getpagesize() + more)


def obey_permissions() -> None:
    """Take from root what lets it pass over permissions of files."""
    libc = ctypes.CDLL(None, use_errno=True)
    version, lost = 0x20080522, 0b1110  # CAP_DAC_OVERRIDE, CAP_DAC_READ_SEARCH, CAP_FOWNER
    header, data = (ctypes.c_uint32 * 2)(version, 0), (ctypes.c_uint32 * 6)()
    if libc.capget(header, data) == 0:
        data[0] &= ~lost
        data[1] &= ~lost
        libc.capset(header, data)


def set_environment(**values: str) -> None:
    """Other values of variables."""
    os.environ.update(values)


def set_clock_back(seconds: float) -> None:
    """A clock that is set back soon after the start."""
    real, begun = time.time, time.time()
    time.time = lambda: real() - (seconds if real() - begun > 0.3 else 0.0)


def slow_renames(seconds: float) -> None:
    """Renaming takes its time, before and after, as on a network file system."""

    def slowly(real: Callable[..., Any]) -> Callable[..., Any]:
        def rename(*paths: Any, **more: Any) -> None:
            time.sleep(seconds)
            real(*paths, **more)
            time.sleep(seconds)

        return rename

    os.replace, os.rename = slowly(os.replace), slowly(os.rename)


# -- what is done outside ----------------------------------------------------------------------------------------------------------------


def mounted(out: Path, options: str) -> bool:
    """Mount a file system in memory on a folder; False where that is not allowed."""
    command = ["mount", "-t", "tmpfs", "-o", options, "tmpfs", str(out)]
    return subprocess.run(command, capture_output=True, check=False).returncode == 0


def remount(out: Path, options: str) -> None:
    subprocess.run(["mount", "-o", f"remount,{options}", str(out)], check=True)


def unmount(out: Path) -> None:
    subprocess.run(["umount", "-l", str(out)], capture_output=True, check=False)


@dataclass(frozen=True)
class Fault:
    """Something that lacks: ``around`` the first run, ``prepare`` in its process, ``during`` it; and the commands that meet it."""

    around: Callable[[Path, Unbroken], contextlib.AbstractContextManager[bool]] | None = (
        None  # yields whether it can be had
    )
    prepare: Prepare = None
    during: Callable[[list[Command], Path, Unbroken], None] | None = None
    targets: Sequence[str] = USUAL
    codes: Sequence[int] = (0, 1, 2)  # of the run that lacks something
    near: bool = False  # its maps may be those of the other tail, which rounds otherwise


@contextlib.contextmanager
def small_disk(share: float, out: Path, whole: Unbroken) -> Iterator[bool]:
    """A disk for a share of what is written; then a large one with the same files."""
    if not mounted(out, f"size={max(4096, int(whole.size * share))}"):
        yield False
        return
    yield True
    remount(out, "size=2g")


@contextlib.contextmanager
def read_only(out: Path, whole: Unbroken) -> Iterator[bool]:
    """A disk that nothing can be written to, and then can."""
    if not mounted(out, "size=2g"):
        yield False
        return
    remount(out, "ro")
    yield True
    remount(out, "rw")


@contextlib.contextmanager
def not_permitted(out: Path, whole: Unbroken) -> Iterator[bool]:
    out.chmod(0o555)
    yield True
    out.mkdir(exist_ok=True)  # a run that had nothing to keep may have removed it
    out.chmod(0o755)


def vanish(commands: list[Command], out: Path, whole: Unbroken) -> None:
    """Remove the output in the middle of the run."""
    time.sleep(whole.seconds * 0.5)
    with contextlib.suppress(OSError):
        shutil.rmtree(out)


FAULTS: dict[str, Fault] = {
    "full disk, at the beginning": Fault(partial(small_disk, 0.02), codes=(1, 2)),
    "full disk, in the middle": Fault(partial(small_disk, 0.5), codes=(1, 2)),
    "full disk, near the end": Fault(partial(small_disk, 0.9), codes=(0, 1, 2)),
    "files of 2 kB at most": Fault(prepare=partial(limit, resource.RLIMIT_FSIZE, 2048), codes=(1, 2)),
    "files of 200 kB at most": Fault(prepare=partial(limit, resource.RLIMIT_FSIZE, 200_000)),
    "read-only disk": Fault(read_only, codes=(1, 2)),
    "no permission": Fault(not_permitted, prepare=obey_permissions, codes=(1, 2)),
    "the output vanishes": Fault(during=vanish),
    "no compiler, an empty cache": Fault(
        prepare=partial(
            set_environment,
            PATH="/nowhere",
            XDG_CACHE_HOME="/nowhere/cache",
            TORCHINDUCTOR_CACHE_DIR="/nowhere/inductor",
        ),
        targets=("predict, folder", "evaluate, model"),
        codes=(0,),
        near=True,
    ),
    "no home": Fault(
        prepare=partial(
            set_environment, HOME="/proc/1/fdinfo", XDG_CACHE_HOME="/proc/1/fdinfo", TMPDIR="/proc/1/fdinfo"
        ),
        targets=("predict, folder", "evaluate, model", "review", "overlay"),
        codes=(0,),
    ),
    "30 open files": Fault(prepare=partial(limit, resource.RLIMIT_NOFILE, 30)),
    "10 open files": Fault(prepare=partial(limit, resource.RLIMIT_NOFILE, 10), near=True),  # a compiler needs more
    "200 MiB of memory": Fault(prepare=partial(limit_memory, 200 << 20), codes=(0, 1, 2, LOADER)),
    "60 MiB of memory": Fault(prepare=partial(limit_memory, 60 << 20), codes=(0, 1, 2, LOADER)),
    "the clock set back": Fault(prepare=partial(set_clock_back, 86_400.0), codes=(0,)),
    "slow renames": Fault(
        prepare=partial(slow_renames, 0.02),
        targets=(*USUAL[:1], "predict, two shards at once", "evaluate, maps"),
        codes=(0,),
    ),
}


def take_away(
    world: World, seed: int = 0, names: Sequence[str] | None = None, targets: Sequence[str] | None = None
) -> Iterator[Row]:
    """Every fault (or those of these names), at each of its commands (or at these); a row for each."""
    known: dict[str, Unbroken] = {}
    out = world.folder / "out"
    for name, fault in FAULTS.items():
        if names is not None and name not in names:
            continue
        row = Row("resources", name, seed)
        with row.timed():
            for target in targets or fault.targets:
                unmount(out)
                if target not in known:
                    known[target] = unbroken(TARGETS[target], world, out)
                with contextlib.ExitStack() as stack:
                    stack.callback(unmount, out)
                    _case(row, fault, target, TARGETS[target], world, out, known[target])
        yield row
    for name, part in {"two runs in one folder": _two_runs, "hostile names": _names}.items():
        if names is None or name in names:
            row = Row("resources", name, seed)
            with row.timed():
                part(row, world, out)
            yield row


def _case(row: Row, fault: Fault, name: str, target: Target, world: World, out: Path, whole: Unbroken) -> None:
    renew(out)
    again = f"{row.target}: {name}"
    with fault.around(out, whole) if fault.around else contextlib.nullcontext(True) as possible:
        if not possible:
            row.count("not possible here")
            return
        commands = start(target, world, out, prepare=fault.prepare)
        if fault.during:
            fault.during(commands, out, whole)
        ended = [command.wait(600.0) for command in commands]
    bad = next((said for done in ended if (said := _objection(done, fault.codes))), None)
    if bad is not None:
        row.fail(f"{name}: {bad[0]}", again, bad[1])
        return
    out.mkdir(exist_ok=True)
    what, detail = verdict(out, whole, run(target, world, out))
    if what == "other bytes" and fault.near and near(out, world):
        what = "near"
    if what not in ENDS:
        row.fail(f"{name}: {what}", again, detail)
        return
    codes = max(done.code for done in ended)
    named = any(NAMED.search(done.stderr) for done in ended)
    if codes == LOADER:
        ending = "ended by the C library"
    else:
        ending = "did without" if codes == 0 else "said by an error's own name" if named else "said in one line"
    row.count(f"{ending}, then {ENDS[what]}")


def near(out: Path, world: World) -> bool:
    """Whether maps are those of the world within two codes of 16 bits, and floats of 16 bits within one in 1024."""
    found, right = MapsReader(out), MapsReader(world.job.maps)
    return all(
        np.allclose(found.read(name, score), right.read(name, score), rtol=2**-10, atol=2 / 65535)
        for name in right.frames
        for score in right.scores
    )


def _objection(done: Finished, codes: Sequence[int]) -> tuple[str, str] | None:
    """What is wrong with an end, and a line about it; None where nothing is."""
    if done.code not in codes or (done.code == LOADER and "thread-local data" not in done.stderr):
        return f"ends with {done.code}", done.stderr[-400:]
    if "Traceback" in done.stderr or "Traceback" in done.stdout:
        return "a traceback", (done.stderr + done.stdout)[-400:]
    lines = [line for line in done.error_lines if not IGNORED.match(line)]
    if done.code and len(lines) != 1:
        return f"{len(lines)} lines on standard error", " | ".join(lines)[-400:]
    return None


def _two_runs(row: Row, world: World, out: Path) -> None:
    """One of two runs of one command ends well, and the other, too, or it says that the folder is being written."""
    for name in USUAL:
        target = TARGETS[name]
        whole = unbroken(target, world, out)
        renew(out)
        ended = [command.wait(600.0) for command in [*start(target, world, out), *start(target, world, out)]]
        bad = [said for done in ended if (said := _objection(done, (0, 1, 2)))]
        if all(done.code for done in ended):
            bad.append(("none of the two ended well", ended[0].stderr[-400:]))
        what, detail = verdict(out, whole, run(target, world, out))
        if bad or what not in ("equal", "said"):
            row.fail(
                f"{name}: {bad[0][0] if bad else what}", f"two runs in one folder: {name}", bad[0][1] if bad else detail
            )
        else:
            row.count(f"{sum(done.code == 0 for done in ended)} of two ended well, then equal")


NAMES: dict[str, bytes] = {
    "spaces": b"a b  c",
    "a hash": b"a#b",
    "a question mark and more": b'a?b*c|d"e<f>g:h',
    "a percent sign": b"100%25",
    "a quote": b"it's",
    "a tag": b"<img src=x onerror=alert(1)>",
    "a formula": b"=1+1",
    "dots": b"..a...",
    "a reserved name": b"CON",
    "another language": "straße-日本".encode(),
    "a line break": b"a\nb",
    "a tab": b"a\tb",
    "a backslash": b"a\\b",
    "a drive": b"C:x",
    "no UTF-8": b"a\xff\xfeb",
    "255 bytes": b"n" * 251,
    "240 bytes": b"n" * 236,
    "a bracket": b"a[0]b",
    "a minus": b"-rf",
    "a symlink loop": b"",
    "a dangling symlink": b"",
    "a folder named as an image": b"d",
}
"""Names of frames, as bytes, without ``.png``; the last are no files."""


def _names(row: Row, world: World, out: Path) -> None:
    """Frames of hostile names, one among two good ones: the good ones have maps, the other has or is said; then the page."""
    picture = cv2.imencode(".png", np.random.default_rng(0).integers(0, 256, (64, 128, 3), np.uint8))[1].tobytes()
    given = world.folder / "names"
    for what, name in NAMES.items():
        renew(given)
        renew(out)
        for good in ("first", "last"):
            (given / f"{good}.png").write_bytes(picture)
        path = os.fsencode(given) + b"/" + name + b".png"
        if what == "a symlink loop":
            (given / "loop").symlink_to(given)
        elif what == "a dangling symlink":
            (given / "gone.png").symlink_to(given / "nowhere.png")
        elif what == "a folder named as an image":
            os.mkdir(path)
        else:
            with open(path, "wb") as file:
                file.write(picture)
        again = f"hostile names: {what}"
        target = Target(lambda w, folder: [predict(w, folder, given=given)], 1)
        (done,) = run(target, world, out)
        if bad := _objection(done, (0, 1)):
            row.fail(f"predict of a frame named with {what}: {bad[0]}", again, bad[1])
            continue
        made = {path.stem for path in (out / "entropy").glob("*.png")}
        if missing := {"first", "last"} - made:
            row.fail(
                f"good frames beside one with {what} have no maps", again, f"{missing} of {made}; {done.stderr[-300:]}"
            )
            continue
        page = Target(lambda w, folder: [["review --maps", out, "--out", folder]], 1)
        (shown,) = run(page, world, world.folder / "page")
        bad = _objection(shown, (0, 1))
        if bad or left_over(out):
            row.fail(
                f"page of a frame named with {what}: {bad[0] if bad else 'temporary files'}",
                again,
                bad[1] if bad else "",
            )
        else:
            row.count("its maps and its page" if done.code == 0 else "left out, and said")
        remove(world.folder / "page")
