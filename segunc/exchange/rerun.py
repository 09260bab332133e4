"""A maps folder as a recording of the Rerun viewer (https://rerun.io): image, prediction and scores on a time line.

Written through the viewer's own SDK, an extra: the file format is bound to its version.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from segunc.core.errors import InputError
from segunc.core.files import PARTIAL_SUFFIX
from segunc.exchange.export import ExportSummary
from segunc.exchange.viewers import ViewerFrame, ViewerMaps
from segunc.gallery.colormap import COLOUR_MAP, DisplayRange
from segunc.gallery.description import describe_classes, run_id
from segunc.maps.encoding import encode_jpeg
from segunc.maps.statistics import STATISTICS

if TYPE_CHECKING:
    import rerun

SUFFIX = ".rrd"
IMAGE, PREDICTION, SCORES, FRAME_STATISTICS = "image", "prediction", "scores", "statistics"
"""Entities of a recording; scores and statistics have a name below."""
FRAME_TIMELINE, TIME_TIMELINE = "frame", "time"


def export_rerun(
    maps: Path,
    out: Path,
    *,
    scores: Sequence[str] | None = None,
    images: str | Path | None = None,
    overwrite: bool = False,
    on_frame: Callable[[int, int], None] | None = None,
) -> ExportSummary:
    """Write a maps folder as one ``.rrd`` file, which appears when it is complete.

    Scores are float32 in real units, shown in the colours and the fixed ranges of the overlays; their statistics are plots.

    Args:
        maps: the maps folder, of this tool or any other.
        out: the file, ending in ``.rrd``.
        scores: the scores to carry; None is all.
        images: the source images; None is the input that the manifest records.
        overwrite: replace a file.
        on_frame: called after each frame with the number of frames done and their total.

    Raises:
        InputError: the SDK is not installed, another ending, a file that is there, no maps, or an unknown score.
    """
    try:
        import rerun
    except ImportError as error:
        raise InputError(
            f"--to rerun without its SDK ({error})", "the extra 'rerun'", "pip install 'segunc[rerun]'"
        ) from error
    if out.suffix != SUFFIX:
        raise InputError(f"recording {out}", f"a name ending in {SUFFIX}", "the viewer opens files of that name")
    if out.exists() and not overwrite:
        raise InputError(f"{out} is there already", "a new file", "give another --out, or --overwrite")
    content = ViewerMaps(maps, scores, images)
    out.parent.mkdir(parents=True, exist_ok=True)
    partial = out.with_name(f".{out.name}{PARTIAL_SUFFIX}")
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

    classes = [
        (index, entry["name"], tuple(entry["colour"]))
        for index, entry in enumerate(describe_classes(content.reader, None))
    ]
    recording.log(PREDICTION, rerun.AnnotationContext(classes), static=True)
    views = [IMAGE, PREDICTION, *(f"{SCORES}/{score}" for score in content.scores)]
    grid = blueprint.Grid(*(blueprint.Spatial2DView(origin=view, name=view) for view in views))
    plots = blueprint.TimeSeriesView(origin=FRAME_STATISTICS, name=FRAME_STATISTICS)
    recording.send_blueprint(blueprint.Blueprint(blueprint.Vertical(grid, plots, row_shares=[4, 1])))


def _log(recording: rerun.RecordingStream, frame: ViewerFrame, ranges: dict[str, DisplayRange]) -> None:
    import rerun

    recording.set_time(FRAME_TIMELINE, sequence=frame.place)
    if frame.time is not None:
        recording.set_time(TIME_TIMELINE, duration=frame.time)
    recording.log("name", rerun.TextDocument(frame.name))
    if frame.image is not None:
        recording.log(IMAGE, rerun.EncodedImage(contents=encode_jpeg(frame.image), media_type="image/jpeg"))
    if frame.prediction is not None:
        recording.log(PREDICTION, rerun.SegmentationImage(frame.prediction))
    for score, values in frame.scores.items():
        shown = ranges[score]
        # The one archetype with a colour map, a range and the value under the pointer; nothing is taken for a distance.
        shows = rerun.DepthImage(values, colormap=COLOUR_MAP, depth_range=[shown.low, shown.high])
        recording.log(f"{SCORES}/{score}", shows)
        for statistic in STATISTICS:
            value = frame.record.get(statistic, {}).get(score)
            if value is not None:
                recording.log(f"{FRAME_STATISTICS}/{score}/{statistic}", rerun.Scalars(value))
