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
from dataclasses import dataclass
from itertools import islice, takewhile
from pathlib import Path
from typing import Any, NamedTuple

from segunc.core.errors import InputError, NoteWarning
from segunc.core.files import frame_order, inside, safe_name
from segunc.data.frame_names import composed
from segunc.data.image_files import IMAGE_SUFFIXES, is_hidden, is_image_file
from segunc.data.images import PixelDepth, read_image
from segunc.data.layouts import without_labels
from segunc.frames.source import ALL_FRAMES, Frame, FrameSource, Kind, Selection, Skip, sampled_hash
from segunc.frames.video import VideoSource

VIDEO_SUFFIXES = (
    ".mp4",
    ".webm",
    ".avi",
    ".mov",
    ".mkv",
    ".m4v",
    ".mpg",
    ".mpeg",
    ".ts",
)  # in any case
UNREAD_SUFFIXES = (
    *(".avif", ".heic", ".heif", ".jxl", ".jp2", ".gif", ".tga", ".exr", ".hdr"),
    *(".ppm", ".pgm", ".pnm", ".raw", ".dng", ".cr2", ".cr3", ".nef", ".arw"),
)  # of pictures that are not read, in any case
# How many stretches of an image file, of how many bytes, its stamp reads: few, for a resumed run
# reads them of all frames.
STAMP_STRETCHES, STAMP_LENGTH = 4, 4096


class ImageSource(FrameSource):
    """Image files in the order of their names (:func:`segunc.core.files.frame_order`), each decoded
    when its turn comes; only relative paths are kept in memory. InputError for two images of one
    name, or a selection by time.
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
        self.kind, self.path, self.selection, self._root = kind, path, selection, root
        relative = sorted(
            (file.relative_to(root).as_posix() for file in files),
            key=lambda file: frame_order(_stem(file)),
        )
        named: dict[str, str] = {}
        for file in relative:
            # A letter with an accent may be written as one sign or as two.
            if (first := named.setdefault(composed(_stem(file)), file)) != file:
                raise InputError(
                    f"{root / first} and {root / file} are both frame '{_stem(first)}'",
                    hint="rename or remove one",
                )
        self._files, self.depth = relative[:: selection.every], PixelDepth()
        self.length = self.length_hint = len(self._files)

    def name_of(self, index: int) -> str | None:
        return _stem(self._files[index]) if index < len(self._files) else None

    def describe(self) -> dict[str, Any]:
        """Return what a manifest records of the source, with a hash of the names of its frames:
        shards of one run share the list."""
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
            name, file = _stem(relative), self._root / relative
            if skip is not None and skip(index, name):
                continue
            shown = self._root / f"{name}{file.suffix}"
            try:
                if shown != file:
                    raise ValueError(
                        "no map can bear this name; rename the image in letters, digits, '-' and '_'"
                    )
                # Before reading: a file that is replaced meanwhile is read again by the next run.
                stamp = stamp_of(file)
                image = read_image(file, self.depth, strict=True)
                frame = Frame(name, index, image, stamp=stamp)
            except (OSError, ValueError, MemoryError) as error:
                reason = "not enough memory" if isinstance(error, MemoryError) else error
                frame = Frame(
                    name, index, None, f"{shown}: {getattr(error, 'strerror', None) or reason}"
                )
            yield frame


def _stem(relative: str) -> str:
    """Return the name of a frame by its file's. One that no map may have (of other bytes than
    UTF-8, of several lines, with the drive letter of another system) is written in ASCII, with
    backslashes, which no other has.
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
    """Open an image file, a folder (all images below it), a glob pattern (``**`` crosses folders)
    or a video. A path that exists is taken as it is, so names with ``[`` or ``*`` can be given.
    Videos, pictures of formats that are not read and linked folders in a folder or behind a pattern
    are left out and, unless ``all_images`` are taken, those that
    :func:`segunc.data.layouts.without_labels` leaves out; the source has a note on each kind. ``out``
    is where maps will be written: not below the input, where they would become frames of the next
    run."""
    path = Path(spec).expanduser().absolute()
    if path.is_file() and _is_video(path):
        return VideoSource(path, selection)
    if path.is_file() and is_image_file(path):
        return ImageSource("image", path, path.parent, [path], selection)
    if path.is_file():
        endings = ", ".join((*IMAGE_SUFFIXES, *VIDEO_SUFFIXES))
        raise InputError(
            f"input {spec} is neither an image nor a video by its name",
            hint=f"names end in {endings}",
        )
    if not path.exists() and not glob.has_magic(str(path)):
        raise InputError(
            f"input {spec} does not exist",
            hint="give an image, a folder, a glob pattern or a video",
        )
    kind: Kind = "folder" if path.is_dir() else "glob"
    listing = _listed(path)
    root = listing.root
    files = listing.images
    if not files:
        raise _no_image(f"{kind} {spec}", listing)
    crosses_folders = kind == "folder" or "**" in path.parts
    if crosses_folders and out is not None and out.resolve().is_relative_to(root.resolve()):
        raise InputError(
            f"output {out} lies inside the input {root}, so its maps would be taken for frames",
            hint="give another --out",
        )
    frames = files if all_images else without_labels(root, files)
    source = ImageSource(kind, path, root, frames, selection)
    notes = _left_out(path, listing)
    if left_out := sorted(set(files) - set(frames)):
        example = left_out[0].relative_to(root).as_posix()
        note = f"{path}: {len(frames)} images; {len(left_out)} others left out as labels"
        notes.append(f"{note}, e.g. {example} (--all-images takes them)")
    source.notes = tuple(notes)
    return source


