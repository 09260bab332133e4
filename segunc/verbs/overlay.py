"""``segunc overlay``: pictures of score maps over their images, and videos of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from segunc.core.errors import InputError
from segunc.core.progress import ConsoleProgress
from segunc.core.results import VerbResult
from segunc.core.urls import local_folder
from segunc.decisions.flags import read_thresholds
from segunc.gallery.pictures import PAGE_FORMATS, frame_rate, write_pictures, write_video
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
    """

    pictures: Mapping[Path, Sequence[Path]]
    videos: Mapping[Path, Path]
    notes: tuple[str, ...] = ()
    failure: str = ""


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
    if options.video and options.format in PAGE_FORMATS:
        raise InputError(
            f"--format {options.format} makes pages, of which no video is made",
            hint="--format png --video",
        )
    maps = local_folder(options.maps)
    out = Path(options.out)
    rate = None
    if options.video:
        rate = options.fps or frame_rate(maps)
    flag = read_thresholds(options.flag)
    with ConsoleProgress() as progress:
        written = write_pictures(
            maps,
            out,
            label_sources(options),
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
    promises = [
        f"flagged by {threshold.source}: {threshold.statement}"
        for threshold in flag.values()
        if threshold.promise
    ]
    return OverlayResult(pictures, videos, (*written.notes, *promises), written.failure)
