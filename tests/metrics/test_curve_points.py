"""Curve arrays: scikit-learn's points, less those that change nothing."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from sklearn.metrics import auc, precision_recall_curve, roc_curve

from segunc.core.errors import InputError
from segunc.maps.encoding import score_keys
from segunc.metrics.counting import DetectionCurve, auroc, average_precision, count_keys, detection_curve
from segunc.metrics.curve_points import precision_recall_points, roc_points


def curve_of(scores: np.ndarray, labels: np.ndarray) -> DetectionCurve:
    return detection_curve(count_keys(score_keys(scores), labels))


def random_case(seed: int = 0, size: int = 3000) -> tuple[np.ndarray, np.ndarray]:
    generator = np.random.default_rng(seed)
    labels = (generator.random(size) < 0.1).astype(np.uint8)
    return (generator.normal(size=size) + labels).astype(np.float16), labels


@settings(max_examples=60, deadline=None)
@given(
    hnp.arrays(np.float16, 40, elements=st.integers(-12, 12).map(float)),
    hnp.arrays(np.uint8, 40, elements=st.integers(0, 1)),
)
def test_areas_stay_and_points_are_points_of_scikit_learn(scores, labels):
    labels[:2] = (0, 1)
    curve = curve_of(scores, labels)
    roc, pr = roc_points(curve), precision_recall_points(curve)
    assert roc is not None
    assert pr is not None
    assert auc(roc.x, roc.y) == pytest.approx(auroc(curve), rel=1e-12)
    assert np.sum(np.diff(pr.x) * pr.y[1:]) == pytest.approx(average_precision(curve), rel=1e-12)
    false_rate, true_rate, _ = roc_curve(labels, scores.astype(np.float64), drop_intermediate=False)
    assert set(zip(roc.x, roc.y, strict=True)) <= set(zip(false_rate, true_rate, strict=True))
    # The exact shape: scikit-learn's curve between kept points lies on their straight lines.
    np.testing.assert_allclose(
        np.interp(false_rate, roc.x, roc.y)[np.diff(false_rate, append=2) > 0],
        true_rate[np.diff(false_rate, append=2) > 0],
        rtol=1e-12,
    )
    precision, recall, _ = precision_recall_curve(labels, scores.astype(np.float64))
    assert set(zip(pr.x, pr.y, strict=True)) <= set(zip(recall, precision, strict=True))
    assert set(pr.x) == set(recall)


def test_ends_and_thresholds():
    scores, labels = random_case()
    curve = curve_of(scores, labels)
    for points in (roc_points(curve), precision_recall_points(curve)):
        assert points is not None
        assert points.thresholds[0] == np.inf
        assert (np.diff(points.thresholds) < 0).all()
        assert points.thresholds[-1] == curve.thresholds[-1]
        assert points.x[0] == 0.0
        assert points.x[-1] == 1.0
        assert (np.diff(points.x) >= 0).all()
        for place in (1, len(points.x) // 2):
            called = score_keys(scores) >= points.thresholds[place]
            false_rate, recall = called[labels == 0].mean(), called[labels == 1].mean()
            assert points.x[place] in (pytest.approx(false_rate), pytest.approx(recall))


def test_points_inside_a_run_are_dropped_and_corners_are_not():
    # From the top: three anomalous scores, four normal ones, one anomalous.
    scores = np.arange(8, 0, -1).astype(np.float16)
    labels = np.array([1, 1, 1, 0, 0, 0, 0, 1])
    roc, pr = roc_points(curve_of(scores, labels)), precision_recall_points(curve_of(scores, labels))
    assert roc is not None
    assert pr is not None
    np.testing.assert_allclose(roc.x, [0, 0, 1, 1])
    np.testing.assert_allclose(roc.y, [0, 0.75, 0.75, 1])
    np.testing.assert_allclose(pr.x, [0, 0.25, 0.5, 0.75, 0.75, 1])
    np.testing.assert_allclose(pr.y, [1, 1, 1, 1, 3 / 7, 0.5])


@pytest.mark.parametrize("points", [2, 5, 60])
def test_fewer_points_for_a_plot_keep_the_ends_and_stay_near(points):
    curve = curve_of(*random_case(1))
    for make in (roc_points, precision_recall_points):
        whole, few = make(curve), make(curve, points)
        assert whole is not None
        assert few is not None
        assert 2 <= len(few.x) <= points < len(whole.x)
        assert (few.x[0], few.y[0]) == (whole.x[0], whole.y[0])
        assert (few.x[-1], few.y[-1]) == (whole.x[-1], whole.y[-1])
    if points == 60:
        few = roc_points(curve, points)
        assert few is not None
        assert auc(few.x, few.y) == pytest.approx(auroc(curve), abs=0.002)


def test_no_curve_without_both_classes_and_no_curve_of_one_point():
    scores = np.arange(4).astype(np.float16)
    alone = curve_of(scores, np.zeros(4, np.uint8))
    assert roc_points(alone) is None
    assert precision_recall_points(alone) is None
    with pytest.raises(InputError, match="2 or more"):
        roc_points(curve_of(scores, np.array([0, 1, 0, 1])), points=1)


def test_constant_scores_are_one_step():
    curve = curve_of(np.full(6, 0.5, np.float16), np.array([0, 0, 0, 0, 1, 1]))
    roc, pr = roc_points(curve), precision_recall_points(curve)
    assert roc is not None
    assert pr is not None
    assert (roc.x.tolist(), roc.y.tolist()) == ([0, 1], [0, 1])
    assert (pr.x.tolist(), pr.y.tolist()) == ([0, 1], [1, 1 / 3])
