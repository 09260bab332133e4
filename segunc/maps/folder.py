"""The door to a maps folder: what is written there, read back, and removed again; nowhere else does that."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterator
from pathlib import Path

from segunc.core.errors import InputError
from segunc.core.files import PARTIAL_SUFFIX, inside, read_bytes, write_file
from segunc.core.locks import START_SECONDS
from segunc.frames.source import FrameSource
from segunc.maps.manifest import Manifest
from segunc.maps.shards import FRAMES_NAME, LOCK_STEM, MANIFEST_NAME, FrameRecords, Record, all_shards
from segunc.maps.statistics import MASK_NAME, TABLE_NAME
from segunc.maps.sums import REPAIR, DamageError, Sum, file_sum

PREDICTION = "prediction"
OVERLAY = "overlay"
START_LOCK = f"{LOCK_STEM}-start"
"""Held while a run reads and writes the manifest, so that shards that start at once make one folder."""
NEAREST = "nearest"
"""Folder of what earlier versions wrote with ``--nearest``."""


def write_map(out: Path, file: str, data: bytes) -> Sum:
    """Write a file of a frame, or the mask, by atomic rename; InputError where the name can be no file of the folder."""
    write_file(inside(out, file), data)
    return file_sum(data)


def read_map(path: Path, known: Sum | None = None) -> bytes:
    """The bytes of a file that :func:`write_map` (or another tool) wrote; DamageError where they are not those of a known sum."""
    missing = known is not None and not path.is_file()
    data = b"" if missing else read_bytes(path)
    if missing or known not in (None, file_sum(data)):
        what = "is missing" if missing else "was changed since it was written"
        raise DamageError(f"{path} {what}", "the file that its frame's line tells of", REPAIR)
    return data


def damaged_file(out: Path, record: Record, *, verify: bool) -> str | None:
    """The first file of a record that is missing or, by its size (or to ``verify``, by its bytes), not the one that was written; None
    where all are."""
    for score, file in record["files"].items():
        path, known = inside(out, file), record["sums"][score]
        size = path.stat().st_size if path.is_file() else -1
        if size != known[0] or (verify and file_sum(read_bytes(path)) != known):
            return str(file)
    return None


def refuse_foreign(out: Path) -> None:
    """Raise InputError where a folder without a manifest holds anything but the locks of runs that begin just now.
    Where such a run is making the folder, it is waited for: its first files come before its manifest."""
    end = time.monotonic() + START_SECONDS
    while out.is_dir() and any(not path.name.startswith(LOCK_STEM) for path in out.iterdir()):
        # In this order: whoever has let go of the lock since has written the manifest.
        beginning = (out / START_LOCK).exists()
        if (out / MANIFEST_NAME).exists():
            return
        if not beginning or time.monotonic() > end:
            given = f"output {out} holds files but no {MANIFEST_NAME}"
            raise InputError(given, "an empty or new folder", "give another --out")
        time.sleep(0.02)


def clear_folder(out: Path, manifest: Manifest, source: FrameSource | None = None) -> None:
    """Remove the maps of an earlier run; the lines go first, so that a kill in between leaves no false claim.

    Removed are files of fixed names, and of each map of the manifest those of the frames that the log, or the source of
    the run about to start, names; then what is empty of the folders that held them.

    InputError: the folder holds anything else; then nothing was removed.
    """
    shards = all_shards(manifest)
    logs, locks = ([shard.file(name) for shard in shards] for name in (FRAMES_NAME, LOCK_STEM))
    states = {MANIFEST_NAME, *(shard.file(MANIFEST_NAME) for shard in shards)}
    fixed = {TABLE_NAME, MASK_NAME, f"{OVERLAY}.webm", START_LOCK, LOCK_STEM, *locks, *states, *logs}
    records = FrameRecords(out, shards)
    maps = {*manifest["maps"], PREDICTION}

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
            or (folder == NEAREST and frame and ending == ".json")
        )

    stranger = next((file for file, plain in _files(out) if not (plain and is_ours(file))), None)
    if stranger is not None:
        given = f"{out} holds {stranger}, which is no file of the run that --overwrite would remove"
        raise InputError(given, "only files of that run", "move it away, or give another --out")
    for name in logs:
        (out / name).unlink(missing_ok=True)
    for file, plain in _files(out):
        if plain and is_ours(file) and file not in states and not file.startswith(LOCK_STEM):
            (out / file).unlink(missing_ok=True)
    for folder in (*maps, OVERLAY, NEAREST):
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
