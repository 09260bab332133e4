"""Alarms of a frame: the regions above the threshold of a score, as the page lists them over all
frames.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from segunc.decisions.events import Follower
from segunc.maps.regions import MAX_LISTED_REGIONS, StrongRegion, strongest_regions

Values = npt.NDArray[np.float32]


@dataclass(frozen=True)
class Alarm:
    """One connected region (8 neighbours) of pixels at or above the threshold."""

    box: tuple[int, int, int, int]  # left, top, width and height in pixels of the frame
    area: int  # pixels
    strength: float  # sum of what its pixels exceed the threshold by
    peak: tuple[int, int]  # (x, y) of its largest value
    values: Mapping[str, float]  # of each score at the peak
    class_id: int | None  # that most of its pixels are predicted as; None without a prediction
    # the recorded peak of the region with its ``parts`` and ``nearest``; empty without one
    reasons: Mapping[str, Any]
    event: int | None = None  # by number in the list of events


def find_alarms(
    scores: Mapping[str, Values],
    score: str,
    threshold: float,
    prediction: npt.NDArray[np.uint8] | None,
    smallest: int = 1,
    peaks: Sequence[Mapping[str, Any]] = (),
) -> list[Alarm]:
    """Return the strongest regions of a frame, at most five, the strongest first.

    Args:
        scores: maps ``[H, W]`` in real units.
        score: the one whose regions are alarms.
        threshold: from which on its pixels belong to a region.
        prediction: class ids ``[H, W]``.
        smallest: pixels of a region, at least.
        peaks: of the frame's line for this score.
    """
    alarms = []
    regions = strongest_regions(
        scores[score], threshold, smallest=smallest, most=MAX_LISTED_REGIONS
    )
    for region in regions:
        x, y = region.peak
        alarms.append(
            Alarm(
                box=region.box,
                area=region.area,
                strength=region.strength,
                peak=region.peak,
                values={name: float(values[y, x]) for name, values in scores.items()},
                class_id=region.class_of(prediction),
                reasons=_recorded_peak(region, peaks),
            )
        )
    return alarms


def _recorded_peak(region: StrongRegion, peaks: Sequence[Mapping[str, Any]]) -> Mapping[str, Any]:
    """Return the recorded peak that lies nearest to that of a region, if it lies within its box;
    else nothing.
    """
    if not peaks:
        return {}
    nearest = min(peaks, key=lambda peak: math.dist(peak["at"], region.peak))
    x, y = nearest["at"]
    left, top, width, height = region.box
    within = left <= x < left + width and top <= y < top + height
    return nearest if within else {}


def join_alarms(frames: Sequence[Any]) -> list[dict[str, int]]:
    """Follow the ``alarms`` of the page's rows of all frames, and write the number of its event
    into each.

    Returns:
        Of each event the places of its first and last frame and of its strongest alarm, and how
        many frames show it.
    """
    follower = Follower()
    events: dict[int, list[tuple[float, int]]] = {}  # number -> strength and place of its alarms
    for place, row in enumerate(frames):
        numbers = follower.follow(row.name, [alarm.box for alarm in row.alarms])
        row.alarms = [
            replace(alarm, event=number) for number, alarm in zip(numbers, row.alarms, strict=True)
        ]
        for alarm in row.alarms:
            events.setdefault(alarm.event, []).append((alarm.strength, place))
    return [_span(alarms) for alarms in events.values()]


def _span(alarms: Sequence[tuple[float, int]]) -> dict[str, int]:
    """Return where an event lies, of the strength and the place of its alarms in their order."""
    _, strongest = max(alarms, key=lambda alarm: alarm[0])
    return {
        "start": alarms[0][1],
        "end": alarms[-1][1],
        "peak": strongest,
        "frames": len(alarms),
    }
