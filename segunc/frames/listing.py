"""What a folder, with all folders in it, or a glob pattern holds."""

from __future__ import annotations

import glob
from dataclasses import dataclass, field
from itertools import takewhile
from pathlib import Path, PurePath

from segunc.core.errors import InputError
from segunc.core.files import frame_order
from segunc.core.terminal import counted
from segunc.data.image_files import ARRAY_SUFFIXES, is_hidden, is_image_file

VIDEO_SUFFIXES = (".mp4", ".webm", ".avi", ".mov", ".mkv", ".m4v", ".mpg", ".mpeg", ".ts")
"""File name endings that are read as videos (any case)."""
UNREAD_SUFFIXES = (
    *(".avif", ".heic", ".heif", ".jxl", ".jp2", ".gif", ".tga", ".exr", ".hdr"),
    *(".ppm", ".pgm", ".pnm", ".raw", ".dng", ".cr2", ".cr3", ".nef", ".arw"),
)
"""Endings of pictures that are not read (any case)."""


@dataclass
class Listing:
    """What a folder, with all folders in it, or a pattern holds."""

    root: Path
    images: list[Path] = field(default_factory=list)
    arrays: list[Path] = field(default_factory=list)
    """Files of arrays, which are images of other than three channels."""
    videos: list[Path] = field(default_factory=list)
    """Of a folder those in itself; of a pattern all."""
    deeper: list[Path] = field(default_factory=list)
    """Videos in the folders of a folder."""
    unread: list[Path] = field(default_factory=list)
    """Pictures of formats that are not read."""
    links: list[Path] = field(default_factory=list)
    """Links to folders, which are not followed."""
    is_bag: bool = False
    """Whether a folder under a URL is a bag of ROS 2."""


def list_input(path: Path) -> Listing:
    """List an absolute path that is a folder, or a pattern as a shell has it.

    Unlike in a shell, ``**`` follows no links: two that lead to folders above them would make more
    paths than can be listed.
    """
    if path.is_dir():
        listing = Listing(path)
        files = [file for file in path.rglob("*") if not is_hidden(file, path)]
    elif path.exists() or not glob.has_magic(str(path)):
        return Listing(path)
    else:
        listing = Listing(fixed_part(path))
        files = _matches(listing.root, path)
    crosses_folders = path == listing.root or "**" in path.parts
    for file in sorted(files, key=lambda file: frame_order(str(file))):
        if is_image_file(file):
            listing.images.append(file)
        elif is_array_file(file):
            listing.arrays.append(file)
        elif file.is_dir():
            if crosses_folders and file.is_symlink():
                listing.links.append(file)
        elif is_video(file):
            is_deeper = path == listing.root and file.parent != path
            videos = listing.deeper if is_deeper else listing.videos
            videos.append(file)
        elif file.suffix.lower() in UNREAD_SUFFIXES:
            listing.unread.append(file)
    return listing


def _matches(root: Path, pattern: Path) -> list[Path]:
    """Return what a pattern matches below its fixed part; hidden files only if it names some."""
    parts = pattern.relative_to(root).parts
    names_hidden = any(part.startswith(".") for part in parts)
    # A last ** stands for folders alone.
    below = Path(*parts, "*") if parts[-1] == "**" else Path(*parts)
    matches = set(root.glob(str(below)))
    return [file for file in matches if names_hidden or not is_hidden(file, root)]


def left_out(path: Path | str, listing: Listing) -> list[str]:
    """Return a line for each kind of thing of a listing that is no frame.

    It says how many there are and which is the first.
    """
    videos = listing.deeper
    if listing.images:
        videos = [*listing.videos, *listing.deeper]
    formats = sorted({file.suffix[1:].upper() for file in listing.unread})
    of_formats = f" of formats that are not read ({', '.join(formats)})"
    kinds = (
        (videos, "video", "", "give a video itself as --input"),
        (listing.unread, "picture", of_formats, "convert them to PNG or JPEG"),
        (listing.links, "link", " to folders", "give a linked folder as another --input"),
    )
    notes: list[str] = []
    for files, noun, of_kind, remedy in kinds:
        if files:
            number = f"{counted(len(files), noun)}{of_kind}"
            first = files[0].relative_to(listing.root).as_posix()
            notes.append(f"{path}: {number} left out, first {first}; {remedy}")
    return notes


def no_image(subject: str, listing: Listing) -> InputError:
    """Return the error for an input without an image, which says what it holds instead."""
    fact = f"{subject} holds no image"
    if listing.arrays:
        fact += f" of three channels, but {len(listing.arrays)} arrays"
        hint = "arrays are frames of a network that takes other than three channels"
        return InputError(f"{fact}, first {listing.arrays[0]}", hint=hint)
    if listing.videos:
        return InputError(fact, hint=f"give a video itself: {listing.videos[0]}")
    if listing.deeper:
        first = listing.deeper[0]
        fact += f", but {counted(len(listing.deeper), 'video')} in its folders, first {first}"
        return InputError(fact, hint=f"--input '{first.parent}/*{first.suffix}' takes those of one")
    if listing.unread:
        first = listing.unread[0]
        fact += f" that is read, but {len(listing.unread)} of other formats, first {first}"
        return InputError(fact, hint="convert them to PNG or JPEG")
    if listing.links:
        fact += f", but {len(listing.links)} links to folders, first {listing.links[0]}"
        return InputError(fact, hint="give the linked folder itself")
    return InputError(fact, hint="check the path")


def fixed_part(pattern: Path) -> Path:
    """Return the folders of a pattern before its first wildcard."""
    return Path(*takewhile(lambda part: not glob.has_magic(part), pattern.parts))


def is_array_file(path: Path) -> bool:
    """Return whether a path is a file that is named as an array."""
    return path.suffix.lower() in ARRAY_SUFFIXES and not path.is_dir()


def is_video(path: PurePath) -> bool:
    """Return whether a path is named as a video."""
    return path.suffix.lower() in VIDEO_SUFFIXES
