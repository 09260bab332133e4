"""One frame with its labels, checked whole, and the counts that the numbers are made of."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from segunc.core.errors import InputError
from segunc.data.class_mapping import ClassMapping
from segunc.data.labels import IGNORE
from segunc.maps.encoding import decode_unit, keys_to_half
from segunc.maps.score_files import decode_stored
from segunc.metrics.counting import Counts, check_anomaly_labels, count_scores
from segunc.metrics.objects import Objects
from segunc.scores import stored_as_codes

Array = npt.NDArray[Any]
CONFIDENCE = "msp"  # the score whose complement is the confidence of the prediction: msp = 1 - max_c mean p_c


@dataclass
class LabelledFrame:
    """What is known of one frame; every array has the same ``[H, W]``. Counts are made once and kept.

    ``unit_codes`` are the scores whose uint16 maps hold this tool's codes, (code / 65535)^2; those of others are linear, 0..1 over the
    range of their type. None for the scores of this tool. With a ``mapping`` prediction and probabilities are given in the network's
    classes and held, beside class labels, in those of the labels. InputError: there is no label, sizes differ, or a label or the
    prediction holds what it may not hold.
    """

    name: str
    stored: Mapping[str, Array]  # score -> map in its stored form: uint16 or uint8 codes, or floats (taken as float16)
    prediction: Array | None = None  # class ids, uint8
    mean_probabilities: Array | None = None  # [C, H, W] float32, mean over the draws
    labels: Array | None = None  # train ids, uint8, 255 ignored
    anomaly: Array | None = None  # uint8, 0 normal, 1 anomaly, 255 ignored
    unit_codes: Collection[str] | None = None
    mapping: ClassMapping | None = None
    anomaly_pixels: Counts = field(init=False)  # int64 [3] normal, anomalous and ignored; zeros without a label
    _counts: dict[tuple[str, str], Counts] = field(init=False, default_factory=dict, repr=False)

    def __post_init__(self) -> None:
        self._check_sizes()
        self.anomaly_pixels = np.zeros(3, np.int64)
        if self.anomaly is not None:
            check_anomaly_labels(self.anomaly)
            self.anomaly_pixels = np.bincount(self.anomaly.ravel(), minlength=256)[[0, 1, IGNORE]].astype(np.int64)
        if self.prediction is not None and self.prediction.dtype != np.uint8:
            raise InputError(f"the prediction is {self.prediction.dtype}", "uint8 class ids", "convert it")
        if self.mapping is not None and self.labels is not None:
            if self.prediction is not None:
                self.prediction = self.mapping.predicted(self.prediction, self.labels)
            if self.mean_probabilities is not None:
                self.mean_probabilities = self.mapping.merged(self.mean_probabilities)

    @property
    def others(self) -> bool:
        """Whether a prediction may be C, none of the C classes of the labels, and the probabilities of these sum to less than 1."""
        return self.mapping is not None and self.mapping.others

    def score(self, name: str) -> Array:
        """The stored map of a score; InputError where the frame has none."""
        if name not in self.stored:
            raise InputError(f"there is no map '{name}'", "a map of every score that is evaluated")
        return self.stored[name]

    def form(self, name: str) -> str:
        """How a map is stored: ``unit-code``, ``uint16``, ``uint8`` or ``float``; keys of different forms cannot be compared."""
        stored = self.score(name)
        if np.issubdtype(stored.dtype, np.floating):
            return "float"
        return "unit-code" if stored.dtype == np.uint16 and self._holds_codes(name) else str(stored.dtype)

    def values(self, name: str) -> npt.NDArray[np.float32]:
        """The map of a score in real units, float32 ``[H, W]``."""
        return decode_stored(self.score(name), "unit-code" if self._holds_codes(name) else "linear")

    def _holds_codes(self, name: str) -> bool:
        return stored_as_codes(name) if self.unit_codes is None else name in self.unit_codes

    @cached_property
    def objects(self) -> Objects | None:
        """The anomalous objects of the frame; None without an anomaly label."""
        return None if self.anomaly is None else Objects.of(self.anomaly)

    def anomaly_counts(self, name: str) -> Counts | None:
        """Pixels by key of a score, int64 ``[2, 65536]``, row 1 anomalous; None without an anomaly label."""
        return None if self.anomaly is None else self._count("anomaly", name, self.anomaly)

    def failure_counts(self, name: str) -> Counts | None:
        """Labelled pixels by key of a score, int64 ``[2, 65536]``, row 1 wrongly predicted; None where one of the three lacks.
        InputError: a float map of the confidence score leaves 0..1, so that its complement is no probability."""
        if self.labels is None or self.prediction is None or name not in self.stored:
            return None
        ignored = self.labels == IGNORE
        if name == CONFIDENCE and self.form(name) == "float":
            values = self.stored[name][~ignored]
            if values.size and not (values.min() >= 0 and values.max() <= 1):
                raise InputError(f"the map '{name}' leaves 0..1", "1 - max probability", "repair the map")
        wrong = (self.labels != self.prediction).astype(np.uint8)
        wrong[ignored] = IGNORE
        return self._count("failure", name, wrong)

    def _count(self, what: str, name: str, rows: Array) -> Counts:
        if (what, name) not in self._counts:
            try:
                self._counts[what, name] = count_scores(self.score(name), rows)
            except InputError as error:
                raise InputError(f"the map '{name}': {error.given}", error.expected, error.remedy) from error
        return self._counts[what, name]

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
                given, expected = (" x ".join(map(str, shape)) for shape in (size, truth.shape))
                remedy = "predict at the labels' size, or give the labels that belong to these maps"
                raise InputError(f"frame {self.name}: {what} is {given}", f"{expected}, the size of the label", remedy)


def decode_keys(form: str, keys: npt.NDArray[np.uint16]) -> npt.NDArray[np.float32]:
    """The score values of keys of maps in a form (:meth:`LabelledFrame.form`), as maps are read and shown; floats are rounded to
    float16."""
    if form == "float":
        return keys_to_half(keys).astype(np.float32)
    if form == "unit-code":
        return decode_unit(keys)
    return keys.astype(np.float32) / np.float32(np.iinfo(form).max)
