"""The files of a page for each frame.

A page from ``file://`` may not fetch its neighbours, and a canvas that such an image was drawn on cannot be read back.
A ``<script>`` may be loaded, so a map becomes one call with its exact content: differences to the row above, modulo
the range of the type, as one plane for each byte (low byte first), in a zlib stream, in base64. Neighbouring rows are
alike and the high bytes more so: on maps of 960 x 540 the files are about as large as the 16-bit PNGs they come from.
"""

from __future__ import annotations

import base64
import json
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import cv2
import numpy as np
import numpy.typing as npt

from segunc.core.errors import InputError
from segunc.core.files import write_atomically
from segunc.data.images import Image
from segunc.maps.encoding import encode_jpeg
from segunc.maps.folder import PREDICTION
from segunc.maps.reader import MapsReader
from segunc.maps.score_files import Form, decode_stored
from segunc.review.colormap import DisplayRange, colourise, resize
from segunc.review.description import STATISTICS, found_up_to, frame_statistics, labelled_objects, recorded_statistics
from segunc.review.labels import Label, ReviewLabels

_LEVEL = 1
"""Of zlib: level 6 takes three times as long for 5 % less."""


def pack(values: npt.NDArray[Any]) -> tuple[str, bytes]:
    """The type (``uint8``, ``uint16``, ``float16`` or ``float32``) and the packed bytes of an array ``[H, W]``.

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


def write_chunk(path: Path, key: str, stored: npt.NDArray[Any], form: Form) -> None:
    """Write a stored map or label ``[H, W]`` as a script that hands it to the page under ``key``.

    Args:
        path: the file, ending in ``.js``; its folder is made if missing.
        key: how the page asks for it.
        stored: the map as it is stored.
        form: how its whole numbers become values.
    """
    dtype, packed = pack(stored)
    head = {"dtype": dtype, "form": form, "height": stored.shape[0], "width": stored.shape[1]}
    text = f'segunc.receive({json.dumps(key)}, {json.dumps(head)}, "{base64.b64encode(packed).decode()}");\n'
    write_new(path, text.encode())


def write_data(path: Path, key: str, content: Any) -> None:
    """Write a table as a script that hands it to the page under ``key``; NaN is refused.

    The browser parses JSON in a string several times faster than the same text as an expression.
    """
    text = json.dumps(content, ensure_ascii=True, allow_nan=False, separators=(",", ":"))
    write_new(path, f"segunc.receive({json.dumps(key)}, JSON.parse({json.dumps(text)}));\n".encode())


def write_new(path: Path, data: bytes) -> None:
    """Write a file whole; its folder is made if missing."""
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(path, data)


FRAMES, THUMBNAILS = "frames", "thumbnails"
IMAGE, ANOMALY, TRUTH = "image", "anomaly", "truth"
"""Names of what stands beside the scores and ``prediction``: source image, anomaly label, class label."""
OTHER = "other"
"""Folder of the maps of the second model, within those of the frame."""
THUMBNAIL_WIDTH = 320

Values = npt.NDArray[np.float32]
Read = TypeVar("Read")


@dataclass
class FrameRow:
    """What the page's table holds of a frame.

    Attributes:
        name: its name.
        place: its place in the order of the source, which names its folder.
        size: height and width of its maps in pixels.
        contents: what was written: ``image``, ``prediction``, scores, ``anomaly``, ``truth``, ``other/...``.
        statistics: score -> statistic -> value, of the maps.
        other: the same of the second model's maps.
        objects: number of labelled objects; None without an anomaly label.
        found: score -> share -> highest threshold at which all objects are found.
        problems: one line on each thing that could not be shown.
    """

    name: str
    place: int
    size: tuple[int, int] | None = None
    contents: list[str] = field(default_factory=list)
    statistics: dict[str, dict[str, float]] = field(default_factory=dict)
    other: dict[str, dict[str, float]] = field(default_factory=dict)
    objects: int | None = None
    found: dict[str, dict[str, float]] = field(default_factory=dict)
    problems: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class FrameFiles:
    """Writes frames, one at a time.

    Attributes:
        out: folder of the page.
        reader: the maps.
        scores: the scores to write.
        ranges: the range in which thumbnails show each of them.
        labels: label images.
        other: the maps of a second model.
    """

    out: Path
    reader: MapsReader
    scores: list[str]
    ranges: dict[str, DisplayRange]
    labels: ReviewLabels
    other: MapsReader | None = None

    def write(self, row: FrameRow, image: Image | None) -> None:
        """Write all files of a frame and fill in its row; what cannot be read is noted there and left out."""
        anomaly = _attempt(row, self.labels.anomaly, row.name)
        truth = _attempt(row, self.labels.classes, row.name)
        objects = labelled_objects(anomaly) if anomaly is not None else []
        self._write_prediction(row, self.reader, PREDICTION)
        for score, values in self._write_scores(row, self.reader, ""):
            row.statistics[score] = _statistics(row, self.reader, score, values)
            small = np.nan_to_num(_shrink(values), copy=False, nan=self.ranges[score].low)
            self._write_thumbnail(row, score, colourise(small, self.ranges[score]))
            if anomaly is not None and objects and anomaly.shape == values.shape and row.statistics[score]:
                row.found[score] = found_up_to(values, objects)
        if self.other is not None:
            self._write_prediction(row, self.other, f"{OTHER}/{PREDICTION}")
            for score, values in self._write_scores(row, self.other, f"{OTHER}/"):
                row.other[score] = _statistics(row, self.other, score, values)
        if anomaly is not None and self._write_label(row, ANOMALY, "anomaly", anomaly):
            row.objects = len(objects)
        if truth is not None:
            self._write_label(row, TRUTH, "class", truth)
        if image is not None:
            write_new(self._path(row, f"{IMAGE}.jpg"), encode_jpeg(image))
            self._write_thumbnail(row, IMAGE, _shrink(image))
            self._note(row, IMAGE, image.shape)

    def _write_scores(self, row: FrameRow, reader: MapsReader, prefix: str) -> Iterator[tuple[str, Values]]:
        for score in self.scores:
            if reader.has(row.name, score):
                stored = _attempt(row, reader.read_stored, row.name, score)
                if stored is not None:
                    self._write_chunk(row, f"{prefix}{score}", stored, reader.form(score))
                    yield score, decode_stored(stored, reader.form(score))

    def _write_prediction(self, row: FrameRow, reader: MapsReader, content: str) -> None:
        if reader.has(row.name, PREDICTION):
            prediction = _attempt(row, reader.prediction, row.name)
            if prediction is not None:
                self._write_chunk(row, content, prediction, "linear")

    def _write_label(self, row: FrameRow, content: str, kind: str, label: Label) -> bool:
        if row.size is not None and label.shape != row.size:
            size = f"{label.shape[1]} x {label.shape[0]} and the maps are {row.size[1]} x {row.size[0]}"
            row.problems.append(f"the {kind} label is {size}, so it is not shown")
            return False
        self._write_chunk(row, content, label, "linear")
        return True

    def _write_chunk(self, row: FrameRow, content: str, stored: npt.NDArray[Any], form: Form) -> None:
        write_chunk(self._path(row, f"{content}.js"), f"{FRAMES}/{row.place:06d}/{content}", stored, form)
        self._note(row, content, stored.shape)

    def _write_thumbnail(self, row: FrameRow, content: str, picture: Image) -> None:
        write_new(self.out / THUMBNAILS / f"{row.place:06d}" / f"{content}.jpg", encode_jpeg(picture))

    def _path(self, row: FrameRow, file: str) -> Path:
        return self.out / FRAMES / f"{row.place:06d}" / file

    @staticmethod
    def _note(row: FrameRow, content: str, shape: tuple[int, ...]) -> None:
        row.contents.append(content)
        row.size = row.size or (int(shape[0]), int(shape[1]))


def _attempt(row: FrameRow, read: Callable[..., Read], *which: str) -> Read | None:
    """What ``read`` gives; None, with a note in the row, where the file is damaged."""
    try:
        return read(*which)
    except InputError as error:
        row.problems.append(str(error))
        return None


def _statistics(row: FrameRow, reader: MapsReader, score: str, values: Values) -> dict[str, float]:
    recorded = recorded_statistics(reader.records.get(row.name, {}), score)
    if set(STATISTICS) <= set(recorded):
        return recorded
    computed = frame_statistics(values)
    if not computed:
        row.problems.append(f"{score} holds NaN or infinite values, so it has no statistics")
        return {}
    return computed | recorded


def _shrink(picture: Any) -> Any:
    """A picture or map at the width of thumbnails: each pixel the mean of those it stands for."""
    height, width = picture.shape[:2]
    if width <= THUMBNAIL_WIDTH:
        return picture.copy()
    small = max(1, round(height * THUMBNAIL_WIDTH / width))
    if picture.dtype == np.uint8:
        return resize(picture, THUMBNAIL_WIDTH, small)
    return cv2.resize(picture, (THUMBNAIL_WIDTH, small), interpolation=cv2.INTER_AREA)
