"""``segunc.score``: the numbers of ``segunc evaluate``, from arrays in memory."""

from __future__ import annotations

import copy
import html
from abc import ABC, abstractmethod
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeAlias, TypeVar, overload

from segunc.core.bounds import Bound, NonNegativeInt, Seed, check_value
from segunc.core.errors import InputError
from segunc.data.labels import IGNORE
from segunc.evaluation.arrays import HasScores, class_names, label_frames
from segunc.evaluation.evaluator import Evaluator, Measures, Result
from segunc.evaluation.from_arrays import anomaly_frames, class_frames, evaluate_arrays
from segunc.evaluation.parts import AnomalyProtocol, Pooled, Selective
from segunc.evaluation.resampling import Resampling
from segunc.metrics.counting import DetectionCurve, detection_curve
from segunc.metrics.objects import SMALLEST_OBJECT, ObjectBins
from segunc.metrics.prediction import RiskCoverage, risk_coverage
from segunc.scores import first_shown, title_of

if TYPE_CHECKING:
    import numpy.typing as npt
    from matplotlib.figure import Figure
    from torch import Tensor

    Array: TypeAlias = npt.NDArray[Any] | Tensor
    Maps: TypeAlias = (
        Array
        | HasScores
        | Sequence[Array]
        | Sequence[HasScores]
        | Mapping[str, Array]
        | Mapping[str, Sequence[Array]]
        | Mapping[str, HasScores]
    )
    Labels: TypeAlias = Array | Sequence[Array] | Mapping[str, Array]

R = TypeVar("R")
Name = TypeVar("Name", bound=str)
Interval = tuple[float, float]
Track = Literal["smiyc-anomaly", "smiyc-obstacle"]
Kind = Literal["size", "distance"]
Rows = list[tuple[str, float | None, Interval | None]]


@dataclass(frozen=True)
class PixelNumbers:
    """The numbers of a score by one protocol; None where they cannot be measured.

    Attributes:
        auroc: area under the ROC curve, 0..1.
        aupr: average precision, 0..1.
        fpr95: false positive rate at the highest threshold with a recall of at least 0.95.
        best_f1: largest F1 over all thresholds, 0..1.
        threshold: of best F1; a pixel is flagged at or above it.
    """

    auroc: float | None
    aupr: float | None
    fpr95: float | None
    best_f1: float | None
    threshold: float | None


@dataclass(frozen=True)
class ComponentNumbers:
    """The numbers of connected components; None where they cannot be measured.

    Attributes:
        siou_gt: mean sIoU of the labelled components, 0..1.
        ppv: mean share of a predicted component that lies on labelled ones, 0..1.
        mean_f1: mean F1 over the eleven thresholds 0.25, 0.30, ..., 0.75 on both.
        f1: F1 by such a threshold.
    """

    siou_gt: float | None
    ppv: float | None
    mean_f1: float | None
    f1: Mapping[str, float | None]


