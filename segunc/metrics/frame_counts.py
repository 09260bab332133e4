"""The counts of one frame, checked whole: either all of them are made or an InputError says why not."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from segunc.data.labels import IGNORE
from segunc.errors import InputError
from segunc.maps.encoding import UNIT_SCORES, decode_unit, keys_to_half, score_keys
from segunc.metrics.pixel_curves import Counts, count_keys
from segunc.metrics.probability_sums import probability_scores
from segunc.metrics.segmentation import Matrix, confusion_matrix

Array = npt.NDArray[Any]
CONFIDENCE = "msp"
"""The score whose complement is the confidence of the prediction: msp = 1 - max_c mean p_c."""


@dataclass(frozen=True)
class LabelledMaps:
    """What is known of one frame; every array has the same ``[H, W]``.

    Attributes:
        name: the frame's name.
        stored: score name -> map in its stored form: uint16 or uint8 codes, or floats (taken as float16).
        prediction: class ids, uint8.
        mean_probabilities: ``[C, H, W]`` float32, mean over the draws.
        labels: train ids, uint8, 255 ignored.
        anomaly: uint8, 0 normal, 1 anomaly, 255 ignored.
    """

    name: str
    stored: Mapping[str, Array]
    prediction: Array | None = None
    mean_probabilities: Array | None = None
    labels: Array | None = None
    anomaly: Array | None = None


@dataclass(frozen=True)
class FrameCounts:
    """The counts of one frame; None where its inputs lack.

    Attributes:
        forms: score name -> form of its stored map (see :func:`stored_form`).
        scores: score name -> int64 ``[2, 65536]`` pixels by key, row 1 anomalous.
        anomaly_pixels: int64 ``[3]``: normal, anomalous and ignored pixels of the anomaly label.
        matrix: int64 ``[C, C]`` confusion matrix.
        ignored: ignored pixels of the class label.
        failures: int64 ``[2, 65536]`` labelled pixels by key of the confidence score, row 1 wrongly predicted.
        probability_sums: int64 ``[3]`` of :func:`segunc.metrics.probability_sums.probability_scores`.
    """

    forms: Mapping[str, str] = field(default_factory=dict)
    scores: Mapping[str, Counts] = field(default_factory=dict)
    anomaly_pixels: npt.NDArray[np.int64] | None = None
    matrix: Matrix | None = None
    ignored: int = 0
    failures: Counts | None = None
    probability_sums: npt.NDArray[np.int64] | None = None


def count_frame(maps: LabelledMaps, scores: Sequence[str], classes: int) -> FrameCounts:
    """Count one frame.

    Args:
        maps: the frame.
        scores: names of the scores to count where there is an anomaly label.
        classes: C, the number of classes; 0 where class labels are not evaluated.

    Raises:
        InputError: a map lacks, differs in size from the label, or holds values that it may not hold.
    """
    check_sizes(maps)
    forms: dict[str, str] = {}
    counts: dict[str, Counts] = {}
    pixels = None
    if maps.anomaly is not None:
        pixels = count_anomaly_labels(maps.anomaly)
        counted = maps.anomaly != IGNORE
        truth = maps.anomaly[counted]
        for name in scores:
            if name not in maps.stored:
                raise InputError(f"there is no map '{name}'", "a map of every score that is evaluated")
            forms[name] = stored_form(maps.stored[name])
            counts[name] = count_keys(_keys(name, maps.stored[name][counted]), truth)
    if maps.labels is None or maps.prediction is None:
        return FrameCounts(forms, counts, pixels)
    if maps.prediction.dtype != np.uint8:
        raise InputError(f"the prediction is {maps.prediction.dtype}", "uint8 class ids", "convert it")
    matrix = confusion_matrix(maps.labels, maps.prediction, classes)
    failures, sums = None, None
    if CONFIDENCE in maps.stored:
        forms[CONFIDENCE] = stored_form(maps.stored[CONFIDENCE])
        failures = count_failures(maps.stored[CONFIDENCE], maps.prediction, maps.labels)
    if maps.mean_probabilities is not None:
        if len(maps.mean_probabilities) != classes:
            raise InputError(f"probabilities of {len(maps.mean_probabilities)} classes", f"{classes} classes")
        sums = probability_scores(maps.mean_probabilities, maps.labels)
    return FrameCounts(forms, counts, pixels, matrix, maps.labels.size - int(matrix.sum()), failures, sums)


def check_sizes(maps: LabelledMaps) -> None:
    """Raise InputError where a frame has no label, or a map or label of another size than its (first) label."""
    truth = maps.anomaly if maps.anomaly is not None else maps.labels
    if truth is None:
        raise InputError("there is neither an anomaly label nor a class label")
    sizes = {f"the map '{name}'": values.shape for name, values in maps.stored.items()}
    if maps.prediction is not None:
        sizes["the prediction"] = maps.prediction.shape
    if maps.mean_probabilities is not None:
        sizes["the probability map"] = maps.mean_probabilities.shape[1:]
    if maps.labels is not None:
        sizes["the class label"] = maps.labels.shape
    for what, size in sizes.items():
        if size != truth.shape:
            raise InputError(
                f"frame {maps.name}: {what} is {_in_words(size)}",
                f"{_in_words(truth.shape)}, the size of the label",
                "predict at the labels' size, or give the labels that belong to these maps",
            )


def count_anomaly_labels(anomaly: Array) -> npt.NDArray[np.int64]:
    """Numbers of normal, anomalous and ignored pixels, int64 ``[3]``, of a label of 0, 1 and 255.

    Raises:
        InputError: another value occurs.
    """
    if anomaly.dtype != np.uint8:
        raise InputError(f"an anomaly label of type {anomaly.dtype}", "uint8")
    values = np.bincount(anomaly.ravel(), minlength=256)
    if values[2:IGNORE].any():
        unknown = (np.flatnonzero(values[2:IGNORE]) + 2)[:8].tolist()
        raise InputError(f"an anomaly label holds the values {unknown}", "0 normal, 1 anomaly, 255 ignored")
    return values[[0, 1, IGNORE]].astype(np.int64)


def count_failures(confidence_score: Array, prediction: Array, labels: Array) -> Counts:
    """Labelled pixels by key of the confidence score, int64 ``[2, 65536]``; row 1 wrongly predicted.

    Raises:
        InputError: a float map of the score leaves 0..1, so that its complement is no probability.
    """
    counted = labels != IGNORE
    values = confidence_score[counted]
    if np.issubdtype(values.dtype, np.floating) and values.size and not (values.min() >= 0 and values.max() <= 1):
        raise InputError(f"the map '{CONFIDENCE}' leaves 0..1", "1 - max probability", "repair the map")
    return count_keys(_keys(CONFIDENCE, values), labels[counted] != prediction[counted])


def stored_form(stored: Array) -> str:
    """How a map is stored: ``uint16``, ``uint8`` or ``float``. Keys of different forms cannot be compared."""
    return "float" if np.issubdtype(stored.dtype, np.floating) else str(stored.dtype)


def decode_keys(score: str, form: str, keys: npt.NDArray[np.uint16]) -> npt.NDArray[np.float32]:
    """The score values of keys, in the units in which maps are read and shown; the shape of ``keys``.

    uint16 codes of this tool's scores in 0..1 are (code / 65535)^2; other whole numbers are taken as linear, 0..1 over
    the range of their type; floats are what they were, rounded to float16.
    """
    if form == "float":
        return keys_to_half(keys).astype(np.float32)
    if form == "uint16" and score in UNIT_SCORES:
        return decode_unit(keys)
    return keys.astype(np.float32) / np.float32(np.iinfo(form).max)


def _keys(name: str, stored: Array) -> npt.NDArray[np.uint16]:
    try:
        return score_keys(stored)
    except InputError as error:
        raise InputError(f"the map '{name}': {error.given}", error.expected, error.remedy) from error


def _in_words(size: tuple[int, ...]) -> str:
    return " x ".join(map(str, size))
