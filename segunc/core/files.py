"""Read files from outside safely, write files that appear whole or not at all, and check names that
files give to other files.
"""

from __future__ import annotations

import contextlib
import csv
import errno
import hashlib
import io
import json
import os
import re
import shutil
import socket
import stat
import unicodedata
import zipfile
from collections.abc import Collection, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, BinaryIO, NoReturn, Self

from segunc.core.errors import InputError, one_line

PARTIAL_SUFFIX = ".segunc-partial"
"""Ending of files that are being written; whoever finds one may remove it while no run is under
way.
"""
MAX_DEPTH = 100  # levels of lists and objects in a JSON or YAML file
START_SECONDS = 30.0  # how long a run waits for another one that is making the same folder
RECORD_FORMAT, _SEAL = 2, "record_sha256"
_UNSAFE = re.compile(r"[\x00-\x1f\x7f-\x9f\\\ud800-\udfff]|^[A-Za-z]:")
"""Control characters, bytes of file names that are no UTF-8, and the separator and the drive
letters of another system.
"""
_FORMULA = re.compile(r"'*[=+\-@\t]")
"""The start of a text that a spreadsheet carries out, or one that would be read back as such."""
_NUMBER = re.compile(r"(?<![0-9]{9}\.)(?<![0-9])[0-9]+")


def safe_name(name: Any, what: str) -> str:
    """Return a name that came out of a file, if it is a relative path of plain parts with ``/``.
    InputError, which says ``what`` it names, for anything else: absolute, ``..``, an empty part, a
    backslash, control characters, no text.
    """
    parts = name.split("/") if isinstance(name, str) and not _UNSAFE.search(name) else [""]
    if not {"", ".", ".."}.intersection(parts):
        return str(name)
    message = f"{what} is named {ascii(name)[:80]}, which is no relative path without '..', backslashes and control characters"
    raise InputError(message, hint="use no files of unknown origin, or make them again")


def frame_order(name: str) -> tuple[str, str]:
    """Return the key by which names of frames are sorted: numbers as numbers, so that ``frame_2``
    stands before ``frame_10``; of equal names, such as ``1`` and ``01``, the text decides. Digits
    behind the point of a time in seconds since 1970 are a fraction.
    """

    def comparable(match: re.Match[str]) -> str:
        digits = match[0].lstrip("0")
        return f"{len(digits):03}{digits}"  # of two numbers the longer is the larger

    return _NUMBER.sub(comparable, unicodedata.normalize("NFC", name)), name


def inside(folder: Path, name: str) -> Path:
    """Return the path of a name in a folder; InputError where the name is not safe, or a link leads
    out of the folder.
    """
    path = folder / safe_name(name, f"a file of {folder}")
    if not Path(os.path.realpath(path)).is_relative_to(os.path.realpath(folder)):
        raise InputError(
            f"{path} leads out of {folder}", hint="put the file in the place of the link"
        )
    return path


def unlinked(folder: Path, name: str) -> Path:
    """Return the path of a name in a folder in which no link is followed; InputError where the name
    is not safe, or a part of the path below the folder is a link."""
    path = folder / safe_name(name, f"a file of {folder}")
    for part in (path, *path.parents):
        if part == folder:
            break
        if part.is_symlink():
            raise InputError(
                f"{part} is a link, and links inside of {folder} are not followed",
                hint="put the file or folder in the place of the link",
            )
    return path


def open_file(path: Path) -> BinaryIO:
    """Open a file that comes from outside, to read its bytes; every reader of the package goes
    through here. Raises OSError where the path is missing, a broken link, a folder, or a pipe or
    device, whose reader may wait for ever.
    """
    return open(path, "rb", opener=_open_regular)


def _open_regular(path: str, flags: int) -> int:
    descriptor = os.open(path, flags | os.O_NONBLOCK)  # a pipe without a writer opens at once
    try:
        if not stat.S_ISREG(mode := os.fstat(descriptor).st_mode):
            code, reason = (
                (errno.EISDIR, "it is a folder")
                if stat.S_ISDIR(mode)
                else (errno.EINVAL, "it is no file")
            )
            raise OSError(code, reason, path)
        os.set_blocking(descriptor, True)
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


def read_bytes(path: Path) -> bytes:
    """Return the bytes of a file; raises OSError as :func:`open_file` does."""
    with open_file(path) as file:
        return file.read()


def read_text(path: Path) -> str:
    """Return the text of a file in UTF-8; raises OSError as :func:`open_file` does, and ValueError
    for another encoding.
    """
    return _decoded(read_bytes(path))


