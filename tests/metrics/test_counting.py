"""Counting stored scores: as keys of the labelled pixels, whatever the form."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from segunc.core.errors import InputError
from segunc.maps.encoding import encode_unit, score_keys
from segunc.metrics import counting
from segunc.metrics.counting import count_scores
from tests.metrics.keys import count_keys

labels_of_40 = hnp.arrays(np.uint8, (5, 8), elements=st.sampled_from([0, 1, 255]))
EXTREMES = [0.0, -0.0, 6e-8, -6e-8, 65504.0, -65504.0, 1.0, -1.0]


def by_keys(stored: np.ndarray, anomaly: np.ndarray) -> np.ndarray:
    counted = anomaly != 255
    return count_keys(score_keys(stored[counted]), anomaly[counted])


@settings(max_examples=80, deadline=None)
@given(
    hnp.arrays(np.float16, (5, 8), elements=st.sampled_from(EXTREMES) | st.floats(-65504, 65504, width=16)),
    labels_of_40,
)
def test_floats_are_counted_as_their_keys(scores, anomaly):
    np.testing.assert_array_equal(count_scores(scores, anomaly), by_keys(scores, anomaly))


@settings(max_examples=40, deadline=None)
@given(hnp.arrays(np.float32, (5, 8), elements=st.floats(-65024, 65024, width=16)), labels_of_40)
def test_wider_floats_and_codes_too(scores, anomaly):
    for stored in (scores, scores.astype(np.float64), encode_unit(np.abs(scores) / 65024), scores.T[::-1].T):
        np.testing.assert_array_equal(count_scores(stored, anomaly), by_keys(stored, anomaly))
    bytes_ = (np.abs(scores) % 256).astype(np.uint8)
    np.testing.assert_array_equal(count_scores(bytes_, anomaly), by_keys(bytes_, anomaly))


def test_strips_do_not_show(monkeypatch):
    generator = np.random.default_rng(0)
    scores = generator.normal(size=2_000_000).astype(np.float16)
    anomaly = generator.choice(np.array([0, 1, 255], np.uint8), 2_000_000)
    # Larger than one strip (four rows of 65,536 twice), and the strip's end is no multiple of the size.
    counts = count_scores(scores, anomaly)
    np.testing.assert_array_equal(counts, by_keys(scores, anomaly))
    assert counts.sum() == (anomaly != 255).sum()
    monkeypatch.setattr(counting, "_STRIP", 10**9)
    np.testing.assert_array_equal(count_scores(scores, anomaly), counts)


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_only_counted_scores_must_be_finite(bad):
    scores = np.array([0.5, bad], np.float32)
    assert count_scores(scores, np.array([1, 255], np.uint8)).sum() == 1
    with pytest.raises(InputError, match="NaN, infinite or beyond"):
        count_scores(scores, np.array([1, 0], np.uint8))


@pytest.mark.parametrize(
    ("stored", "anomaly", "message"),
    [
        (np.zeros(3, np.float16), np.zeros(3, np.int64), "int64"),
        (np.zeros(3, np.float16), np.array([0, 7, 2], np.uint8), r"values \[2, 7\]"),
        (np.float32([98.01, 0, 0]), np.zeros(3, np.uint8), "float16 would round"),
        (np.array([1e6, 0, 0]), np.zeros(3, np.uint8), "beyond"),
    ],
)
def test_bad_input_is_refused(stored, anomaly, message):
    with pytest.raises(InputError, match=message):
        count_scores(stored, anomaly)
