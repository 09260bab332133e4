"""The door to a maps folder: what is written there, read back, and removed again; nowhere else does that."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterator
from pathlib import Path

from segunc.core.errors import InputError
from segunc.core.files import PARTIAL_SUFFIX, START_SECONDS, inside, read_bytes, write_file
from segunc.maps.manifest import Manifest
from segunc.maps.shards import FRAMES_NAME, LOCK_STEM, MANIFEST_NAME, Record, all_shards
from segunc.maps.statistics import MASK_NAME
from segunc.maps.sums import REPAIR, DamageError, Sum, file_sum

PREDICTION = "prediction"
OVERLAY = "overlay"
START_LOCK = f"{LOCK_STEM}-start"
"""Held while a run reads and writes the manifest, so that shards that start at once make one folder."""
_OLDER_FILES = ("frames.csv", "nearest/", "smoothing/")
"""What earlier versions wrote beside the maps."""


def write_map(out: Path, file: str, data: bytes) -> Sum:
    """Write a file of a frame, or the mask, by atomic rename; InputError where the name can be no file of the folder."""
    write_file(inside(out, file), data)
    return file_sum(data)


def read_map(path: Path, known: Sum | None = None) -> bytes:
    """Read a file that :func:`write_map` (or another tool) wrote; DamageError where it does not have a known sum."""
    if known is None:
        return read_bytes(path)
    data = read_bytes(path) if path.is_file() else None
    if data is None or file_sum(data) != known:
        raise DamageError(f"{path} {'is missing' if data is None else 'was changed since it was written'}", hint=REPAIR)
    return data


def damaged_file(out: Path, record: Record, *, verify: bool) -> str | None:
    """Return the first file of a record that is missing or, by its size (or to ``verify``, by its bytes), not the one that
    was written; None where all are."""
    for score, file in record["files"].items():
        path, known = inside(out, file), record["sums"][score]
        size = path.stat().st_size if path.is_file() else -1
        if size != known[0] or (verify and file_sum(read_bytes(path)) != known):
            return str(file)
    return None


def refuse_foreign(out: Path) -> None:
    """Refuse a folder without a manifest that holds anything but the locks of runs that begin just now.

    A run that is making the folder at this moment writes its first files before the manifest, so it is waited for.
    """
    end = time.monotonic() + START_SECONDS
    while out.is_dir() and any(not path.name.startswith(LOCK_STEM) for path in out.iterdir()):
        # In this order: whoever has let go of the lock since has written the manifest.
        beginning = (out / START_LOCK).exists()
        if (out / MANIFEST_NAME).exists():
            return
        if not beginning or time.monotonic() > end:
            raise InputError(f"output {out} holds files but no {MANIFEST_NAME}", hint="give an empty or new --out")
        time.sleep(0.02)


def clear_folder(out: Path, manifest: Manifest) -> None:
    """Remove the maps of an earlier run; the lines go first, so that a kill in between leaves no false claim.

    Removed are files of fixed names and, in the folder of each map of the manifest, files with the endings of maps; then
    the folders that this left empty.

    Raises:
        InputError: the folder holds anything else; then nothing was removed.
    """
    shards = all_shards(manifest)
    logs, states = ([shard.file(name) for shard in shards] for name in (FRAMES_NAME, MANIFEST_NAME))
    fixed = {MASK_NAME, f"{OVERLAY}.webm", MANIFEST_NAME, *logs, *states}
    maps = {*manifest["maps"], PREDICTION}

    def is_ours(file: str) -> bool:
        folder, name = file.partition("/")[0], os.path.basename(file)
        return (
            file in fixed
            or file.startswith((LOCK_STEM, *_OLDER_FILES))
            or (name.startswith(".") and PARTIAL_SUFFIX in name)
            or (folder in maps and name.endswith((".png", ".npy")))
            or (folder == OVERLAY and name.endswith(".jpg"))
        )

    files = list(_files(out))
    if strangers := [file for file, plain in files if not plain or not is_ours(file)]:
        raise InputError(
            f"{out} holds {strangers[0]}, which is no file of the run that --overwrite would remove",
            hint="move it away, or give another --out",
        )
    kept = {MANIFEST_NAME, *states}
    removed = [file for file, _ in files if file not in kept and not file.startswith(LOCK_STEM)]
    for file in sorted(removed, key=lambda file: file not in logs):
        (out / file).unlink(missing_ok=True)
    for folder, _, _ in os.walk(out, topdown=False):
        with contextlib.suppress(OSError):
            if Path(folder) != out:
                os.rmdir(folder)
    for file in sorted(kept):
        (out / file).unlink(missing_ok=True)


def _files(out: Path) -> Iterator[tuple[str, bool]]:
    """Yield everything below a folder but folders, as relative path, and whether it is a plain file; no link is followed."""
    for folder, folders, files in os.walk(out):
        for name in (*files, *folders):
            path = Path(folder, name)
            if name in files or path.is_symlink():
                yield path.relative_to(out).as_posix(), path.is_file() and not path.is_symlink()
