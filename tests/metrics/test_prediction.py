"""Segmentation, calibration and selective prediction against scikit-learn, torchmetrics, torch,
brute force and closed forms.
"""

from itertools import permutations

import numpy as np
import pytest
import torch
from sklearn import metrics as sklearn_metrics
from torch.nn.functional import cross_entropy
from torchmetrics.functional.classification import multiclass_calibration_error

from segunc.core.errors import InputError
from segunc.evaluation.parts import Selective
from segunc.metrics import prediction
from segunc.metrics.counting import STEPS_PER_UNIT
from segunc.metrics.prediction import (
    SELECTIVE_NUMBERS,
    accuracy,
    aurc,
    bin_counts,
    class_iou,
    confusion_matrix,
    expected_calibration_error,
    mean_iou,
    mean_scores,
    probability_scores,
    risk_coverage,
    selective_numbers,
)


def test_segmentation_equals_scikit_learn_and_only_classes_that_occur_nowhere_leave_the_mean():
    generator = np.random.default_rng(1)
    labels = generator.integers(0, 5, (40, 50)).astype(np.uint8)
    predicted_ids = np.where(
        generator.random(labels.shape) < 0.6, labels, generator.integers(0, 5, labels.shape)
    )
    counted = generator.random(labels.shape) >= 0.1
    labels[~counted], predicted_ids[~counted] = (
        255,
        200,
    )  # ignored pixels may be predicted as anything
    matrix = confusion_matrix(labels, predicted_ids, 5)
    truth, predicted = labels[counted], predicted_ids[counted]
    np.testing.assert_array_equal(matrix, sklearn_metrics.confusion_matrix(truth, predicted))
    iou = sklearn_metrics.jaccard_score(truth, predicted, average=None)
    np.testing.assert_allclose(class_iou(matrix), iou, rtol=1e-15)
    assert mean_iou(matrix) == pytest.approx(float(iou.mean()), rel=1e-15)
    assert accuracy(matrix) == pytest.approx(
        sklearn_metrics.accuracy_score(truth, predicted), rel=1e-15
    )
    labels = np.array([0, 0, 1, 1])
    predicted_ids = np.array([0, 2, 1, 1])  # class 2 is predicted only, class 3 occurs nowhere
    matrix = confusion_matrix(labels, predicted_ids, 4)
    np.testing.assert_array_equal(class_iou(matrix), [0.5, 1.0, 0.0, np.nan])
    assert mean_iou(matrix) == 0.5
    matrix = confusion_matrix(np.full(4, 255), np.zeros(4, int), 3)
    assert mean_iou(matrix) is accuracy(matrix) is None  # nothing counted is not zero


@pytest.mark.parametrize(
    ("labels", "predicted", "message"),
    [
        ([0, 7], [0, 1], r"labels holds the class ids \[7\]"),
        ([0, 1], [0, 9], r"prediction holds the class ids \[9\]"),
        ([0, -1], [0, 1], r"labels holds the class ids \[-1\]"),
    ],
)
def test_ids_that_are_no_class_are_refused(labels, predicted, message):
    with pytest.raises(InputError, match=message):
        confusion_matrix(np.array(labels), np.array(predicted), 3)


@pytest.fixture
def batch() -> tuple[torch.Tensor, torch.Tensor]:
    """Probabilities ``[4, 7, 16, 20]`` and labels with ignored pixels; class 6 never occurs in the
    labels.
    """
    generator = torch.Generator().manual_seed(0)
    logits = 2.0 * torch.randn(4, 7, 16, 20, generator=generator)
    random = torch.randint(0, 6, (4, 16, 20), generator=generator)
    labels = torch.where(
        torch.rand(4, 16, 20, generator=generator) < 0.5, logits[:, :6].argmax(1), random
    )
    labels[torch.rand(labels.shape, generator=generator) < 0.1] = 255
    return logits.softmax(1), labels


def bins_of(confidence: np.ndarray, correct: np.ndarray, bins: int = 15) -> np.ndarray:
    """The bins of pixels one by one: each has a key of its own."""
    return bin_counts(np.stack([correct, ~correct]).astype(np.int64), confidence, bins)


def test_ece_equals_torchmetrics_on_probabilities(batch):
    probabilities, labels = batch
    options = {"num_classes": 7, "n_bins": 15, "norm": "l1", "ignore_index": 255}
    expected = multiclass_calibration_error(probabilities, labels, **options)
    sums = np.zeros((3, 15))
    for frame, label in zip(
        probabilities.numpy(), labels.numpy(), strict=True
    ):  # streaming, frame by frame
        counted = label != 255
        sums += bins_of(frame.max(0)[counted], (frame.argmax(0) == label)[counted])
    assert expected_calibration_error(sums) == pytest.approx(float(expected), abs=1e-6)
    assert sums[0].sum() == (labels != 255).sum()


def test_ece_of_a_closed_form():
    # Confidence 0.9 right in 6 of 10, confidence 0.3 right in 3 of 10 (calibrated): ECE = (10 * 0.3
    # + 0) / 20.
    sums = bin_counts(np.array([[6, 3], [4, 7]]), np.array([0.9, 0.3]))
    assert expected_calibration_error(sums) == pytest.approx(0.15, rel=1e-12)


