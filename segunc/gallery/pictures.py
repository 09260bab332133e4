"""Pictures of maps on disk for print, each score over its image, and videos of them."""

from __future__ import annotations

import math
import shlex
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Literal, Self, TypeVar

import cv2
import numpy as np

from segunc.colours import DisplayRange
from segunc.core.errors import InputError, NoteWarning, PartialFailure, failed_frames, one_line
from segunc.core.files import inside, json_bytes, parse_json, read_bytes, replacing, write_file
from segunc.core.removal import check_free
from segunc.data.frame_names import (
    HINT_PATTERNS,
    compiled_pattern,
    composed,
    frames_named,
    is_plain_name,
)
from segunc.data.images import Image, image_size, read_image
from segunc.decisions.events import Event
from segunc.decisions.flags import Threshold, check_forms, check_promises
from segunc.frames.video import encode_video
from segunc.gallery.colours import page_ranges
from segunc.gallery.drawing import (
    BLACK,
    FLAGGED_STROKES,
    LABELLED,
    LABELLED_STROKES,
    NO_LABELS,
    PAPER,
    Legend,
    Mask,
    Strokes,
    draw_outline,
    draw_overlay,
    frame_caption,
    resize,
    score_colours,
)
from segunc.gallery.printing import draw_page
from segunc.maps import labelled
from segunc.maps.encoding import encode_jpeg, encode_png, is_flagged
from segunc.maps.known_frames import note_on_known_maps
from segunc.maps.manifest import is_ours, read_manifest
from segunc.maps.reader import MapsReader
from segunc.maps.shards import every_of, frame_times
from segunc.scores import first_shown

Result = TypeVar("Result")
PictureFormat = Literal["png", "jpg", "pdf", "svg"]
PAGE_FORMATS = ("pdf", "svg")  # pages for print, of which no video is made
OVERLAY_NAME = "overlay.json"
"""The record beside the pictures of a score. By it, ``segunc init`` passes over them."""
OVERLAY_FORMAT = "segunc-overlay"
# Wider pictures are scaled down: a video is encoded on one core, and a review needs no more.
MAXIMUM_WIDTH = 1280
CROP_WIDTH = 240  # pixels of each of the two views of a crop
CROP_HEIGHT = 180
CROP_QUALITY = 82  # of JPEG
CROP_EDGE = 0.03  # of a view: between its edge and the box at least, so that the box is visible
BOX_GAP = 5  # pixels of a view between an outline and the box around it
OUTLINE_EDGE = 8  # pixels of a view beside it, into which outlines are drawn; over half a stroke


@dataclass
class WrittenPictures:
    """What was drawn."""

    # folder below the output -> its pictures in the order of the frames
    pictures: dict[str, list[Path]]
    notes: list[str]  # lines for the user
    # seconds in the video of the frames that were drawn
    times: list[float | None] = field(default_factory=list)
    failed: dict[str, str] = field(default_factory=dict)  # frame -> why it has no picture

    @property
    def failure(self) -> str:
        """Say which frames failed, in one line; empty where none did."""
        line = failed_frames(self.failed, "could not be drawn")
        return line and f"{line}; the pictures of the others are kept"


@dataclass(frozen=True)
class PictureWriter:
    """Draws the scores of a frame over its image, and writes the pictures."""

    reader: MapsReader
    legends: Sequence[Legend]  # of the scores that are drawn
    labels: labelled.ReviewLabels
    out: Path
    format: PictureFormat

    def write(self, name: str, image: Image, caption: str, written: WrittenPictures) -> None:
        """Write the pictures of a frame and list them in ``written``; InputError where it cannot be
        drawn.
        """
        for score, content in self._draw(name, image, caption).items():
            path = inside(self.out, picture_name(score, name, self.format))
            folder = f"overlay-{score}"
            if folder not in written.pictures:
                record = {"format": OVERLAY_FORMAT, "score": score}
                write_file(inside(self.out, record_name(score)), json_bytes(record))
            write_file(path, content)
            written.pictures.setdefault(folder, []).append(path)

    def _draw(self, name: str, image: Image, caption: str) -> dict[str, bytes]:
        """Return the file of the picture of each score."""
        label = self.labels.anomaly(name)
        anomaly = None if label is None else label == 1
        maps = {legend.score: self.reader.read(name, legend.score) for legend in self.legends}
        pictures = {}
        for legend in self.legends:
            values = maps[legend.score]
            prediction = None
            if legend.preparation.place_ids:
                prediction = self.reader.prediction_of(name)
            frame = {
                "anomaly": anomaly,
                "prediction": prediction,
                "kept": self.reader.kept(values.shape),
                "caption": caption,
            }
            pictures[legend.score] = self._encoded(image, values, legend, frame)
        return pictures

    def _encoded(
        self, image: Image, values: Any, legend: Legend, frame: Mapping[str, Any]
    ) -> bytes:
        """Return the file of a picture; ``frame`` holds the keyword arguments of
        :func:`segunc.gallery.drawing.draw_overlay`.
        """
        if self.format == "pdf" or self.format == "svg":
            return draw_page(image, values, legend, self.format, **frame)
        picture = draw_overlay(image, values, legend, **frame)
        return encode_png(picture) if self.format == "png" else encode_jpeg(picture)


