"""Histograms of scores against numpy's."""

from __future__ import annotations

import numpy as np
import pytest

from segunc.core.errors import InputError
from segunc.maps.encoding import decode_unit, encode_unit, keys_to_half, score_keys
from segunc.metrics.counting import count_keys, score_histogram

VALUES = decode_unit(np.arange(65536, dtype=np.uint16))
UNIT = (0.0, 1.0)


def test_densities_are_those_of_numpy():
    random = np.random.default_rng(0)
    codes, anomaly = encode_unit(random.random(4000) ** 2), random.random(4000) < 0.1
    histogram = score_histogram(count_keys(codes, anomaly), VALUES, UNIT, bins=20)
    for row, which in enumerate((~anomaly, anomaly)):
        expected, edges = np.histogram(decode_unit(codes[which]).astype(float), 20, (0, 1), density=True)
        np.testing.assert_allclose(histogram.density[row], expected, rtol=1e-12)
    np.testing.assert_allclose(histogram.edges, edges, rtol=1e-12)


def test_scores_outside_the_range_are_not_drawn():
    scores = np.array([-4.0, 0.25, 0.75, 9.0], np.float32)
    table = keys_to_half(np.arange(65536, dtype=np.uint16)).astype(np.float32)  # holds NaN where no pixel can be
    counts = count_keys(score_keys(scores), np.array([0, 0, 1, 1]))
    inside = score_histogram(counts, table, UNIT, bins=2)
    np.testing.assert_allclose(inside.density, [[1, 0], [0, 1]])  # half of the pixels over half a unit
    whole = score_histogram(counts, table, None, bins=13)
    assert (whole.edges[0], whole.edges[-1]) == (-4, 9)


def test_a_row_without_pixels_has_no_density():
    counts = count_keys(np.array([9], np.uint16), np.array([0]))
    assert np.isnan(score_histogram(counts, VALUES, UNIT).density[1]).all()
    constant = score_histogram(counts, VALUES, None, bins=4)
    assert constant.edges[0] < VALUES[9] < constant.edges[-1]


def test_bad_input_is_refused():
    with pytest.raises(InputError, match="no pixel"):
        score_histogram(np.zeros((2, 65536), np.int64), VALUES, None)
    with pytest.raises(InputError, match="range"):
        score_histogram(np.zeros((2, 65536), np.int64), VALUES, (1.0, 1.0))
