"""Segmentation, calibration and selective prediction against scikit-learn, torchmetrics, torch,
brute force and closed forms.
"""

from dataclasses import dataclass
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
    RiskCoverage,
    accuracy,
    aurc,
    ause,
    bin_counts,
    bin_counts_by_mass,
    class_iou,
    confusion_matrix,
    expected_calibration_error,
    mean_iou,
    mean_scores,
    probability_scores,
    risk_coverage,
    selective_numbers,
)


@dataclass(frozen=True)
class Segmented:
    """The class ids of the counted pixels, and the matrix of all pixels."""

    truth: np.ndarray
    predicted: np.ndarray
    matrix: np.ndarray


@pytest.fixture(scope="module")
def segmented() -> Segmented:
    generator = np.random.default_rng(1)
    labels = generator.integers(0, 5, (40, 50)).astype(np.uint8)
    right = generator.random(labels.shape) < 0.6
    guesses = generator.integers(0, 5, labels.shape)
    predicted_ids = np.where(right, labels, guesses)
    counted = generator.random(labels.shape) >= 0.1
    labels[~counted] = 255
    predicted_ids[~counted] = 200  # ignored pixels may be predicted as anything
    matrix = confusion_matrix(labels, predicted_ids, 5)
    return Segmented(labels[counted], predicted_ids[counted], matrix)


def test_the_confusion_matrix_equals_scikit_learn(segmented):
    expected = sklearn_metrics.confusion_matrix(segmented.truth, segmented.predicted)
    np.testing.assert_array_equal(segmented.matrix, expected)


def test_iou_equals_scikit_learn(segmented):
    iou = sklearn_metrics.jaccard_score(segmented.truth, segmented.predicted, average=None)
    np.testing.assert_allclose(class_iou(segmented.matrix), iou, rtol=1e-15)
    assert mean_iou(segmented.matrix) == pytest.approx(float(iou.mean()), rel=1e-15)


def test_accuracy_equals_scikit_learn(segmented):
    expected = sklearn_metrics.accuracy_score(segmented.truth, segmented.predicted)
    assert accuracy(segmented.matrix) == pytest.approx(expected, rel=1e-15)


def test_only_classes_that_occur_nowhere_leave_the_mean():
    labels = np.array([0, 0, 1, 1])
    predicted_ids = np.array([0, 2, 1, 1])  # class 2 is predicted only, class 3 occurs nowhere
    matrix = confusion_matrix(labels, predicted_ids, 4)
    np.testing.assert_array_equal(class_iou(matrix), [0.5, 1.0, 0.0, np.nan])
    assert mean_iou(matrix) == 0.5


def test_segmentation_of_no_pixel_is_none():
    ignored = np.full(4, 255)
    matrix = confusion_matrix(ignored, np.zeros(4, int), 3)
    assert mean_iou(matrix) is None
    assert accuracy(matrix) is None


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
    """Probabilities ``[4, 7, 16, 20]`` and labels, some of them ignored and none of class 6."""
    generator = torch.Generator().manual_seed(0)
    logits = 2.0 * torch.randn(4, 7, 16, 20, generator=generator)
    random = torch.randint(0, 6, (4, 16, 20), generator=generator)
    right = torch.rand(4, 16, 20, generator=generator) < 0.5
    labels = torch.where(right, logits[:, :6].argmax(1), random)
    ignored = torch.rand(labels.shape, generator=generator) < 0.1
    labels[ignored] = 255
    return logits.softmax(1), labels


Frame = tuple[np.ndarray, np.ndarray]


def frames_of(batch: tuple[torch.Tensor, torch.Tensor]) -> list[Frame]:
    """Return probabilities and labels of each frame."""
    probabilities, labels = batch
    return list(zip(probabilities.numpy(), labels.numpy(), strict=True))


def bins_of(confidence: np.ndarray, correct: np.ndarray, bins: int = 15) -> np.ndarray:
    """The bins of pixels one by one: each has a key of its own."""
    return bin_counts(np.stack([correct, ~correct]).astype(np.int64), confidence, bins)


def test_ece_equals_torchmetrics_on_probabilities(batch):
    probabilities, labels = batch
    expected = multiclass_calibration_error(
        probabilities,
        labels,
        num_classes=7,
        n_bins=15,
        norm="l1",
        ignore_index=255,
    )
    sums = np.zeros((3, 15))
    for frame, label in frames_of(batch):
        counted = label != 255
        confidence = frame.max(0)
        correct = frame.argmax(0) == label
        sums += bins_of(confidence[counted], correct[counted])
    assert expected_calibration_error(sums) == pytest.approx(float(expected), abs=1e-6)
    assert sums[0].sum() == (labels != 255).sum()


