"""Names of frames and of their labels: what both share, and the frames that a person or another
program means by a name.
"""

from __future__ import annotations

import fnmatch
import os
import re
import unicodedata
from collections.abc import Iterable
from pathlib import Path

from segunc.core.errors import InputError
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


WILDCARD = re.compile(r"(?<![].])[*?]|(?<=])[*?]\Z")
"""A star or a question mark that repeats neither "any character" nor a set of characters, or that
stands behind a set at the end. Repeating that set there would find the same as leaving it out."""
ONLY_REGULAR = re.compile(r"[\\^$(){}|+]")
"""Characters that have a meaning in regular expressions alone."""


HINT_PATTERNS = "'^night/' or 'night/*' takes the frames whose names begin with night/"


def is_wildcard_pattern(pattern: str) -> bool:
    """Return whether a pattern of frames is one of whole names, as ``night/*``, and no regular
    expression.

    >>> [is_wildcard_pattern(text) for text in ("night/*", "01[5-9]*", "^night", "f.*0", "f0")]
    [True, True, False, False, False]
    """
    return WILDCARD.search(pattern) is not None and ONLY_REGULAR.search(pattern) is None


def is_plain_name(pattern: str) -> bool:
    """Return whether a pattern of frames can be no more than a name."""
    return re.search(r"[][*?]", pattern) is None and ONLY_REGULAR.search(pattern) is None


def compiled_pattern(pattern: str) -> re.Pattern[str]:
    """Return what is searched for in :func:`composed` names of frames: a regular expression, or the
    whole names that a pattern with ``*`` and ``?`` stands for, with or without the ending of a
    file.

    Raises:
        InputError: it is neither.

    >>> [bool(compiled_pattern(text).search("night/0012")) for text in ("night", "ht/*", "n*.png")]
    [True, False, True]
    """
    written = composed(pattern)
    if not is_wildcard_pattern(written):
        try:
            return re.compile(written)
        except re.error as error:
            raise InputError(
                f"--frames '{pattern}' is not a regular expression ({error})", hint=HINT_PATTERNS
            ) from error
    stem, ending = os.path.splitext(written)
    if ending.lower() not in FILE_ENDINGS:
        return re.compile(rf"\A{fnmatch.translate(written)}")
    return re.compile(rf"\A(?:{fnmatch.translate(written)}|{fnmatch.translate(stem)})")
