"""Maps folders under URLs.

An object store has neither locks nor a rename. So a run writes into a folder of this machine, as
always, and its finished frames are uploaded from there: first a manifest that lists the files to
come, then these files, then ``frames.jsonl`` with their lines, then ``manifest.json``. What the
lines under a URL name is there before them, as on a disk.
"""

from __future__ import annotations

import contextlib
import hashlib
import threading
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

from segunc.core.errors import InputError, PartialFailure
from segunc.core.files import (
    Lock,
    file_sha256,
    inside,
    json_bytes,
    read_bytes,
    read_json,
    read_text,
    write_file,
)
from segunc.core.removal import MOVE, remove_cached
from segunc.core.terminal import counted
from segunc.core.urls import (
    CONNECTIONS,
    PROBE_NAME,
    RemoteFile,
    cache_folder,
    check_writable,
    download,
    list_remote,
    shown_url,
    upload,
)
from segunc.maps.folder import OVERLAY, OVERLAY_VIDEO, begun_files
from segunc.maps.manifest import input_in, read_manifest
from segunc.maps.regions import MASK_NAME
from segunc.maps.shards import (
    FRAMES_NAME,
    MANIFEST_NAME,
    Record,
    Shard,
    Sum,
    file_sum,
    iterate_lines,
    seal,
    write_state,
)

UPLOAD_SECONDS = 30.0
"""Time between two uploads of a run."""
HISTORY_NAME = "uploaded.txt"
"""Beside a working folder: the hash of each state of its lines and its manifest, before and after
it was uploaded.
"""
STATE_FILES = (FRAMES_NAME, MANIFEST_NAME)
BEGUN_FILES = "begun"
"""Key of the manifest under a URL: the files that are being uploaded, and may have no line yet."""
FURTHER_FILES = (MASK_NAME, OVERLAY_VIDEO)
"""Files of a maps folder that belong to no frame."""


@dataclass
class _Upload:
    """A maps folder of this machine that is uploaded to a URL."""

    url: str
    folder: Path
    lock: Lock
    sent: dict[str, Sum] = field(default_factory=dict)
    """Size and hash of each file under the URL, as its lines say."""
    state: tuple[bytes, ...] = ()
    """The lines and the manifest that were uploaded last."""
    begun: dict[str, Sum] = field(default_factory=dict)
    """The same of each file whose upload has begun, and of which no line is there yet. The manifest
    under the URL lists them meanwhile."""


_UPLOADS: dict[Path, _Upload] = {}
"""The maps folders that this process uploads."""


def fetch_maps(url: str) -> Path:
    """Return the folder of this machine in which the maps under a URL are made or continued.

    If the maps under the URL are as this folder uploaded them, it may be ahead of them, and is
    continued. Otherwise another machine went on with them, and they are downloaded.

    Raises:
        InputError: the URL cannot be read, or another process of this machine writes to it.
    """
    work = cache_folder("outputs") / hashlib.sha256(url.encode()).hexdigest()[:32]
    work.mkdir(exist_ok=True)
    folder = work / "maps"
    _release(folder)  # of an earlier run of this process that failed
    lock = Lock(work / "lock", f"output {shown_url(url)}")
    try:
        check_writable(url)
        remote = _listed(url)
        _check_maps(remote, url)
        listed = _sums(_lines_of(remote[FRAMES_NAME])) if FRAMES_NAME in remote else {}
        if not _is_own(work / HISTORY_NAME, remote):
            remove_cached(folder)
            remove_cached(work / HISTORY_NAME)
            _download_maps(remote, folder, listed)
            for name in STATE_FILES:
                if name in remote:
                    _note(work / HISTORY_NAME, "done", read_bytes(folder / name))
        _take_up_begun(remote, folder)
        _check_unlisted(remote, folder, listed, url)
        kept = _Upload(url, folder, lock, sent=listed)
    except BaseException:
        lock.release()
        raise
    _UPLOADS[folder] = kept
    return folder


def uploaded_inputs(url: str) -> dict[str, str | None]:
    """Return the input of the maps under a URL, and of those in each folder there.

    Returns:
        Name of the folder, empty for the URL itself -> its input; None where no manifest says it.

    Raises:
        InputError: the URL cannot be read.
    """
    inputs: dict[str, str | None] = {}
    for name, file in _listed(url).items():
        folder, _, last = name.rpartition("/")
        if last == MANIFEST_NAME and "/" not in folder:
            with download(file) as local, contextlib.suppress(InputError):
                inputs[folder] = input_in(read_json(local.path, "a manifest of maps"))
    return inputs


