"""A small run that kills itself with SIGKILL; started by test_pipeline.py as its own process.

Its arguments are INPUT OUT MOMENT COUNT RUN; RUN is JSON of settings, and MOMENT what is about to
happen for the COUNT-th time: ``rename`` (of a file that is written), ``line`` (half of it is
written) or ``compute`` (of a frame).
"""

import itertools
import json
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from segunc.maps.shards import FrameLog, seal_line
from tests.maps import fakes


def main() -> None:
    given, out, moment, count, run = sys.argv[1:]
    moments = itertools.count(1)

    def or_die(
        function: Callable[..., Any], kind: str, before: Callable[..., Any] = lambda *_: None
    ) -> Any:
        def wrapped(*arguments: Any) -> Any:
            if kind == moment and next(moments) == int(count):
                before(*arguments)
                os.kill(os.getpid(), signal.SIGKILL)
            return function(*arguments)

        return wrapped

    def tear(log: Any, record: Any) -> None:
        line = seal_line(record)
        log._file.write(line[: len(line) // 2])

    os.replace = or_die(os.replace, "rename")
    FrameLog.append = or_die(FrameLog.append, "line", tear)  # type: ignore[method-assign]
    fakes.process = or_die(fakes.process, "compute")
    fakes.predict(Path(given), Path(out), run=json.loads(run))


if __name__ == "__main__":
    main()
