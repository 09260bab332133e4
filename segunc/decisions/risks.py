"""Losses of units, frames or groups of frames, at every threshold.

Threshold k of :data:`THRESHOLDS` flags the pixels whose 16-bit key is at or above k; 0 flags all of them, the last one none. A frame gives
two rows of counts by threshold, what is lost and out of how many; a unit adds those of its frames, and its loss is their quotient. Where it
is not monotone in the threshold, it is replaced by its running maximum from the safe end on, because the methods need monotone losses.
"""

from __future__ import annotations

from typing import Any

import cv2
import numpy as np
import numpy.typing as npt

from segunc.data.labels import IGNORE
from segunc.decisions.threshold import MOST_ALARMS, block_seconds
from segunc.maps.encoding import score_keys
from segunc.metrics.counting import KEYS
from segunc.metrics.objects import Objects

THRESHOLDS = KEYS + 1
LEAST_KEPT = 0.01  # of a unit's pixels: where fewer are kept, the share of wrong ones is taken of so many, for a few pixels prove nothing
# Thresholds at which regions are counted: all of uint8, 32 from a float to its double.
ALARM_KEYS = (*range(256), *range(256, KEYS, 32))
RISING = ("missed-pixels", "missed-objects", "errors-kept")  # their risk rises with the threshold; the others' falls
OF_ANOMALIES = ("missed-pixels", "missed-objects")  # controls that units without an anomaly say nothing of

Array = npt.NDArray[Any]
Label = npt.NDArray[np.uint8]
Counts = npt.NDArray[np.int64]
Losses = npt.NDArray[np.float64]


def largest_loss(control: str) -> float:
    """Return the largest loss of a unit; the smallest is 0."""
    return MOST_ALARMS if control == "false-alarms" else 1.0


def flag_keys(stored: Array) -> npt.NDArray[np.uint16]:
    """Return the key of each score of any shape: at or above that of a threshold, a float16 or a code, exactly where the score itself is. So
    floats of more bits are rounded down."""
    if np.issubdtype(stored.dtype, np.floating):
        with np.errstate(over="ignore"):
            half = stored.astype(np.float16)
        stored = np.where(half > stored, np.nextafter(half, np.float16(-np.inf)), half)
    return score_keys(stored)


class Scene:
    """One frame, ``[H, W]`` each: keys of the score, 0 where no label says anything; pixels with a label, and those of normal ground."""

    def __init__(self, stored: Array, anomaly: Label | None, labels: Label | None, wrong: Label | None) -> None:
        """Take a map with its anomaly label (0 normal, 1 anomaly, 255 ignored), or its class labels with what of the prediction is wrong (0
        right, 1 wrong, 255 unknown), or all of them."""
        labelled = np.zeros(stored.shape, bool) if labels is None else labels != IGNORE
        self.normal, self.known = (labelled, labelled) if anomaly is None else (anomaly == 0, labelled | (anomaly != IGNORE))
        self.keys, self.anomaly, self.wrong = np.zeros(stored.shape, np.uint16), anomaly, wrong
        self.keys[self.known] = flag_keys(stored[self.known])

    def counts(self, control: str, found_share: float = 0.5, smallest: int = 50) -> Counts | None:
        """Return what is lost at each threshold, and out of how many, int64 ``[2, THRESHOLDS]``; None without the label that it needs."""
        if control == "errors-kept":
            if self.wrong is None:
                return None
            return np.stack([_below(self.keys[self.wrong == 1]), _below(self.keys[self.wrong != IGNORE])])
        if control == "flagged-pixels":
            below = _below(self.keys[self.normal])
            return np.stack([below[-1] - below, np.full_like(below, below[-1])])
        if control == "false-alarms":
            return np.stack([self._alarms(smallest), np.ones(THRESHOLDS, np.int64)])
        if self.anomaly is None:
            return None
        lost = _below(self.keys[self.anomaly == 1] if control == "missed-pixels" else self._found_up_to(found_share))
        return np.stack([lost, np.full_like(lost, lost[-1])])

    def _found_up_to(self, share: float) -> npt.NDArray[np.integer]:
        """Return the highest threshold at which each object is found, ``[N]``: this share of its pixels is flagged."""
        assert self.anomaly is not None
        objects = Objects.of(self.anomaly)
        owner = objects.number[objects.number > 0].astype(np.int64) - 1
        ranked = np.sort(owner * KEYS + self.keys[objects.number > 0]) % KEYS  # by object and, within one, by key
        needed = np.maximum(np.ceil(share * objects.pixels - 1e-9), 1).astype(np.int64)
        return np.asarray(ranked[objects.pixels.cumsum() - needed])

    def _alarms(self, smallest: int) -> Counts:
        """Return the regions (8-connected) of at least ``smallest`` flagged pixels of normal ground, at most :data:`MOST_ALARMS`, as their running
        maximum from the highest threshold down, int64 ``[THRESHOLDS]``."""
        below = _below(self.keys[self.normal])
        flagged, alarms, worst, seen = below[-1] - below, np.zeros(THRESHOLDS, np.int64), 0, 0
        for key, above in zip(ALARM_KEYS[::-1], (KEYS, *ALARM_KEYS[:0:-1]), strict=True):
            if flagged[key] != seen and flagged[key] >= smallest:
                mask = (self.keys >= key) & self.normal
                *_, regions, _ = cv2.connectedComponentsWithStats(mask.view(np.uint8), connectivity=8)
                worst = max(worst, int(np.count_nonzero(regions[1:, cv2.CC_STAT_AREA] >= smallest)))
            seen = flagged[key]
            alarms[key:above] = worst
            if worst >= MOST_ALARMS:
                alarms[:above] = MOST_ALARMS
                break
        return alarms


