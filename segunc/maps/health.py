"""Check a maps folder: read everything in it and compare it with its sums."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from pathlib import Path

from segunc.core.errors import InputError
from segunc.core.files import inside
from segunc.maps.folder import damaged_file
from segunc.maps.manifest import Manifest, read_manifest
from segunc.maps.shards import FRAMES_NAME, Shard, all_shards, iterate_lines
from segunc.maps.statistics import read_region

MAX_EXAMPLES = 20


@dataclass
class Health:
    """The state of a maps folder.

    Attributes:
        manifest: of the folder.
        frames: finished frames whose lines are whole.
        damaged: name -> the first file of each frame that is missing or not what was written.
        lines: what is wrong with each damaged line of a log.
        lost: finished frames that no line, not even a damaged one, tells of.
        shards: where frames are damaged or lost.
    """

    manifest: Manifest
    frames: int = 0
    damaged: dict[str, str] = field(default_factory=dict)
    lines: list[str] = field(default_factory=list)
    lost: int = 0
    shards: list[Shard] = field(default_factory=list)

    @property
    def amount(self) -> int:
        """How many frames are damaged or lost."""
        return len(self.damaged) + len(self.lines) + self.lost

    @property
    def total(self) -> int:
        """How many were finished."""
        return self.frames + len(self.lines) + self.lost

    @property
    def examples(self) -> str:
        """What is damaged, in words; of many the first."""
        problems = [*(f"{name} ({file})" for name, file in self.damaged.items()), *self.lines]
        problems += [f"no line tells of {self.lost}"] if self.lost else []
        more = len(problems) - MAX_EXAMPLES
        return ", ".join(problems[:MAX_EXAMPLES]) + (f" and {more} more" if more > 0 else "")

    @property
    def whole(self) -> bool:
        """Whether nothing is damaged or lost."""
        return self.amount == 0


def examine(folder: Path) -> Health:
    """Read every line and every file of a maps folder of this tool.

    Raises:
        InputError: there is no manifest, or it or the mask is damaged: nothing can be said of the maps then.
    """
    manifest = read_manifest(folder)
    if manifest is None:
        raise InputError(f"{folder} holds no manifest, so segunc predict did not write it")
    read_region(folder, manifest)
    health, names, finished = Health(manifest), set[str](), manifest.get("status") == "finished"
    for shard in all_shards(manifest):
        before, length, log = health.amount, 0, inside(folder, shard.file(FRAMES_NAME))
        for line, record in iterate_lines(
            log, lambda damage: health.lines.append(damage.message.removeprefix(f"{folder}{os.sep}"))
        ):
            length += len(line)
            if (name := record["name"]) in names:  # it would hide one that is lost
                health.lines.append(f"a second line of {name}")
                continue
            names.add(name)
            health.frames += 1
            if (file := damaged_file(folder, record, verify=True)) is not None:
                health.damaged[name] = file
        if finished and not health.lines and log.exists() and log.stat().st_size > length:
            health.lines.append(f"{log.name} ends within a line")
        if health.amount > before:
            health.shards.append(shard)
    if finished and (lost := manifest["finished"] - health.total) > 0:
        health.lost, health.shards = lost, all_shards(manifest)
    return health