def _decoded(data: bytes) -> str:
    try:
        return data.decode("utf-8-sig")  # without the byte order mark that Excel writes in front
    except UnicodeDecodeError as error:
        raise ValueError(
            f"it is not in UTF-8 ({error.reason} at byte {error.start}); save it in UTF-8"
        ) from error


def _without_apostrophe(cell: str) -> str:
    """Return a cell as it was before :func:`csv_text` wrote it."""
    return cell[1:] if cell.startswith("'") and _FORMULA.match(cell) else cell


def read_rows(path: Path) -> list[list[str]]:
    """Return the rows of a CSV file that are not empty, the header first; raises OSError, and
    ValueError for what is no CSV.
    """
    try:
        rows = csv.reader(io.StringIO(read_text(path), newline=""), strict=True)
        return [[_without_apostrophe(cell) for cell in row] for row in rows if row]
    except (ValueError, csv.Error) as error:
        raise ValueError(f"it is no CSV file: {error}") from error


@contextlib.contextmanager
def reading(subject: str, expected: str, remedy: str = "write it again") -> Iterator[None]:
    """Turn OSError and ValueError of whatever reads a file into InputError: ``subject``, the file,
    is not what is ``expected``.
    """
    try:
        yield
    except InputError:
        raise
    except OSError as error:
        raise InputError(
            f"{subject} cannot be read ({error.strerror})", hint="check the path"
        ) from error
    except ValueError as error:
        raise InputError(f"{subject} is not {expected} ({error})", hint=remedy) from error


def user_folder(variable: str, usual: str) -> Path | None:
    """Return the folder of segunc below that of an environment variable, else below the user's
    home; None where there is no home.
    """
    try:
        return Path(os.environ.get(variable) or Path.home() / usual) / "segunc"
    except RuntimeError:
        return None


def check_place(path: Path, *, folder: bool = False) -> None:
    """Raise InputError where a path is taken by anything but a plain file, or a folder (a device,
    whose node a result would replace), or lies below a file.
    """
    try:
        mode = os.stat(path).st_mode
    except FileNotFoundError:
        return
    except OSError as error:
        raise InputError(
            f"{path} cannot be written ({error.strerror})", hint="give another path"
        ) from error
    if not (stat.S_ISDIR if folder else stat.S_ISREG)(mode):
        what = (
            "a file"
            if stat.S_ISREG(mode)
            else "a folder"
            if stat.S_ISDIR(mode)
            else "a device, pipe or socket"
        )
        raise InputError(
            f"{path} is {what}, not a {'folder' if folder else 'file'}", hint="give another path"
        )


def own_folder(path: Path) -> bool:
    """Make a folder that others cannot enter where there is none, and return whether only this user
    (and root) can write there: the folder is the user's own and no link, and neither it nor any
    above it, but for sticky ones as /tmp, can be written by others.
    """
    try:
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
        folder, parents = path.lstat(), [parent.stat() for parent in path.resolve().parents]
    except OSError:
        return False
    writable = stat.S_IWGRP | stat.S_IWOTH
    ours = (
        stat.S_ISDIR(folder.st_mode)
        and folder.st_uid == os.getuid()
        and not folder.st_mode & writable
    )
    return ours and all(
        parent.st_uid in (os.getuid(), 0)
        and (not parent.st_mode & writable or parent.st_mode & stat.S_ISVTX)
        for parent in parents
    )


@contextlib.contextmanager
def replacing(path: Path) -> Iterator[BinaryIO]:
    """Open a file to write that takes a path's place when it is whole; after an error everything is
    as before. InputError where anything but a file is there.
    """
    check_place(path)
    # A hidden neighbour whose name fits a file system, however long the path's own is.
    digest = hashlib.blake2b(os.fsencode(path.name), digest_size=16).hexdigest()
    partial = path.with_name(f".{digest}{PARTIAL_SUFFIX}")
    try:
        partial.unlink(missing_ok=True)  # what an old link leads to stays as it is
        with partial.open("xb") as file:
            yield file
        os.replace(partial, path)
    except BaseException:
        partial.unlink(missing_ok=True)
        raise


_RECORDERS: list[dict[Path, tuple[int, str]]] = []
"""What :func:`recording` fills while runs are under way."""


@contextlib.contextmanager
def recording() -> Iterator[dict[Path, tuple[int, str]]]:
    """Note the size and the SHA-256 of each file that :func:`write_atomically` writes meanwhile."""
    written: dict[Path, tuple[int, str]] = {}
    _RECORDERS.append(written)
    try:
        yield written
    finally:
        _RECORDERS.remove(written)


def write_atomically(path: Path, data: bytes) -> None:
    """Write a file so that it is either absent, as before, or whole."""
    if _RECORDERS:
        content = len(data), hashlib.sha256(data).hexdigest()
        for written in _RECORDERS:
            written[path.absolute()] = content
    with replacing(path) as file:
        file.write(data)


