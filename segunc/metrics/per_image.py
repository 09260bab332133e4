"""The ``per-image`` protocol (StreetHazards and CAOS, MUAD): numbers of each image, then their mean.

Only images that hold both normal and anomalous pixels are scored (Hendrycks et al., CAOS, arXiv 1911.11132); the
others are counted. Numbers are summed in steps of 2^-40, so the mean over shards is that over the whole, to the bit;
each rounding moves a number by at most 4.6e-13.
"""

from __future__ import annotations

from typing import Literal, get_args

import numpy as np
import numpy.typing as npt

from segunc.core.errors import InputError
from segunc.metrics.counting import (
    STEPS_PER_FRACTION,
    Counts,
    auroc,
    average_precision,
    best_f1,
    detection_curve,
    fpr_at_recall,
    fpr_nearest_recall,
    mean_of_fractions,
    to_fixed_point,
)

NUMBERS = ("auroc", "aupr", "fpr95", "best_f1")
"""Names of the numbers of an image, in the order of their sums."""
NO_IMAGE_WITH_BOTH = "no image holds both anomalous and normal pixels"
FprRule = Literal["first-point", "nearest-recall"]
"""Where FPR95 is read: at the first threshold, going down, with TPR >= 0.95, or (CAOS) where the TPR is nearest to 0.95."""

Sums = npt.NDArray[np.int64]
"""int64 ``[6]``: steps of 2^-40 of each of :data:`NUMBERS`, images scored, images left out."""


def image_numbers(counts: Counts, rule: FprRule = "first-point") -> dict[str, float] | None:
    """AUROC, AUPR, FPR95 and best F1 (each at its own threshold) of one image, in 0..1.

    Args:
        counts: the image's pixels by key, int64 ``[2, K]``.
        rule: where FPR95 is read.

    Returns:
        :data:`NUMBERS` -> number; None without anomalous or without normal pixels.

    Raises:
        InputError: ``rule`` is not known.
    """
    if rule not in get_args(FprRule):
        raise InputError(f"the FPR95 rule '{rule}'", " or ".join(get_args(FprRule)))
    curve = detection_curve(counts)
    area, precision, best = auroc(curve), average_precision(curve), best_f1(curve)
    fpr = fpr_at_recall(curve) if rule == "first-point" else fpr_nearest_recall(curve)
    if area is None or precision is None or best is None or fpr is None:
        return None
    return dict(zip(NUMBERS, (area, precision, fpr, best[0]), strict=True))


def per_image_sums(counts: Counts, rule: FprRule = "first-point") -> Sums:
    """What one image adds to the sums of a set, int64 ``[6]``; an image without any labelled pixel counts as left out."""
    numbers = image_numbers(counts, rule)
    if numbers is None:
        return np.array([0, 0, 0, 0, 0, 1], np.int64)
    return np.concatenate((to_fixed_point([numbers[name] for name in NUMBERS], STEPS_PER_FRACTION), [1, 0]))


def per_image_result(sums: Sums) -> dict[str, float | None]:
    """Means over the scored images, in 0..1, by name of :data:`NUMBERS`; None where no image is scored."""
    scored = int(sums[len(NUMBERS)])
    return {name: mean_of_fractions(int(sums[place]), scored) for place, name in enumerate(NUMBERS)}
