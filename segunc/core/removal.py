"""The rule by which a run removes files of a folder: only those that its own record lists, by name
and by hash. It replaces only files whose name its record lists.

Everything else in the way is somebody's file, and the run refuses before its work. What a run makes
for itself alone is its own, too: files that are still being written, locks, and folders that it
made and that are empty again. ``core.files`` puts whole files in place and holds locks; no other
module removes anything.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import threading
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path

from segunc.core.errors import InputError
from segunc.core.files import (
    PARTIAL_SUFFIX,
    cache_place,
    inside,
    link_or_copy,
    open_file,
    parse_json,
    read_bytes,
    reading,
    safe_name,
    write_file,
)

LEDGER = ".segunc-files.jsonl"  # in a folder: what runs wrote there
LISTED_DIGITS = (16, 64)  # of a SHA-256 in hexadecimal, in a line of frames or whole
FileSum = tuple[int, str]
"""The bytes of a file, and the first 16 hexadecimal digits or all 64 of their SHA-256."""
Listed = Mapping[str, Collection[FileSum]]
"""The name of each file that a record lists, relative to its folder, and what its content may
be."""
MOVE = "move it away, or give another --out"


def is_listed(path: Path, sums: Collection[FileSum]) -> bool:
    """Return whether a path is a plain file, no link, with a content that a record lists."""
    if path.is_symlink() or not path.is_file():
        return False
    size = path.stat().st_size
    if size not in {listed_size for listed_size, _ in sums}:
        return False
    digest = hashlib.sha256(read_bytes(path)).hexdigest()
    return any(
        size == listed_size and len(listed) in LISTED_DIGITS and digest.startswith(listed)
        for listed_size, listed in sums
    )


def file_content(path: Path) -> FileSum:
    """Return what a record lists of a file: its size and SHA-256."""
    data = read_bytes(path)
    return len(data), hashlib.sha256(data).hexdigest()


def files_below(folder: Path, parts: Iterable[str] = ("",)) -> Iterator[str]:
    """Yield the files and links below a folder, or below ``parts`` of it, by their names relative
    to it; no link is followed."""
    for part in parts:
        top = folder / part
        if top.is_symlink() or top.is_file():
            yield part
        for place, folders, names in os.walk(top):
            links = [name for name in folders if Path(place, name).is_symlink()]
            for name in sorted((*names, *links)):
                yield Path(place, name).relative_to(folder).as_posix()


def check_files(
    folder: Path,
    files: Iterable[str],
    listed: Listed,
    *,
    own: Callable[[str], bool] = lambda file: False,
    hint: str = MOVE,
) -> None:
    """Raise InputError where one of ``files`` of a folder is not listed with its content, nor the
    run's ``own``."""
    for file in files:
        path = folder / file
        if is_partial(file) or (own(file) and path.is_file() and not path.is_symlink()):
            continue
        if is_listed(path, listed.get(file, ())):
            continue
        fact = "which is no file of the run that wrote this folder"
        if file in listed:
            fact = "which has changed since the run wrote it"
        raise InputError(f"{folder} holds {file}, {fact}, so it is not removed", hint=hint)


def check_free(
    folder: Path,
    file: str,
    recorded: Callable[[str], bool],
    *,
    content: FileSum | None = None,
    hint: str = MOVE,
) -> None:
    """Raise InputError where a file that a run is about to write would replace somebody's.

    A run replaces a file whose name its record lists, damaged or not: that is how maps are
    repaired. A file with the very ``content`` that is to be written loses nothing either.

    Args:
        folder: that of the run.
        file: name of the file, relative to the folder.
        recorded: whether the record of the run lists a name.
        content: what is to be written, where it is known already.
        hint: what to do.
    """
    path = inside(folder, file)
    if not os.path.lexists(path) or recorded(file):
        return
    if content is not None and is_listed(path, [content]):
        return
    fact = "which is in no record of the run that wrote this folder"
    raise InputError(f"{folder} holds {file}, {fact}, so it is not replaced", hint=hint)