@dataclass(frozen=True, kw_only=True)
class _ScoreResult(ABC):
    """What results of both kinds of labels have in common."""

    score: str
    frames: int
    pixels: int
    intervals: Mapping[str, Interval] = field(default_factory=dict)
    reasons: Mapping[str, str] = field(default_factory=dict)
    content: Result = field(default_factory=dict, repr=False, compare=False)

    def to_dict(self) -> Result:
        """Return all numbers in the form of ``metrics.json``, which ``segunc evaluate`` writes.

        It can be written as JSON, and holds all scores.
        """
        return copy.deepcopy(self.content)

    @abstractmethod
    def _rows(self) -> Rows:
        """Return title, value and interval of each number of a table."""

    @abstractmethod
    def _title(self) -> str:
        """Return the line above the table."""

    def __repr__(self) -> str:
        rows = self._rows()
        width = max(len(title) for title, _, _ in rows)
        lines = [self._title()]
        for title, value, interval in rows:
            line = f"  {title:<{width}}  {_text(value)}"
            if interval is not None:
                line += f"  [{interval[0]:.4f}, {interval[1]:.4f}]"
            lines.append(line)
        for path, reason in self._shown_reasons():
            lines.append(f"  {path}: {reason}")
        return "\n".join(lines)

    def _repr_html_(self) -> str:
        head = "<tr><th></th><th>value</th><th>95 % interval</th></tr>"
        body = ""
        for title, value, interval in self._rows():
            bounds = "" if interval is None else f"{interval[0]:.4f} .. {interval[1]:.4f}"
            body += (
                f"<tr><th>{html.escape(title)}</th><td>{_text(value)}</td><td>{bounds}</td></tr>"
            )
        notes = ""
        for path, reason in self._shown_reasons():
            notes += f"<br>{html.escape(path)}: {html.escape(reason)}"
        caption = f"<caption>{html.escape(self._title())}{notes}</caption>"
        return f"<table>{caption}<thead>{head}</thead><tbody>{body}</tbody></table>"

    def _shown_reasons(self) -> Iterator[tuple[str, str]]:
        """Yield each reason once, with the numbers that it is of."""
        names: dict[str, list[str]] = {}
        titles = _ANOMALY_TITLES | _CLASS_TITLES
        for name, reason in self.reasons.items():
            names.setdefault(reason, []).append(titles.get(name, name))
        for reason, together in names.items():
            yield ", ".join(together), reason


@dataclass(frozen=True, kw_only=True, repr=False)
class AnomalyResult(_ScoreResult):
    """How well a score finds the pixels that are labelled as an anomaly.

    The fields are of one score; ``result["entropy"]`` has those of another. A number that cannot be
    measured is None, and ``reasons`` says why.

    Attributes:
        score: the score that the fields are of: ``anomaly`` where there is one, otherwise
            ``entropy``, otherwise the first.
        protocol: that pools the pixels of all frames: ``pooled`` or ``smiyc``.
        auroc: area under the ROC curve, 0..1.
        aupr: average precision, 0..1.
        fpr95: false positive rate at the highest threshold with a recall of at least 0.95.
        best_f1: largest F1 over all thresholds, 0..1.
        threshold: of best F1; a pixel is flagged at or above it.
        siou_gt: mean sIoU of the labelled components of the first track, 0..1.
        ppv: mean share of a predicted component that lies on labelled ones, 0..1.
        component_f1: F1 of components, mean over the thresholds 0.25, 0.30, ..., 0.75.
        frames: how many were counted.
        pixels: labelled pixels that were counted, normal or anomalous.
        anomaly_pixels: the anomalous ones among them.
        ignored_pixels: pixels that were not counted.
        intervals: 95 % interval of each number by its name, from a bootstrap over frames.
        reasons: why a number is None, or has no interval, by its name.
        protocols: the numbers of each protocol.
        components: the numbers of each track.
        content: as :meth:`to_dict` returns it.

    >>> import numpy as np, segunc
    >>> labels = np.array([[0, 0, 1], [0, 1, 255]])
    >>> result = segunc.score(np.array([[0.1, 0.4, 0.3], [0.2, 0.9, 0.0]]), labels)
    >>> result.auroc, result.best_f1, result.anomaly_pixels, result.ignored_pixels
    (0.8333333333333333, 0.8, 2, 1)
    >>> result.siou_gt, result.reasons["siou_gt"]
    (None, 'no labelled component is large enough')
    """

    protocol: str
    auroc: float | None
    aupr: float | None
    fpr95: float | None
    best_f1: float | None
    threshold: float | None
    siou_gt: float | None = None
    ppv: float | None = None
    component_f1: float | None = None
    anomaly_pixels: int = 0
    ignored_pixels: int = 0
    protocols: Mapping[str, PixelNumbers] = field(default_factory=dict, repr=False)
    components: Mapping[str, ComponentNumbers] = field(default_factory=dict, repr=False)
    _curve: DetectionCurve | None = field(default=None, init=False, compare=False)
    _others: Mapping[str, AnomalyResult] = field(default_factory=dict, init=False, compare=False)

    @property
    def scores(self) -> tuple[str, ...]:
        """The names of all scores that were evaluated; the first is that of the fields."""
        return (self.score, *self._others)

    def __getitem__(self, score: str) -> AnomalyResult:
        """Return the numbers of another score."""
        return self if score == self.score else _other(self._others, score, self.scores)

    def plot(self, kind: Literal["roc", "precision-recall"] = "roc") -> Figure:
        """Draw the curves of all scores over the pixels of all frames.

        Raises:
            InputError: there is no curve, because no pixel is an anomaly, or none is normal.
        """
        from segunc.plots import (
            precision_recall_figure,
            precision_recall_line,
            roc_figure,
            roc_line,
        )

        curves: dict[str, DetectionCurve] = {}
        for score in self.scores:
            curve = self[score]._curve
            if curve is None:
                raise InputError(
                    "there is no curve to plot without the protocol pooled",
                    hint="score(..., protocols=['pooled'])",
                )
            if curve.undefined:
                raise InputError(f"there is no curve to plot: {curve.undefined}")
            curves[score] = curve
        if kind == "roc":
            return roc_figure(
                [
                    roc_line(score, curve, place)
                    for place, (score, curve) in enumerate(curves.items())
                ]
            )
        if kind != "precision-recall":
            raise InputError(f"kind is '{kind}'", hint="kind='roc' or kind='precision-recall'")
        return precision_recall_figure(
            [
                precision_recall_line(score, curve, place)
                for place, (score, curve) in enumerate(curves.items())
            ],
            self.anomaly_pixels / self.pixels,
        )

    def _title(self) -> str:
        return (
            f"{title_of(self.score)}: {_number(self.anomaly_pixels)} anomalous of "
            f"{_number(self.pixels)} pixels, {_number(self.frames, 'frame')}"
        )

    def _rows(self) -> Rows:
        rows = []
        for name, title in _ANOMALY_TITLES.items():
            value = getattr(self, name)
            if value is not None or name in _PIXEL_NUMBERS or self.components:
                rows.append((title, value, self.intervals.get(name)))
        for score in self.scores[1:]:
            other = self[score]
            rows.append((f"AUROC of {title_of(score, False)}", other.auroc, None))
        return rows


