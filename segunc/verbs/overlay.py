"""``segunc overlay``: pictures and videos of maps on disk, for print and for showing."""

from __future__ import annotations

import argparse
import time
from pathlib import Path

from segunc.core.errors import InputError
from segunc.core.progress import ConsoleProgress, Progress
from segunc.data.datasets import dataset_entry
from segunc.data.entry import BINARY
from segunc.review.pictures import PictureRequest, write_pictures
from segunc.review.video import frame_rate, video_suffix, write_video


def run(arguments: argparse.Namespace) -> None:
    """Draw the pictures, then the video from them."""
    if arguments.video and arguments.format == "pdf":
        raise InputError("--video with --format pdf", "--format png or jpg", "a video is made from the pictures")
    if arguments.fps is not None and not arguments.video:
        raise InputError(f"--fps {arguments.fps:g} without --video", "both", "add --video")
    entry = dataset_entry(arguments.dataset) if arguments.dataset else None
    request = PictureRequest(
        scores=arguments.score,
        panel=arguments.panel,
        frames=arguments.frames,
        suffix=arguments.format,
        ranges=arguments.ranges,
        images=arguments.images,
        anomaly_labels=Path(arguments.anomaly_labels) if arguments.anomaly_labels else None,
        anomaly_encoding=(entry.anomaly_encoding if entry else None) or BINARY,
    )
    maps, out = Path(arguments.maps), Path(arguments.out)
    rate = frame_rate(maps, arguments.fps) if arguments.video else None
    start = time.monotonic()
    with ConsoleProgress() as show:
        written = write_pictures(
            maps, out, request, on_frame=lambda done, total: show(Progress(done, 0, 0, total, time.monotonic() - start))
        )
    for note in written.notes:
        print(f"note: {note}")
    for name, paths in written.pictures.items():
        print(f"{len(paths)} pictures in {out / name}")
        if rate is not None and paths:
            print(f"video: {write_video(paths, out / f'{name}{video_suffix()}', rate)}")
    written.raise_failures()
