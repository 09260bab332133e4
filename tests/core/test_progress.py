"""Progress on a terminal; elsewhere see ``tests/maps/test_pipeline.py``."""

from __future__ import annotations

import io

from segunc.core.progress import ConsoleProgress, Progress


def test_progress_on_a_terminal_is_a_bar() -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    stream = Terminal()
    with ConsoleProgress(stream) as show:
        show(Progress(1, 0, 4, 10, 1.0))
        show(Progress(5, 1, 4, 10, 2.0))
    assert "10/10" in stream.getvalue()
    assert "1 failed" in stream.getvalue()
