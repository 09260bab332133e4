"""The metrics as ``torchmetrics.Metric`` classes: counts on any device, numbers from the functional core.

Every state is a tensor that is summed over processes, so the result of any number of workers is that of one. A number
whose inputs lack is NaN here, because loggers know no null; never 0.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torchmetrics import Metric

from segunc.data.labels import IGNORE
from segunc.errors import InputError
from segunc.metrics.pixel_curves import KEYS, auroc, average_precision, best_f1, detection_curve, fpr_at_recall
from segunc.metrics.segmentation import accuracy, class_iou, mean_iou


def tensor_keys(scores: Tensor) -> Tensor:
    """Order-preserving keys (int64, 0..65535) of scores on any device, as :func:`segunc.maps.encoding.score_keys`.

    Args:
        scores: uint16 or uint8 codes, or any floating type (rounded to float16 first), any shape.

    Raises:
        InputError: a value is NaN or beyond the range of float16, or the type has no key.
    """
    if scores.dtype in (torch.uint16, torch.uint8):
        return scores.long()
    if not scores.is_floating_point():
        raise InputError(f"scores of type {scores.dtype}", "uint8, uint16 or a floating type", "convert them")
    half = scores.half() + 0.0  # -0.0 + 0.0 = +0.0
    if not bool(torch.isfinite(half).all()):
        raise InputError("a score is NaN or beyond the range of float16", "finite values within +-65504")
    bits = half.view(torch.int16).long() & 0xFFFF
    return torch.where(bits >= 0x8000, 0xFFFF - bits, bits + 0x8000)


def _number(value: float | None, device: torch.device) -> Tensor:
    return torch.tensor(float("nan") if value is None else value, dtype=torch.float64, device=device)


class PooledAnomaly(Metric):
    """AUROC, AUPR, FPR95 and best F1 of one score over all pixels of a set, exact for float16 scores and uint16 codes.

    Unlike torchmetrics' own curves it never passes scores outside 0..1 through a sigmoid, and unlike a mean over
    batches it pools all pixels. All updates must bring scores of one form (codes, or floats).

    States: ``counts`` int64 ``[2, 65536]``.
    """

    full_state_update = False
    higher_is_better = None
    is_differentiable = False
    counts: Tensor

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.add_state("counts", torch.zeros(2, KEYS, dtype=torch.int64), dist_reduce_fx="sum")

    def update(self, scores: Tensor, anomaly: Tensor) -> None:
        """Count pixels.

        Args:
            scores: higher is more anomalous; uint16 codes or any floating type, any shape.
            anomaly: the same shape; 0 normal, 1 anomaly, 255 ignored.

        Raises:
            InputError: the shapes differ, a counted score is not finite, or a label is not one of the three.
        """
        if scores.shape != anomaly.shape:
            raise InputError(f"scores of shape {tuple(scores.shape)} and labels of shape {tuple(anomaly.shape)}")
        label = anomaly.flatten().to(self.counts.device).long()
        counted = label != IGNORE
        label = label[counted]
        if label.numel() and bool(((label != 0) & (label != 1)).any()):
            raise InputError("an anomaly label is not known", "0 normal, 1 anomaly, 255 ignored")
        values = scores.flatten().to(self.counts.device)
        # Ignored floats may be NaN and are dropped first; torch cannot index uint16 on every device, so codes are not.
        keys = tensor_keys(values[counted]) if values.is_floating_point() else tensor_keys(values)[counted]
        self.counts += torch.bincount(label * KEYS + keys, minlength=2 * KEYS).view(2, KEYS)

    def compute(self) -> dict[str, Tensor]:
        """``auroc``, ``aupr``, ``fpr95``, ``best_f1`` as float64 scalars in 0..1; NaN without one of the two classes."""
        curve = detection_curve(self.counts.cpu().numpy())
        best = best_f1(curve)
        values = {
            "auroc": auroc(curve),
            "aupr": average_precision(curve),
            "fpr95": fpr_at_recall(curve),
            "best_f1": None if best is None else best[0],
        }
        return {name: _number(value, self.counts.device) for name, value in values.items()}


class SegmentationIoU(Metric):
    """mIoU, IoU of each class and pixel accuracy from the confusion matrix of the whole set.

    States: ``matrix`` int64 ``[C, C]``, rows are true classes.
    """

    full_state_update = False
    higher_is_better = True
    is_differentiable = False
    matrix: Tensor

    def __init__(self, classes: int, **options: Any) -> None:
        super().__init__(**options)
        self.classes = classes
        self.add_state("matrix", torch.zeros(classes, classes, dtype=torch.int64), dist_reduce_fx="sum")

    def update(self, prediction: Tensor, labels: Tensor) -> None:
        """Count pixels.

        Args:
            prediction: class ids ``[...]``.
            labels: train ids ``[...]``, 255 ignored.

        Raises:
            InputError: the shapes differ, or an id is no class.
        """
        if prediction.shape != labels.shape:
            raise InputError(f"predictions of shape {tuple(prediction.shape)} and labels of {tuple(labels.shape)}")
        truth = labels.flatten().to(self.matrix.device).long()
        counted = truth != IGNORE
        truth = truth[counted]
        predicted = prediction.flatten().to(self.matrix.device)[counted].long()
        for name, ids in (("a label", truth), ("a prediction", predicted)):
            if ids.numel() and bool(((ids < 0) | (ids >= self.classes)).any()):
                raise InputError(f"{name} is no class id", f"ids in 0..{self.classes - 1}, labels also {IGNORE}")
        index = truth * self.classes + predicted
        self.matrix += torch.bincount(index, minlength=self.classes**2).view(self.classes, self.classes)

    def compute(self) -> dict[str, Tensor]:
        """``miou`` and ``accuracy`` as float64 scalars, ``per_class`` IoU ``[C]``; NaN where nothing was counted."""
        matrix, device = self.matrix.cpu().numpy(), self.matrix.device
        return {
            "miou": _number(mean_iou(matrix), device),
            "accuracy": _number(accuracy(matrix), device),
            "per_class": torch.from_numpy(class_iou(matrix)).to(device),
        }
