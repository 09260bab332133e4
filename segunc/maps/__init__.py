"""Maps on disk: frame sources, the encoding of scores, writers and readers, the manifest, resume."""

from __future__ import annotations

import os

# FFmpeg's own complaints (-8 is its level "quiet") would stand beside our one line on standard error. OpenCV reads this
# when the first video of the process is opened or written, so it is set before anything here can do so.
os.environ.setdefault("OPENCV_FFMPEG_LOGLEVEL", "-8")
