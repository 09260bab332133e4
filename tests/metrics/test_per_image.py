"""Protocol per-image: by hand, and against scikit-learn's numbers of each frame."""

import numpy as np
import pytest

from segunc.maps.encoding import score_keys
from segunc.metrics.counting import STEPS_PER_FRACTION, Counts
from segunc.metrics.per_image import IMAGE_NUMBERS, per_image_result, per_image_sums
from tests.support.oracles import count_keys, pixel_numbers


def counts_of(scores: np.ndarray, labels: np.ndarray) -> Counts:
    return count_keys(score_keys(scores.astype(np.float16)), labels)


def test_the_numbers_are_the_means_of_two_frames_by_hand():
    labels = np.array([0, 0, 1, 1])
    half_found = counts_of(np.array([0.1, 0.4, 0.35, 0.8]), labels)  # AUROC .75, AUPR 5/6
    all_found = counts_of(np.array([0.1, 0.2, 0.3, 0.4]), labels)
    sums = per_image_sums(half_found) + per_image_sums(all_found)
    result = per_image_result(sums)
    expected = {"auroc": 0.875, "aupr": 11 / 12, "fpr95": 0.25, "best_f1": 0.9}
    assert result == pytest.approx(expected, abs=1e-12)


def test_counts_are_whole_numbers():
    counts = counts_of(np.array([0.1, 0.4, 0.35, 0.8]), np.array([0, 0, 1, 1]))
    sums = per_image_sums(counts)
    assert sums.dtype == np.int64
    assert sums[0] == STEPS_PER_FRACTION * 3 // 4
    assert sums[-1] == 1


@pytest.mark.parametrize("label", [0, 1])
def test_a_frame_of_one_kind_of_pixels_adds_nothing(label):
    counts = counts_of(np.array([0.1, 0.4]), np.full(2, label))
    assert not per_image_sums(counts).any()


def test_without_a_frame_of_both_kinds_there_is_no_number():
    sums = np.zeros(len(IMAGE_NUMBERS) + 1, np.int64)
    assert per_image_result(sums) == dict.fromkeys(IMAGE_NUMBERS)


def test_the_mean_of_frames_is_that_of_scikit_learn():
    generator = np.random.default_rng(0)
    sums = np.zeros(len(IMAGE_NUMBERS) + 1, np.int64)
    numbers_of_frames = []
    for number in range(6):
        labels = (generator.random(500) < 0.02 * number).astype(np.uint8)  # none in the first
        scores = (generator.normal(size=500) + labels - 3 * number).astype(np.float16)
        sums += per_image_sums(counts_of(scores, labels))
        if labels.any():
            numbers_of_frames.append(pixel_numbers(labels, scores))
    result = per_image_result(sums)
    assert sums[-1] == len(numbers_of_frames) == 5
    for name in IMAGE_NUMBERS:
        mean = np.mean([numbers[name] for numbers in numbers_of_frames])
        assert result[name] == pytest.approx(mean, abs=1e-11)
