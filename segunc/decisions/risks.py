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
from segunc.decisions.guarantee import MAX_ALARMS, RISKS, MethodName, block_seconds
from segunc.maps.encoding import Array
from segunc.metrics.counting import KEYS, Counts, ScoreBins, rank
from segunc.metrics.objects import SMALLEST_OBJECT, Objects, found_up_to

THRESHOLDS = KEYS + 1  # of scores with 16-bit keys
# Of a unit's pixels: where fewer are kept, the share of wrong ones is taken of so many, for a few
# pixels prove nothing.
MIN_KEPT_SHARE = 0.01
ALARM_THRESHOLDS = 2048
"""At which regions are counted: of 16-bit keys 32 from a float to its double, some between any two
of uint8."""
RISING = (
    "missed-pixels",
    "missed-objects",
    "errors-kept",
)  # their risk rises with the threshold; the others' falls
OF_ANOMALIES = (
    "missed-pixels",
    "missed-objects",
)  # controls that units without an anomaly say nothing of
LARGEST_LOSS = {
    control: MAX_ALARMS if control == "false-alarms" else 1.0 for control in RISKS
}  # of a unit; the smallest is 0

Label = npt.NDArray[np.uint8]
Losses = npt.NDArray[np.float64]


def alarm_keys(size: int = KEYS) -> range:
    """Return the keys, of so many, at which regions are counted."""
    return range(0, size, max(size // ALARM_THRESHOLDS, 1))


def known_pixels(anomaly: Label | None, labels: Label | None) -> npt.NDArray[np.bool_]:
    """Return which pixels ``[H, W]`` of a frame have a label of either kind, of which at least one
    is there."""
    known = [label != IGNORE for label in (anomaly, labels) if label is not None]
    return np.asarray(np.logical_or.reduce(known))


class Scene:
    """One frame, ``[H, W]`` each: keys of the score, 0 where no label says anything; pixels with a
    label, and those of normal ground. ``size`` is the number of keys K; there are K + 1
    thresholds."""

    def __init__(
        self,
        stored: Array,
        anomaly: Label | None,
        labels: Label | None,
        wrong: Label | None,
        bins: ScoreBins | None = None,
    ) -> None:
        """Take a map with its anomaly label (0 normal, 1 anomaly, 255 ignored), or its class labels
        with what of the prediction is wrong (0 right, 1 wrong, 255 unknown), or all of them. Scores
        are ranked by ``bins``, or by their 16-bit keys."""
        self.known = known_pixels(anomaly, labels)
        self.normal = self.known if anomaly is None else anomaly == 0
        self.anomaly, self.wrong = anomaly, wrong
        keys, self.size = rank(stored[self.known], bins)
        self.keys = np.zeros(stored.shape, keys.dtype)
        self.keys[self.known] = keys

    def counts(
        self,
        control: str,
        found_share: float = 0.5,
        smallest: int = 50,
        smallest_object: int = SMALLEST_OBJECT,
    ) -> Counts | None:
        """Return what is lost at each threshold, and out of how many, int64 ``[2, K + 1]``; None
        without the label that it needs.

        Args:
            control: what is lost.
            found_share: of an object's pixels that must be flagged for it to be found.
            smallest: pixels of the smallest flagged region that is a false alarm.
            smallest_object: pixels of the smallest labelled object.
        """
        if control == "errors-kept":
            if self.wrong is None:
                return None
            wrong = self._below(self.keys[self.wrong == 1])
            return np.stack([wrong, self._below(self.keys[self.wrong != IGNORE])])
        if control == "flagged-pixels":
            below = self._below(self.keys[self.normal])
            return np.stack([below[-1] - below, np.full_like(below, below[-1])])
        if control == "false-alarms":
            return np.stack([self._alarms(smallest), np.ones(self.size + 1, np.int64)])
        if self.anomaly is None:
            return None
        if control == "missed-pixels":
            lost = self._below(self.keys[self.anomaly == 1])
        else:
            objects = Objects.of(self.anomaly, smallest_object)
            lost = self._below(found_up_to(self.keys[objects.number > 0], objects, found_share))
        return np.stack([lost, np.full_like(lost, lost[-1])])

    def _alarms(self, smallest: int) -> Counts:
        """Return the regions (8-connected) of at least ``smallest`` flagged pixels of normal
        ground, at most :data:`MAX_ALARMS`, as their running maximum from the highest threshold
        down, int64 ``[K + 1]``.
        """
        below = self._below(self.keys[self.normal])
        flagged = below[-1] - below
        alarms = np.zeros(self.size + 1, np.int64)
        counted_at = alarm_keys(self.size)
        worst = 0
        seen = 0
        for key, above in zip(counted_at[::-1], (self.size, *counted_at[:0:-1]), strict=True):
            if flagged[key] != seen and flagged[key] >= smallest:
                regions = Objects.of((self.keys >= key) & self.normal)
                worst = max(worst, int(np.count_nonzero(regions.pixels >= smallest)))
            seen = flagged[key]
            alarms[key:above] = worst
            if worst >= MAX_ALARMS:
                alarms[:above] = MAX_ALARMS
                break
        return alarms

    def _below(self, keys: npt.NDArray[np.integer]) -> Counts:
        """Return how many keys lie below each threshold, int64 ``[K + 1]``."""
        cumulated = np.bincount(keys, minlength=self.size).cumsum()
        return np.concatenate([[0], cumulated]).astype(np.int64)


class Pool:
    """The counts of a unit, float64 ``[2, ...]``, are the sums of its frames'; of false alarms in a
    block of seconds those that begin, regions more than in the frame before, out of its minutes.
    """

    def __init__(self, control: str, unit: str = "frame") -> None:
        self.control, self.minutes = (
            control,
            (block_seconds(unit) or 0) / 60 if control == "false-alarms" else 0,
        )
        self.counts: npt.NDArray[np.float64] | None = None
        self._before: Any = 0

    def add(self, counts: Counts) -> None:
        """Add a frame, in the order of their times."""
        added = counts.astype(np.float64)
        if self.minutes:
            added[0], self._before = np.maximum(counts[0] - self._before, 0), counts[0]
            added[1] = self.minutes if self.counts is None else 0  # once a unit
        self.counts = added if self.counts is None else self.counts + added

    def losses(self) -> Losses | None:
        """Return the loss of the unit at each threshold ``[T]``, the last of which flags nothing;
        None where it says nothing of the control, as a unit without an anomaly of misses.
        """
        if (
            self.counts is None
            or not (out_of := np.maximum(self.counts[1], MIN_KEPT_SHARE * self.counts[1, -1])).all()
        ):
            return None
        return np.asarray(np.minimum(self.counts[0] / out_of, LARGEST_LOSS[self.control]))


def monotone(values: Losses, control: str) -> Losses:
    """Return the running maximum of losses ``[T]`` from the safe end on."""
    step = 1 if control in RISING else -1
    return np.maximum.accumulate(values[::step])[::step]


class LossSums:
    """Sums over units of the monotone losses at each threshold, in memory that does not grow with
    the units.
    """

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


def hoeffding_bentkus(risk: npt.ArrayLike, units: int, level: float) -> Losses:
    """Return the p-value of the hypothesis that the mean of losses in 0..1 is above ``level``, for
    mean losses ``risk`` of so many units: the smaller one of Hoeffding's and Bentkus' (Angelopoulos
    et al. 2021, section 3.1; Bates et al. 2021, arXiv 2101.02703).
    """
    mean = np.asarray(risk, np.float64)
    low = np.minimum(mean, level)
    with np.errstate(divide="ignore", invalid="ignore"):
        first = np.where(low > 0, low * np.log(low / level), 0.0)
        hoeffding = np.exp(-units * (first + (1 - low) * np.log((1 - low) / (1 - level))))
    bentkus = np.e * bdtr(np.minimum(np.ceil(units * mean), units), units, level)
    return np.asarray(np.minimum(hoeffding, bentkus))


@dataclass(frozen=True)
class Method:
    """A way to a bound: its name, and the confidence in 0..1 of the bound, None of
    ``conformal``.
    """

    name: MethodName
    confidence: float | None = None

    @property
    def doubt(self) -> float:
        """The chance that the bound does not hold."""
        return 1 - float(self.confidence or 0)

    def largest(self, control: str) -> float:
        """Return the largest value of what is bounded: the loss of a unit, of ``clopper-pearson`` a
        share of units.
        """
        return 1.0 if self.name == "clopper-pearson" else LARGEST_LOSS.get(control, 1.0)

    def risk(self, sums: LossSums, place: int) -> float:
        """Return what the units say of the risk at a threshold, without a correction."""
        return (
            float((sums.failed if self.name == "clopper-pearson" else sums.total)[place])
            / sums.units
        )

    def certified(self, sums: LossSums, level: float) -> int | None:
        """Return the last threshold from the safe end on up to which all keep to the level; None
        where the first does not.
        """
        largest, units = self.largest(sums.control), sums.units
        if self.name == "conformal":
            holds = (sums.total + largest) / (units + 1) <= level + 1e-12  # rounding of sums
        elif self.name == "ltt":
            holds = (
                hoeffding_bentkus(sums.total / units / largest, units, level / largest)
                <= self.doubt
            )
        else:
            holds = bdtr(sums.failed, units, level) <= self.doubt
        step = 1 if sums.control in RISING else -1
        length = int(np.logical_and.accumulate(holds[::step]).sum())
        return None if not length else length - 1 if step > 0 else len(holds) - length

    def minimum_units(self, control: str, level: float) -> int:
        """Return the fewest units with which a level can be had."""
        share = level / self.largest(control)
        needed = (
            1 / share - 1 if self.name == "conformal" else math.log(self.doubt) / math.log1p(-share)
        )
        return max(math.ceil(needed - 1e-9), 1)

    def check_units(
        self, sums: LossSums, level: float, units: str, option: str, more: str = ""
    ) -> None:
        """Raise InputError where units are too few for a level, which names the smallest that they
        can have; it calls them ``units``. Its hint is ``more`` of them, where that is given, or a
        higher level by its ``option``."""
        if sums.units < (needed := self.minimum_units(sums.control, level)):
            share = (
                1 / (sums.units + 1)
                if self.name == "conformal"
                else 1 - self.doubt ** (1 / sums.units)
            )
            least = math.ceil(self.largest(sums.control) * share * 1e4) / 1e4
            message = f"{sums.units} {units} are too few for {sums.control} of {level:g}, which needs {needed}"
            raise InputError(
                f"{message}; the smallest level that they can have is {least:g}",
                hint=f"{more}, or {option} {least:g}" if more else f"{option} {least:g}",
            )

    def upper_bound(self, sums: LossSums, place: int) -> float:
        """Return the upper bound of the risk at a threshold; of ``conformal`` that of its
        expectation.
        """
        largest, units, failed = self.largest(sums.control), sums.units, int(sums.failed[place])
        if self.name == "conformal":
            return (float(sums.total[place]) + largest) / (units + 1)
        if self.name == "clopper-pearson":
            return binomial_bound(failed, units, self.doubt)
        return largest * bentkus_bound(self.risk(sums, place) / largest, units, self.doubt)


def binomial_bound(events: int, trials: int, doubt: float = 0.05) -> float:
    """Return the one-sided upper bound of a share, 0..1, which fails with the probability ``doubt``
    (Clopper & Pearson 1934).
    """
    return 1.0 if events >= trials else float(betainccinv(events + 1, trials - events, doubt))


def bentkus_bound(risk: float, units: int, doubt: float) -> float:
    """Return the level in 0..1 at which :func:`hoeffding_bentkus` falls to ``doubt``."""
    return (
        1.0
        if risk >= 1
        else float(
            brentq(lambda level: float(hoeffding_bentkus(risk, units, level)) - doubt, risk, 1)
        )
    )
