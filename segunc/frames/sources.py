"""Where frames come from: an image, a folder, a glob pattern or a video, as one stream with names.

A frame's name is its path relative to the input without the suffix, folders kept with ``/``; frames of a video have
their number in the video, six digits from ``000000``.
"""

from __future__ import annotations

import bisect
import contextlib
import glob
import os
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import takewhile
from pathlib import Path
from typing import Any

from segunc.core.errors import InputError
from segunc.core.files import frame_order, safe_name
from segunc.data.entry import IMAGE_SUFFIXES, composed, image_files, is_hidden, is_image_file, without_labels
from segunc.data.images import PixelDepth, read_image
from segunc.frames.source import ALL_FRAMES, Frame, FrameSource, Kind, Selection, Skip, sampled_hash
from segunc.frames.video import VideoSource

VIDEO_SUFFIXES = (".mp4", ".webm", ".avi", ".mov", ".mkv", ".m4v", ".mpg", ".mpeg", ".ts")
"""File name endings that are read as video (any case)."""
STAMP_STRETCHES, STAMP_LENGTH = 4, 4096
"""How many stretches of an image file, of how many bytes, its stamp reads: few, for a resumed run reads them of every
finished frame."""


class ImageSource(FrameSource):
    """Image files in the order of their names (:func:`segunc.core.files.frame_order`), each decoded when its turn comes; only
    relative paths are kept in memory. InputError for two images of one name, or a selection by time."""

    def __init__(
        self, kind: Kind, path: Path, root: Path, files: list[Path], selection: Selection = ALL_FRAMES
    ) -> None:
        if selection.timed:
            raise InputError(f"images have no times: {path}", hint="leave --start and --end out")
        self.kind, self.path, self.selection, self._root = kind, path, selection, root
        relative = sorted((file.relative_to(root).as_posix() for file in files), key=_order)
        named: dict[str, str] = {}
        for file in relative:
            # A letter with an accent may be written as one sign or as two.
            if (first := named.setdefault(composed(_stem(file)), file)) != file:
                raise InputError(
                    f"{root / first} and {root / file} are both frame '{_stem(first)}'", hint="rename or remove one"
                )
        self._files, self.depth = relative[:: selection.every], PixelDepth()
        self.length = self.length_hint = len(self._files)

    def identity(self) -> dict[str, Any]:
        return super().identity() | ({} if self.depth.bits is None else {"bits": self.depth.bits})

    def name_of(self, index: int) -> str | None:
        return _stem(self._files[index]) if index < len(self._files) else None

    def position(self, name: str) -> int | None:
        index = bisect.bisect_left(self._files, frame_order(name), key=_order)
        return index if self.name_of(index) == name else None

    def stamp(self, name: str) -> str | None:
        index = self.position(name)
        with contextlib.suppress(OSError):
            return None if index is None else stamp_of(self._root / self._files[index])
        return None

    def frames(self, skip: Skip | None = None) -> Iterator[Frame]:
        for index, relative in enumerate(self._files):
            name, file = _stem(relative), self._root / relative
            if skip is not None and skip(index, name):
                continue
            shown = self._root / f"{name}{file.suffix}"
            try:
                if shown != file:
                    raise ValueError("no map can bear this name; rename the image in letters, digits, '-' and '_'")
                # Before reading: a file that is replaced meanwhile is read again by the next run.
                stamp = stamp_of(file)
                frame = Frame(name, index, read_image(file, self.depth), stamp=stamp)
            except (OSError, ValueError, MemoryError) as error:
                reason = "not enough memory" if isinstance(error, MemoryError) else error
                frame = Frame(name, index, None, f"{shown}: {getattr(error, 'strerror', None) or reason}")
            yield frame


def _stem(relative: str) -> str:
    """Return the name of a frame by its file's. One that no map may have (of other bytes than UTF-8, of several lines, with the drive
    letter of another system) is written in ASCII, with backslashes, which no other has."""
    stem = os.path.splitext(relative)[0]
    try:
        return safe_name(stem, "a file")
    except InputError:
        return ascii(stem)[1:-1].replace(":", "\\x3a")


def _order(relative: str) -> tuple[str, str]:
    return frame_order(_stem(relative))


def stamp_of(file: Path) -> str:
    """Return the :func:`sampled_hash` of an image file that frames carry."""
    return sampled_hash(file, STAMP_STRETCHES, STAMP_LENGTH)


