"""Where frames come from: an image, a folder, a glob pattern or a video, as one stream with names:
the path relative to the input without the suffix, folders kept with ``/``; of a video the number of
the frame, six digits from ``000000``.
"""

from __future__ import annotations

import contextlib
import glob
import hashlib
import os
import re
import warnings
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import takewhile
from pathlib import Path
from typing import Any

from segunc.core.errors import InputError, NoteWarning
from segunc.core.files import frame_order, inside, safe_name
from segunc.data.frame_names import composed
from segunc.data.image_files import IMAGE_SUFFIXES, is_hidden, is_image_file
from segunc.data.images import PixelDepth, read_image
from segunc.data.layouts import without_labels
from segunc.frames.source import ALL_FRAMES, Frame, FrameSource, Kind, Selection, Skip, sampled_hash
from segunc.frames.video import VideoSource

VIDEO_SUFFIXES = (".mp4", ".webm", ".avi", ".mov", ".mkv", ".m4v", ".mpg", ".mpeg", ".ts")
"""File name endings that are read as videos (any case)."""
UNREAD_SUFFIXES = (
    *(".avif", ".heic", ".heif", ".jxl", ".jp2", ".gif", ".tga", ".exr", ".hdr"),
    *(".ppm", ".pgm", ".pnm", ".raw", ".dng", ".cr2", ".cr3", ".nef", ".arw"),
)
"""Endings of pictures that are not read (any case)."""
STAMP_STRETCHES = 4
"""Pieces of an image file that its stamp reads: few, for a resumed run reads those of all frames."""
STAMP_LENGTH = 4096
"""Bytes of each piece."""


class ImageSource(FrameSource):
    """Image files in the order of their names (:func:`segunc.core.files.frame_order`).

    Each is decoded when its turn comes; only relative paths are kept in memory.

    Raises:
        InputError: two images have one name, or the selection is by time.
    """

    def __init__(
        self,
        kind: Kind,
        path: Path,
        root: Path,
        files: list[Path],
        selection: Selection = ALL_FRAMES,
    ) -> None:
        if selection.timed:
            raise InputError(f"images have no times: {path}", hint="leave --start and --end out")
        self.kind = kind
        self.path = path
        self.selection = selection
        self._root = root
        relative = [file.relative_to(root).as_posix() for file in files]
        relative.sort(key=lambda file: frame_order(_stem(file)))
        file_of: dict[str, str] = {}
        for file in relative:
            # A letter with an accent may be written as one sign or as two.
            first = file_of.setdefault(composed(_stem(file)), file)
            if first != file:
                raise InputError(
                    f"{root / first} and {root / file} are both frame '{_stem(first)}'",
                    hint="rename or remove one",
                )
        self._files = relative[:: selection.every]
        self.depth = PixelDepth()
        self.length = len(self._files)
        self.length_hint = self.length

    def name_of(self, index: int) -> str | None:
        return _stem(self._files[index]) if index < len(self._files) else None

    def describe(self) -> dict[str, Any]:
        """Return what a manifest records of the source.

        A hash of the names of its frames is part of it: shards of one run share the list.
        """
        digest = hashlib.sha256()
        for file in self._files:
            digest.update(composed(_stem(file)).encode() + b"\n")
        return super().describe() | {"names_sha256": digest.hexdigest()}

    def stamp(self, index: int) -> str | None:
        with contextlib.suppress(OSError):
            return stamp_of(self._root / self._files[index])
        return None

    def frames(self, skip: Skip | None = None) -> Iterator[Frame]:
        for index, relative in enumerate(self._files):
            name = _stem(relative)
            if skip is None or not skip(index, name):
                yield self._read(index, name, self._root / relative)

    def _read(self, index: int, name: str, file: Path) -> Frame:
        """Return a frame, or the reason why its file gives none."""
        shown = self._root / f"{name}{file.suffix}"
        try:
            if shown != file:
                raise ValueError(
                    "no map can have this name; rename the image in letters, digits, '-' and '_'"
                )
            # Before reading: a file that is replaced meanwhile is read again by the next run.
            stamp = stamp_of(file)
            image = read_image(file, self.depth, strict=True)
            return Frame(name, index, image, stamp=stamp)
        except MemoryError:
            return Frame(name, index, image=None, error=f"{shown}: not enough memory")
        except (OSError, ValueError) as error:
            reason = getattr(error, "strerror", None) or error
            return Frame(name, index, image=None, error=f"{shown}: {reason}")


def _stem(relative: str) -> str:
    """Return the name of a frame by its file's.

    A name that no map may have (of other bytes than UTF-8, of several lines, with the drive letter
    of another system) is written in ASCII, with backslashes, which no other name has.
    """
    stem = os.path.splitext(relative)[0]
    try:
        return safe_name(stem, "a file")
    except InputError:
        return ascii(stem)[1:-1].replace(":", "\\x3a")