def _below(keys: npt.NDArray[np.integer]) -> Counts:
    """Return how many keys lie below each threshold, int64 ``[THRESHOLDS]``."""
    return np.concatenate([[0], np.bincount(keys, minlength=KEYS).cumsum()]).astype(np.int64)


class Pool:
    """The counts of a unit, float64 ``[2, ...]``, are the sums of its frames'; of false alarms in a block of seconds those that begin, regions
    more than in the frame before, out of its minutes."""

    def __init__(self, control: str, unit: str = "frame") -> None:
        seconds = block_seconds(unit) if control == "false-alarms" else None
        self.control, self.minutes = control, None if seconds is None else seconds / 60
        self.counts: npt.NDArray[np.float64] | None = None
        self._before: Any = 0

    def add(self, counts: Counts) -> None:
        """Add a frame, in the order of their times."""
        added = counts.astype(np.float64)
        if self.minutes is not None:
            added[0], self._before = np.maximum(counts[0] - self._before, 0), counts[0]
            added[1] = self.minutes if self.counts is None else 0  # once a unit
        self.counts = added if self.counts is None else self.counts + added

    def losses(self) -> Losses | None:
        """Return the loss of the unit at each threshold ``[T]``, the last of which flags nothing; None where it says nothing of the control, as
        a unit without an anomaly of misses."""
        if self.counts is None or not (out_of := np.maximum(self.counts[1], LEAST_KEPT * self.counts[1, -1])).all():
            return None
        return np.asarray(np.minimum(self.counts[0] / out_of, largest_loss(self.control)))


def monotone(values: Losses, control: str) -> Losses:
    """Return the running maximum of losses ``[T]`` from the safe end on."""
    if control in RISING:
        return np.maximum.accumulate(values)
    return np.maximum.accumulate(values[::-1])[::-1]


class LossSums:
    """Sums over units of the monotone losses at each threshold, in memory that does not grow with the units."""

    def __init__(self, control: str, size: int = THRESHOLDS) -> None:
        self.control, self.units = control, 0
        self.total: Losses = np.zeros(size)
        self.failed: Counts = np.zeros(size, np.int64)  # units with any loss

    def add(self, values: Losses | None) -> None:
        """Add the losses of a unit; None, of one that says nothing, adds nothing."""
        if values is not None:
            values = monotone(values, self.control)
            self.units += 1
            self.total += values
            self.failed += values > 0
