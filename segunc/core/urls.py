"""Files under URLs (``https://``, ``s3://``, ``gs://``): listed and read by fsspec, and kept in a
local cache with a limit.

fsspec's own ``filecache`` has no limit, and takes every file behind HTTP for one that never
changes. So the cache is ours: a file is found again by its URL and by what the server says of its
version, and the files that were used last stay.
"""

from __future__ import annotations

import atexit
import contextlib
import fcntl
import hashlib
import logging
import os
import re
import tempfile
import threading
import time
import warnings
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import cache, partial
from pathlib import Path, PurePosixPath
from typing import Any, BinaryIO, Self, TypeVar
from urllib.parse import unquote, urlsplit, urlunsplit

from segunc.core.errors import InputError, NoteWarning, one_line
from segunc.core.files import (
    CACHE_VARIABLE,
    PARTIAL_SUFFIX,
    cache_place,
    inside,
    link_or_copy,
    open_file,
    own_folder,
    read_text,
    write_atomically,
)
from segunc.core.removal import remove_cached, remove_own_folder, replace_cached

Result = TypeVar("Result")

LIMIT_VARIABLE = "SEGUNC_CACHE_BYTES"
"""Environment variable: the most bytes that downloads may take."""
DEFAULT_LIMIT = 20 * 10**9
PIECE = 16 * 2**20
"""Bytes of a larger file that are asked for at once, so that a broken connection loses no more."""
WAITS = (0.5, 2.0, 6.0)
"""Seconds before the second, third and fourth try."""
PROBE_NAME = ".segunc-probe"
"""Name of an empty file by which is tried whether files can be written."""
CONNECTIONS = 8
"""Files that are downloaded at once."""
KEPT_SHARE = 0.9
"""Share of the limit that is left when room is made, so that not each download looks for room."""
SCAN_SECONDS = 30.0
"""Age at which the size of the cache is measured again: other processes fill it, too."""
STALE_SECONDS = 30 * 24 * 3600.0
"""Age from which on a part of a file is what a killed run has left, and a note is forgotten."""
NOTE_SUFFIX = ".note"
"""Ending of what is remembered of a file whose download may be gone."""
EXTRAS = {"s3": "cloud", "s3a": "cloud", "http": "cloud", "https": "cloud", "gs": "gcs"}
"""The extra that brings the library of a kind of URL."""
CREDENTIALS = {"gs": "GOOGLE_APPLICATION_CREDENTIALS"}
"""The variable that names the account of a kind of URL; of all others it is AWS_PROFILE."""
TAG_KEYS = ("ETag", "etag", "generation", "Content-MD5", "md5Hash", "Digest")
"""What file systems call a tag of the content of a file."""
TIME_KEYS = ("LastModified", "Last-Modified", "mtime", "updated", "created")
"""What file systems call the time of its last change, which counts where there is no tag."""
STREAM_SCHEMES = ("http", "https", "rtmp", "rtmps", "rtp", "rtsp", "rtsps", "srt", "tcp", "udp")
"""Kinds of URL that can be a stream of frames; what stands behind ``?`` in them may be secret."""
PIPE = "-"
"""Names standard input."""
CAMERA = "camera:"
"""Stands before the number of a camera of this machine."""
_SECRET_IN_PATH = re.compile(r"(?i)((?:pass|pwd|token|secret|auth|key)[a-z]*=)[^/&]*")
_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+://")
_REFUSED = re.compile("Forbidden|AccessDenied|InvalidAccessKeyId|InvalidToken|ExpiredToken")
"""How servers that speak as S3 say that an account may not read."""
_TOPIC = re.compile(
    r"(?P<place>.+?):(?P<topic>/(?!/).*)|(?P<file>.+\.(?:mcap|bag|db3)):(?P<name>[^/].*)"
)
_RUN = f"{os.getpid()} {time.time_ns()}"
"""Stands for the version of a file of which the server tells none: each run downloads it anew."""


def is_url(text: object) -> bool:
    """Return whether a text is a URL, and no path of this machine."""
    return isinstance(text, str) and _SCHEME.match(text) is not None


