"""Segmentation quality as a ``torchmetrics.Metric`` class: counts on any device, numbers from the functional core.

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
from segunc.metrics.scalars import scalar_tensors
from segunc.metrics.segmentation import accuracy, class_iou, mean_iou


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
            **scalar_tensors({"miou": mean_iou(matrix), "accuracy": accuracy(matrix)}, device),
            "per_class": torch.from_numpy(class_iou(matrix)).to(device),
        }
