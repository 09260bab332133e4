"""Calibration against torchmetrics, torch and closed forms."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from sklearn.metrics import brier_score_loss
from torch.nn.functional import cross_entropy
from torchmetrics.functional.classification import multiclass_calibration_error

from segunc.errors import InputError
from segunc.metrics.calibration import bin_confidences, expected_calibration_error, probability_scores


@pytest.fixture
def batch() -> tuple[torch.Tensor, torch.Tensor]:
    """Logits ``[4, 7, 16, 20]`` and labels with ignored pixels."""
    generator = torch.Generator().manual_seed(0)
    logits = 2.0 * torch.randn(4, 7, 16, 20, generator=generator)
    labels = torch.where(
        torch.rand(4, 16, 20, generator=generator) < 0.5,
        logits.argmax(1),
        torch.randint(0, 7, (4, 16, 20), generator=generator),
    )
    labels[torch.rand(labels.shape, generator=generator) < 0.1] = 255
    return logits, labels


def test_ece_equals_torchmetrics_on_probabilities(batch):
    logits, labels = batch
    probabilities = logits.softmax(1)
    expected = multiclass_calibration_error(
        probabilities, labels, num_classes=7, n_bins=15, norm="l1", ignore_index=255
    )
    sums = np.zeros((3, 15))
    for frame, label in zip(probabilities.numpy(), labels.numpy(), strict=True):  # streaming, frame by frame
        counted = label != 255
        sums += bin_confidences(frame.max(0)[counted], (frame.argmax(0) == label)[counted])
    assert expected_calibration_error(sums) == pytest.approx(float(expected), abs=1e-6)
    assert sums[0].sum() == (labels != 255).sum()


def test_ece_of_a_closed_form():
    # Confidence 0.9 right in 6 of 10, confidence 0.3 right in 3 of 10 (calibrated): ECE = (10 * 0.3 + 0) / 20.
    confidence = np.array([0.9] * 10 + [0.3] * 10)
    correct = np.array([1] * 6 + [0] * 4 + [1] * 3 + [0] * 7, bool)
    assert expected_calibration_error(bin_confidences(confidence, correct)) == pytest.approx(0.15, rel=1e-12)


def test_weights_stand_for_pixels():
    confidence, correct = np.array([0.9, 0.9, 0.2, 1.0]), np.array([True, False, True, True])
    weighted = bin_confidences(np.array([0.9, 0.2, 1.0]), np.array([3, 2, 1]), np.array([7, 2, 1]))
    repeated = bin_confidences(np.repeat(confidence, [3, 4, 2, 1]), np.repeat(correct, [3, 4, 2, 1]))
    np.testing.assert_allclose(weighted, repeated, rtol=1e-14)


def test_bins_are_closed_below_and_the_last_one_above():
    edges = np.linspace(0, 1, 16).astype(np.float32)
    pixels = bin_confidences(edges, np.ones(16, bool))[0]
    np.testing.assert_array_equal(pixels, [1] * 14 + [2])


def test_nll_equals_cross_entropy_and_brier_its_definition(batch):
    logits, labels = batch
    sums = np.zeros(3)
    for frame, label in zip(logits.softmax(1).numpy(), labels.numpy(), strict=True):
        sums += probability_scores(frame, label)
    assert sums[1] / sums[0] == pytest.approx(float(cross_entropy(logits, labels, ignore_index=255)), rel=1e-6)
    counted = (labels != 255).numpy()
    rows = logits.softmax(1).movedim(1, -1).double().numpy()[counted]
    rows /= rows.sum(1, keepdims=True)  # scikit-learn checks the sum in float64
    expected = brier_score_loss(labels.numpy()[counted], rows, labels=range(7), scale_by_half=False)
    assert sums[2] / sums[0] == pytest.approx(expected, rel=1e-6)


def test_closed_forms_of_nll_and_brier():
    uniform = np.full((4, 1, 3), 0.25, np.float32)
    pixels, loss, brier = probability_scores(uniform, np.array([[0, 3, 255]], np.uint8))
    assert (pixels, loss / 2, brier / 2) == pytest.approx((2, np.log(4), 0.75), rel=1e-7)
    sure = np.array([[1.0, 0.0], [0.0, 1.0]], np.float32)
    assert probability_scores(sure, np.array([0, 1], np.uint8))[1:] == pytest.approx((0.0, 0.0), abs=1e-12)
    wrong = probability_scores(sure, np.array([1, 0], np.uint8))
    assert wrong[2] == pytest.approx(4.0)
    assert np.isfinite(wrong[1])  # an underflow of one probability must not make the sum infinite


def test_nothing_counted_is_none():
    assert expected_calibration_error(np.zeros((3, 15))) is None


def test_bad_input_is_refused():
    for value in (1.5, -0.1, np.nan):
        with pytest.raises(InputError, match=r"0\.\.1"):
            bin_confidences(np.array([value]), np.array([True]))
    with pytest.raises(InputError, match="shape"):
        bin_confidences(np.array([0.5]), np.array([True, False]))
    labels = np.zeros((1, 1), np.uint8)
    with pytest.raises(InputError, match="sum to 1"):  # logits instead of probabilities
        probability_scores(np.array([[[3.0]], [[4.0]]], np.float32), labels)
    with pytest.raises(InputError, match="sum to 1"):
        probability_scores(np.full((2, 1, 1), np.nan, np.float32), labels)
    with pytest.raises(InputError, match="class id 5"):
        probability_scores(np.full((2, 1, 1), 0.5, np.float32), labels + 5)
