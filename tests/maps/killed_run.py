"""A small run that kills itself with SIGKILL; started by test_resume.py as its own process.

Usage: killed_run.py INPUT OUT GROUP MOMENT COUNT RUN, where RUN is JSON of settings and MOMENT says what is about to happen for the COUNT-th time:
``rename`` (a file's bytes are written, not yet in place), ``line`` (half a line of frames.jsonl is written)
or ``compute`` (a group is about to be computed).
"""

from __future__ import annotations

import itertools
import json
import os
import signal
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import segunc.core.files as files_module
from segunc.frames.sources import open_source
from segunc.maps.pipeline import run_pipeline
from segunc.maps.store import MapsWriter
from tests.maps.fakes import manifest, process


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def main() -> None:
    given, out, group, moment, count, run = sys.argv[1:]
    moments = itertools.count(1)

    def due() -> bool:
        return next(moments) == int(count)

    source = open_source(given)
    writer = MapsWriter(Path(out), manifest(group=int(group), **json.loads(run)))
    writer.begin(source)

    def compute(frames: list[Any]) -> Any:
        if moment == "compute" and due():
            die()
        return process(frames)

    if moment == "rename":
        replace = os.replace

        def replace_or_die(old: Any, new: Any) -> None:
            if due():
                die()
            replace(old, new)

        files_module.os.replace = replace_or_die  # type: ignore[attr-defined]
    if moment == "line":
        lines = writer._log._file
        assert lines is not None

        class Torn:
            def write(self, data: bytes) -> None:
                if due():
                    lines.write(data[: len(data) // 2])
                    die()
                lines.write(data)

            def close(self) -> None:
                lines.close()

        writer._log._file = Torn()  # type: ignore[assignment]
    writer.begin = lambda source, **_: None  # type: ignore[method-assign,assignment]  # begun above, to be torn
    run_pipeline(source, compute, writer, group=int(group))


if __name__ == "__main__":
    main()
