"""ECE, adaptive and classwise ECE, NLL and Brier score against torchmetrics, torch, scikit-learn, numpy and closed forms."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.metrics import brier_score_loss
from torch.nn.functional import cross_entropy
from torchmetrics.functional.classification import binary_calibration_error, multiclass_calibration_error

from segunc.core.errors import InputError
from segunc.metrics import calibration
from segunc.metrics.calibration import (
    SMALLEST_PROBABILITY,
    bin_counts,
    bin_counts_by_mass,
    classwise_bins,
    classwise_calibration_error,
    expected_calibration_error,
    mean_scores,
    probability_scores,
)
from segunc.metrics.counting import STEPS_PER_UNIT, from_fixed_point, to_fixed_point
from tests.metrics.keys import count_keys


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


def test_untied_bins_of_equal_mass_are_runs_of_the_sorted_pixels():
    random = np.random.default_rng(1)
    codes = random.permutation(65536)[:600].astype(np.uint16)
    correct = random.random(600) < 0.7
    table = np.linspace(1, 0, 65536)  # key 0 is the surest, as with msp
    sums = bin_counts_by_mass(count_keys(codes, ~correct), table, 15)
    order = np.argsort(table[codes])
    expected = [[40.0] * 15, correct[order].reshape(15, 40).sum(1), table[codes][order].reshape(15, 40).sum(1)]
    np.testing.assert_allclose(sums, expected, rtol=1e-12)


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 12), st.booleans()), min_size=1, max_size=60), st.integers(1, 9))
def test_tied_bins_of_equal_mass_lie_between_quantiles(pixels, bins):
    keys, correct = np.array([key for key, _ in pixels]), np.array([right for _, right in pixels])
    table = np.arange(13) / 12
    counts = np.stack([np.bincount(keys[correct], minlength=13), np.bincount(keys[~correct], minlength=13)])
    confidence = table[keys]
    upper = np.quantile(confidence, np.arange(1, bins + 1) / bins, method="inverted_cdf")
    index = np.array([int(np.argmax(value <= upper)) for value in confidence])
    rows = (np.ones(len(keys)), correct.astype(float), confidence)
    expected = np.stack([np.bincount(index, row, minlength=bins) for row in rows])
    np.testing.assert_allclose(bin_counts_by_mass(counts, table, bins), expected, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("value", [1.5, -0.1, np.nan])
@pytest.mark.parametrize("function", [bin_counts, bin_counts_by_mass])
def test_a_confidence_outside_0_to_1_is_refused(function, value):
    with pytest.raises(InputError, match=r"0\.\.1"):
        function(np.array([[1, 2], [0, 0]]), np.array([0.5, value]))


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


def test_classwise_error_is_the_mean_of_torchmetrics_over_classes(batch):
    probabilities, labels = batch
    pairs = zip(probabilities.numpy(), labels.numpy(), strict=True)
    state = sum(classwise_bins(frame, label) for frame, label in pairs)
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
    np.testing.assert_array_equal(state[0, :, 0], [2] * (bins - 1) + [3])
    np.testing.assert_array_equal(state[1, :, 1], state[1, :, 0])  # all pixels are of class 1
    sums = edges[:-1] + below
    sums[-1] += edges[-1]
    np.testing.assert_allclose(from_fixed_point(state[0, :, 2]), sums, atol=1 / STEPS_PER_UNIT)


def test_classwise_error_of_a_closed_form():
    # Twenty classes at 0.05 each, so that no probability leaves the first bin; all pixels are of class 0.
    state = classwise_bins(np.full((20, 2, 3), 0.05, np.float32), np.zeros((2, 3), np.uint8))
    assert classwise_calibration_error(state) == pytest.approx((0.95 + 19 * 0.05) / 20, abs=1 / STEPS_PER_UNIT)


def test_strips_do_not_change_the_counts(batch, monkeypatch):
    frame, label = batch[0][0].numpy(), batch[1][0].numpy()
    whole, scores = classwise_bins(frame, label), probability_scores(frame, label)
    monkeypatch.setattr(calibration, "STRIP", 37)
    np.testing.assert_array_equal(classwise_bins(frame, label)[..., :2], whole[..., :2])
    assert np.abs(classwise_bins(frame, label)[..., 2] - whole[..., 2]).max() <= 1
    assert np.abs(probability_scores(frame, label) - scores).max() <= 1


def test_sums_of_a_hundred_thousand_large_frames_fit():
    worst = -np.log(SMALLEST_PROBABILITY)
    assert 100_000 * 2**21 * worst * STEPS_PER_UNIT < np.iinfo(np.int64).max
    one = to_fixed_point([2**21 * worst])
    assert from_fixed_point(one * 100_000)[0] == pytest.approx(100_000 * 2**21 * worst, rel=1e-12)


def test_nothing_counted_is_none():
    assert expected_calibration_error(np.zeros((3, 15))) is None
    assert expected_calibration_error(bin_counts_by_mass(np.zeros((2, 65536), np.int64), np.ones(65536))) is None
    nothing = np.full((2, 1, 3), 0.5, np.float32), np.full((1, 3), 255, np.uint8)
    assert mean_scores(probability_scores(*nothing)) == (None, None)
    assert classwise_calibration_error(classwise_bins(*nothing)) is None


@pytest.mark.parametrize("function", [probability_scores, classwise_bins])
@pytest.mark.parametrize("probabilities", [[[[3.0]], [[4.0]]], [[[np.nan]], [[np.nan]]]], ids=["logits", "NaN"])
def test_bad_probabilities_are_refused(function, probabilities):
    with pytest.raises(InputError, match="sum to 1"):
        function(np.array(probabilities, np.float32), np.zeros((1, 1), np.uint8))
