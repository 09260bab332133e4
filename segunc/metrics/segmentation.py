"""Segmentation quality from the confusion matrix of a whole set.

The matrix is summed over all pixels of the set before anything is divided: the mean of the IoU of single images is
another number and is not made here.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from segunc.core.errors import InputError
from segunc.data.labels import IGNORE

Matrix = npt.NDArray[np.int64]
"""int64 ``[C, C]``: pixels by true class (row) and predicted class (column); ``[C, C + 1]`` where the last is none of them."""


def confusion_matrix(
    labels: npt.NDArray[np.integer], prediction: npt.NDArray[np.integer], classes: int, *, others: bool = False
) -> Matrix:
    """Count pixels by true class (train ids in 0..C-1, or 255 ignored) and predicted class, of the same shape; with ``others`` a prediction
    may be C, none of the classes. InputError where an id is no class (where the label is not ignored)."""
    counted = labels != IGNORE
    truth, predicted = labels[counted].astype(np.int64), prediction[counted].astype(np.int64)
    columns = classes + others
    for name, ids, number in (("labels", truth, classes), ("the prediction", predicted, columns)):
        if ids.size and (ids.min() < 0 or ids.max() >= number):
            unknown = np.unique(ids[(ids < 0) | (ids >= number)])[:8].tolist()
            message = f"{name} holds the class ids {unknown}, which are not in 0..{number - 1}"
            raise InputError(message, hint="give the label map that the network was trained with")
    return np.bincount(truth * columns + predicted, minlength=classes * columns).reshape(classes, columns)


def class_iou(matrix: Matrix) -> npt.NDArray[np.float64]:
    """Return the intersection over union of each class in 0..1, ``[C]``; NaN for a class in neither labels nor predictions."""
    intersection = matrix.diagonal()
    union = matrix.sum(axis=0)[: len(matrix)] + matrix.sum(axis=1) - intersection
    with np.errstate(invalid="ignore"):
        return np.asarray(intersection / union, np.float64)


def mean_iou(matrix: Matrix) -> float | None:
    """Return the mean of :func:`class_iou` in 0..1 over the classes that occur, also one that is only predicted; None without a pixel."""
    iou = class_iou(matrix)
    present = iou[~np.isnan(iou)]
    return float(present.mean()) if present.size else None


def accuracy(matrix: Matrix) -> float | None:
    """Return the share of the counted pixels whose class is right, 0..1; None without a pixel."""
    total = int(matrix.sum())
    return int(matrix.trace()) / total if total else None
