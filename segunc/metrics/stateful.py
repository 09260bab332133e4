"""Segmentation and calibration as ``torchmetrics.Metric`` classes: counts on any device, numbers from the functional core.

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
from segunc.metrics.calibration import BINS, SMALLEST_PROBABILITY, expected_calibration_error
from segunc.metrics.segmentation import accuracy, class_iou, mean_iou


def _number(value: float | None, device: torch.device) -> Tensor:
    return torch.tensor(float("nan") if value is None else value, dtype=torch.float64, device=device)


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


class Calibration(Metric):
    """ECE, NLL and Brier score of class probabilities over all pixels.

    States: ``bins`` float64 ``[3, B]`` (pixels, correct pixels, confidences), ``sums`` float64 ``[3]`` (pixels,
    -ln p_y, Brier).
    """

    full_state_update = False
    higher_is_better = False
    is_differentiable = False
    bins: Tensor
    sums: Tensor

    def __init__(self, bins: int = BINS, **options: Any) -> None:
        super().__init__(**options)
        self.add_state("bins", torch.zeros(3, bins, dtype=torch.float64), dist_reduce_fx="sum")
        self.add_state("sums", torch.zeros(3, dtype=torch.float64), dist_reduce_fx="sum")

    def update(self, probabilities: Tensor, labels: Tensor) -> None:
        """Add pixels.

        Args:
            probabilities: ``[N, C, ...]`` that sum to 1 over the classes.
            labels: train ids ``[N, ...]``, 255 ignored.

        Raises:
            InputError: the shapes differ, an id is no class, or the values are no probabilities.
        """
        if probabilities.shape[:1] + probabilities.shape[2:] != labels.shape:
            raise InputError(
                f"probabilities of shape {tuple(probabilities.shape)} and labels of {tuple(labels.shape)}",
                "[N, C, ...] and [N, ...]",
            )
        device, classes = self.bins.device, probabilities.shape[1]
        truth = labels.to(device).long()
        counted = truth != IGNORE
        truth = truth[counted]
        if truth.numel() and bool(((truth < 0) | (truth >= classes)).any()):
            raise InputError("a label is no class id", f"ids in 0..{classes - 1}, or {IGNORE}")
        selected = probabilities.to(device).float().movedim(1, -1)[counted]
        if not bool(((selected.sum(-1) - 1.0).abs() <= 1e-2).all() & (selected >= 0.0).all()):
            raise InputError("class probabilities are negative or do not sum to 1", "the output of a softmax")
        confidence, predicted = selected.max(-1)
        confidence = confidence.clamp(max=1.0)  # a softmax may round to 1 + 1e-7
        edges = torch.linspace(0.0, 1.0, self.bins.shape[1] + 1, device=device)[1:-1]
        index = torch.bucketize(confidence, edges, right=True)
        rows = torch.stack([torch.ones_like(confidence), (predicted == truth).float(), confidence]).double()
        self.bins.index_add_(1, index, rows)
        chosen = selected.gather(-1, truth[:, None])[:, 0].double()
        brier = (1.0 - chosen).square() + (selected.double().square().sum(-1) - chosen.square()).clamp(min=0.0)
        loss = -chosen.clamp(min=SMALLEST_PROBABILITY).log()
        self.sums += torch.stack([torch.tensor(float(truth.numel()), device=device).double(), loss.sum(), brier.sum()])

    def compute(self) -> dict[str, Tensor]:
        """``ece`` in 0..1, ``nll`` in nats, ``brier`` in 0..2 as float64 scalars; NaN without a pixel."""
        ece = expected_calibration_error(self.bins.cpu().numpy())
        pixels, loss, brier = self.sums.unbind()
        # 0 / 0 is NaN.
        return {"ece": _number(ece, self.bins.device), "nll": loss / pixels, "brier": brier / pixels}