def stamp_of(file: Path) -> str:
    """Return the :func:`sampled_hash` of an image file that frames carry."""
    return sampled_hash(file, STAMP_STRETCHES, STAMP_LENGTH)


def open_source(
    spec: str | Path,
    *,
    out: Path | None = None,
    selection: Selection = ALL_FRAMES,
    all_images: bool = True,
) -> FrameSource:
    """Open an image file, a folder (all images below it), a glob pattern or a video.

    A path that exists is taken as it is, so names with ``[`` or ``*`` can be given. ``**`` in a
    pattern crosses folders. Videos, pictures of formats that are not read and linked folders in a
    folder or behind a pattern are left out; the source has a note on each kind.

    Args:
        spec: what to open.
        out: where maps will be written. It must not lie below the input, where maps would become
            frames of the next run.
        selection: which frames are taken.
        all_images: also take images that :func:`segunc.data.layouts.without_labels` leaves out.

    Raises:
        InputError: the input does not exist, holds no image, or holds the output.
    """
    path = Path(spec).expanduser().absolute()
    if path.is_file():
        return _open_file(spec, path, selection)
    if not path.exists() and not glob.has_magic(str(path)):
        raise InputError(
            f"input {spec} does not exist",
            hint="give an image, a folder, a glob pattern or a video",
        )
    kind: Kind = "folder" if path.is_dir() else "glob"
    listing = _listed(path)
    root = listing.root
    if not listing.images:
        raise _no_image(f"{kind} {spec}", listing)
    crosses_folders = kind == "folder" or "**" in path.parts
    if crosses_folders and out is not None and out.resolve().is_relative_to(root.resolve()):
        raise InputError(
            f"output {out} lies inside the input {root}, so its maps would be taken for frames",
            hint="give another --out",
        )
    frames = listing.images if all_images else without_labels(root, listing.images)
    source = ImageSource(kind, path, root, frames, selection)
    notes = _left_out(path, listing)
    labels = sorted(set(listing.images) - set(frames))
    if labels:
        example = labels[0].relative_to(root).as_posix()
        notes.append(
            f"{path}: {len(frames)} images; {len(labels)} others left out as labels, "
            f"e.g. {example} (--all-images takes them)"
        )
    source.notes = tuple(notes)
    return source


def _open_file(spec: str | Path, path: Path, selection: Selection) -> FrameSource:
    """Open a file that is a video or an image by its name; messages call it ``spec``."""
    if _is_video(path):
        return VideoSource(path, selection)
    if is_image_file(path):
        return ImageSource("image", path, path.parent, [path], selection)
    raise InputError(
        f"input {spec} is neither an image nor a video by its name",
        hint=f"names end in {', '.join((*IMAGE_SUFFIXES, *VIDEO_SUFFIXES))}",
    )


def _is_video(path: Path) -> bool:
    return path.suffix.lower() in VIDEO_SUFFIXES


@dataclass
class Listing:
    """What a folder, with all folders in it, or a pattern holds."""

    root: Path
    images: list[Path] = field(default_factory=list)
    videos: list[Path] = field(default_factory=list)
    """Of a folder those in itself; of a pattern all."""
    deeper: list[Path] = field(default_factory=list)
    """Videos in the folders of a folder."""
    unread: list[Path] = field(default_factory=list)
    """Pictures of formats that are not read."""
    links: list[Path] = field(default_factory=list)
    """Links to folders, which are not followed."""


def _listed(path: Path) -> Listing:
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
        listing = Listing(_fixed_part(path))
        files = _matches(listing.root, path)
    crosses_folders = path == listing.root or "**" in path.parts
    for file in sorted(files, key=lambda file: frame_order(str(file))):
        if is_image_file(file):
            listing.images.append(file)
        elif file.is_dir():
            if crosses_folders and file.is_symlink():
                listing.links.append(file)
        elif _is_video(file):
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


def _left_out(path: Path, listing: Listing) -> list[str]:
    """Return a line for each kind of thing of a listing that is no frame.

    It says how many there are and which is the first.
    """
    videos = listing.deeper
    if listing.images:
        videos = [*listing.videos, *listing.deeper]
    formats = sorted({file.suffix[1:].upper() for file in listing.unread})
    pictures = f"pictures of formats that are not read ({', '.join(formats)})"
    kinds = (
        (videos, "videos", "give a video itself as --input"),
        (listing.unread, pictures, "convert them to PNG or JPEG"),
        (listing.links, "links to folders", "give a linked folder as another --input"),
    )
    notes: list[str] = []
    for files, kind, remedy in kinds:
        if files:
            first = files[0].relative_to(listing.root).as_posix()
            notes.append(f"{path}: {len(files)} {kind} left out, first {first}; {remedy}")
    return notes


