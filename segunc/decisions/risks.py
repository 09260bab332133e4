"""From the losses of exchangeable units, frames or groups of frames, at every threshold to a
threshold with a bound of the risk, which is the mean loss of all units to come.

Threshold k of K + 1 flags the pixels whose key is at or above k; 0 flags all of them, the last one
none. Keys are those by which every number ranks scores (:func:`segunc.metrics.counting.rank`): the
65,536 of 16 bits, or the bins of floats that 16 bits cannot hold. Such bins come from the
calibration scores themselves. This keeps the promise: losses are monotone, so a threshold from
among fewer ones is on the safe side of the one from among all. A frame gives two rows of counts by
threshold, what is lost and out of how many; a unit adds those of its frames, and its loss is their
quotient. Where it is not monotone in the threshold, it is replaced by its running maximum from the
safe end on, because the methods need monotone losses.

``conformal`` is conformal risk control (Angelopoulos et al. 2022, arXiv 2208.02814): the expected
loss is at most the level, and smaller by at most 2 B / (n + 1), B the largest loss, where losses
have no jumps. ``ltt`` is Learn then Test (Angelopoulos et al. 2021, arXiv 2110.01052) in a fixed
sequence from the safe end, until the first Hoeffding-Bentkus p-value above 1 - confidence.
``clopper-pearson`` does the same with the share of units with any loss, by the exact binomial test.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy.optimize import brentq
from scipy.special import bdtr, betainccinv  # scipy.stats takes seconds to import

from segunc.core.errors import InputError
from segunc.data.labels import IGNORE
from segunc.decisions.guarantee import FALLING, MAX_ALARMS, RISKS, MethodName, block_seconds
from segunc.maps.encoding import Array
from segunc.metrics.counting import KEYS, Counts, ScoreBins, rank
from segunc.metrics.objects import SMALLEST_OBJECT, Objects, found_up_to

THRESHOLDS = KEYS + 1  # of scores with 16-bit keys
# Of a unit's pixels. Where fewer are kept, the share of wrong ones is taken of so many, because a
# few pixels prove nothing.
MIN_KEPT_SHARE = 0.01
ALARM_THRESHOLDS = 2048
"""Number of thresholds at which regions are counted: of 16-bit keys 32 from a float to its double,
some between any two of uint8."""
RISING = ("missed-pixels", "missed-objects", "errors-kept")
"""Controls whose risk rises with the threshold; that of the others falls."""
OF_ANOMALIES = ("missed-pixels", "missed-objects")
"""Controls that units without an anomaly say nothing of."""
OF_CLASSES = frozenset({"errors-kept"})
"""Controls whose risk needs class labels; anomaly labels do not measure it."""
LARGEST_LOSS = dict.fromkeys(RISKS, 1.0) | {"false-alarms": float(MAX_ALARMS)}
"""The largest loss of a unit by control; the smallest is 0."""

Label = npt.NDArray[np.uint8]
Losses = npt.NDArray[np.float64]


def alarm_keys(size: int = KEYS) -> range:
    """Return the keys, of so many, at which regions are counted."""
    return range(0, size, max(size // ALARM_THRESHOLDS, 1))


def known_pixels(anomaly: Label | None, labels: Label | None) -> npt.NDArray[np.bool_]:
    """Return which pixels ``[H, W]`` of a frame have a label of either kind; at least one kind of
    label must be there."""
    labelled = [label != IGNORE for label in (anomaly, labels) if label is not None]
    return np.asarray(np.logical_or.reduce(labelled))


class Scene:
    """One frame with its labels.

    Attributes:
        known: which pixels have a label, ``[H, W]``.
        normal: which pixels are normal ground, ``[H, W]``.
        keys: of the score, ``[H, W]``; 0 where no label says anything.
        inside: which labelled pixels lie in the place that is promised, ``[H, W]``. No threshold
            flags the others.
        size: the number of keys K; there are K + 1 thresholds.
    """

    def __init__(
        self,
        stored: Array,
        anomaly: Label | None,
        labels: Label | None,
        wrong: Label | None,
        bins: ScoreBins | None = None,
        place: npt.NDArray[np.bool_] | None = None,
    ) -> None:
        """Rank the scores of a frame that has an anomaly label, class labels, or both.

        Args:
            stored: the map of the score, ``[H, W]``.
            anomaly: 0 normal, 1 anomaly, 255 ignored, ``[H, W]``.
            labels: train ids, 255 ignored, ``[H, W]``.
            wrong: whether the prediction is wrong: 0 right, 1 wrong, 255 unknown, ``[H, W]``.
            bins: rank the scores; None ranks them by their 16-bit keys.
            place: where pixels can be flagged, ``[H, W]``; None for the whole frame.
        """
        self.known = known_pixels(anomaly, labels)
        self.normal = self.known if anomaly is None else anomaly == 0
        self.anomaly = anomaly
        self.wrong = wrong
        keys, self.size = rank(stored[self.known], bins)
        self.keys = np.zeros(stored.shape, keys.dtype)
        self.keys[self.known] = keys
        self.inside = self.known if place is None else self.known & place

    def counts(
        self,
        control: str,
        found_share: float = 0.5,
        smallest: int = 50,
        smallest_object: int = SMALLEST_OBJECT,
    ) -> Counts | None:
        """Return what is lost at each threshold, and out of how many, int64 ``[2, K + 1]``.

        Args:
            control: what is lost.
            found_share: of an object's pixels that must be flagged for it to be found.
            smallest: pixels of the smallest flagged region that is a false alarm.
            smallest_object: pixels of the smallest labelled object.

        With a place, normal pixels outside of it are never flagged, and anomalies and errors
        outside of it do not count. An object counts if at least the share ``found_share`` of its
        pixels lies in the place, because no threshold finds another one.

        Returns:
            None without the label that the control needs.
        """
        if control == "errors-kept":
            if self.wrong is None:
                return None
            wrong_and_kept = self._below(self.keys[(self.wrong == 1) & self.inside])
            kept = self._below(self.keys[(self.wrong != IGNORE) & self.inside])
            return np.stack([wrong_and_kept, kept])
        if control == "flagged-pixels":
            below = self._below(self.keys[self.normal & self.inside])
            below += np.count_nonzero(self.normal & ~self.inside)
            pixels = below[-1]
            return np.stack([pixels - below, np.full_like(below, pixels)])
        if control == "false-alarms":
            # A frame without normal ground can have no false alarm, so it says nothing.
            frames = int(self.normal.any())
            return np.stack([self._alarms(smallest), np.full(self.size + 1, frames, np.int64)])
        if self.anomaly is None:
            return None
        if control == "missed-pixels":
            missed = self._below(self.keys[(self.anomaly == 1) & self.inside])
        else:
            found = self.found_up_to(Objects.of(self.anomaly, smallest_object), found_share)
            missed = self._below(found[found >= 0])
        return np.stack([missed, np.full_like(missed, missed[-1])])

    def found_up_to(self, objects: Objects, found_share: float) -> npt.NDArray[np.int64]:
        """Return the highest key at which each object is found, ``[N]``; -1 for an object of which
        too little lies in the place.
        """
        is_object = objects.number > 0
        keys = np.where(self.inside[is_object], self.keys[is_object].astype(np.int64), -1)
        return np.asarray(found_up_to(keys, objects, found_share))

    def regions(self, key: int, smallest: int) -> int:
        """Return how many regions (8-connected) of at least ``smallest`` pixels of normal ground
        are flagged at a key.
        """
        regions = Objects.of((self.keys >= key) & self.normal & self.inside)
        return int(np.count_nonzero(regions.pixels >= smallest))

    def _alarms(self, smallest: int) -> Counts:
        """Return the regions (8-connected) of at least ``smallest`` flagged pixels of normal
        ground, at most :data:`MAX_ALARMS`, as their running maximum from the highest threshold
        down, int64 ``[K + 1]``.
        """
        below = self._below(self.keys[self.normal & self.inside])
        flagged = below[-1] - below
        alarms = np.zeros(self.size + 1, np.int64)
        most_alarms = 0
        flagged_above = 0  # at the last key at which regions were counted
        above = self.size
        for key in reversed(alarm_keys(self.size)):
            if flagged[key] != flagged_above and flagged[key] >= smallest:
                most_alarms = max(most_alarms, self.regions(key, smallest))
            flagged_above = flagged[key]
            alarms[key:above] = most_alarms
            if most_alarms >= MAX_ALARMS:
                alarms[:above] = MAX_ALARMS
                break
            above = key
        return alarms

    def _below(self, keys: npt.NDArray[np.integer]) -> Counts:
        """Return how many keys lie below each threshold, int64 ``[K + 1]``."""
        cumulated = np.bincount(keys, minlength=self.size).cumsum()
        return np.concatenate([[0], cumulated]).astype(np.int64)


def flagged_shares(counts: npt.NDArray[np.number]) -> tuple[float | None, float | None]:
    """Return the shares of the right and of the wrong pixels that are flagged; None where there is
    no such pixel.

    Args:
        counts: of :meth:`Scene.counts` for ``errors-kept`` at a threshold and at the last one,
            which flags nothing, ``[2, 2]``; a sum over frames.
    """
    (wrong_kept, wrong), (kept, pixels) = counts.tolist()
    right = pixels - wrong
    right_kept = kept - wrong_kept
    right_flagged = 1 - right_kept / right if right else None
    wrong_flagged = 1 - wrong_kept / wrong if wrong else None
    return right_flagged, wrong_flagged


class Pool:
    """The counts of a unit: the sums of its frames'.

    For false alarms in blocks of seconds: the alarms that begin (regions more than in the frame
    before), out of the minutes of the block.
    """

    def __init__(self, control: str, unit: str = "frame") -> None:
        self.control = control
        self.minutes = 0.0  # of a block in which alarms are counted as they begin
        if control == "false-alarms":
            self.minutes = (block_seconds(unit) or 0) / 60
        self.counts: npt.NDArray[np.float64] | None = None  # [2, T], see Scene.counts
        self._alarms_before: Any = 0

    def add(self, counts: Counts) -> None:
        """Add a frame, in the order of their times."""
        if self.minutes and not counts[1].any():
            return  # without normal ground, where nothing can be a false alarm
        added = counts.astype(np.float64)
        if self.minutes:
            added[0] = np.maximum(counts[0] - self._alarms_before, 0)
            added[1] = self.minutes if self.counts is None else 0  # once a unit
            self._alarms_before = counts[0]
        self.counts = added if self.counts is None else self.counts + added

    def losses(self) -> Losses | None:
        """Return the loss of the unit at each threshold ``[T]``, the last of which flags nothing;
        None where it says nothing of the control, as a unit without an anomaly of misses.
        """
        if self.counts is None:
            return None
        lost, total = self.counts
        out_of = np.maximum(total, MIN_KEPT_SHARE * total[-1])
        if not out_of.all():
            return None
        return np.asarray(np.minimum(lost / out_of, LARGEST_LOSS[self.control]))


def monotone(values: Losses, control: str) -> Losses:
    """Return the running maximum of losses ``[T]`` from the safe end on."""
    step = 1 if control in RISING else -1
    return np.maximum.accumulate(values[::step])[::step]


class LossSums:
    """Sums over units of the monotone losses at each threshold, in memory that does not grow with
    the units.
    """

    def __init__(self, control: str, size: int = THRESHOLDS) -> None:
        self.control = control
        self.units = 0
        self.total: Losses = np.zeros(size)
        self.failed: Counts = np.zeros(size, np.int64)  # units with any loss

    def add(self, values: Losses | None) -> None:
        """Add the losses of a unit; None, of one that says nothing, adds nothing."""
        if values is None:
            return
        losses = monotone(values, self.control)
        self.units += 1
        self.total += losses
        self.failed += losses > 0


def hoeffding_bentkus(risk: npt.ArrayLike, units: int, level: float) -> Losses:
    """Return the p-value of the hypothesis that the mean of losses in 0..1 is above ``level``.

    It is the smaller one of Hoeffding's and Bentkus' (Angelopoulos et al. 2021, section 3.1; Bates
    et al. 2021, arXiv 2101.02703).

    Args:
        risk: mean losses of the units.
        units: number of units.
        level: in 0..1.
    """
    mean = np.asarray(risk, np.float64)
    low = np.minimum(mean, level)
    with np.errstate(divide="ignore", invalid="ignore"):
        # The relative entropy of two coins with the chances ``low`` and ``level``.
        heads = np.where(low > 0, low * np.log(low / level), 0.0)
        tails = (1 - low) * np.log((1 - low) / (1 - level))
        hoeffding = np.exp(-units * (heads + tails))
    bentkus = np.e * bdtr(np.minimum(np.ceil(units * mean), units), units, level)
    return np.asarray(np.minimum(hoeffding, bentkus))


@dataclass(frozen=True)
class Method:
    """A way to bound a risk."""

    name: MethodName
    confidence: float | None = None  # in the bound, 0..1; None for ``conformal``

    @property
    def error_probability(self) -> float:
        """The probability that the bound does not hold."""
        return 1 - float(self.confidence or 0)

    def largest(self, control: str) -> float:
        """Return the largest value of what is bounded: the loss of a unit, or the share of units
        for ``clopper-pearson``.
        """
        if self.name == "clopper-pearson":
            return 1.0
        return LARGEST_LOSS.get(control, 1.0)

    def risk(self, sums: LossSums, key: int) -> float:
        """Return what the units say of the risk at a threshold, without a correction."""
        totals = sums.failed if self.name == "clopper-pearson" else sums.total
        return float(totals[key]) / sums.units

    def certified(self, sums: LossSums, level: float) -> int | None:
        """Return the last threshold from the safe end on up to which all keep to the level; None
        where the first does not.
        """
        largest = self.largest(sums.control)
        units = sums.units
        if self.name == "conformal":
            holds = (sums.total + largest) / (units + 1) <= level + 1e-12  # rounding of sums
        elif self.name == "ltt":
            p_values = hoeffding_bentkus(sums.total / units / largest, units, level / largest)
            holds = p_values <= self.error_probability
        else:
            holds = bdtr(sums.failed, units, level) <= self.error_probability
        safe_end_first = holds if sums.control in RISING else holds[::-1]
        length = int(np.logical_and.accumulate(safe_end_first).sum())
        if not length:
            return None
        return length - 1 if sums.control in RISING else len(holds) - length

    def minimum_units(self, control: str, level: float) -> int:
        """Return the fewest units with which a level can be had."""
        share = level / self.largest(control)
        if self.name == "conformal":
            needed = 1 / share - 1
        else:
            needed = math.log(self.error_probability) / math.log1p(-share)
        return max(math.ceil(needed - 1e-9), 1)

    def smallest_level(self, control: str, units: int) -> float:
        """Return the smallest level that so many units can have, rounded up to four decimals."""
        if self.name == "conformal":
            share = 1 / (units + 1)
        else:
            share = 1 - self.error_probability ** (1 / units)
        return math.ceil(self.largest(control) * share * 1e4) / 1e4

    def check_units(
        self, sums: LossSums, level: float, units: str, option: str, more: str = ""
    ) -> None:
        """Raise InputError where units are too few for a level; it names the smallest level that
        they can have.

        Args:
            sums: of the units.
            level: that is asked for.
            units: what the error calls them.
            option: of the level, for the hint.
            more: how to get more units, for the hint; empty for no such way.
        """
        needed = self.minimum_units(sums.control, level)
        if sums.units >= needed:
            return
        smallest = self.smallest_level(sums.control, sums.units)
        hint = f"{option} {smallest:g}"
        if more:
            hint = f"{more}, or {hint}"
        if sums.control in FALLING:
            hint += ", at which next to nothing is flagged; larger levels have room"
        raise InputError(
            f"{sums.units} {units} are too few for {sums.control} of {level:g}, "
            f"which needs {needed}; the smallest level that they can have is {smallest:g}",
            hint=hint,
        )

    def upper_bound(self, sums: LossSums, key: int) -> float:
        """Return the upper bound of the risk at a threshold, of its expectation for
        ``conformal``.
        """
        largest = self.largest(sums.control)
        if self.name == "conformal":
            return (float(sums.total[key]) + largest) / (sums.units + 1)
        if self.name == "clopper-pearson":
            return binomial_bound(int(sums.failed[key]), sums.units, self.error_probability)
        risk = self.risk(sums, key) / largest
        return largest * bentkus_bound(risk, sums.units, self.error_probability)


def binomial_bound(events: int, trials: int, error_probability: float = 0.05) -> float:
    """Return the one-sided upper bound of a share, 0..1, which fails with the given probability
    (Clopper & Pearson 1934).
    """
    if events >= trials:
        return 1.0
    return float(betainccinv(events + 1, trials - events, error_probability))


def bentkus_bound(risk: float, units: int, error_probability: float) -> float:
    """Return the level in 0..1 at which :func:`hoeffding_bentkus` falls to a probability."""
    if risk >= 1:
        return 1.0

    def excess(level: float) -> float:
        return float(hoeffding_bentkus(risk, units, level)) - error_probability

    return float(brentq(excess, risk, 1))
