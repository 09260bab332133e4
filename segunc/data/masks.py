"""What the values of anomaly masks mean."""

from __future__ import annotations

import warnings
from collections.abc import Iterable
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
    ignored: frozenset[int] = frozenset()
    """No metric counts these pixels."""
    labels: LabelMap | None = None
    """Says which colour stands for which value, for files in colour."""

    def read(self, path: Path) -> npt.NDArray[np.uint8]:
        """Return the mask of a file as :meth:`encode` does."""
        raw = read_label_image(path) if self.labels is None else self.labels.read_ids(path)
        return self.encode(raw, f"anomaly label {path}")

    def encode(
        self, raw: npt.NDArray[np.integer], source: str = "anomaly label"
    ) -> npt.NDArray[np.uint8]:
        """Return a raw mask ``[H, W]`` as uint8: 0 normal, 1 anomaly, 255 ignored.

        Raises:
            InputError: the mask holds an unknown value.
        """
        codes = dict.fromkeys(self.normal, 0)
        codes.update(dict.fromkeys(self.anomaly, 1))
        codes.update(dict.fromkeys(self.ignored, IGNORE))
        return recode(
            raw,
            codes,
            source,
            known_values=f"those of the anomaly encoding '{self.name}' ({self})",
            hint="name the --dataset that the masks belong to",
        )

    def __str__(self) -> str:
        meanings = (("normal", self.normal), ("anomaly", self.anomaly), ("ignored", self.ignored))
        return ", ".join(
            f"{compact_ranges(values)} = {meaning}" for meaning, values in meanings if values
        )


BINARY = AnomalyEncoding("binary", frozenset({0}), frozenset({1}), frozenset({IGNORE}))
"""0 normal, 1 anomaly, 255 ignored: Fishyscapes, SegmentMeIfYouCan and this project's own sets."""
WHITE_ANOMALIES = "folder-255"
"""The data set of a user's own files whose masks are black and white."""
ROAD_ANOMALY = AnomalyEncoding("road-anomaly", frozenset({0}), frozenset({2}))
"""Road Anomaly (Lis et al., ICCV 2019): 2 is the anomaly."""


HINT_NO_ANOMALY = f"--dataset {WHITE_ANOMALIES} if 255 marks the anomalies, else give no masks"
"""What to do with masks of which none holds an anomaly."""


def check_masks(
    files: Iterable[Path], encoding: AnomalyEncoding, *, hint: str | None = HINT_NO_ANOMALY
) -> None:
    """Check a set of masks whose value 255 is ignored.

    Many tools write 255 for the anomaly, and then every anomaly would be left out. Where some masks
    hold 0 and 1 and others 0 and 255, a :class:`NoteWarning` says so. A mask that holds another
    value, or both 1 and 255, settles the question. A mask that cannot be read is passed over:
    whoever reads its frame says what is wrong.

    Args:
        files: the masks.
        encoding: what their values mean.
        hint: of the error; None takes masks of which none holds an anomaly.

    Raises:
        InputError: all masks together hold only 0 and 255.
    """
    if IGNORE not in encoding.ignored or 0 not in encoding.normal:
        return
    values_of: dict[Path, frozenset[int]] = {}
    for file in files:
        try:
            values = label_values(file, encoding.labels)
        except InputError:
            continue
        if not values <= {0, 1, IGNORE} or values >= {1, IGNORE}:
            return
        values_of[file] = values
    mixed = mixed_masks(values_of)
    if mixed is not None:
        of_ones, of_255 = mixed
        warnings.warn(
            f"anomaly mask {of_ones} holds 0 and 1, and {of_255} 0 and 255, which is ignored: "
            "if 255 marks anomalies there, they are left out; write these masks alike",
            NoteWarning,
            stacklevel=2,
        )
    all_values = frozenset[int]().union(*values_of.values())
    if all_values == {0, IGNORE} and hint is not None:
        raise InputError(
            "the anomaly masks hold only 0 and 255, and 255 is ignored, so nothing is an anomaly; "
            f"the last mask is {file}",
            hint=hint,
        )
