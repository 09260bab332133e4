"""The list of frames that ``segunc init`` writes: a CSV of split, image and label, whose paths are
relative to the root of the data.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path, PurePosixPath
from typing import NamedTuple

from segunc.core.errors import InputError
from segunc.core.files import read_rows, reading, safe_name
from segunc.core.terminal import counted
from segunc.data.frame_names import composed

FRAME_COLUMNS = ("split", "image", "label")
DISJOINT_SPLITS = ("train", "val", "validation", "test")
"""No image may be in two of these splits."""


class FrameRow(NamedTuple):
    """A row of a list of frames; both paths are relative to the root."""

    split: str
    image: str
    label: str


def read_frame_list(path: Path) -> list[FrameRow]:
    """Return the rows of a list of frames.

    Raises:
        InputError: the file is not such a list, a split is a usual one in another spelling, a path
            leads out of the root, or two rows of one split have images of one name.
    """
    with reading(f"list of frames {path}", "a CSV file in UTF-8", "segunc init writes it"):
        header, *rows = read_rows(path) or [[]]
    is_complete = all(len(row) == len(header) for row in rows)
    if tuple(header) != FRAME_COLUMNS or not rows or not is_complete:
        raise InputError(
            f"{path} does not hold rows of {','.join(FRAME_COLUMNS)} under that line",
            hint="write it again with segunc init",
        )
    frames = [FrameRow(*row) for row in rows]
    for frame in frames:
        _check_split(path, frame)
        _check_below_root(path, frame.image)
        _check_below_root(path, frame.label)
    _check_names(path, frames)
    return frames


def _check_split(list_path: Path, frame: FrameRow) -> None:
    """Raise InputError for an empty split, or a usual one in another spelling, such as ``Train``:
    no verb would see its frames.
    """
    usual = frame.split.strip().lower()
    if not usual or (usual != frame.split and usual in DISJOINT_SPLITS):
        raise InputError(
            f"{list_path} has {frame.image} in the split '{frame.split}'",
            hint=f"write {usual or 'train, val or test'}, in small letters and without spaces",
        )


def _check_below_root(list_path: Path, path: str) -> None:
    """Raise InputError for a path of a list that is absolute or leads above the root.

    The list may come from somebody else.
    """
    # ./a.png is a path below the root, as a.png is.
    below = PurePosixPath(path).as_posix()
    try:
        safe_name(below, f"a file of the list of frames {list_path}")
    except InputError as error:
        hint = "write paths below the root with /, and give a root that holds all files"
        raise InputError(error.message, hint=hint) from error


def _check_names(list_path: Path, frames: Iterable[FrameRow]) -> None:
    """Raise InputError if two rows of a list have images of one name in one split."""
    image_of: dict[tuple[str, str], str] = {}  # by split and name of the frame
    for frame in frames:
        name = os.path.splitext(one_spelling(frame.image))[0]
        other = image_of.get((frame.split, name))
        if other is not None:
            both = f"{frame.image} twice" if other == frame.image else f"{other} and {frame.image}"
            raise InputError(
                f"{list_path} has {both} in split {frame.split}, which is one frame by its name",
                hint="remove one of the two rows",
            )
        image_of[frame.split, name] = frame.image


def images_in_two_splits(list_path: Path) -> str:
    """Return a sentence on the images that a list has in two of the :data:`DISJOINT_SPLITS`.

    Empty if there are none.
    """
    split_of: dict[str, str] = {}
    shared: list[str] = []
    for frame in read_frame_list(list_path):
        if frame.split not in DISJOINT_SPLITS:
            continue
        first_split = split_of.setdefault(one_spelling(frame.image), frame.split)
        if first_split != frame.split:
            shared.append(f"{frame.image} is both in {first_split} and in {frame.split}")
    if not shared:
        return ""
    return f"{list_path} has {counted(len(shared), 'image')} in two splits: {shared[0]}"


def one_spelling(image: str) -> str:
    """Return the path of an image in one of its spellings."""
    return composed(os.path.normpath(image))
