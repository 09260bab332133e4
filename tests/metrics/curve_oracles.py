"""Published fixtures of detection curves, and scikit-learn's numbers of any scores."""

from __future__ import annotations

import numpy as np
from sklearn import metrics as sklearn_metrics

from segunc.metrics.counting import auroc, average_precision, best_f1, count_keys, detection_curve, fpr_at_recall

# labels, scores, then AP, AUROC, FPR95 and best F1 as computed by the benchmarks' own tools.
FIXTURES = [
    ([0, 0, 0, 1, 1], [0, 0, 0, 1, 1], (1, 1, 0, 1)),
    ([0, 1, 0, 1], [0.1, 0.4, 0.35, 0.8], (1, 1, 0, 1)),
    ([0, 0, 1, 1], [0.1, 0.4, 0.35, 0.8], (5 / 6, 0.75, 0.5, 0.8)),
    ([0, 0, 1, 1], [0.5, 0.5, 0.5, 0.5], (0.5, 0.5, 1, 2 / 3)),
    ([0, 0, 0, 1, 1, 1], [0, 0, 0.9, 0.1, 1, 1], (11 / 12, 8 / 9, 1 / 3, 6 / 7)),
]


def numbers(keys: np.ndarray, labels: np.ndarray) -> tuple[float | None, ...]:
    curve = detection_curve(count_keys(keys, labels))
    best = best_f1(curve)
    return average_precision(curve), auroc(curve), fpr_at_recall(curve), None if best is None else best[0]


def oracle(scores: np.ndarray, labels: np.ndarray) -> tuple[float, ...]:
    scores = scores.astype(np.float64)
    false_rate, true_rate, _ = sklearn_metrics.roc_curve(labels, scores, drop_intermediate=False)
    precision, recall, _ = sklearn_metrics.precision_recall_curve(labels, scores)
    with np.errstate(invalid="ignore"):
        f1 = np.nanmax(2 * precision * recall / (precision + recall))
    return (
        float(sklearn_metrics.average_precision_score(labels, scores)),
        float(sklearn_metrics.roc_auc_score(labels, scores)),
        float(false_rate[true_rate >= 0.95][0]),
        float(f1),
    )