def test_ece_of_a_closed_form():
    # Confidence 0.9 right in 6 of 10, confidence 0.3 right in 3 of 10 (calibrated): ECE = (10 * 0.3
    # + 0) / 20.
    counts = np.array([[6, 3], [4, 7]])
    confidence = np.array([0.9, 0.3])
    sums = bin_counts(counts, confidence)
    assert expected_calibration_error(sums) == pytest.approx(0.15, rel=1e-12)


def test_a_bin_holds_pixels_right_ones_and_confidence():
    confidence = np.array([0.2, 0.3, 0.9])
    correct = np.array([True, False, True])
    sums = bins_of(confidence, correct, bins=2)
    np.testing.assert_allclose(sums, [[2, 1], [1, 1], [0.5, 0.9]])


def test_bins_are_closed_below_and_the_last_one_above():
    edges = np.linspace(0, 1, 16).astype(np.float32)
    np.testing.assert_array_equal(bins_of(edges, np.ones(16, bool))[0], [1] * 14 + [2])


@pytest.mark.parametrize("confidence", [1.5, -0.1, np.nan])
def test_a_confidence_outside_of_0_to_1_is_refused(confidence):
    counts = np.array([[1, 2], [0, 0]])
    with pytest.raises(InputError, match=r"0\.\.1"):
        bin_counts(counts, np.array([0.5, confidence]))


@pytest.fixture
def score_sums(batch) -> np.ndarray:
    """The sums of a batch, streamed frame by frame."""
    sums = np.zeros(3, np.int64)
    for frame, label in frames_of(batch):
        sums += probability_scores(frame, label)
    return sums


def test_nll_equals_cross_entropy(batch, score_sums):
    probabilities, labels = batch
    nll, _ = mean_scores(score_sums)
    expected = cross_entropy(probabilities.log(), labels, ignore_index=255)
    assert nll == pytest.approx(float(expected), rel=1e-6)


def test_brier_equals_its_definition(batch, score_sums):
    probabilities, labels = batch
    _, brier = mean_scores(score_sums)
    counted = (labels != 255).numpy()
    rows = probabilities.movedim(1, -1).double().numpy()[counted]
    rows /= rows.sum(1, keepdims=True)  # scikit-learn checks the sum in float64
    expected = sklearn_metrics.brier_score_loss(
        labels.numpy()[counted],
        rows,
        labels=range(7),
        scale_by_half=False,
    )
    assert brier == pytest.approx(expected, rel=1e-6)
    assert score_sums[0] == counted.sum()


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
    right = np.array([0, 1], np.uint8)
    wrong = np.array([1, 0], np.uint8)
    assert mean_scores(probability_scores(sure, right)) == (0.0, 0.0)
    nll, brier = mean_scores(probability_scores(sure, wrong))
    assert brier == 2.0
    # An underflow of one probability must not make the sum infinite.
    assert nll == pytest.approx(87.34, abs=0.01)


def test_calibration_of_no_pixel_is_none():
    assert expected_calibration_error(np.zeros((3, 15))) is None
    probabilities = np.full((2, 1, 3), 0.5, np.float32)
    ignored = np.full((1, 3), 255, np.uint8)
    assert mean_scores(probability_scores(probabilities, ignored)) == (None, None)


@pytest.mark.parametrize(
    "values",
    [
        (3.0, 4.0),
        (np.nan, np.nan),
    ],
    ids=["logits", "NaN"],
)
def test_bad_probabilities_are_refused(values):
    probabilities = np.float32(values).reshape(2, 1, 1)
    label = np.zeros((1, 1), np.uint8)
    with pytest.raises(InputError, match="sum to 1"):
        probability_scores(probabilities, label)


def test_adaptive_ece_by_hand():
    confidence = np.array([0.9, 0.8, 0.7, 0.6])
    counts = np.array([[1, 1, 1, 0], [0, 0, 0, 1]])  # the least confident pixel is wrong
    bins = bin_counts_by_mass(counts, confidence, bins=2)
    np.testing.assert_allclose(bins, [[2, 2], [1, 2], [1.3, 1.7]])
    assert expected_calibration_error(bins) == pytest.approx(0.15)


