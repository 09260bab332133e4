"""Progress on a terminal and of steps; lines of frames see ``tests/maps/test_pipeline.py``."""

from __future__ import annotations

import io

from segunc.core.progress import ConsoleProgress, Progress


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_progress_on_a_terminal_is_a_bar() -> None:
    stream = Terminal()
    with ConsoleProgress(stream) as show:
        show(Progress(1, 0, 4, 10, 1.0))
        show(Progress(5, 1, 4, 10, 2.0))
    assert "10/10" in stream.getvalue()
    assert "1 failed" in stream.getvalue()


def test_steps_are_counted_from_those_of_an_earlier_run_with_their_state() -> None:
    stream = io.StringIO()
    with ConsoleProgress(stream, interval=0.0, label="chain 1/2", unit="step", skipped=8) as show:
        show.count(9, 10, "acceptance 0.80")
    line = stream.getvalue()
    assert line.startswith("chain 1/2: 9 of 10 steps, ")
    assert line.endswith(" steps/s, 00:00 left, acceptance 0.80\n")


def test_a_quiet_one_shows_nothing() -> None:
    stream = Terminal()
    with ConsoleProgress(stream, interval=3600, quiet=True) as show:
        show.count(1, 2)
    assert stream.getvalue() == ""
