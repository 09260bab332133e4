"""Where frames come from: an image, a folder, a glob pattern or a video, as one stream with names.

A frame's name is its path relative to the input without the suffix, folders kept with ``/``; frames of a video have
six-digit numbers from ``000000``. The name decides where every map of the frame is stored.
"""

from __future__ import annotations

import glob
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from segunc.data.images import Image, read_image
from segunc.data.pairing import IMAGE_SUFFIXES, list_images
from segunc.errors import InputError

VIDEO_SUFFIXES = (".mp4", ".webm", ".avi", ".mov", ".mkv", ".m4v", ".mpg", ".mpeg", ".ts")
"""File name endings that are read as video (any case)."""

Skip = Callable[[int, str], bool]
"""Whether the frame of an index and name may be passed over without decoding it."""


@dataclass(frozen=True, eq=False)
class Frame:
    """One frame, or the reason why there is none.

    Attributes:
        name: the frame's name.
        index: its place in the source, from 0.
        image: RGB uint8 ``[H, W, 3]``; None where ``error`` is set.
        error: one line that says why the frame could not be read.
    """

    name: str
    index: int
    image: Image | None
    error: str | None = None


class FrameSource(ABC):
    """A stream of frames in a fixed order; it can be iterated again from the start.

    Attributes:
        kind: what the frames come from.
        path: the absolute path (of a glob: the pattern) that was opened.
        fps: frames a second of a video (29.97 is not 30), None for images.
        length: the exact number of frames, None where only the end of the stream tells.
        length_hint: the number of frames to expect, for a progress bar; None where unknown.
    """

    kind: Literal["image", "folder", "glob", "video"]
    path: Path
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
    def position(self, name: str) -> int:
        """The index of a name, and a number beyond every index for a name that is not in the source."""

    def __iter__(self) -> Iterator[Frame]:
        return self.frames()

    def describe(self) -> dict[str, Any]:
        """What a manifest records of the source: kind, fps and the expected number of frames."""
        return {"kind": self.kind, "fps": self.fps, "frames": self.length or self.length_hint}


class ImageSource(FrameSource):
    """Image files in a fixed order, each decoded when its turn comes."""

    def __init__(self, kind: Literal["image", "folder", "glob"], path: Path, root: Path, files: list[Path]) -> None:
        self.kind, self.path = kind, path
        self.files: dict[str, Path] = {}
        for file in files:
            name = file.relative_to(root).with_suffix("").as_posix()
            if name in self.files:
                raise InputError(
                    f"{self.files[name]} and {file} are both frame '{name}'",
                    "one image for each name (the suffix is not part of it)",
                    "rename or remove one of them",
                )
            self.files[name] = file
        self._names = list(self.files)
        self._positions = {name: index for index, name in enumerate(self._names)}
        self.length = self.length_hint = len(self._names)

    def names(self) -> list[str]:
        """All frame names in order."""
        return list(self._names)

    def name_of(self, index: int) -> str | None:
        return self._names[index] if index < len(self._names) else None

    def position(self, name: str) -> int:
        return self._positions.get(name, len(self._names))

    def frames(self, skip: Skip | None = None) -> Iterator[Frame]:
        for index, (name, file) in enumerate(self.files.items()):
            if skip is not None and skip(index, name):
                continue
            try:
                frame = Frame(name, index, read_image(file))
            except OSError as error:
                frame = Frame(name, index, None, f"{file}: {error.strerror or error}")
            except ValueError as error:
                frame = Frame(name, index, None, f"{file}: {error}")
            yield frame


def open_source(spec: str | Path, *, out: Path | None = None) -> FrameSource:
    """Open an image file, a folder (all images below it), a glob pattern (``**`` crosses folders) or a video.

    A path that exists is taken as it is, so names with ``[`` or ``*`` can be given. Files of other types in a folder
    or behind a pattern are left out.

    Args:
        spec: the path or pattern.
        out: where maps will be written; refused below the input, where they would become frames of the next run.

    Raises:
        InputError: nothing there, no image among it, two images of one name, or a video that cannot be opened.
    """
    path = Path(spec).expanduser()
    if path.is_dir():
        return _open_folder(path, out)
    if path.is_file():
        return _open_file(path)
    if glob.has_magic(str(path)):
        return _open_glob(path, out)
    raise InputError(f"input {spec} does not exist", "an image, a folder, a glob pattern or a video", "check the path")


def _open_file(path: Path) -> FrameSource:
    from segunc.maps.video import VideoSource  # it needs FrameSource from here

    suffix = path.suffix.lower()
    if suffix in VIDEO_SUFFIXES:
        return VideoSource(path.absolute())
    if suffix in IMAGE_SUFFIXES:
        return ImageSource("image", path.absolute(), path.absolute().parent, [path.absolute()])
    raise InputError(
        f"input {path} is neither an image nor a video by its name",
        f"a file ending in {', '.join((*IMAGE_SUFFIXES, *VIDEO_SUFFIXES))}",
        "convert or rename it",
    )


def _open_folder(path: Path, out: Path | None) -> FrameSource:
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
    return ImageSource("folder", root, root, files)


def _open_glob(pattern: Path, out: Path | None) -> FrameSource:
    absolute = pattern.absolute()
    fixed = [part for part in absolute.parts]
    for count, part in enumerate(fixed):
        if glob.has_magic(part):
            fixed = fixed[:count]
            break
    root = Path(*fixed)
    matches = [Path(match) for match in glob.glob(str(absolute), recursive=True)]
    files = sorted(
        {match for match in matches if match.suffix.lower() in IMAGE_SUFFIXES and match.is_file()},
        key=lambda file: file.relative_to(root).as_posix(),
    )
    if not files:
        videos = [match for match in matches if match.suffix.lower() in VIDEO_SUFFIXES]
        raise InputError(
            f"pattern {pattern} matches no image" + (f" but the video {videos[0]}" if videos else ""),
            f"at least one file ending in {', '.join(IMAGE_SUFFIXES)}",
            f"give one video itself: {videos[0]}" if videos else "check the pattern (and its quotes in the shell)",
        )
    if "**" in absolute.parts:
        _refuse_inside(root, out)
    return ImageSource("glob", absolute, root, files)


def _refuse_inside(root: Path, out: Path | None) -> None:
    if out is not None and out.resolve().is_relative_to(root.resolve()):
        raise InputError(
            f"output {out} lies inside the input {root}",
            "an output folder outside the input (its maps would be taken for frames)",
            "give another --out",
        )
