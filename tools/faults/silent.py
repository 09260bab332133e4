"""One bit flipped in one finished map of many, or in one line of their log: ``doctor --maps`` finds it, ``--repair`` makes it good."""

from __future__ import annotations

import json
from pathlib import Path

import cv2
import numpy as np

from segunc.maps.shards import FRAMES_NAME
from tests.verbs.processes import FAST, Command
from tools.faults.report import Row
from tools.faults.targets import Unbroken, renew, verdict, written
from tools.faults.world import World, remove

SIZE = (32, 64)
LONGEST = 7200.0
OF_LOG = 0.2
"""Share of the flips that hit the log instead of a map."""
REPAIRS = 3
"""Flips of each kind that are repaired by the tool; behind the others the byte is put back, which takes no time."""


def flip(world: World, frames: int, flips: int, seed: int = 0) -> Row:
    """Predict so many small frames; flip one bit, look, repair, compare, so many times."""
    row = Row("silent", f"a flipped bit among {frames} frames", seed)
    with row.timed():
        random = np.random.default_rng([seed, frames])
        given, maps = world.folder / "silent-in", world.folder / "silent"
        renew(given)
        remove(maps)
        for number in range(frames):
            cv2.imwrite(str(given / f"frame_{number:06d}.png"), random.integers(0, 256, (*SIZE, 3), np.uint8))
        words = ("predict --draws 2 --threads 1", FAST, "--model", world.job.abnn, "--input", given, "--out", maps)
        for done in (Command(*words).wait(LONGEST), Command("doctor --maps", maps).wait(LONGEST)):
            if done.code:
                raise RuntimeError(f"a run that nothing happened to failed: {done.stderr[-400:]}")
        whole = Unbroken(written(maps), 0.0, 0)
        lines = (maps / FRAMES_NAME).read_text(encoding="utf-8").splitlines()
        repaired = {"a map": 0, "the log": 0}
        for _ in range(flips):
            files = list(json.loads(lines[int(random.integers(len(lines)))])["files"].values())
            kind = "the log" if random.random() < OF_LOG else "a map"
            path = maps / (FRAMES_NAME if kind == "the log" else str(files[int(random.integers(len(files)))]))
            place, bit = int(random.integers(path.stat().st_size)), int(random.integers(8))
            flip_bit(path, place, bit)
            again = f"bit {bit} of byte {place} of {path.relative_to(maps)}"
            found = Command("doctor --maps", maps).wait(LONGEST)
            said = found.stdout + found.stderr
            if found.code != 1 or len(found.error_lines) != 1 or (kind == "a map" and path.name not in said):
                row.fail(f"doctor does not find a flip in {kind}, and ends with {found.code}", again, said[-400:])
                flip_bit(path, place, bit)
                continue
            if repaired[kind] < REPAIRS:
                repaired[kind] += 1
                what, detail = verdict(maps, whole, [Command("doctor --repair --maps", maps).wait(LONGEST)])
                if what != "equal":
                    row.fail(f"--repair of {kind}: {what}", again, detail)
                    break
                row.count(f"{kind}: found, and made again to the byte")
            else:
                flip_bit(path, place, bit)
                row.count(f"{kind}: found")
        for path in (given, maps):
            remove(path)
    return row


def flip_bit(path: Path, place: int, bit: int) -> None:
    with path.open("r+b") as file:
        file.seek(place)
        value = file.read(1)[0] ^ 1 << bit
        file.seek(place)
        file.write(bytes([value]))
