"""What the values of anomaly masks mean."""

from __future__ import annotations

import warnings
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from segunc.core.errors import InputError, NoteWarning
from segunc.data.images import read_label_image
from segunc.data.labels import (
    IGNORE,
    LabelMap,
    compact_ranges,
    label_values,
    mixed_masks,
    recode,
)


@dataclass(frozen=True)
class AnomalyEncoding:
    """The raw values 0..255 of an anomaly mask and what they mean."""

    name: str
    normal: frozenset[int]
    anomaly: frozenset[int]
    ignored: frozenset[int] = frozenset()  # no metric counts these pixels
    labels: LabelMap | None = None  # by whose colours files may say their values

    def read(self, path: Path) -> npt.NDArray[np.uint8]:
        """Return the mask of a file as :meth:`encode` does."""
        return self.encode(
            self.labels.read_ids(path) if self.labels else read_label_image(path),
            f"anomaly label {path}",
        )

    def encode(
        self, raw: npt.NDArray[np.integer], source: str = "anomaly label"
    ) -> npt.NDArray[np.uint8]:
        """Return uint8 ``[H, W]`` with 0 normal, 1 anomaly, 255 ignored of a raw mask; InputError
        for an unknown value.
        """
        codes = (
            dict.fromkeys(self.normal, 0)
            | dict.fromkeys(self.anomaly, 1)
            | dict.fromkeys(self.ignored, IGNORE)
        )
        known_values = f"those of the anomaly encoding '{self.name}' ({self})"
        return recode(
            raw, codes, source, known_values, "name the --dataset that the masks belong to"
        )

    def __str__(self) -> str:
        parts = (("normal", self.normal), ("anomaly", self.anomaly), ("ignored", self.ignored))
        return ", ".join(f"{compact_ranges(values)} = {word}" for word, values in parts if values)


BINARY = AnomalyEncoding("binary", frozenset({0}), frozenset({1}), frozenset({IGNORE}))
"""0 normal, 1 anomaly, 255 ignored: Fishyscapes, SegmentMeIfYouCan and this project's own sets."""
WHITE_ANOMALIES = "folder-255"  # the data set of one's own files whose masks are black and white
ROAD_ANOMALY = AnomalyEncoding("road-anomaly", frozenset({0}), frozenset({2}))
"""Road Anomaly (Lis et al., ICCV 2019): 2 is the anomaly."""


def check_masks(files: Iterable[Path], encoding: AnomalyEncoding) -> None:
    """Raise InputError where no mask of a set holds a value but 0 and 255, and the encoding ignores
    255: many tools write 255 for the anomaly, and then every anomaly would be left out. Warn where
    some masks do so, and others hold 1 (:class:`NoteWarning`).
    """
    if IGNORE not in encoding.ignored or 0 not in encoding.normal:
        return
    values_of: dict[Path, frozenset[int]] = {}
    for file in files:
        with suppress(InputError):  # whoever reads its frame says what is wrong
            values_of[file] = label_values(file, encoding.labels)
            if not values_of[file] <= {0, 1, IGNORE} or values_of[file] >= {1, IGNORE}:
                return
    mixed = mixed_masks(values_of)
    if mixed:
        warnings.warn(
            f"anomaly mask {mixed[0]} holds 0 and 1, and {mixed[1]} 0 and 255, which is ignored: "
            "if 255 marks anomalies there, they are left out; write these masks alike",
            NoteWarning,
            stacklevel=2,
        )
    values = frozenset[int]().union(*values_of.values())
    if values == {0, IGNORE}:
        fact = f"no anomaly mask, the last is {file}, holds a value but 0 and 255, and 255 is ignored, so nothing is an anomaly"
        raise InputError(
            fact, hint=f"--dataset {WHITE_ANOMALIES} if 255 marks the anomalies, else give no masks"
        )