@dataclass(frozen=True, kw_only=True, repr=False)
class ClassResult(_ScoreResult):
    """How well classes are predicted, and how well a score finds the pixels that are wrong.

    A number that cannot be measured is None, and ``reasons`` says why.

    Attributes:
        score: the score that ``aurc`` and the numbers of failures are of, as for
            :class:`AnomalyResult`; empty without one.
        miou: mean intersection over union of the classes that occur, 0..1.
        accuracy: share of the pixels whose class is right, 0..1.
        class_iou: intersection over union of each class; None for a class that does not occur.
        ece: expected calibration error, 15 bins, 0..1.
        adaptive_ece: the same, in 15 bins that hold equally many pixels, 0..1.
        nll: mean negative log-likelihood in nats.
        brier: mean Brier score, 0..2.
        aurc: area under the risk-coverage curve, 0..1.
        ause: area under the sparsification error curve; 0 is perfect.
        failure_auroc: AUROC of the score, with wrongly predicted pixels as the positives.
        failure_aupr: their average precision.
        failure_fpr95: their false positive rate at 95 % recall.
        pavpu: share of 4 x 4 patches that are predicted rightly and certain, or wrongly and
            uncertain, 0..1.
        frames: how many were counted.
        pixels: labelled pixels that were counted.
        ignored_pixels: pixels that were not counted.
        intervals: 95 % interval of each number by its name, from a bootstrap over frames.
        reasons: why a number is None, or has no interval, by its name.
        content: as :meth:`to_dict` returns it.

    >>> import numpy as np, segunc
    >>> labels = np.array([[0, 0, 1], [1, 1, 255]])
    >>> result = segunc.score(np.array([[0, 0, 1], [1, 0, 0]]), labels, classes=["road", "car"])
    >>> result.accuracy, result.class_iou["car"], result.nll
    (0.8, 0.6666666666666666, None)
    """

    miou: float | None
    accuracy: float | None
    class_iou: Mapping[str, float | None]
    ece: float | None
    adaptive_ece: float | None
    nll: float | None
    brier: float | None
    aurc: float | None = None
    ause: float | None = None
    failure_auroc: float | None = None
    failure_aupr: float | None = None
    failure_fpr95: float | None = None
    pavpu: float | None = None
    ignored_pixels: int = 0
    _curve: RiskCoverage | None = field(default=None, init=False, compare=False)
    _others: Mapping[str, ClassResult] = field(default_factory=dict, init=False, compare=False)

    @property
    def scores(self) -> tuple[str, ...]:
        """The names of all scores that were evaluated; the first is that of the fields."""
        return (self.score, *self._others) if self.score else ()

    def __getitem__(self, score: str) -> ClassResult:
        """Return the numbers of another score."""
        return self if score == self.score else _other(self._others, score, self.scores)

    def plot(self, kind: Literal["reliability", "risk-coverage"] = "reliability") -> Figure:
        """Draw accuracy over confidence, or the risk over the coverage of all scores.

        Raises:
            InputError: there is no such curve.
        """
        import numpy as np

        from segunc import plots

        if kind == "reliability":
            bins = self.content["calibration"].get("reliability")
            if not bins:
                raise InputError(f"there is nothing to plot: {self.reasons['ece']}")
            confidence, accuracy, _ = np.transpose(bins)
            return plots.reliability_figure(
                plots.Line("prediction", confidence, accuracy, self.ece)
            )
        if kind != "risk-coverage":
            raise InputError(f"kind is '{kind}'", hint="kind='reliability' or kind='risk-coverage'")
        lines = []
        for place, score in enumerate(self.scores):
            curve = self[score]._curve
            if curve is not None and curve.total:
                lines.append(plots.risk_coverage_line(score, curve, place))
        if not lines:
            raise InputError("there is nothing to plot: no score has a labelled pixel")
        return plots.risk_coverage_figure(lines)

    def _title(self) -> str:
        return (
            f"{len(self.class_iou)} classes: {_number(self.pixels)} labelled pixels, "
            f"{_number(self.frames, 'frame')}"
        )

    def _rows(self) -> Rows:
        rows = []
        for name, title in _CLASS_TITLES.items():
            if name == "aurc" and self.score:
                title += f" of {title_of(self.score, False)}"
            rows.append((title, getattr(self, name), self.intervals.get(name)))
        return rows


