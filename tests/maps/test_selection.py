"""Moments in time as people write them, and which frames a selection takes."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from segunc.core.errors import InputError
from segunc.frames.sources import Selection, format_time, parse_time


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("90", 90.0), ("90.5", 90.5), ("1:30", 90.0), ("0:01:30.25", 90.25), ("2:00:00", 7200.0), ("100:00", 6000.0)],
)
def test_times_are_read(text: str, seconds: float) -> None:
    assert parse_time(text) == seconds


@pytest.mark.parametrize("text", ["", "-1", "1:60", "1:2:3:4", "noon", "1.5:00", "nan", "inf", "1:-2", "1::2"])
def test_other_forms_are_refused(text: str) -> None:
    with pytest.raises(InputError, match="seconds or HH:MM:SS"):
        parse_time(text)


@given(st.integers(0, 10**9))
def test_what_is_printed_is_read_back(milliseconds: int) -> None:
    assert round(parse_time(format_time(milliseconds / 1000)) * 1000) == milliseconds


@pytest.mark.parametrize(
    "values", [{"every": 0}, {"start": -1.0}, {"start": 5.0, "end": 5.0}, {"end": 0.0}, {"start": float("nan")}]
)
def test_impossible_selections_are_refused(values: dict[str, float]) -> None:
    with pytest.raises(InputError):
        Selection(**values)  # type: ignore[arg-type]


@given(st.integers(1, 7), st.integers(0, 50), st.integers(1, 60), st.integers(0, 120))
def test_the_expected_number_is_the_number_taken(every: int, start: int, length: int, frames: int) -> None:
    fps = 10.0
    selection = Selection(every, start / fps, (start + length) / fps)
    taken = sum(selection.takes(number, number / fps) for number in range(frames))
    # The raster of every N-th frame starts at the video's first frame, so a range may hold one more or less.
    assert abs(selection.expected(frames, fps) - taken) <= 1
    assert Selection(every).expected(frames, fps) == sum(Selection(every).takes(n, None) for n in range(frames))
