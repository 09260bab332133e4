"""A lock that keeps two runs out of one shard of a maps folder, on one machine or on several."""

from __future__ import annotations

import contextlib
import errno
import os
import socket
from pathlib import Path
from typing import Self

from segunc.core.errors import InputError
from segunc.core.files import read_text

START_SECONDS = 30.0
"""How long a run waits for another one that is making the same folder."""


class Lock:
    """Hold the lock file ``path`` until :meth:`release`, which removes it, or until this process ends, however it ends. InputError, which says
    ``what`` is held, where another run holds it for ``wait`` seconds, or where a link lies there.

    The file says who holds it (process id and host). The operating system locks it, and forgets the lock of a dead process.
    """

    def __init__(self, path: Path, what: str, wait: float = 0.0) -> None:
        from filelock import FileLock, Timeout  # here, because readers of maps import this module and lock nothing

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
        except OSError as error:
            if error.errno != errno.ELOOP:
                raise
            raise InputError(f"{path} is a link, not the lock of a run", hint="remove it") from error

    def release(self) -> None:
        """Let go; a second call does nothing."""
        if self._lock.is_locked:
            self.path.unlink(missing_ok=True)  # before unlocking: whoever comes next makes a new file
            self._lock.release()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.release()

    def _sign(self, handle: int) -> None:
        """Name the holder in the file, unless its holder before removed it between our opening and locking it: a lock on that file holds
        nothing. The count of links does not tell everywhere: NFS keeps a removed file that is open under another name."""
        if os.fstat(handle).st_nlink > 1:
            raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), str(self.path))
        if not self.path.exists() or not os.path.samestat(os.fstat(handle), self.path.lstat()):
            raise _RemovedError
        os.truncate(handle, 0)
        os.pwrite(handle, f"{os.getpid()} {socket.gethostname()}\n".encode(), 0)


class _RemovedError(Exception):
    """The file that was locked is not the one under its name."""
