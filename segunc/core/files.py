"""Files that appear whole or not at all, JSON objects from disk, and the names that files may give to other files."""

from __future__ import annotations

import contextlib
import errno
import hashlib
import json
import os
import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO

from segunc.core.errors import InputError

PARTIAL_SUFFIX = ".segunc-partial"
"""Ending of files that are being written; whoever finds one may remove it while no run is under way."""
LONGEST_PART = 255
"""Bytes of one part of a name, as file systems allow them."""
_UNSAFE = re.compile(r"[\x00-\x1f\x7f-\x9f\\]|^[A-Za-z]:")
"""What is no part of a name: control characters, the separator and the drive letters of another system."""
_OF_NAMES = (errno.ENAMETOOLONG, errno.ENOTDIR, errno.EISDIR, errno.EEXIST, errno.EINVAL, errno.EILSEQ, errno.ELOOP)
"""Errors of a file system that another name would not have."""


def safe_name(name: Any, what: str, *, single: bool = False) -> str:
    """A name that came out of a file, where it can be nothing but a name: a relative path of plain parts, with ``/``.
    InputError, which says ``what`` it names, for anything else (absolute, ``..``, an empty part, a backslash, control
    characters, no text at all), and for more than one part where only a ``single`` one is allowed, as for scores."""
    try:
        parts = name.split("/") if isinstance(name, str) and not _UNSAFE.search(name) else [""]
        safe = all(part not in ("", ".", "..") and len(part.encode()) <= LONGEST_PART for part in parts)
    except UnicodeEncodeError:  # bytes of a file name that are no UTF-8
        safe = False
    if safe and (len(parts) == 1 or not single):
        return str(name)
    kind = "a name without slashes" if single else "a relative path without '..', backslashes and control characters"
    raise InputError(f"{what} is named {ascii(name)[:80]}", kind, "use no files of unknown origin, or make them again")


def inside(folder: Path, name: str) -> Path:
    """The path of a name in a folder; InputError where the name is not safe, or a link leads out of the folder."""
    path = folder / safe_name(name, f"a file of {folder}")
    if not Path(os.path.realpath(path)).is_relative_to(os.path.realpath(folder)):
        raise InputError(f"{path} leads out of {folder}", "a file of its own", "put the file in the place of the link")
    return path


def require_file(path: Path) -> None:
    """OSError where a path is no file to read: it is missing, a link that leads nowhere, or a pipe, whose reader would wait for ever."""
    if not path.is_file():
        path.stat()
        raise OSError(errno.EINVAL, "it is no file")


def is_named_file(path: Path) -> bool:
    """Whether a path is a file, or a link that leads nowhere: whoever reads that says so, while to pass it over would be silent."""
    return path.is_file() or (path.is_symlink() and not path.exists())


def open_new(path: Path) -> BinaryIO:
    """A file to write, new whatever was there: what an old one is linked to stays as it is."""
    path.unlink(missing_ok=True)
    return path.open("xb")


def partial_of(path: Path) -> Path:
    """The hidden neighbour that a file is written to before it takes its name, which may be as long as a file system allows."""
    name = f".{path.name}{PARTIAL_SUFFIX}"
    if len(os.fsencode(name)) > LONGEST_PART:
        name = f".{hashlib.blake2b(os.fsencode(name), digest_size=16).hexdigest()}{PARTIAL_SUFFIX}"
    return path.with_name(name)


@contextlib.contextmanager
def replacing(path: Path) -> Iterator[BinaryIO]:
    """A file to write that takes a path's place when it is whole; after an error everything is as before."""
    partial = partial_of(path)
    try:
        with open_new(partial) as file:
            yield file
        os.replace(partial, path)
    except BaseException:
        partial.unlink(missing_ok=True)
        raise


def write_atomically(path: Path, data: bytes) -> None:
    """Write a file so that it is either absent, as before, or whole."""
    with replacing(path) as file:
        file.write(data)


def write_file(path: Path, data: bytes) -> None:
    """:func:`write_atomically` into a folder that is made where it is missing; InputError where the fault is the name's alone, which is
    too long, or below a file."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(path, data)
    except OSError as error:
        if error.errno not in _OF_NAMES:
            raise
        given = f"{path} cannot be written ({error.strerror})"
        raise InputError(
            given, "a name that the file system takes, and no file above it", "rename the frame"
        ) from error


def write_json(path: Path, content: Any) -> None:
    """Write readable JSON atomically; NaN is refused."""
    write_atomically(path, (json.dumps(content, indent=2, ensure_ascii=False, allow_nan=False) + "\n").encode())


def expected_space(out: Path, what: str, each: int, frames: int | None, coming: int | None, remedy: str) -> str:
    """One line on the bytes that files of frames take, ``each`` of them, all ``frames`` and what is free; None is an unknown number.
    InputError, with a remedy, where the frames still ``coming`` do not fit."""
    free = shutil.disk_usage(out).free
    if coming is not None and coming * each > free:
        given = f"the {what} of {coming} more frames take {_bytes(coming * each)} ({_bytes(each)} a frame), and {_bytes(free)} are free"
        raise InputError(f"{given} for {out}", f"{_bytes(coming * each)} of free space", remedy)
    of_all = "" if frames is None else f", {_bytes(frames * each)} for all {frames} frames"
    return f"{what} take {_bytes(each)} a frame{of_all}; {_bytes(free)} are free"


def _bytes(count: int) -> str:
    """In the largest unit that leaves a number from 1 on, of powers of 1000."""
    units = ("bytes", "kB", "MB", "GB", "TB")
    step = min((len(str(count)) - 1) // 3, len(units) - 1)
    return f"{count / 1000**step:.3g} {units[step]}"


def read_json(path: Path, what: str) -> dict[str, Any]:
    """A JSON object from a file; InputError, which says ``what`` it should hold, where it is missing or no such object."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise InputError(f"{path} cannot be read ({error.strerror})", what, "check the path") from error
    except ValueError as error:
        raise InputError(f"{path} is not valid JSON ({error})", what, "write it again") from error
    if not isinstance(content, dict):
        raise InputError(f"{path} holds a {type(content).__name__}", what, "write it again")
    return content


def link_or_copy(source: Path, target: Path) -> None:
    """A hard link to a file in place of whatever is there, or a copy where the file system has none."""
    target.unlink(missing_ok=True)
    try:
        os.link(source.resolve(), target)
    except OSError:
        shutil.copy2(source, target)
