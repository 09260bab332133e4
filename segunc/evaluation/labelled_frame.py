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
from segunc.maps.encoding import decode_unit, keys_to_half, score_keys
from segunc.maps.score_files import decode_stored
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
    # Scores whose uint16 are (code / 65535)^2, others are linear; None: as this tool stores them.
    unit_codes: Collection[str] | None = None
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

    def form(self, name: str) -> Form:
        """Return how a map is stored; keys of different forms cannot be compared."""
        if name not in self.stored:
            raise InputError(f"there is no map '{name}', but every score that is evaluated needs one")
        stored = self.stored[name]
        if np.issubdtype(stored.dtype, np.floating):
            return self.bins.get(name, "float")
        as_codes = stored_as_codes(name) if self.unit_codes is None else name in self.unit_codes
        return "unit-code" if stored.dtype == np.uint16 and as_codes else str(stored.dtype)

    def values(self, name: str) -> npt.NDArray[np.floating]:
        """Return the map of a score in real units, ``[H, W]``, floats as they are stored."""
        if np.issubdtype(self.stored[name].dtype, np.floating):
            return self.stored[name]
        return decode_stored(self.stored[name], "unit-code" if self.form(name) == "unit-code" else "linear")

    @cached_property
    def objects(self) -> Objects | None:
        return None if self.anomaly is None else Objects.of(self.anomaly)

    def anomaly_counts(self, name: str) -> Counts | None:
        """Count pixels by key or bin of a score, int64 ``[2, K]``, row 1 anomalous; None without an anomaly label."""
        return None if self.anomaly is None else self._count("anomaly", name, self.anomaly)

    def keys(self, name: str, mask: npt.NDArray[np.bool_]) -> tuple[npt.NDArray[np.integer], int]:
        """Return the keys or bins of a score of the pixels of a mask, ``[n]``, and how many there are of either."""
        form, stored = self.form(name), self.stored[name][mask]
        return (form.keys(stored), len(form.edges)) if isinstance(form, ScoreBins) else (score_keys(stored), KEYS)

    @cached_property
    def wrong(self) -> npt.NDArray[np.uint8] | None:
        """Whether the prediction of each pixel is wrong, uint8 ``[H, W]``, 255 unlabelled; None without class labels or prediction."""
        if self.labels is None or self.prediction is None:
            return None
        return np.where(self.labels == IGNORE, np.uint8(IGNORE), self.labels != self.prediction).astype(np.uint8)

    def failure_counts(self, name: str) -> Counts | None:
        """Count labelled pixels by key or bin of a score, int64 ``[2, K]``, row 1 wrongly predicted; None where something lacks."""
        if self.wrong is None or name not in self.stored:
            return None
        return self._count("failure", name, self.wrong)

    def confidence_counts(self) -> Counts | None:
        """Count as :meth:`failure_counts` does by the confidence score; floats that 16 bits cannot hold become uint16 codes."""
        counts = self.failure_counts(CONFIDENCE)
        if counts is None or self.wrong is None or str(self.form(CONFIDENCE)) != "float":
            return counts
        values = np.where(self.wrong == IGNORE, 0, self.stored[CONFIDENCE])
        if values.size and not (values.min() >= 0 and values.max() <= 1):
            raise InputError(f"the map '{CONFIDENCE}' leaves 0..1, so that it is not 1 - max probability")
        wide = isinstance(self.form(CONFIDENCE), ScoreBins)
        return count_scores(np.rint(values * 65535).astype(np.uint16), self.wrong) if wide else counts

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
        arrays = {f"the map '{name}'": values for name, values in self.stored.items()}
        arrays |= {"the prediction": self.prediction, "the class label": self.labels}
        arrays["the probability map"] = None if self.mean_probabilities is None else self.mean_probabilities[0]
        for what, array in arrays.items():
            if array is not None and array.shape != truth.shape:
                size, wanted = (" x ".join(map(str, shape)) for shape in (array.shape, truth.shape))
                hint = "predict at the labels' size, or give the labels that belong to these maps"
                raise InputError(f"frame {self.name}: {what} is {size}, and the label is {wanted}", hint=hint)


def decode_keys(form: str, keys: npt.NDArray[np.integer]) -> npt.NDArray[np.floating]:
    """Return the score values of keys of maps in a form, as maps are read and shown."""
    codes = keys.astype(np.uint16)
    if form == "float":
        return keys_to_half(codes).astype(np.float32)
    if form == "unit-code":
        return decode_unit(codes)
    return keys.astype(np.float32) / np.float32(np.iinfo(form).max)