def write_pictures(  # noqa: PLR0913  each is an option of `segunc overlay`
    maps: Path,
    out: Path,
    labels: labelled.LabelSources = NO_LABELS,
    on_frame: Callable[[int, int], None] = lambda done, total: None,
    *,
    score: Sequence[str] | None = None,
    frames: Sequence[str] | None = None,
    images: str | None = None,
    ranges: Mapping[str, tuple[float, float]] | None = None,
    flag: Mapping[str, Threshold] | None = None,
    format: PictureFormat = "png",
) -> WrittenPictures:
    """Draw frames of a maps folder into ``OUT/overlay-SCORE/F.ext``, with a record beside them.

    A frame that cannot be drawn does not stop the others. The keyword settings are those of
    :class:`segunc.options.OverlayOptions`.

    Args:
        maps: a maps folder.
        out: the output folder.
        labels: where the labels of frames come from.
        on_frame: is called with the number of frames done and their total.
        flag: score -> threshold from which on pixels are outlined.

    Raises:
        InputError: no maps, an unknown score, a flag of a score that is not drawn or of other maps,
            no such frame, no images, an output in a maps folder, or another file in the place of
            the record.
        NoLabelError: no label belongs to a frame.
    """
    reader = labelled.open_maps(maps)
    if is_ours(out) or out.resolve().is_relative_to(maps.resolve()):
        raise InputError(f"output {out} is or lies inside a maps folder", hint="give another --out")
    flag = flag or {}
    scores = labelled.choose_scores(reader, score or list(flag) or [first_shown(reader.scores)])
    names = choose_frames(reader, frames)
    _check_names(out, scores, names, format)
    check_flags(reader, flag, scores)
    legends = _legends(reader, scores, page_ranges(reader, scores, ranges), flag)
    times = dict(zip(names, frame_times(names, reader.records, reader.manifest), strict=True))
    writer = PictureWriter(reader, legends, labels.find(reader, names), out, format)
    source, missing = labelled.open_images(reader, images, names)
    if source is None:
        hint = f"--images {shlex.quote(labelled.recorded_url(reader) or 'PATH')}"
        raise InputError(f"overlays of {maps} need images ({missing})", hint=hint)
    known = note_on_known_maps(reader.manifest, reader.records)
    written = WrittenPictures({}, [text for text in (missing, reader.unfinished, known) if text])
    for done, (name, image, error) in enumerate(labelled.with_images(names, source), start=1):
        try:
            if image is None:
                reason = error or "the source does not hold it"
                raise InputError(f"frame {name} has no image ({reason})")
            writer.write(name, image, frame_caption(name, times[name]), written)
        except InputError as problem:
            written.failed[name] = one_line(problem)
        else:
            written.times.append(times[name])
        on_frame(done, len(names))
    return written


def _check_names(out: Path, scores: Sequence[str], names: Sequence[str], format: str) -> None:
    """Raise InputError before the work where the name of a picture leads out of its folder, or
    where another file lies in the place of the record.
    """
    for score in scores:
        check_free(out, record_name(score), lambda name: _is_record(out / name))
        for name in names:
            inside(out, picture_name(score, name, format))


def check_flags(reader: MapsReader, flag: Mapping[str, Threshold], scores: Sequence[str]) -> None:
    """Raise InputError for a threshold of other maps, or of a score that is not drawn."""
    check_promises(flag, (reader.manifest or {}).get("run", {}), reader.sizes())
    check_forms(flag, reader)
    not_drawn = sorted(set(flag) - set(scores))
    if not_drawn:
        raise InputError(
            f"'{not_drawn[0]}' has a threshold but is not drawn",
            hint=f"--score {','.join((*scores, not_drawn[0]))}",
        )


def _legends(
    reader: MapsReader,
    scores: Sequence[str],
    ranges: Mapping[str, DisplayRange],
    flag: Mapping[str, Threshold],
) -> list[Legend]:
    """Return the legend of each score."""
    return [Legend.of(reader.manifest, score, ranges[score], flag.get(score)) for score in scores]


