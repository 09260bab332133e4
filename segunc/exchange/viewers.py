"""What viewers are given of a maps folder, and the recording of the Rerun viewer (https://rerun.io): image, prediction and scores
on a time line, written through its own SDK, an extra, because the format is bound to its version."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from segunc.core.errors import InputError
from segunc.core.files import partial_of
from segunc.data.images import Image
from segunc.exchange.export import ExportResult
from segunc.gallery.colormap import COLOUR_MAP, DisplayRange, page_ranges
from segunc.gallery.description import describe_classes, run_id
from segunc.gallery.inputs import choose_scores, frame_times, open_images, open_maps, with_images
from segunc.maps.encoding import encode_jpeg
from segunc.maps.folder import PREDICTION
from segunc.maps.reader import MapsReader
from segunc.maps.shards import STATISTICS

if TYPE_CHECKING:
    import rerun

SUFFIX = ".rrd"


@dataclass(frozen=True, eq=False)
class ViewerFrame:
    """One frame; what the source or the maps do not hold is None or left out."""

    name: str
    place: int  # among the frames, from 0
    time: float | None  # seconds in its video
    image: Image | None  # RGB uint8 [H, W, 3]
    prediction: npt.NDArray[np.uint8] | None  # class ids [H, W]
    scores: dict[str, npt.NDArray[np.float32]]  # in real units, [H, W]
    record: Mapping[str, Any]  # its line of frames.jsonl


class ViewerMaps:
    """A maps folder, of this tool or any other, as viewers want it: with the scores to carry, None for all, and the source
    images, None for the input that the manifest records. InputError: no maps, an unknown score, or no such images."""

    def __init__(self, maps: Path, scores: Sequence[str] | None = None, images: str | Path | None = None) -> None:
        self.reader: MapsReader = open_maps(maps)
        self.scores = choose_scores(self.reader, scores)
        self._source, missing = open_images(self.reader, images, self.reader.frames)
        self._notes = [text for text in (missing, self.reader.unfinished) if text]

    @cached_property
    def ranges(self) -> dict[str, DisplayRange]:
        """The range in which each of the scores is shown."""
        return page_ranges(self.reader, scores=self.scores)

    def export(
        self, out: Path, write: Callable[[ViewerFrame], None], on_frame: Callable[[int, int], None] | None
    ) -> ExportResult:
        """Hand every frame to ``write``; one whose maps cannot be read, or that is refused, does not stop the others."""
        reader, names = self.reader, self.reader.frames
        summary = ExportResult(out, total=len(names), notes=list(self._notes))
        times = frame_times(reader, names)
        for place, (name, image, _) in enumerate(with_images(names, self._source)):
            with summary.counting(name, on_frame):
                prediction = reader.prediction(name) if reader.has(name, PREDICTION) else None
                scores = {score: reader.read(name, score) for score in self.scores if reader.has(name, score)}
                write(ViewerFrame(name, place, times[place], image, prediction, scores, reader.records.get(name, {})))
        return summary


def export_rerun(
    content: ViewerMaps, out: Path, *, overwrite: bool = False, on_frame: Callable[[int, int], None] | None = None
) -> ExportResult:
    """Write maps as one ``.rrd`` file, which appears when it is complete; ``on_frame`` is told the frames done and their total.

    Scores are float32 in real units, shown in the colours and the fixed ranges of the overlays; their statistics are plots.
    InputError: the SDK is not installed, another ending, or a file that is there and that nobody asked to overwrite.
    """
    try:
        import rerun
    except ImportError as error:
        remedy = "pip install 'segunc[rerun]'"
        raise InputError(f"--to rerun without its SDK ({error})", "the extra 'rerun'", remedy) from error
    if out.suffix != SUFFIX:
        raise InputError(f"recording {out}", f"a name ending in {SUFFIX}", "the viewer opens files of that name")
    if out.exists() and not overwrite:
        raise InputError(f"{out} is there already", "a new file", "give another --out, or --overwrite")
    out.parent.mkdir(parents=True, exist_ok=True)
    partial = partial_of(out)
    recording = rerun.RecordingStream("segunc", recording_id=run_id(content.reader))
    try:
        recording.save(partial)
        _describe(recording, content)
        summary = content.export(out, lambda frame: _log(recording, frame, content.ranges), on_frame)
    except BaseException:
        recording.disconnect()
        partial.unlink(missing_ok=True)
        raise
    recording.disconnect()
    os.replace(partial, out)
    return summary


def _describe(recording: rerun.RecordingStream, content: ViewerMaps) -> None:
    """Class names and colours, and which views stand beside one another."""
    import rerun
    from rerun import blueprint

    described = describe_classes(content.reader, None)
    classes = [(index, entry["name"], tuple(entry["colour"])) for index, entry in enumerate(described)]
    recording.log("prediction", rerun.AnnotationContext(classes), static=True)
    views = ["image", "prediction", *(f"scores/{score}" for score in content.scores)]
    grid = blueprint.Grid(*(blueprint.Spatial2DView(origin=view, name=view) for view in views))
    plots = blueprint.TimeSeriesView(origin="statistics", name="statistics")
    recording.send_blueprint(blueprint.Blueprint(blueprint.Vertical(grid, plots, row_shares=[4, 1])))


def _log(recording: rerun.RecordingStream, frame: ViewerFrame, ranges: Mapping[str, DisplayRange]) -> None:
    import rerun

    recording.set_time("frame", sequence=frame.place)
    if frame.time is not None:
        recording.set_time("time", duration=frame.time)
    recording.log("name", rerun.TextDocument(frame.name))
    if frame.image is not None:
        recording.log("image", rerun.EncodedImage(contents=encode_jpeg(frame.image), media_type="image/jpeg"))
    if frame.prediction is not None:
        recording.log("prediction", rerun.SegmentationImage(frame.prediction))
    for score, values in frame.scores.items():
        shown = ranges[score]
        # The one archetype with a colour map, a range and the value under the pointer; nothing is taken for a distance.
        shows = rerun.DepthImage(values, colormap=COLOUR_MAP, depth_range=[shown.low, shown.high])
        recording.log(f"scores/{score}", shows)
        for statistic in STATISTICS:
            value = frame.record.get(statistic, {}).get(score)
            if value is not None:
                recording.log(f"statistics/{score}/{statistic}", rerun.Scalars(value))
