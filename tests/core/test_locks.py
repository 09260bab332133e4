"""Locks: held once, free when their process is dead, and nothing else is touched in their place."""

from __future__ import annotations

import fcntl
import os
import socket
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from segunc.core.errors import InputError
from segunc.core.files import Lock


def test_the_lock_of_a_dead_process_is_taken_over(tmp_path: Path) -> None:
    path = tmp_path / ".lock"
    path.write_text(f"{2**22 + 1}\n{socket.gethostname()}\n")  # no process has such an id
    lock = Lock(path, "it")
    assert path.read_text().split()[0] == str(os.getpid())
    with pytest.raises(InputError, match=rf"it is being written by another run \(process {os.getpid()} on "):
        Lock(path, "it")
    lock.release()
    assert not path.exists()
    Lock(path, "it").release()


def test_a_file_that_was_removed_before_it_was_locked_is_no_lock(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As on NFS, where a removed file that is open goes on under another name."""
    path, removed, flock = tmp_path / ".lock", tmp_path / ".nfs1", fcntl.flock

    def late(handle: int, how: int) -> None:
        if not removed.exists():
            path.rename(removed)
        flock(handle, how)

    monkeypatch.setattr("fcntl.flock", late)
    with Lock(path, "it"):
        assert path.read_text().split()[0] == str(os.getpid())
        assert removed.read_text() == ""
        with pytest.raises(InputError, match="another run"):
            Lock(path, "it")


def test_a_lock_that_is_let_go_is_waited_for(tmp_path: Path) -> None:
    lock = Lock(tmp_path / ".lock", "it")
    let_go: list[bool] = []
    timer = threading.Timer(0.2, lambda: (let_go.append(True), lock.release()))
    timer.start()
    with Lock(tmp_path / ".lock", "it", 30.0):
        assert let_go
    timer.join()


@pytest.mark.parametrize("link", [Path.symlink_to, Path.hardlink_to])
def test_what_a_link_leads_to_stays_as_it_is(tmp_path: Path, link: Callable[[Path, Path], None]) -> None:
    path, mine = tmp_path / ".lock", tmp_path / "mine"
    mine.write_text("all of it")
    link(path, mine)
    with pytest.raises(InputError, match="is a link, not the lock of a run"):
        Lock(path, "it")
    assert mine.read_text() == "all of it"
