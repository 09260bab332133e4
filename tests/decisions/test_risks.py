"""Losses of units at thresholds, against a count by hand."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from scipy import ndimage

from segunc.decisions.flags import Threshold
from segunc.decisions.guarantee import MAX_ALARMS
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


def frame(form: str, seed: int = 0) -> tuple[Any, Any, dict[str, Any]]:
    """A map in a stored form, its values, and labels; smooth, so that it has regions of
    many sizes.
    """
    random = np.random.default_rng(seed)
    values = ndimage.gaussian_filter(random.normal(size=SIZE), 2.5)
    values = (values - values.min()) / (values.max() - values.min())
    anomaly = (ndimage.gaussian_filter(random.normal(size=SIZE), 2) > 0.12).astype(np.uint8)
    anomaly[random.random(SIZE) < 0.05] = 255
    labels, prediction = random.integers(0, 3, SIZE), random.integers(0, 3, SIZE)
    labels[random.random(SIZE) < 0.1] = 255
    truth = {
        "anomaly": anomaly,
        "labels": labels.astype(np.uint8),
        "prediction": prediction.astype(np.uint8),
    }
    if form == "unit-code":
        return encode_unit(values), decode_unit(encode_unit(values)), truth
    if form == "uint8":
        stored = np.rint(255 * values).astype(np.uint8)
        return stored, stored.astype(np.float32) / np.float32(255), truth
    floats = (20 * values - 12).astype(np.float32 if form == "float32" else np.float16)
    return floats, floats, truth


def by_hand(control: str, flagged: Any, truth: dict[str, Any]) -> float:
    anomaly, known = truth["anomaly"], truth["labels"] != 255
    if control == "missed-pixels":
        return float(1 - flagged[anomaly == 1].mean())
    if control == "flagged-pixels":
        return float(flagged[anomaly == 0].mean())
    if control == "missed-objects":
        numbers, count = ndimage.label(anomaly == 1, EIGHT)
        objects = [numbers == i for i in range(1, count + 1)]
        objects = [pixels for pixels in objects if pixels.sum() >= 5]  # there are larger ones
        return float(np.mean([flagged[pixels].mean() < 0.3 for pixels in objects]))
    if control == "false-alarms":
        sizes = np.bincount(ndimage.label(flagged & (anomaly == 0), EIGHT)[0].ravel())[1:]
        return float(min((sizes >= 40).sum(), MAX_ALARMS))
    kept = known & ~flagged
    wrong = (truth["labels"] != truth["prediction"]) & kept
    return float(wrong.sum() / max(kept.sum(), MIN_KEPT_SHARE * known.sum()))


@pytest.mark.parametrize("form", ["unit-code", "uint8", "float16", "float32"])
@pytest.mark.parametrize(
    "control", ["missed-pixels", "flagged-pixels", "missed-objects", "false-alarms", "errors-kept"]
)
def test_losses_are_those_of_a_count_by_hand(control: str, form: str) -> None:
    stored, values, truth = frame(form)
    wrong = LabelledFrame("f", {}, truth["prediction"], labels=truth["labels"]).wrong
    bins = None
    if form == "float32":
        known = known_pixels(truth["anomaly"], truth["labels"])
        finder = BinFinder()
        finder.add(stored, np.where(known, 0, 255).astype(np.uint8))
        bins = finder.bins(gaps=True)
    scene = Scene(stored, truth["anomaly"], truth["labels"], wrong, bins)
    counts = scene.counts(control, 0.3, 40, 5)
    assert counts is not None
    unit = Pool(control)
    unit.add(counts)
    of_unit = unit.losses()
    assert of_unit is not None
    ranked, size = rank(stored, bins)
    keys = np.unique(ranked[scene.known]).astype(int)
    grid = np.array([key for key in alarm_keys(size) if keys[0] - 40 <= key <= keys[-1] + 40])
    chosen = grid if control == "false-alarms" else keys[:: max(1, len(keys) // 60)]
    kind = "float" if form.startswith("float") else form
    thresholds = values_of(kind if bins is None else bins, size)[chosen]
    expected = [by_hand(control, values >= threshold, truth) for threshold in thresholds]
    if control == "false-alarms":
        assert max(expected) > expected[0], (
            "regions must merge, so that the running maximum matters"
        )
        expected = np.maximum.accumulate(expected[::-1])[::-1].tolist()
    assert of_unit[chosen].tolist() == pytest.approx(expected, abs=1e-12)
    value = float(
        thresholds[len(thresholds) // 2]
    )  # what is achieved is counted at the threshold itself
    asked: Any = SimpleNamespace(
        levels={control: 0.5},
        control=control,
        form=kind,
        unit="frame",
        found_share=0.3,
        smallest=40,
        smallest_object=5,
        method="ltt",
    )
    achieved = Achieved("s", Threshold(value, guarantee=asked), control, True, lambda name: None)
    of_frame = achieved.count(
        LabelledFrame("f", {"s": stored}, unit_codes={"s"} if form == "unit-code" else (), **truth)
    )
    assert achieved.numbers(of_frame, {})["risk",] == pytest.approx(
        by_hand(control, values >= value, truth), abs=1e-12
    )
    assert len(set(expected)) > 3
    safe = 0 if control in RISING else -1
    assert of_unit[safe] == 0


def test_units_add_their_frames_and_an_alarm_counts_where_it_begins() -> None:
    one, two = (np.array([[a, 0], [4, 4]]) for a in (1, 3))
    shares = Pool("missed-pixels")
    shares.add(one)
    shares.add(two)
    values = shares.losses()
    assert values is not None
    assert values.tolist() == [0.5, 0]
    minutes = Pool("false-alarms", "30s")
    for regions in (1, 2, 2, 0, 1):
        minutes.add(np.array([[regions, 0], [1, 1]]))
    values = minutes.losses()
    assert values is not None
    assert values.tolist() == [MAX_ALARMS, 0], (
        "three begin in half a minute, six a minute, of which five count"
    )
    without = Pool("missed-objects", "30s")
    without.add(np.zeros((2, 2), np.int64))
    assert without.losses() is None, "a unit without an anomaly says nothing of misses"


def test_sums_are_monotone_whatever_the_losses() -> None:
    random, sums = (
        np.random.default_rng(1),
        {c: LossSums(c, 50) for c in ("errors-kept", "false-alarms")},
    )
    rows = random.random((30, 50)) * (random.random((30, 50)) < 0.3)
    for control, of in sums.items():
        for row in rows:
            assert (monotone(row, control) >= row).all()
            of.add(row)
        steps = np.diff(of.total)
        assert (steps >= 0).all() if control in RISING else (steps <= 0).all()
        assert (of.total >= rows.sum(0) - 1e-9).all()
        assert (of.failed >= (rows > 0).sum(0)).all()
        assert of.units == 30


def test_a_bin_flags_exactly_the_floats_at_or_above_its_edge() -> None:
    values = (1 - 1e-6 * np.random.default_rng(2).random(500)).astype(np.float32)
    finder = BinFinder()
    finder.add(values[::2], np.zeros(250, np.uint8))
    bins = finder.bins(gaps=True)
    assert bins is not None
    for key, threshold in enumerate(bins.edges):
        assert ((rank(values, bins)[0] >= key) == (values >= threshold)).all()


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
