"""Confusion matrix and IoU against scikit-learn, agreement and total variation of predictive distributions against SciPy."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import wasserstein_distance
from sklearn import metrics as sklearn_metrics
from torch import Tensor

from segunc.core.errors import InputError
from segunc.metrics.segmentation import (
    accuracy,
    class_iou,
    confusion_matrix,
    mean_iou,
    predictive_agreement,
    total_variation,
)


def test_equals_scikit_learn():
    generator = np.random.default_rng(1)
    labels = generator.integers(0, 5, (40, 50)).astype(np.uint8)
    prediction = np.where(generator.random(labels.shape) < 0.6, labels, generator.integers(0, 5, labels.shape))
    counted = generator.random(labels.shape) >= 0.1
    labels[~counted], prediction[~counted] = 255, 200  # ignored pixels may be predicted as anything
    matrix = confusion_matrix(labels, prediction, 5)
    truth, predicted = labels[counted], prediction[counted]
    np.testing.assert_array_equal(matrix, sklearn_metrics.confusion_matrix(truth, predicted))
    iou = sklearn_metrics.jaccard_score(truth, predicted, average=None)
    np.testing.assert_allclose(class_iou(matrix), iou, rtol=1e-15)
    assert mean_iou(matrix) == pytest.approx(float(iou.mean()), rel=1e-15)
    assert accuracy(matrix) == pytest.approx(sklearn_metrics.accuracy_score(truth, predicted), rel=1e-15)


def test_only_classes_absent_from_labels_and_predictions_leave_the_mean():
    labels = np.array([0, 0, 1, 1])
    prediction = np.array([0, 2, 1, 1])  # class 2 is predicted only, class 3 occurs nowhere
    matrix = confusion_matrix(labels, prediction, 4)
    np.testing.assert_array_equal(class_iou(matrix), [0.5, 1.0, 0.0, np.nan])
    assert mean_iou(matrix) == 0.5
    matrix = confusion_matrix(np.full(4, 255), np.zeros(4, int), 3)
    assert mean_iou(matrix) is accuracy(matrix) is None  # nothing counted is not zero


@pytest.mark.parametrize(
    ("labels", "prediction", "message"),
    [
        ([0, 1], [0], "one size"),
        ([0, 7], [0, 1], r"labels holds the class ids \[7\]"),
        ([0, 1], [0, 9], r"prediction holds the class ids \[9\]"),
        ([0, -1], [0, 1], r"labels holds the class ids \[-1\]"),
    ],
)
def test_ids_that_are_no_class_are_refused(labels, prediction, message):
    with pytest.raises(InputError, match=message):
        confusion_matrix(np.array(labels), np.array(prediction), 3)


def random(seed: int, classes: int = 4) -> Tensor:
    logits = torch.randn(3, classes, 2, 5, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    return (2 * logits).softmax(1)


@given(st.integers(0, 1000), st.integers(0, 1000))
def test_of_two_classes_total_variation_is_scipys_wasserstein_distance(one: int, two: int) -> None:
    p, q = random(one, 2), random(two, 2)
    pairs = zip(p.movedim(1, -1).reshape(-1, 2), q.movedim(1, -1).reshape(-1, 2), strict=True)
    expected = [wasserstein_distance([0, 1], [0, 1], a.numpy(), b.numpy()) for a, b in pairs]
    assert total_variation(p, q) == pytest.approx(sum(expected) / len(expected), abs=1e-12)


@given(st.integers(0, 1000), st.integers(0, 1000), st.integers(0, 1000))
def test_total_variation_is_a_distance_in_0_to_1(one: int, two: int, three: int) -> None:
    p, q, r = random(one), random(two), random(three)
    assert total_variation(p, p) == 0.0
    assert total_variation(p, q) == pytest.approx(total_variation(q, p))
    assert total_variation(p, r) <= total_variation(p, q) + total_variation(q, r) + 1e-12
    assert 0.0 <= total_variation(p, q) <= 1.0


def test_agreement_and_total_variation_by_hand() -> None:
    p = torch.tensor([[0.5, 0.3, 0.2], [0.1, 0.1, 0.8]])
    q = torch.tensor([[0.2, 0.6, 0.2], [0.1, 0.2, 0.7]])
    assert (predictive_agreement(p, q), total_variation(p, q)) == (0.5, pytest.approx((0.3 + 0.1) / 2))
    p = torch.tensor([[1.0, 0.0]])
    assert (predictive_agreement(p, p), predictive_agreement(p, 1 - p), total_variation(p, 1 - p)) == (1.0, 0.0, 1.0)
    with pytest.raises(InputError, match="same pixels"):
        total_variation(p, p[:, :1])
