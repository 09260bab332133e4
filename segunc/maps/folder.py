"""The door to a maps folder: what is written there, read back, checked, and removed again; nowhere else does that."""

from __future__ import annotations

import contextlib
import os
import time
from pathlib import Path

from segunc.core.errors import InputError
from segunc.core.files import PARTIAL_SUFFIX, START_SECONDS, inside, read_bytes, write_file
from segunc.maps.manifest import Manifest
from segunc.maps.shards import (
    FRAMES_NAME,
    LOCK_STEM,
    MANIFEST_NAME,
    REPAIR,
    DamageError,
    Record,
    Sum,
    all_shards,
    file_sum,
)
from segunc.maps.statistics import MASK_NAME

PREDICTION = "prediction"
OVERLAY = "overlay"
START_LOCK = f"{LOCK_STEM}-start"  # held while the manifest is written, so that shards that start at once make one folder


def write_map(out: Path, file: str, data: bytes) -> Sum:
    """Write a file of a frame, or the mask, by atomic rename; raise InputError where the name can be no file of the folder."""
    write_file(inside(out, file), data)
    return file_sum(data)


def read_map(path: Path, expected: Sum | None = None) -> bytes:
    """Read a file that :func:`write_map` (or another tool) wrote; raise DamageError where it has another sum than expected."""
    if expected is None:
        return read_bytes(path)
    data = read_bytes(path) if path.is_file() else None
    if data is None or file_sum(data) != expected:
        raise DamageError(
            f"{path} {'is missing' if data is None else 'was changed since it was written'}",
            hint=REPAIR,
        )
    return data


def is_whole(out: Path, record: Record, *, verify: bool) -> bool:
    """Return whether all files of a record are there and, by their sizes (or to ``verify``, by their bytes), those that were written."""
    for score, file in record["files"].items():
        path, expected = inside(out, file), record["sums"][score]
        size = path.stat().st_size if path.is_file() else -1
        if size != expected[0] or (verify and file_sum(read_bytes(path)) != expected):
            return False
    return True


def refuse_foreign(out: Path) -> None:
    """Refuse a folder without a manifest that holds anything but the locks of runs that begin just now, whose manifest is waited for."""
    end = time.monotonic() + START_SECONDS
    while out.is_dir() and any(not path.name.startswith(LOCK_STEM) for path in out.iterdir()):
        # In this order: whoever has let go of the lock since has written the manifest.
        beginning = (out / START_LOCK).exists()
        if (out / MANIFEST_NAME).exists():
            return
        if not beginning or time.monotonic() > end:
            raise InputError(
                f"output {out} holds files but no {MANIFEST_NAME}",
                hint="give an empty or new --out",
            )
        time.sleep(0.02)


def clear_folder(out: Path, manifest: Manifest) -> None:
    """Remove the maps of an earlier run and the folders that this left empty; nothing where the folder holds anything else. The
    lines go first and the manifests last, so that a kill in between leaves no false claim."""
    shards = all_shards(manifest)
    logs = {shard.file(FRAMES_NAME) for shard in shards}
    manifests = {MANIFEST_NAME, *(shard.file(MANIFEST_NAME) for shard in shards)}
    maps = {*manifest["maps"], PREDICTION}

    def is_ours(file: str) -> bool:
        folder, name = file.partition("/")[0], os.path.basename(file)
        return (
            file in {MASK_NAME, f"{OVERLAY}.webm", *logs, *manifests}
            or file.startswith(LOCK_STEM)
            or (name.startswith(".") and PARTIAL_SUFFIX in name)
            or (folder in maps and name.endswith((".png", ".npy")))
            or (folder == OVERLAY and name.endswith(".jpg"))
        )

    files = []
    for folder, folders, names in os.walk(out):  # which follows no link
        for path in (Path(folder, name) for name in (*names, *folders)):
            file, link = path.relative_to(out).as_posix(), path.is_symlink()
            if (link or not path.is_dir()) and (link or not path.is_file() or not is_ours(file)):
                raise InputError(
                    f"{out} holds {file}, which is no file of the run that --overwrite would remove",
                    hint="move it away, or give another --out",
                )
            files += [] if path.is_dir() or file.startswith(LOCK_STEM) else [file]
    for file in sorted(files, key=lambda file: (file in manifests, file not in logs)):
        (out / file).unlink(missing_ok=True)
    for folder, _, _ in os.walk(out, topdown=False):
        with contextlib.suppress(OSError):
            if Path(folder) != out:
                os.rmdir(folder)
