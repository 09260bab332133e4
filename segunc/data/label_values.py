"""Which raw values a label file holds, looked up once in a process."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from segunc.data.label_images import read_label_image
from segunc.errors import InputError

_FOUND: dict[tuple[Path, int, int], frozenset[int]] = {}
"""By path, size and time of change, so that a file which is written anew is read anew."""


def label_values(path: Path) -> frozenset[int]:
    """The raw values in 0..255 that occur in a label file; remembered for the life of the process.

    Raises:
        InputError: the file cannot be read; see :func:`segunc.data.label_images.read_label_image`.
    """
    try:
        status = path.stat()
    except OSError as error:
        raise InputError(f"label {path} cannot be read ({error.strerror})", "a PNG", "check the path") from error
    key = (path, status.st_size, status.st_mtime_ns)
    if key not in _FOUND:
        counts = np.bincount(read_label_image(path).ravel(), minlength=256)
        _FOUND[key] = frozenset(np.flatnonzero(counts).tolist())
    return _FOUND[key]
