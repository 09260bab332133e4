"""Work of the fake network for the workers of a cluster; some of it is deadly."""

from __future__ import annotations

import os
import signal
import socket
from collections.abc import Callable
from pathlib import Path

from segunc.core.errors import InputError
from segunc.core.progress import Progress
from segunc.frames.sources import open_source
from segunc.maps.pipeline import run_pipeline
from segunc.maps.shards import Shard
from segunc.maps.store import MapsWriter
from segunc.scale import ShardResult, ShardTask
from tests.maps.fakes import manifest, process


class FakeWork:
    """Writes shards of the fake network; notes in ``journal`` when it was made and what it began.

    Args:
        given: the input.
        out: the maps folder.
        journal: a file that grows by a line for each event.
        kill: shard -> how many times a worker kills itself after two of its frames.
    """

    def __init__(self, given: Path, out: Path, journal: Path, kill: dict[int, int]) -> None:
        self.given, self.out, self.journal, self.kill = given, out, journal, kill
        self._note("made")

    def __call__(self, task: ShardTask) -> ShardResult:
        if task.number == 99:
            raise InputError("shard 99 is missing", hint="give another")
        self._note(f"began {task.number}")
        begun = self.journal.read_text().count(f"began {task.number}\n")
        deadly = begun <= self.kill.get(task.number, 0)
        writer = MapsWriter(self.out, manifest(), shard=Shard(task.number, task.count))
        summary = run_pipeline(open_source(self.given), process, writer, on_progress=_killer() if deadly else None)
        return ShardResult(task, summary.finished, summary.skipped, len(summary.failed), host=socket.gethostname())

    def _note(self, text: str) -> None:
        with self.journal.open("a") as file:
            file.write(f"{os.getpid()} {text}\n")


def _killer() -> Callable[[Progress], None]:
    def after_two(progress: Progress) -> None:
        if progress.finished == 2:
            os.kill(os.getpid(), signal.SIGKILL)

    return after_two


def no_work() -> FakeWork:
    """A worker that cannot start."""
    raise InputError("input /data/drive.mp4 does not exist", hint="share the folder")
