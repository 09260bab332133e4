"""Which files below a folder are images."""

from __future__ import annotations

from pathlib import Path

from segunc.core.errors import InputError

IMAGE_SUFFIXES = (".png", ".jpg", ".jpeg", ".bmp", ".tif", ".tiff", ".webp")
"""File name endings that are read as images (any case)."""
LOSSY_SUFFIXES = (".jpg", ".jpeg", ".webp")  # of photographs, which are no labels


def list_images(folder: Path) -> list[Path]:
    """Return all image files below a folder, sorted by relative path; raise InputError where it is
    missing or holds none.
    """
    return images_ending_in(folder, "", f"image names end in {', '.join(IMAGE_SUFFIXES)}")


def image_files(folder: Path) -> list[Path]:
    """Return all image files below a folder but hidden ones, sorted by relative path; none where
    there is no such folder.
    """
    files = (
        path for path in folder.rglob("*") if is_image_file(path) and not is_hidden(path, folder)
    )
    return sorted(files, key=lambda path: path.relative_to(folder).as_posix())


def is_hidden(path: Path, folder: Path) -> bool:
    """Return whether a path below a folder is hidden, such as the file ``._NAME`` that a Mac writes
    beside NAME on a foreign disk.
    """
    return any(part.startswith(".") for part in path.relative_to(folder).parts)


def is_image_file(path: Path) -> bool:
    """Return whether a path is a file that is named as an image."""
    return (
        path.suffix.lower() in IMAGE_SUFFIXES and not path.is_dir()
    )  # a broken link raises an error when it is read


def images_ending_in(folder: Path, ending: str, described: str) -> list[Path]:
    """Return the image files of a folder whose stem ends in ``ending``; raise InputError where
    there are none.
    """
    files = [path for path in image_files(folder) if path.stem.endswith(ending)]
    if not files:
        lack = f"holds no image *{ending}.png|jpg|..." if folder.is_dir() else "does not exist"
        raise InputError(f"folder {folder} {lack}", hint=described)
    return files
