"""Pictures of maps on disk for print, each score over its image, and videos of them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, Literal

import cv2
import numpy as np

from segunc.core.errors import InputError, PartialFailure, one_line
from segunc.core.files import inside, replacing, write_file
from segunc.data.frame_names import composed, frames_named
from segunc.data.images import Image, read_image
from segunc.decisions.events import Event
from segunc.decisions.flags import Threshold, check_promises
from segunc.frames.video import encode_video
from segunc.gallery.colours import colourise, page_ranges
from segunc.gallery.drawing import NO_LABELS, Legend, draw_overlay, frame_caption, resize
from segunc.maps import labelled
from segunc.maps.encoding import encode_jpeg, encode_png
from segunc.maps.manifest import is_ours, read_manifest
from segunc.maps.reader import MapsReader
from segunc.maps.shards import every_of, frame_times
from segunc.scores import first_shown

VIDEO_SUFFIX = ".webm"  # VP8, which every browser plays
MAXIMUM_WIDTH = (
    1280  # wider pictures are scaled down: VP8 is encoded on one core, and a review needs no more
)
CROP_WIDTH, CROP_HEIGHT = 240, 180  # of each of the two views of a crop


@dataclass
class WrittenPictures:
    """What was drawn."""

    pictures: dict[
        str, list[Path]
    ]  # folder below the output -> its pictures in the order of the frames
    notes: list[str]  # lines for the user
    times: list[float | None] = field(
        default_factory=list
    )  # seconds in the video of the frames that were drawn
    failed: dict[str, str] = field(default_factory=dict)  # frame -> why it has no picture

    @property
    def failure(self) -> str:
        """Say which frames failed, in one line; empty where none did."""
        first = "{} ({})".format(*next(iter(self.failed.items()), ("", "")))
        kept = "; the pictures of the others are kept"
        return (
            f"{len(self.failed)} frames could not be drawn, first {first}{kept}"
            if self.failed
            else ""
        )


def write_pictures(
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
    format: Literal["png", "jpg"] = "png",
) -> WrittenPictures:
    """Draw frames of a maps folder into ``OUT/overlay-SCORE/F.ext``. A frame that cannot be drawn
    does not stop the others. ``on_frame`` is told frames done and their total; the settings are
    those of :class:`segunc.options.OverlayOptions`.

    Raises:
        InputError: no maps, an unknown score, a flag of a score that is not drawn or of other maps,
            no such frame, no images, or an output in a maps folder.
        PartialFailure: no label belongs to a frame.
    """
    reader = labelled.open_maps(maps)
    if is_ours(out) or out.resolve().is_relative_to(maps.resolve()):
        raise InputError(f"output {out} is or lies inside a maps folder", hint="give another --out")
    scores = labelled.choose_scores(reader, score or [first_shown(reader.scores)])
    names = _choose_frames(reader, frames)
    for drawn_score in scores:
        for name in names:
            inside(out, picture_name(drawn_score, name, format))  # before the work
    check_promises(flag or {}, (reader.manifest or {}).get("run", {}))
    if strange := sorted(set(flag or {}) - set(scores)):
        raise InputError(
            f"'{strange[0]}' is flagged but not drawn",
            hint=f"--score {','.join((*scores, strange[0]))}",
        )
    shown = page_ranges(reader, scores, ranges)
    legends = {s: Legend.of(reader.manifest, s, shown[s], (flag or {}).get(s)) for s in scores}
    times = dict(zip(names, frame_times(names, reader.records, reader.manifest), strict=True))
    found_labels = labels.find(reader, names)
    source, missing = labelled.open_images(reader, images, names)
    if source is None:
        raise InputError(f"overlays of {maps} need images ({missing})", hint="give --images PATH")
    written = WrittenPictures({}, [text for text in (missing, reader.unfinished) if text])
    for done, (name, image, error) in enumerate(labelled.with_images(names, source), start=1):
        try:
            if image is None:
                raise InputError(
                    f"frame {name} has no image ({error or 'the source does not hold it'})"
                )
            label = found_labels.anomaly(name)
            style: dict[str, Any] = {
                "anomaly": None if label is None else label == 1,
                "caption": frame_caption(name, times[name]),
            }
            read = [(legend, reader.read(name, legend.score)) for legend in legends.values()]
            drawn = [
                (legend.score, draw_overlay(image, values, legend, **style))
                for legend, values in read
            ]
            for name_of_score, picture in drawn:
                path = inside(out, picture_name(name_of_score, name, format))
                write_file(path, (encode_png if format == "png" else encode_jpeg)(picture))
                written.pictures.setdefault(f"overlay-{name_of_score}", []).append(path)
        except InputError as problem:
            written.failed[name] = str(problem)
        else:
            written.times.append(times[name])
        on_frame(done, len(names))
    return written


def picture_name(score: str, frame: str, format: str) -> str:
    """Return the name of the picture of a frame below its output folder."""
    return f"overlay-{score}/{frame}.{format}"


def _choose_frames(reader: MapsReader, patterns: Sequence[str] | None) -> list[str]:
    """Return the frames that equal or match a pattern, in source order; InputError for a pattern
    without a frame.
    """
    if patterns is None:
        return list(reader.frames)
    wanted = set()
    named = frames_named(patterns, reader.frames)
    for pattern in patterns:
        matched = {name for name in reader.frames if fnmatchcase(composed(name), composed(pattern))}
        if (frame := named[pattern]) is not None:
            matched.add(frame)
        if not matched:
            like = reader.frames[0]
            raise InputError(
                f"no frame of {reader.folder} is named '{pattern}'; they have names like {like}"
            )
        wanted |= matched
    return [name for name in reader.frames if name in wanted]


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
    """Write pictures of one shape as a WebM video; it appears when complete.

    Args:
        pictures: files of one shape.
        out: the video.
        fps: frames a second, where a time is unknown.
        times: seconds of each picture; where all are known, the video keeps a variable rate.
        on_whole: is called with the whole video before it takes its place at ``out``.

    Raises:
        PartialFailure: the encoder failed, or a picture cannot be read or has another shape; no
            file is left.
    """
    recorded = [time for time in times if time is not None]
    timed = len(recorded) == len(pictures)
    moments = (
        [time - recorded[0] for time in recorded]
        if timed
        else [i / fps for i in range(len(pictures))]
    )
    first = _read(pictures[0])
    scale = min(1.0, MAXIMUM_WIDTH / first.shape[1])
    width, height = (max(2, round(side * scale) // 2 * 2) for side in first.shape[1::-1])
    frames = (
        (time, resize(_read(path, first.shape), width, height))
        for time, path in zip(moments, pictures, strict=True)
    )
    try:
        with replacing(out) as file:
            encode_video(Path(file.name), frames, fps, (height, width))
            on_whole(Path(file.name))
    except OSError as error:
        why = f"video {out} cannot be written ({error.strerror or one_line(error)}); the pictures are kept"
        raise PartialFailure(why) from error
    return out


def _read(path: Path, shape: tuple[int, ...] | None = None) -> Image:
    try:
        picture = read_image(path)
    except (OSError, ValueError) as error:
        raise PartialFailure(
            f"overlay {path} cannot be read ({error}); no video was written"
        ) from error
    if picture.shape != (shape or picture.shape):
        raise PartialFailure(
            f"overlay {path} has another size than the first; no video was written"
        )
    return picture


def draw_crop(box: Sequence[int], image: Any, score: Any) -> bytes:
    """Draw the surroundings of a box (left, top, width, height) in the image, where there is one,
    and in the score's colours ``[H, W, 3]`` side by side, as a JPEG.
    """
    left, top, width, height = box
    rows, columns = score.shape[:2]
    wide = min(
        max(2.5 * width, 2.5 * height * CROP_WIDTH / CROP_HEIGHT, columns / 5),
        columns,
        rows * CROP_WIDTH / CROP_HEIGHT,
    )
    scale, high, views = CROP_WIDTH / wide, wide * CROP_HEIGHT / CROP_WIDTH, []
    x = int(np.clip(left + width / 2 - wide / 2, 0, columns - wide))
    y = int(np.clip(top + height / 2 - high / 2, 0, rows - high))
    corners = (left, top), (left + width, top + height)
    start, end = ((round((a - x) * scale), round((b - y) * scale)) for a, b in corners)
    for picture in (score,) if image is None else (cv2.resize(image, (columns, rows)), score):
        part = picture[y : y + round(high), x : x + round(wide)]
        view = cv2.resize(part, (CROP_WIDTH, CROP_HEIGHT), interpolation=cv2.INTER_AREA)
        for colour, thickness in (((0, 0, 0), 4), ((255, 255, 255), 2)):
            cv2.rectangle(view, start, end, colour, thickness, cv2.LINE_AA)
        views.append(view)
    return encode_jpeg(np.hstack(views), 82)


def write_crops(reader: MapsReader, events: Sequence[Event], folder: Path) -> str | None:
    """Write the surroundings of the peak of each event as ``FOLDER/ID.jpg``, which its peak names
    as ``crop``; return a line on frames whose image is missing, of which only the score is shown.
    """
    inside(folder.parent, folder.name)
    frames = [
        name for name in reader.frames if any(event.peak["frame"] == name for event in events)
    ]
    source, missing = labelled.open_images(reader, None, frames)
    ranges = page_ranges(reader, sorted({event.score for event in events}))
    for name, image, _ in labelled.with_images(frames, source):
        for event in (event for event in events if event.peak["frame"] == name):
            colours = colourise(reader.read(name, event.score), ranges[event.score])
            event.peak["crop"] = f"{folder.name}/{event.id:04}.jpg"
            path = inside(folder.parent, f"{folder.name}/{event.id:04}.jpg")
            write_file(path, draw_crop(event.boxes[name], image, colours))
    return missing if frames else None
