"""Where frames come from: an image, a folder, a glob pattern or a video, as one stream with names.

A frame's name is its path relative to the input without the suffix, folders kept with ``/``; frames of a video have
their number in the video, six digits from ``000000``. The name decides where every map of the frame is stored.
"""

from __future__ import annotations

import bisect
import glob
import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from itertools import pairwise, takewhile
from pathlib import Path
from typing import Any, Literal

from segunc.data.images import Image, read_image
from segunc.data.pairing import IMAGE_SUFFIXES, list_images
from segunc.errors import InputError
from segunc.maps.decoders import DecoderName
from segunc.maps.fingerprint import sampled_hash
from segunc.maps.selection import ALL_FRAMES, Selection

VIDEO_SUFFIXES = (".mp4", ".webm", ".avi", ".mov", ".mkv", ".m4v", ".mpg", ".mpeg", ".ts")
"""File name endings that are read as video (any case)."""

Skip = Callable[[int, str], bool]
"""Whether the frame of an index and name may be passed over without decoding it."""


STAMP_STRETCHES, STAMP_LENGTH = 4, 4096
"""How many stretches of an image file, of how many bytes, its stamp reads: few, for a resumed run reads them of every
finished frame."""


@dataclass(frozen=True, eq=False)
class Frame:
    """One frame, or the reason why there is none.

    Attributes:
        name: the frame's name.
        index: its place in the source, from 0: with every N-th frame taken, its number in the input divided by N.
        image: RGB uint8 ``[H, W, 3]``; None where ``error`` is set.
        error: one line that says why the frame could not be read.
        time: seconds since the first moment of the video, by the container's time stamps; None for images.
        stamp: :func:`segunc.maps.fingerprint.sampled_hash` of an image's file; None for frames of a video.
    """

    name: str
    index: int
    image: Image | None
    error: str | None = None
    time: float | None = None
    stamp: str | None = None


class FrameSource(ABC):
    """A stream of frames in a fixed order; it can be iterated again from the start.

    Attributes:
        kind: what the frames come from.
        path: the absolute path (of a glob: the pattern) that was opened.
        selection: which frames of the input are taken; names and places are of these.
        fps: mean frames a second of a video (29.97 is not 30), None for images.
        length: the exact number of frames, None where only the end of the stream tells.
        length_hint: the number of frames to expect, for a progress bar; None where unknown.
    """

    kind: Literal["image", "folder", "glob", "video"]
    path: Path
    selection: Selection = ALL_FRAMES
    fps: float | None = None
    length: int | None = None
    length_hint: int | None = None

    @abstractmethod
    def frames(self, skip: Skip | None = None) -> Iterator[Frame]:
        """Yield frames in order; those that ``skip`` names are passed over without decoding an image."""

    @abstractmethod
    def name_of(self, index: int) -> str | None:
        """The name of the frame at an index; None beyond the known end."""

    @abstractmethod
    def position(self, name: str) -> int | None:
        """The index of a name, None for one that is not in the source."""

    def stamp(self, name: str) -> str | None:
        """The present stamp of a frame's own file; None for frames that have none."""
        return None

    def __iter__(self) -> Iterator[Frame]:
        return self.frames()

    def describe(self) -> dict[str, Any]:
        """What a manifest records of the source: kind, fps and the expected number of frames."""
        return {"kind": self.kind, "fps": self.fps, "frames": self.length or self.length_hint}

    def identity(self) -> dict[str, Any]:
        """What must be the same for a later run to continue: the input and which of its frames are taken."""
        taken = {"every": self.selection.every, "start": self.selection.start, "end": self.selection.end}
        return {"input": str(self.path), **taken}


class ImageSource(FrameSource):
    """Image files in the order of their names, each decoded when its turn comes.

    Only the relative paths are kept in memory, about a hundred bytes a frame.

    Raises:
        InputError: two images of one name, or a selection by time.
    """

    def __init__(
        self,
        kind: Literal["image", "folder", "glob"],
        path: Path,
        root: Path,
        files: list[Path],
        selection: Selection = ALL_FRAMES,
    ) -> None:
        if selection.timed:
            raise InputError(f"a start or end in time for the images {path}", "a video", "leave both out")
        self.kind, self.path, self.selection = kind, path, selection
        self._root = root
        relative = sorted((file.relative_to(root).as_posix() for file in files), key=_stem)
        for first, second in pairwise(relative):
            if _stem(first) == _stem(second):
                raise InputError(
                    f"{root / first} and {root / second} are both frame '{_stem(first)}'",
                    "one image for each name (the suffix is not part of it)",
                    "rename or remove one of them",
                )
        self._files = relative[:: selection.every]
        self.length = self.length_hint = len(self._files)

    def names(self) -> list[str]:
        """All frame names in order."""
        return [_stem(file) for file in self._files]

    def name_of(self, index: int) -> str | None:
        return _stem(self._files[index]) if index < len(self._files) else None

    def position(self, name: str) -> int | None:
        place = bisect.bisect_left(self._files, name, key=_stem)
        return place if self.name_of(place) == name else None

    def stamp(self, name: str) -> str | None:
        place = self.position(name)
        if place is None:
            return None
        try:
            return _stamp(self._root / self._files[place])
        except OSError:
            return None

    def frames(self, skip: Skip | None = None) -> Iterator[Frame]:
        for index, relative in enumerate(self._files):
            name, file = _stem(relative), self._root / relative
            if skip is not None and skip(index, name):
                continue
            try:
                stamp = _stamp(file)  # before reading: a file that is replaced meanwhile is read again by the next run
                frame = Frame(name, index, read_image(file), stamp=stamp)
            except OSError as error:
                frame = Frame(name, index, None, f"{file}: {error.strerror or error}")
            except ValueError as error:
                frame = Frame(name, index, None, f"{file}: {error}")
            yield frame


