"""The files of a page for each frame, and what its table says of it.

A page from ``file://`` may not fetch its neighbours, and a canvas that such an image was drawn on cannot be read back. A ``<script>``
may be loaded, so a map becomes one call with its content: differences to the row above, modulo the range of the type, as one plane
for each byte (low byte first), in a zlib stream, in base64. The content is the map as it is stored (about as large as its 16-bit PNG) or,
a tenth of that, means of pixels in 255 steps of the map's own range (:func:`condense`).
"""

from __future__ import annotations

import base64
import json
import math
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, TypeVar

import cv2
import numpy as np
import numpy.typing as npt

from segunc.core.errors import InputError
from segunc.core.files import write_file
from segunc.data.images import Image, resize_nearest
from segunc.gallery.colormap import DisplayRange, colourise
from segunc.maps.encoding import Form, decode_stored, encode_jpeg
from segunc.maps.folder import PREDICTION
from segunc.maps.labelled import Label, ReviewLabels
from segunc.maps.reader import MapsReader
from segunc.maps.shards import STATISTICS as RECORDED

FRAMES, THUMBNAILS = "frames", "thumbnails"
# Names of what stands beside the scores and `prediction`: source image, anomaly label, class label. A score may be called anomaly,
# and none has a slash in its name.
IMAGE, ANOMALY, TRUTH = "image", "label/anomaly", "label/truth"
OTHER = "other"  # folder of the maps of the second model, within those of the frame
THUMBNAIL_WIDTH = 320
LONGEST_SIDE = 960
"""Pixels of the longer side of a map on the page, at most, unless maps are carried whole."""
STATISTICS = ("mean", "p99", "max")
"""Of a score over a frame; p99 is the smallest value that at least 99 % of the pixels do not exceed."""
FOUND_SHARE = 0.5
"""The share of an object's pixels that must reach the threshold for it to be found."""
SMALLEST_OBJECT = 10  # pixels; a smaller labelled region is a speck of the labelling, unless a frame has no larger
_LEVEL = 1  # of zlib: level 6 takes three times as long for 5 % less

Values = npt.NDArray[np.float32]
Pixels = npt.NDArray[np.intp]
Read = TypeVar("Read")


def pack(values: npt.NDArray[Any]) -> tuple[str, bytes]:
    """Return the type (``uint8``, ``uint16``, ``float16`` or ``float32``) and the packed bytes of an array ``[H, W]``.

    Any other type is taken to float32, in which :meth:`segunc.maps.reader.MapsReader.read` gives values.
    """
    if values.dtype not in (np.uint8, np.uint16, np.float16, np.float32):
        values = values.astype(np.float32)
    size = values.dtype.itemsize
    bits = np.ascontiguousarray(values, values.dtype.newbyteorder("<")).view(f"<u{size}")
    differences = bits.copy()
    differences[1:] -= bits[:-1]
    planes = differences.view(np.uint8).reshape(*values.shape, size).transpose(2, 0, 1)
    return values.dtype.name, zlib.compress(planes.tobytes(), _LEVEL)


def condense(values: Values, longest: int) -> tuple[npt.NDArray[np.uint8], dict[str, Any]]:
    """Return a map ``[H, W]`` of finite values as uint8 codes of at most ``longest`` pixels on a side, each the mean of those
    it stands for, and the ends of their range: a value is ``low + code / 255 * (high - low)``."""
    small = _shrink(values, longest)
    low, high = float(small.min()), float(small.max())
    codes = np.rint((small - low) * (255 / (high - low) if high > low else 0)).astype(np.uint8)
    return codes, {"low": low, "high": high}


def condense_label(label: Label, longest: int) -> Label:
    """Resize class ids or anomaly labels ``[H, W]`` to the size that :func:`condense` gives, by the nearest pixel."""
    height, width = _fitting(label.shape, longest)
    return resize_nearest(label, width, height)


def write_data(path: Path, key: str, content: Any) -> None:
    """Write a table as a script that hands it to the page under ``key``; NaN is refused.

    The browser parses JSON in a string several times faster than the same text as an expression.
    """
    text = json.dumps(content, ensure_ascii=True, allow_nan=False, separators=(",", ":"))
    write_file(path, f"segunc.receive({json.dumps(key)}, JSON.parse({json.dumps(text)}));\n".encode())