def _no_image(subject: str, listing: Listing) -> InputError:
    """Return the error for an input without an image, which says what it holds instead."""
    fact = f"{subject} holds no image"
    if listing.videos:
        return InputError(fact, hint=f"give a video itself: {listing.videos[0]}")
    if listing.deeper:
        first = listing.deeper[0]
        fact += f", but {len(listing.deeper)} videos in its folders, first {first}"
        return InputError(fact, hint=f"--input '{first.parent}/*{first.suffix}' takes those of one")
    if listing.unread:
        first = listing.unread[0]
        fact += f" that is read, but {len(listing.unread)} of other formats, first {first}"
        return InputError(fact, hint="convert them to PNG or JPEG")
    if listing.links:
        fact += f", but {len(listing.links)} links to folders, first {listing.links[0]}"
        return InputError(fact, hint="give the linked folder itself")
    return InputError(fact, hint="check the path")


def recorded_images(spec: str, stamps: Mapping[str, str | None]) -> ImageSource | None:
    """Return the images of frames at the place that a manifest records, None if there are none.

    No folder is listed. A manifest may come from anywhere and name any place of this disk, so an
    image is taken only if its bytes have the stamp that was recorded of the frame: whoever wrote
    that has had the image.

    Args:
        spec: the place.
        stamps: the stamp of each frame by its name, None for a frame without one.
    """
    path = Path(spec)
    if path.is_dir():
        root = path
    elif path.is_file():
        root = path.parent
    else:
        root = _fixed_part(path)
    files: list[Path] = []
    for name, stamp in stamps.items():
        file = _image_of_stamp(root, name, stamp) if stamp else None
        if file is not None:
            files.append(file)
    return ImageSource("folder", root, root, files) if files else None


def _image_of_stamp(root: Path, name: str, stamp: str) -> Path | None:
    """Return the image of a frame below a root, if its bytes have the stamp."""
    for ending in IMAGE_SUFFIXES:
        for spelling in (ending, ending.upper()):
            file = root / f"{name}{spelling}"
            if _has_stamp(file, stamp):
                return file
    return None


def _has_stamp(file: Path, stamp: str) -> bool:
    """Return whether a path is a file of this stamp.

    False also if it cannot be a file, for example because its name is too long.
    """
    try:
        return file.is_file() and stamp_of(file) == stamp
    except OSError:
        return False


def _fixed_part(pattern: Path) -> Path:
    """Return the folders of a pattern before its first wildcard."""
    return Path(*takewhile(lambda part: not glob.has_magic(part), pattern.parts))


@dataclass(frozen=True)
class Input:
    """One input of a run."""

    spec: str
    """What :func:`open_source` takes."""
    out: Path
    """Its maps folder."""
    label: str = ""
    """Its name in progress and messages; empty for a single input."""


def plan_inputs(specs: Sequence[str], out: Path) -> list[Input]:
    """Return the inputs of a run and their maps folders.

    A folder or a pattern that holds videos and no image stands for its videos. A single input has
    ``out`` itself as its maps folder. Of several, each has a sub-folder with the name of the file
    (without its suffix) or folder; if two have one name, folders above it are joined in front with
    ``_`` until the names differ.

    Raises:
        InputError: two inputs would have one maps folder.
    """
    expanded: list[str] = []
    for spec in specs:
        path = Path(spec).expanduser().absolute()
        listing = _listed(path)
        if listing.images or not listing.videos:
            expanded.append(spec)
            continue
        expanded += [str(video) for video in listing.videos]
        for note in _left_out(path, listing):
            warnings.warn(note, NoteWarning, stacklevel=2)
    if len(expanded) == 1:
        return [Input(expanded[0], out)]
    names = _different_names([_name_parts(spec) for spec in expanded])
    name, times_used = Counter(names).most_common(1)[0]
    if times_used > 1:
        raise InputError(
            f"{times_used} inputs would have the maps folder '{name}'",
            hint="rename one, or give it once",
        )
    inputs: list[Input] = []
    for spec, name in zip(expanded, names, strict=True):
        inputs.append(Input(spec, inside(out, name), name))
    return inputs


def _name_parts(spec: str) -> list[str]:
    """Return the parts of an input's path, of which the name of its maps folder is made."""
    path = Path(spec).expanduser().absolute()
    if path.suffix.lower() in (*IMAGE_SUFFIXES, *VIDEO_SUFFIXES):
        path = path.with_suffix("")
    # Wildcards, which no folder can be named by on every system, become x.
    return [re.sub(r'[*?\[\]<>:"|]', "x", part) for part in path.parts]


def _different_names(paths: Sequence[Sequence[str]]) -> list[str]:
    """Return the last part of each path, with as many folders above it as make the names differ.

    Two equal paths keep equal names.
    """
    names = [parts[-1] for parts in paths]
    deepest = max(len(parts) for parts in paths)
    for depth in range(2, deepest):
        times_used = Counter(names)
        for number, parts in enumerate(paths):
            if times_used[names[number]] > 1:
                below_root = parts[1:]
                names[number] = "_".join(below_root[-depth:])
    return names
