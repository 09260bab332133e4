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
import warnings
import zipfile
from collections.abc import Collection, Iterable, Iterator, Mapping
from difflib import get_close_matches
from pathlib import Path
from typing import Any, BinaryIO, NoReturn, Self

from segunc.core.errors import InputError, NoteWarning, one_line

PARTIAL_SUFFIX = ".segunc-partial"
"""Ending of files that are being written; they may be removed while no run is under way."""
CACHE_VARIABLE = "SEGUNC_CACHE"
"""The environment variable that names the folder of the caches."""
MAX_SHOWN_VALUE = 100  # characters of a setting that a message shows
HASH_BLOCK = 1 << 20
"""Bytes of a file that are in memory while it is hashed."""
MAX_DEPTH = 100
"""Levels of lists and objects in a JSON or YAML file."""
START_SECONDS = 30.0
"""How long a run waits for another one that is making the same folder."""
RECORD_FORMAT = 2
_SEAL = "record_sha256"
_UNSAFE = re.compile(r"[\x00-\x1f\x7f-\x9f\\\ud800-\udfff]|^[A-Za-z]:")
"""Control characters, bytes of file names that are no UTF-8, and the separator and the drive
letters of another system.
"""
_OTHER_BYTES = re.compile(r"[\udc80-\udcff]")
"""Bytes of a file name that are no UTF-8, as Python reads them."""
_FORMULA = re.compile(r"'*[=+\-@\t]")
"""The start of a text that a spreadsheet carries out, or one that would be read back as such."""
_NUMBER = re.compile(r"(?<![0-9]{9}\.)(?<![0-9])[0-9]+")


def safe_name(name: Any, what: str) -> str:
    """Return a name that came out of a file, if it is a relative path of plain parts with ``/``.

    Args:
        name: the name; it may be anything that JSON can say.
        what: what it names, for the message.

    Raises:
        InputError: the name is not a text, or is absolute, or has ``..``, an empty part, a
            backslash or control characters.
    """
    if isinstance(name, str) and not _UNSAFE.search(name):
        parts = name.split("/")
        if not {"", ".", ".."}.intersection(parts):
            return name
    raise InputError(
        f"{what} is named {ascii(name)[:80]}, which is not a relative path without '..', "
        "backslashes and control characters",
        hint="use no files of unknown origin, or make them again",
    )


def shown_name(name: str) -> str:
    """Return a file name as records and messages hold it: bytes that are no UTF-8 as ``\\xff``.

    >>> shown_name("caf\\udce9.png")
    'caf\\\\xe9.png'
    """
    return _OTHER_BYTES.sub(lambda byte: f"\\x{ord(byte[0]) - 0xDC00:02x}", name)


def frame_order(name: str) -> tuple[str, str]:
    """Return the key by which names of frames are sorted.

    Numbers count as numbers, so that ``frame_2`` stands before ``frame_10``; of equal names, such
    as ``1`` and ``01``, the text decides. Digits behind the point of a time in seconds since 1970
    are a fraction.
    """

    def comparable(match: re.Match[str]) -> str:
        digits = match[0].lstrip("0")
        return f"{len(digits):03}{digits}"  # of two numbers the longer is the larger

    return _NUMBER.sub(comparable, unicodedata.normalize("NFC", name)), name


def inside(folder: Path, name: str) -> Path:
    """Return the path of a name in a folder.

    Raises:
        InputError: the name is not safe, or a link leads out of the folder.
    """
    path = folder / safe_name(name, f"a file of {folder}")
    if not Path(os.path.realpath(path)).is_relative_to(os.path.realpath(folder)):
        raise InputError(
            f"{path} leads out of {folder}", hint="put the file in the place of the link"
        )
    return path


def unlinked(folder: Path, name: str) -> Path:
    """Return the path of a name in a folder in which no link is followed.

    Raises:
        InputError: the name is not safe, or a part of the path below the folder is a link.
    """
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
    """Open a file that comes from outside, to read its bytes.

    Every reader of the package goes through here.

    Raises:
        OSError: the path is missing, a broken link, a folder, or a pipe or device, whose reader may
            wait for ever.
    """
    return open(path, "rb", opener=_open_regular)


