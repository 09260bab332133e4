"""A maps folder as a recording for the Rerun viewer (https://rerun.io): a time line with the image,
the prediction, the scores and the flagged regions of each frame.

It is written by Rerun's own library, because the file format belongs to its version. Everything of
a frame has one size, at most :data:`LONGEST_SIDE` pixels on a side, so that regions lie where they
belong in every view.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from segunc.colours import DisplayRange
from segunc.core.errors import InputError, PartialFailure, failed_frames, one_line
from segunc.core.files import replacing
from segunc.data.images import Image, resize_nearest
from segunc.decisions.flags import Threshold
from segunc.gallery.colours import class_colours, page_ranges
from segunc.gallery.condensed import fitting_size, shrink
from segunc.gallery.drawing import NO_LABELS
from segunc.gallery.frame_files import region_threshold
from segunc.gallery.pictures import check_flags, choose_frames
from segunc.gallery.review_page import run_id
from segunc.maps import labelled
from segunc.maps.encoding import encode_jpeg
from segunc.maps.known_frames import note_on_known_maps
from segunc.maps.manifest import is_ours
from segunc.maps.reader import MapsReader
from segunc.maps.regions import mean_of_kept, strongest_regions
from segunc.maps.shards import frame_times

if TYPE_CHECKING:
    import rerun

FILE_NAME = "recording.rrd"
LONGEST_SIDE = 960  # pixels
MAX_REGIONS = 32  # of a score in a frame, the strongest ones
# Entities of the recording; those of scores have the name of the score below.
IMAGE = "image"
PREDICTION = "prediction"
LABEL = "label"
SCORES = "scores"
FLAGGED = "flagged"
MEANS = "mean"
FRAME_LINE = "frame"  # the time lines: the number of the frame, and the seconds in its video
TIME_LINE = "time"
LABEL_CLASSES = (
    (0, "normal", (90, 90, 90)),
    (1, "anomaly", (255, 255, 255)),
    (255, "ignored", (0, 0, 0)),
)


@dataclass
class WrittenRecording:
    """What a recording holds.

    Attributes:
        path: of the file.
        frames: number of frames in it.
        failed: frame -> why it is not in it.
        notes: lines for the user.
    """

    path: Path
    frames: int = 0
    failed: dict[str, str] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)

    @property
    def failure(self) -> str:
        """Say which frames failed, in one line; empty where none did."""
        return failed_frames(self.failed, "is not in the recording")


@dataclass(frozen=True)
class Forecast:
    """How large a recording will be.

    Scores are stored as they are, float16 without compression, because the viewer shows the value
    under the pointer. So all frames of one size take nearly the same number of bytes.

    Attributes:
        size: expected size of the file in bytes, from the size of its first frame.
        frames: number of frames that go into it.
        scores: number of scores of each frame.
    """

    size: int
    frames: int
    scores: int


def import_rerun() -> Any:
    """Return Rerun's library.

    Raises:
        InputError: it is not installed.
    """
    try:
        import rerun
    except ImportError as error:
        raise InputError(
            "--to rerun needs the package rerun-sdk, which is not installed",
            hint='pip install "segunc[rerun]"',
        ) from error
    return rerun


def write_recording(  # noqa: PLR0913  each is an option of `segunc overlay`
    maps: Path,
    out: Path,
    labels: labelled.LabelSources = NO_LABELS,
    on_frame: Callable[[int, int], None] = lambda done, total: None,
    *,
    on_size: Callable[[Forecast], None] = lambda forecast: None,
    score: Sequence[str] | None = None,
    frames: Sequence[str] | None = None,
    images: str | None = None,
    ranges: Mapping[str, tuple[float, float]] | None = None,
    flag: Mapping[str, Threshold] | None = None,
) -> WrittenRecording:
    """Write frames of a maps folder as ``OUT/recording.rrd``, which appears when it is whole.

    A frame that cannot be read does not stop the others. The keyword settings are those of
    :class:`segunc.options.OverlayOptions`; without ``score`` all scores are in the recording.

    Args:
        maps: a maps folder.
        out: the output folder.
        labels: where the labels of frames come from.
        on_frame: is called with the number of frames done and their total.
        on_size: is called once, after the first frame that could be written, with the size that the
            file will have.
        flag: score -> threshold from which on pixels belong to a flagged region, in place of that
            which the maps record.

    Raises:
        InputError: Rerun is not installed, no maps, an unknown score, a flag of other maps, no such
            frame, or an output in a maps folder.
        PartialFailure: no frame could be read.
    """
    library = import_rerun()
    reader = labelled.open_maps(maps)
    if is_ours(out) or out.resolve().is_relative_to(maps.resolve()):
        raise InputError(f"output {out} is or lies inside a maps folder", hint="give another --out")
    scores = labelled.choose_scores(reader, score)
    names = choose_frames(reader, frames)
    flag = flag or {}
    check_flags(reader, flag, scores)
    writer = _RecordingWriter(
        library, reader, page_ranges(reader, scores, ranges), labels.find(reader, names), flag
    )
    times = list(frame_times(names, reader.records, reader.manifest))
    source, missing = labelled.open_images(reader, images, names)
    written = WrittenRecording(out / FILE_NAME)
    known = note_on_known_maps(reader.manifest, reader.records)
    written.notes += [text for text in (missing, reader.unfinished, known) if text]
    out.mkdir(parents=True, exist_ok=True)
    with replacing(written.path) as file:
        recording = library.RecordingStream("segunc", recording_id=run_id(reader))
        recording.set_log_time_enabled(False)
        recording.set_log_tick_enabled(False)
        recording.save(file.name)
        writer.describe(recording)
        described = _size_so_far(recording, file.name)
        for place, (name, image, _) in enumerate(labelled.with_images(names, source)):
            try:
                writer.write(recording, place, name, image, times[place])
            except InputError as error:
                written.failed[name] = one_line(error)
            else:
                written.frames += 1
                if written.frames == 1:
                    of_frame = _size_so_far(recording, file.name) - described
                    size = described + of_frame * len(names)
                    on_size(Forecast(size, len(names), len(scores)))
            on_frame(place + 1, len(names))
        recording.disconnect()
        if not written.frames:
            raise PartialFailure(written.failure)
    return written


def _size_so_far(recording: rerun.RecordingStream, path: str) -> int:
    """Return the bytes of the file, once all that was logged is in it."""
    recording.flush()
    return os.path.getsize(path)


@dataclass(frozen=True)
class _RecordingWriter:
    """Logs the frames of a maps folder into a recording."""

    library: Any  # the module rerun
    reader: MapsReader
    ranges: Mapping[str, DisplayRange]  # of each score
    labels: labelled.ReviewLabels
    flag: Mapping[str, Threshold]

    def describe(self, recording: rerun.RecordingStream) -> None:
        """Log the classes, and which views stand beside each other."""
        blueprint = self.library.blueprint
        classes = []
        for number, entry in enumerate(class_colours(self.reader)):
            classes.append((number, entry["name"], tuple(entry["colour"])))
        context = self.library.AnnotationContext
        recording.log(PREDICTION, context(classes), static=True)
        recording.log(LABEL, context(LABEL_CLASSES), static=True)
        views = [
            blueprint.Spatial2DView(origin=IMAGE, name="image and flagged regions"),
            blueprint.Spatial2DView(origin=PREDICTION, name=PREDICTION),
        ]
        if self.labels.anomaly_files:
            views.append(blueprint.Spatial2DView(origin=LABEL, name=LABEL))
        for score in self.ranges:
            path = f"{SCORES}/{score}"
            contents = [f"/{path}", f"/{IMAGE}/{FLAGGED}/{score}"]
            views.append(blueprint.Spatial2DView(origin=path, contents=contents, name=score))
        plots = blueprint.TimeSeriesView(origin=MEANS, name="mean of each score")
        rows = blueprint.Vertical(blueprint.Grid(*views), plots, row_shares=[4, 1])
        recording.send_blueprint(blueprint.Blueprint(rows))

    def write(
        self,
        recording: rerun.RecordingStream,
        place: int,
        name: str,
        image: Image | None,
        time: float | None,
    ) -> None:
        """Log a frame.

        Raises:
            InputError: one of its maps cannot be read.
        """
        library = self.library
        maps = {score: self.reader.read(name, score) for score in self.ranges}
        prediction = self.reader.prediction_of(name)
        label = self.labels.anomaly(name)
        recording.set_time(FRAME_LINE, sequence=place)
        if time is not None:
            recording.set_time(TIME_LINE, duration=time)
        recording.log("name", library.TextDocument(name))
        # The viewer shows the last thing that was logged, so what this frame lacks is cleared.
        nothing = library.Clear(recursive=False)
        if image is None:
            recording.log(IMAGE, nothing)
        else:
            jpeg = encode_jpeg(shrink(image, LONGEST_SIDE))
            recording.log(IMAGE, library.EncodedImage(contents=jpeg, media_type="image/jpeg"))
        for path, ids in ((PREDICTION, prediction), (LABEL, label)):
            if ids is None:
                recording.log(path, nothing)
            else:
                recording.log(path, library.SegmentationImage(_shrunk_ids(ids)))
        for score, values in maps.items():
            shown = self.ranges[score]
            # Of all that Rerun draws, a depth image alone has colours over a fixed range, and shows
            # the value under the pointer.
            small = library.DepthImage(
                shrink(values, LONGEST_SIDE).astype(np.float16),
                colormap="plasma",
                depth_range=[shown.low, shown.high],
            )
            recording.log(f"{SCORES}/{score}", small)
            mean = mean_of_kept(values, self.reader.kept(values.shape))
            recording.log(f"{MEANS}/{score}", library.Scalars(mean))
            self._write_regions(recording, name, score, values, prediction)

    def _write_regions(
        self,
        recording: rerun.RecordingStream,
        name: str,
        score: str,
        values: npt.NDArray[np.floating],
        prediction: npt.NDArray[np.uint8] | None,
    ) -> None:
        """Log the boxes of the flagged regions of a score."""
        threshold = self.flag.get(score)
        kept = self.reader.kept(values.shape)
        smallest = Threshold.smallest
        if threshold is None:
            value = region_threshold(self.reader, score)
            if value is None:
                return
        else:
            value = threshold.value
            smallest = threshold.smallest
            values = threshold.prepared(values, lambda: prediction, kept)
        regions = strongest_regions(values, value, smallest=smallest, kept=kept, most=MAX_REGIONS)
        height, width = values.shape
        small_height, small_width = fitting_size(values.shape, LONGEST_SIDE)
        scale = np.array([small_width / width, small_height / height])
        boxes = np.array([region.box for region in regions], np.float64).reshape(-1, 4)
        labels = []
        for region in regions:
            x, y = region.peak
            labels.append(f"{score} {values[y, x]:.3g}, {region.area} pixels")
        recording.log(
            f"{IMAGE}/{FLAGGED}/{score}",
            self.library.Boxes2D(
                mins=boxes[:, :2] * scale, sizes=boxes[:, 2:] * scale, labels=labels
            ),
        )


def _shrunk_ids(ids: npt.NDArray[np.uint8]) -> npt.NDArray[np.uint8]:
    """Return class ids ``[H, W]`` with at most :data:`LONGEST_SIDE` pixels on a side."""
    height, width = fitting_size(ids.shape, LONGEST_SIDE)
    return np.asarray(resize_nearest(ids, width, height), np.uint8)