_PIXEL_NUMBERS = ("auroc", "aupr", "fpr95", "best_f1", "threshold")
_COMPONENT_NUMBERS = {"siou_gt": "siou_gt", "ppv": "ppv", "component_f1": "mean_f1"}
_ANOMALY_TITLES = {
    "auroc": "AUROC",
    "aupr": "AUPR",
    "fpr95": "FPR95",
    "best_f1": "best F1",
    "threshold": "threshold of best F1",
    "siou_gt": "sIoU of components",
    "ppv": "PPV of components",
    "component_f1": "mean F1 of components",
}
_SEGMENTATION_NUMBERS = ("miou", "accuracy")
_CALIBRATION_NUMBERS = ("ece", "adaptive_ece", "nll", "brier")
_SELECTIVE_NUMBERS = ("aurc", "ause", "failure_auroc", "failure_aupr", "failure_fpr95", "pavpu")
_CLASS_TITLES = {
    "miou": "mean IoU",
    "accuracy": "pixel accuracy",
    "ece": "ECE",
    "nll": "NLL (nats)",
    "brier": "Brier",
    "aurc": "AURC",
}


@overload
def score(
    maps: Maps,
    labels: Labels,
    *,
    classes: None = None,
    scores: str | Sequence[str] | None = None,
    names: Sequence[str] | None = None,
    protocols: AnomalyProtocol | Sequence[AnomalyProtocol] = ("pooled",),
    components: Track | Sequence[Track] | None = ("smiyc-anomaly",),
    by: Kind | Sequence[Kind] = ("size",),
    smallest_object: int = SMALLEST_OBJECT,
    replicates: int = 2000,
    resample: str = "frame",
    seed: int = 0,
    ignore: int = IGNORE,
) -> AnomalyResult: ...