def _listed(url: str) -> dict[str, RemoteFile]:
    """Return the files of a maps folder under a URL, none where it is not there yet."""
    try:
        return list_remote(url)
    except InputError as error:
        if error.message.endswith("does not exist"):
            return {}
        raise


def _is_own(history: Path, remote: dict[str, RemoteFile]) -> bool:
    """Return whether the maps under a URL are as this machine uploaded them last.

    They are also its own if it never came to upload any, and there are none.
    """
    words = read_text(history).split() if history.is_file() else []
    states = dict(zip(words[1::2], words[::2], strict=True))
    if MANIFEST_NAME not in remote:
        return "done" not in states.values()
    for name in STATE_FILES:
        if name in remote:
            with download(remote[name]) as local:
                if file_sha256(local.path) not in states:
                    return False
    return True


def _note(history: Path, word: str, data: bytes) -> None:
    """Add that a state is about to be uploaded (``begun``), or was (``done``)."""
    before = read_bytes(history) if history.is_file() else b""
    write_file(history, before + f"{word} {hashlib.sha256(data).hexdigest()}\n".encode())


def _upload_state(kept: _Upload, name: str, data: bytes) -> None:
    """Upload the lines or the manifest, so that a later run knows them for its own."""
    history = kept.folder.parent / HISTORY_NAME
    _note(history, "begun", data)
    upload(f"{kept.url}/{name}", data)
    _note(history, "done", data)


def _lines_of(file: RemoteFile) -> list[tuple[bytes, Record]]:
    """Return the lines of finished frames under a URL."""
    with download(file) as local:
        return list(iterate_lines(local.path))


def _sums(lines: Sequence[tuple[bytes, Record]]) -> dict[str, Sum]:
    """Return the size and hash of each file that lines name."""
    sums: dict[str, Sum] = {}
    for _, record in lines:
        for score, file in record["files"].items():
            size, digest = record["sums"][score]
            sums[file] = (size, digest)
    return sums


def _check_maps(remote: dict[str, RemoteFile], url: str) -> None:
    """Raise InputError if there are files under a URL, and no maps."""
    foreign = remote.keys() - {PROBE_NAME}
    if foreign and MANIFEST_NAME not in remote:
        raise InputError(
            f"output {shown_url(url)} holds {counted(len(foreign), 'file')} and no maps, "
            f"for example {min(foreign)}",
            hint="give another --out",
        )


def _take_up_begun(remote: dict[str, RemoteFile], folder: Path) -> None:
    """List the files that an upload had begun as those of the run, which makes them again."""
    if MANIFEST_NAME not in remote:
        return
    with download(remote[MANIFEST_NAME]) as local:
        begun = read_json(local.path, "a manifest of maps").get(BEGUN_FILES, {})
    begun_files(folder, Shard()).note_all({name: [tuple(sum)] for name, sum in begun.items()})
    manifest = read_manifest(folder) or {}
    if manifest.pop(BEGUN_FILES, None) is not None:
        write_state(folder, Shard(), manifest)


def _check_unlisted(
    remote: dict[str, RemoteFile], folder: Path, listed: Mapping[str, Sum], url: str
) -> None:
    """Raise InputError if a file under a URL has the name of a map, and no record lists it: an
    upload would replace it.

    Where lines are lost, a file of the run cannot be told from another one, as on a disk.

    Args:
        remote: the files under the URL.
        folder: of this machine, with all that it knows of the run.
        listed: the files that the lines under the URL name.
        url: of the maps.
    """
    manifest = read_manifest(folder)
    lines = list(iterate_lines(folder / FRAMES_NAME))
    if manifest is None or len(lines) < manifest.get("finished", 0):
        return
    begun = begun_files(folder, Shard()).listed
    known = listed.keys() | _sums(lines).keys() | begun.keys()
    kinds = {name: described["file"] for name, described in manifest["maps"].items()}
    kinds[OVERLAY] = "jpg"
    for name in sorted(remote.keys() - known):
        score, _, frame = name.partition("/")
        if frame.endswith(f".{kinds.get(score)}"):
            raise InputError(
                f"output {shown_url(url)} holds {name}, which is in no record of the run that "
                "wrote these maps, so it is not replaced",
                hint=MOVE,
            )