def split_topic(spec: str | Path) -> tuple[str | Path, str | None]:
    """Return the place of a recording and its topic, of ``drive.mcap:/camera/front``.

    A path that exists is a place without a topic. The topic begins with ``/``, or stands behind
    the ending of a recording.
    """
    text = str(spec)
    if not is_url(text) and os.path.exists(os.path.expanduser(text)):
        return spec, None
    parts = _TOPIC.fullmatch(text)
    if parts is None:
        return spec, None
    return parts["place"] or parts["file"], parts["topic"] or parts["name"]


def shown_url(url: str) -> str:
    """Return a URL without what may be secret: user, password and the query behind ``?``.

    Some cameras take a password in the path of their stream; it is shown as ``***``.

    >>> shown_url("rtsp://me:secret@10.0.0.7:554/live?token=secret")
    'rtsp://10.0.0.7:554/live'
    """
    parts = urlsplit(url)
    host = parts.netloc.rpartition("@")[2]
    if parts.scheme not in STREAM_SCHEMES:
        return urlunsplit((parts.scheme, host, parts.path, parts.query, ""))
    path = parts.path
    if parts.scheme not in ("http", "https"):  # there the path names a file, by which it is known
        path = _SECRET_IN_PATH.sub(r"\1***", path)
    return urlunsplit((parts.scheme, host, path, "", ""))


def has_hidden_query(text: object) -> bool:
    """Return whether a text is the URL of a stream with a query; :func:`shown_url` leaves it out.

    >>> has_hidden_query("rtsp://10.0.0.7/live?channel=2"), has_hidden_query("rtsp://10.0.0.7/live")
    (True, False)
    """
    if not is_url(text):
        return False
    parts = urlsplit(str(text))
    return parts.scheme in STREAM_SCHEMES and bool(parts.query)


def is_live(text: object) -> bool:
    """Return whether a text names a source of frames that is no path and no URL: ``-`` is standard
    input, and ``camera:0`` the first camera.
    """
    return isinstance(text, str) and (text == PIPE or text.startswith(CAMERA))


@dataclass(frozen=True)
class RemoteFile:
    """One file under a URL."""

    url: str
    """Without secrets, for messages and records."""
    path: str
    """Its name for the file system."""
    system: Any
    """The file system of fsspec."""
    version: str | None = None
    """What tells it from an earlier file of its name; None before it was asked for."""
    size: int | None = None
    """Bytes; None before it was asked for, or where the server does not say."""

    def address(self) -> str:
        """Return the URL by which the file is opened; it may hold secrets."""
        return str(self.system.unstrip_protocol(self.path))

    def described(self) -> RemoteFile:
        """Return the file with its version and size, asking the server where they are unknown.

        Raises:
            InputError: there is no such file, or it may not be read.
        """
        if self.version is not None:
            return self
        info = _tried(self.url, lambda: self.system.info(self.path))
        version = _version(info)
        if version is None:
            version = f"run {_RUN}"
            _note_unversioned(self.url)
        return RemoteFile(self.url, self.path, self.system, version, info.get("size"))


_UNVERSIONED: set[str] = set()
"""Servers that were noted because they tell no versions."""


def _note_unversioned(url: str) -> None:
    """Warn once of a server that does not tell one version of a file from another."""
    server = urlsplit(url).netloc
    if server in _UNVERSIONED:
        return
    _UNVERSIONED.add(server)
    warnings.warn(
        f"the server of {url} says neither when it changed nor a tag of its content, so each run "
        "downloads its files anew",
        NoteWarning,
        stacklevel=3,
    )


def remote_file(url: str) -> RemoteFile:
    """Return the file of a URL; nothing is asked of the server."""
    system, path = _system_of(url)
    return RemoteFile(shown_url(url), path, system)


def upload(url: str, data: bytes) -> None:
    """Write a file under a URL.

    Raises:
        InputError: it cannot be written.
    """
    file = remote_file(url)
    _tried(file.url, lambda: file.system.pipe_file(file.path, data), "written")


