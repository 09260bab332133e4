"""The state of a maps folder between runs: who holds it, what is finished, what an earlier run left behind."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from segunc.errors import InputError
from segunc.files import PARTIAL_SUFFIX, write_atomically
from segunc.maps.manifest import FRAMES_NAME, MANIFEST_NAME, Manifest

PREDICTION = "prediction"
OVERLAY = "overlay"
Record = dict[str, Any]
"""One line of ``frames.jsonl``."""


def read_lines(path: Path) -> tuple[list[Record], int]:
    """The complete records of a ``frames.jsonl`` and the number of bytes they take; a torn last line is left out.

    Raises:
        InputError: a line before the last is no record.
    """
    data = path.read_bytes() if path.exists() else b""
    records: list[Record] = []
    end = data.rfind(b"\n") + 1
    for number, line in enumerate(data[:end].splitlines(), start=1):
        try:
            record = json.loads(line)
            record["name"], record["files"]
        except (ValueError, KeyError, TypeError) as error:
            raise InputError(
                f"{path}, line {number}, is no record of a frame", "JSON with a name and files", "--overwrite"
            ) from error
        records.append(record)
    return records, end


def recover_frames(out: Path) -> list[str]:
    """Names of the finished frames; cuts a torn last line and forgets frames whose files are gone or empty."""
    path = out / FRAMES_NAME
    records, end = read_lines(path)
    kept = [record for record in records if all(_is_whole(out / file) for file in record["files"].values())]
    if len(kept) < len(records):
        lines = path.read_bytes()[:end].splitlines(keepends=True)
        whole = {record["name"] for record in kept}
        write_atomically(path, b"".join(line for line, r in zip(lines, records, strict=True) if r["name"] in whole))
    elif path.exists() and path.stat().st_size > end:
        with path.open("r+b") as file:
            file.truncate(end)
    return [record["name"] for record in kept]


def _is_whole(path: Path) -> bool:
    # After a power failure a file system may hold the name of a renamed file without its bytes.
    return path.is_file() and path.stat().st_size > 0


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


def lock_folder(out: Path) -> int | None:
    """Hold the folder for this process (released by its end, however it ends); None where there is no such lock."""
    try:
        import fcntl
    except ImportError:  # Windows
        return None
    handle = os.open(out, os.O_RDONLY)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        os.close(handle)
        raise InputError(
            f"output {out} is being written by another run", "one run at a time", "wait, or give another --out"
        ) from error
    except OSError:  # some network file systems know no locks
        os.close(handle)
        return None
    return handle


def remove_partial_files(out: Path) -> None:
    """Remove what a killed run was writing."""
    for path in out.rglob(f".*{PARTIAL_SUFFIX}*"):
        path.unlink(missing_ok=True)


def clear_folder(out: Path, manifest: Manifest) -> None:
    """Remove the maps of an earlier run; the lines go first, so that a kill in between leaves no false claim."""
    (out / FRAMES_NAME).unlink(missing_ok=True)
    for folder in (*manifest.get("maps", {}), PREDICTION, OVERLAY):
        if folder == Path(folder).name:  # never outside of the maps folder
            with contextlib.suppress(FileNotFoundError):
                shutil.rmtree(out / folder)
    (out / f"{OVERLAY}.webm").unlink(missing_ok=True)
    remove_partial_files(out)
    (out / MANIFEST_NAME).unlink(missing_ok=True)
