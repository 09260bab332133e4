"""Which label file belongs to which frame: by name, or by a known suffix form."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from pathlib import Path

from segunc.errors import InputError

IMAGE_SUFFIXES = (".png", ".jpg", ".jpeg", ".bmp", ".tif", ".tiff", ".webp")
"""File name endings that are read as images (any case)."""
FRAME_ENDINGS = ("_leftImg8bit", "_rgb_anon", "_image", "_rgb")
"""Endings of frame names that label names do not carry."""
LABEL_ENDINGS = (
    "_gtFine_labelIds",
    "_gtCoarse_labelIds",
    "_gt_labelTrainIds",
    "_labelIds",
    "_leftLabel",
    "_train_id",
    "_labels_semantic",
    "_anomaly",
    "_labels",
    "_label",
    "_mask",
    "_gt",
)
"""Endings of label names that frame names do not carry."""


def frame_stem(name: str) -> str:
    """The part of a frame's or label's name that both share: known endings removed, folders kept."""
    for ending in (*LABEL_ENDINGS, *FRAME_ENDINGS):
        if name.endswith(ending):
            return name.removesuffix(ending)
    return name


def list_images(folder: Path) -> list[Path]:
    """All image files below ``folder``, sorted by relative path.

    Raises:
        InputError: the folder is missing or holds no image.
    """
    if not folder.is_dir():
        raise InputError(f"folder {folder} does not exist", "a folder of images", "check the path")
    found = image_files(folder)
    if not found:
        raise InputError(
            f"folder {folder} holds no image", f"files ending in {', '.join(IMAGE_SUFFIXES)}", "check the path"
        )
    return found


def image_files(folder: Path) -> list[Path]:
    """All image files below ``folder``, sorted by relative path; none where there is no such folder."""
    return sorted(
        (p for p in folder.rglob("*") if p.suffix.lower() in IMAGE_SUFFIXES and p.is_file()),
        key=lambda p: p.relative_to(folder).as_posix(),
    )


def find_labels(folder: Path, frames: Iterable[str]) -> dict[str, Path]:
    """The label file of each frame that has one, of all image files below ``folder``; see :func:`match_labels`.

    Raises:
        InputError: the folder is missing or empty, or two files claim one frame.
    """
    return match_labels(folder, list_images(folder), frames)


def match_labels(
    folder: Path, files: Iterable[Path], frames: Iterable[str], label_stem: Callable[[str], str] = frame_stem
) -> dict[str, Path]:
    """The label file of each frame that has one: frame name -> path.

    A label of frame ``a/b_leftImg8bit`` is ``a/b_leftImg8bit.png``, or ``a/b`` with any known ending, or, where
    that is unambiguous on both sides, the same name in any other folder below ``folder``.

    Args:
        folder: where the labels lie.
        files: the label files, below ``folder``.
        frames: names of frames.
        label_stem: a label's path relative to ``folder``, without suffix -> what it shares with its frame's name.

    Raises:
        InputError: two files claim one frame.
    """
    by_path: dict[str, list[Path]] = {}
    by_stem: dict[str, list[Path]] = {}
    for path in files:
        stem = label_stem(path.relative_to(folder).with_suffix("").as_posix())
        by_path.setdefault(stem, []).append(path)
        by_stem.setdefault(stem.rsplit("/", 1)[-1], []).append(path)
    labels: dict[str, Path] = {}
    frames = list(frames)
    # Two frames of one name in different folders must not share the one label of that name.
    bearers = Counter(frame_stem(frame).rsplit("/", 1)[-1] for frame in frames)
    for frame in frames:
        stem = frame_stem(frame)
        name = stem.rsplit("/", 1)[-1]
        candidates = by_path.get(stem) or (by_stem.get(name, []) if bearers[name] == 1 else [])
        exact = [p for p in candidates if p.relative_to(folder).with_suffix("").as_posix() == frame]
        candidates = exact or candidates
        if len(candidates) > 1:
            names = ", ".join(p.relative_to(folder).as_posix() for p in candidates[:3])
            raise InputError(
                f"frame {frame} has {len(candidates)} labels in {folder}: {names}",
                "one label for each frame",
                "remove or rename the others",
            )
        if candidates:
            labels[frame] = candidates[0]
    return labels