def is_partial(file: str) -> bool:
    """Return whether a name is that of a file that a run was writing when it ended."""
    name = os.path.basename(file)
    return name.startswith(".") and PARTIAL_SUFFIX in name


def remove_checked(folder: Path, files: Iterable[str]) -> None:
    """Remove files, in this order, that :func:`check_files` let through, and the folders below
    ``folder`` that this leaves empty."""
    places: set[Path] = set()
    for file in files:
        path = folder / file
        path.unlink(missing_ok=True)
        places |= {parent for parent in path.parents if folder in parent.parents}
    for place in sorted(places, key=lambda place: len(place.parts), reverse=True):
        remove_empty(place)


def remove_empty(folder: Path) -> None:
    """Remove a folder if nothing is in it."""
    with suppress(OSError):
        folder.rmdir()


def remove_empty_below(folder: Path) -> None:
    """Remove a folder, and those below it, in which there is no file."""
    for place, _, _ in os.walk(folder, topdown=False):
        remove_empty(Path(place))


def move_own(path: Path, place: Path) -> None:
    """Give a file or folder that the run made another name; InputError where that is taken."""
    if os.path.lexists(place):
        raise InputError(f"{place} is there already", hint=MOVE)
    path.rename(place)


def remove_partials(folder: Path) -> None:
    """Remove what runs that were killed were writing below a folder."""
    for file in [*files_below(folder)]:
        if is_partial(file):
            (folder / file).unlink(missing_ok=True)


def remove_own_folder(folder: Path, process: int) -> None:
    """Remove a hidden folder that the running process made for itself, whose name holds its
    number."""
    if process == os.getpid() and folder.name.startswith(".") and f".{process}." in folder.name:
        shutil.rmtree(folder, ignore_errors=True)


def remove_partial_folder(folder: Path) -> None:
    """Remove a hidden folder that a run was making, by whoever holds its lock; nothing where there
    is none."""
    if is_partial(folder.name) and not folder.is_symlink():
        shutil.rmtree(folder, ignore_errors=True)


def remove_cached(path: Path) -> None:
    """Remove a file or a folder of this package's cache, in which nothing is the user's own.

    Raises:
        InputError: the path lies outside of the cache.
    """
    _check_cached(path)
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)


def replace_cached(path: Path, place: Path) -> None:
    """Give a file of this package's cache another name there; a file of that name is replaced.

    Raises:
        InputError: one of the two lies outside of the cache.
    """
    _check_cached(path)
    _check_cached(place)
    os.replace(path, place)


def _check_cached(path: Path) -> None:
    """Raise InputError where a path lies outside of this package's cache."""
    cache = cache_place()
    if cache is None or cache.absolute() not in path.absolute().parents:
        raise InputError(f"{path} is not in the cache {cache}, so it is kept", hint=MOVE)


def check_result(path: Path, is_ours: Callable[[Path], bool], what: str) -> None:
    """Raise InputError where a path is taken by a link, or by anything that ``is_ours`` does not
    know as ``what`` it should be."""
    if not os.path.lexists(path):
        return
    if path.is_symlink() or not path.is_file() or not is_ours(path):
        raise InputError(f"{path} is not {what}, so it is not replaced", hint=MOVE)


def remove_result(path: Path, is_ours: Callable[[Path], bool], what: str) -> None:
    """Remove a file that says itself what it is, such as a sealed record; InputError as of
    :func:`check_result`."""
    check_result(path, is_ours, what)
    path.unlink(missing_ok=True)