def check_writable(url: str) -> None:
    """Check that files can be written below a URL, by one that is removed again.

    Raises:
        InputError: they cannot.
    """
    if url.startswith(("http://", "https://")):
        raise InputError(
            f"output {shown_url(url)} cannot be written, because web servers take no files",
            hint="give s3:// or gs://, or a folder of this machine",
        )
    if url.startswith("memory://"):
        warnings.warn(
            f"output {shown_url(url)} lies in the memory of this process, and is lost at its end",
            NoteWarning,
            stacklevel=2,
        )
    file = remote_file(f"{url}/{PROBE_NAME}")
    try:
        # A message names the place that the user gave, and not the file that tries it.
        _tried(shown_url(url), lambda: file.system.pipe_file(file.path, b""), "written")
    except InputError as error:
        if error.__cause__ is None or not _is_missing(error.__cause__):
            raise
        # Folders need not be there, so what is missing is what holds them.
        raise InputError(
            f"the bucket of {shown_url(url)} does not exist",
            hint="make it, or check the URL",
        ) from error
    with contextlib.suppress(Exception):  # an account may have the right to write alone
        file.system.rm_file(file.path)


def list_remote(url: str) -> dict[str, RemoteFile]:
    """Return all files below a folder, or behind a glob pattern, by their names below its root.

    The root of a pattern are its folders before the first wildcard.

    Raises:
        InputError: there is no such folder, it may not be listed, or the server is not reached.
    """
    system, path = _system_of(url)
    system.invalidate_cache()
    is_http = "http" in _protocols(system)
    # By default folders that cannot be listed are left out without a word.
    strict = {"on_error": "raise"} if is_http else {}
    root = root_of(path)
    if root == path:
        if is_http and not path.endswith("/"):
            # Servers redirect to this address, relative to which they write their links.
            path += "/"
        listed = _tried(shown_url(url), lambda: system.find(path, detail=True, **strict))
    else:
        listed = _tried(shown_url(url), lambda: system.glob(path, detail=True, **strict))
    shown_root = root_of(shown_url(url)).rstrip("/")
    files: dict[str, RemoteFile] = {}
    for name, info in listed.items():
        if info.get("type") == "directory":
            continue
        relative = name.removeprefix(root.rstrip("/")).lstrip("/")
        if is_http:
            relative = unquote(relative)
        if relative:
            shown = f"{shown_root}/{relative}"
            files[relative] = RemoteFile(shown, name, system, _version(info), info.get("size"))
    return files


def root_of(url: str) -> str:
    """Return the folders of a URL before its first wildcard, the URL itself without any."""
    if not has_wildcard(url):
        return url
    root = re.split(r"[*?\[]", url)[0]
    return root.rpartition("/")[0]


def has_wildcard(url: str) -> bool:
    """Return whether a URL is a glob pattern. Behind ``?`` of HTTP there is a query."""
    if url.startswith(("http://", "https://")):
        url = url.partition("?")[0]
    return re.search(r"[*?\[]", url) is not None


def _version(info: Mapping[str, Any]) -> str | None:
    """Return what a server says of the version of a file, None if it says nothing."""
    for keys in (TAG_KEYS, TIME_KEYS):
        said = [f"{key}={info[key]}" for key in keys if info.get(key)]
        if said:
            return f"size={info.get('size')} {' '.join(said)}"
    return None


def _protocols(system: Any) -> tuple[str, ...]:
    protocol = system.protocol
    return (protocol,) if isinstance(protocol, str) else tuple(protocol)


def _system_of(url: str) -> tuple[Any, str]:
    """Return the file system of a URL and the path in it.

    Raises:
        InputError: its library is not installed, or there is none for such URLs.
    """
    scheme = url.partition("://")[0].lower()
    extra = EXTRAS.get(scheme, "cloud")
    try:
        from fsspec.core import url_to_fs
    except ImportError as error:
        raise InputError(
            f"{shown_url(url)} is a URL, which needs fsspec", hint=f"pip install 'segunc[{extra}]'"
        ) from error
    if scheme == "gs":
        # gcsfs warns of each bucket whose kind it may not ask for, and reads it all the same.
        logging.getLogger("gcsfs").setLevel(logging.ERROR)
    try:
        system, path = url_to_fs(url)
    except ImportError as error:
        raise InputError(
            f"{shown_url(url)} needs a library that is not installed ({one_line(error)})",
            hint=f"pip install 'segunc[{extra}]'",
        ) from error
    except ValueError as error:
        raise InputError(
            f"{shown_url(url)} is a URL of the kind '{scheme}', which fsspec does not know",
            hint="give https://, s3:// or gs://, or a path",
        ) from error
    return system, str(path)


