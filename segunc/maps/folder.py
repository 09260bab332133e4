"""The door to a maps folder: what is written there, read back, checked, and removed again; nowhere
else does that.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterable
from pathlib import Path

from segunc.core.errors import InputError
from segunc.core.files import (
    START_SECONDS,
    Lock,
    inside,
    open_file,
    read_bytes,
    replacing,
    write_file,
)
from segunc.core.removal import (
    FileSum,
    Ledger,
    check_files,
    check_free,
    files_below,
    remove_checked,
    remove_empty_below,
)
from segunc.maps.manifest import JOINED_SHARDS, STATE_KEYS, Manifest, read_manifest
from segunc.maps.regions import MASK_NAME, read_region
from segunc.maps.shards import (
    FRAMES_NAME,
    LOCK_STEM,
    MANIFEST_NAME,
    REPAIR,
    DamageError,
    Record,
    Shard,
    Sum,
    all_shards,
    file_sum,
    iterate_lines,
    write_state,
)

PREDICTION = "prediction"
OVERLAY = "overlay"
OVERLAY_VIDEO = f"{OVERLAY}.webm"
BEGUN_NAME = ".begun.jsonl"
"""The files of frames that were begun and may have no line yet, of a run that has not ended or was
killed."""
# Held while the manifest is written, so that shards that start at once make one folder.
START_LOCK = f"{LOCK_STEM}-start"


def write_map(out: Path, file: str, data: bytes, begun: Ledger | None = None) -> Sum:
    """Write a file of a frame, or the mask, by atomic rename.

    Args:
        out: the maps folder.
        file: relative to it.
        data: the bytes of the file.
        begun: list of the files that were begun, which names the file before it appears.

    Raises:
        InputError: the name leads out of the folder.
    """
    path = inside(out, file)
    content = file_sum(data)
    if begun is not None:
        begun.note(file, content)
    write_file(path, data)
    return content


def read_map(path: Path, expected: Sum | None = None) -> bytes:
    """Read a file that :func:`write_map` (or another tool) wrote.

    Raises:
        DamageError: it is missing, or has another sum than expected.
    """
    if expected is None:
        return read_bytes(path)
    if not path.is_file():
        raise DamageError(f"{path} is missing", hint=REPAIR)
    data = read_bytes(path)
    if file_sum(data) != expected:
        raise DamageError(f"{path} was changed since it was written", hint=REPAIR)
    return data


def check_video(out: Path, manifest: Manifest) -> None:
    """Raise InputError where the video of the overlays would replace somebody's file, because
    neither the manifest of the folder nor the list of begun files names it."""
    begun = begun_files(out, Shard()).listed
    listed = OVERLAY_VIDEO in manifest or OVERLAY_VIDEO in begun
    check_free(out, OVERLAY_VIDEO, lambda _: listed)


def begin_video(out: Path, video: Path) -> None:
    """List a video of the overlays, which is whole at ``video``, before it takes its place in the
    folder, so that a run that is killed leaves no unlisted file."""
    begun_files(out, Shard()).note(OVERLAY_VIDEO, file_sum(read_bytes(video)))


def note_video(out: Path, manifest: Manifest) -> None:
    """List the video of the overlays in the manifest of its folder, and no longer as begun."""
    content = dict(manifest)
    if "shards" in manifest:
        for key in STATE_KEYS:
            content.pop(key, None)
    content[OVERLAY_VIDEO] = list(file_sum(read_bytes(inside(out, OVERLAY_VIDEO))))
    write_state(out, Shard(), content)
    begun = begun_files(out, Shard())
    begun.forget(but=[file for file in begun.listed if file != OVERLAY_VIDEO])


def begun_files(out: Path, shard: Shard) -> Ledger:
    """Return the list of the files that a shard's run has begun to write."""
    return Ledger(out, shard.file(BEGUN_NAME))


def is_whole(out: Path, record: Record, *, verify: bool) -> bool:
    """Return whether all files of a record are those that were written: by their sizes, or with
    ``verify`` by their bytes.
    """
    for score, file in record["files"].items():
        path = inside(out, file)
        expected = record["sums"][score]
        expected_size, _ = expected
        if not path.is_file() or path.stat().st_size != expected_size:
            return False
        if verify and file_sum(read_bytes(path)) != expected:
            return False
    return True


def refuse_foreign(out: Path) -> None:
    """Raise InputError for a folder without a manifest that holds any file, except locks of runs
    that begin just now, whose manifest is waited for.
    """
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