def test_bins_are_closed_below_and_the_last_one_above():
    sums = bins_of(np.array([0.2, 0.3, 0.9]), np.array([True, False, True]), 2)
    np.testing.assert_allclose(sums, [[2, 1], [1, 1], [0.5, 0.9]])
    edges = np.linspace(0, 1, 16).astype(np.float32)
    np.testing.assert_array_equal(bins_of(edges, np.ones(16, bool))[0], [1] * 14 + [2])


@pytest.mark.parametrize("confidence", [1.5, -0.1, np.nan])
def test_a_confidence_outside_of_0_to_1_is_refused(confidence):
    with pytest.raises(InputError, match=r"0\.\.1"):
        bin_counts(np.array([[1, 2], [0, 0]]), np.array([0.5, confidence]))


def test_nll_equals_cross_entropy_and_brier_its_definition(batch):
    probabilities, labels = batch
    sums = np.zeros(3, np.int64)
    for frame, label in zip(
        probabilities.numpy(), labels.numpy(), strict=True
    ):  # streaming, frame by frame
        sums += probability_scores(frame, label)
    nll, brier = mean_scores(sums)
    assert nll == pytest.approx(
        float(cross_entropy(probabilities.log(), labels, ignore_index=255)), rel=1e-6
    )
    counted = (labels != 255).numpy()
    rows = probabilities.movedim(1, -1).double().numpy()[counted]
    rows /= rows.sum(1, keepdims=True)  # scikit-learn checks the sum in float64
    expected = sklearn_metrics.brier_score_loss(
        labels.numpy()[counted], rows, labels=range(7), scale_by_half=False
    )
    assert brier == pytest.approx(expected, rel=1e-6)
    assert sums[0] == counted.sum()


def test_strips_change_the_rounding_alone(batch, monkeypatch):
    probabilities, labels = batch
    frame = probabilities[0].numpy()
    label = labels[0].numpy()
    scores = probability_scores(frame, label)
    monkeypatch.setattr(prediction, "STRIP", 37)
    assert np.abs(probability_scores(frame, label) - scores).max() <= 1


def test_nll_and_brier_of_equal_probabilities():
    uniform = np.full((4, 1, 3), 0.25, np.float32)
    labels = np.array([[0, 3, 255]], np.uint8)
    nll, brier = mean_scores(probability_scores(uniform, labels))
    assert nll == pytest.approx(np.log(4), abs=0.5 / STEPS_PER_UNIT)
    assert brier == pytest.approx(0.75, abs=0.5 / STEPS_PER_UNIT)


def test_nll_and_brier_of_sure_predictions():
    sure = np.array([[1.0, 0.0], [0.0, 1.0]], np.float32)
    assert mean_scores(probability_scores(sure, np.array([0, 1], np.uint8))) == (0.0, 0.0)
    nll, brier = mean_scores(probability_scores(sure, np.array([1, 0], np.uint8)))
    assert brier == 2.0
    # An underflow of one probability must not make the sum infinite.
    assert nll == pytest.approx(87.34, abs=0.01)


def test_calibration_of_no_pixel_is_none():
    assert expected_calibration_error(np.zeros((3, 15))) is None
    probabilities = np.full((2, 1, 3), 0.5, np.float32)
    ignored = np.full((1, 3), 255, np.uint8)
    assert mean_scores(probability_scores(probabilities, ignored)) == (None, None)


@pytest.mark.parametrize(
    "probabilities", [[[[3.0]], [[4.0]]], [[[np.nan]], [[np.nan]]]], ids=["logits", "NaN"]
)
def test_bad_probabilities_are_refused(probabilities):
    with pytest.raises(InputError, match="sum to 1"):
        probability_scores(np.array(probabilities, np.float32), np.zeros((1, 1), np.uint8))


def risks_in_order(wrong: np.ndarray) -> np.ndarray:
    """Selective risk after each accepted pixel, by definition."""
    return np.cumsum(wrong) / np.arange(1, len(wrong) + 1)


def test_tied_numbers_are_the_mean_over_all_orders_of_the_ties():
    score = np.array([0, 1, 1, 1, 2, 2, 3])
    wrong = np.array([0, 1, 0, 0, 1, 0, 1])
    curve = risk_coverage(
        np.stack([np.bincount(score[wrong == row], minlength=4) for row in (0, 1)])
    )
    orders = [
        wrong[[0, *first, *second, 6]]
        for first in permutations((1, 2, 3))
        for second in permutations((4, 5))
    ]
    assert aurc(curve) == pytest.approx(
        np.mean([risks_in_order(order).mean() for order in orders]), rel=1e-13
    )
    risks = np.mean([risks_in_order(order) for order in orders], axis=0)
    np.testing.assert_allclose(curve.risk_at(np.arange(1, 8) / 7), risks, rtol=1e-13)


@pytest.mark.parametrize(
    ("counts", "defined", "why"),
    [
        ([[0, 0], [0, 0]], {}, "no pixel has both a class label and a prediction"),
        ([[3, 1], [0, 0]], {"aurc": 0}, "no pixel is wrongly predicted"),
        ([[0, 0], [3, 1]], {"aurc": 1}, "no pixel is rightly predicted"),
    ],
)
def test_what_lacks_is_none_with_its_reason(counts, defined, why):
    assert selective_numbers(np.array(counts)) == dict.fromkeys(SELECTIVE_NUMBERS) | defined
    assert Selective("msp").why(np.array(counts), ("failure_auroc",)) == why