def _download_maps(remote: dict[str, RemoteFile], folder: Path, listed: Mapping[str, Sum]) -> None:
    """Download the manifest, the lines and the files that the lines name, which are ``listed``."""
    names = [name for name in (*FURTHER_FILES, FRAMES_NAME, MANIFEST_NAME) if name in remote]
    names += [name for name in listed if name in remote]

    def fetch(name: str) -> None:
        target = inside(folder, name)
        with download(remote[name]) as local:
            write_file(target, read_bytes(local.path))

    with ThreadPoolExecutor(CONNECTIONS) as pool:
        for done in [pool.submit(fetch, name) for name in names]:
            done.result()


@contextlib.contextmanager
def uploading(folder: Path, url: str) -> Iterator[None]:
    """Upload what is finished every half minute until the end of the block, and at its end.

    Args:
        folder: what :func:`fetch_maps` returned.
        url: of the maps; empty if they stay on this machine.

    Raises:
        PartialFailure: the last upload failed; what was finished is kept on this machine.
    """
    if not url:
        yield
        return
    kept = _UPLOADS[folder]
    stop = threading.Event()

    def keep_uploading() -> None:
        while not stop.wait(UPLOAD_SECONDS):
            with contextlib.suppress(InputError):  # the upload at the end says what is wrong
                _push(kept)

    thread = threading.Thread(target=keep_uploading, name="upload", daemon=True)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()
        _push_or_say(kept)


def finish_upload(folder: Path, url: str) -> None:
    """Upload what came after the maps, such as a video.

    A finished folder is removed from this machine.

    Raises:
        PartialFailure: the upload failed; what was finished is kept on this machine.
    """
    kept = _UPLOADS[folder]
    _push_or_say(kept)
    manifest = read_manifest(folder) or {}
    if manifest.get("status") == "finished" and not manifest.get("failed"):
        remove_cached(folder)
        remove_cached(folder.parent / HISTORY_NAME)
    _release(folder)


def _release(folder: Path) -> None:
    """Let another run write to the URL of a folder; a second call does nothing."""
    kept = _UPLOADS.pop(folder, None)
    if kept is not None:
        kept.lock.release()


def _push_or_say(kept: _Upload) -> None:
    """Upload what is finished.

    Raises:
        PartialFailure: it failed.
    """
    try:
        _push(kept)
    except InputError as error:
        raise PartialFailure(
            f"uploading failed: {error.message}; finished frames are kept in {kept.folder}, and "
            "the same command uploads them"
        ) from error


def _push(kept: _Upload) -> None:
    """Upload the files of finished frames, then their lines, then the manifest."""
    log = kept.folder / FRAMES_NAME
    manifest = kept.folder / MANIFEST_NAME
    if not manifest.is_file():
        return
    # The manifest is read first, so that it never says more than the lines.
    manifest_bytes = read_bytes(manifest)
    lines = list(iterate_lines(log))
    sums = _sums(lines)
    coming = {name: file for name, file in sums.items() if kept.sent.get(name) != file}
    for name in FURTHER_FILES:
        path = kept.folder / name
        if path.is_file():
            current_sum = file_sum(read_bytes(path))
            if kept.sent.get(name) != current_sum:
                coming[name] = current_sum
    lines_bytes = b"".join(line for line, _ in lines)
    state = (lines_bytes, manifest_bytes)
    if not coming and kept.state == state:
        return
    kept.begun.update(coming)
    if coming:
        _upload_state(kept, MANIFEST_NAME, _as_running(kept))
    replaced = coming.keys() & kept.sent.keys()
    if replaced:
        # Frames that were made again: their lines go before their files change.
        unchanged = [
            line for line, record in lines if replaced.isdisjoint(record["files"].values())
        ]
        _upload_state(kept, FRAMES_NAME, b"".join(unchanged))
    _send(kept, coming)
    _upload_state(kept, FRAMES_NAME, lines_bytes)
    _upload_state(kept, MANIFEST_NAME, manifest_bytes)
    kept.state = state
    kept.begun.clear()


def _as_running(kept: _Upload) -> bytes:
    """Return the manifest of a folder as it is before the first line, with the files to come."""
    state = {"status": "running", "finished": 0, "failed": [], BEGUN_FILES: kept.begun}
    return json_bytes(seal({**(read_manifest(kept.folder) or {}), **state}))


def _send(kept: _Upload, coming: dict[str, Sum]) -> None:
    """Upload files, several at once."""

    def send(name: str) -> None:
        upload(f"{kept.url}/{name}", read_bytes(inside(kept.folder, name)))
        kept.sent[name] = coming[name]

    with ThreadPoolExecutor(CONNECTIONS) as pool:
        for done in [pool.submit(send, name) for name in coming]:
            done.result()
