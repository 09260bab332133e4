"""A lock that keeps two runs out of one shard of a maps folder, on one machine or on several."""

from __future__ import annotations

import contextlib
import errno
import os
import re
import socket
import stat
import time
from collections.abc import Iterator
from pathlib import Path

from segunc.errors import InputError

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]

START_SECONDS = 30.0
"""How long a run waits for another one that is making the same folder."""
_HOLDER = re.compile(rb"(\d+ \S+\n)?")
"""What a lock holds: nothing yet, or a process and its host."""


class HeldError(InputError):
    """Another run holds the lock."""


class Lock:
    """Holds a file until :meth:`release`, or until this process ends, however it ends.

    The file says who holds it (process id and host). It is locked by the operating system, which forgets the lock of a
    dead process. Where the file system knows no locks, the file's being there is the lock: one that a dead process of
    this host has left is taken over; of a process of another host nothing can be known.

    Args:
        path: the file; removed again on release.
        what: what is held, for the message.

    Raises:
        HeldError: another run holds it.
        InputError: what lies there is no lock but a link, or a file of another content.
    """

    def __init__(self, path: Path, what: str) -> None:
        self.path, self._what = path, what
        self._handle = self._lock_file() if fcntl is not None else None
        if self._handle is None:
            self._make_file()

    def release(self) -> None:
        """Let go; a second call does nothing."""
        if self._what:
            self._what = ""
            self.path.unlink(missing_ok=True)  # before unlocking: whoever comes next makes a new file
            if self._handle is not None:
                os.close(self._handle)
                self._handle = None

    def _lock_file(self) -> int | None:
        """A locked handle, None where the file system knows no locks."""
        while True:
            handle = self._open()
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError as error:
                holder = self._holder()
                os.close(handle)
                raise self._refusal(*holder) from error
            except OSError as error:
                os.close(handle)
                if error.errno not in (errno.ENOLCK, errno.EOPNOTSUPP, errno.ENOSYS, errno.EINVAL):
                    raise
                if not self._names_holder():
                    self.path.unlink(missing_ok=True)  # made just now, by the opening above
                return None
            # Between opening and locking, its holder may have removed the file: a lock on that one holds nothing.
            if self._is_current(handle):
                os.truncate(handle, 0)
                os.write(handle, _myself())
                return handle
            os.close(handle)

    def _open(self) -> int:
        """The file, made where it is missing. Its content will be replaced, so it must be a lock and nothing else: a folder
        from elsewhere may hold a link under this name."""
        try:
            handle = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o666)
        except OSError as error:
            if error.errno not in (errno.ELOOP, errno.EMLINK, errno.EISDIR):
                raise
            raise self._no_lock() from error
        found = os.fstat(handle)
        if not stat.S_ISREG(found.st_mode) or found.st_nlink > 1 or not _HOLDER.fullmatch(os.pread(handle, 1024, 0)):
            os.close(handle)
            raise self._no_lock()
        return handle

    def _no_lock(self) -> InputError:
        return InputError(f"{self.path} is no lock of a run", "a file of segunc, or none", "remove it")

    def _make_file(self) -> None:
        for _ in range(2):
            try:
                handle = os.open(self.path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666)
            except FileExistsError:
                pid, host = self._holder()
                if host != socket.gethostname() or _is_alive(pid):
                    raise self._refusal(pid, host) from None
                self.path.unlink(missing_ok=True)
                continue
            os.write(handle, _myself())
            os.close(handle)
            return
        raise self._refusal(*self._holder())

    def _is_current(self, handle: int) -> bool:
        try:
            return os.path.samestat(os.fstat(handle), self.path.lstat())
        except FileNotFoundError:
            return False

    def _holder(self) -> tuple[int, str]:
        try:
            pid, host = self.path.read_text(encoding="utf-8").split()
            return int(pid), host
        except (OSError, ValueError):
            return 0, "unknown"

    def _names_holder(self) -> bool:
        return self._holder()[0] > 0

    def _refusal(self, pid: int, host: str) -> HeldError:
        who = f" (process {pid} on {host})" if pid else ""
        return HeldError(
            f"{self._what} is being written by another run{who}",
            "one run at a time",
            f"wait, or give another --out; if that run is gone, remove {self.path}",
        )


@contextlib.contextmanager
def short_lock(path: Path, what: str) -> Iterator[None]:
    """Hold a file for a moment, waiting for others who do the same.

    Raises:
        HeldError: it is still held after half a minute.
    """
    end = time.monotonic() + START_SECONDS
    while True:
        try:
            lock = Lock(path, what)
            break
        except HeldError:
            if time.monotonic() > end:
                raise
            time.sleep(0.05)
    try:
        yield
    finally:
        lock.release()


def _myself() -> bytes:
    return f"{os.getpid()} {socket.gethostname()}\n".encode()


def _is_alive(pid: int) -> bool:
    if pid <= 0:
        return True  # nobody is named: it may just be about to be written
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True
