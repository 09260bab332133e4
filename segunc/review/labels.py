"""The label images of the frames under review."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import numpy.typing as npt

from segunc.core.errors import InputError
from segunc.data.entry import BINARY, AnomalyEncoding
from segunc.data.images import read_label_image
from segunc.data.labels import IGNORE, LabelMap
from segunc.data.layout import find_labels
from segunc.maps.region import Region

Label = npt.NDArray[np.uint8]


@dataclass(frozen=True)
class ReviewLabels:
    """Label files by frame, read one at a time.

    Attributes:
        anomaly_files: frame name -> anomaly mask.
        class_files: frame name -> class label image.
        anomaly_encoding: what the values of the masks mean.
        label_map: what the values of the class labels mean.
        region: the pixels that count; labels are ignored outside of it. None where all count.
    """

    anomaly_files: Mapping[str, Path] = field(default_factory=dict)
    class_files: Mapping[str, Path] = field(default_factory=dict)
    anomaly_encoding: AnomalyEncoding = BINARY
    label_map: LabelMap | None = None
    region: Region | None = None

    def anomaly(self, name: str) -> Label | None:
        """0 normal, 1 anomaly, 255 ignored, uint8 ``[H, W]``; None for a frame without a mask.

        Raises:
            InputError: the file is damaged or holds other values than its encoding knows.
        """
        path = self.anomaly_files.get(name)
        if path is None:
            return None
        return self._within(self.anomaly_encoding.encode(read_label_image(path), f"anomaly label {path}"))

    def classes(self, name: str) -> Label | None:
        """Train ids, 255 ignored, uint8 ``[H, W]``; None for a frame without class labels.

        Raises:
            InputError: the file is damaged or holds other values than the label map knows.
        """
        path = self.class_files.get(name)
        if path is None or self.label_map is None:
            return None
        return self._within(self.label_map.encode(read_label_image(path), f"label {path}"))

    def _within(self, label: Label) -> Label:
        if self.region is None:
            return label
        return np.where(self.region.at(label.shape[0], label.shape[1]), label, np.uint8(IGNORE))


def find_review_labels(
    frames: Sequence[str],
    *,
    anomaly: Path | None = None,
    classes: Path | None = None,
    anomaly_encoding: AnomalyEncoding = BINARY,
    label_map: LabelMap | None = None,
    region: Region | None = None,
) -> ReviewLabels:
    """Find the labels of frames in the folders given.

    Raises:
        InputError: a folder is missing or holds no label of any of the frames, or class labels come without a map.
    """
    if classes is not None and label_map is None:
        raise InputError("class labels are given without a label map", "the label map that explains their values")
    found: list[Mapping[str, Path]] = []
    for folder in (anomaly, classes):
        files = find_labels(folder, frames) if folder is not None else {}
        if folder is not None and not files:
            raise InputError(
                f"no label in {folder} belongs to a frame", "labels named like the frames", "check the path"
            )
        found.append(files)
    return ReviewLabels(found[0], found[1], anomaly_encoding, label_map, region)
