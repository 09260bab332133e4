"""NLL, Brier score and classwise ECE against torch, scikit-learn, torchmetrics and closed forms."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from sklearn.metrics import brier_score_loss
from torch.nn.functional import cross_entropy
from torchmetrics.functional.classification import binary_calibration_error

from segunc.core.errors import InputError
from segunc.metrics import calibration as probability_sums
from segunc.metrics.calibration import (
    SMALLEST_PROBABILITY,
    classwise_bins,
    classwise_calibration_error,
    mean_scores,
    probability_scores,
)
from segunc.metrics.counting import STEPS_PER_UNIT, from_fixed_point, to_fixed_point


@pytest.fixture
def batch() -> tuple[torch.Tensor, torch.Tensor]:
    """Logits ``[4, 7, 16, 20]`` and labels with ignored pixels; class 6 never occurs in the labels."""
    generator = torch.Generator().manual_seed(0)
    logits = 2.0 * torch.randn(4, 7, 16, 20, generator=generator)
    random = torch.randint(0, 6, (4, 16, 20), generator=generator)
    labels = torch.where(torch.rand(4, 16, 20, generator=generator) < 0.5, logits[:, :6].argmax(1), random)
    labels[torch.rand(labels.shape, generator=generator) < 0.1] = 255
    return logits, labels


def test_nll_equals_cross_entropy_and_brier_its_definition(batch):
    logits, labels = batch
    sums = np.zeros(3, np.int64)
    for frame, label in zip(logits.softmax(1).numpy(), labels.numpy(), strict=True):  # streaming, frame by frame
        sums += probability_scores(frame, label)
    nll, brier = mean_scores(sums)
    assert nll == pytest.approx(float(cross_entropy(logits, labels, ignore_index=255)), rel=1e-6)
    counted = (labels != 255).numpy()
    rows = logits.softmax(1).movedim(1, -1).double().numpy()[counted]
    rows /= rows.sum(1, keepdims=True)  # scikit-learn checks the sum in float64
    expected = brier_score_loss(labels.numpy()[counted], rows, labels=range(7), scale_by_half=False)
    assert brier == pytest.approx(expected, rel=1e-6)
    assert sums[0] == counted.sum()


def test_closed_forms_of_nll_and_brier():
    uniform = np.full((4, 1, 3), 0.25, np.float32)
    assert mean_scores(probability_scores(uniform, np.array([[0, 3, 255]], np.uint8))) == pytest.approx(
        (np.log(4), 0.75), abs=0.5 / STEPS_PER_UNIT
    )
    sure = np.array([[1.0, 0.0], [0.0, 1.0]], np.float32)
    assert mean_scores(probability_scores(sure, np.array([0, 1], np.uint8))) == (0.0, 0.0)
    nll, brier = mean_scores(probability_scores(sure, np.array([1, 0], np.uint8)))
    assert brier == 2.0
    assert nll == pytest.approx(87.34, abs=0.01)  # an underflow of one probability must not make the sum infinite


def test_classwise_error_is_the_mean_of_torchmetrics_over_classes(batch):
    logits, labels = batch
    probabilities = logits.softmax(1)
    state = sum(
        classwise_bins(frame, label) for frame, label in zip(probabilities.numpy(), labels.numpy(), strict=True)
    )
    counted = labels != 255
    expected = [
        float(binary_calibration_error(probabilities[:, c][counted], (labels[counted] == c).int(), n_bins=15))
        for c in range(7)
    ]
    assert classwise_calibration_error(state) == pytest.approx(np.mean(expected), abs=1e-6)
    assert (state[..., 0].sum(axis=1) == int(counted.sum())).all()
    np.testing.assert_array_equal(state[..., 1].sum(axis=1), np.bincount(labels[counted], minlength=7))


@pytest.mark.parametrize("bins", [1, 2, 15])
def test_every_probability_falls_into_its_bin(bins):
    edges = np.linspace(0, 1, bins + 1).astype(np.float32)
    below = np.nextafter(edges[1:], np.float32(0))
    values = np.concatenate([edges, below])
    state = classwise_bins(np.stack([values, 1 - values]), np.ones(len(values), np.uint8), bins)
    expected = [2] * (bins - 1) + [3]
    np.testing.assert_array_equal(state[0, :, 0], expected)
    np.testing.assert_array_equal(state[1, :, 1], state[1, :, 0])  # all pixels are of class 1
    lower = np.append(edges[:-1] + below, 0) + np.append(np.zeros(bins), edges[-1])
    expected_sums = lower[:bins] + np.append(np.zeros(bins - 1), lower[bins])
    np.testing.assert_allclose(from_fixed_point(state[0, :, 2]), expected_sums, atol=1 / STEPS_PER_UNIT)


def test_classwise_error_of_a_closed_form():
    # Twenty classes at 0.05 each, so that no probability leaves the first bin; all pixels are of class 0.
    state = classwise_bins(np.full((20, 2, 3), 0.05, np.float32), np.zeros((2, 3), np.uint8))
    assert classwise_calibration_error(state) == pytest.approx((0.95 + 19 * 0.05) / 20, abs=1 / STEPS_PER_UNIT)


def test_strips_do_not_change_the_counts(batch, monkeypatch):
    logits, labels = batch
    frame, label = logits.softmax(1)[0].numpy(), labels[0].numpy()
    whole, scores = classwise_bins(frame, label), probability_scores(frame, label)
    monkeypatch.setattr(probability_sums, "STRIP", 37)
    np.testing.assert_array_equal(classwise_bins(frame, label)[..., :2], whole[..., :2])
    assert np.abs(classwise_bins(frame, label)[..., 2] - whole[..., 2]).max() <= 1
    assert np.abs(probability_scores(frame, label) - scores).max() <= 1


def test_sums_of_a_hundred_thousand_large_frames_fit():
    pixels = 100_000 * 2**21
    worst = -np.log(SMALLEST_PROBABILITY)
    assert pixels * worst * STEPS_PER_UNIT < np.iinfo(np.int64).max
    one = to_fixed_point([2**21 * worst])
    assert from_fixed_point(one * 100_000)[0] == pytest.approx(pixels * worst, rel=1e-12)


def test_nothing_counted_is_none():
    nothing = np.full((2, 1, 3), 0.5, np.float32), np.full((1, 3), 255, np.uint8)
    assert mean_scores(probability_scores(*nothing)) == (None, None)
    assert classwise_calibration_error(classwise_bins(*nothing)) is None


@pytest.mark.parametrize("function", [probability_scores, classwise_bins])
def test_bad_input_is_refused(function):
    labels = np.zeros((1, 1), np.uint8)
    with pytest.raises(InputError, match="sum to 1"):  # logits instead of probabilities
        function(np.array([[[3.0]], [[4.0]]], np.float32), labels)
    with pytest.raises(InputError, match="sum to 1"):
        function(np.full((2, 1, 1), np.nan, np.float32), labels)
    with pytest.raises(InputError, match="class id 5"):
        function(np.full((2, 1, 1), 0.5, np.float32), labels + 5)
    with pytest.raises(InputError, match="shape"):
        function(np.full((2, 1, 2), 0.5, np.float32), labels)
