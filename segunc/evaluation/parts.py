"""The sections of a result: each counts frames, adds counts, and makes numbers of any sum.

A part knows one section of ``metrics.json``. It is asked for the counts of a frame, for numbers of the counts of all
frames, and for the numbers of bootstrap replicates, of which many are kept, in a coarser form.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar, Generic, Literal, TypeVar, get_args

import numpy as np
import numpy.typing as npt

from segunc.core.registry import Registry
from segunc.data.labels import IGNORE
from segunc.evaluation.labelled_frame import CONFIDENCE, LabelledFrame, decode_keys
from segunc.metrics import calibration, segmentation
from segunc.metrics.calibration import classwise_bins, classwise_calibration_error, mean_scores, probability_scores
from segunc.metrics.components import TAUS, Mode, component_counts, component_result, undefined_components
from segunc.metrics.counting import KEYS, auroc, average_precision, best_f1, detection_curve, fpr_at_recall
from segunc.metrics.per_image import NO_IMAGE_WITH_BOTH, per_image_result, per_image_sums
from segunc.metrics.per_image import NUMBERS as PER_IMAGE_NUMBERS
from segunc.metrics.selective import NUMBERS as SELECTIVE_NUMBERS
from segunc.metrics.selective import SHARES, count_patches, patch_summary, selective_numbers, why_undefined
from segunc.metrics.smiyc import (
    VALUES_OF_FLOAT_KEYS,
    SmiycBins,
    bins_by_key,
    merge_bins,
    smiyc_bins,
    smiyc_curve,
    smiyc_result,
)

Counts = npt.NDArray[np.int64]
State = TypeVar("State")
Path = tuple[str, ...]
Numbers = dict[Path, float | None]
Forms = Mapping[str, str]
COARSE_KEYS = 4096
"""Bins of the replicates' counts by key."""


