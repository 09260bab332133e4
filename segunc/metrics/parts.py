"""The parts of a result: each counts frames into integers that add, and makes its numbers of any such sum.

A part knows one section of ``metrics.json``. It is asked for the counts of a frame, for numbers of the counts of all
frames, and for the numbers of bootstrap replicates, whose counts by key are coarser (see :func:`coarse_keys`).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence

import numpy as np
import numpy.typing as npt

from segunc.metrics import calibration, segmentation
from segunc.metrics.labelled_frame import CONFIDENCE, LabelledFrame, decode_keys
from segunc.metrics.pixel_curves import KEYS, auroc, average_precision, best_f1, detection_curve, fpr_at_recall
from segunc.metrics.probability_sums import mean_scores, probability_scores

Counts = npt.NDArray[np.int64]
Path = tuple[str, ...]
Numbers = dict[Path, float | None]
Forms = Mapping[str, str]
COARSE_KEYS = 4096
"""Bins of the replicates' counts by key."""


def coarse_keys(counts: Counts) -> Counts:
    """Counts by key ``[..., 65536]`` with neighbouring keys merged to ``[..., 4096]``."""
    merged: Counts = counts.reshape(*counts.shape[:-1], COARSE_KEYS, KEYS // COARSE_KEYS).sum(-1)
    return merged


def key_values(score: str, forms: Forms, bins: int) -> npt.NDArray[np.float32]:
    """The score at each bin of counts by key: at the key itself, or at the middle of merged keys; ``[bins]``."""
    width = KEYS // bins
    return decode_keys(score, forms[score], (np.arange(bins) * width + width // 2).astype(np.uint16))


class Part(ABC):
    """One section of a result.

    Attributes:
        section: its place in ``metrics.json``.
        names: of its numbers below the section.
        point: those of them that are given without an interval, thresholds for instance.
    """

    section: Path
    names: Sequence[Path]
    point: frozenset[Path] = frozenset()

    @abstractmethod
    def count(self, frame: LabelledFrame) -> Counts | None:
        """The counts of a frame, None where it lacks what the part needs."""

    @abstractmethod
    def numbers(self, counts: Counts, forms: Forms) -> Numbers:
        """The numbers of summed counts; None where the counts define none."""

    def coarsen(self, counts: Counts) -> Counts:
        """The form in which replicates keep the counts."""
        return counts

    def why(self, counts: Counts | None, name: Path) -> str:
        """Why a number is None."""
        del counts, name
        return "no frame holds what it needs"


class AnomalyPart(Part):
    """A part that needs an anomaly label."""

    def why(self, counts: Counts | None, name: Path) -> str:
        return "no frame has an anomaly label" if counts is None else super().why(counts, name)


class Pooled(AnomalyPart):
    """All pixels of the set in one pool; equal scores are one threshold."""

    names = (("auroc",), ("aupr",), ("fpr95",), ("best_f1",), ("threshold",))
    point = frozenset({("threshold",)})

    def __init__(self, score: str) -> None:
        self.score, self.section = score, ("scores", score, "pooled")

    def count(self, frame: LabelledFrame) -> Counts | None:
        return frame.anomaly_counts(self.score)

    def coarsen(self, counts: Counts) -> Counts:
        return coarse_keys(counts)

    def numbers(self, counts: Counts, forms: Forms) -> Numbers:
        curve = detection_curve(counts)
        best = best_f1(curve)
        if best is None:
            return dict.fromkeys(self.names)
        threshold = key_values(self.score, forms, counts.shape[-1])[int(best[1])]
        values = (auroc(curve), average_precision(curve), fpr_at_recall(curve), best[0], float(threshold))
        return dict(zip(self.names, values, strict=True))

    def why(self, counts: Counts | None, name: Path) -> str:
        return super().why(counts, name) if counts is None else str(detection_curve(counts).undefined)


class ClassLabelPart(Part):
    """A part that needs class labels and the prediction."""

    def why(self, counts: Counts | None, name: Path) -> str:
        if counts is None:
            return "no frame has both class labels and a prediction"
        return "every pixel of the class labels is ignored"


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
