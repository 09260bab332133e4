"""Patches: the published example of Mukhoti & Gal, and values by hand."""

import numpy as np
import pytest

from segunc.data.labels import IGNORE
from segunc.evaluation.parts import LabelledFrame
from segunc.evaluation.patches import Patches
from segunc.maps.encoding import encode_unit, keys_to_half
from segunc.metrics.counting import KEYS, count_scores
from segunc.metrics.patches import PATCH_NUMBERS, patch_means, patch_numbers

# The example on page 5 of arXiv 1811.12709, with windows of 2 x 2 pixels.
LABELS = np.array([[1, 2, 5, 7], [6, 4, 3, 3], [10, 9, 5, 0], [8, 6, 4, 4]])
PREDICTED = np.array([[1, 2, 4, 7], [5, 6, 3, 3], [10, 9, 4, 0], [8, 7, 3, 4]])
UNCERTAINTY = np.array(
    [[0.1, 0.3, 0.6, 0.3], [0.7, 0.6, 0.2, 0.1], [0.2, 0.4, 0.5, 0.3], [0.1, 0.7, 0.6, 0.2]]
)
ALL = np.ones((4, 4), bool)
KEY_VALUES = keys_to_half(np.arange(KEYS).astype(np.uint16))


def test_the_published_example():
    means, inaccurate = patch_means(UNCERTAINTY, LABELS == PREDICTED, ALL, window=2)
    np.testing.assert_allclose(means, [0.425, 0.3, 0.35, 0.4])
    counts = count_scores(means.astype(np.float16), inaccurate)
    numbers = patch_numbers(counts, KEY_VALUES, threshold=0.4)
    assert numbers["accurate_if_certain"] == pytest.approx(2 / 3)
    assert numbers["uncertain_if_inaccurate"] == pytest.approx(1 / 2)
    assert numbers["pavpu"] == pytest.approx(3 / 4)


def test_exactly_half_right_is_inaccurate():
    right = np.array([[True, True], [False, False]])
    _, inaccurate = patch_means(np.zeros((2, 2)), right, np.ones((2, 2), bool), window=2)
    assert inaccurate.tolist() == [1]


def test_unlabelled_pixels_belong_to_no_patch():
    scores = np.full((4, 8), np.nan)
    scores[0, :2] = (0.25, 0.75)
    labelled = np.isfinite(scores)
    means, inaccurate = patch_means(scores, np.zeros((4, 8), bool), labelled)
    assert means.tolist() == [0.5]
    assert inaccurate.tolist() == [1]


def test_a_window_keeps_the_pixels_inside_the_frame():
    scores = np.arange(5.0)[None]
    means, _ = patch_means(scores, np.ones((1, 5), bool), np.ones((1, 5), bool))
    assert means.tolist() == [1.5, 4.0]


def test_the_threshold_is_the_mean_of_all_patches():
    counts = np.zeros((2, 4), np.int64)
    counts[0, :2] = (2, 1)  # accurate: means 0, 0 and .25
    counts[1, 3] = 1  # inaccurate: .75
    numbers = patch_numbers(counts, np.array([0, 0.25, 0.5, 0.75]))
    assert numbers == {
        "pavpu": 1.0,
        "accurate_if_certain": 1.0,
        "uncertain_if_inaccurate": 1.0,
        "pavpu_threshold": 0.25,
    }


def test_what_no_patch_defines_is_none():
    counts = np.zeros((2, 4), np.int64)
    assert patch_numbers(counts, np.zeros(4)) == dict.fromkeys(PATCH_NUMBERS)
    counts[0, 1] = 1
    numbers = patch_numbers(counts, np.zeros(4), threshold=-1)
    assert numbers["accurate_if_certain"] is None
    assert numbers["uncertain_if_inaccurate"] is None
    assert numbers["pavpu"] == 0


def frame(stored: np.ndarray) -> LabelledFrame:
    """Return a frame of two patches, the right one wrong, with one unlabelled pixel."""
    labels = np.zeros((4, 8), np.uint8)
    labels[0, 0] = IGNORE
    prediction = np.zeros((4, 8), np.uint8)
    prediction[:, 4:] = 1
    return LabelledFrame("a", {"entropy": stored}, prediction=prediction, labels=labels)


@pytest.mark.parametrize("encode", [encode_unit, lambda values: values.astype(np.float16)])
def test_the_part_counts_codes_and_floats_alike(encode):
    scores = np.full((4, 8), 0.25)
    scores[:, 4:] = 0.5
    scores[0, 0] = 1
    labelled = frame(encode(scores))
    part = Patches("entropy")
    counts = part.count(labelled)
    assert counts.dtype == np.int64
    assert counts.sum(axis=1).tolist() == [1, 1]
    numbers = part.numbers(counts, {"entropy": labelled.form("entropy")})
    assert numbers["pavpu",] == 1
    assert numbers["pavpu_threshold",] == pytest.approx(0.375, abs=1e-3)
    reason = part.why(np.array([[1], [0]]), ("uncertain_if_inaccurate",))
    assert reason == "no patch is inaccurate"
