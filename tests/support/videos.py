"""What a video file shows."""

from pathlib import Path

import av
import numpy as np


def decoded(path: Path) -> tuple[list[float], list[np.ndarray]]:
    """Return times and pictures of the frames of a video, RGB in the colours that the video
    names."""
    times = []
    pictures = []
    with av.open(str(path)) as container:
        for frame in container.decode(video=0):
            times.append(frame.time)
            picture = frame.reformat(format="rgb24").to_ndarray()
            pictures.append(picture)
    return times, pictures