def coarse_keys(counts: Counts, bins: int = COARSE_KEYS) -> Counts:
    """Counts by key ``[..., 65536]`` with neighbouring keys merged to ``[..., bins]``."""
    merged: Counts = counts.reshape(*counts.shape[:-1], bins, KEYS // bins).sum(-1)
    return merged


def fine_keys(coarse: Counts) -> Counts:
    """Counts ``[..., 65536]`` with the pixels of merged keys at the middle one."""
    width = KEYS // coarse.shape[-1]
    counts = np.zeros((*coarse.shape[:-1], KEYS), np.int64)
    counts[..., width // 2 :: width] = coarse
    return counts


class Part(ABC, Generic[State]):
    """One section of a result; ``State`` is the type of its counts.

    Attributes:
        section: its place in ``metrics.json``.
        names: of its numbers below the section.
        point: those of them that are given without an interval, thresholds for instance.
        batch: frames whose counts are kept before they are combined.
        needs: the kind of label it needs, ``anomaly`` or ``class``.
    """

    section: Path
    names: Sequence[Path]
    point: ClassVar[frozenset[Path]] = frozenset()
    batch: ClassVar[int] = 1
    needs: ClassVar[str]

    @abstractmethod
    def count(self, frame: LabelledFrame) -> State | None:
        """The counts of a frame, None where it lacks what the part needs."""

    @abstractmethod
    def numbers(self, counts: State, forms: Forms) -> Numbers:
        """The numbers of summed counts; None where the counts define none."""

    @abstractmethod
    def combine(self, counts: Sequence[State]) -> State:
        """The sum of counts."""

    @abstractmethod
    def coarsen(self, counts: State) -> Counts:
        """The form in which replicates are kept: whole numbers of a fixed shape that add."""

    @abstractmethod
    def refine(self, coarse: Counts) -> State:
        """Counts whose :meth:`coarsen` is ``coarse``."""

    @abstractmethod
    def why(self, counts: State | None, name: Path) -> str:
        """Why a number is None; ``counts`` is None where no frame holds what the part needs."""


class ArrayPart(Part[Counts]):
    """A part whose counts are one array, replicates included."""

    def combine(self, counts: Sequence[Counts]) -> Counts:
        total: Any = sum(counts[1:], counts[0])
        return np.asarray(total, np.int64)

    def coarsen(self, counts: Counts) -> Counts:
        return counts

    def refine(self, coarse: Counts) -> Counts:
        return coarse


class KeyPart(ArrayPart):
    """A part whose counts are by 16-bit key, ``[2, 65536]``; those of replicates by 12 bits of it."""

    def coarsen(self, counts: Counts) -> Counts:
        return coarse_keys(counts)

    def refine(self, coarse: Counts) -> Counts:
        return fine_keys(coarse)


Protocol = Literal["pooled", "per-image", "smiyc"]
PROTOCOLS: tuple[Protocol, ...] = get_args(Protocol)
NO_ANOMALY_LABEL = "no frame has an anomaly label"
_NAMES = (("auroc",), ("aupr",), ("fpr95",), ("best_f1",), ("threshold",))


def anomaly_part(score: str, protocol: Protocol) -> Part[Counts] | Part[SmiycBins]:
    """The part of a score under a protocol."""
    if protocol == "pooled":
        return Pooled(score)
    return PerImage(score) if protocol == "per-image" else Smiyc(score)


class Pooled(KeyPart):
    """All pixels of the set in one pool; equal scores are one threshold."""

    names = _NAMES
    point = frozenset({("threshold",)})
    needs = "anomaly"

    def __init__(self, score: str) -> None:
        self.score, self.section = score, ("scores", score, "pooled")

    def count(self, frame: LabelledFrame) -> Counts | None:
        return frame.anomaly_counts(self.score)

    def numbers(self, counts: Counts, forms: Forms) -> Numbers:
        curve = detection_curve(counts)
        best = best_f1(curve)
        if best is None:
            return dict.fromkeys(self.names)
        threshold = float(decode_keys(forms[self.score], np.array([best[1]], np.uint16))[0])
        values = (auroc(curve), average_precision(curve), fpr_at_recall(curve), best[0], threshold)
        return dict(zip(self.names, values, strict=True))

    def why(self, counts: Counts | None, name: Path) -> str:
        return NO_ANOMALY_LABEL if counts is None else str(detection_curve(counts).undefined)


class PerImage(ArrayPart):
    """The numbers of each image, and their mean over the images that hold both kinds of pixels."""

    names = tuple((name,) for name in PER_IMAGE_NUMBERS)
    needs = "anomaly"

    def __init__(self, score: str) -> None:
        self.score, self.section = score, ("scores", score, "per-image")

    def count(self, frame: LabelledFrame) -> Counts | None:
        counts = frame.anomaly_counts(self.score)
        return None if counts is None else per_image_sums(counts)

    def numbers(self, counts: Counts, forms: Forms) -> Numbers:
        return {(name,): value for name, value in per_image_result(counts).items()}

    def why(self, counts: Counts | None, name: Path) -> str:
        return NO_ANOMALY_LABEL if counts is None else NO_IMAGE_WITH_BOTH


class Smiyc(Part[SmiycBins]):
    """SegmentMeIfYouCan's pixel protocol: quantile bins of each frame, pooled by their lower edges."""

    names = _NAMES
    point = frozenset({("threshold",)})
    needs = "anomaly"
    batch = 128

    def __init__(self, score: str) -> None:
        self.score, self.section = score, ("scores", score, "smiyc")

    def count(self, frame: LabelledFrame) -> SmiycBins | None:
        counts = frame.anomaly_counts(self.score)
        if counts is None:
            return None
        # The values are those of the score as the benchmark would read it, in float16.
        values = decode_keys(frame.form(self.score), np.arange(KEYS, dtype=np.uint16)).astype(np.float16)
        return smiyc_bins(counts, values)

    def combine(self, counts: Sequence[SmiycBins]) -> SmiycBins:
        return merge_bins(counts)

    def coarsen(self, counts: SmiycBins) -> Counts:
        return coarse_keys(bins_by_key(counts))

    def refine(self, coarse: Counts) -> SmiycBins:
        by_key = fine_keys(coarse)
        used = np.flatnonzero(by_key.any(axis=0))
        return SmiycBins(VALUES_OF_FLOAT_KEYS[used].astype(np.float64), by_key[:, used])

    def numbers(self, counts: SmiycBins, forms: Forms) -> Numbers:
        return {(name,): value for name, value in smiyc_result(counts).items()}

    def why(self, counts: SmiycBins | None, name: Path) -> str:
        return NO_ANOMALY_LABEL if counts is None else str(smiyc_curve(counts).undefined)


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

    def coarsen(self, counts: Counts) -> Counts:
        # Shares at one threshold near the middle need no fine keys.
        return coarse_keys(counts, 512)

    def numbers(self, counts: Counts, forms: Forms) -> Numbers:
        summary = patch_summary(counts)
        return {name: summary[name[0].removeprefix("pavpu_")] for name in self.names}

    def why(self, counts: Counts | None, name: Path) -> str:
        if counts is None:
            return f"no labelled frame has a prediction and a map '{self.score}'"
        return "no patch defines it: none is certain, or none is inaccurate" if counts.any() else ALL_IGNORED


class Components(ArrayPart):
    """The components of one track, at the best-F1 threshold of the ``smiyc`` protocol over the whole set.

    The threshold is known only after a first pass over the set. Replicates keep it: their intervals do not contain what
    another choice of it would change.
    """

    names = (("siou_gt",), ("ppv",), ("mean_f1",), *(("f1", f"{tau:.2f}") for tau in TAUS))
    needs = "anomaly"

    def __init__(self, score: str, track: str, threshold: float, mode: Mode) -> None:
        self.score, self.track, self.threshold, self.mode = score, track, threshold, mode
        self.section = ("scores", score, "components", track)

    def count(self, frame: LabelledFrame) -> Counts | None:
        if frame.anomaly is None:
            return None
        # The benchmark stores scores as float16; floats that were wider are rounded as the pixel protocol rounds them.
        return component_counts(
            frame.values(self.score).astype(np.float16), frame.anomaly, self.threshold, self.track, self.mode
        )

    def numbers(self, counts: Counts, forms: Forms) -> Numbers:
        result = component_result(counts)
        return {name: result["f1"][name[1]] if name[0] == "f1" else result[name[0]] for name in self.names}

    def why(self, counts: Counts | None, name: Path) -> str:
        return NO_ANOMALY_LABEL if counts is None else undefined_components(counts)[name[0]]


PartBuilder = Callable[[Sequence[str], Sequence[str], Sequence[Protocol]], Sequence[Part[Any]]]
"""From the names of scores, of classes and of anomaly protocols, each empty where there is none, to parts."""
PARTS: Registry[PartBuilder] = Registry(
    "metric part",
    "segunc.metrics",
    {
        "anomaly": lambda scores, classes, protocols: [anomaly_part(s, p) for s in scores for p in protocols],
        "segmentation": lambda scores, classes, protocols: [Segmentation(classes)],
        "calibration": lambda scores, classes, protocols: [
            *(ConfidenceCalibration(), ProbabilityScores(), ClasswiseCalibration())
        ],
        "selective": lambda scores, classes, protocols: [
            part(name) for name in scores if classes for part in (Selective, Patches)
        ],
    },
)
"""What an evaluation counts; other packages add sections to ``metrics.json``."""
