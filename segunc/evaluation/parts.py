"""The sections of ``metrics.json``: each counts frames, adds counts, and makes numbers of the sum
of all frames and of every bootstrap replicate, of which many are kept, in a coarser form.

A part is a section, metrics, two words on what it needs, ``count`` and ``numbers``;
:class:`Segmentation` is a short one.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache, cached_property, lru_cache, partial
from typing import Any, ClassVar, Literal, get_args

import numpy as np
import numpy.typing as npt

from segunc.core.errors import InputError
from segunc.core.registry import Registry
from segunc.data.labels import IGNORE, UNKNOWN
from segunc.evaluation.resampling import NumberPath
from segunc.maps.encoding import decode_stored, decode_unit, keys_to_half
from segunc.metrics import counting, prediction, smiyc
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
AnomalyProtocol = Literal["pooled", "smiyc"]
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
    must hold them exactly. InputError where there is no label, sizes differ, or a label or the
    prediction holds what it may not hold.
    """

    name: str
    stored: Mapping[str, Array]  # score -> map in its stored form: uint16 or uint8 codes, or floats
    prediction: Array | None = None  # class ids, uint8
    mean_probabilities: Array | None = None  # [C, H, W] float32, mean over the draws
    labels: Array | None = None  # train ids, uint8, 255 ignored
    anomaly: Array | None = None  # uint8, 0 normal, 1 anomaly, 255 ignored
    # Scores whose uint16 are (code / 65535)^2, others are linear; None: as this tool stores them.
    unit_codes: Collection[str] | None = None
    bins: Mapping[str, ScoreBins] = field(default_factory=dict)
    smallest_object: int = SMALLEST_OBJECT  # pixels of a labelled object
    anomaly_pixels: Counts = field(
        init=False
    )  # int64 [3] normal, anomalous and ignored; zeros without a label
    _counts: dict[tuple[str, str], Counts] = field(init=False, default_factory=dict, repr=False)

    def __post_init__(self) -> None:
        self._check_sizes()
        self.anomaly_pixels = np.zeros(3, np.int64)
        if self.anomaly is not None:
            check_anomaly_labels(self.anomaly)
            self.anomaly_pixels = np.bincount(self.anomaly.ravel(), minlength=256)[
                [0, 1, IGNORE]
            ].astype(np.int64)

    def form(self, name: str) -> Form:
        """Return how a map is stored; keys of different forms cannot be compared."""
        if name not in self.stored:
            raise InputError(
                f"there is no map '{name}', but every score that is evaluated needs one"
            )
        stored = self.stored[name]
        if np.issubdtype(stored.dtype, np.floating):
            return self.bins.get(name, "float")
        as_codes = stored_as_codes(name) if self.unit_codes is None else name in self.unit_codes
        return "unit-code" if stored.dtype == np.uint16 and as_codes else str(stored.dtype)

    def values(self, name: str) -> npt.NDArray[np.floating]:
        """Return the map of a score in real units, ``[H, W]``, floats as they are stored."""
        if np.issubdtype(self.stored[name].dtype, np.floating):
            return self.stored[name]
        return decode_stored(
            self.stored[name], "unit-code" if self.form(name) == "unit-code" else "linear"
        )

    def benchmark_scores(self, name: str) -> npt.NDArray[np.floating]:
        """Return the map of a score ``[H, W]`` as a file of the benchmark SegmentMeIfYouCan holds
        it: floats that 16 bits cannot hold and the codes of other tools by their values, all others
        as float16."""
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
        """Count pixels by key or bin of a score, int64 ``[2, K]``, row 1 anomalous; None without an
        anomaly label.
        """
        return None if self.anomaly is None else self._count("anomaly", name, self.anomaly)

    def keys(self, name: str, mask: npt.NDArray[np.bool_]) -> tuple[npt.NDArray[np.integer], int]:
        """Return the keys or bins of a score of the pixels of a mask, ``[n]``, and how many there
        are of either.
        """
        return counting.rank(self.stored[name][mask], self.bins.get(name))

    @cached_property
    def wrong(self) -> npt.NDArray[np.uint8] | None:
        """Whether the prediction of each pixel is wrong, uint8 ``[H, W]``, 255 unlabelled; None
        without class labels or prediction.
        """
        if self.labels is None or self.prediction is None:
            return None
        return np.where(
            self.labels == IGNORE, np.uint8(IGNORE), self.labels != self.prediction
        ).astype(np.uint8)

    def failure_counts(self, name: str) -> Counts | None:
        """Count labelled pixels by key or bin of a score, int64 ``[2, K]``, row 1 wrongly
        predicted; None where something lacks.
        """
        if self.wrong is None or name not in self.stored:
            return None
        return self._count("failure", name, self.wrong)

    def confidence_counts(self) -> Counts | None:
        """Count as :meth:`failure_counts` does by the confidence score; floats that 16 bits cannot
        hold become uint16 codes.
        """
        counts = self.failure_counts(CONFIDENCE)
        if counts is None or self.wrong is None or str(self.form(CONFIDENCE)) != "float":
            return counts
        values = np.where(self.wrong == IGNORE, 0, self.stored[CONFIDENCE])
        if values.size and not (values.min() >= 0 and values.max() <= 1):
            raise InputError(
                f"the map '{CONFIDENCE}' leaves 0..1, so that it is not 1 - max probability"
            )
        wide = isinstance(self.form(CONFIDENCE), ScoreBins)
        return (
            count_scores(np.rint(values * 65535).astype(np.uint16), self.wrong) if wide else counts
        )

    def _count(self, what: str, name: str, rows: Array) -> Counts:
        if (what, name) not in self._counts:
            form = self.form(name)
            count = form.count if isinstance(form, ScoreBins) else count_scores
            try:
                self._counts[what, name] = count(self.stored[name], rows)
            except InputError as error:
                raise error.within(f"the map '{name}'") from error
        return self._counts[what, name]

    def _check_sizes(self) -> None:
        truth = self.anomaly if self.anomaly is not None else self.labels
        if truth is None:
            raise InputError("there is neither an anomaly label nor a class label")
        arrays: dict[str, Array | None] = {
            f"the map '{name}'": values for name, values in self.stored.items()
        }
        arrays |= {"the prediction": self.prediction, "the class label": self.labels}
        arrays["the probability map"] = (
            None if self.mean_probabilities is None else self.mean_probabilities[0]
        )
        for what, array in arrays.items():
            if array is not None and array.shape != truth.shape:
                size, wanted = (" x ".join(map(str, shape)) for shape in (array.shape, truth.shape))
                hint = "predict at the labels' size, or give the labels that belong to these maps"
                raise InputError(
                    f"frame {self.name}: {what} is {size}, and the label is {wanted}", hint=hint
                )