def frame_statistics(values: Values) -> dict[str, float]:
    """Compute the :data:`STATISTICS` of a map ``[H, W]`` in its own unit; empty where a value is not finite."""
    if not np.isfinite(values).all():
        return {}
    numbers = (values.mean(dtype=np.float64), np.percentile(values, 99, method="inverted_cdf"), values.max())
    # Nine digits hold a float32.
    return {name: float(f"{float(number):.9g}") for name, number in zip(STATISTICS, numbers, strict=True)}


def recorded_statistics(record: Mapping[str, Any], score: str) -> dict[str, float]:
    """Return every statistic of a score that a line of ``frames.jsonl`` holds as ``{statistic: {score: number}}``."""
    return {name: record[name][score] for name in RECORDED if score in record.get(name, {})}


def labelled_objects(anomaly: Label) -> list[Pixels]:
    """Return the flat pixel indices of each labelled object: 8-connected regions of label 1 in ``[H, W]``."""
    count, regions = cv2.connectedComponents((anomaly == 1).astype(np.uint8), connectivity=8)
    order = np.argsort(regions, axis=None, kind="stable")
    ends = np.cumsum(np.bincount(regions.ravel(), minlength=count))
    objects = [order[ends[i - 1] : ends[i]] for i in range(1, count)]
    return [pixels for pixels in objects if len(pixels) >= SMALLEST_OBJECT] or objects


def found_up_to(values: Values, objects: Sequence[Pixels]) -> float:
    """Return the highest threshold at which each of at least one object of a map ``[H, W]`` is found.

    An object is found at threshold t where at least :data:`FOUND_SHARE` of its pixels have a value >= t.
    """
    descending = (np.sort(values.ravel()[pixels])[::-1] for pixels in objects)
    return float(min(pixels[math.ceil(FOUND_SHARE * len(pixels)) - 1] for pixels in descending))


@dataclass
class FrameRow:
    """What the page's table holds of a frame."""

    name: str
    place: int  # in the order of the source, names the frame's folder
    size: tuple[int, int] | None = None  # height and width of its maps in pixels
    contents: list[str] = field(default_factory=list)  # image, prediction, scores, anomaly, truth, other/...
    statistics: dict[str, dict[str, float]] = field(default_factory=dict)  # score -> statistic -> value
    other: dict[str, dict[str, float]] = field(default_factory=dict)  # the same of the second model
    objects: int | None = None  # labelled ones; None without an anomaly label
    found: dict[str, float] = field(default_factory=dict)  # score -> found_up_to
    problems: list[str] = field(default_factory=list)  # a line on each thing that could not be shown

    def attempt(self, read: Callable[..., Read], *which: Any) -> Read | None:
        """Return what ``read`` gives, or None with a note of the problem where it raises InputError."""
        try:
            return read(*which)
        except InputError as error:
            self.problems.append(str(error))
            return None

    def add(self, content: str, shape: tuple[int, ...]) -> None:
        """Note content that was written; the first gives the frame its size."""
        self.contents.append(content)
        self.size = self.size or (int(shape[0]), int(shape[1]))


