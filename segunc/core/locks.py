"""A lock that keeps two runs out of one shard of a maps folder, on one machine or on several."""

from __future__ import annotations

import contextlib
import errno
import os
import re
import socket
import stat
from pathlib import Path
from typing import TYPE_CHECKING, Self

from segunc.core.errors import InputError
from segunc.core.files import read_text

if TYPE_CHECKING:
    from filelock import BaseFileLock

START_SECONDS = 30.0
"""How long a run waits for another one that is making the same folder."""
_HOLDER = re.compile(rb"(\d+\s\S+\s[\d\s]*)?")
"""What a lock holds: nothing yet, or a process and its host (and, by filelock, when the process began)."""


class HeldError(InputError):
    """Another run holds the lock."""


class Lock:
    """Holds a file until :meth:`release`, which removes it, or until this process ends, however it ends.

    The file says who holds it (process id and host). It is locked by the operating system, which forgets the lock of a
    dead process. Where the file system knows no locks, the file's being there is the lock: one that a dead process of
    this host has left is taken over; of a process of another host nothing can be known.

    HeldError, which says ``what`` is held, where another run holds it for ``wait`` seconds more; InputError where no lock
    lies there but a link, or a file of another content.
    """

    def __init__(self, path: Path, what: str, wait: float = 0.0) -> None:
        from filelock import Timeout  # here, because readers of maps import this module and lock nothing

        self.path = path
        try:
            self._lock = self._acquire(wait)
        except Timeout as error:
            who = ""
            with contextlib.suppress(OSError, ValueError):
                process, host = read_text(path).split()[:2]
                who = f" (process {int(process)} on {host})"
            remedy = f"wait, or give another --out; if that run is gone, remove {path}"
            raise HeldError(f"{what} is being written by another run{who}", "one run at a time", remedy) from error
        except OSError as error:
            if error.errno not in (errno.ELOOP, errno.EMLINK, errno.EISDIR):
                raise
            raise InputError(f"{path} is no lock of a run", "a file of segunc, or none", "remove it") from error

    def release(self) -> None:
        """Let go; a second call does nothing."""
        if self._lock.is_locked:
            self.path.unlink(missing_ok=True)  # before unlocking: whoever comes next makes a new file
            self._lock.release()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.release()

    def _acquire(self, wait: float) -> BaseFileLock:
        from filelock import FileLock, SoftFileLock

        lock: BaseFileLock = FileLock(self.path, wait, thread_local=False, on_acquired=self._sign)
        try:
            lock.acquire()
        except _RemovedError:
            return self._acquire(wait)
        except OSError as error:
            if error.errno not in (errno.ENOSYS, errno.ENOLCK, errno.EOPNOTSUPP, errno.EINVAL):
                raise
            with contextlib.suppress(FileNotFoundError):
                if self.path.lstat().st_size == 0:  # made just now, by the attempt
                    self.path.unlink()
            lock = SoftFileLock(self.path, wait, thread_local=False)
            lock.acquire()
        return lock

    def _sign(self, handle: int) -> None:
        """Name the holder in place of what is there, which must be a lock's: a folder from elsewhere may hold another file."""
        found = os.fstat(handle)
        if not stat.S_ISREG(found.st_mode) or found.st_nlink > 1 or not _HOLDER.fullmatch(os.pread(handle, 1024, 0)):
            raise OSError(errno.EMLINK, "no lock")
        # Between opening and locking, its holder may have removed the file: a lock on that one holds nothing. The count of
        # links does not tell it everywhere: NFS keeps a removed file that is open under another name.
        with contextlib.suppress(FileNotFoundError):
            if os.path.samestat(found, self.path.lstat()):
                os.truncate(handle, 0)
                os.write(handle, f"{os.getpid()} {socket.gethostname()}\n".encode())
                return
        raise _RemovedError


class _RemovedError(Exception):
    """The file that was locked is not the one under its name."""