class Ledger:
    """The files that runs wrote into a folder: one line a file with its size and SHA-256, written
    before the file appears, so that a run that was killed has listed all that it left."""

    def __init__(self, folder: Path, name: str = LEDGER) -> None:
        self.folder = folder
        self.path = folder / name
        self._lock = threading.Lock()
        self._appended = False
        self._listed: dict[str, set[FileSum]] | None = None

    @property
    def listed(self) -> dict[str, set[FileSum]]:
        """The files with every content that was written under their name."""
        if self._listed is None:
            self._listed = self._read()
        return self._listed

    def write(self, file: str, data: bytes, *, replace: bool = False) -> FileSum:
        """Write a file, and return its size and SHA-256; with ``replace`` whatever file has its
        name makes room.

        Raises:
            InputError: the name leads out of the folder, or somebody's file has it.
        """
        path = inside(self.folder, file)
        if not replace:
            self.check([file])
        digest = hashlib.sha256(data).hexdigest()
        self.note(file, (len(data), digest))
        write_file(path, data)
        return len(data), digest

    def link(self, file: str, source: Path) -> None:
        """Put a link to a file, or a copy of it, under a name; InputError as of :meth:`write`."""
        path = inside(self.folder, file)
        self.check([file])
        self.note(file, file_content(source))
        path.parent.mkdir(parents=True, exist_ok=True)
        link_or_copy(source, path)

    def note(self, file: str, content: FileSum) -> None:
        """List a file before it is written."""
        self.note_all({file: [content]})

    def note_all(self, files: Listed) -> None:
        """List files with what their content may be."""
        with self._lock:
            lines = []
            for file, contents in files.items():
                new = [content for content in contents if content not in self.listed.get(file, ())]
                lines += [_line(file, content) for content in new]
                if new:
                    self.listed.setdefault(file, set()).update(new)
            if lines:
                self.folder.mkdir(parents=True, exist_ok=True)
                self._append(b"".join(lines))

    def check(self, parts: Iterable[str], hint: str = MOVE) -> None:
        """Raise InputError where a file below ``parts`` of the folder is not listed with its
        content."""
        there = [part for part in parts if os.path.lexists(self.folder / part)]
        check_files(self.folder, files_below(self.folder, there), self.listed, hint=hint)

    def clear(self, parts: Iterable[str], hint: str = MOVE) -> None:
        """Remove the files below ``parts`` of the folder, in this order.

        Raises:
            InputError: one of them is not listed with its content; then nothing is removed.
        """
        there = [part for part in parts if os.path.lexists(self.folder / part)]
        self.check(there, hint)
        for part in there:
            remove_checked(self.folder, [*files_below(self.folder, [part])])
            remove_empty(self.folder / part)

    def forget(self, but: Iterable[str] = ()) -> None:
        """List nothing any more ``but`` these files."""
        with self._lock:
            kept = {file: self.listed[file] for file in but if file in self.listed}
            lines = []
            for file, contents in kept.items():
                lines += [_line(file, content) for content in contents]
            if lines:
                write_file(self.path, b"".join(lines))
            elif self.path.is_file() and not self.path.is_symlink():
                self.path.unlink()
            self._listed = kept

    def _append(self, line: bytes) -> None:
        if self.path.is_symlink():
            raise InputError(f"{self.path} is a link", hint=MOVE)
        # One write: after a kill the line is there, or is torn. The first line feed ends one that
        # is.
        with self.path.open("ab", buffering=0) as file:
            file.write(line if self._appended else b"\n" + line)
        self._appended = True

    def _read(self) -> dict[str, set[FileSum]]:
        listed: dict[str, set[FileSum]] = {}
        if not self.path.exists():
            return listed
        with (
            reading(str(self.path), "a list of files"),
            open_file(inside(self.folder, self.path.name)) as file,
        ):
            for line in file:
                entry = _entry(line)
                if entry is not None:
                    name, content = entry
                    safe_name(name, f"a file of {self.path}")
                    listed.setdefault(name, set()).add(content)
        return listed


def _line(file: str, content: FileSum) -> bytes:
    """Return the line of a ledger on a file."""
    entry = {"file": file, "size": content[0], "sha256": content[1]}
    return f"{json.dumps(entry)}\n".encode()


def _entry(line: bytes) -> tuple[str, FileSum] | None:
    """Return the name and the content of a line of a ledger; None of a torn line, so that its file
    counts as somebody's."""
    with suppress(ValueError, TypeError, KeyError):
        content = parse_json(line)
        return str(content["file"]), (int(content["size"]), str(content["sha256"]))
    return None
