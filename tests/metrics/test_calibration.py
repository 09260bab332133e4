"""Calibration of the confidence against torchmetrics, numpy's quantiles and closed forms."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torchmetrics.functional.classification import multiclass_calibration_error

from segunc.core.errors import InputError
from segunc.maps.encoding import decode_unit, encode_unit
from segunc.metrics.calibration import (
    bin_confidences,
    bin_counts,
    bin_counts_by_mass,
    expected_calibration_error,
    reliability,
)
from segunc.metrics.counting import count_keys


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


def test_counts_by_key_give_the_bins_of_their_pixels():
    random = np.random.default_rng(0)
    codes = encode_unit(random.random(5000) ** 3)
    correct = random.random(5000) < 0.7
    confidence = 1 - decode_unit(np.arange(65536, dtype=np.uint16))
    counts = count_keys(codes, ~correct)
    expected = bin_confidences(1 - decode_unit(codes), correct)
    np.testing.assert_allclose(bin_counts(counts, confidence), expected, rtol=1e-13)
    # Keys that no pixel has may stand for anything: half of the keys of floats are negative numbers or NaN.
    confidence[~counts.any(axis=0)] = np.nan
    np.testing.assert_allclose(bin_counts(counts, confidence), expected, rtol=1e-13)
    np.testing.assert_array_equal(bin_counts_by_mass(counts, confidence).sum(axis=1)[:2], [5000, correct.sum()])


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


def test_adaptive_error_of_a_closed_form():
    # Two bins of two pixels: 0.4 and 0.8, both right, then a tie at 1 of one right and one wrong pixel.
    counts = np.array([[1, 1, 0, 1], [1, 0, 0, 0]])
    sums = bin_counts_by_mass(counts, np.array([1.0, 0.4, 0.9, 0.8]), 2)
    np.testing.assert_allclose(sums, [[2, 2], [2, 1], [1.2, 2.0]])
    assert expected_calibration_error(sums) == pytest.approx((0.8 + 1.0) / 4)


def test_reliability_of_a_closed_form():
    diagram = reliability(bin_confidences(np.array([0.2, 0.3, 0.9]), np.array([True, False, True]), bins=2))
    np.testing.assert_array_equal(diagram.edges, [0, 0.5, 1])
    np.testing.assert_allclose(diagram.confidence, [0.25, 0.9])
    np.testing.assert_allclose(diagram.accuracy, [0.5, 1.0])
    np.testing.assert_array_equal(diagram.pixels, [2, 1])
    empty = reliability(np.zeros((3, 2)))
    assert np.isnan(empty.confidence).all()
    assert np.isnan(empty.accuracy).all()


def test_nothing_counted_is_none():
    assert expected_calibration_error(np.zeros((3, 15))) is None
    assert expected_calibration_error(bin_counts_by_mass(np.zeros((2, 65536), np.int64), np.ones(65536))) is None


def test_bad_input_is_refused():
    for value in (1.5, -0.1, np.nan):
        with pytest.raises(InputError, match=r"0\.\.1"):
            bin_confidences(np.array([value]), np.array([True]))
        with pytest.raises(InputError, match=r"0\.\.1"):
            bin_counts_by_mass(np.array([[1, 2], [0, 0]]), np.array([0.5, value]))
    with pytest.raises(InputError, match="shape"):
        bin_confidences(np.array([0.5]), np.array([True, False]))
