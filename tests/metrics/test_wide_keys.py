"""20-bit keys: order, edges, and the stated error of the numbers."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from sklearn.metrics import average_precision_score, roc_auc_score

from segunc.core.errors import InputError
from segunc.metrics.counting import auroc, average_precision, best_f1, count_keys, detection_curve
from segunc.metrics.wide_keys import (
    RELATIVE_WIDTH,
    WIDE_KEYS,
    auroc_error_bound,
    count_wide_scores,
    wide_key_edges,
    wide_keys,
)
from tests.metrics.curve_oracles import FIXTURES

singles = hnp.arrays(np.float32, 50, elements=st.floats(width=32, allow_nan=False, allow_infinity=False))


@settings(max_examples=100, deadline=None)
@given(singles)
def test_keys_keep_the_order_and_edges_are_inclusive_lower_ones(scores):
    keys = wide_keys(scores)
    order = np.argsort(scores, kind="stable")
    assert (np.diff(keys[order].astype(np.int64)) >= 0).all()
    assert keys.max() < WIDE_KEYS
    edges = wide_key_edges(keys)
    assert (edges <= scores).all()
    np.testing.assert_array_equal(wide_keys(edges), keys)
    # The next score below an edge has another key.
    below = np.nextafter(edges, np.float32(-np.inf))
    finite = np.isfinite(below)
    assert (wide_keys(below[finite]) < keys[finite]).all()


@settings(max_examples=100, deadline=None)
@given(hnp.arrays(np.float32, 50, elements=st.floats(-(2.0**100), 2.0**100, width=32, allow_subnormal=False)))
def test_scores_of_one_key_differ_by_less_than_the_stated_share(scores):
    edges = wide_key_edges(wide_keys(scores)).astype(np.float64)
    assert (np.abs(scores - edges) < np.maximum(RELATIVE_WIDTH * np.abs(scores), np.finfo(np.float32).tiny)).all()


def test_signs_of_zero_are_one_key_and_its_edge_is_zero():
    keys = wide_keys(np.array([0.0, -0.0], np.float32))
    assert keys[0] == keys[1]
    assert wide_key_edges(keys)[0] == 0.0


@pytest.mark.parametrize("times", [1, 12, 128])
@pytest.mark.parametrize(("labels", "scores", "expected"), FIXTURES)
def test_published_fixtures(labels, scores, expected, times):
    counts = count_wide_scores(np.tile(np.float32(scores), times), np.tile(np.uint8(labels), times))
    curve = detection_curve(counts)
    best = best_f1(curve)
    assert best is not None
    assert (average_precision(curve), auroc(curve), best[0]) == pytest.approx(
        (expected[0], expected[1], expected[3]), rel=1e-12
    )


@settings(max_examples=30, deadline=None)
@given(singles, hnp.arrays(np.uint8, 50, elements=st.sampled_from([0, 1, 255])))
def test_scores_are_counted_as_their_keys(scores, labels):
    scores[:3] = (0.0, -0.0, -1e-45)
    counted = labels != 255
    by_key = count_keys(wide_keys(scores[counted]), labels[counted], WIDE_KEYS)
    for same in (scores, scores.astype(np.float64)):
        np.testing.assert_array_equal(count_wide_scores(same, labels), by_key)


def test_numbers_are_those_of_the_rounded_scores_and_auroc_within_its_bound():
    generator = np.random.default_rng(3)
    labels = (generator.random(30_000) < 0.1).astype(np.uint8)
    scores = (1e6 + 400 * (generator.normal(size=30_000) + labels)).astype(np.float32)  # float16 would overflow
    curve = detection_curve(count_wide_scores(scores, labels))
    rounded = wide_key_edges(wide_keys(scores))
    assert auroc(curve) == pytest.approx(roc_auc_score(labels, rounded), rel=1e-12)
    assert average_precision(curve) == pytest.approx(average_precision_score(labels, rounded), rel=1e-12)
    bound, exact = auroc_error_bound(curve), roc_auc_score(labels, scores)
    assert bound is not None
    assert 0 < abs(auroc(curve) - exact) < bound < 0.2
    best = best_f1(curve)
    assert best is not None
    threshold = wide_key_edges(np.array([best[1]], np.uint32))[0]
    predicted = scores >= threshold
    hits = (predicted & (labels == 1)).sum()
    assert best[0] == pytest.approx(2 * hits / (predicted.sum() + labels.sum()), rel=1e-12)


def test_the_bound_is_reached_where_all_scores_share_a_key():
    curve = detection_curve(count_wide_scores(np.float32([1.0, 1.0001]), np.uint8([0, 1])))
    assert auroc(curve) == 0.5
    assert auroc_error_bound(curve) == 0.5
    assert auroc_error_bound(detection_curve(count_wide_scores(np.float32([1.0]), np.uint8([0])))) is None


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf, 1e39])
def test_bad_scores_are_refused_unless_ignored(bad):
    scores = np.array([0.5, bad])
    assert count_wide_scores(scores, np.uint8([1, 255])).sum() == 1
    with pytest.raises(InputError, match="NaN, infinite or beyond"):
        wide_keys(scores)
    with pytest.raises(InputError, match="NaN, infinite or beyond"):
        count_wide_scores(scores, np.uint8([1, 0]))


def test_codes_and_wrong_shapes_are_refused():
    with pytest.raises(InputError, match="16-bit"):
        wide_keys(np.zeros(2, np.uint16))
    with pytest.raises(InputError, match="one label each"):
        count_wide_scores(np.zeros(2), np.zeros(3, np.uint8))
    with pytest.raises(InputError, match=r"values \[3\]"):
        count_wide_scores(np.zeros(2), np.uint8([0, 3]))