def picture_name(score: str, frame: str, format: str) -> str:
    """Return the name of the picture of a frame below its output folder."""
    return f"overlay-{score}/{frame}.{format}"


def record_name(score: str) -> str:
    """Return the name of the record of the pictures of a score below their output folder."""
    return f"overlay-{score}/{OVERLAY_NAME}"


def _is_record(path: Path) -> bool:
    """Return whether a file is the record of pictures that an earlier run drew."""
    try:
        content = parse_json(read_bytes(path))
    except (OSError, ValueError):
        return False
    return isinstance(content, dict) and content.get("format") == OVERLAY_FORMAT


def choose_frames(reader: MapsReader, patterns: Sequence[str] | None) -> list[str]:
    """Return the frames that are named or match a pattern, in source order; InputError for a
    pattern without a frame.
    """
    if patterns is None:
        return list(reader.frames)
    chosen: set[str] = set()
    named = frames_named(patterns, reader.frames)
    for pattern in patterns:
        matched: set[str] = set()
        exact = named[pattern]
        if exact is not None:
            matched.add(exact)
        elif not is_plain_name(pattern):
            searched = compiled_pattern(pattern)
            matched = {name for name in reader.frames if searched.search(composed(name))}
        if not matched:
            raise InputError(
                f"no frame of {reader.place} is named '{pattern}'; "
                f"they have names like {reader.frames[0]}",
                hint=HINT_PATTERNS,
            )
        chosen |= matched
    return [name for name in reader.frames if name in chosen]


def frame_rate(maps: Path) -> float:
    """Return the frames a second of the frames that were taken from the source of maps; InputError
    where it has none, as images.
    """
    manifest = (read_manifest(maps) if is_ours(maps) else None) or {}
    fps = manifest.get("source", {}).get("fps")
    if not fps:
        raise InputError(f"the maps in {maps} record no frame rate", hint="give --fps")
    return float(fps) / every_of(manifest)


def write_video(
    pictures: Sequence[Path],
    out: Path,
    fps: float,
    times: Sequence[float | None] = (),
    *,
    on_whole: Callable[[Path], None] = lambda path: None,
) -> Path:
    """Write pictures as a video; it appears when complete. If they differ in size, each is fitted
    into the largest height and width, with black beside it, which a :class:`NoteWarning` says.

    Args:
        pictures: their files, PNG or JPEG.
        out: the video; its suffix says its format, see
            :func:`segunc.frames.video.encode_video`.
        fps: frames a second, where a time is unknown.
        times: seconds of each picture; where all are known, the video keeps a variable rate.
        on_whole: is called with the whole video before it takes its place at ``out``.

    Raises:
        PartialFailure: the encoder failed, or a picture cannot be read; no file is left.
    """
    sizes = [_read(path, image_size) for path in pictures]
    largest = max(height for height, _ in sizes), max(width for _, width in sizes)
    _note_other_sizes(pictures, sizes, out)
    height, width = _video_size(largest)
    moments = _moments(len(pictures), fps, times)
    frames = (
        (moment, _fitted(_read(path, read_image), largest, (height, width)))
        for moment, path in zip(moments, pictures, strict=True)
    )
    try:
        with replacing(out) as file:
            encode_video(Path(file.name), frames, fps, (height, width), out.suffix)
            on_whole(Path(file.name))
    except OSError as error:
        reason = error.strerror or one_line(error)
        raise PartialFailure(
            f"video {out} cannot be written ({reason}); the pictures are kept"
        ) from error
    return out


def _moments(count: int, fps: float, times: Sequence[float | None]) -> list[float]:
    """Return the seconds of each picture from the first on: as recorded where all are known, else
    at a fixed rate.
    """
    recorded = [time for time in times if time is not None]
    if len(recorded) == count:
        return [time - recorded[0] for time in recorded]
    return [index / fps for index in range(count)]


def _video_size(shape: tuple[int, ...]) -> tuple[int, int]:
    """Return height and width of the video of pictures of a shape: even, as encoders need them."""
    height, width = shape[:2]
    scale = min(1.0, MAXIMUM_WIDTH / width)
    return _even(height * scale), _even(width * scale)


