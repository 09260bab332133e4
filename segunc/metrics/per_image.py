"""Protocol ``per-image``: the detection numbers of each frame, and their mean over the frames.

StreetHazards (Hendrycks et al. 2022, "Scaling out-of-distribution detection for real-world
settings", arXiv 1911.11132) and MUAD (Franchi et al. 2022, arXiv 2203.01437) report these means.
Only frames with both normal and anomalous pixels have numbers; the others are left out.

FPR95 of a frame is read as in :func:`segunc.metrics.counting.fpr_at_recall`, at the highest
threshold that reaches a recall of 0.95. The code of StreetHazards takes the recall that is nearest
to 0.95, so in frames with few anomalous pixels its FPR95 can be lower.
"""

from __future__ import annotations

import numpy as np

from segunc.metrics.counting import (
    STEPS_PER_FRACTION,
    Counts,
    areas,
    best_f1,
    detection_curve,
    mean_of_fractions,
    to_fixed_point,
)

IMAGE_NUMBERS = ("auroc", "aupr", "fpr95", "best_f1")
NO_IMAGE_WITH_BOTH = "no frame holds both anomalous and normal pixels"


def per_image_sums(counts: Counts) -> Counts:
    """Return what one frame adds to the sums of the set, int64 ``[5]``.

    First stand :data:`IMAGE_NUMBERS` of the frame in steps of 2^-40, then 1. Best F1 is at the
    frame's own threshold. A frame without anomalous or without normal pixels adds only zeros.

    Args:
        counts: pixels of the frame by key or bin of their score, ``[2, K]``, anomalous ones in
            row 1.
    """
    curve = detection_curve(counts)
    best = best_f1(curve)
    if best is None:
        return np.zeros(len(IMAGE_NUMBERS) + 1, np.int64)
    numbers = np.array([*areas(curve), best[0]], np.float64)
    return np.append(to_fixed_point(numbers, STEPS_PER_FRACTION), 1)


def per_image_result(sums: Counts) -> dict[str, float | None]:
    """Return the means over the frames with both kinds of pixels, in 0..1.

    They stand under the names of :data:`IMAGE_NUMBERS`, and are None if there is no such frame.
    """
    *totals, frames = sums
    return {
        name: mean_of_fractions(total, frames)
        for name, total in zip(IMAGE_NUMBERS, totals, strict=True)
    }