def _tried(url: str, action: Callable[[], Result], done: str = "read") -> Result:
    """Return the result of an action on a server, tried up to four times.

    Args:
        url: without secrets, for messages.
        action: asks the server.
        done: what the action does with the file, ``read`` or ``written``.

    Raises:
        InputError: it failed; at once where another try would not help.
    """
    variable = CREDENTIALS.get(urlsplit(url).scheme, "AWS_PROFILE")
    for wait in (*WAITS, None):
        try:
            return action()
        except Exception as raised:  # each library of a kind of server has its own
            error = _root_error(raised)
        if _is_missing(error):
            raise InputError(f"{url} does not exist", hint="check the URL") from error
        if _is_refusal(error):
            raise InputError(
                f"{url} may not be {done} with the present account ({_reason(error)})",
                hint=f"check the rights and the credentials, e.g. {variable}",
            ) from error
        if wait is None:
            raise InputError(
                f"{url} cannot be {done}, after {len(WAITS) + 1} tries ({_reason(error)})",
                hint="check the connection and run the same command again",
            ) from error
        time.sleep(wait)
    raise AssertionError("the last try returns or raises")


def _root_error(error: BaseException) -> BaseException:
    """Return what went wrong on the server: fsspec calls every failure of HTTP a missing file."""
    if isinstance(error, FileNotFoundError) and isinstance(error.__cause__, Exception):
        return error.__cause__
    return error


def _status(error: BaseException) -> object:
    """Return the status that a server answered; None where the error holds none."""
    return getattr(error, "status", None) or getattr(error, "code", None)


def _is_missing(error: BaseException) -> bool:
    """Return whether an error says that there is no such file or bucket."""
    if isinstance(error, FileNotFoundError) or _status(error) in (404, 410):
        return True
    return "NoSuchBucket" in str(error)


def _is_refusal(error: BaseException) -> bool:
    """Return whether an error says that the account has no right or no credentials."""
    if isinstance(error, PermissionError) or _status(error) in (401, 403):
        return True
    return "Credential" in type(error).__name__ or _REFUSED.search(str(error)) is not None


def _reason(error: BaseException) -> str:
    """Return an error of a library in some words, without URLs, which may hold secrets."""
    text = " ".join(str(getattr(error, "message", "") or error).split())
    text = re.sub(r"\S+://\S+", "URL", text)
    return text[:160] or type(error).__name__


@dataclass
class Download:
    """A file of the cache that stays until :meth:`close`, or until this process ends."""

    path: Path
    _handle: BinaryIO = field(repr=False)

    def close(self) -> None:
        """Let the cache remove the file when it needs room."""
        self._handle.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def download(file: RemoteFile) -> Download:
    """Return a local copy of a file, downloaded unless the cache holds this version of it.

    Raises:
        InputError: the file cannot be read, or the cache cannot hold it.
    """
    file = file.described()
    folder = cache_folder()
    path = folder / f"{_key(file)}{PurePosixPath(file.url).suffix[:16]}"
    held = _hold(path)
    if held is None:
        _make_room(folder, file.size or 0)
        with _new_file(folder) as incomplete:
            _transfer(file, incomplete)
            replace_cached(incomplete, path)
        held = _hold(path)
    if held is None:
        raise InputError(
            f"{path} was removed while it was in use", hint="run the same command again"
        )
    os.utime(path)
    return Download(path, held)


def _key(file: RemoteFile) -> str:
    """Return what names a version of a file in the cache."""
    endpoint = getattr(file.system, "endpoint_url", None) or ""  # of a server that speaks as S3
    text = f"{file.url}\n{endpoint}\n{file.path}\n{file.version}"
    return hashlib.sha256(text.encode()).hexdigest()[:32]


def remembered(file: RemoteFile, compute: Callable[[Path], str]) -> str:
    """Return a short text on a version of a file, such as a hash.

    It is computed once and remembered, so that a later run does not download the file for it.

    Raises:
        InputError: as :func:`download` does.
    """
    file = file.described()
    note = cache_folder() / f"{_key(file)}{NOTE_SUFFIX}"
    with contextlib.suppress(OSError, ValueError):
        text = read_text(note)
        os.utime(note)
        return text
    with download(file) as local:
        text = compute(local.path)
    write_atomically(note, text.encode())
    return text