@overload
def score(
    maps: Maps,
    labels: Labels,
    *,
    classes: int | Sequence[str],
    prediction: Array | Sequence[Array] | None = None,
    probabilities: Array | Sequence[Array] | None = None,
    scores: str | Sequence[str] | None = None,
    names: Sequence[str] | None = None,
    replicates: int = 2000,
    resample: str = "frame",
    seed: int = 0,
    ignore: int = IGNORE,
) -> ClassResult: ...


def score(  # noqa: PLR0913 (the measures of `segunc evaluate`, all by name)
    maps: Maps,
    labels: Labels,
    *,
    classes: int | Sequence[str] | None = None,
    prediction: Array | Sequence[Array] | None = None,
    probabilities: Array | Sequence[Array] | None = None,
    scores: str | Sequence[str] | None = None,
    names: Sequence[str] | None = None,
    protocols: AnomalyProtocol | Sequence[AnomalyProtocol] = ("pooled",),
    components: Track | Sequence[Track] | None = ("smiyc-anomaly",),
    by: Kind | Sequence[Kind] = ("size",),
    smallest_object: int = SMALLEST_OBJECT,
    replicates: int = 2000,
    resample: str = "frame",
    seed: int = 0,
    ignore: int = IGNORE,
) -> AnomalyResult | ClassResult:
    """Measure how well scores find anomalies, or how well classes are predicted, from arrays.

    The counting is that of ``segunc evaluate``: on the arrays of a maps folder the numbers and
    intervals are the same to the last digit. Arrays are of NumPy, or of torch on any device.

    Args:
        maps: score maps ``[H, W]`` or ``[N, H, W]``, higher where an anomaly is likelier; a list
            of such arrays, which may differ in size; what a model returned, or a list of that. A
            mapping is from the names of scores, or from the names of frames where ``labels`` is a
            mapping from these. With ``classes`` arrays are class ids ``[H, W]`` or ``[N, H, W]``,
            or class probabilities ``[C, H, W]`` or ``[N, C, H, W]``. Scores of what a model
            returned are rounded to 16 bits, as a maps folder holds them. Arrays such as
            ``maps.entropy`` are counted as they are, so that their numbers may differ in the last
            digits.
        labels: of the same frames in the same order: 0 normal, 1 anomaly, 255 ignored, or
            booleans. With ``classes`` class ids.
        classes: number or names of the classes; None where labels are of anomalies.
        prediction: class ids where ``maps`` are scores.
        probabilities: class probabilities where ``maps`` are scores or class ids of a model.
        scores: name of the score of arrays that have none, or the scores of ``maps`` that are
            evaluated (default: all). A name of this package such as ``entropy`` says how its maps
            are stored: decoded maps are counted by their codes again.
        names: of the frames, which the replicates depend on (default: 000000, 000001, ...).
        protocols: that pool the pixels of all frames: ``pooled``, ``per-image``, ``smiyc``.
        components: tracks of components: ``smiyc-anomaly``, ``smiyc-obstacle``; None for none.
        by: also give numbers by the ``size`` or the ``distance`` of objects in :meth:`to_dict`.
        smallest_object: pixels of the smallest labelled object of ``by``.
        replicates: of the bootstrap for the intervals, 40 to 20,000; 0 makes none. Fewer than 15
            frames give no interval.
        resample: the unit of the bootstrap: ``frame``, ``folder``, or a regular expression that
            keeps frames with the same match in their names together.
        seed: of the bootstrap.
        ignore: the label of pixels that are not counted.

    Returns:
        An :class:`AnomalyResult`, or with ``classes`` a :class:`ClassResult`.

    Raises:
        InputError: sizes, types or values do not fit; the message names the argument and what it
            holds.

    >>> import numpy as np, segunc
    >>> maps = np.array([[[0.1, 0.4], [0.35, 0.8]]] * 2)
    >>> labels = np.array([[[0, 0], [1, 1]]] * 2)
    >>> segunc.score(maps, labels, components=None, replicates=0)
    Score: 4 anomalous of 8 pixels, 2 frames
      AUROC                 0.7500
      AUPR                  0.8333
      FPR95                 0.5000
      best F1               0.8000
      threshold of best F1  0.3500
    """
    protocols = _listed(protocols)
    components = _listed(components)
    by = _listed(by)
    _check_settings(
        {
            "protocols": protocols,
            "replicates": replicates,
            "seed": seed,
            "smallest_object": smallest_object,
            "ignore": ignore,
        }
    )
    label_of_frame = label_frames(_materialized(labels), _materialized(names))
    by_name = isinstance(labels, Mapping)
    chosen = None if scores is None else _listed(scores)
    measures = Measures(
        protocols=protocols,
        tracks=components,
        by=[ObjectBins.of(kind) for kind in by],
        smallest_object=smallest_object,
        resampling=Resampling(replicates, seed),
        resample=resample,
    )
    maps = _materialized(maps)
    if classes is None:
        if prediction is not None or probabilities is not None:
            raise InputError(
                "prediction and probabilities go with labels of classes",
                hint="add classes=NUMBER",
            )
        frames = anomaly_frames(maps, label_of_frame, chosen, ignore, by_name=by_name)
        result, evaluator = evaluate_arrays(frames, [*frames[0].scores], None, measures)
        evaluator.record_bootstrap(result, resample)
        return _anomaly_result(result, evaluator)
    class_list = class_names(classes)
    frames = class_frames(
        maps,
        label_of_frame,
        chosen,
        ignore,
        len(class_list),
        by_name=by_name,
        prediction=_materialized(prediction),
        probabilities=_materialized(probabilities),
    )
    names_of_scores = [*frames[0].scores] if chosen is None else chosen
    result, evaluator = evaluate_arrays(frames, names_of_scores, class_list, measures)
    evaluator.record_bootstrap(result, resample)
    return _class_result(result, evaluator)


