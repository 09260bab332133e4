"""What the values of anomaly masks mean, and their common form: 0 normal, 1 anomaly, 255 ignored."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt

from segunc.data.labels import IGNORE, LabelMap, compact_ranges
from segunc.errors import InputError


@dataclass(frozen=True)
class AnomalyEncoding:
    """The raw values of an anomaly mask and what they mean.

    Attributes:
        name: the encoding's name, for messages.
        normal: raw values of normal pixels, 0..255.
        anomaly: raw values of anomalous pixels.
        ignored: raw values of pixels that no metric counts.

    Raises:
        InputError: a value stands in two of the sets, or outside 0..255.
    """

    name: str
    normal: frozenset[int]
    anomaly: frozenset[int]
    ignored: frozenset[int] = frozenset()

    def __post_init__(self) -> None:
        every = [*self.normal, *self.anomaly, *self.ignored]
        if len(set(every)) != len(every) or not all(0 <= value <= 255 for value in every):
            raise InputError(
                f"anomaly encoding '{self.name}' with the values {sorted(every)}", "each value of 0..255 at most once"
            )

    @cached_property
    def _table(self) -> npt.NDArray[np.int16]:
        table = np.full(256, -1, np.int16)
        for values, code in ((self.normal, 0), (self.anomaly, 1), (self.ignored, IGNORE)):
            table[sorted(values)] = code
        return table

    def encode(self, raw: npt.NDArray[np.integer], source: str = "anomaly label") -> npt.NDArray[np.uint8]:
        """uint8 ``[H, W]`` with 0 normal, 1 anomaly, 255 ignored of a raw mask ``[H, W]``.

        Raises:
            InputError: a value that the encoding does not know; the message names ``source``.
        """
        if raw.dtype == np.uint8:
            coded = self._table[raw]
        else:
            outside = (raw < 0) | (raw > 255)
            coded = np.where(outside, np.int16(-1), self._table[np.where(outside, 0, raw)])
        if coded.min(initial=0) < 0:
            unknown = np.unique(raw[coded < 0])[:8].tolist()
            raise InputError(
                f"{source} holds the values {unknown}",
                f"only those of the anomaly encoding '{self.name}': {self}",
                "repair the mask or name the data set that it belongs to",
            )
        encoded: npt.NDArray[np.uint8] = coded.astype(np.uint8)
        return encoded

    def __str__(self) -> str:
        parts = (("normal", self.normal), ("anomaly", self.anomaly), ("ignored", self.ignored))
        return ", ".join(f"{compact_ranges(list(values))} = {word}" for word, values in parts if values)


BINARY = AnomalyEncoding("binary", frozenset({0}), frozenset({1}), frozenset({IGNORE}))
"""0 normal, 1 anomaly, 255 ignored: Fishyscapes, SegmentMeIfYouCan and this project's own sets."""
ROAD_ANOMALY = AnomalyEncoding("road-anomaly", frozenset({0}), frozenset({2}))
"""Road Anomaly (Lis et al., ICCV 2019): 2 is the anomaly."""


def classes_as_anomalies(labels: LabelMap, names: Iterable[str]) -> AnomalyEncoding:
    """The encoding of class labels in which some classes are the anomaly and ignored ids stay ignored.

    Raises:
        InputError: no class bears one of the names.
    """
    names = list(names)
    anomaly = labels.raw_ids(names)
    ignored = frozenset(raw for raw, train in labels.raw_to_train.items() if train == IGNORE)
    return AnomalyEncoding(
        f"{labels.name}: {', '.join(names)}", frozenset(labels.raw_to_train) - anomaly - ignored, anomaly, ignored
    )
