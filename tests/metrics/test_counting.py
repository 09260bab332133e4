"""Counting stored scores: as keys of the labelled pixels, whatever the form; histograms of scores against numpy's."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from segunc.core.errors import InputError
from segunc.maps.encoding import decode_unit, encode_unit, keys_to_half, score_keys
from segunc.metrics import counting
from segunc.metrics.counting import count_scores, score_histogram
from tests.metrics.keys import count_keys

labels_of_40 = hnp.arrays(np.uint8, (5, 8), elements=st.sampled_from([0, 1, 255]))
VALUES = decode_unit(np.arange(65536, dtype=np.uint16))
UNIT = (0.0, 1.0)
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
        (np.zeros(3, np.float16), np.zeros(3, np.int64), "type int64"),
        (np.zeros(3, np.float16), np.array([0, 7, 2], np.uint8), r"values \[2, 7\]"),
        (np.float32([98.01, 0, 0]), np.zeros(3, np.uint8), "float16 would round"),
        (np.array([1e6, 0, 0]), np.zeros(3, np.uint8), "beyond the range of its"),
    ],
)
def test_bad_input_is_refused(stored, anomaly, message):
    with pytest.raises(InputError, match=message):
        count_scores(stored, anomaly)


def test_nothing_labelled_counts_nothing():
    assert not count_scores(np.full((2, 2), np.nan, np.float16), np.full((2, 2), 255, np.uint8)).any()
    assert count_scores(np.zeros((0, 4), np.uint16), np.zeros((0, 4), np.uint8)).shape == (2, 65536)


def test_densities_are_those_of_numpy():
    random = np.random.default_rng(0)
    codes, anomaly = encode_unit(random.random(4000) ** 2), random.random(4000) < 0.1
    density, edges = score_histogram(count_keys(codes, anomaly), VALUES, UNIT, bins=20)
    for row, which in enumerate((~anomaly, anomaly)):
        expected, expected_edges = np.histogram(decode_unit(codes[which]).astype(float), 20, (0, 1), density=True)
        np.testing.assert_allclose(density[row], expected, rtol=1e-12)
    np.testing.assert_allclose(edges, expected_edges, rtol=1e-12)


def test_scores_outside_the_range_are_not_drawn():
    scores = np.array([-4.0, 0.25, 0.75, 9.0], np.float32)
    table = keys_to_half(np.arange(65536, dtype=np.uint16)).astype(np.float32)  # holds NaN where no pixel can be
    counts = count_keys(score_keys(scores), np.array([0, 0, 1, 1]))
    density, _ = score_histogram(counts, table, UNIT, bins=2)
    np.testing.assert_allclose(density, [[1, 0], [0, 1]])  # half of the pixels over half a unit
    assert score_histogram(counts, table, None, bins=13)[1][[0, -1]].tolist() == [-4, 9]


def test_a_row_without_pixels_has_no_density():
    counts = count_keys(np.array([9], np.uint16), np.array([0]))
    assert np.isnan(score_histogram(counts, VALUES, UNIT)[0][1]).all()
    edges = score_histogram(counts, VALUES, None, bins=4)[1]
    assert edges[0] < VALUES[9] < edges[-1]