def as_one_run(out: Path, manifest: Manifest) -> Manifest:
    """Make a folder whose shards have all ended that of one run, and return its manifest.

    The lines come first, then the manifest, and the files of the shards go last. So a run that is
    killed in between leaves a whole folder, of shards or of one run.

    Args:
        out: the maps folder.
        manifest: of it; one without shards stays as it is.

    Raises:
        InputError: a shard is being written.
    """
    joined = manifest
    with contextlib.ExitStack() as locks:
        if "shards" in manifest:
            for shard in all_shards(manifest):
                locks.enter_context(
                    Lock(out / shard.file(LOCK_STEM), f"shard {shard} of output {out}")
                )
            joined = _join_shards(out)
        for shard in _joined_shards(joined):
            own = [shard.file(name) for name in (FRAMES_NAME, BEGUN_NAME, MANIFEST_NAME)]
            remove_checked(out, own)
    return joined


def _join_shards(out: Path) -> Manifest:
    """Write the lines and the manifest of one run from those of the shards."""
    # Nobody writes them now, as somebody may have done when they were last read.
    manifest = read_manifest(out) or {}
    shards = all_shards(manifest)
    begun = begun_files(out, Shard())
    with replacing(inside(out, FRAMES_NAME)) as file:
        for shard in shards:
            begun.note_all(begun_files(out, shard).listed)
            log = inside(out, shard.file(FRAMES_NAME))
            if not log.exists():
                continue
            with open_file(log) as lines:  # the end of a run brings them into their order
                file.writelines(line for line in lines if line.endswith(b"\n"))
    del manifest["shards"]
    del manifest["missing_shards"]
    manifest[JOINED_SHARDS] = len(shards)
    write_state(out, Shard(), manifest)
    return manifest


def _joined_shards(manifest: Manifest) -> list[Shard]:
    """Return the shards that became one run."""
    count = manifest.get(JOINED_SHARDS)
    return [] if count is None else all_shards({"shards": count})


def clear_folder(out: Path, manifest: Manifest) -> None:
    """Remove the maps of an earlier run, and the folders that this leaves empty.

    The lines go first and the manifests last, so that a kill in between leaves no false claim.

    Raises:
        InputError: the folder holds a file that the run does not list with its size and SHA-256;
            then nothing is removed.
    """
    # Also those files that a run which joined shards had written or left when it was killed.
    shards = [Shard(), *all_shards(manifest), *_joined_shards(manifest)]
    logs = {shard.file(FRAMES_NAME) for shard in shards}
    begun = {shard.file(BEGUN_NAME) for shard in shards}
    manifests = {shard.file(MANIFEST_NAME) for shard in shards}
    sealed = logs | begun | manifests  # each line and each manifest holds a sum of itself

    files = [file for file in files_below(out) if not file.startswith(LOCK_STEM)]
    listed = listed_maps(out, manifest, shards)
    check_files(
        out,
        files,
        listed,
        own=sealed.__contains__,
        hint="move it away, give another --out, or finish that run first without --overwrite",
    )
    # The lines go, so after a kill the list of begun files says that the rest belongs to the run.
    begun_files(out, Shard()).note_all(listed)
    remove_checked(out, [file for file in files if file in logs])
    remove_checked(out, [file for file in files if file not in sealed])
    for name in (*manifest["maps"], OVERLAY):
        remove_empty_below(inside(out, name))
    remove_checked(out, sorted(begun))
    remove_checked(out, sorted(manifests))


def listed_maps(out: Path, manifest: Manifest, shards: Iterable[Shard]) -> dict[str, set[FileSum]]:
    """Return the files that the lines and the manifest of a folder list, and those that were
    begun."""
    listed: dict[str, set[FileSum]] = {}
    for shard in shards:
        for _, record in iterate_lines(inside(out, shard.file(FRAMES_NAME))):
            for score, file in record["files"].items():
                listed.setdefault(file, set()).add(record["sums"][score])
    for shard in (Shard(), *shards):
        for file, contents in begun_files(out, shard).listed.items():
            listed.setdefault(file, set()).update(contents)
    if (out / MASK_NAME).is_file() and read_region(out, manifest) is not None:
        listed[MASK_NAME] = {file_sum(read_bytes(inside(out, MASK_NAME)))}
    video = manifest.get(OVERLAY_VIDEO)
    if video:
        size, digest = video
        listed[OVERLAY_VIDEO] = {(size, digest)}
    return listed