def test_adaptive_ece_keeps_pixels_of_one_confidence_together():
    bins = bin_counts_by_mass(np.array([[2, 4], [0, 2]]), np.array([0.9, 0.5]), bins=4)
    np.testing.assert_allclose(bins[0], [6, 0, 0, 2])


def test_adaptive_ece_is_that_of_runs_of_equal_length():
    generator = np.random.default_rng(4)
    confidence = generator.permutation(np.linspace(0.2, 1, 600))
    right = generator.random(600) < confidence**2
    counts = np.stack([right, ~right]).astype(np.int64)
    order = np.argsort(confidence)
    expected = 0.0
    for run in np.array_split(order, 15):
        expected += abs(right[run].mean() - confidence[run].mean()) * len(run) / 600
    bins = bin_counts_by_mass(counts, confidence)
    assert expected_calibration_error(bins) == pytest.approx(expected, rel=1e-12)


def test_adaptive_ece_of_no_pixel_is_none():
    bins = bin_counts_by_mass(np.zeros((2, 3), np.int64), np.linspace(0, 1, 3))
    assert expected_calibration_error(bins) is None


def risks_in_order(wrong: np.ndarray) -> np.ndarray:
    """Selective risk after each accepted pixel, by definition."""
    return np.cumsum(wrong) / np.arange(1, len(wrong) + 1)


TIED_SCORES = np.array([0, 1, 1, 1, 2, 2, 3])
TIED_WRONG = np.array([0, 1, 0, 0, 1, 0, 1])


@pytest.fixture
def tied_curve():
    counts = []
    for wrong in (0, 1):
        scores = TIED_SCORES[wrong == TIED_WRONG]
        counts.append(np.bincount(scores, minlength=4))
    return risk_coverage(np.stack(counts))


def risks_of_orders() -> list[np.ndarray]:
    """Return the risks of each order of the pixels that have equal scores."""
    risks = []
    for second_to_fourth in permutations((1, 2, 3)):
        for fifth_and_sixth in permutations((4, 5)):
            order = [0, *second_to_fourth, *fifth_and_sixth, 6]
            risks.append(risks_in_order(TIED_WRONG[order]))
    return risks


def test_aurc_of_ties_is_the_mean_over_their_orders(tied_curve):
    areas = [risks.mean() for risks in risks_of_orders()]
    assert aurc(tied_curve) == pytest.approx(np.mean(areas), rel=1e-13)


def curve_of(wrong: list[int]) -> RiskCoverage:
    """Return the curve of pixels with different scores, from the most certain one."""
    return risk_coverage(np.stack([1 - np.array(wrong), np.array(wrong)]))


def test_ause_by_hand():
    # Risks 0, 1/2, 1/3, 1/2; in the best order 0, 0, 1/3, 1/2; the error rate is 1/2.
    assert ause(curve_of([0, 1, 0, 1])) == pytest.approx(1 / 4, rel=1e-13)


def test_ause_of_a_perfect_score_is_0():
    assert ause(curve_of([0, 0, 0, 1, 1])) == pytest.approx(0, abs=1e-13)


def test_ause_is_the_area_between_two_sparsification_curves():
    wrong = np.random.default_rng(3).integers(0, 2, 500)
    of_score = risks_in_order(wrong) / wrong.mean()
    of_error = risks_in_order(np.sort(wrong)) / wrong.mean()
    expected = np.mean(of_score - of_error)
    assert ause(curve_of(wrong.tolist())) == pytest.approx(expected, rel=1e-12)


def test_risks_of_ties_are_the_mean_over_their_orders(tied_curve):
    coverage = np.arange(1, 8) / 7
    expected = np.mean(risks_of_orders(), axis=0)
    np.testing.assert_allclose(tied_curve.risk_at(coverage), expected, rtol=1e-13)


@pytest.mark.parametrize(
    ("counts", "defined", "why"),
    [
        ([[0, 0], [0, 0]], {}, "no pixel has both a class label and a prediction"),
        ([[3, 1], [0, 0]], {"aurc": 0}, "no pixel is wrongly predicted"),
        ([[0, 0], [3, 1]], {"aurc": 1, "ause": 0}, "no pixel is rightly predicted"),
    ],
)
def test_what_lacks_is_none_with_its_reason(counts, defined, why):
    stored = np.array(counts)
    assert selective_numbers(stored) == dict.fromkeys(SELECTIVE_NUMBERS) | defined
    assert Selective("msp").why(stored, ("failure_auroc",)) == why
