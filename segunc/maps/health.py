"""Is a maps folder what was written? Everything in it is read and compared with its sums."""

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

MOST_NAMED = 20
"""Frames that are named of those that are damaged."""


@dataclass
class Health:
    """What a look at a maps folder found.

    Attributes:
        manifest: of the folder.
        frames: finished frames whose lines are whole.
        damaged: name -> the first file of each frame that is missing or not what was written.
        lines: what is wrong with damaged lines of logs, a text for each, without the folder's path: twenty of them are one message.
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
        found = [*(f"{name} ({file})" for name, file in self.damaged.items()), *self.lines]
        found += [f"no line tells of {self.lost}"] if self.lost else []
        return ", ".join(found[:MOST_NAMED]) + (f" and {len(found) - MOST_NAMED} more" * (len(found) > MOST_NAMED))

    @property
    def whole(self) -> bool:
        """Whether nothing is damaged or lost."""
        return self.amount == 0


def examine(folder: Path) -> Health:
    """Read every line and every file of a maps folder of this tool.

    InputError where there is no manifest, or it or the mask is damaged: nothing can be said of the maps then.
    """
    manifest = read_manifest(folder)
    if manifest is None:
        raise InputError(f"{folder} holds no manifest", "a folder that segunc predict wrote", "check the path")
    read_region(folder, manifest)
    found, shards, names = Health(manifest), all_shards(manifest), set[str]()

    def note(damage: InputError) -> None:
        found.lines.append(damage.given.removeprefix(f"{folder}{os.sep}"))

    for shard in shards:
        before, length, log = len(found.damaged) + len(found.lines), 0, inside(folder, shard.file(FRAMES_NAME))
        for line, record in iterate_lines(log, note):
            length += len(line)
            if (name := record["name"]) in names:  # it would hide one that is lost
                found.lines.append(f"a second line of {name}")
                continue
            names.add(name)
            found.frames += 1
            if (file := damaged_file(folder, record, verify=True)) is not None:
                found.damaged[name] = file
        if manifest.get("status") == "finished" and not found.lines and log.exists() and log.stat().st_size > length:
            found.lines.append(f"{log.name} ends within a line")
        if len(found.damaged) + len(found.lines) > before:
            found.shards.append(shard)
    if manifest.get("status") == "finished":
        found.lost = max(0, manifest["finished"] - found.frames - len(found.lines))
        found.shards = shards if found.lost else found.shards
    return found
