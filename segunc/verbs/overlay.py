"""``segunc overlay``: pictures and videos of maps on disk, for print and for showing."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from segunc.core.errors import InputError
from segunc.core.progress import count_frames
from segunc.data.datasets import dataset_entry
from segunc.data.entry import BINARY
from segunc.gallery.pictures import write_pictures
from segunc.gallery.video import frame_rate, video_suffix, write_video
from segunc.options import OverlayOptions


@dataclass(frozen=True)
class OverlayResult:
    """What was drawn."""

    pictures: Mapping[Path, Sequence[Path]]  # by their folder, in the order of the frames
    videos: Mapping[Path, Path] = field(default_factory=dict)  # of these pictures, where one was asked for
    notes: tuple[str, ...] = ()  # what a user should know
    failure: str = ""  # which frames failed, in one line; empty where none did


def overlay(options: OverlayOptions) -> OverlayResult:
    """Draw the pictures, then the video from them.

    Raises:
        InputError: the maps cannot be drawn as asked for.

    >>> result = overlay(OverlayOptions(maps=maps, out=folder / "figures", score=["epistemic"], format="png"))
    >>> [(place.name, len(pictures)) for place, pictures in result.pictures.items()]
    [('overlay-epistemic', 4)]
    """
    if options.video and options.format == "pdf":
        raise InputError("--video with --format pdf", "--format png or jpg", "a video is made from the pictures")
    if options.fps is not None and not options.video:
        raise InputError(f"--fps {options.fps:g} without --video", "both", "add --video")
    entry = dataset_entry(options.dataset) if options.dataset else None
    maps, out = Path(options.maps), Path(options.out)
    rate = frame_rate(maps, options.fps) if options.video else None
    with count_frames() as show:
        written = write_pictures(
            maps,
            out,
            scores=options.score,
            panel=options.panel,
            frames=options.frames,
            suffix=options.format,
            ranges=options.ranges,
            images=options.images,
            anomaly_labels=Path(options.anomaly_labels) if options.anomaly_labels else None,
            anomaly_encoding=(entry.anomaly_encoding if entry else None) or BINARY,
            on_frame=show,
        )
    pictures = {out / name: paths for name, paths in written.pictures.items()}
    videos = {
        folder: write_video(paths, out / f"{folder.name}{video_suffix()}", rate)
        for folder, paths in pictures.items()
        if rate is not None and paths
    }
    return OverlayResult(pictures, videos, tuple(written.notes), written.failure)
