"""The sections of ``metrics.json``, each made by a part.

A part counts frames, adds counts, and makes numbers of a sum of counts: of all frames, and of every
bootstrap replicate. Replicates are many, so their counts may be kept in a coarser form.

A part has a section, its metrics, the kind of label that it needs, ``count`` and ``numbers``;
:class:`Segmentation` is a short one.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache, cached_property, lru_cache
from typing import Any, ClassVar, Literal, get_args

import numpy as np
import numpy.typing as npt

from segunc.core.errors import InputError
from segunc.core.registry import Registry
from segunc.data.labels import IGNORE, UNKNOWN
from segunc.evaluation.resampling import NumberPath
from segunc.maps.encoding import decode_stored, decode_unit, keys_to_half
from segunc.metrics import counting, per_image, prediction, smiyc
from segunc.metrics.counting import (
    KEYS,
    Counts,
    ScoreBins,
    check_anomaly_labels,
    count_scores,
    detection_curve,
)
from segunc.metrics.objects import (
    NO_OBJECT,
    OBJECT_NUMBERS,
    SMALLEST_OBJECT,
    ObjectBins,
    Objects,
    object_counts,
    object_numbers,
    object_numbers_of_many,
)
from segunc.metrics.smiyc import SmiycBins
from segunc.scores import stored_as_codes

Array = npt.NDArray[Any]
Form = str | ScoreBins
"""How a map is stored: ``unit-code``, ``uint16``, ``uint8`` or ``float``, or the bins of floats
that 16 bits cannot hold.
"""
# The score whose complement is the confidence of the prediction: msp = 1 - max_c mean p_c.
CONFIDENCE = "msp"
Numbers = dict[NumberPath, float | None]
ManyNumbers = Mapping[NumberPath, npt.NDArray[np.float64]]  # of R counts, [R] each
Forms = Mapping[str, Form]  # score -> how its maps are stored
AnomalyProtocol = Literal["pooled", "per-image", "smiyc"]
PROTOCOLS: tuple[AnomalyProtocol, ...] = get_args(AnomalyProtocol)

NO_ANOMALY_LABEL = "no frame has an anomaly label"
ALL_IGNORED = "every pixel of the class labels is ignored"
COARSE_KEYS = 4096
RECALLS = (0.8, 0.95)  # whose thresholds a result holds
_AT_RECALL = tuple(("thresholds", f"{recall:g}") for recall in RECALLS)


@dataclass
class LabelledFrame:
    """The maps and labels of one frame; every array has the same ``[H, W]``. Counts are made once
    and kept.

    Float maps are counted in the ``bins`` of their score, and without bins by their float16, which
    must hold them exactly.

    Attributes:
        name: of the frame.
        stored: score -> map in its stored form: uint16 or uint8 codes, or floats.
        prediction: class ids, uint8.
        mean_probabilities: float32 ``[C, H, W]``, mean over the draws.
        labels: train ids, uint8, 255 ignored.
        anomaly: uint8, 0 normal, 1 anomaly, 255 ignored.
        unit_codes: scores whose uint16 are (code / 65535)^2; those of other scores are linear.
            None: as this tool stores them.
        bins: score -> bins, of float maps that 16 bits cannot hold.
        smallest_object: pixels of the smallest labelled object.
        kept: which pixels the maps hold scores of, bool; None for all.
        anomaly_pixels: normal, anomalous and ignored pixels, int64 ``[3]``; zeros without a label.

    Raises:
        InputError: there is no label, sizes differ, or a label or the prediction holds a value that
            it may not hold.
    """

    name: str
    stored: Mapping[str, Array]
    prediction: Array | None = None
    mean_probabilities: Array | None = None
    labels: Array | None = None
    anomaly: Array | None = None
    unit_codes: Collection[str] | None = None
    bins: Mapping[str, ScoreBins] = field(default_factory=dict)
    smallest_object: int = SMALLEST_OBJECT
    kept: npt.NDArray[np.bool_] | None = None
    anomaly_pixels: Counts = field(init=False)
    _counts: dict[tuple[str, str], Counts] = field(init=False, default_factory=dict, repr=False)

    def __post_init__(self) -> None:
        self._check_sizes()
        self.anomaly_pixels = np.zeros(3, np.int64)
        if self.anomaly is not None:
            check_anomaly_labels(self.anomaly)
            pixels_by_label = np.bincount(self.anomaly.ravel(), minlength=256)
            self.anomaly_pixels = pixels_by_label[[0, 1, IGNORE]].astype(np.int64)

    def form(self, name: str) -> Form:
        """Return how the map of a score is stored; keys of different forms cannot be compared."""
        if name not in self.stored:
            raise InputError(
                f"there is no map '{name}', but every score that is evaluated needs one"
            )
        stored = self.stored[name]
        if np.issubdtype(stored.dtype, np.floating):
            return self.bins.get(name, "float")
        if stored.dtype == np.uint16 and self._holds_unit_codes(name):
            return "unit-code"
        return str(stored.dtype)

    def _holds_unit_codes(self, name: str) -> bool:
        """Return whether the uint16 of a score are (code / 65535)^2, and not linear."""
        if self.unit_codes is None:
            return stored_as_codes(name)
        return name in self.unit_codes

    def values(self, name: str) -> npt.NDArray[np.floating]:
        """Return the map of a score in real units, ``[H, W]``, floats as they are stored."""
        stored = self.stored[name]
        if np.issubdtype(stored.dtype, np.floating):
            return stored
        return decode_stored(stored, "unit-code" if self.form(name) == "unit-code" else "linear")

    def benchmark_scores(self, name: str) -> npt.NDArray[np.floating]:
        """Return the map of a score as files of SegmentMeIfYouCan's benchmark hold it, ``[H, W]``.

        Floats that 16 bits cannot hold, and the codes of other tools, keep their values; all others
        become float16.
        """
        form = self.form(name)
        values = self.values(name)
        if isinstance(form, ScoreBins) or form in ("uint8", "uint16"):
            return values
        with np.errstate(over="ignore", invalid="ignore"):  # of ignored pixels
            return values.astype(np.float16)

    @cached_property
    def objects(self) -> Objects | None:
        """The labelled objects; None without an anomaly label."""
        return None if self.anomaly is None else Objects.of(self.anomaly, self.smallest_object)

    def anomaly_counts(self, name: str) -> Counts | None:
        """Count pixels by key or bin of a score: int64 ``[2, K]``, row 1 anomalous.

        None without an anomaly label.
        """
        if self.anomaly is None:
            return None
        return self._count("anomaly", name, self.anomaly)

    def keys(self, name: str, mask: npt.NDArray[np.bool_]) -> tuple[npt.NDArray[np.integer], int]:
        """Return the keys or bins of a score at the pixels of a mask, ``[n]``, and their number."""
        return counting.rank(self.stored[name][mask], self.bins.get(name))

    @cached_property
    def wrong(self) -> npt.NDArray[np.uint8] | None:
        """Whether the prediction of each pixel is wrong, uint8 ``[H, W]``, 255 unlabelled.

        None without class labels or prediction.
        """
        if self.labels is None or self.prediction is None:
            return None
        differs = self.labels != self.prediction
        return np.where(self.labels == IGNORE, np.uint8(IGNORE), differs).astype(np.uint8)

    def failure_counts(self, name: str) -> Counts | None:
        """Count labelled pixels by key or bin of a score: int64 ``[2, K]``, row 1 wrong ones.

        None without class labels, prediction or map.
        """
        if self.wrong is None or name not in self.stored:
            return None
        return self._count("failure", name, self.wrong)

    def confidence_counts(self) -> Counts | None:
        """Count as :meth:`failure_counts` does, by the score that the confidence is made of.

        Floats that 16 bits cannot hold become uint16 codes.
        """
        counts = self.failure_counts(CONFIDENCE)
        if counts is None or self.wrong is None:
            return None
        form = self.form(CONFIDENCE)
        if str(form) != "float":
            return counts
        values = np.where(self.wrong == IGNORE, 0, self.stored[CONFIDENCE])
        if values.size and not (values.min() >= 0 and values.max() <= 1):
            raise InputError(
                f"the map '{CONFIDENCE}' leaves 0..1, so that it is not 1 - max probability"
            )
        if isinstance(form, ScoreBins):
            codes = np.rint(values * 65535).astype(np.uint16)
            return count_scores(codes, self.wrong)
        return counts

    def _count(self, kind: str, name: str, rows: Array) -> Counts:
        """Count the pixels of a score by the row that a label gives each, and keep the counts."""
        if (kind, name) not in self._counts:
            form = self.form(name)
            count = form.count if isinstance(form, ScoreBins) else count_scores
            try:
                self._counts[kind, name] = count(self.stored[name], rows)
            except InputError as error:
                raise error.within(f"the map '{name}'") from error
        return self._counts[kind, name]

    def _check_sizes(self) -> None:
        truth = self.anomaly if self.anomaly is not None else self.labels
        if truth is None:
            raise InputError("there is neither an anomaly label nor a class label")
        arrays: dict[str, Array | None] = {}
        for score, stored in self.stored.items():
            arrays[f"the map '{score}'"] = stored
        arrays["the prediction"] = self.prediction
        arrays["the class label"] = self.labels
        if self.mean_probabilities is not None:
            arrays["the probability map"] = self.mean_probabilities[0]
        for array_name, array in arrays.items():
            if array is not None and array.shape != truth.shape:
                size = " x ".join(map(str, array.shape))
                expected = " x ".join(map(str, truth.shape))
                raise InputError(
                    f"frame {self.name}: {array_name} is {size}, and the label is {expected}",
                    hint="predict at the labels' size, "
                    "or give the labels that belong to these maps",
                )


def decode_keys(form: str, keys: npt.NDArray[np.integer]) -> npt.NDArray[np.floating]:
    """Return the score of each key of maps in a form, as maps are read and shown."""
    codes = keys.astype(np.uint16)
    if form == "float":
        return keys_to_half(codes).astype(np.float32)
    if form == "unit-code":
        return decode_unit(codes)
    return keys.astype(np.float32) / np.float32(KEYS - 1)


@dataclass(frozen=True)
class Metric:
    """A number of a part.

    Attributes:
        key: of the number in its section; ``KEY.*`` stands for one number of each class.
        title: of the number in tables; a number without one is in the file alone.
        higher_is_better: None where neither way is better.
    """

    key: str
    title: str = ""
    higher_is_better: bool | None = None


def higher(key: str, title: str = "") -> Metric:
    """Return a metric that is better where it is higher."""
    return Metric(key, title, higher_is_better=True)


def lower(key: str, title: str = "") -> Metric:
    """Return a metric that is better where it is lower."""
    return Metric(key, title, higher_is_better=False)


AREAS = (
    higher("auroc", "AUROC"),
    higher("aupr", "AUPR"),
    lower("fpr95", "FPR95"),
)
DETECTION = (
    *AREAS,
    higher("best_f1", "best F1"),
    Metric("threshold", "threshold"),
)


def titles(metrics: Iterable[Metric]) -> dict[str, str]:
    """Return the title of each metric that has one, by its key."""
    return {metric.key: metric.title for metric in metrics if metric.title}


def coarse_keys(counts: Counts, bins: int) -> Counts:
    """Return counts by key or bin ``[..., K]`` with neighbouring ones merged to ``[..., bins]``."""
    *shape, keys = counts.shape
    width = -(-keys // bins)  # keys of a bin, rounded up
    padding = [(0, 0) for _ in shape]
    padding.append((0, bins * width - keys))
    by_bin = np.pad(counts, padding).reshape(*shape, bins, width)
    return np.asarray(by_bin.sum(-1), np.int64)


@cache
def keys_of(bins: int) -> npt.NDArray[np.uint16]:
    """Return the middle key of each bin of neighbouring keys, uint16 ``[bins]``."""
    return np.arange(KEYS // bins // 2, KEYS, KEYS // bins).astype(np.uint16)


@lru_cache(maxsize=32)
def values_of(form: Form, bins: int) -> npt.NDArray[np.floating]:
    """Return the score in the middle of each bin of neighbouring keys of a form, ``[bins]``."""
    if isinstance(form, ScoreBins):
        width = -(-len(form.edges) // bins)
        middles = np.arange(bins) * width + width // 2
        return np.asarray(form.edges[np.minimum(middles, len(form.edges) - 1)])
    return decode_keys(form, keys_of(bins))


@dataclass(frozen=True)
class ManyCounts:
    """Coarse counts of R replicates.

    Attributes:
        counts: in the form of :meth:`ArrayPart.coarsen`, ``[R, ...]``.
        keys: which keys or bins their last axis holds, ``[K]``; None for all of them.
    """

    counts: npt.NDArray[np.float64]
    keys: npt.NDArray[np.int64] | None = None


class ArrayPart(ABC):
    """One section of a result.

    Its counts are an int64 array, unless the part says something else.

    Attributes:
        section: its place in ``metrics.json``.
        metrics: its numbers with their titles and better directions.
        needs: the kind of label that it needs, ``anomaly`` or ``class``.
        lacks: why all its numbers are None where :meth:`count` gave no counts of any frame.
        undefined: why a number is None where the counts define none.
        point: numbers without an interval, thresholds for instance.
        rows: rows of its counts by key or bin, which bins are sized for.
        batch: frames whose counts are kept before they are combined.
        coarse: bins that replicates keep of counts by key or bin ``[2, K]``; None: all of them.
    """

    section: NumberPath
    metrics: Sequence[Metric] = ()
    needs: str
    lacks: str
    undefined: str = "its counts define no number"
    point: frozenset[NumberPath] = frozenset()
    rows: int = 0
    batch: int = 1
    coarse: ClassVar[int | None] = None

    @cached_property
    def names(self) -> Sequence[NumberPath]:
        """The paths of its numbers below the section."""
        return tuple((metric.key,) for metric in self.metrics)

    @abstractmethod
    def count(self, frame: LabelledFrame) -> Any:
        """Return the counts of a frame; None where it lacks what the part needs."""

    def finish(self) -> Iterable[tuple[str, Any]]:
        """Return counts that no frame could give alone, of tracks for instance.

        Each comes with the name of the frame whose unit it belongs to. This ends what is being
        followed, so that a second call counts nothing twice.
        """
        return ()

    @abstractmethod
    def numbers(self, counts: Any, forms: Forms) -> Numbers:
        """Return the numbers of summed counts; None where the counts define none."""

    def numbers_of_many(self, coarse: ManyCounts, forms: Forms) -> ManyNumbers:
        """Return the numbers ``[R]`` of R coarse counts, NaN where one defines none.

        Numbers that have no interval may be left out. A part that has this method gets only the
        keys or bins that some unit has.
        """
        counts_of_all = coarse.counts.astype(np.int64)
        rows = [self.numbers(self.refine(counts), forms) for counts in counts_of_all]
        columns: dict[NumberPath, npt.NDArray[np.float64]] = {}
        for name in rows[0]:
            columns[name] = np.array([row[name] for row in rows], np.float64)  # None becomes NaN
        return columns

    def why(self, counts: Any, name: NumberPath) -> str:
        """Return why a number of these summed counts is None."""
        return self.undefined

    def combine(self, counts: Sequence[Any]) -> Any:
        """Return the sum of counts of several frames."""
        return np.asarray(sum(counts), np.int64)

    def coarsen(self, counts: Any) -> Counts:
        """Return counts as replicates keep them: whole numbers of a fixed shape that add."""
        return counts if self.coarse is None else coarse_keys(counts, self.coarse)

    def refine(self, coarse: Counts) -> Any:
        """Return counts whose :meth:`coarsen` is ``coarse``.

        The score that a bin of keys stands for is that of :func:`values_of`.
        """
        return coarse


class AnomalyPart(ArrayPart):
    """The detection numbers of a score by one protocol."""

    needs = "anomaly"
    lacks = NO_ANOMALY_LABEL
    metrics: Sequence[Metric] = DETECTION
    protocol: ClassVar[AnomalyProtocol]

    def __init__(self, score: str) -> None:
        self.score = score
        self.section = ("scores", score, self.protocol)


class Pooled(AnomalyPart):
    """All pixels of the set in one pool; equal scores are one threshold.

    ``thresholds`` are the highest that reach a recall. Its counts are ``[2, K]`` by key or bin.
    """

    protocol = "pooled"
    names = (*((metric.key,) for metric in DETECTION), *_AT_RECALL)
    point = frozenset({("threshold",), *_AT_RECALL})
    coarse = COARSE_KEYS
    rows = 2

    def count(self, frame: LabelledFrame) -> Counts | None:
        return frame.anomaly_counts(self.score)

    def numbers(self, counts: Counts, forms: Forms) -> Numbers:
        curve = detection_curve(counts)
        best = counting.best_f1(curve)
        if best is None:
            return dict.fromkeys(self.names)
        largest_f1, best_key = best
        keys_at_recalls = [
            curve.thresholds[np.argmax(curve.recall >= recall)] for recall in RECALLS
        ]
        keys = [best_key, *keys_at_recalls]
        value_of_key = values_of(forms[self.score], counts.shape[-1])
        thresholds = value_of_key[np.array(keys, np.int64)].tolist()
        numbers = [*counting.areas(curve), largest_f1, *thresholds]
        return dict(zip(self.names, numbers, strict=True))

    def numbers_of_many(self, coarse: ManyCounts, forms: Forms) -> ManyNumbers:
        normal, anomalous = coarse.counts.swapaxes(0, 1)
        areas = counting.numbers_of_many(normal, anomalous, counting.at_or_above(normal))
        # Thresholds are the last names and have no intervals.
        return dict(zip(self.names, areas, strict=False))

    def why(self, counts: Counts, name: NumberPath) -> str:
        return str(detection_curve(counts).undefined)


class PooledGroup(Pooled):
    """The pooled numbers of the frames of one group."""

    def __init__(self, score: str, group: str, members: Collection[str]) -> None:
        super().__init__(score)
        self.group = group
        self.members = members
        self.section = ("scores", score, "groups", group, "pooled")

    def count(self, frame: LabelledFrame) -> Counts | None:
        return super().count(frame) if frame.name in self.members else None


FOUND_AT_5 = "found at 5 % flagged (of all objects)"
"""Of the objects of a bin. Another table has those that are found at a threshold."""


class ByObject(ArrayPart):
    """The pooled numbers of the objects of each bin against all normal pixels.

    ``found`` is the share of the objects that is found; see :mod:`segunc.metrics.objects`. Counts
    are ``[1 + 2 B, K]`` by key or bin: normal pixels, then those of ``object_counts``.
    """

    needs = "anomaly"
    lacks = NO_ANOMALY_LABEL
    metrics = (*AREAS, higher("found", FOUND_AT_5), Metric("objects"), Metric("pixels"))
    coarse = COARSE_KEYS

    def __init__(self, score: str, bins: ObjectBins) -> None:
        self.score = score
        self.bins = bins
        self.section = ("scores", score, bins.kind)
        self.names = tuple((name, number) for name in bins.names for number in OBJECT_NUMBERS)
        self.rows = 1 + 2 * len(bins.names)
        self.point = frozenset(name for name in self.names if name[1] in ("objects", "pixels"))

    def count(self, frame: LabelledFrame) -> Counts | None:
        counts = frame.anomaly_counts(self.score)
        objects = frame.objects
        if counts is None or objects is None:
            return None
        keys, size = frame.keys(self.score, objects.number > 0)
        return np.concatenate([counts[:1], object_counts(keys, objects, self.bins, size)])

    def numbers(self, counts: Counts, forms: Forms) -> Numbers:
        numbers: Numbers = {}
        rows = object_numbers(normal=counts[0], counts=counts[1:])
        for bin_name, row in zip(self.bins.names, rows, strict=True):
            for key, value in row.items():
                numbers[bin_name, key] = value
        return numbers

    def numbers_of_many(self, coarse: ManyCounts, forms: Forms) -> ManyNumbers:
        numbers = object_numbers_of_many(coarse.counts).reshape(-1, len(coarse.counts))
        names = [name for name in self.names if name not in self.point]
        return dict(zip(names, numbers, strict=True))

    def why(self, counts: Counts, name: NumberPath) -> str:
        return NO_OBJECT if counts[0].any() else counting.NO_NORMAL


class PerImage(AnomalyPart):
    """The numbers of each frame, and their mean over the frames with both kinds of pixels."""

    protocol = "per-image"
    metrics = (*AREAS, higher("best_f1", "best F1"))
    undefined = per_image.NO_IMAGE_WITH_BOTH

    def count(self, frame: LabelledFrame) -> Counts | None:
        counts = frame.anomaly_counts(self.score)
        return None if counts is None else per_image.per_image_sums(counts)

    def numbers(self, counts: Counts, forms: Forms) -> Numbers:
        return {(name,): value for name, value in per_image.per_image_result(counts).items()}


class Smiyc(AnomalyPart):
    """SegmentMeIfYouCan's pixel protocol.

    It pools quantile bins of the scores of each frame by their lower edges; the scores are those of
    :meth:`LabelledFrame.benchmark_scores`.
    """

    protocol = "smiyc"
    point = frozenset({("threshold",)})
    batch = 128

    def __init__(self, score: str) -> None:
        super().__init__(score)
        self.form: Form = "float"  # of the maps that are counted: replicates are kept in its bins

    def count(self, frame: LabelledFrame) -> SmiycBins | None:
        counts = frame.anomaly_counts(self.score)
        if frame.anomaly is None or counts is None:
            return None
        self.form = frame.form(self.score)
        if isinstance(self.form, ScoreBins):
            scores = frame.benchmark_scores(self.score)
            return smiyc.smiyc_bins(*smiyc.counts_by_score(scores, frame.anomaly))
        values = decode_keys(self.form, np.arange(KEYS))
        if self.form not in ("uint8", "uint16"):
            values = values.astype(np.float16)
        return smiyc.smiyc_bins(counts, values)

    def combine(self, counts: Sequence[SmiycBins]) -> SmiycBins:
        return smiyc.merge_bins(counts)

    def coarsen(self, counts: SmiycBins) -> Counts:
        if isinstance(self.form, ScoreBins):
            return coarse_keys(smiyc.bins_by_score(counts, self.form), COARSE_KEYS)
        return coarse_keys(smiyc.bins_by_key(counts), COARSE_KEYS)

    def refine(self, coarse: Counts) -> SmiycBins:
        used = np.flatnonzero(coarse.any(axis=0))
        if isinstance(self.form, ScoreBins):
            edges = values_of(self.form, coarse.shape[-1])[used]
        else:
            edges = smiyc.VALUES_OF_FLOAT_KEYS[keys_of(coarse.shape[-1])[used]]
        return SmiycBins(edges.astype(np.float64), coarse[:, used])

    def numbers(self, counts: SmiycBins, forms: Forms) -> Numbers:
        return {(name,): value for name, value in smiyc.smiyc_result(counts).items()}

    def why(self, counts: SmiycBins, name: NumberPath) -> str:
        return str(smiyc.smiyc_curve(counts).undefined)


class Segmentation(ArrayPart):
    """mIoU, accuracy and IoU of each class from the confusion matrix of the set."""

    section = ("segmentation",)
    metrics = (
        higher("miou", "mean IoU"),
        higher("accuracy", "pixel accuracy"),
        higher("per_class.*"),
    )
    needs = "class"
    lacks = "no frame has both class labels and a prediction"

    def __init__(self, classes: Sequence[str]) -> None:
        self.classes = classes
        of_classes = [("per_class", name) for name in classes]
        self.names = (("miou",), ("accuracy",), *of_classes)

    def count(self, frame: LabelledFrame) -> Counts | None:
        if frame.labels is None or frame.prediction is None:
            return None
        return prediction.confusion_matrix(frame.labels, frame.prediction, len(self.classes))

    def numbers(self, counts: Counts, forms: Forms) -> Numbers:
        numbers: Numbers = {
            ("miou",): prediction.mean_iou(counts),
            ("accuracy",): prediction.accuracy(counts),
        }
        for name, iou in zip(self.classes, prediction.class_iou(counts).tolist(), strict=True):
            numbers["per_class", name] = None if np.isnan(iou) else iou
        return numbers

    def why(self, counts: Counts, name: NumberPath) -> str:
        return "the class is in neither labels nor predictions" if counts.any() else ALL_IGNORED


class ConfidenceCalibration(ArrayPart):
    """Calibration of the confidence 1 - msp, from counts by its key."""

    section = ("calibration",)
    names = (("ece",), ("adaptive_ece",))
    # Results of earlier versions hold debiased_ece, which is compared and no longer made.
    metrics = (lower("ece", "ECE"), lower("adaptive_ece", "adaptive ECE"), lower("debiased_ece"))
    needs = "class"
    lacks = f"no labelled frame has a prediction and a map '{CONFIDENCE}'"
    undefined = ALL_IGNORED
    coarse = COARSE_KEYS

    def count(self, frame: LabelledFrame) -> Counts | None:
        return frame.confidence_counts()

    def numbers(self, counts: Counts, forms: Forms) -> Numbers:
        confidence = confidence_of(forms[CONFIDENCE], counts.shape[-1])
        by_width = prediction.bin_counts(counts, confidence)
        by_mass = prediction.bin_counts_by_mass(counts, confidence)
        return {
            ("ece",): prediction.expected_calibration_error(by_width),
            ("adaptive_ece",): prediction.expected_calibration_error(by_mass),
        }


def reliability(counts: Counts, forms: Forms) -> list[list[float]]:
    """Return mean confidence, accuracy and pixels of each bin of confidence that holds a pixel."""
    bins = prediction.bin_counts(counts, confidence_of(forms[CONFIDENCE], counts.shape[-1]))
    pixels, correct, confidence = bins[:, bins[0] > 0]
    columns = [confidence / pixels, correct / pixels, np.rint(pixels)]
    rows: list[list[float]] = np.stack(columns, axis=1).tolist()
    return rows


def confidence_of(form: Form, bins: int) -> npt.NDArray[np.floating]:
    """Return the confidence 1 - msp of each key or bin of ``confidence_counts``, ``[bins]``."""
    key_form = "uint16" if isinstance(form, ScoreBins) else form
    with np.errstate(invalid="ignore"):  # keys that never occur may be signalling NaN
        return (1.0 - values_of(key_form, bins)).clip(0.0, 1.0)


class ProbabilityCalibration(ArrayPart):
    """NLL and Brier score, from the mean probabilities of all classes."""

    section = ("calibration",)
    metrics = (lower("nll", "NLL (nats)"), lower("brier", "Brier"))
    needs = "class"
    lacks = (
        "needs the mean probabilities of all classes, which maps on disk do not hold; "
        "evaluate with the model"
    )
    undefined = ALL_IGNORED

    def count(self, frame: LabelledFrame) -> Counts | None:
        if frame.mean_probabilities is None or frame.labels is None or frame.prediction is None:
            return None
        return prediction.probability_scores(frame.mean_probabilities, frame.labels)

    def numbers(self, counts: Counts, forms: Forms) -> Numbers:
        return dict(zip(self.names, prediction.mean_scores(counts), strict=True))


class SetCoverage(ArrayPart):
    """What prediction sets achieve, as means over frames.

    ``outside`` is the share of labelled pixels whose true class is outside of their set, and
    ``size`` the number of classes of a set, which are the most probable ones. Counts are int64
    ``[3]``: frames, and the two sums in fixed point.
    """

    score = "set-size"
    section = ("sets",)
    metrics = (lower("outside", "true class outside"), Metric("size", "classes"))
    needs = "class"
    lacks = ProbabilityCalibration.lacks
    undefined = ALL_IGNORED

    def count(self, frame: LabelledFrame) -> Counts | None:
        if frame.mean_probabilities is None or frame.labels is None:
            return None
        if self.score not in frame.stored:
            return None
        labelled = frame.labels < UNKNOWN
        if not labelled.any():
            return np.zeros(3, np.int64)
        probabilities = frame.mean_probabilities[:, labelled]
        sizes = frame.stored[self.score][labelled].astype(np.float64)
        true_class = frame.labels[labelled][None].astype(np.int64)
        probability_of_truth = np.take_along_axis(probabilities, true_class, 0)
        more_probable = (probabilities > probability_of_truth).sum(0)
        outside = more_probable >= sizes
        means = [outside.mean(), sizes.mean()]
        return np.array([1, *counting.to_fixed_point(means, counting.STEPS_PER_FRACTION)])

    def numbers(self, counts: Counts, forms: Forms) -> Numbers:
        frames, outside, size = counts
        return {
            ("outside",): counting.mean_of_fractions(outside, frames),
            ("size",): counting.mean_of_fractions(size, frames),
        }


class Selective(ArrayPart):
    """Selective prediction and failure detection: how a score ranks wrongly predicted pixels."""

    metrics = (
        lower("aurc", "AURC"),
        lower("ause", "AUSE"),
        higher("failure_auroc", "failure AUROC"),
        higher("failure_aupr", "failure AUPR"),
        lower("failure_fpr95"),
    )
    needs = "class"
    coarse = COARSE_KEYS
    rows = 2

    def __init__(self, score: str) -> None:
        self.score = score
        self.section = ("selective", score)
        self.lacks = f"no labelled frame has a prediction and a map '{score}'"

    def count(self, frame: LabelledFrame) -> Counts | None:
        return frame.failure_counts(self.score)

    def numbers(self, counts: Counts, forms: Forms) -> Numbers:
        return {(name,): value for name, value in prediction.selective_numbers(counts).items()}

    def why(self, counts: Counts, name: NumberPath) -> str:
        right, wrong = counts
        if right.any():
            return "no pixel is wrongly predicted"
        if wrong.any():
            return "no pixel is rightly predicted"
        return "no pixel has both a class label and a prediction"


class Components(ArrayPart):
    """The components of one track, at the best-F1 threshold of the ``smiyc`` protocol.

    The threshold is that of the whole set, which replicates keep. Counts are those of
    ``smiyc.component_counts``.
    """

    needs = "anomaly"
    lacks = NO_ANOMALY_LABEL
    metrics = (
        higher("siou_gt", "sIoU_gt"),
        higher("ppv", "PPV"),
        higher("mean_f1", "mean F1"),
        higher("f1.*"),
    )
    names = (
        ("siou_gt",),
        ("ppv",),
        ("mean_f1",),
        *(("f1", f"{tau:.2f}") for tau in smiyc.TAUS),
    )

    def __init__(self, score: str, track: str, threshold: float) -> None:
        self.score = score
        self.track = track
        self.threshold = threshold
        self.section = ("scores", score, "components", track)

    def count(self, frame: LabelledFrame) -> Counts | None:
        if frame.anomaly is None:
            return None
        scores = frame.benchmark_scores(self.score)
        return smiyc.component_counts(scores, frame.anomaly, self.threshold, self.track)

    def numbers(self, counts: Counts, forms: Forms) -> Numbers:
        result = smiyc.component_result(counts)
        numbers: Numbers = {}
        for key in ("siou_gt", "ppv", "mean_f1"):
            numbers[key,] = result[key]
        for tau, f1 in result["f1"].items():
            numbers["f1", tau] = f1
        return numbers

    def why(self, counts: Counts, name: NumberPath) -> str:
        return smiyc.UNDEFINED[name[0]]


PartBuilder = Callable[
    [Sequence[str], Sequence[str], Sequence[AnomalyProtocol]], Sequence[ArrayPart]
]
"""Makes parts of the names of scores, of classes and of anomaly protocols, each empty where there
is none.
"""


def _anomaly_parts(
    scores: Sequence[str], classes: Sequence[str], protocols: Sequence[AnomalyProtocol]
) -> list[ArrayPart]:
    part_of_protocol: dict[AnomalyProtocol, type[AnomalyPart]] = {
        "pooled": Pooled,
        "per-image": PerImage,
        "smiyc": Smiyc,
    }
    parts: list[ArrayPart] = []
    for score in scores:
        parts += [part_of_protocol[protocol](score) for protocol in protocols]
    return parts


def _segmentation_parts(
    scores: Sequence[str], classes: Sequence[str], protocols: Sequence[AnomalyProtocol]
) -> list[ArrayPart]:
    return [Segmentation(classes)]


def _calibration_parts(
    scores: Sequence[str], classes: Sequence[str], protocols: Sequence[AnomalyProtocol]
) -> list[ArrayPart]:
    return [ConfidenceCalibration(), ProbabilityCalibration()]


def _selective_parts(
    scores: Sequence[str], classes: Sequence[str], protocols: Sequence[AnomalyProtocol]
) -> list[ArrayPart]:
    if not classes:
        return []
    return [Selective(score) for score in scores]


def _set_parts(
    scores: Sequence[str], classes: Sequence[str], protocols: Sequence[AnomalyProtocol]
) -> list[ArrayPart]:
    if not classes or SetCoverage.score not in scores:
        return []
    return [SetCoverage()]


_BUILT_IN: dict[str, PartBuilder | str] = {
    "anomaly": _anomaly_parts,
    "segmentation": _segmentation_parts,
    "calibration": _calibration_parts,
    "selective": _selective_parts,
    "patches": "segunc.evaluation.patches:patch_parts",
    "sets": _set_parts,
    "frames": "segunc.evaluation.ranked_frames:frame_parts",
}
PARTS: Registry[PartBuilder] = Registry("metric part", "segunc.metrics", _BUILT_IN)
"""What an evaluation counts; other packages add sections to ``metrics.json``."""


def registered_parts(
    scores: Sequence[str], classes: Sequence[str], protocols: Sequence[AnomalyProtocol]
) -> list[ArrayPart]:
    """Return the parts of :data:`PARTS`, in its order."""
    parts: list[ArrayPart] = []
    for build in PARTS.values():
        parts += build(scores, classes, protocols)
    return parts


def example_parts() -> list[ArrayPart]:
    """Return the parts of one score and one class.

    The metrics of a part depend on neither.
    """
    return registered_parts(("score",), ("class",), PROTOCOLS)
