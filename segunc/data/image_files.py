"""Which files below a folder are images."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Sequence
from pathlib import Path

from segunc.core.errors import InputError, NoteWarning
from segunc.core.files import shown_name
from segunc.core.terminal import counted

IMAGE_SUFFIXES = (".png", ".jpg", ".jpeg", ".bmp", ".tif", ".tiff", ".webp")
"""File name endings that are read as images (any case)."""
ARRAY_SUFFIXES = (".npy",)
"""Endings of arrays ``[H, W, K]``, which are images of other than three channels (any case)."""
LOSSY_SUFFIXES = (".jpg", ".jpeg", ".webp")
"""Endings of photographs, which are no labels."""


def list_images(folder: Path) -> list[Path]:
    """Return all image files below a folder, sorted by relative path.

    Raises:
        InputError: the folder is missing or holds no image.
    """
    return images_ending_in(folder, "", f"image names end in {', '.join(IMAGE_SUFFIXES)}")


def image_files(folder: Path) -> list[Path]:
    """Return all image files below a folder, sorted by relative path, without hidden files.

    A folder that does not exist gives an empty list. Links to folders are not followed, which a
    :class:`NoteWarning` says.
    """
    files: list[Path] = []
    links: list[Path] = []
    for path in folder.rglob("*"):
        if is_hidden(path, folder):
            continue
        if is_image_file(path):
            files.append(path)
        elif path.is_symlink() and path.is_dir():
            links.append(path)
    if links:
        warnings.warn(_note_on_links(folder, links), NoteWarning, stacklevel=2)
    return sorted(files, key=lambda path: path.relative_to(folder).as_posix())


def _note_on_links(folder: Path, links: Sequence[Path]) -> str:
    """Return a sentence on links to folders below a folder."""
    first = min(link.relative_to(folder).as_posix() for link in links)
    return (
        f"{folder}: {counted(len(links), 'link')} to folders left out, first {first}; "
        "put the folder itself in the place of the link"
    )


def check_names(files: Iterable[Path]) -> None:
    """Raise InputError for a file whose name is not UTF-8: no list of frames and no record could
    hold it.
    """
    for path in files:
        shown = shown_name(str(path))
        if shown != str(path):
            raise InputError(
                f"the name of {shown} is not UTF-8", hint="rename or remove the file or its folder"
            )


def is_hidden(path: Path, folder: Path) -> bool:
    """Return whether a path below a folder is hidden.

    Such is the file ``._NAME`` that a Mac writes beside NAME on a foreign disk.
    """
    return any(part.startswith(".") for part in path.relative_to(folder).parts)


def is_image_file(path: Path) -> bool:
    """Return whether a path is a file that is named as an image.

    A broken link is one, too, so that reading it raises an error.
    """
    return path.suffix.lower() in IMAGE_SUFFIXES and not path.is_dir()


def images_ending_in(folder: Path, ending: str, described: str) -> list[Path]:
    """Return the image files of a folder whose stem ends in ``ending``.

    Raises:
        InputError: there are none; the hint is ``described``.
    """
    files = [path for path in image_files(folder) if path.stem.endswith(ending)]
    if files:
        return files
    if folder.is_dir():
        kind = f"image whose name ends in '{ending}'" if ending else "image"
        raise InputError(f"folder {folder} holds no {kind}", hint=described)
    raise InputError(f"folder {folder} does not exist", hint=described)
