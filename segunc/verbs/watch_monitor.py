"""The monitor beside a watch: are the frames still like those of the calibration?"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from segunc.core.errors import InputError
from segunc.core.files import json_sha256
from segunc.core.periods import whole_periods
from segunc.core.terminal import counted
from segunc.decisions.flags import Threshold
from segunc.decisions.guarantee import block_seconds
from segunc.decisions.sequential import RunningMartingale
from segunc.maps.encoding import Array
from segunc.maps.regions import Mask, map_statistics
from segunc.options import MonitorOptions, WatchOptions
from segunc.scores import SCORES
from segunc.verbs.monitor import EACH_FRAME, read_reference

MAX_UNITS = 100_000
"""Frames after which the test begins again: 11 days at one frame in 10 seconds. It keeps the
statistic of each frame, so without an end its memory would grow for ever."""


class WatchMonitor:
    """Tests one frame of each unit of a stream, as ``segunc monitor`` tests maps.

    Attributes:
        fired: number of the frame at which the test raised an alarm; None if it did not.
    """

    def __init__(self, threshold: Threshold, path: Path, options: WatchOptions) -> None:
        """Prepare the test.

        Args:
            threshold: of a file of segunc threshold.
            path: that file.
            options: of the watch.

        Raises:
            InputError: units of the threshold do not occur in a stream, or the reference does not
                fit.
        """
        guarantee = threshold.guarantee
        assert guarantee is not None
        seconds = options.apart if guarantee.unit == "frame" else block_seconds(guarantee.unit)
        if seconds is None:
            raise InputError(
                f"the unit of {path} is '{guarantee.unit}', which a stream does not have, so the "
                "monitor cannot test it",
                hint="--no-monitor, or a threshold with --unit 10s",
            )
        needs_regions = options.statistic in ("region", "component")
        if needs_regions and SCORES[guarantee.score].threshold is None:
            raise InputError(
                f"{guarantee.score} has no regions, so there is no {options.statistic} to watch",
                hint="--statistic mean",
            )
        self.score = guarantee.score
        self.statistic = options.statistic
        self.alarm = -math.log10(options.level)
        self.fired: int | None = None
        self._time_of_alarm = 0.0
        self._has_told = False  # whether the alarm has its line
        self._seconds = seconds
        self._last_block: int | None = None
        self._past: list[float] = []
        if options.reference is not None:
            settings = MonitorOptions(
                threshold=path,
                maps=options.reference,
                reference=options.reference,
                statistic=options.statistic,
                level=options.level,
                apart=options.apart,
            )
            reference = read_reference(options.reference, guarantee, settings)
            if reference.too_few:
                raise InputError(reference.too_few, hint=reference.hint)
            self._past = [*reference.values.values()]
        self._test = RunningMartingale(self._past)

    @property
    def settings(self) -> dict[str, Any]:
        """What must be the same for the test to go on."""
        return {
            "score": self.score,
            "statistic": self.statistic,
            "seconds": self._seconds,
            "alarm": self.alarm,
            "reference": json_sha256(self._past),
        }

    @property
    def state(self) -> dict[str, Any]:
        """How the test stands."""
        return {
            "score": self.score,
            "log10": self._test.log10,
            "alarm": self.alarm,
            "frames": self._test.frames,
            "fired": self.fired,
        }

    @property
    def note(self) -> str:
        """What a user should know of the test; empty for nothing."""
        return "" if self._seconds else EACH_FRAME

    def replay(self, lines: Iterable[Mapping[str, Any]]) -> None:
        """Take up the frames that earlier runs tested, from their lines."""
        for line in lines:
            if line["score"] != self.score:
                continue
            if line["kind"] == "drift":
                self._has_told = True
                continue
            time = float(line["time"])
            self._last_block = self._block_of(time)
            self._add(int(line["frame"]), time, float(line["value"]))

    def look(
        self, number: int, time: float, stored: Array, kept: Mask | None
    ) -> Iterator[dict[str, Any]]:
        """Test a frame if it is the first of its unit, and yield what is to be written.

        Args:
            number: of the frame.
            time: its seconds since the watch began.
            stored: the map of the score in its stored form, ``[H, W]``.
            kept: which pixels count, bool ``[H, W]``; None for all.
        """
        block = self._block_of(time)
        if self._seconds and block == self._last_block:
            return
        self._last_block = block
        value = map_statistics(stored, SCORES[self.score].threshold, kept)[self.statistic]
        self._add(number, time, value)
        yield {
            "kind": "monitor",
            "frame": number,
            "time": time,
            "score": self.score,
            "statistic": self.statistic,
            "value": value,
            "log10": self._test.log10,
        }
        # A run that was killed may have left the line of the frame, and none of the alarm.
        if self.fired is not None and not self._has_told:
            self._has_told = True
            against = (
                f"{counted(len(self._past), 'frame')} of the calibration"
                if self._past
                else "those before"
            )
            yield {
                "kind": "drift",
                "frame": self.fired,
                "time": self._time_of_alarm,
                "score": self.score,
                "log10": self._test.log10,
                "alarm": self.alarm,
                "text": (
                    f"the frames are no longer like {against}, by the {self.statistic} of "
                    f"{self.score}; the promise of the threshold does not hold for such frames"
                ),
            }

    def _block_of(self, time: float) -> int:
        """Return the number of the unit of a time."""
        return whole_periods(time, self._seconds) if self._seconds else -1

    def _add(self, number: int, time: float, value: float) -> None:
        """Test the statistic of a frame, of a number and a time."""
        if self._test.frames >= MAX_UNITS:
            self._test = RunningMartingale(self._past)
            self.fired = None
            self._has_told = False
        if self._test.add(value) >= self.alarm and self.fired is None:
            self.fired = number
            self._time_of_alarm = time