@dataclass(frozen=True)
class FrameFiles:
    """Writes frames, one at a time: the maps of one model or two, their labels, pictures and thumbnails."""

    out: Path
    reader: MapsReader
    scores: list[str]
    ranges: dict[str, DisplayRange]  # of the thumbnails
    labels: ReviewLabels
    other: MapsReader | None
    longest: int | None = None  # pixels of a condensed map's longer side; None carries maps whole

    def write(self, row: FrameRow, image: Image | None) -> None:
        """Write all files of a frame and fill in its row; a file that cannot be read is noted there and left out."""
        anomaly = row.attempt(self.labels.anomaly, row.name)
        truth = row.attempt(self.labels.classes, row.name)
        objects = labelled_objects(anomaly) if anomaly is not None else []
        for score, values in self._write_maps(row, self.reader, "", row.statistics):
            small = np.nan_to_num(_shrink(values, THUMBNAIL_WIDTH), copy=False, nan=self.ranges[score].low)
            self._write_thumbnail(row, score, colourise(small, self.ranges[score]))
            if anomaly is not None and objects and anomaly.shape == values.shape and row.statistics[score]:
                row.found[score] = found_up_to(values, objects)
        if self.other is not None:
            for _ in self._write_maps(row, self.other, f"{OTHER}/", row.other):
                pass
        if anomaly is not None and self._write_label(row, ANOMALY, "anomaly", anomaly):
            row.objects = len(objects)
        if truth is not None:
            self._write_label(row, TRUTH, "class", truth)
        picture = None if image is None else row.attempt(encode_jpeg, image, 90 if self.longest is None else 80)
        if image is not None and picture is not None:
            write_file(self.out / FRAMES / f"{row.place:06d}" / f"{IMAGE}.jpg", picture)
            self._write_thumbnail(row, IMAGE, _shrink(image, THUMBNAIL_WIDTH))
            row.add(IMAGE, image.shape)

    def _write_maps(
        self, row: FrameRow, reader: MapsReader, prefix: str, statistics: dict[str, dict[str, float]]
    ) -> Iterator[tuple[str, Values]]:
        """Write the prediction and the scores of a frame; yields each score in its own unit."""
        if reader.has(row.name, PREDICTION):
            prediction = row.attempt(reader.prediction, row.name)
            if prediction is not None:
                self._write_classes(row, f"{prefix}{PREDICTION}", prediction)
        for score in self.scores:
            stored = row.attempt(reader.read_stored, row.name, score) if reader.has(row.name, score) else None
            if stored is None:
                continue
            values = decode_stored(stored, reader.form(score))
            if self.longest is None or not np.isfinite(values).all():
                self._write_chunk(row, f"{prefix}{score}", stored, reader.form(score))
            else:
                codes, ends = condense(values, self.longest)
                self._write_chunk(row, f"{prefix}{score}", codes, "range", ends, values.shape)
            recorded = recorded_statistics(reader.records.get(row.name, {}), score)
            statistics[score] = recorded or frame_statistics(values)
            if not statistics[score]:
                row.problems.append(f"{score} holds NaN or infinite values, so it has no statistics")
            yield score, values

    def _write_label(self, row: FrameRow, content: str, kind: str, label: Label) -> bool:
        if row.size is not None and label.shape != row.size:
            size = f"{label.shape[1]} x {label.shape[0]} and the maps are {row.size[1]} x {row.size[0]}"
            row.problems.append(f"the {kind} label is {size}, so it is not shown")
            return False
        self._write_classes(row, content, label)
        return True

    def _write_classes(self, row: FrameRow, content: str, label: Label) -> None:
        small = label if self.longest is None else condense_label(label, self.longest)
        self._write_chunk(row, content, small, "linear", shape=label.shape)

    def _write_chunk(
        self,
        row: FrameRow,
        content: str,
        stored: npt.NDArray[Any],
        form: Form | Literal["range"],
        more: Mapping[str, Any] | None = None,
        shape: tuple[int, ...] | None = None,
    ) -> None:
        """Write a map or label ``[H, W]`` as a script; ``form`` says how its whole numbers become values, ``more`` is for the page,
        ``shape`` is the frame's where that differs."""
        key = f"{FRAMES}/{row.place:06d}/{content}"
        dtype, packed = pack(stored)
        head = {"dtype": dtype, "form": form, "height": stored.shape[0], "width": stored.shape[1], **(more or {})}
        text = f'segunc.receive({json.dumps(key)}, {json.dumps(head)}, "{base64.b64encode(packed).decode()}");\n'
        write_file(self.out / f"{key}.js", text.encode())
        row.add(content, shape or stored.shape)

    def _write_thumbnail(self, row: FrameRow, content: str, picture: Image) -> None:
        write_file(self.out / THUMBNAILS / f"{row.place:06d}" / f"{content}.jpg", encode_jpeg(picture))


def _fitting(shape: tuple[int, ...], longest: int) -> tuple[int, int]:
    """Return height and width scaled down to at most ``longest`` pixels on the longer side."""
    height, width = shape[:2]
    scale = min(1.0, longest / max(height, width))
    return max(1, round(height * scale)), max(1, round(width * scale))


def _shrink(picture: Any, longest: int) -> Any:
    """Scale a picture or map down to at most ``longest`` pixels on a side, each the mean of those it stands for."""
    height, width = _fitting(picture.shape, longest)
    if (height, width) == picture.shape[:2]:
        return picture.copy()
    return cv2.resize(picture, (width, height), interpolation=cv2.INTER_AREA)
