"""Numbers computed in another way than ours."""

from typing import Any

import numpy as np
from sklearn import metrics as sklearn_metrics

from segunc.metrics.counting import KEYS, Counts


def count_keys(keys: np.ndarray, rows: np.ndarray) -> Counts:
    """Return pixels by uint16 key and by row (0 or 1), int64 ``[2, 65536]``."""
    return np.stack([np.bincount(keys[rows == row], minlength=KEYS) for row in (0, 1)])


def pixel_numbers(truth: np.ndarray, scores: np.ndarray) -> dict[str, Any]:
    """Return scikit-learn's numbers of detection, from the pixels themselves.

    Args:
        truth: 1 for an anomaly and 0 for a normal pixel, ``[n]``.
        scores: their scores, ``[n]``.
    """
    false, true, _ = sklearn_metrics.roc_curve(truth, scores, drop_intermediate=False)
    precision, recall, thresholds = sklearn_metrics.precision_recall_curve(truth, scores)
    f1 = 2 * precision * recall / np.maximum(precision + recall, 1e-30)
    best = np.flatnonzero(f1[:-1] >= f1.max() * (1 - 1e-12))[-1]
    return {
        "auroc": sklearn_metrics.roc_auc_score(truth, scores),
        "aupr": sklearn_metrics.average_precision_score(truth, scores),
        "fpr95": false[np.argmax(true >= 0.95)],
        "best_f1": f1[best],
        "threshold": thresholds[best],
    }
