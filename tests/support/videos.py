"""Videos as tests read them back."""

from pathlib import Path

import av
import numpy as np


def decoded(path: Path) -> tuple[list[float], list[np.ndarray]]:
    """Return times and pictures of a video, RGB by BT.601."""
    times = []
    pictures = []
    with av.open(str(path)) as container:
        for frame in container.decode(video=0):
            picture = frame.reformat(format="rgb24", src_colorspace="ITU601")
            times.append(frame.time)
            pictures.append(picture.to_ndarray())
    return times, pictures