def decode_keys(form: str, keys: npt.NDArray[np.integer]) -> npt.NDArray[np.floating]:
    """Return the score values of keys of maps in a form, as maps are read and shown."""
    codes = keys.astype(np.uint16)
    if form == "float":
        return keys_to_half(codes).astype(np.float32)
    if form == "unit-code":
        return decode_unit(codes)
    return keys.astype(np.float32) / np.float32(KEYS - 1)


@dataclass(frozen=True)
class Metric:
    """A number of a part: its key (``KEY.*`` for one number of each class), its title in tables,
    and which way is better, if any.
    """

    key: str
    title: str = ""
    higher_is_better: bool | None = None


higher, lower = (partial(Metric, higher_is_better=way) for way in (True, False))
AREAS = higher("auroc", "AUROC"), higher("aupr", "AUPR"), lower("fpr95", "FPR95")
DETECTION = (*AREAS, higher("best_f1", "best F1"), Metric("threshold", "threshold"))


def titles(metrics: Iterable[Metric]) -> dict[str, str]:
    """Return the title of each metric that has one, by its key."""
    return {metric.key: metric.title for metric in metrics if metric.title}


def coarse_keys(counts: Counts, bins: int) -> Counts:
    """Return counts by key or bin ``[..., K]`` with neighbouring ones merged to ``[..., bins]``."""
    width = -(-counts.shape[-1] // bins)
    padding = [(0, 0)] * (counts.ndim - 1) + [(0, bins * width - counts.shape[-1])]
    return np.asarray(
        np.pad(counts, padding).reshape(*counts.shape[:-1], bins, width).sum(-1), np.int64
    )


@cache
def keys_of(bins: int) -> npt.NDArray[np.uint16]:
    """Return the key that each of so many bins of neighbouring keys stands for, the middle one,
    uint16 ``[bins]``.
    """
    return np.arange(KEYS // bins // 2, KEYS, KEYS // bins).astype(np.uint16)


@lru_cache(maxsize=32)
def values_of(form: Form, bins: int) -> npt.NDArray[np.floating]:
    """Return the score that each of so many bins of neighbouring keys of a form stands for,
    ``[bins]``.
    """
    if isinstance(form, ScoreBins):
        width = -(-len(form.edges) // bins)
        return np.asarray(
            form.edges[np.minimum(np.arange(bins) * width + width // 2, len(form.edges) - 1)]
        )
    return decode_keys(form, keys_of(bins))


class ArrayPart(ABC):
    """One section of a result; its counts are an int64 array where nothing else is said."""

    section: NumberPath  # its place in metrics.json
    metrics: Sequence[Metric] = ()
    needs: str  # the kind of label it needs, ``anomaly`` or ``class``
    lacks: str  # why all its numbers are None where :meth:`count` gave no counts of any frame
    undefined: str = (
        "its counts define no number"  # why a number is None where the counts define none
    )
    point: frozenset[NumberPath] = (
        frozenset()
    )  # numbers without an interval, thresholds for instance
    rows: int = 0  # of counts by key or bin, which bins are sized for
    batch: int = 1  # frames whose counts are kept before they are combined
    coarse: ClassVar[int | None] = (
        None  # bins that replicates keep of counts by key or bin [2, K]; None: all as it is
    )

    @cached_property
    def names(self) -> Sequence[NumberPath]:  # of its numbers below the section
        return tuple((metric.key,) for metric in self.metrics)

    @abstractmethod
    def count(self, frame: LabelledFrame) -> Any:
        """Return the counts of a frame, None where it lacks what the part needs."""

    def finish(self) -> Iterable[tuple[str, Any]]:
        """Return counts that no frame could give alone, of tracks for instance, each with the frame
        whose unit they belong to. This ends what is being followed, so that asking twice counts
        nothing twice.
        """
        return ()

    @abstractmethod
    def numbers(self, counts: Any, forms: Forms) -> Numbers:
        """Return the numbers of summed counts; None where the counts define none."""

    def numbers_of_many(self, coarse: npt.NDArray[np.float64], forms: Forms) -> ManyNumbers:
        """Return the numbers ``[R]`` of R coarse counts ``[R, ...]``, NaN where one defines none;
        those that have no interval may be left out.
        """
        rows = [self.numbers(self.refine(counts), forms) for counts in coarse.astype(np.int64)]
        return {
            name: np.array([row[name] for row in rows], np.float64) for name in rows[0]
        }  # None becomes NaN

    def why(self, counts: Any, name: NumberPath) -> str:
        """Return why a number of these summed counts is None."""
        return self.undefined

    def combine(self, counts: Sequence[Any]) -> Any:
        return np.asarray(sum(counts), np.int64)

    def coarsen(self, counts: Any) -> Counts:
        """Return counts in the form in which replicates are kept: whole numbers of a fixed shape
        that add.
        """
        return counts if self.coarse is None else coarse_keys(counts, self.coarse)

    def refine(self, coarse: Counts) -> Any:
        """Return counts whose :meth:`coarsen` is ``coarse``; of counts by key :func:`values_of`
        gives the values.
        """
        return coarse


class AnomalyPart(ArrayPart):
    needs, lacks = "anomaly", NO_ANOMALY_LABEL
    metrics: Sequence[Metric] = DETECTION
    protocol: ClassVar[AnomalyProtocol]

    def __init__(self, score: str) -> None:
        self.score, self.section = score, ("scores", score, self.protocol)


class Pooled(AnomalyPart):
    """All pixels of the set in one pool; equal scores are one threshold. ``thresholds`` are the
    highest that reach a recall.
    """

    protocol, point = "pooled", frozenset({("threshold",), *_AT_RECALL})
    coarse, rows = COARSE_KEYS, 2

    names = (*((metric.key,) for metric in DETECTION), *_AT_RECALL)

    def count(self, frame: LabelledFrame) -> Counts | None:
        return frame.anomaly_counts(self.score)

    def numbers(self, counts: Counts, forms: Forms) -> Numbers:
        curve = detection_curve(counts)
        best = counting.best_f1(curve)
        if best is None:
            return dict.fromkeys(self.names)
        keys = [
            best[1],
            *(curve.thresholds[np.argmax(curve.recall >= recall)] for recall in RECALLS),
        ]
        thresholds = values_of(forms[self.score], counts.shape[-1])[
            np.array(keys, np.int64)
        ].tolist()
        return dict(zip(self.names, (*counting.areas(curve), best[0], *thresholds), strict=True))

    def numbers_of_many(self, coarse: npt.NDArray[np.float64], forms: Forms) -> ManyNumbers:
        normal, anomalous = coarse.swapaxes(0, 1)
        areas = counting.numbers_of_many(normal, anomalous, counting.at_or_above(normal))
        return dict(zip(self.names, areas, strict=False))  # without the thresholds

    def why(self, counts: Counts, name: NumberPath) -> str:
        return str(detection_curve(counts).undefined)


class PooledGroup(Pooled):
    """The pooled numbers of the frames of one group."""

    def __init__(self, score: str, group: str, members: Collection[str]) -> None:
        super().__init__(score)
        self.group, self.members, self.section = (
            group,
            members,
            ("scores", score, "groups", group, "pooled"),
        )

    def count(self, frame: LabelledFrame) -> Counts | None:
        return super().count(frame) if frame.name in self.members else None


class ByObject(ArrayPart):
    """The pooled numbers of the objects of each bin against all normal pixels, and the share of
    them that is found; see :mod:`segunc.metrics.objects`. Its counts are ``[1 + 2 B, K]`` by key or
    bin: normal pixels, then those of ``object_counts``.
    """

    needs, lacks = "anomaly", NO_ANOMALY_LABEL
    metrics = (*AREAS, higher("found", "found"), *map(Metric, ("objects", "pixels")))
    coarse = COARSE_KEYS

    def __init__(self, score: str, bins: ObjectBins) -> None:
        self.score, self.bins, self.section = score, bins, ("scores", score, bins.kind)
        self.names = tuple((name, number) for name in bins.names for number in OBJECT_NUMBERS)
        self.rows = 1 + 2 * len(bins.names)
        self.point = frozenset(name for name in self.names if name[1] in ("objects", "pixels"))

    def count(self, frame: LabelledFrame) -> Counts | None:
        counts, objects = frame.anomaly_counts(self.score), frame.objects
        if counts is None or objects is None:
            return None
        keys, size = frame.keys(self.score, objects.number > 0)
        return np.concatenate([counts[:1], object_counts(keys, objects, self.bins, size)])

    def numbers(self, counts: Counts, forms: Forms) -> Numbers:
        rows = zip(self.bins.names, object_numbers(counts[0], counts[1:]), strict=True)
        return {(name, key): value for name, row in rows for key, value in row.items()}

    def numbers_of_many(self, coarse: npt.NDArray[np.float64], forms: Forms) -> ManyNumbers:
        numbers = object_numbers_of_many(coarse).reshape(-1, len(coarse))
        return dict(
            zip([name for name in self.names if name not in self.point], numbers, strict=True)
        )

    def why(self, counts: Counts, name: NumberPath) -> str:
        return NO_OBJECT if counts[0].any() else counting.NO_NORMAL


class Smiyc(AnomalyPart):
    """SegmentMeIfYouCan's pixel protocol: quantile bins of the scores of each frame, pooled by
    their lower edges; the scores are those of :meth:`LabelledFrame.benchmark_scores`."""

    protocol, point = "smiyc", frozenset({("threshold",)})
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
    needs, lacks = "class", "no frame has both class labels and a prediction"

    def __init__(self, classes: Sequence[str]) -> None:
        self.classes = classes
        self.names = (("miou",), ("accuracy",), *(("per_class", name) for name in classes))

    def count(self, frame: LabelledFrame) -> Counts | None:
        if frame.labels is None or frame.prediction is None:
            return None
        return prediction.confusion_matrix(frame.labels, frame.prediction, len(self.classes))

    def numbers(self, counts: Counts, forms: Forms) -> Numbers:
        iou = [None if np.isnan(value) else float(value) for value in prediction.class_iou(counts)]
        return dict(
            zip(
                self.names,
                (prediction.mean_iou(counts), prediction.accuracy(counts), *iou),
                strict=True,
            )
        )

    def why(self, counts: Counts, name: NumberPath) -> str:
        return "the class is in neither labels nor predictions" if counts.any() else ALL_IGNORED


class ConfidenceCalibration(ArrayPart):
    """Calibration of the confidence 1 - msp, from counts by its key."""

    section, names = ("calibration",), (("ece",),)
    metrics = (
        lower("ece", "ECE"),
        lower("debiased_ece"),
    )  # the last is read from stored results alone
    needs, lacks = "class", f"no labelled frame has a prediction and a map '{CONFIDENCE}'"
    coarse, undefined = COARSE_KEYS, ALL_IGNORED

    def count(self, frame: LabelledFrame) -> Counts | None:
        return frame.confidence_counts()

    def numbers(self, counts: Counts, forms: Forms) -> Numbers:
        bins = prediction.bin_counts(counts, confidence_of(forms[CONFIDENCE], counts.shape[-1]))
        return {("ece",): prediction.expected_calibration_error(bins)}


def reliability(counts: Counts, forms: Forms) -> list[list[float]]:
    """Return mean confidence, accuracy and pixels of each bin of confidence that holds a pixel."""
    bins = prediction.bin_counts(counts, confidence_of(forms[CONFIDENCE], counts.shape[-1]))
    pixels, correct, confidence = bins[:, bins[0] > 0]
    return np.stack([confidence / pixels, correct / pixels, np.rint(pixels)], 1).tolist()  # type: ignore[no-any-return]


def confidence_of(form: Form, bins: int) -> npt.NDArray[np.floating]:
    """Return the confidence 1 - msp of each key, or bin of keys, of
    :meth:`LabelledFrame.confidence_counts`, ``[bins]``.
    """
    with np.errstate(invalid="ignore"):  # keys that never occur may be signalling NaN
        return (1.0 - values_of("uint16" if isinstance(form, ScoreBins) else form, bins)).clip(
            0.0, 1.0
        )


class ProbabilityCalibration(ArrayPart):
    """NLL and Brier score, from the mean probabilities of all classes."""

    section = ("calibration",)
    metrics = lower("nll", "NLL (nats)"), lower("brier", "Brier")
    needs, undefined = "class", ALL_IGNORED
    lacks = "needs the mean probabilities of all classes, which maps on disk do not hold; evaluate with the model"

    def count(self, frame: LabelledFrame) -> Counts | None:
        if frame.mean_probabilities is None or frame.labels is None or frame.prediction is None:
            return None
        return prediction.probability_scores(frame.mean_probabilities, frame.labels)

    def numbers(self, counts: Counts, forms: Forms) -> Numbers:
        return dict(zip(self.names, prediction.mean_scores(counts), strict=True))


class SetCoverage(ArrayPart):
    """What sets of classes achieve: means over frames of the share of labelled pixels whose true
    class is ``outside`` of their set, and of the ``size`` of a set, which tells its classes, the
    most probable ones. Counts int64 ``[3]``: frames, and sums in fixed point.
    """

    score, section, metrics = (
        "set-size",
        ("sets",),
        (lower("outside", "true class outside"), Metric("size", "classes")),
    )
    needs, lacks, undefined = "class", ProbabilityCalibration.lacks, ALL_IGNORED

    def count(self, frame: LabelledFrame) -> Counts | None:
        if (
            frame.mean_probabilities is None
            or frame.labels is None
            or self.score not in frame.stored
        ):
            return None
        if not (known := frame.labels < UNKNOWN).any():
            return np.zeros(3, np.int64)
        probabilities, sizes = (
            frame.mean_probabilities[:, known],
            frame.stored[self.score][known].astype(np.float64),
        )
        of_true = np.take_along_axis(probabilities, frame.labels[known][None].astype(np.int64), 0)
        outside = (probabilities > of_true).sum(0) >= sizes
        return np.array(
            [
                1,
                *counting.to_fixed_point(
                    [outside.mean(), sizes.mean()], counting.STEPS_PER_FRACTION
                ),
            ]
        )

    def numbers(self, counts: Counts, forms: Forms) -> Numbers:
        return dict(
            zip(
                self.names,
                (counting.mean_of_fractions(of, counts[0]) for of in counts[1:]),
                strict=True,
            )
        )


class Selective(ArrayPart):
    """Selective prediction and failure detection: how a score tells rightly from wrongly predicted
    pixels.
    """

    metrics = (
        *(lower("aurc", "AURC"), higher("failure_auroc", "failure AUROC")),
        *(higher("failure_aupr", "failure AUPR"), lower("failure_fpr95")),
    )
    needs, coarse, rows = "class", COARSE_KEYS, 2

    def __init__(self, score: str) -> None:
        self.score, self.section = score, ("selective", score)
        self.lacks = f"no labelled frame has a prediction and a map '{score}'"

    def count(self, frame: LabelledFrame) -> Counts | None:
        return frame.failure_counts(self.score)

    def numbers(self, counts: Counts, forms: Forms) -> Numbers:
        return {(name,): value for name, value in prediction.selective_numbers(counts).items()}

    def why(self, counts: Counts, name: NumberPath) -> str:
        right, wrong = (bool(row.any()) for row in counts)
        kind = "wrongly predicted" if right else "rightly predicted" if wrong else ""
        return f"no pixel is {kind}" if kind else "no pixel has both a class label and a prediction"


class Components(ArrayPart):
    """The components of one track, at the best-F1 threshold of the ``smiyc`` protocol over the
    whole set, which replicates keep.
    """

    needs, lacks = "anomaly", NO_ANOMALY_LABEL
    metrics = (
        *map(higher, ("siou_gt", "ppv", "mean_f1"), ("sIoU_gt", "PPV", "mean F1")),
        higher("f1.*"),
    )
    names = (("siou_gt",), ("ppv",), ("mean_f1",), *(("f1", f"{tau:.2f}") for tau in smiyc.TAUS))

    def __init__(self, score: str, track: str, threshold: float) -> None:
        self.score, self.track, self.threshold = score, track, threshold
        self.section = ("scores", score, "components", track)

    def count(self, frame: LabelledFrame) -> Counts | None:
        if frame.anomaly is None:
            return None
        scores = frame.benchmark_scores(self.score)
        return smiyc.component_counts(scores, frame.anomaly, self.threshold, self.track)

    def numbers(self, counts: Counts, forms: Forms) -> Numbers:
        *values, f1 = smiyc.component_result(counts).values()
        return dict(zip(self.names, (*values, *f1.values()), strict=True))

    def why(self, counts: Counts, name: NumberPath) -> str:
        return smiyc.UNDEFINED[name[0]]


PartBuilder = Callable[
    [Sequence[str], Sequence[str], Sequence[AnomalyProtocol]], Sequence[ArrayPart]
]
"""From the names of scores, of classes and of anomaly protocols, each empty where there is none, to
parts.
"""
_ANOMALY_PARTS = {part.protocol: part for part in (Pooled, Smiyc)}
_OURS: dict[str, PartBuilder | str] = {
    "anomaly": lambda scores, classes, protocols: [
        _ANOMALY_PARTS[p](s) for s in scores for p in protocols
    ],
    "segmentation": lambda scores, classes, protocols: [Segmentation(classes)],
    "calibration": lambda scores, classes, protocols: [
        ConfidenceCalibration(),
        ProbabilityCalibration(),
    ],
    "selective": lambda scores, classes, protocols: [
        Selective(score) for score in scores if classes
    ],
    "sets": lambda scores, classes, protocols: (
        [SetCoverage()] if classes and SetCoverage.score in scores else []
    ),
    "frames": "segunc.evaluation.frames:frame_parts",
}
PARTS: Registry[PartBuilder] = Registry("metric part", "segunc.metrics", _OURS)
"""What an evaluation counts; other packages add sections to ``metrics.json``."""
