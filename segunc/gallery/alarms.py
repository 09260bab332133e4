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
from segunc.maps.regions import MAX_LISTED_REGIONS, strongest_regions

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
    reasons: Mapping[
        str, Any
    ]  # the recorded peak of the region with its ``parts`` and ``nearest``; empty without one
    event: int | None = None  # by number in the list of events


def find_alarms(
    scores: Mapping[str, Values],
    score: str,
    threshold: float,
    prediction: npt.NDArray[np.uint8] | None,
    smallest: int = 1,
    peaks: Sequence[Mapping[str, Any]] = (),
) -> list[Alarm]:
    """Return the strongest regions of a frame, at most five, the strongest first: of pixels at or
    above the threshold of a score, of at least ``smallest`` pixels. Maps are ``[H, W]`` in real
    units, the prediction holds class ids, and ``peaks`` are those of the frame's line for this
    score.
    """
    alarms = []
    regions = strongest_regions(
        scores[score], threshold, smallest=smallest, most=MAX_LISTED_REGIONS
    )
    for region in regions:
        (left, top, width, height), (x, y) = region.box, region.peak
        at_peak = {name: float(of[y, x]) for name, of in scores.items()}
        near = min(
            peaks, key=lambda recorded: math.dist(recorded["at"], (x, y)), default={"at": (-1, -1)}
        )
        within = left <= near["at"][0] < left + width and top <= near["at"][1] < top + height
        alarms.append(
            Alarm(
                region.box,
                *region[2:],
                at_peak,
                region.class_of(prediction),
                near if within else {},
            )
        )
    return alarms


def join_alarms(frames: Sequence[Any]) -> list[dict[str, int]]:
    """Follow the ``alarms`` of the page's rows of all frames, and write the number of its event
    into each. Return of each event the places of its first and last frame and of its strongest
    alarm, and how many frames show it.
    """
    follower, seen = (
        Follower(),
        dict[int, list[tuple[float, int]]](),
    )  # number -> strength and place of its alarms
    for place, row in enumerate(frames):
        numbers = follower.follow(row.name, [alarm.box for alarm in row.alarms])
        row.alarms = [
            replace(alarm, event=number) for number, alarm in zip(numbers, row.alarms, strict=True)
        ]
        for alarm in row.alarms:
            seen.setdefault(alarm.event, []).append((alarm.strength, place))
    return [
        {
            "start": of[0][1],
            "end": of[-1][1],
            "peak": max(of, key=lambda at: at[0])[1],
            "frames": len(of),
        }
        for of in seen.values()
    ]
