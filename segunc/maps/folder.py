"""The state of a maps folder between runs: what is finished, what an earlier run left behind."""

from __future__ import annotations

import contextlib
import shutil
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from segunc.core.errors import InputError
from segunc.core.files import PARTIAL_SUFFIX
from segunc.core.locks import START_SECONDS
from segunc.frames.sources import FrameSource
from segunc.maps.frame_log import Record
from segunc.maps.hdf5_files import STORE_FOLDER
from segunc.maps.manifest import MANIFEST_NAME, Manifest
from segunc.maps.region import MASK_NAME
from segunc.maps.shards import LOCK_STEM, SHARD_FRAMES, all_shards
from segunc.maps.statistics import TABLE_NAME

PREDICTION = "prediction"
OVERLAY = "overlay"
START_LOCK = f"{LOCK_STEM}-start"
"""Held while a run reads and writes the manifest, so that shards that start at once make one folder."""
SMOOTHING_FOLDER = "smoothing"
"""Where a run that smooths along the video keeps the states that it would go on from."""


def place_finder(
    out: Path, source: FrameSource | None, holds: Callable[[Record], bool]
) -> Callable[[Record], int | None]:
    """Says of a record that an earlier run left where its frame stands now, None where it has to be computed again.

    Computed again are frames whose maps are gone or empty and frames whose image file was replaced. Without a source
    the record's own place counts.

    Raises (the function returned):
        InputError: the input does not hold the frame any more.
    """

    def place_of(record: Record) -> int | None:
        if not holds(record):
            return None
        if source is None:
            return int(record["index"])
        place, name = record.get("index"), record["name"]
        if not isinstance(place, int) or source.name_of(place) != name:
            place = source.position(name)
        if place is None:
            raise InputError(
                f"{out} holds maps of frame {name}, which {source.path} does not hold",
                "an input that still has every finished frame",
                "restore it, give another --out, or --overwrite",
            )
        return place if source.stamp(name) == record.get("stamp") else None

    return place_of


def refuse_foreign(out: Path) -> None:
    """Raise InputError where a folder without a manifest holds anything but the locks of runs that begin just now.

    Where such a run is making the folder, it is waited for: its first files come before its manifest.
    """
    end = time.monotonic() + START_SECONDS
    while out.is_dir() and any(not path.name.startswith(LOCK_STEM) for path in out.iterdir()):
        # In this order: whoever has let go of the lock since has written the manifest.
        beginning = (out / START_LOCK).exists()
        if (out / MANIFEST_NAME).exists():
            return
        if not beginning or time.monotonic() > end:
            raise InputError(
                f"output {out} holds files but no {MANIFEST_NAME}", "an empty or new folder", "give another --out"
            )
        time.sleep(0.02)


def continued_manifest(before: Manifest | None, manifest: Mapping[str, Any]) -> Manifest:
    """The manifest to write: the first run's, with a note of every environment that continued it with other versions."""
    if before is None:
        return dict(manifest)
    makers = ("tool", "environment", "device")
    now = {key: manifest.get(key) for key in makers}
    earlier = [{key: before.get(key) for key in makers}, *before.get("continued_by", [])]
    if now in earlier:
        return dict(before)
    return {**before, "continued_by": [*before.get("continued_by", []), now]}


def remove_partial_files(out: Path) -> None:
    """Remove what a killed run was writing."""
    for path in out.rglob(f".*{PARTIAL_SUFFIX}*"):
        path.unlink(missing_ok=True)


def clear_folder(out: Path, manifest: Manifest) -> None:
    """Remove the maps of an earlier run; the lines go first, so that a kill in between leaves no false claim."""
    for path in out.iterdir():
        if SHARD_FRAMES.fullmatch(path.name):
            path.unlink()
    for folder in (*manifest.get("maps", {}), PREDICTION, OVERLAY, SMOOTHING_FOLDER, STORE_FOLDER):
        if folder == Path(folder).name:  # never outside of the maps folder
            with contextlib.suppress(FileNotFoundError):
                shutil.rmtree(out / folder)
    for name in (f"{OVERLAY}.webm", MASK_NAME, TABLE_NAME):
        (out / name).unlink(missing_ok=True)
    remove_partial_files(out)
    for shard in all_shards(manifest):
        (out / shard.record_name).unlink(missing_ok=True)
    (out / MANIFEST_NAME).unlink(missing_ok=True)
