"""Parts that need class labels and the prediction: segmentation, calibration, selective prediction."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from segunc.data.labels import IGNORE
from segunc.metrics import calibration, segmentation
from segunc.metrics.labelled_frame import CONFIDENCE, LabelledFrame, decode_keys
from segunc.metrics.parts.base import ArrayPart, Counts, Forms, KeyPart, Numbers, Path
from segunc.metrics.patches import SHARES, count_patches, patch_summary
from segunc.metrics.pixel_curves import KEYS
from segunc.metrics.probability_sums import (
    classwise_bins,
    classwise_calibration_error,
    mean_scores,
    probability_scores,
)
from segunc.metrics.selective import NUMBERS as SELECTIVE_NUMBERS
from segunc.metrics.selective import selective_numbers, why_undefined

NO_CLASS_LABEL = "no frame has both class labels and a prediction"
ALL_IGNORED = "every pixel of the class labels is ignored"
NEEDS_PROBABILITIES = (
    "needs the mean probabilities of all classes, which maps on disk do not hold; evaluate with the model"
)


class Segmentation(ArrayPart):
    """mIoU, accuracy and IoU of each class from the confusion matrix of the set."""

    section = ("segmentation",)
    needs = "class"

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
        if counts is None:
            return NO_CLASS_LABEL
        return "the class is in neither labels nor predictions" if counts.any() else ALL_IGNORED


class ConfidenceCalibration(KeyPart):
    """Calibration of the confidence 1 - msp, from counts by its key."""

    section = ("calibration",)
    names = (("ece",), ("adaptive_ece",))
    needs = "class"

    def count(self, frame: LabelledFrame) -> Counts | None:
        return frame.failure_counts(CONFIDENCE)

    def numbers(self, counts: Counts, forms: Forms) -> Numbers:
        confidence = confidence_of_keys(forms[CONFIDENCE])
        equal_width = calibration.bin_counts(counts, confidence)
        equal_mass = calibration.bin_counts_by_mass(counts, confidence)
        errors = (calibration.expected_calibration_error(bins) for bins in (equal_width, equal_mass))
        return dict(zip(self.names, errors, strict=True))

    def why(self, counts: Counts | None, name: Path) -> str:
        return f"no labelled frame has a prediction and a map '{CONFIDENCE}'" if counts is None else ALL_IGNORED


def confidence_of_keys(form: str) -> npt.NDArray[np.float32]:
    """The confidence 1 - msp of each key, ``[65536]``; keys of floats outside 0..1 exist but never occur."""
    confidence: npt.NDArray[np.float32] = 1.0 - decode_keys(form, np.arange(KEYS, dtype=np.uint16))
    return confidence.clip(0.0, 1.0)


class ProbabilityScores(ArrayPart):
    """NLL and Brier score, from the mean probabilities of all classes."""

    section = ("calibration",)
    names = (("nll",), ("brier",))
    needs = "class"

    def count(self, frame: LabelledFrame) -> Counts | None:
        if frame.mean_probabilities is None or frame.labels is None or frame.prediction is None:
            return None
        return probability_scores(frame.mean_probabilities, frame.labels)

    def numbers(self, counts: Counts, forms: Forms) -> Numbers:
        return dict(zip(self.names, mean_scores(counts), strict=True))

    def why(self, counts: Counts | None, name: Path) -> str:
        return NEEDS_PROBABILITIES if counts is None else ALL_IGNORED


class ClasswiseCalibration(ArrayPart):
    """Classwise ECE, from the mean probabilities of all classes."""

    section = ("calibration",)
    names = (("classwise_ece",),)
    needs = "class"

    def count(self, frame: LabelledFrame) -> Counts | None:
        if frame.mean_probabilities is None or frame.labels is None or frame.prediction is None:
            return None
        return classwise_bins(frame.mean_probabilities, frame.labels)

    def numbers(self, counts: Counts, forms: Forms) -> Numbers:
        return {("classwise_ece",): classwise_calibration_error(counts)}

    def why(self, counts: Counts | None, name: Path) -> str:
        return NEEDS_PROBABILITIES if counts is None else ALL_IGNORED


class Selective(KeyPart):
    """Selective prediction and failure detection by a score."""

    names = tuple((name,) for name in SELECTIVE_NUMBERS)
    needs = "class"

    def __init__(self, score: str) -> None:
        self.score, self.section = score, ("selective", score)

    def count(self, frame: LabelledFrame) -> Counts | None:
        return frame.failure_counts(self.score)

    def numbers(self, counts: Counts, forms: Forms) -> Numbers:
        return {(name,): value for name, value in selective_numbers(counts).items()}

    def why(self, counts: Counts | None, name: Path) -> str:
        if counts is None:
            return f"no labelled frame has a prediction and a map '{self.score}'"
        return why_undefined(counts)[name[0]]


class Patches(KeyPart):
    """Patch accuracy against patch uncertainty, at the mean uncertainty of the patches."""

    names = tuple((name,) for name in ("pavpu", *(share for share in SHARES if share != "pavpu"), "pavpu_threshold"))
    point = frozenset({("pavpu_threshold",)})
    needs = "class"

    def __init__(self, score: str) -> None:
        self.score, self.section = score, ("selective", score)

    def count(self, frame: LabelledFrame) -> Counts | None:
        if frame.labels is None or frame.prediction is None or self.score not in frame.stored:
            return None
        return count_patches(frame.values(self.score), frame.labels == frame.prediction, frame.labels != IGNORE)

    def numbers(self, counts: Counts, forms: Forms) -> Numbers:
        summary = patch_summary(counts)
        return {name: summary[name[0].removeprefix("pavpu_")] for name in self.names}

    def why(self, counts: Counts | None, name: Path) -> str:
        if counts is None:
            return f"no labelled frame has a prediction and a map '{self.score}'"
        return "no patch defines it: none is certain, or none is inaccurate" if counts.any() else ALL_IGNORED
