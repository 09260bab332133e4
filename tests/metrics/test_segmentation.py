"""Confusion matrix and IoU against scikit-learn."""

from __future__ import annotations

import numpy as np
import pytest
from sklearn import metrics as sklearn_metrics

from segunc.core.errors import InputError
from segunc.metrics.prediction import (
    accuracy,
    class_iou,
    confusion_matrix,
    mean_iou,
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
        ([0, 7], [0, 1], r"labels holds the class ids \[7\]"),
        ([0, 1], [0, 9], r"prediction holds the class ids \[9\]"),
        ([0, -1], [0, 1], r"labels holds the class ids \[-1\]"),
    ],
)
def test_ids_that_are_no_class_are_refused(labels, prediction, message):
    with pytest.raises(InputError, match=message):
        confusion_matrix(np.array(labels), np.array(prediction), 3)