def _open_regular(path: str, flags: int) -> int:
    descriptor = os.open(path, flags | os.O_NONBLOCK)  # a pipe without a writer opens at once
    try:
        mode = os.fstat(descriptor).st_mode
        if stat.S_ISDIR(mode):
            raise OSError(errno.EISDIR, "it is a folder", path)
        if not stat.S_ISREG(mode):
            raise OSError(errno.EINVAL, "it is not a file", path)
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
    """Return the text of a file in UTF-8.

    Raises:
        OSError: as :func:`open_file` does.
        ValueError: the text has another encoding.
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


def _delimiter_of(header: str) -> str:
    """Return the character that ends the cells of a CSV file, by its header."""
    outside_quotes = re.sub('"[^"]*"', "", header)
    for delimiter in ",;\t":
        if delimiter in outside_quotes:
            return delimiter
    return ","


def read_rows(path: Path) -> list[list[str]]:
    """Return the rows of a CSV file that are not empty, the header first.

    Cells end at commas. Where the header has none, they end at semicolons, which spreadsheets write
    in countries with decimal commas, or at tabs.

    Raises:
        OSError: as :func:`open_file` does.
        ValueError: the file is not a CSV file.
    """
    try:
        text = read_text(path)
        delimiter = _delimiter_of(text.lstrip().partition("\n")[0])
        rows = csv.reader(io.StringIO(text, newline=""), delimiter=delimiter, strict=True)
        return [[_without_apostrophe(cell) for cell in row] for row in rows if row]
    except (ValueError, csv.Error) as error:
        raise ValueError(f"it is not a CSV file: {error}") from error


@contextlib.contextmanager
def reading(subject: str, expected: str, remedy: str = "write it again") -> Iterator[None]:
    """Turn OSError and ValueError of whatever reads a file into InputError.

    Args:
        subject: the file.
        expected: what it should be.
        remedy: the hint of the message, for a file of other content.
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
    """Return the folder of segunc below that of an environment variable, else below the home.

    None if the user has no home.
    """
    try:
        return Path(os.environ.get(variable) or Path.home() / usual) / "segunc"
    except RuntimeError:
        return None


def cache_place() -> Path | None:
    """Return the folder of this package's caches, which may not be there yet: ``SEGUNC_CACHE``, or
    ``segunc`` in the user's own cache; None for a user who has no home and names none.
    """
    named = os.environ.get(CACHE_VARIABLE)
    return Path(named) if named else user_folder("XDG_CACHE_HOME", ".cache")


def check_place(path: Path, *, folder: bool = False) -> None:
    """Check that a result may be written at a path.

    Raises:
        InputError: anything but a plain file (or a folder, with ``folder``) is there, such as a
            device, whose node a result would replace; or the path lies below a file.
    """
    try:
        mode = os.stat(path).st_mode
    except FileNotFoundError:
        return
    except OSError as error:
        raise InputError(
            f"{path} cannot be written ({error.strerror})", hint="give another path"
        ) from error
    wanted = "a folder" if folder else "a file"
    kind = _kind_of_place(mode)
    if kind != wanted:
        raise InputError(f"{path} is {kind}, not {wanted}", hint="give another path")


def _kind_of_place(mode: int) -> str:
    """Return what the mode of a path says that it is, in words."""
    if stat.S_ISREG(mode):
        return "a file"
    if stat.S_ISDIR(mode):
        return "a folder"
    return "a device, pipe or socket"


def own_folder(path: Path) -> bool:
    """Make a folder that others cannot enter, and return whether only this user can write there.

    The user (and root) alone can write there if the folder is the user's own and no link, and
    neither it nor any folder above it can be written by others, except sticky ones as /tmp.
    """
    try:
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
        folder = path.lstat()
        parents = [parent.stat() for parent in path.resolve().parents]
    except OSError:
        return False
    if not stat.S_ISDIR(folder.st_mode) or folder.st_uid != os.getuid():
        return False
    if folder.st_mode & _WRITABLE_BY_OTHERS:
        return False
    return all(_is_safe_parent(parent) for parent in parents)


def _is_safe_parent(folder: os.stat_result) -> bool:
    """Return whether only this user and root can replace what lies in a folder."""
    is_trusted = folder.st_uid in (os.getuid(), 0)
    is_writable = folder.st_mode & _WRITABLE_BY_OTHERS
    is_sticky = folder.st_mode & stat.S_ISVTX
    return is_trusted and bool(not is_writable or is_sticky)


_WRITABLE_BY_OTHERS = stat.S_IWGRP | stat.S_IWOTH