def write_file(path: Path, data: bytes) -> None:
    """:func:`write_atomically` into a folder that is made where it is missing."""
    check_place(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(path, data)


def write_json(path: Path, content: Any) -> None:
    """:func:`write_file` of readable JSON; NaN is refused."""
    write_file(path, json_bytes(content))


def json_bytes(content: Any) -> bytes:
    """Return readable JSON in UTF-8; NaN is refused."""
    return (json.dumps(content, indent=2, ensure_ascii=False, allow_nan=False) + "\n").encode()


def csv_text(rows: Iterable[Iterable[object]]) -> str:
    """Return rows as CSV, None as an empty cell. A text that a spreadsheet would carry out as a
    formula, such as the name ``=1.png``, stands behind an apostrophe, which :func:`read_rows` takes
    away."""
    buffer = io.StringIO()
    writer = csv.writer(buffer, lineterminator="\n")
    for row in rows:
        writer.writerow(_as_text(cell) for cell in row)
    return buffer.getvalue()


def _as_text(cell: object) -> object:
    """Return a cell with an apostrophe before a text that a spreadsheet would carry out."""
    if isinstance(cell, str) and _FORMULA.match(cell):
        return f"'{cell}"
    return cell


def parse_json(data: bytes) -> Any:
    """Return what JSON in UTF-8 says; ValueError for anything else, also for NaN and for nesting
    deeper than :data:`MAX_DEPTH`."""

    def refuse(constant: str) -> NoReturn:
        raise ValueError(f"it holds {constant}")

    try:
        content = json.loads(_decoded(data), parse_constant=refuse)
    except RecursionError as error:
        raise ValueError(f"it is nested deeper than {MAX_DEPTH} levels") from error
    if data.count(b"[") + data.count(b"{") > MAX_DEPTH:
        check_depth(content)
    return content


def check_depth(content: Any) -> None:
    """Raise ValueError where lists and objects are nested deeper than :data:`MAX_DEPTH`: what reads
    or writes them calls itself."""
    level = [content]
    for _ in range(MAX_DEPTH + 1):
        inner: list[Any] = []
        for value in level:
            if isinstance(value, dict):
                inner += value.values()
            elif isinstance(value, list):
                inner += value
        level = [value for value in inner if isinstance(value, dict | list)]
        if not level:
            return
    raise ValueError(f"it is nested deeper than {MAX_DEPTH} levels")


def read_json(path: Path, what: str) -> dict[str, Any]:
    """Return the JSON object in a file; InputError, which says ``what`` it should hold, where it is
    missing or no JSON object.
    """
    with reading(str(path), "valid JSON"):
        content = parse_json(read_bytes(path))
    if not isinstance(content, dict):
        raise InputError(
            f"{path} holds a {type(content).__name__}, not {what}", hint="write it again"
        )
    return content


def read_result(path: Path, kind: str, keys: Collection[str], by: str) -> dict[str, Any]:
    """Return the JSON object that a command wrote, ``segunc KIND`` of version 1; InputError for any
    other, or one that lacks one of ``keys``.
    """
    content = read_json(path, f"a {kind} of segunc")
    if (content.get("kind"), content.get("version")) != (f"segunc {kind}", 1):
        raise InputError(
            f"{path} is no {kind} of segunc in version 1",
            hint=f"give what {by} wrote, of this version",
        )
    if missing := {*keys} - content.keys():
        raise InputError(f"{path} lacks {min(missing)}", hint="restore it, or make it again")
    return content


def write_record(path: Path, content: Mapping[str, Any]) -> None:
    """Write what a model folder says of a fit, with its format and the hash that binds
    all of it.
    """
    plain = {"format": RECORD_FORMAT, **json.loads(json.dumps(content, allow_nan=False))}
    write_json(path, {**plain, _SEAL: json_sha256(plain)})


def is_record(path: Path) -> bool:
    """Return whether a file is what :func:`write_record` wrote of a fit on a network, changed or
    not.
    """
    with contextlib.suppress(OSError, ValueError):
        content = parse_json(read_bytes(path))
        return isinstance(content, dict) and {"base_sha256", _SEAL} <= content.keys()
    return False


def is_whole_record(path: Path) -> bool:
    """Return whether a file is what :func:`write_record` wrote, unchanged."""
    with contextlib.suppress(InputError):
        read_record(path, "a record")
        return True
    return False


def read_record(path: Path, what: str) -> dict[str, Any]:
    """Return what :func:`write_record` wrote, with its format; InputError where anything in it has
    changed since.
    """
    content = read_json(path, what)
    bound = content.pop(_SEAL, None)
    if content.get("format") != RECORD_FORMAT:
        raise InputError(
            f"{path} is not {what} of format {RECORD_FORMAT}",
            hint="make it again with this version",
        )
    if bound != json_sha256(content):
        raise InputError(
            f"{path} has changed since it was written", hint="restore it, or make it again"
        )
    return content


def flat(values: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Return ``{"a": {"b": 1}}`` as ``{"a.b": 1}``; an empty object stays a value."""
    flattened: dict[str, Any] = {}
    for key, value in values.items():
        nested = isinstance(value, Mapping) and value
        flattened |= flat(value, f"{prefix}{key}.") if nested else {f"{prefix}{key}": value}
    return flattened


def differing_keys(old: Mapping[str, Any], new: Mapping[str, Any]) -> list[tuple[str, Any, Any]]:
    """Return the dotted keys in which two records differ as JSON, with both values, None where a
    key is absent.
    """
    before, after = (flat(json.loads(json.dumps(values))) for values in (old, new))
    keys = [
        key
        for key in before | after
        if before.get(key) != after.get(key) or (key in before) != (key in after)
    ]
    return [(key, before.get(key), after.get(key)) for key in sorted(keys)]


def file_sha256(path: Path) -> str:
    """Return the SHA-256 of the content of a file."""
    return hashlib.sha256(read_bytes(path)).hexdigest()


def json_sha256(content: Any) -> str:
    """Return the SHA-256 of what JSON says, whatever the order of its keys."""
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


def read_array(data: bytes) -> Any:
    """Return the array of an ``.npy`` file; ValueError for anything else, and for objects."""
    import numpy as np

    try:
        return np.lib.format.read_array(io.BytesIO(data), allow_pickle=False)
    except (
        Exception
    ) as error:  # the header is Python, and what its damage raises has no common type
        raise ValueError(f"no array of numbers ({one_line(error)})") from error


def read_arrays(data: bytes) -> dict[str, Any]:
    """Return the arrays of an ``.npz`` file; ValueError for anything else."""
    try:
        with zipfile.ZipFile(
            io.BytesIO(data)
        ) as archive:  # which compares the checksum of each array
            return {
                name.removesuffix(".npy"): read_array(archive.read(name))
                for name in archive.namelist()
            }
    except Exception as error:  # what a damaged archive raises has no common type
        raise ValueError(f"no archive of arrays ({one_line(error)})") from error


def link_or_copy(source: Path, target: Path) -> None:
    """Put a hard link to a file in place of whatever is there, or a copy where the file system has
    no links.
    """
    target.unlink(missing_ok=True)
    try:
        os.link(source.resolve(), target)
    except OSError:
        shutil.copy2(source, target)


class Lock:
    """Hold the lock file ``path`` until :meth:`release`, which removes it, or until this process
    ends, however it ends. InputError, which says ``what`` is held, where another run holds it for
    ``wait`` seconds. The file says who holds it (process id and host). The operating system locks
    it, and forgets the lock of a dead process; a symbolic link is not followed.
    """

    def __init__(self, path: Path, what: str, wait: float = 0.0) -> None:
        from filelock import (
            FileLock,
            Timeout,
        )  # here, because readers of maps import this module and lock nothing

        self.path = path
        self._lock = FileLock(path, wait, thread_local=False, on_acquired=self._sign)
        try:
            while not self._lock.is_locked:
                with contextlib.suppress(_RemovedError):
                    self._lock.acquire()
        except Timeout as error:
            holder = ""
            with contextlib.suppress(OSError, ValueError):
                process, host = read_text(path).split()[:2]
                holder = f" (process {int(process)} on {host})"
            hint = f"wait, or give another --out; if that run is gone, remove {path}"
            raise InputError(f"{what} is being written by another run{holder}", hint) from error

    def release(self) -> None:
        """Let go; a second call does nothing."""
        if self._lock.is_locked:
            self.path.unlink(
                missing_ok=True
            )  # before unlocking: whoever comes next makes a new file
            self._lock.release()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.release()

    def _sign(self, handle: int) -> None:
        """Name the holder in the file, unless its holder before removed it between our opening and
        locking it: a lock on that file holds nothing. The count of links does not tell everywhere:
        NFS keeps a removed file that is open under another name.
        """
        if not self.path.exists() or not os.path.samestat(os.fstat(handle), self.path.lstat()):
            raise _RemovedError
        os.truncate(handle, 0)
        os.pwrite(handle, f"{os.getpid()} {socket.gethostname()}\n".encode(), 0)


class _RemovedError(Exception):
    """The file that was locked is not the one under its name."""
