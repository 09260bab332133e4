"""Losses of units at thresholds, against a count by hand."""

from __future__ import annotations

from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from scipy import ndimage

from segunc.decisions.flags import Threshold
from segunc.decisions.guarantee import MAX_ALARMS
from segunc.decisions.preparation import AS_IT_IS
from segunc.decisions.risks import (
    MIN_KEPT_SHARE,
    RISING,
    LossSums,
    Pool,
    Scene,
    alarm_keys,
    known_pixels,
    monotone,
)
from segunc.evaluation.flagged import Achieved
from segunc.evaluation.parts import LabelledFrame, values_of
from segunc.maps.encoding import decode_unit, encode_unit, is_flagged
from segunc.maps.regions import regions_of, strongest_regions
from segunc.metrics.counting import BinFinder, rank

SIZE = (40, 56)
EIGHT = np.ones((3, 3))


FORMS = ["unit-code", "uint8", "float16", "float32"]
CONTROLS = ["missed-pixels", "flagged-pixels", "missed-objects", "false-alarms", "errors-kept"]
FOUND_SHARE = 0.3
SMALLEST_REGION = 40
SMALLEST_OBJECT = 5


@dataclass
class ScoredFrame:
    """A frame with its score map.

    Args:
        stored: The score map as a file holds it, height x width.
        values: The same map as numbers that a threshold compares.
        truth: Label maps and the prediction by name, height x width each.
        bins: The bins that rank the scores of a float32 map; None for all other forms.
        kind: The stored form as a threshold names it.
    """

    stored: Any
    values: Any
    truth: dict[str, Any]
    bins: Any
    kind: str

    def scene(self) -> Scene:
        truth = self.truth
        frame = LabelledFrame("f", {}, truth["prediction"], labels=truth["labels"])
        return Scene(self.stored, truth["anomaly"], truth["labels"], frame.wrong, self.bins)

    def losses(self, control: str) -> Any:
        """Return the loss of this frame as a unit, at each key of a threshold."""
        counts = self.scene().counts(control, FOUND_SHARE, SMALLEST_REGION, SMALLEST_OBJECT)
        assert counts is not None
        unit = Pool(control)
        unit.add(counts)
        losses = unit.losses()
        assert losses is not None
        return losses

    def tested_keys(self, control: str) -> Any:
        """Return the keys at which the test counts by hand."""
        ranked, size = rank(self.stored, self.bins)
        keys = np.unique(ranked[self.scene().known]).astype(int)
        if control != "false-alarms":
            step = max(1, len(keys) // 60)
            return keys[::step]
        lowest = keys[0] - 40
        highest = keys[-1] + 40
        return np.array([key for key in alarm_keys(size) if lowest <= key <= highest])

    def thresholds(self, keys: Any) -> Any:
        """Return the threshold of each of these keys."""
        _, size = rank(self.stored, self.bins)
        form = self.kind if self.bins is None else self.bins
        return values_of(form, size)[keys]


def smooth(random: np.random.Generator, sigma: float) -> Any:
    """Return smooth noise, which has regions of many sizes."""
    return ndimage.gaussian_filter(random.normal(size=SIZE), sigma)


def random_truth(random: np.random.Generator) -> dict[str, Any]:
    """Return an anomaly map, labels and a prediction; of the first two, some pixels are void."""
    anomaly = (smooth(random, 2) > 0.12).astype(np.uint8)
    anomaly[random.random(SIZE) < 0.05] = 255
    labels = random.integers(0, 3, SIZE)
    prediction = random.integers(0, 3, SIZE)
    labels[random.random(SIZE) < 0.1] = 255
    return {
        "anomaly": anomaly,
        "labels": labels.astype(np.uint8),
        "prediction": prediction.astype(np.uint8),
    }


def gap_bins(stored: Any, truth: dict[str, Any]) -> Any:
    """Return the bins of the known pixels of a float32 map."""
    known = known_pixels(truth["anomaly"], truth["labels"])
    finder = BinFinder()
    finder.add(stored, np.where(known, 0, 255).astype(np.uint8))
    return finder.bins(gaps=True)


def scored_frame(form: str, seed: int = 0) -> ScoredFrame:
    """Return a random frame whose score map has this stored form."""
    random = np.random.default_rng(seed)
    values = smooth(random, 2.5)
    values = (values - values.min()) / (values.max() - values.min())
    truth = random_truth(random)
    if form == "unit-code":
        codes = encode_unit(values)
        return ScoredFrame(codes, decode_unit(codes), truth, None, form)
    if form == "uint8":
        stored = np.rint(255 * values).astype(np.uint8)
        shares = stored.astype(np.float32) / np.float32(255)
        return ScoredFrame(stored, shares, truth, None, form)
    logits = 20 * values - 12
    if form == "float16":
        halves = logits.astype(np.float16)
        return ScoredFrame(halves, halves, truth, None, "float")
    floats = logits.astype(np.float32)
    return ScoredFrame(floats, floats, truth, gap_bins(floats, truth), "float")


def missed_objects(flagged: Any, anomaly: Any) -> float:
    """Return the share of the objects that are large enough and are not found."""
    numbers, count = ndimage.label(anomaly == 1, EIGHT)
    missed = []
    for number in range(1, count + 1):
        pixels = numbers == number
        if pixels.sum() >= SMALLEST_OBJECT:
            missed.append(flagged[pixels].mean() < FOUND_SHARE)
    return float(np.mean(missed))


def false_alarms(flagged: Any, anomaly: Any) -> float:
    """Return the number of large flagged regions without an anomaly, at most `MAX_ALARMS`."""
    regions, _ = ndimage.label(flagged & (anomaly == 0), EIGHT)
    sizes = np.bincount(regions.ravel())[1:]
    alarms = (sizes >= SMALLEST_REGION).sum()
    return float(min(alarms, MAX_ALARMS))


def errors_kept(flagged: Any, labels: Any, prediction: Any) -> float:
    """Return the share of wrong pixels among the known ones that are not flagged."""
    known = labels != 255
    kept = known & ~flagged
    wrong = (labels != prediction) & kept
    return float(wrong.sum() / max(kept.sum(), MIN_KEPT_SHARE * known.sum()))


def by_hand(control: str, flagged: Any, truth: dict[str, Any]) -> float:
    anomaly = truth["anomaly"]
    if control == "missed-pixels":
        return float(1 - flagged[anomaly == 1].mean())
    if control == "flagged-pixels":
        return float(flagged[anomaly == 0].mean())
    if control == "missed-objects":
        return missed_objects(flagged, anomaly)
    if control == "false-alarms":
        return false_alarms(flagged, anomaly)
    return errors_kept(flagged, truth["labels"], truth["prediction"])


def all_by_hand(control: str, frame: ScoredFrame, thresholds: Any) -> list[float]:
    """Return the loss at each threshold, before the running maximum of false alarms."""
    return [by_hand(control, frame.values >= threshold, frame.truth) for threshold in thresholds]


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("control", CONTROLS)
def test_losses_are_those_of_a_count_by_hand(control: str, form: str) -> None:
    frame = scored_frame(form)
    keys = frame.tested_keys(control)
    expected = all_by_hand(control, frame, frame.thresholds(keys))
    if control == "false-alarms":
        expected = np.maximum.accumulate(expected[::-1])[::-1].tolist()
    assert len(set(expected)) > 3
    assert frame.losses(control)[keys].tolist() == pytest.approx(expected, abs=1e-12)


@pytest.mark.parametrize("form", FORMS)
def test_regions_of_the_frame_merge_so_that_the_running_maximum_matters(form: str) -> None:
    frame = scored_frame(form)
    thresholds = frame.thresholds(frame.tested_keys("false-alarms"))
    alarms = all_by_hand("false-alarms", frame, thresholds)
    assert max(alarms) > alarms[0]


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("control", CONTROLS)
def test_the_safest_threshold_has_no_loss(control: str, form: str) -> None:
    safest = 0 if control in RISING else -1
    assert scored_frame(form).losses(control)[safest] == 0


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("control", CONTROLS)
def test_the_achieved_risk_is_counted_at_the_threshold_itself(control: str, form: str) -> None:
    frame = scored_frame(form)
    thresholds = frame.thresholds(frame.tested_keys(control))
    threshold = float(thresholds[len(thresholds) // 2])
    guarantee: Any = SimpleNamespace(
        levels={control: 0.5},
        control=control,
        form=frame.kind,
        unit="frame",
        found_share=FOUND_SHARE,
        smallest=SMALLEST_REGION,
        smallest_object=SMALLEST_OBJECT,
        preparation=AS_IT_IS,
        method="ltt",
    )
    achieved = Achieved(
        "s", Threshold(threshold, guarantee=guarantee), control, True, lambda name: None
    )
    unit_codes = {"s"} if form == "unit-code" else ()
    labelled = LabelledFrame("f", {"s": frame.stored}, unit_codes=unit_codes, **frame.truth)
    numbers = achieved.numbers(achieved.count(labelled), {})
    expected = by_hand(control, frame.values >= threshold, frame.truth)
    assert numbers["risk",] == pytest.approx(expected, abs=1e-12)


def test_the_losses_of_a_unit_add_its_frames() -> None:
    unit = Pool("missed-pixels")
    unit.add(np.array([[1, 0], [4, 4]]))
    unit.add(np.array([[3, 0], [4, 4]]))
    losses = unit.losses()
    assert losses is not None
    assert losses.tolist() == [0.5, 0]


def test_an_alarm_counts_where_it_begins() -> None:
    """Three begin in half a minute: six a minute, of which five count."""
    unit = Pool("false-alarms", "30s")
    for regions in (1, 2, 2, 0, 1):
        unit.add(np.array([[regions, 0], [1, 1]]))
    losses = unit.losses()
    assert losses is not None
    assert losses.tolist() == [MAX_ALARMS, 0]


@pytest.mark.parametrize("unit", ["frame", "30s"])
def test_a_frame_without_normal_ground_says_nothing_of_false_alarms(unit: str) -> None:
    """No alarm was possible there, so it is no frame without one."""
    ignored = np.full((5, 5), 255, np.uint8)
    normal = np.zeros((5, 5), np.uint8)
    pools = []
    for label in (ignored, normal):
        counts = Scene(np.zeros((5, 5), np.uint8), label, None, None).counts("false-alarms")
        pool = Pool("false-alarms", unit)
        pool.add(counts)
        pools.append(pool)
    assert pools[0].losses() is None
    assert pools[1].losses() is not None


def test_a_unit_without_an_anomaly_has_no_loss_of_misses() -> None:
    unit = Pool("missed-objects", "30s")
    unit.add(np.zeros((2, 2), np.int64))
    assert unit.losses() is None


def random_losses() -> Any:
    """Return losses of 30 units at 50 thresholds; most are 0."""
    random = np.random.default_rng(1)
    losses = random.random((30, 50))
    return losses * (random.random((30, 50)) < 0.3)


@pytest.mark.parametrize("control", ["errors-kept", "false-alarms"])
def test_monotone_losses_are_no_smaller(control: str) -> None:
    for losses in random_losses():
        assert (monotone(losses, control) >= losses).all()


@pytest.mark.parametrize("control", ["errors-kept", "false-alarms"])
def test_sums_are_monotone_whatever_the_losses(control: str) -> None:
    rows = random_losses()
    sums = LossSums(control, 50)
    for losses in rows:
        sums.add(losses)
    steps = np.diff(sums.total)
    assert (steps >= 0).all() if control in RISING else (steps <= 0).all()
    assert (sums.total >= rows.sum(0) - 1e-9).all()
    assert (sums.failed >= (rows > 0).sum(0)).all()
    assert sums.units == 30


def test_a_bin_flags_exactly_the_floats_at_or_above_its_edge() -> None:
    values = (1 - 1e-6 * np.random.default_rng(2).random(500)).astype(np.float32)
    finder = BinFinder()
    finder.add(values[::2], np.zeros(250, np.uint8))
    bins = finder.bins(gaps=True)
    assert bins is not None
    ranked, _ = rank(values, bins)
    for key, threshold in enumerate(bins.edges):
        by_bin = ranked >= key
        assert (by_bin == (values >= threshold)).all()


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
def test_a_score_below_the_threshold_is_not_flagged_whatever_its_type(dtype: Any) -> None:
    """Rounded to the type of these scores, the threshold would be the score."""
    below = np.array([0.7], dtype)
    threshold = float(below[0]) * (1 + 2.0**-52)
    assert not is_flagged(below, threshold).any()
    assert not strongest_regions(below[None], threshold, most=1)
    _, boxes, _ = regions_of(below[None], threshold)
    assert not len(boxes)


def test_the_lowest_threshold_that_flags_no_normal_pixel_is_a_candidate() -> None:
    normal = (1 - 1e-6 * np.random.default_rng(2).random(500)).astype(np.float32)
    finder = BinFinder()
    finder.add(normal, np.zeros(500, np.uint8))
    bins = finder.bins(gaps=True)
    assert bins is not None
    assert np.nextafter(normal.max(), np.float32(2)) in bins.edges
