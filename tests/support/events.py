"""Maps of a video in which regions come and go."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from segunc.maps.manifest import build_manifest
from segunc.maps.shards import Shard
from segunc.maps.store import MapsWriter
from tests.maps.fakes import CLASSES, PALETTE

SIZE = (40, 60)
FPS = 20.0
FRAMES = 20
SEEN = {3: 0.6, 4: 0.9, 5: 0.8, 7: 0.7, 8: 0.6}
"""Frames that show the mover, and its values."""


def event_scene(index: int) -> np.ndarray:
    """Return the entropy of a frame, float32 ``[40, 60]``.

    It shows a still object from frame 2 on, a mover, at frame 11 another region where the mover
    was, and a speck in each frame.
    """
    entropy = np.full(SIZE, 0.1, np.float32)
    entropy[30:36, 40:50] = 0.7 if index >= 2 else 0.1
    if index in SEEN:
        entropy[5:13, 5 + index : 13 + index] = SEEN[index]
        entropy[5, 5 + index] = 0.1  # so that it is no rectangle
    if index == 11:
        entropy[5:13, 14:22] = 0.6
    entropy[20, index] = 0.95
    return entropy


def write_events_scene(
    out: Path,
    shards: int = 1,
    timed: bool = True,
    name: str = "{:06d}",
    scores: Any = ("entropy",),
    run: Mapping[str, Any] | None = None,
) -> Path:
    """Write the maps of these frames into a folder, and return it.

    Args:
        out: the folder.
        shards: number of shards that write it, the last first.
        timed: whether the frames have times.
        name: pattern of the names of frames.
        scores: names of the scores, which all have the same maps.
        run: what the run records beside its number of draws.
    """
    about: dict[str, Any] = {}
    if timed:
        about["source"] = {"kind": "video", "fps": FPS, "frames": FRAMES}
    manifest = build_manifest(
        {"draws": 8, **(run or {})}, scores, device="cpu", classes=CLASSES, palette=PALETTE, **about
    )
    for number in range(shards, 0, -1):
        shard = Shard(number, shards)
        with MapsWriter(out, manifest, shard=shard) as writer:
            for index in range(FRAMES):
                if not shard.owns(index):
                    continue
                maps = {"prediction": np.full(SIZE, index % 3, np.uint8)}
                maps.update(dict.fromkeys(scores, event_scene(index)))
                record = writer.store(name.format(index), maps, place=index)
                if timed:
                    record = record | {"time": index / FPS}
                writer.commit(record)
    return out