def _stem(relative: str) -> str:
    return os.path.splitext(relative)[0]


def _stamp(file: Path) -> str:
    return sampled_hash(file, STAMP_STRETCHES, STAMP_LENGTH)


def open_source(
    spec: str | Path, *, out: Path | None = None, selection: Selection = ALL_FRAMES, decoder: DecoderName = "auto"
) -> FrameSource:
    """Open an image file, a folder (all images below it), a glob pattern (``**`` crosses folders) or a video.

    A path that exists is taken as it is, so names with ``[`` or ``*`` can be given. Files of other types in a folder
    or behind a pattern are left out.

    Args:
        spec: the path or pattern.
        out: where maps will be written; refused below the input, where they would become frames of the next run.
        selection: which frames are taken.
        decoder: of a video; ``auto`` is PyAV where it is installed.

    Raises:
        InputError: nothing there, no image among it, two images of one name, a video that cannot be opened, or a
            selection that does not suit it.
    """
    path = Path(spec).expanduser()
    if path.is_dir():
        return _open_folder(path, out, selection)
    if path.is_file():
        return _open_file(path, selection, decoder)
    if glob.has_magic(str(path)):
        return _open_glob(path, out, selection)
    raise InputError(f"input {spec} does not exist", "an image, a folder, a glob pattern or a video", "check the path")


def _open_file(path: Path, selection: Selection, decoder: DecoderName) -> FrameSource:
    from segunc.maps.video import VideoSource  # it needs FrameSource from here

    suffix = path.suffix.lower()
    if suffix in VIDEO_SUFFIXES:
        return VideoSource(path.absolute(), selection, decoder)
    if suffix in IMAGE_SUFFIXES:
        return ImageSource("image", path.absolute(), path.absolute().parent, [path.absolute()], selection)
    raise InputError(
        f"input {path} is neither an image nor a video by its name",
        f"a file ending in {', '.join((*IMAGE_SUFFIXES, *VIDEO_SUFFIXES))}",
        "convert or rename it",
    )


def _open_folder(path: Path, out: Path | None, selection: Selection) -> FrameSource:
    root = path.absolute()
    videos = sorted(file.name for file in root.iterdir() if file.suffix.lower() in VIDEO_SUFFIXES)
    try:
        files = list_images(root)
    except InputError as error:
        if videos:
            raise InputError(
                f"folder {path} holds no image but the video {videos[0]}",
                "a folder of images, or one video",
                f"give the video itself: {path / videos[0]}",
            ) from error
        raise
    _refuse_inside(root, out)
    return ImageSource("folder", root, root, files, selection)


def recorded_images(spec: str, stamps: Mapping[str, str | None]) -> ImageSource | None:
    """The images of frames at the place that a manifest records, without listing a folder, or None where there is none.

    A manifest may come from anywhere and name any place of this disk, so an image is taken only where its bytes have the
    stamp that was recorded of the frame: whoever wrote that has had the image.

    Args:
        spec: the recorded input.
        stamps: frame name -> its stamp, None where none is recorded.
    """
    path = Path(spec)
    root = path if path.is_dir() else path.parent if path.is_file() else _fixed_part(path)
    files = []
    for name, stamp in stamps.items():
        spellings = (root / f"{name}{cased}" for ending in IMAGE_SUFFIXES for cased in (ending, ending.upper()))
        files += [file for file in spellings if stamp and file.is_file() and _stamp(file) == stamp][:1]
    return ImageSource("folder", root, root, files) if files else None


def _open_glob(pattern: Path, out: Path | None, selection: Selection) -> FrameSource:
    absolute = pattern.absolute()
    root = _fixed_part(absolute)
    matches = [Path(match) for match in glob.glob(str(absolute), recursive=True)]
    files = list({match for match in matches if match.suffix.lower() in IMAGE_SUFFIXES and match.is_file()})
    if not files:
        videos = [match for match in matches if match.suffix.lower() in VIDEO_SUFFIXES]
        raise InputError(
            f"pattern {pattern} matches no image" + (f" but the video {videos[0]}" if videos else ""),
            f"at least one file ending in {', '.join(IMAGE_SUFFIXES)}",
            f"give one video itself: {videos[0]}" if videos else "check the pattern (and its quotes in the shell)",
        )
    if "**" in absolute.parts:
        _refuse_inside(root, out)
    return ImageSource("glob", absolute, root, files, selection)


def _fixed_part(pattern: Path) -> Path:
    return Path(*takewhile(lambda part: not glob.has_magic(part), pattern.parts))


def _refuse_inside(root: Path, out: Path | None) -> None:
    if out is not None and out.resolve().is_relative_to(root.resolve()):
        raise InputError(
            f"output {out} lies inside the input {root}",
            "an output folder outside the input (its maps would be taken for frames)",
            "give another --out",
        )
