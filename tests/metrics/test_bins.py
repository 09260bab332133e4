"""Bins of wide scores: exact while every positive score is an edge, and within the mass of a bin where there are too many."""

from __future__ import annotations

import numpy as np
import pytest
from sklearn import metrics as sklearn_metrics

from segunc.core.errors import InputError
from segunc.metrics.counting import (
    BinFinder,
    ScoreBins,
    auroc,
    average_precision,
    detection_curve,
    fpr_at_recall,
)

Frames = list[tuple[np.ndarray, np.ndarray]]


def find(frames: Frames, most: int) -> ScoreBins:
    finder = BinFinder(most=most)
    for scores, labels in frames:
        finder.add(scores, labels)
    bins = finder.bins()
    assert bins is not None
    return bins


def numbers(frames: Frames, most: int) -> tuple[list[float], list[float]]:
    """AUROC, AUPR and FPR95 by bins and by scikit-learn."""
    bins = find(frames, most)
    counts = sum(bins.count(scores, labels) for scores, labels in frames)
    curve = detection_curve(counts)
    scores, labels = (np.concatenate(part) for part in zip(*frames, strict=True))
    false, true, _ = sklearn_metrics.roc_curve(labels, scores, drop_intermediate=False)
    areas = sklearn_metrics.roc_auc_score(labels, scores), sklearn_metrics.average_precision_score(labels, scores)
    expected = [*map(float, areas), float(false[np.argmax(true >= 0.95)])]
    return [auroc(curve), average_precision(curve), fpr_at_recall(curve)], expected


def scene(pixels: int, share: float, seed: int = 0, frames: int = 8) -> Frames:
    random = np.random.default_rng(seed)
    made = []
    for _ in range(frames):
        labels = (random.random(pixels) < share).astype(np.uint8)
        made.append((98 + 0.05 * (random.normal(size=pixels) + 1.5 * labels), labels))
    return made


@pytest.mark.parametrize("share", [1e-4, 0.02])
def test_few_anomalies_are_exact(share: float) -> None:
    found, expected = numbers(scene(100_000, share), 1 << 16)
    assert found == pytest.approx(expected, abs=1e-12)


def test_more_anomalies_than_edges_cost_the_mass_of_a_bin() -> None:
    most = 4096
    found, expected = numbers(scene(100_000, 0.3), most)
    np.testing.assert_allclose(found, expected, atol=4 / most)
    assert found[0] == pytest.approx(expected[0], abs=1e-5)


def test_zeros_of_both_signs_are_equal_and_ignored_scores_may_be_anything() -> None:
    scores, labels = np.array([0.0, -0.0, np.nan, 0.1], np.float32), np.array([1, 0, 255, 0], np.uint8)
    bins = find([(scores, labels)], 16)
    assert bins.count(scores, labels)[:, bins.keys(np.float32(0))].tolist() == [1, 1]
    with pytest.raises(InputError, match="NaN or infinite"):
        bins.count(scores, np.zeros(4, np.uint8))
    assert BinFinder().bins() is None
