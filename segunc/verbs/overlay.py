"""``segunc overlay``: pictures of score maps over their images, and videos of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from segunc.core.errors import InputError
from segunc.core.progress import ConsoleProgress
from segunc.core.results import VerbResult
from segunc.core.terminal import counted
from segunc.core.urls import local_folder
from segunc.decisions.flags import Threshold, read_thresholds
from segunc.gallery.pictures import PAGE_FORMATS, frame_rate, write_pictures, write_video
from segunc.gallery.rerun_recording import Forecast, write_recording
from segunc.options import OverlayOptions, takes
from segunc.verbs.evaluate import label_sources


@dataclass(frozen=True, repr=False)
class OverlayResult(VerbResult):
    """What was drawn.

    Attributes:
        pictures: the pictures in each folder, in the order of the frames.
        videos: the video of each folder of pictures, if videos were asked for.
        notes: what a user should know.
        failure: which frames failed, in one line; empty where none did.
        recording: the file for the Rerun viewer, if it was asked for.
    """

    pictures: Mapping[Path, Sequence[Path]]
    videos: Mapping[Path, Path]
    notes: tuple[str, ...] = ()
    failure: str = ""
    recording: Path | None = None


@takes(OverlayOptions)
def overlay(options: OverlayOptions) -> OverlayResult:
    """Draw the pictures, then the video from them.

    Raises:
        InputError: the maps cannot be drawn as asked for.

    >>> asked = OverlayOptions(maps=maps, out=folder / "figures", score=["epistemic"])
    >>> result = overlay(asked)
    >>> [(place.name, len(pictures)) for place, pictures in result.pictures.items()]
    [('overlay-epistemic', 4)]
    """
    if options.fps is not None and not options.video:
        raise InputError(
            f"--fps {options.fps:g} sets the frame rate of a video, but no video is made",
            hint="add --video",
        )
    if options.video_format != "webm" and not options.video and options.to != "rerun":
        raise InputError(
            f"--video-format {options.video_format} is the format of a video, but no video is made",
            hint="add --video",
        )
    if options.video and options.format in PAGE_FORMATS:
        raise InputError(
            f"--format {options.format} makes pages, of which no video is made",
            hint="--format png --video",
        )
    if options.to == "rerun":
        return _record(options)
    maps = local_folder(options.maps)
    out = Path(options.out)
    rate = None
    if options.video:
        rate = options.fps or frame_rate(maps)
    flag = read_thresholds(options.flag)
    labels = label_sources(options)
    with ConsoleProgress() as progress:
        written = write_pictures(
            maps,
            out,
            labels,
            progress.count,
            score=options.score,
            frames=options.frames,
            images=options.images,
            ranges=options.ranges,
            format=options.format,
            flag=flag,
        )
    pictures = {out / name: paths for name, paths in written.pictures.items()}
    videos = {}
    if rate is not None:
        times = written.times if options.fps is None else []
        for folder, paths in pictures.items():
            video = out / f"{folder.name}.{options.video_format}"
            videos[folder] = write_video(paths, video, rate, times)
    notes = (*labels.notes, *written.notes, *_promises(flag))
    return OverlayResult(pictures, videos, notes, written.failure)


def _promises(flag: Mapping[str, Threshold]) -> list[str]:
    """Return what the thresholds promise, a line each."""
    return [
        f"flagged by {threshold.source}: {threshold.statement}"
        for threshold in flag.values()
        if threshold.promise
    ]


def _record(options: OverlayOptions) -> OverlayResult:
    """Write the recording for the Rerun viewer.

    Raises:
        InputError: an option is given that only pictures have.
    """
    for name, unused in (("format", "png"), ("video", False), ("video_format", "webm")):
        if getattr(options, name) != unused:
            flag_name = "--" + name.replace("_", "-")
            raise InputError(
                f"--to rerun takes no {flag_name}, which is for pictures",
                hint=f"leave out {flag_name}",
            )
    flag = read_thresholds(options.flag)
    labels = label_sources(options)
    with ConsoleProgress() as progress:
        written = write_recording(
            local_folder(options.maps),
            Path(options.out),
            labels,
            progress.count,
            on_size=lambda forecast: progress.say(_size_words(forecast)),
            score=options.score,
            frames=options.frames,
            images=options.images,
            ranges=options.ranges,
            flag=flag,
        )
    notes = (*labels.notes, *written.notes, *_promises(flag))
    return OverlayResult({}, {}, notes, written.failure, written.path)


def _size_words(forecast: Forecast) -> str:
    """Return a line on the size that a recording will have."""
    frames = counted(forecast.frames, "frame")
    scores = counted(forecast.scores, "score")
    return (
        f"the recording will take about {forecast.size / 1e6:,.0f} MB, for {frames} with {scores}; "
        "--score A,B takes fewer scores, and --frames fewer frames"
    )
