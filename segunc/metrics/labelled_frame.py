"""One frame with its labels, checked whole, and the counts that the numbers are made of."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from segunc.data.labels import IGNORE
from segunc.errors import InputError
from segunc.maps.encoding import UNIT_SCORES, decode_unit, keys_to_half, score_keys
from segunc.metrics.pixel_curves import Counts, count_keys

Array = npt.NDArray[Any]
CONFIDENCE = "msp"
"""The score whose complement is the confidence of the prediction: msp = 1 - max_c mean p_c."""


@dataclass
class LabelledFrame:
    """What is known of one frame; every array has the same ``[H, W]``. Counts are made once and kept.

    Attributes:
        name: the frame's name.
        stored: score name -> map in its stored form: uint16 or uint8 codes, or floats (taken as float16).
        prediction: class ids, uint8.
        mean_probabilities: ``[C, H, W]`` float32, mean over the draws.
        labels: train ids, uint8, 255 ignored.
        anomaly: uint8, 0 normal, 1 anomaly, 255 ignored.

    Raises:
        InputError: there is no label, sizes differ, or a label or the prediction holds what it may not hold.
    """

    name: str
    stored: Mapping[str, Array]
    prediction: Array | None = None
    mean_probabilities: Array | None = None
    labels: Array | None = None
    anomaly: Array | None = None
    _anomaly_counts: dict[str, Counts] = field(default_factory=dict, repr=False)
    _failure_counts: dict[str, Counts] = field(default_factory=dict, repr=False)

    def __post_init__(self) -> None:
        self._check_sizes()
        self.anomaly_pixels = np.zeros(3, np.int64) if self.anomaly is None else count_anomaly_labels(self.anomaly)
        if self.prediction is not None and self.prediction.dtype != np.uint8:
            raise InputError(f"the prediction is {self.prediction.dtype}", "uint8 class ids", "convert it")

    def score(self, name: str) -> Array:
        """The stored map of a score.

        Raises:
            InputError: the frame has none.
        """
        if name not in self.stored:
            raise InputError(f"there is no map '{name}'", "a map of every score that is evaluated")
        return self.stored[name]

    def anomaly_counts(self, name: str) -> Counts | None:
        """Pixels by key of a score, int64 ``[2, 65536]``, row 1 anomalous; None without an anomaly label."""
        if self.anomaly is None:
            return None
        if name not in self._anomaly_counts:
            counted = self.anomaly != IGNORE
            keys = _keys(name, self.score(name)[counted])
            self._anomaly_counts[name] = count_keys(keys, self.anomaly[counted])
        return self._anomaly_counts[name]

    def failure_counts(self, name: str) -> Counts | None:
        """Labelled pixels by key of a score, int64 ``[2, 65536]``, row 1 wrongly predicted.

        None without class labels, without a prediction, or without a map of that score.

        Raises:
            InputError: a float map of the confidence score leaves 0..1, so that its complement is no probability.
        """
        if self.labels is None or self.prediction is None or name not in self.stored:
            return None
        if name not in self._failure_counts:
            counted = self.labels != IGNORE
            values = self.stored[name][counted]
            if name == CONFIDENCE and stored_form(values) == "float" and values.size:
                _check_probabilities(values)
            wrong = self.labels[counted] != self.prediction[counted]
            self._failure_counts[name] = count_keys(_keys(name, values), wrong)
        return self._failure_counts[name]

    def _check_sizes(self) -> None:
        truth = self.anomaly if self.anomaly is not None else self.labels
        if truth is None:
            raise InputError("there is neither an anomaly label nor a class label")
        sizes = {f"the map '{name}'": values.shape for name, values in self.stored.items()}
        if self.prediction is not None:
            sizes["the prediction"] = self.prediction.shape
        if self.mean_probabilities is not None:
            sizes["the probability map"] = self.mean_probabilities.shape[1:]
        if self.labels is not None:
            sizes["the class label"] = self.labels.shape
        for what, size in sizes.items():
            if size != truth.shape:
                raise InputError(
                    f"frame {self.name}: {what} is {_in_words(size)}",
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


def _check_probabilities(values: Array) -> None:
    if not (values.min() >= 0 and values.max() <= 1):
        raise InputError(f"the map '{CONFIDENCE}' leaves 0..1", "1 - max probability", "repair the map")


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
