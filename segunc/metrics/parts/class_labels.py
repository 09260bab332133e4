"""Parts that need class labels and the prediction: segmentation and calibration."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from segunc.metrics import calibration, segmentation
from segunc.metrics.labelled_frame import CONFIDENCE, LabelledFrame
from segunc.metrics.parts.base import ClassLabelPart, Counts, Forms, Numbers, Path, coarse_keys, key_values
from segunc.metrics.probability_sums import mean_scores, probability_scores


class Segmentation(ClassLabelPart):
    """mIoU, accuracy and IoU of each class from the confusion matrix of the set."""

    section = ("segmentation",)

    def __init__(self, classes: Sequence[str]) -> None:
        self.classes = classes
        self.names = (("miou",), ("accuracy",), *(("per_class", name) for name in classes))

    def count(self, frame: LabelledFrame) -> Counts | None:
        if frame.labels is None or frame.prediction is None:
            return None
        return segmentation.confusion_matrix(frame.labels, frame.prediction, len(self.classes))

    def numbers(self, counts: Counts, forms: Forms) -> Numbers:
        iou = [None if np.isnan(value) else float(value) for value in segmentation.class_iou(counts)]
        values = (segmentation.mean_iou(counts), segmentation.accuracy(counts), *iou)
        return dict(zip(self.names, values, strict=True))

    def why(self, counts: Counts | None, name: Path) -> str:
        if counts is not None and counts.any():
            return "the class is in neither labels nor predictions"
        return super().why(counts, name)


class ConfidenceCalibration(ClassLabelPart):
    """Calibration of the confidence 1 - msp, from counts by its key."""

    section = ("calibration",)
    names = (("ece",), ("adaptive_ece",))

    def count(self, frame: LabelledFrame) -> Counts | None:
        return frame.failure_counts(CONFIDENCE)

    def coarsen(self, counts: Counts) -> Counts:
        return coarse_keys(counts)

    def numbers(self, counts: Counts, forms: Forms) -> Numbers:
        # Keys of floats outside 0..1 exist but never occur.
        confidence = np.clip(1.0 - key_values(CONFIDENCE, forms, counts.shape[-1]), 0.0, 1.0)
        equal_width = calibration.bin_counts(counts, confidence)
        equal_mass = calibration.bin_counts_by_mass(counts, confidence)
        errors = (calibration.expected_calibration_error(bins) for bins in (equal_width, equal_mass))
        return dict(zip(self.names, errors, strict=True))

    def why(self, counts: Counts | None, name: Path) -> str:
        return f"no labelled frame has a map '{CONFIDENCE}'" if counts is None else super().why(counts, name)


class ProbabilityCalibration(ClassLabelPart):
    """NLL and Brier score, from the mean probabilities of all classes."""

    section = ("calibration",)
    names = (("nll",), ("brier",))

    def count(self, frame: LabelledFrame) -> Counts | None:
        if frame.mean_probabilities is None or frame.labels is None or frame.prediction is None:
            return None
        return probability_scores(frame.mean_probabilities, frame.labels)

    def numbers(self, counts: Counts, forms: Forms) -> Numbers:
        return dict(zip(self.names, mean_scores(counts), strict=True))

    def why(self, counts: Counts | None, name: Path) -> str:
        if counts is None:
            return (
                "needs the mean probabilities of all classes, which maps on disk do not hold; evaluate with the model"
            )
        return super().why(counts, name)
