"""Patch accuracy against patch uncertainty (PAvPU; Mukhoti & Gal 2018, arXiv 1811.12709).

A frame is cut into windows of 4 x 4 pixels that do not overlap. A patch is accurate if more than
half of its pixels are predicted rightly. It is uncertain if its mean score is above a threshold.
PAvPU is the share of the patches that are accurate and certain, or inaccurate and uncertain.

The paper leaves the threshold open. Here it is the mean score of all patches, which needs no other
data. Only labelled pixels of a window count, and a window without any is no patch. At the right and
lower border a window keeps the pixels that are inside the frame.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from segunc.metrics.counting import Counts, Floats

WINDOW = 4  # side of a patch in pixels
SHARE_OF_ACCURATE = 0.5  # a patch with more right pixels than this share is accurate
PATCH_NUMBERS = ("pavpu", "accurate_if_certain", "uncertain_if_inaccurate", "pavpu_threshold")


def patch_means(
    scores: npt.NDArray[np.floating],
    right: npt.NDArray[np.bool_],
    labelled: npt.NDArray[np.bool_],
    window: int = WINDOW,
) -> tuple[Floats, npt.NDArray[np.uint8]]:
    """Return the mean score of each patch of a frame ``[P]``, and 1 for inaccurate ones ``[P]``.

    Args:
        scores: ``[H, W]`` in any unit, higher where the prediction is less certain; anything where
            a pixel is not labelled.
        right: whether the predicted class is right, ``[H, W]``.
        labelled: whether a pixel has a class label, ``[H, W]``.
        window: side of a patch in pixels.
    """
    pixels = _window_sums(labelled, window)
    right_pixels = _window_sums(right & labelled, window)
    score_sums = _window_sums(np.where(labelled, scores, 0.0), window)
    is_patch = pixels > 0
    pixels = pixels[is_patch]
    inaccurate = right_pixels[is_patch] <= SHARE_OF_ACCURATE * pixels
    return score_sums[is_patch] / pixels, inaccurate.astype(np.uint8)


def _window_sums(values: npt.NDArray[Any], window: int) -> Floats:
    """Return the sum over each window of ``[H, W]``, float64 ``[ceil(H / w), ceil(W / w)]``."""
    missing = [(0, -side % window) for side in values.shape]
    if any(pixels for _, pixels in missing):
        values = np.pad(values, missing)
    rows = values.shape[0] // window
    columns = values.shape[1] // window
    dtype = np.float64 if np.issubdtype(values.dtype, np.floating) else np.int32
    # Rows first, because NumPy adds whole rows several times faster than runs of four pixels.
    sums_of_rows = values.reshape(rows, window, -1).sum(1, dtype=dtype)
    return np.asarray(sums_of_rows.reshape(rows, columns, window).sum(2), np.float64)


def patch_numbers(
    counts: Counts, values: npt.NDArray[np.floating], threshold: float | None = None
) -> dict[str, float | None]:
    """Return the numbers of patches by their names in :data:`PATCH_NUMBERS`.

    ``accurate_if_certain`` is the share of accurate patches among the certain ones, and
    ``uncertain_if_inaccurate`` the share of uncertain patches among the inaccurate ones. A number
    is None if there is no such patch. The shares are in 0..1, the threshold in the unit of the
    score.

    Args:
        counts: patches by the key or bin of their mean score, ``[2, K]``, inaccurate ones in row 1.
        values: the mean score that each key stands for, ``[K]``; anything for keys without a patch.
        threshold: a patch with a larger mean score is uncertain. None is the mean over all patches.
    """
    keys = np.flatnonzero(counts.any(axis=0))
    if not len(keys):
        return dict.fromkeys(PATCH_NUMBERS)
    means = values[keys].astype(np.float64)
    accurate, inaccurate = counts[:, keys]
    patches = accurate + inaccurate
    if threshold is None:
        threshold = float(np.sum(means * patches) / patches.sum())
    certain = means <= threshold
    accurate_and_certain = accurate[certain].sum()
    inaccurate_and_uncertain = inaccurate[~certain].sum()
    return {
        "pavpu": _share(accurate_and_certain + inaccurate_and_uncertain, patches.sum()),
        "accurate_if_certain": _share(accurate_and_certain, patches[certain].sum()),
        "uncertain_if_inaccurate": _share(inaccurate_and_uncertain, inaccurate.sum()),
        "pavpu_threshold": threshold,
    }


def patch_numbers_of_many(
    counts: npt.NDArray[np.float64], values: npt.NDArray[np.floating]
) -> dict[str, npt.NDArray[np.float64]]:
    """Return the numbers ``[R]`` of R sets of patches at the mean over the patches of each, NaN
    where a set has none; :func:`patch_numbers` explains them.

    Args:
        counts: ``[R, 2, K]``, inaccurate patches in row 1; each of the K keys has a patch in some
            set.
        values: the mean score that each key stands for, ``[K]``.
    """
    means = values.astype(np.float64)
    accurate = counts[:, 0]
    inaccurate = counts[:, 1]
    patches = accurate + inaccurate
    total = patches.sum(axis=1)
    with np.errstate(divide="ignore", invalid="ignore"):
        threshold = patches @ means / total
        certain = means <= threshold[:, None]
        accurate_and_certain = (accurate * certain).sum(axis=1)
        inaccurate_and_uncertain = (inaccurate * ~certain).sum(axis=1)
        return {
            "pavpu": (accurate_and_certain + inaccurate_and_uncertain) / total,
            "accurate_if_certain": accurate_and_certain / (patches * certain).sum(axis=1),
            "uncertain_if_inaccurate": inaccurate_and_uncertain / inaccurate.sum(axis=1),
            "pavpu_threshold": threshold,
        }


def _share(part: np.int64, whole: np.int64) -> float | None:
    return int(part) / int(whole) if whole else None