def _is_video(path: Path) -> bool:
    return path.suffix.lower() in VIDEO_SUFFIXES


class Listing(NamedTuple):
    """What a folder, with all folders in it, or a pattern holds."""

    root: Path
    images: list[Path]
    videos: list[Path]  # of a folder those in itself; of a pattern all
    deeper: list[Path]  # videos in the folders of a folder
    unread: list[Path]  # pictures of formats that are not read
    links: list[Path]  # to folders, which are not followed


def _listed(path: Path) -> Listing:
    """List an absolute path that is a folder, or a pattern as a shell has it. But ``**`` follows no
    links: two that lead to folders above them would make more paths than can be listed."""
    listing = Listing(path, [], [], [], [], [])
    if path.is_dir():
        found = [file for file in path.rglob("*") if not is_hidden(file, path)]
    elif path.exists() or not glob.has_magic(str(path)):
        return listing
    else:
        root = _fixed_part(path)
        listing = listing._replace(root=root)
        parts = path.relative_to(root).parts
        hidden = any(part.startswith(".") for part in parts)
        matches = set(root.glob(str(Path(*parts, "*") if parts[-1] == "**" else Path(*parts))))
        found = [file for file in matches if hidden or not is_hidden(file, root)]
    crosses_folders = path == listing.root or "**" in path.parts
    for file in sorted(found, key=lambda file: frame_order(str(file))):
        ending = file.suffix.lower()
        if is_image_file(file):
            listing.images.append(file)
        elif ending in VIDEO_SUFFIXES and not file.is_dir():
            inside_folder = path == listing.root and file.parent != path
            (listing.deeper if inside_folder else listing.videos).append(file)
        elif ending in UNREAD_SUFFIXES and not file.is_dir():
            listing.unread.append(file)
        elif crosses_folders and file.is_symlink() and file.is_dir():
            listing.links.append(file)
    return listing


def _left_out(path: Path, listing: Listing) -> list[str]:
    """Return a line for each kind of thing of a listing that is no frame, with its number and the
    first."""
    videos = [*listing.videos, *listing.deeper] if listing.images else listing.deeper
    formats = sorted({file.suffix[1:].upper() for file in listing.unread})
    kinds = (
        (videos, "videos", "give a video itself as --input"),
        (
            listing.unread,
            f"pictures of formats that are not read ({', '.join(formats)})",
            "convert them to PNG or JPEG",
        ),
        (listing.links, "links to folders", "give a linked folder as another --input"),
    )
    notes = []
    for files, what, remedy in kinds:
        if files:
            first = files[0].relative_to(listing.root).as_posix()
            notes.append(f"{path}: {len(files)} {what} left out, first {first}; {remedy}")
    return notes