def _even(side: float) -> int:
    return max(2, round(side) // 2 * 2)


def _read(path: Path, reader: Callable[[Path], Result]) -> Result:
    """Return what a function reads of a picture; PartialFailure where it cannot."""
    try:
        return reader(path)
    except (OSError, ValueError) as error:
        raise PartialFailure(
            f"overlay {path} cannot be read ({error}); no video was written"
        ) from error


def _note_other_sizes(
    pictures: Sequence[Path], sizes: Sequence[tuple[int, int]], out: Path
) -> None:
    """Warn of pictures of several sizes, by the first that differs from the one before."""
    for number in range(1, len(sizes)):
        height, width = sizes[number]
        height_before, width_before = sizes[number - 1]
        if (height, width) != (height_before, width_before):
            warnings.warn(
                f"the pictures of {out} change their size, first at {pictures[number].stem}, which "
                f"has {height} x {width} pixels after {height_before} x {width_before}; each is "
                "fitted into the largest height and width, with black beside it",
                NoteWarning,
                stacklevel=3,
            )
            return


def _fitted(picture: Image, largest: tuple[int, int], size: tuple[int, int]) -> Image:
    """Return a picture as it is shown in a video of a size: as large as its shape allows, in the
    middle of black.

    Args:
        picture: RGB uint8 ``[h, w, 3]``.
        largest: the largest height and width of all pictures.
        size: height and width of the video.
    """
    height, width = size
    rows, columns = picture.shape[:2]
    if (rows, columns) == largest:
        return resize(picture, width, height)
    scale = min(height / rows, width / columns)
    high = min(height, max(1, round(rows * scale)))
    wide = min(width, max(1, round(columns * scale)))
    shown = np.zeros((height, width, 3), np.uint8)
    top = (height - high) // 2
    left = (width - wide) // 2
    shown[top : top + high, left : left + wide] = resize(picture, wide, high)
    return shown


@dataclass(frozen=True)
class CropWindow:
    """The part of a map that a crop shows, in pixels of the map; its sides are real numbers. It may
    reach beyond the map.
    """

    left: int
    top: int
    width: float
    height: float
    scale: int = 1  # of the view, as a multiple of CROP_WIDTH and CROP_HEIGHT

    @classmethod
    def around(cls, box: Sequence[int], shape: tuple[int, ...], scale: int = 1) -> Self:
        """Return the surroundings of a box (left, top, width, height) in a map of ``shape``: 2.5
        times as large, and at least a fifth of the map's width. All of the box lies within them.
        """
        left, top, width, height = box
        rows, columns = shape[:2]
        ratio = CROP_WIDTH / CROP_HEIGHT
        wide = min(
            max(2.5 * width, 2.5 * height * ratio, columns / 5),
            columns,
            rows * ratio,
        )
        # One pixel more, because a window starts at a whole one.
        wide = max(wide, max(width + 1, (height + 1) * ratio) / (1 - 2 * CROP_EDGE))
        high = wide / ratio
        x = _start(left, width, wide, columns)
        y = _start(top, height, high, rows)
        return cls(x, y, wide, high, scale)

    def view(self, picture: Image) -> Image:
        """Return the part of a picture, ``[H, W, 3]``; beside the picture it is dark."""
        view = cv2.resize(self._cut(picture, PAPER), self._size, interpolation=cv2.INTER_AREA)
        return np.asarray(view, np.uint8)

    def view_of_mask(self, mask: Mask) -> Mask:
        """Return the part of a mask, ``[H, W]``; beside the mask it is False."""
        part = self._cut(mask.astype(np.uint8), 0)
        return np.asarray(cv2.resize(part, self._size, interpolation=cv2.INTER_NEAREST) > 0)

    def place(self, x: int, y: int) -> tuple[int, int]:
        """Return where a point of the map lies in a view."""
        factor = CROP_WIDTH * self.scale / self.width
        return round((x - self.left) * factor), round((y - self.top) * factor)

    def draw_box(self, view: Image, box: Sequence[int], gap: int = 0) -> None:
        """Draw a box (left, top, width, height) of the map in a view, ``gap`` pixels of the view
        away from what it encloses.
        """
        left, top, width, height = box
        x, y = self.place(left, top)
        start = (x - gap, y - gap)
        x, y = self.place(left + width, top + height)
        end = (x + gap, y + gap)
        thickness = self.scale + 1
        cv2.rectangle(view, start, end, BLACK, 2 * thickness, cv2.LINE_AA)
        cv2.rectangle(view, start, end, LABELLED, thickness, cv2.LINE_AA)

    @property
    def _size(self) -> tuple[int, int]:
        """Width and height of a view in pixels."""
        return CROP_WIDTH * self.scale, CROP_HEIGHT * self.scale

    def _cut(self, array: Any, beside: Any) -> Any:
        """Return the part of an array ``[H, W, ...]``; pixels beside the array are ``beside``."""
        rows, columns = array.shape[:2]
        bottom = self.top + max(round(self.height), 1)
        right = self.left + max(round(self.width), 1)
        part = np.empty((bottom - self.top, right - self.left, *array.shape[2:]), np.uint8)
        part[:] = beside
        first_row = max(self.top, 0)
        first_column = max(self.left, 0)
        inside_map = array[first_row : min(bottom, rows), first_column : min(right, columns)]
        row = first_row - self.top
        column = first_column - self.left
        high, wide = inside_map.shape[:2]
        part[row : row + high, column : column + wide] = inside_map
        return part


def _start(start: int, length: int, window: float, whole: int) -> int:
    """Return where a window starts along one side: within the map where it can, and with an edge
    around the box.

    Args:
        start, length: of the box.
        window: length of the window.
        whole: length of the map.
    """
    edge = CROP_EDGE * window
    room = whole - window  # negative where the window is larger than the map
    first = int(np.clip(start + length / 2 - window / 2, min(room, 0), max(room, 0)))
    first = min(first, math.floor(start - edge))
    return max(first, math.ceil(start + length + edge - window))


def draw_crop(
    box: Sequence[int],
    image: Any,
    score: Any,
    outlines: Sequence[tuple[Mask, Strokes]] = (),
    scale: int = 1,
) -> bytes:
    """Draw the surroundings of a box (left, top, width, height) in the image, where there is one,
    and in the score's colours ``[H, W, 3]`` side by side, as a JPEG.

    Args:
        box: in pixels of the map.
        image: RGB ``[h, w, 3]``; None for none.
        score: the colours of the map.
        outlines: masks ``[H, W]`` and the strokes around their regions, the uppermost first.
        scale: of the views, as a multiple of ``CROP_WIDTH`` and ``CROP_HEIGHT``.
    """
    rows, columns = score.shape[:2]
    window = CropWindow.around(box, score.shape, scale)
    pictures = [score]
    if image is not None:
        pictures.insert(0, cv2.resize(image, (columns, rows)))
    views = []
    for picture in pictures:
        view = window.view(picture)
        for mask, strokes in reversed(outlines):
            view = _outlined(view, window.view_of_mask(mask), strokes)
        window.draw_box(view, box, BOX_GAP if outlines else 0)
        views.append(view)
    return encode_jpeg(np.hstack(views), CROP_QUALITY)


def _outlined(view: Image, mask: Mask, strokes: Strokes) -> Image:
    """Return a view with the outline of a mask of its size. A region that goes on beyond the view
    has no line along its edge.
    """
    edge = OUTLINE_EDGE
    sides = (edge, edge, edge, edge)
    wider = np.asarray(cv2.copyMakeBorder(view, *sides, cv2.BORDER_REPLICATE), np.uint8)
    wider_mask = cv2.copyMakeBorder(mask.astype(np.uint8), *sides, cv2.BORDER_REPLICATE)
    is_flagged = strokes is not LABELLED_STROKES
    draw_outline(wider, np.asarray(wider_mask > 0), strokes, dashed_holes=is_flagged)
    return np.ascontiguousarray(wider[edge:-edge, edge:-edge])


def write_crops(
    reader: MapsReader, events: Sequence[Event], folder: Path, flag: Mapping[str, Threshold]
) -> str | None:
    """Write the surroundings of the peak of each event as ``FOLDER/ID.jpg``, which its peak names
    as ``crop``; return a line on frames whose image is missing, of which only the score is shown.

    What is flagged is outlined: the colours of a score may begin above its threshold.

    Args:
        reader: of the maps.
        events: of the maps.
        folder: in which the pictures are written.
        flag: threshold of the score of each event.
    """
    inside(folder.parent, folder.name)
    by_frame: dict[str, list[Event]] = {}
    for event in events:
        by_frame.setdefault(event.peak["frame"], []).append(event)
    frames = [name for name in reader.frames if name in by_frame]
    source, missing = labelled.open_images(reader, None, frames)
    ranges = page_ranges(reader, sorted({event.score for event in events}))
    for name, image, _ in labelled.with_images(frames, source):
        for event in by_frame[name]:
            values = reader.read(name, event.score)
            threshold = flag[event.score]
            kept = reader.kept(values.shape)
            colours = score_colours(values, ranges[event.score], kept)
            prepared = threshold.prepared(values, partial(reader.prediction_of, name), kept)
            flagged = is_flagged(prepared, threshold.value)
            if kept is not None:
                flagged &= kept
            outlines = [(flagged, FLAGGED_STROKES)]
            crop = f"{folder.name}/{event.id:04}.jpg"
            event.peak["crop"] = crop
            path = inside(folder.parent, crop)
            write_file(path, draw_crop(event.boxes[name], image, colours, outlines))
    return missing if frames else None