def open_source(
    spec: str | Path, *, out: Path | None = None, selection: Selection = ALL_FRAMES, all_images: bool = True
) -> FrameSource:
    """Open an image file, a folder (all images below it), a glob pattern (``**`` crosses folders) or a video.

    A path that exists is taken as it is, so names with ``[`` or ``*`` can be given. Files of other types in a folder
    or behind a pattern are left out.

    Args:
        spec: the path or pattern.
        out: where maps will be written; refused below the input, where they would become frames of the next run.
        selection: which frames are taken.
        all_images: take every image of a folder or pattern; else those that are named as labels are left out, with a note
            (:func:`segunc.data.entry.without_labels`).

    Raises:
        InputError: nothing there, no image among it, two images of one name, a video that cannot be opened, or a selection
            that does not suit it.
    """
    path = Path(spec).expanduser()
    absolute = path.absolute()
    if path.is_file() and _is_video(path):
        return VideoSource(absolute, selection)
    if path.is_file() and _is_image(path):
        return ImageSource("image", absolute, absolute.parent, [absolute], selection)
    if path.is_file():
        endings = ", ".join((*IMAGE_SUFFIXES, *VIDEO_SUFFIXES))
        raise InputError(f"input {path} is neither an image nor a video by its name", hint=f"names end in {endings}")
    if path.is_dir():
        kind: Kind = "folder"
        root, files, videos = absolute, image_files(absolute), list(filter(_is_video, _visible(path)))
        crosses_folders = True
    elif glob.has_magic(str(path)):
        kind, root, matches = "glob", _fixed_part(absolute), _matches(absolute)
        files, videos = list(set(filter(is_image_file, matches))), list(filter(_is_video, matches))
        crosses_folders = "**" in absolute.parts
    else:
        raise InputError(f"input {spec} does not exist", hint="give an image, a folder, a glob pattern or a video")
    if not files:
        hint = f"give a video itself: {min(videos)}" if videos else "check the path"
        raise InputError(f"{kind} {path} holds no image", hint=hint)
    if crosses_folders and out is not None and out.resolve().is_relative_to(root.resolve()):
        raise InputError(
            f"output {out} lies inside the input {root}, so its maps would be taken for frames",
            hint="give another --out",
        )
    frames = files if all_images else without_labels(root, files)
    source = ImageSource(kind, absolute, root, frames, selection)
    if left_out := sorted(set(files) - set(frames)):
        example = left_out[0].relative_to(root).as_posix()
        source.note = f"{absolute}: {len(frames)} images; {len(left_out)} others left out, which are named as labels, e.g. {example} "
        source.note += "(--all-images takes them)"
    return source


def _is_video(path: Path) -> bool:
    return path.suffix.lower() in VIDEO_SUFFIXES


def _is_image(path: Path) -> bool:
    return path.suffix.lower() in IMAGE_SUFFIXES


def _visible(folder: Path) -> list[Path]:
    paths = (path for path in folder.iterdir() if not is_hidden(path, folder))
    return sorted(paths, key=lambda path: frame_order(path.name))


def _matches(pattern: Path) -> list[Path]:
    """Return what a pattern with absolute path matches, as a shell has it, but that ``**`` follows no links: two that lead to folders
    above them would make more paths than can be listed."""
    root = _fixed_part(pattern)
    parts = pattern.relative_to(root).parts
    hidden = any(part.startswith(".") for part in parts)
    paths = root.glob(str(Path(*parts, "*") if parts[-1] == "**" else Path(*parts)))
    return sorted((p for p in paths if hidden or not is_hidden(p, root)), key=lambda path: frame_order(str(path)))


def recorded_images(spec: str, stamps: Mapping[str, str | None]) -> ImageSource | None:
    """Return the images of frames at the place that a manifest records, without listing a folder, or None where there is none.

    A manifest may come from anywhere and name any place of this disk, so an image is taken only where its bytes have
    the stamp (by frame name in ``stamps``) that was recorded of the frame: whoever wrote that has had the image.
    """
    path = Path(spec)
    root = path if path.is_dir() else path.parent if path.is_file() else _fixed_part(path)
    files = []
    for name, stamp in stamps.items():
        spellings = (root / f"{name}{cased}" for ending in IMAGE_SUFFIXES for cased in (ending, ending.upper()))
        files += [file for file in spellings if stamp and file.is_file() and stamp_of(file) == stamp][:1]
    return ImageSource("folder", root, root, files) if files else None


def _fixed_part(pattern: Path) -> Path:
    return Path(*takewhile(lambda part: not glob.has_magic(part), pattern.parts))


@dataclass(frozen=True)
class Input:
    """One input of a run: what :func:`open_source` takes, its maps folder, and its name in progress and messages."""

    spec: str
    out: Path
    label: str = ""  # of the only one


def plan_inputs(specs: Sequence[str], out: Path) -> list[Input]:
    """Return the inputs of a run and their maps folders.

    A folder or a pattern that holds videos and no image stands for its videos. A single input has ``out`` itself as its
    maps folder. Of several, each has a sub-folder with the name of the file (without its suffix) or folder; where two
    have one name, folders above it are joined in front with ``_`` until the names differ.

    Raises:
        InputError: one input is given twice, or names cannot be told apart.
    """
    expanded = [part for spec in specs for part in _expand(spec)]
    if len(expanded) == 1:
        return [Input(expanded[0], out)]
    names = _distinct_names([Path(spec).expanduser().absolute() for spec in expanded])
    return [Input(spec, out / name, name) for spec, name in zip(expanded, names, strict=True)]


def _expand(spec: str) -> list[str]:
    """Return the videos of a folder or pattern that holds no image, else the input itself; opening it says what is missing."""
    path = Path(spec).expanduser()
    if path.is_dir():
        images, paths = image_files(path), _visible(path)
    else:
        paths = _matches(path.absolute()) if not path.exists() and glob.has_magic(str(path)) else []
        images = list(filter(_is_image, paths))
    return [str(path) for path in paths if _is_video(path) and not images] or [spec]


def _distinct_names(paths: list[Path]) -> list[str]:
    # Wildcards, which no folder can be named by on every system, become x.
    parts = [
        [re.sub(r'[*?\[\]<>:"|]', "x", part) for part in (path.with_suffix("") if _is_file_name(path) else path).parts]
        for path in paths
    ]
    names = [part[-1] for part in parts]
    for depth in range(2, max(map(len, parts))):
        times = Counter(names)
        names = [
            name if times[name] == 1 else "_".join(part[1:][-depth:]) for name, part in zip(names, parts, strict=True)
        ]
    name, times_used = Counter(names).most_common(1)[0]
    if times_used > 1:
        raise InputError(f"{times_used} inputs would have the maps folder '{name}'", hint="rename one, or give it once")
    return names


def _is_file_name(path: Path) -> bool:
    return _is_video(path) or _is_image(path)
