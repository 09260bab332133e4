"""ECE, NLL and Brier score against torchmetrics, torch, scikit-learn and closed forms."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from sklearn.metrics import brier_score_loss
from torch.nn.functional import cross_entropy
from torchmetrics.functional.classification import multiclass_calibration_error

from segunc.core.errors import InputError
from segunc.metrics import prediction
from segunc.metrics.counting import STEPS_PER_UNIT, to_fixed_point
from segunc.metrics.prediction import (
    SMALLEST_PROBABILITY,
    bin_counts,
    expected_calibration_error,
    mean_scores,
    probability_scores,
)


@pytest.fixture
def batch() -> tuple[torch.Tensor, torch.Tensor]:
    """Probabilities ``[4, 7, 16, 20]`` and labels with ignored pixels; class 6 never occurs in the labels."""
    generator = torch.Generator().manual_seed(0)
    logits = 2.0 * torch.randn(4, 7, 16, 20, generator=generator)
    random = torch.randint(0, 6, (4, 16, 20), generator=generator)
    labels = torch.where(torch.rand(4, 16, 20, generator=generator) < 0.5, logits[:, :6].argmax(1), random)
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
    for frame, label in zip(probabilities.numpy(), labels.numpy(), strict=True):  # streaming, frame by frame
        counted = label != 255
        sums += bins_of(frame.max(0)[counted], (frame.argmax(0) == label)[counted])
    assert expected_calibration_error(sums) == pytest.approx(float(expected), abs=1e-6)
    assert sums[0].sum() == (labels != 255).sum()


def test_ece_of_a_closed_form():
    # Confidence 0.9 right in 6 of 10, confidence 0.3 right in 3 of 10 (calibrated): ECE = (10 * 0.3 + 0) / 20.
    sums = bin_counts(np.array([[6, 3], [4, 7]]), np.array([0.9, 0.3]))
    assert expected_calibration_error(sums) == pytest.approx(0.15, rel=1e-12)
    sums = bins_of(np.array([0.2, 0.3, 0.9]), np.array([True, False, True]), 2)
    np.testing.assert_allclose(sums, [[2, 1], [1, 1], [0.5, 0.9]])


def test_bins_are_closed_below_and_the_last_one_above():
    edges = np.linspace(0, 1, 16).astype(np.float32)
    np.testing.assert_array_equal(bins_of(edges, np.ones(16, bool))[0], [1] * 14 + [2])


@pytest.mark.parametrize("value", [1.5, -0.1, np.nan])
def test_a_confidence_outside_0_to_1_is_refused(value):
    with pytest.raises(InputError, match=r"0\.\.1"):
        bin_counts(np.array([[1, 2], [0, 0]]), np.array([0.5, value]))


def test_nll_equals_cross_entropy_and_brier_its_definition(batch):
    probabilities, labels = batch
    sums = np.zeros(3, np.int64)
    for frame, label in zip(probabilities.numpy(), labels.numpy(), strict=True):  # streaming, frame by frame
        sums += probability_scores(frame, label)
    nll, brier = mean_scores(sums)
    assert nll == pytest.approx(float(cross_entropy(probabilities.log(), labels, ignore_index=255)), rel=1e-6)
    counted = (labels != 255).numpy()
    rows = probabilities.movedim(1, -1).double().numpy()[counted]
    rows /= rows.sum(1, keepdims=True)  # scikit-learn checks the sum in float64
    expected = brier_score_loss(labels.numpy()[counted], rows, labels=range(7), scale_by_half=False)
    assert brier == pytest.approx(expected, rel=1e-6)
    assert sums[0] == counted.sum()


def test_closed_forms_of_nll_and_brier():
    uniform, labels = np.full((4, 1, 3), 0.25, np.float32), np.array([[0, 3, 255]], np.uint8)
    expected = (np.log(4), 0.75)
    assert mean_scores(probability_scores(uniform, labels)) == pytest.approx(expected, abs=0.5 / STEPS_PER_UNIT)
    sure = np.array([[1.0, 0.0], [0.0, 1.0]], np.float32)
    assert mean_scores(probability_scores(sure, np.array([0, 1], np.uint8))) == (0.0, 0.0)
    nll, brier = mean_scores(probability_scores(sure, np.array([1, 0], np.uint8)))
    assert brier == 2.0
    assert nll == pytest.approx(87.34, abs=0.01)  # an underflow of one probability must not make the sum infinite


def test_strips_do_not_change_the_counts(batch, monkeypatch):
    frame, label = batch[0][0].numpy(), batch[1][0].numpy()
    scores = probability_scores(frame, label)
    monkeypatch.setattr(prediction, "STRIP", 37)
    assert np.abs(probability_scores(frame, label) - scores).max() <= 1


def test_sums_of_a_hundred_thousand_large_frames_fit():
    worst = -np.log(SMALLEST_PROBABILITY)
    assert 100_000 * 2**21 * worst * STEPS_PER_UNIT < np.iinfo(np.int64).max
    frame = to_fixed_point([2**21 * worst])
    assert frame[0] * 100_000 / STEPS_PER_UNIT == pytest.approx(100_000 * 2**21 * worst, rel=1e-12)


def test_nothing_counted_is_none():
    assert expected_calibration_error(np.zeros((3, 15))) is None
    nothing = np.full((2, 1, 3), 0.5, np.float32), np.full((1, 3), 255, np.uint8)
    assert mean_scores(probability_scores(*nothing)) == (None, None)


@pytest.mark.parametrize("probabilities", [[[[3.0]], [[4.0]]], [[[np.nan]], [[np.nan]]]], ids=["logits", "NaN"])
def test_bad_probabilities_are_refused(probabilities):
    with pytest.raises(InputError, match="sum to 1"):
        probability_scores(np.array(probabilities, np.float32), np.zeros((1, 1), np.uint8))