_SETTINGS: Mapping[str, Any] = {
    "protocols": Sequence[AnomalyProtocol],
    "replicates": NonNegativeInt,
    "seed": Seed,
    "smallest_object": NonNegativeInt,
    "ignore": Annotated[int, Bound(least=-(2**31), most=2**31 - 1)],
}
"""The types of the arguments that a wrong value would pass in silence."""


def _check_settings(values: Mapping[str, Any]) -> None:
    """Raise InputError for an argument of another type or out of its bounds."""
    for name, value in values.items():
        check_value(f"`{name}`", value, _SETTINGS[name])
    if not values["protocols"]:
        raise InputError("`protocols` names none", hint='protocols=["pooled"]')


def _listed(names: str | Iterable[Any] | None) -> list[Any]:
    """Return names as a list, also where one name was given; None is none."""
    if names is None:
        return []
    return [names] if isinstance(names, str) else list(names)


def _materialized(value: Any) -> Any:
    """Return what an iterator yields as a list, and everything else as it is."""
    return list(value) if isinstance(value, Iterator) else value


def _anomaly_result(result: Result, evaluator: Evaluator) -> AnomalyResult:
    curves: dict[str, DetectionCurve] = {}
    for name, counts in evaluator.counts(Pooled).items():
        curves[name] = detection_curve(counts)
    results: dict[str, AnomalyResult] = {}
    for name in evaluator.score_names:
        results[name] = _of_score(result, name, evaluator.protocols)
        _keep(results[name], _curve=curves.get(name))
    main = results.pop(first_shown(results))
    _keep(main, _others=results)
    return main


def _keep(result: _ScoreResult, **hidden: Any) -> None:
    """Give a result what it shows only in another form."""
    for name, value in hidden.items():
        object.__setattr__(result, name, value)  # it is frozen


