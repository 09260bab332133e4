"""Names of frames and of their labels: what both share, and the frames that a person or another
program means by a name.
"""

from __future__ import annotations

import os
import unicodedata
from collections.abc import Iterable
from pathlib import Path

from segunc.data.image_files import IMAGE_SUFFIXES

FRAME_ENDINGS = ("_leftImg8bit", "_rgb_anon", "_image", "_rgb")
"""Endings of frame names that label names do not carry."""
LABEL_ENDINGS = (
    "_gtFine_labelIds",
    "_gtCoarse_labelIds",
    "_gt_labelTrainIds",
    "_labelIds",
    "_leftLabel",
    "_train_id",
    "_gtFine_labellevel3Ids",
    "_labels_semantic",
    "_anomaly",
    "_labels",
    "_label",
    "_mask",
    "_gt",
)
"""Endings of label names that frame names do not carry."""
LABEL_FOLDERS = (
    "labels",
    "labels_masks",
    "masks",
    "annotations",
    "annot",
    "gtFine",
    "gtCoarse",
    "gtAnomaly",
)
"""Usual names of folders that hold labels, or endings of these names."""
FILE_ENDINGS = (*IMAGE_SUFFIXES, ".npy", ".hdf5", ".h5")
"""Endings of images and maps, in lower case."""


def frame_stem(name: str) -> str:
    """Return the part of a name that a frame and its label share.

    Known endings are removed, folders are kept.
    """
    for ending in (*LABEL_ENDINGS, *FRAME_ENDINGS):
        if name.endswith(ending):
            return name.removesuffix(ending)
    return name


def composed(name: str) -> str:
    """Return a name in the composed form of Unicode (NFC).

    A Mac writes an accent as a character of its own.
    """
    return unicodedata.normalize("NFC", name)


def frame_name(folder: Path, path: Path) -> str:
    """Return the name of a frame or label: its relative path without suffix, :func:`composed`."""
    return composed(path.relative_to(folder).with_suffix("").as_posix())


def frames_named(names: Iterable[str], frames: Iterable[str]) -> dict[str, str | None]:
    """Return the frame that each name means, None where it means none.

    A name means the frame that is called so, however its accents are written. A name that ends as a
    file may also mean the frame without this ending: ``a/b.png`` means the frame ``a/b``, unless a
    frame is called ``a/b.png``.
    """
    by_name = {composed(frame): frame for frame in frames}
    meant: dict[str, str | None] = {}
    for name in names:
        written = composed(name)
        stem, ending = os.path.splitext(written)
        if written not in by_name and ending.lower() in FILE_ENDINGS:
            written = stem
        meant[name] = by_name.get(written)
    return meant
