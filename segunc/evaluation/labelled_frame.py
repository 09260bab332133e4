"""One frame with its labels, checked whole, and the counts that the numbers are made of."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from segunc.core.errors import InputError
from segunc.data.labels import IGNORE
from segunc.maps.encoding import decode_stored, decode_unit, keys_to_half, score_keys
from segunc.metrics.bins import ScoreBins
from segunc.metrics.counting import KEYS, Counts, check_anomaly_labels, count_scores
from segunc.metrics.objects import Objects
from segunc.scores import stored_as_codes

Array = npt.NDArray[Any]
Form = str | ScoreBins
"""How a map is stored: ``unit-code``, ``uint16``, ``uint8`` or ``float``, or the bins of floats that 16 bits cannot hold."""
CONFIDENCE = "msp"  # the score whose complement is the confidence of the prediction: msp = 1 - max_c mean p_c


@dataclass
class LabelledFrame:
    """The maps and labels of one frame; every array has the same ``[H, W]``. Counts are made once and kept.

    Float maps are counted in the ``bins`` of their score, and without bins by their float16, which must hold them exactly.

    Raises:
        InputError: there is no label, sizes differ, or a label or the prediction holds what it may not hold.
    """

    name: str
    stored: Mapping[str, Array]  # score -> map in its stored form: uint16 or uint8 codes, or floats
    prediction: Array | None = None  # class ids, uint8
    mean_probabilities: Array | None = None  # [C, H, W] float32, mean over the draws
    labels: Array | None = None  # train ids, uint8, 255 ignored
    anomaly: Array | None = None  # uint8, 0 normal, 1 anomaly, 255 ignored
    unit_codes: Collection[str] | None = (
        None  # scores whose uint16 are (code / 65535)^2, others are linear; None: this tool's
    )
    bins: Mapping[str, ScoreBins] = field(default_factory=dict)
    anomaly_pixels: Counts = field(init=False)  # int64 [3] normal, anomalous and ignored; zeros without a label
    _counts: dict[tuple[str, str], Counts] = field(init=False, default_factory=dict, repr=False)

    def __post_init__(self) -> None:
        self._check_sizes()
        self.anomaly_pixels = np.zeros(3, np.int64)
        if self.anomaly is not None:
            check_anomaly_labels(self.anomaly)
            self.anomaly_pixels = np.bincount(self.anomaly.ravel(), minlength=256)[[0, 1, IGNORE]].astype(np.int64)
        if self.prediction is not None and self.prediction.dtype != np.uint8:
            raise InputError(f"the prediction is of type {self.prediction.dtype}, and not of uint8")

    def score(self, name: str) -> Array:
        """Return the stored map of a score; InputError where the frame has none."""
        if name not in self.stored:
            raise InputError(f"there is no map '{name}', but every score that is evaluated needs one")
        return self.stored[name]

    def form(self, name: str) -> Form:
        """Return how a map is stored; keys of different forms cannot be compared."""
        stored = self.score(name)
        if np.issubdtype(stored.dtype, np.floating):
            return self.bins.get(name, "float")
        return "unit-code" if stored.dtype == np.uint16 and self._holds_codes(name) else str(stored.dtype)

    def values(self, name: str) -> npt.NDArray[np.floating]:
        """Return the map of a score in real units, ``[H, W]``: floats as they are stored, others as float32."""
        if np.issubdtype(self.score(name).dtype, np.floating):
            return self.score(name)
        return decode_stored(self.score(name), "unit-code" if self._holds_codes(name) else "linear")

    def _holds_codes(self, name: str) -> bool:
        return stored_as_codes(name) if self.unit_codes is None else name in self.unit_codes

    @cached_property
    def objects(self) -> Objects | None:
        """The anomalous objects of the frame; None without an anomaly label."""
        return None if self.anomaly is None else Objects.of(self.anomaly)

    def anomaly_counts(self, name: str) -> Counts | None:
        """Count pixels by key or bin of a score, int64 ``[2, K]``, row 1 anomalous; None without an anomaly label."""
        return None if self.anomaly is None else self._count("anomaly", name, self.anomaly, self.score(name))

    def half_counts(self, name: str) -> Counts | None:
        """Count as :meth:`anomaly_counts` does by 16-bit key, floats being rounded to float16, as SegmentMeIfYouCan stores its scores."""
        if self.anomaly is None or not isinstance(self.form(name), ScoreBins):
            return self.anomaly_counts(name)
        with np.errstate(over="ignore", invalid="ignore"):
            return self._count("float16", name, self.anomaly, self.score(name).astype(np.float16))

    def keys(self, name: str, mask: npt.NDArray[np.bool_]) -> tuple[npt.NDArray[np.integer], int]:
        """Return the keys or bins of a score of the pixels of a mask, ``[n]``, and how many there are of either."""
        form, stored = self.form(name), self.score(name)[mask]
        return (form.keys(stored), len(form.edges)) if isinstance(form, ScoreBins) else (score_keys(stored), KEYS)

    @cached_property
    def wrong(self) -> npt.NDArray[np.uint8] | None:
        """Whether the prediction of each pixel is wrong, uint8 ``[H, W]``, 255 unlabelled; None without class labels or prediction."""
        if self.labels is None or self.prediction is None:
            return None
        return np.where(self.labels == IGNORE, np.uint8(IGNORE), self.labels != self.prediction).astype(np.uint8)

    def failure_counts(self, name: str) -> Counts | None:
        """Count labelled pixels by key or bin of a score, int64 ``[2, K]``, row 1 wrongly predicted; None where one of the three lacks."""
        if self.wrong is None or name not in self.stored:
            return None
        return self._count("failure", name, self.wrong, self.stored[name])

    def confidence_counts(self) -> Counts | None:
        """Count as :meth:`failure_counts` does by the confidence score; floats that 16 bits cannot hold become uint16 codes.

        Raises:
            InputError: a float map leaves 0..1, so that its complement is no probability.
        """
        counts = self.failure_counts(CONFIDENCE)
        if counts is None or self.wrong is None or str(self.form(CONFIDENCE)) != "float":
            return counts
        values = np.where(self.wrong == IGNORE, 0, self.stored[CONFIDENCE])
        if values.size and not (values.min() >= 0 and values.max() <= 1):
            raise InputError(f"the map '{CONFIDENCE}' leaves 0..1, so that it is not 1 - max probability")
        if self.form(CONFIDENCE) == "float":
            return counts
        return self._count("confidence", CONFIDENCE, self.wrong, np.rint(values * 65535).astype(np.uint16))

    def _count(self, what: str, name: str, rows: Array, stored: Array) -> Counts:
        if (what, name) not in self._counts:
            bins = self.form(name) if what in ("anomaly", "failure") else None
            count = bins.count if isinstance(bins, ScoreBins) else count_scores
            try:
                self._counts[what, name] = count(stored, rows)
            except InputError as error:
                raise error.within(f"the map '{name}'") from error
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
                own, wanted = (" x ".join(map(str, shape)) for shape in (size, truth.shape))
                hint = "predict at the labels' size, or give the labels that belong to these maps"
                raise InputError(f"frame {self.name}: {what} is {own}, and the label is {wanted}", hint=hint)


def decode_keys(form: Form, keys: npt.NDArray[np.integer]) -> npt.NDArray[np.floating]:
    """Return the score values of keys of maps in a form, as maps are read and shown; of bins their lowest values."""
    if isinstance(form, ScoreBins):
        return np.asarray(form.edges[keys])
    codes = keys.astype(np.uint16)
    if form == "float":
        return keys_to_half(codes).astype(np.float32)
    if form == "unit-code":
        return decode_unit(codes)
    return keys.astype(np.float32) / np.float32(np.iinfo(form).max)
