"""``segunc overlay``: pictures of score maps over their images, and videos of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from segunc.core.errors import InputError
from segunc.core.progress import ConsoleProgress
from segunc.decisions.flags import read_thresholds
from segunc.gallery.pictures import VIDEO_SUFFIX, frame_rate, write_pictures, write_video
from segunc.options import OverlayOptions, takes
from segunc.verbs.evaluate import label_sources


class OverlayResult(NamedTuple):
    """What was drawn."""

    pictures: Mapping[Path, Sequence[Path]]  # by their folder, in the order of the frames
    videos: Mapping[Path, Path]  # of these pictures, where one was asked for
    notes: tuple[str, ...] = ()  # what a user should know
    failure: str = ""  # which frames failed, in one line; empty where none did


@takes(OverlayOptions)
def overlay(options: OverlayOptions) -> OverlayResult:
    """Draw the pictures, then the video from them.

    Raises:
        InputError: the maps cannot be drawn as asked for.

    >>> result = overlay(OverlayOptions(maps=maps, out=folder / "figures", score=["epistemic"], format="png"))
    >>> [(place.name, len(pictures)) for place, pictures in result.pictures.items()]
    [('overlay-epistemic', 4)]
    """
    if options.fps is not None and not options.video:
        raise InputError(
            f"--fps {options.fps:g} is the rate of a video, which was not asked for",
            hint="add --video",
        )
    maps, out = Path(options.maps), Path(options.out)
    rate = (options.fps or frame_rate(maps)) if options.video else None
    asked = ("score", "frames", "images", "ranges", "format")
    settings: dict[str, Any] = {name: getattr(options, name) for name in asked}
    flag = read_thresholds(options.flag)
    promises = [f"flagged by {of.source}: {of.statement}" for of in flag.values() if of.promise]
    with ConsoleProgress() as show:
        written = write_pictures(
            maps, out, label_sources(options), show.count, flag=flag, **settings
        )
    pictures = {out / name: paths for name, paths in written.pictures.items()}
    times = written.times if options.fps is None else []
    videos = {
        folder: write_video(paths, out / f"{folder.name}{VIDEO_SUFFIX}", rate, times)
        for folder, paths in pictures.items()
        if rate is not None
    }
    return OverlayResult(pictures, videos, (*written.notes, *promises), written.failure)