@contextlib.contextmanager
def replacing(path: Path) -> Iterator[BinaryIO]:
    """Open a file to write that takes a path's place when it is whole.

    After an error everything is as before.

    Raises:
        InputError: anything but a file is at the path.
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
    """Return readable JSON in UTF-8; NaN is refused.

    Raises:
        InputError: a text holds bytes of a file name that are no UTF-8.
    """
    return _encoded(json.dumps(content, indent=2, ensure_ascii=False, allow_nan=False) + "\n")


def _encoded(text: str) -> bytes:
    """Return JSON in UTF-8; raises InputError as :func:`json_bytes` does."""
    try:
        return text.encode()
    except UnicodeEncodeError as error:
        begin = text.rfind('"', 0, error.start) + 1
        name = text[begin : text.find('"', error.start)]
        raise InputError(
            f"no record can hold {shown_name(name)}, because it is not UTF-8",
            hint="rename the file or its folder",
        ) from error


def csv_text(rows: Iterable[Iterable[object]]) -> str:
    """Return rows as CSV, None as an empty cell.

    A text that a spreadsheet would carry out as a formula, such as the name ``=1.png``, stands
    behind an apostrophe, which :func:`read_rows` takes away.
    """
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
    """Return what JSON in UTF-8 says.

    Raises:
        ValueError: the data are anything else, hold NaN, or are nested deeper than
            :data:`MAX_DEPTH`.
    """

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
    """Raise ValueError if lists and objects are nested deeper than :data:`MAX_DEPTH`.

    What reads or writes them calls itself for each level.
    """
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
    """Return the JSON object in a file.

    Raises:
        InputError: the file is missing or holds no JSON object; the message says ``what`` it should
            hold.
    """
    with reading(str(path), "valid JSON"):
        content = parse_json(read_bytes(path))
    if not isinstance(content, dict):
        raise InputError(
            f"{path} holds a {type(content).__name__}, not {what}", hint="write it again"
        )
    return content


def read_result(path: Path, kind: str, keys: Collection[str], by: str) -> dict[str, Any]:
    """Return the JSON object that a command wrote, ``segunc KIND`` of version 1.

    Args:
        path: the file.
        kind: what it should be.
        keys: what it must have.
        by: the command that writes it, for the hint.

    Raises:
        InputError: the file holds something else, or lacks a key.
    """
    content = read_json(path, f"a {kind} of segunc")
    is_known = content.get("kind") == f"segunc {kind}" and content.get("version") == 1
    if not is_known:
        raise InputError(
            f"{path} is not a {kind} of segunc in version 1",
            hint=f"make the file again with {by} of this version",
        )
    missing = set(keys) - content.keys()
    if missing:
        raise InputError(f"{path} lacks {min(missing)}", hint="restore it, or make it again")
    return without_seal(content, path)


def write_result(path: Path, content: Mapping[str, Any]) -> None:
    """Write the JSON object that a command measured, with the hash that shows a later edit."""
    plain = json.loads(json.dumps(content, allow_nan=False))
    write_json(path, {**plain, _SEAL: json_sha256(plain)})


def has_seal(path: Path) -> bool:
    """Return whether a result holds the hash of itself that shows a later edit."""
    return _SEAL in read_json(path, "a result of segunc")


def note_without_seal(path: Path, by: str) -> None:
    """Warn of a result in which a later edit would not show.

    Args:
        path: of the file.
        by: the command that makes it again.
    """
    if not has_seal(path):
        warnings.warn(
            f"{path} holds no hash of itself ({_SEAL}), so a later edit cannot be noticed; "
            f"{by} makes it again",
            NoteWarning,
            stacklevel=2,
        )


def without_seal(content: Mapping[str, Any], path: Path) -> dict[str, Any]:
    """Return what :func:`write_result` was given.

    A file without a hash is of an earlier version or of another tool, and is returned as it is.

    Args:
        content: of the file.
        path: of the file, for the message.

    Raises:
        InputError: anything in it has changed since it was written.
    """
    inner = {key: value for key, value in content.items() if key != _SEAL}
    if _SEAL in content and content[_SEAL] != json_sha256(inner):
        raise InputError(
            f"{path} has changed since it was written", hint="restore it, or make it again"
        )
    return inner


def plain_record(content: Mapping[str, Any]) -> dict[str, Any]:
    """Return a record as :func:`read_record` gives it back: with its format, lists for tuples."""
    return {"format": RECORD_FORMAT, **json.loads(json.dumps(content, allow_nan=False))}


def write_record(path: Path, content: Mapping[str, Any]) -> None:
    """Write what a model folder says of a fit, with its format and the hash that binds it all."""
    plain = plain_record(content)
    write_json(path, {**plain, _SEAL: json_sha256(plain)})


def is_record(path: Path) -> bool:
    """Return whether a file is a record of :func:`write_record` of a fit on a network.

    It may have changed since.
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
    """Return what :func:`write_record` wrote, with its format.

    Raises:
        InputError: anything in it has changed since.
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
        if isinstance(value, Mapping) and value:
            flattened |= flat(value, f"{prefix}{key}.")
        else:
            flattened[f"{prefix}{key}"] = value
    return flattened


def differing_keys(old: Mapping[str, Any], new: Mapping[str, Any]) -> list[tuple[str, Any, Any]]:
    """Return the dotted keys in which two records differ as JSON, in order.

    Returns:
        Each key with the old and the new value, None for a key that a record lacks.
    """
    before = flat(json.loads(json.dumps(old)))
    after = flat(json.loads(json.dumps(new)))
    differing: list[tuple[str, Any, Any]] = []
    for key in sorted(before | after):
        is_in_one = (key in before) != (key in after)
        if is_in_one or before[key] != after[key]:
            differing.append((key, before.get(key), after.get(key)))
    return differing


def difference_words(key: str, before: Any, now: Any) -> str:
    """Return how a setting differs from an earlier one, with its values if they are short.

    >>> difference_words("draws", 4, 2)
    'draws = 4 (now 2)'
    >>> difference_words("levels", None, [*range(100)])
    'no levels (now there are some)'
    """
    shown = f"{key} = {before!r} (now {now!r})"
    if len(repr(before)) <= MAX_SHOWN_VALUE and len(repr(now)) <= MAX_SHOWN_VALUE:
        return shown
    if before is None:
        return f"no {key} (now there are some)"
    if now is None:
        return f"{key} (now there are none)"
    return f"other {key} than now"


def file_sha256(path: Path) -> str:
    """Return the SHA-256 of the content of a file, which may be larger than the memory."""
    digest = hashlib.sha256()
    with open_file(path) as file:
        while block := file.read(HASH_BLOCK):
            digest.update(block)
    return digest.hexdigest()


def json_sha256(content: Any) -> str:
    """Return the SHA-256 of what JSON says, whatever the order of its keys."""
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


def read_array(data: bytes) -> Any:
    """Return the array of an ``.npy`` file; ValueError for anything else, and for objects."""
    import numpy as np

    try:
        return np.lib.format.read_array(io.BytesIO(data), allow_pickle=False)
    # The header is Python, and what its damage raises has no common type.
    except Exception as error:
        raise ValueError(f"not an array of numbers ({one_line(error)})") from error


def read_arrays(data: bytes) -> dict[str, Any]:
    """Return the arrays of an ``.npz`` file; ValueError for anything else."""
    arrays: dict[str, Any] = {}
    try:
        # The archive compares the checksum of each array.
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            for name in archive.namelist():
                arrays[name.removesuffix(".npy")] = read_array(archive.read(name))
    except Exception as error:  # what a damaged archive raises has no common type
        raise ValueError(f"not an archive of arrays ({one_line(error)})") from error
    return arrays


def append_whole(file: BinaryIO, data: bytes) -> None:
    """Append bytes to a file that is open for appending without a buffer.

    Raises:
        OSError: they cannot be written whole, for example because the disk is full. What was
            written of them is cut, so that what is appended next does not go on in them.
    """
    start = os.fstat(file.fileno()).st_size
    written = 0
    try:
        # Where little room is left, a write puts down a part and raises nothing.
        while written < len(data):
            written += file.write(data[written:])
    except BaseException:  # also an interrupt: the bytes are there as a whole, or they are not
        os.ftruncate(file.fileno(), start)
        raise


class LineFile:
    """Appends JSON objects to a file, one a line. A line is with the operating system when
    :meth:`append` returns.

    Args:
        path: the file, which may not exist yet. A last line that a kill has torn is cut.

    Raises:
        InputError: anything but a plain file is at the path.
    """

    def __init__(self, path: Path) -> None:
        check_place(path)
        self.path = path
        if path.exists():
            _cut_torn_line(path)
        self._file = self.path.open("ab", buffering=0)

    def append(self, content: Mapping[str, Any]) -> None:
        """Append one object; NaN is refused. Raises OSError as :func:`append_whole` does, and
        InputError as :func:`json_bytes` does.
        """
        append_whole(self._file, _encoded(f"{json_line(content)}\n"))

    def close(self) -> None:
        """Close the file; a second call does nothing."""
        self._file.close()


def json_line(content: Mapping[str, Any]) -> str:
    """Return an object as JSON in one line, without its line break; NaN is refused."""
    return json.dumps(content, ensure_ascii=False, allow_nan=False)


def read_lines(path: Path) -> Iterator[dict[str, Any]]:
    """Yield the JSON objects of a file with one a line; lines that hold anything else are left out,
    and so is a last line without its line break, which :class:`LineFile` cuts.

    Raises:
        InputError: the file cannot be read.
    """
    with reading(str(path), "lines of JSON"), open_file(path) as file:
        for line in file:
            if not line.endswith(b"\n"):
                return
            with contextlib.suppress(ValueError):
                content = parse_json(line)
                if isinstance(content, dict):
                    yield content


def _cut_torn_line(path: Path) -> None:
    """Cut what stands behind the last line break of a file."""
    with reading(str(path), "a file of lines"), open_file(path) as file:
        end = size = file.seek(0, os.SEEK_END)
        torn = True
        while end and torn:
            start = max(0, end - HASH_BLOCK)
            file.seek(start)
            place = file.read(end - start).rfind(b"\n")
            torn = place < 0
            end = start if torn else start + place + 1
    if end < size:
        os.truncate(path, end)


def link_or_copy(source: Path, target: Path) -> None:
    """Put a hard link to a file in place of whatever is there, which stays until then.

    It is a copy if the file system has no links.
    """
    partial = target.with_name(f".{target.name}{PARTIAL_SUFFIX}")
    partial.unlink(missing_ok=True)
    try:
        os.link(source.resolve(), partial)
    except OSError:
        shutil.copy2(source, partial)
    os.replace(partial, target)
    partial.unlink(missing_ok=True)  # it stays where both are links to one file already


def make_output(out: Path) -> None:
    """Make the folder of a run, and those above it.

    Raises:
        InputError: it cannot be made.
    """
    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(
            f"output {out} cannot be made ({error.strerror})", hint="give another --out"
        ) from error


class Lock:
    """Hold a lock file until :meth:`release`, which removes it, or until this process ends.

    The file says who holds it (process id and host). The operating system locks it, and forgets the
    lock of a dead process; a symbolic link is not followed.

    Args:
        path: the lock file.
        what: is held, for the message.
        wait: seconds to wait for another run that holds it.

    Raises:
        InputError: another run holds it for longer.
    """

    def __init__(self, path: Path, what: str, wait: float = 0.0) -> None:
        # Here, because readers of maps import this module and lock nothing.
        from filelock import FileLock, Timeout

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
            # Before unlocking: whoever comes next makes a new file.
            self.path.unlink(missing_ok=True)
            self._lock.release()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.release()

    def _sign(self, handle: int) -> None:
        """Name the holder in the file.

        Its holder before may have removed it between our opening and locking it: a lock on that
        file holds nothing. The count of links does not tell everywhere: NFS keeps a removed file
        that is open under another name.
        """
        is_in_place = self.path.exists() and os.path.samestat(os.fstat(handle), self.path.lstat())
        if not is_in_place:
            raise _RemovedError
        os.truncate(handle, 0)
        os.pwrite(handle, f"{os.getpid()} {socket.gethostname()}\n".encode(), 0)


class _RemovedError(Exception):
    """The file that was locked is not the one under its name."""


def nearest_path(path: Path) -> str:
    """Return a question after the path that a missing one is likely to mean, as :func:`nearest`
    does for a name; empty if there is none.

    Only the first folder or file of the path that is missing may have another name.
    """
    first_missing = path
    for parent in path.parents:
        if parent.exists():
            break
        first_missing = parent
    folder = first_missing.parent
    try:
        names = {entry.name for entry in folder.iterdir() if not entry.name.startswith(".")}
    except OSError:  # a file, or a folder that may not be read
        return ""
    found = get_close_matches(first_missing.name, names, 1)
    if not found:
        return ""
    meant = folder / found[0]
    whole = meant / path.relative_to(first_missing)
    return f" (did you mean {whole if whole.exists() else meant}?)"
