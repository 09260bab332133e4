"""Alarms of a frame: the regions above the threshold of a score, as the page lists them over all frames."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import cv2
import numpy as np
import numpy.typing as npt

MOST_ALARMS = 5  # of a frame
SMALLEST_SHARE = 1e-4  # of the frame's pixels: the page lists no smaller regions
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


def find_alarms(
    scores: Mapping[str, Values],
    score: str,
    threshold: float,
    prediction: npt.NDArray[np.uint8] | None,
    smallest: int = 1,
) -> list[Alarm]:
    """Return the strongest regions of a frame, at most :data:`MOST_ALARMS`, the strongest first: of pixels at or above the threshold of a
    score, of at least ``smallest`` pixels. Maps are ``[H, W]`` in real units, the prediction holds class ids."""
    values = scores[score]
    high = np.nan_to_num(values, nan=-np.inf) >= threshold
    _, regions, boxes, _ = cv2.connectedComponentsWithStats(high.astype(np.uint8), connectivity=8)
    excess = np.where(high, values.astype(np.float64) - threshold, 0).ravel()
    strengths = np.bincount(regions.ravel(), weights=excess, minlength=len(boxes))[1:]
    alarms = []
    strongest = np.argsort(-strengths, kind="stable") + 1
    smallest = max(smallest, int(SMALLEST_SHARE * values.size))
    for number in strongest[boxes[strongest, cv2.CC_STAT_AREA] >= smallest][:MOST_ALARMS].tolist():
        left, top, width, height, area = map(int, boxes[number])
        window = np.s_[top : top + height, left : left + width]
        inside = regions[window] == number
        y, x = np.unravel_index(np.argmax(np.where(inside, values[window], -np.inf)), inside.shape)
        peak = left + int(x), top + int(y)
        ids = None if prediction is None else np.bincount(prediction[window][inside])
        at_peak = {name: float(of[peak[1], peak[0]]) for name, of in scores.items()}
        class_id = None if ids is None else int(ids.argmax())
        alarms.append(Alarm((left, top, width, height), area, float(strengths[number - 1]), peak, at_peak, class_id))
    return alarms