def _of_score(result: Result, score: str, protocols: Sequence[str]) -> AnomalyResult:
    section = result["scores"][score]
    by_protocol: dict[str, PixelNumbers] = {}
    for protocol in protocols:
        by_protocol[protocol] = PixelNumbers(
            **{name: section[protocol].get(name) for name in _PIXEL_NUMBERS}
        )
    components: dict[str, ComponentNumbers] = {}
    for track, numbers in section.get("components", {}).items():
        undefined: dict[str, Any] = {"siou_gt": None, "ppv": None, "mean_f1": None, "f1": {}}
        components[track] = ComponentNumbers(**(numbers or undefined))
    paths = {name: f"scores.{score}.{protocols[0]}.{name}" for name in _PIXEL_NUMBERS}
    # A mean over frames has no threshold.
    flat: dict[str, float | None] = {
        name: section[protocols[0]].get(name) for name in _PIXEL_NUMBERS
    }
    for track, track_numbers in list(components.items())[:1]:
        for name, key in _COMPONENT_NUMBERS.items():
            flat[name] = getattr(track_numbers, key)
            paths[name] = f"scores.{score}.components.{track}.{key}"
    counts = result["counts"]
    return AnomalyResult(
        score=score,
        protocol=protocols[0],
        frames=counts["frames_scored"],
        pixels=counts["pixels"],
        anomaly_pixels=counts["anomaly_pixels"],
        ignored_pixels=counts["ignored_pixels"],
        protocols=by_protocol,
        components=components,
        content=result,
        **_chances(result, paths),
        **flat,  # type: ignore[arg-type]
    )


def _class_result(result: Result, evaluator: Evaluator) -> ClassResult:
    counts_by_score = evaluator.counts(Selective)
    results: dict[str, ClassResult] = {}
    for name in evaluator.score_names:
        results[name] = _of_classes(result, name)
        counts = counts_by_score[name]
        if counts is not None:
            _keep(results[name], _curve=risk_coverage(counts))
    if not results:
        return _of_classes(result, "")
    main = results.pop(first_shown(results))
    _keep(main, _others=results)
    return main


def _of_classes(result: Result, score: str) -> ClassResult:
    paths: dict[str, str] = {}
    for name in _SEGMENTATION_NUMBERS:
        paths[name] = f"segmentation.{name}"
    for name in _CALIBRATION_NUMBERS:
        paths[name] = f"calibration.{name}"
    flat = {name: result["segmentation"][name] for name in _SEGMENTATION_NUMBERS}
    flat |= {name: result["calibration"][name] for name in _CALIBRATION_NUMBERS}
    if score:
        for name in _SELECTIVE_NUMBERS:
            paths[name] = f"selective.{score}.{name}"
            flat[name] = result["selective"][score][name]
    counts = result["counts"]
    return ClassResult(
        score=score,
        class_iou=result["segmentation"]["per_class"],
        frames=counts["frames_scored"],
        pixels=counts["labelled_pixels"],
        ignored_pixels=counts["ignored_label_pixels"],
        content=result,
        **_chances(result, paths),
        **flat,
    )


def _chances(result: Result, paths: Mapping[str, str]) -> dict[str, Any]:
    """Return the intervals and the reasons of numbers, by their names, from their paths."""
    intervals: dict[str, Interval] = {}
    reasons: dict[str, str] = {}
    no_interval = result["bootstrap"].get("no_interval", {})
    for name, path in paths.items():
        if path in result["intervals"]:
            low, high = result["intervals"][path]
            intervals[name] = (low, high)
        track = path.rpartition(".")[0]  # of a track without a threshold
        reason = result["reasons"].get(path) or result["reasons"].get(track)
        if reason:
            reasons[name] = reason
    why_none = {no_interval[path] for path in paths.values() if path in no_interval}
    if len(why_none) == 1 and not intervals:
        reasons["intervals"] = why_none.pop()
    else:
        for name, path in paths.items():
            if path in no_interval:
                reasons.setdefault(f"interval of {name}", no_interval[path])
    return {"intervals": intervals, "reasons": reasons}


def _other(results: Mapping[str, R], score: str, names: Collection[str]) -> R:
    if score not in results:
        raise InputError(f"there is no score '{score}'", hint=f"there are {', '.join(names)}")
    return results[score]


def _text(value: float | None) -> str:
    return "-" if value is None else f"{value:.4f}"


def _number(number: int, unit: str = "") -> str:
    plural = "s" if unit and number != 1 else ""
    return f"{number:,} {unit}{plural}".rstrip()