_URLS_OF_COPIES: dict[Path, str] = {}
"""The URL, without secrets, of each folder that this process has copied."""


@cache
def download_folder(url: str) -> Path:
    """Return a local folder with all files below a URL, under their names.

    The folder has the name of the URL's last part, which titles of pages show.

    Files of which the cache holds this version are not downloaded again. The folder is removed
    when this process ends; asked again, the process gets the same folder.

    Raises:
        InputError: a file cannot be read or has a name that no folder may hold.
    """
    files = list_remote(url)
    if not files:
        raise InputError(f"folder {shown_url(url)} holds no file", hint="check the URL")
    folder = inside(_run_folder(), _last_name(url))
    folder.mkdir()
    _URLS_OF_COPIES[folder] = shown_url(url).rstrip("/")

    def fetch(name: str) -> None:
        target = inside(folder, name)
        target.parent.mkdir(parents=True, exist_ok=True)
        with download(files[name]) as local:
            # A second name of the same file, which stays when the cache removes its own.
            link_or_copy(local.path, target)

    with ThreadPoolExecutor(CONNECTIONS) as pool:
        for done in [pool.submit(fetch, name) for name in files]:
            try:
                done.result()
            except BaseException:
                pool.shutdown(cancel_futures=True)
                raise
    return folder


def local_folder(place: str | Path) -> Path:
    """Return a folder of this machine: a path as it is, a copy of what lies under a URL."""
    return download_folder(str(place)) if is_url(place) else Path(place)


def _last_name(url: str) -> str:
    """Return the last part of a URL, which may be its server or its bucket."""
    parts = urlsplit(root_of(shown_url(url)).rstrip("/"))
    return unquote(PurePosixPath(parts.path).name) or parts.netloc


def place_of(folder: Path) -> str:
    """Return what a user knows a folder by: the URL of which it is a copy, or else its path."""
    for copy in (folder, *folder.parents):
        if copy in _URLS_OF_COPIES:
            below = folder.relative_to(copy).as_posix()
            return "/".join([_URLS_OF_COPIES[copy], below]).removesuffix("/.")
    return str(folder)


def _run_folder() -> Path:
    """Make an empty folder that is removed when this process ends."""
    process = os.getpid()
    folder = Path(tempfile.mkdtemp(prefix=f".run.{process}.", dir=cache_folder()))
    atexit.register(remove_own_folder, folder, process)
    return folder


def cache_folder(name: str = "downloads") -> Path:
    """Return a folder of the cache, that of downloads by default, made where it is missing.

    Raises:
        InputError: others can write there, or it cannot be made.
    """
    cache = cache_place()
    if cache is None:
        raise InputError(
            "there is no folder for downloads, because this user has no home",
            hint=f"set the variable {CACHE_VARIABLE} to a folder",
        )
    folder = cache.absolute() / name
    if not own_folder(folder):
        raise InputError(
            f"{folder} cannot be made, or others can write there, so it is no cache",
            hint=f"set the variable {CACHE_VARIABLE} to a folder of your own",
        )
    return folder


def _limit() -> int:
    """Return the most bytes of the cache.

    Raises:
        InputError: the variable is not a whole number.
    """
    text = os.environ.get(LIMIT_VARIABLE, str(DEFAULT_LIMIT))
    if not text.isascii() or not text.isdigit():
        raise InputError(
            f"the variable {LIMIT_VARIABLE} is '{text}', which is not a number of bytes",
            hint=f"{LIMIT_VARIABLE}=20000000000",
        )
    return int(text)


def _hold(path: Path) -> BinaryIO | None:
    """Open a file of the cache and keep it from being removed; None where it is not there."""
    try:
        handle = open_file(path)
    except FileNotFoundError:
        return None
    with contextlib.suppress(OSError):  # a file system without locks
        fcntl.flock(handle, fcntl.LOCK_SH | fcntl.LOCK_NB)
    try:
        is_in_place = os.path.samestat(os.fstat(handle.fileno()), path.stat())
    except FileNotFoundError:
        is_in_place = False
    if is_in_place:
        return handle
    handle.close()
    return None