def _no_image(what: str, listing: Listing) -> InputError:
    """Return the error for an input without an image, which says what it holds instead."""
    fact = f"{what} holds no image"
    if listing.videos:
        return InputError(fact, hint=f"give a video itself: {listing.videos[0]}")
    if listing.deeper:
        first = listing.deeper[0]
        fact += f", but {len(listing.deeper)} videos in its folders, first {first}"
        return InputError(fact, hint=f"--input '{first.parent}/*{first.suffix}' takes those of one")
    if listing.unread:
        fact += (
            f" that is read, but {len(listing.unread)} of other formats, first {listing.unread[0]}"
        )
        return InputError(fact, hint="convert them to PNG or JPEG")
    if listing.links:
        fact += f", but {len(listing.links)} links to folders, first {listing.links[0]}"
        return InputError(fact, hint="give the linked folder itself")
    return InputError(fact, hint="check the path")


def recorded_images(spec: str, stamps: Mapping[str, str | None]) -> ImageSource | None:
    """Return the images of frames at the place that a manifest records, without listing a folder,
    or None where there is none. A manifest may come from anywhere and name any place of this disk,
    so an image is taken only where its bytes have the stamp (by frame name in ``stamps``) that was
    recorded of the frame: whoever wrote that has had the image.
    """
    path = Path(spec)
    root = path if path.is_dir() else path.parent if path.is_file() else _fixed_part(path)
    files: list[Path] = []
    for name, stamp in stamps.items():
        spellings = (
            root / f"{name}{cased}"
            for ending in IMAGE_SUFFIXES
            for cased in (ending, ending.upper())
        )
        matches = (file for file in spellings if stamp and _has_stamp(file, stamp))
        files += islice(matches, 1)
    return ImageSource("folder", root, root, files) if files else None


def _has_stamp(file: Path, stamp: str) -> bool:
    """Return whether a path is a file of this stamp; False where it cannot be one, as where its
    name is longer than a name may be."""
    try:
        return file.is_file() and stamp_of(file) == stamp
    except OSError:
        return False


def _fixed_part(pattern: Path) -> Path:
    return Path(*takewhile(lambda part: not glob.has_magic(part), pattern.parts))


@dataclass(frozen=True)
class Input:
    """One input of a run: what :func:`open_source` takes, its maps folder, and its name in progress
    and messages.
    """

    spec: str
    out: Path
    label: str = ""  # of the only one


def plan_inputs(specs: Sequence[str], out: Path) -> list[Input]:
    """Return the inputs of a run and their maps folders. A folder or a pattern that holds videos
    and no image stands for its videos. A single input has ``out`` itself as its maps folder. Of
    several, each has a sub-folder with the name of the file (without its suffix) or folder; where
    two have one name, folders above it are joined in front with ``_`` until the names differ.
    """
    expanded: list[str] = []
    for spec in specs:
        path = Path(spec).expanduser().absolute()
        listing = _listed(path)
        if listing.images or not listing.videos:
            expanded.append(spec)
            continue
        expanded += map(str, listing.videos)
        for note in _left_out(path, listing):
            warnings.warn(note, NoteWarning, stacklevel=2)
    if len(expanded) == 1:
        return [Input(expanded[0], out)]
    paths = [Path(spec).expanduser().absolute() for spec in expanded]
    endings = (*IMAGE_SUFFIXES, *VIDEO_SUFFIXES)
    bare = [path.with_suffix("") if path.suffix.lower() in endings else path for path in paths]
    # Wildcards, which no folder can be named by on every system, become x.
    parts = [[re.sub(r'[*?\[\]<>:"|]', "x", part) for part in path.parts] for path in bare]
    names = [part[-1] for part in parts]
    for depth in range(2, max(map(len, parts))):
        times = Counter(names)
        deeper = ["_".join(part[1:][-depth:]) for part in parts]
        names = [
            name if times[name] == 1 else longer for name, longer in zip(names, deeper, strict=True)
        ]
    name, times_used = Counter(names).most_common(1)[0]
    if times_used > 1:
        raise InputError(
            f"{times_used} inputs would have the maps folder '{name}'",
            hint="rename one, or give it once",
        )
    return [
        Input(spec, inside(out, name), name) for spec, name in zip(expanded, names, strict=True)
    ]
