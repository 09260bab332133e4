"""Names of frames that a person or another program wrote: the frames that they mean."""

from __future__ import annotations

import os
from collections.abc import Iterable

from segunc.data.entry import IMAGE_SUFFIXES, composed

FILE_ENDINGS = (*IMAGE_SUFFIXES, ".npy", ".hdf5", ".h5")  # of images and maps, in any case


def frames_named(names: Iterable[str], frames: Iterable[str]) -> dict[str, str | None]:
    """Return the frame that each name means, None where it means none. That is the frame of this
    name, however its accents are written, or else the one of this name without the ending of a
    file: ``a/b.png`` means the frame ``a/b``, unless one is called ``a/b.png``."""
    by_name = {composed(frame): frame for frame in frames}
    meant: dict[str, str | None] = {}
    for name in names:
        written = composed(name)
        stem, ending = os.path.splitext(written)
        if written not in by_name and ending.lower() in FILE_ENDINGS:
            written = stem
        meant[name] = by_name.get(written)
    return meant