@dataclass
class _Size:
    """The bytes of a cache folder when it was measured, and what this process added since."""

    total: int
    measured: float


_SIZES: dict[Path, _Size] = {}
_SIZES_LOCK = threading.Lock()


def _make_room(folder: Path, needed: int) -> None:
    """Remove the files that were used longest ago, if so many more bytes would exceed the limit.

    Files that a process holds stay. So a single file larger than the limit is still kept while it
    is in use.
    """
    limit = _limit()
    with _SIZES_LOCK:
        size = _SIZES.get(folder)
        is_old = size is None or time.monotonic() - size.measured > SCAN_SECONDS
        if size is None or is_old or size.total + needed > limit:
            size = _Size(_shrunk(folder, limit, needed), time.monotonic())
            _SIZES[folder] = size
        size.total += needed


def _shrunk(folder: Path, limit: int, needed: int) -> int:
    """Remove files if the cache and the bytes to come exceed the limit.

    Returns:
        The bytes of the cache that are left.
    """
    files: list[tuple[float, int, Path]] = []
    for path in folder.iterdir():
        with contextlib.suppress(FileNotFoundError):
            status = path.stat()
            if path.is_dir() or path.name.endswith((PARTIAL_SUFFIX, NOTE_SUFFIX)):
                # Nothing needs a folder of an earlier run, a part of a file or a note any more.
                if time.time() - status.st_mtime > STALE_SECONDS:
                    remove_cached(path)
                continue
            files.append((status.st_mtime, status.st_size, path))
    total = sum(size for _, size, _ in files)
    if total + needed <= limit:
        return total
    for _, size, path in sorted(files):
        if total + needed <= KEPT_SHARE * limit:
            break
        if _remove_unused(path):
            total -= size
    return total


def _remove_unused(path: Path) -> bool:
    """Remove a file of the cache unless a process holds it; return whether it is gone."""
    try:
        with open_file(path) as handle:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            remove_cached(path)
    except FileNotFoundError:
        return True
    except OSError:
        return False
    return True


@contextlib.contextmanager
def _new_file(folder: Path) -> Iterator[Path]:
    """Yield the name of a new file, which is removed if it is still there at the end."""
    descriptor, name = tempfile.mkstemp(suffix=PARTIAL_SUFFIX, dir=folder)
    os.close(descriptor)
    incomplete = Path(name)
    try:
        yield incomplete
    finally:
        remove_cached(incomplete)


def _transfer(file: RemoteFile, target: Path) -> None:
    """Download a file: a small one at once, a larger one in pieces that are retried one by one.

    Raises:
        InputError: it cannot be read, or it changed meanwhile.
    """
    try:
        if file.size is None or file.size <= PIECE or not _transfer_pieces(file, target):
            _tried(file.url, lambda: _transfer_whole(file, target))
    except OSError as error:
        raise InputError(
            f"{file.url} cannot be stored in {target.parent} ({error.strerror})",
            hint=f"free space, or set the variable {CACHE_VARIABLE}",
        ) from error


def _transfer_whole(file: RemoteFile, target: Path) -> None:
    file.system.get_file(file.path, str(target))
    size = target.stat().st_size
    if file.size is not None and size != file.size:
        raise ConnectionError(f"{size} of {file.size} bytes came")


def _transfer_pieces(file: RemoteFile, target: Path) -> bool:
    """Download a file in pieces; return False where the server gives only whole files."""
    assert file.size is not None
    with target.open("wb") as output:
        for start in range(0, file.size, PIECE):
            end = min(start + PIECE, file.size)
            piece = _tried(file.url, partial(_piece, file, start, end))
            if piece is None:
                return False
            output.write(piece)
    now = _version(_tried(file.url, lambda: file.system.info(file.path)))
    if now is not None and now != file.version:
        raise InputError(
            f"{file.url} changed while it was downloaded", hint="run the same command again"
        )
    return True


def _piece(file: RemoteFile, start: int, end: int) -> bytes | None:
    """Return the bytes from ``start`` to before ``end``; None where the server gives the file."""
    data: bytes = file.system.cat_file(file.path, start=start, end=end)
    if len(data) == file.size:
        return None
    if len(data) != end - start:
        raise ConnectionError(f"{len(data)} of {end - start} bytes came")
    return data
