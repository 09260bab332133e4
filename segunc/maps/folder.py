"""The state of a maps folder between runs: what is finished, what an earlier run left behind."""

from __future__ import annotations

import contextlib
import os
import re
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from segunc.errors import InputError
from segunc.files import PARTIAL_SUFFIX
from segunc.maps.frame_files import holds_maps
from segunc.maps.frame_log import Record
from segunc.maps.locks import START_SECONDS
from segunc.maps.manifest import MANIFEST_NAME, Manifest
from segunc.maps.records import FrameRecords
from segunc.maps.region import MASK_NAME
from segunc.maps.shards import LOCK_STEM, all_shards
from segunc.maps.sources import FrameSource
from segunc.maps.table import TABLE_NAME

PREDICTION = "prediction"
OVERLAY = "overlay"
START_LOCK = f"{LOCK_STEM}-start"
"""Held while a run reads and writes the manifest, so that shards that start at once make one folder."""
SMOOTHING_FOLDER = "smoothing"
"""Where a run that smooths along the video keeps the states that it would go on from."""
SMOOTHING_STATE = re.compile(r"\d{12}\.npz")


def place_finder(out: Path, source: FrameSource | None) -> Callable[[Record], int | None]:
    """Says of a record that an earlier run left where its frame stands now, None where it has to be computed again.

    Computed again are frames whose maps are gone or empty and frames whose image file was replaced. Without a source
    the record's own place counts.

    Raises (the function returned):
        InputError: the input does not hold the frame any more.
    """

    def place_of(record: Record) -> int | None:
        if not holds_maps(out, record):
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


def clear_folder(out: Path, manifest: Manifest, source: FrameSource | None = None) -> None:
    """Remove the maps of an earlier run; the lines go first, so that a kill in between leaves no false claim.

    Removed are files of fixed names, and of each map of the manifest those of the frames that the log, or the source of
    the run about to start, names; then what is empty of the folders that held them.

    Raises:
        InputError: the folder holds anything else; then nothing was removed.
    """
    shards = all_shards(manifest)
    logs = [shard.frames_name for shard in shards]
    fixed = {MANIFEST_NAME, TABLE_NAME, MASK_NAME, f"{OVERLAY}.webm", LOCK_STEM, START_LOCK, *logs}
    fixed |= {name for shard in shards for name in (shard.record_name, shard.lock_name)}
    records = FrameRecords(out, shards)
    maps = {*manifest.get("maps", {}), PREDICTION}

    def is_ours(file: str) -> bool:
        folder, _, rest = file.partition("/")
        name, ending = os.path.splitext(rest)
        last = os.path.basename(file)
        frame = name in records or (source is not None and bool(name) and source.position(name) is not None)
        return (
            file in fixed
            or (last.startswith(".") and PARTIAL_SUFFIX in last)
            or (folder in maps and frame and ending in (".png", ".npy"))
            or (folder == OVERLAY and frame and ending == ".jpg")
            or (folder == SMOOTHING_FOLDER and SMOOTHING_STATE.fullmatch(rest) is not None)
        )

    stranger = next((file for file, plain in _files(out) if not (plain and is_ours(file))), None)
    if stranger is not None:
        raise InputError(
            f"{out} holds {stranger}, which is no file of the run that --overwrite would remove",
            "only files of that run",
            "move it away, or give another --out",
        )
    for name in logs:
        (out / name).unlink(missing_ok=True)
    states = {MANIFEST_NAME, *(shard.record_name for shard in shards)}
    for file, plain in _files(out):
        if plain and is_ours(file) and file not in states and not file.startswith(LOCK_STEM):
            (out / file).unlink(missing_ok=True)
    for folder in (*maps, OVERLAY, SMOOTHING_FOLDER):
        for path, _, _ in os.walk(out / folder, topdown=False):
            with contextlib.suppress(OSError):
                os.rmdir(path)
    for name in sorted(states):
        (out / name).unlink(missing_ok=True)


def _files(out: Path) -> Iterator[tuple[str, bool]]:
    """Everything below a folder but folders, as relative path, and whether it is a plain file; no link is followed."""
    for folder, folders, files in os.walk(out):
        for name in (*files, *folders):
            path = Path(folder, name)
            if name in files or path.is_symlink():
                yield path.relative_to(out).as_posix(), path.is_file() and not path.is_symlink()
