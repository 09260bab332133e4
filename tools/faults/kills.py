"""SIGKILL at random moments; then the same command again, which must end in the bytes of an unbroken run or say that it does not."""

from __future__ import annotations

import contextlib
import os
import signal
import time
import zlib
from collections.abc import Iterator, Sequence
from importlib.util import find_spec
from pathlib import Path

import numpy as np

from tests.verbs.processes import Command
from tools.faults.report import Row
from tools.faults.targets import TARGETS, Target, renew, run, start, unbroken, verdict, whole_run, written
from tools.faults.world import World, left_over, remove

OUTCOMES = {"equal": "equal to the byte", "said": "other weights, and `resumed: true` says so"}
AGAIN = 0.25
"""Share of the cases in which the second run is killed, too."""


def kill(world: World, kills: int, seed: int = 0, names: Sequence[str] | None = None) -> Iterator[Row]:
    """About so many kills over the targets, each by its share; moments are uniform over the seconds of an unbroken run."""
    chosen = {
        name: TARGETS[name] for name in names or TARGETS if not TARGETS[name].needs or find_spec(TARGETS[name].needs)
    }
    shares = sum(target.share for target in chosen.values())
    for name, target in chosen.items():
        yield kill_target(name, target, world, max(1, round(kills * target.share / shares)), seed)


def kill_target(name: str, target: Target, world: World, cases: int, seed: int) -> Row:
    """So many cases of one target."""
    row = Row("kills", name, seed)
    out = world.folder / "out"
    random = np.random.default_rng([zlib.crc32(name.encode()), seed])
    with row.timed():
        whole = unbroken(target, world, out)
        for _ in range(cases):
            renew(out)
            moments = random.uniform(0.0, whole.seconds, 2 if random.random() < AGAIN else 1).round(3)
            one = int(random.integers(4))  # of two commands, now and then only one
            for moment in moments:
                (kill_worker if target.needs == "ray" else kill_all)(start(target, world, out), float(moment), one, out)
            what, detail = verdict(out, whole, run(target, world, out))
            if what in OUTCOMES:
                row.count(OUTCOMES[what])
            else:
                row.fail(what, f"killed after {', '.join(map(str, moments))} s of {whole.seconds:.2f} s", detail)
    remove(out)
    return row


def kill_all(commands: list[Command], moment: float, one: int, out: Path) -> None:
    """Kill commands after a moment: all, or of several the one of that number, and the others end by themselves."""
    time.sleep(moment)
    for place, command in enumerate(commands):
        if len(commands) == 1 or one >= len(commands) or place == one:
            command.kill()
    for place, command in enumerate(commands):
        if len(commands) > 1 and one < len(commands) and place != one:
            command.wait(600.0)


def kill_worker(commands: list[Command], moment: float, one: int, out: Path) -> None:
    """Kill, after a moment, the Ray worker that holds the lock of a shard; the run itself goes on, and makes up for it."""
    (command,) = commands
    time.sleep(moment)
    for lock in sorted(out.glob(".lock.*-of-*"))[:1]:
        with contextlib.suppress(OSError, ValueError, IndexError):
            process = int(lock.read_text().split()[0])
            if process != command.process.pid:
                os.kill(process, signal.SIGKILL)
    command.wait(600.0)


def kill_demo(world: World, kills: int, seed: int = 0) -> Row:
    """Random kills during one ``segunc demo`` that is called again and again, until it ends well."""
    row = Row("demo", "demo", seed)
    with row.timed():
        out, words = world.folder / "demo", ["demo --device cpu --out"]
        target = Target(lambda w, folder: [[*words, folder]], 1)
        # Once: two unbroken demos differ, too, in their drawn video, whose encoder gives other bytes, and in what names it.
        whole = whole_run(target, world, out, 3600.0)
        renew(out)
        random = np.random.default_rng([zlib.crc32(b"demo"), seed])
        moments = random.uniform(
            0.0, 2.0 * whole.seconds / (kills + 1), kills
        )  # each run goes on from where the last one was killed
        for moment in moments:
            (command,) = start(target, world, out)
            kill_all([command], float(moment), 0, out)
        (done,) = run(target, world, out, 3600.0)
        again = f"kills after {', '.join(f'{moment:.1f}' for moment in moments)} s, each from its start"
        if done.code != 0:
            row.fail(f"the same command again ends with {done.code}", again, done.stderr[-400:])
        elif names := left_over(out):
            row.fail("temporary files or locks stay", again, ", ".join(names[:5]))
        elif whole.files.keys() != (now := written(out)).keys():
            row.fail("other files", again, ", ".join(sorted(whole.files.keys() ^ now.keys())[:5]))
        else:
            equal = sum(now[name] == digest for name, digest in whole.files.items())
            row.count(f"ended well, {equal} of {len(now)} files equal to the byte", len(moments))
    return row
