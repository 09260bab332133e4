"""Where frames come from: an image, a folder, a glob pattern or a video, as one stream with names.

A frame's name is its path relative to the input without the suffix, folders kept with ``/``; frames of a video have
their number in the video, six digits from ``000000``.
"""

from __future__ import annotations

import bisect
import contextlib
import glob
import hashlib
import math
import os
import re
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import reduce
from itertools import takewhile
from pathlib import Path
from typing import Any, Literal

from segunc.core.errors import InputError
from segunc.core.files import frame_order, open_file, safe_name
from segunc.data.images import Image, PixelDepth, read_image
from segunc.data.layout import IMAGE_SUFFIXES, composed, is_hidden, is_image_file, list_images, without_labels

VIDEO_SUFFIXES = (".mp4", ".webm", ".avi", ".mov", ".mkv", ".m4v", ".mpg", ".mpeg", ".ts")
"""File name endings that are read as video (any case)."""
STAMP_STRETCHES, STAMP_LENGTH = 4, 4096
"""How many stretches of an image file, of how many bytes, its stamp reads: few, for a resumed run reads them of every
finished frame."""
Kind = Literal["image", "folder", "glob", "video"]
Skip = Callable[[int, str], bool]
"""Whether the frame of an index and name may be passed over without decoding it."""


def sampled_hash(path: Path, stretches: int, length: int) -> str:
    """A hash (32 hexadecimal digits) of a file's size and of at least two stretches of so many bytes, spread evenly over it,
    its first and last bytes among them.

    Cheap for files of any size and, unlike the time of change, the same for a copy elsewhere. An edit that keeps the size
    and misses every stretch is not seen; in compressed files an edit changes nearly all that follows it.
    """
    digest = hashlib.blake2b(digest_size=16)
    with open_file(path) as file:
        size = os.fstat(file.fileno()).st_size
        digest.update(size.to_bytes(8, "little"))
        for stretch in range(stretches):
            file.seek(max(0, size - length) * stretch // (stretches - 1))
            digest.update(file.read(length))
    return digest.hexdigest()


@dataclass(frozen=True)
class Selection:
    """Frames whose number in the input is a multiple of ``every`` and whose time t is in ``start <= t < end``. Numbers
    count from the first frame of the input, whatever ``start`` is, so that two ranges of one video take frames of one
    raster. Times are seconds from the first frame, None without a bound."""

    every: int = 1
    start: float | None = None
    end: float | None = None

    def __post_init__(self) -> None:
        if self.end is not None and not self.end > (self.start or 0.0):
            raise InputError(f"an end of {self.end} s", f"later than {self.start or 0.0} s", "check both moments")

    @property
    def timed(self) -> bool:
        """Whether it asks for the time of frames."""
        return self.start is not None or self.end is not None

    def takes(self, number: int, time: float | None) -> bool:
        """Whether the frame of a number in the input and a time in seconds is taken."""
        if number % self.every:
            return False
        return not self.timed or (time is not None and time >= (self.start or 0.0) and not self.is_past(time))

    def is_past(self, time: float | None) -> bool:
        """Whether a frame of this time, and with it all that follow, lies behind the end."""
        return self.end is not None and time is not None and time >= self.end

    def expected(self, frames: int, fps: float | None) -> int:
        """How many of so many frames are taken; with a time range an estimate from the frame rate."""
        if self.timed and fps is not None:
            duration = frames / fps
            taken = min(duration, self.end if self.end is not None else duration) - (self.start or 0.0)
            frames = max(0, round(taken * fps))
        return -(-frames // self.every)


ALL_FRAMES = Selection()


def parse_time(text: str) -> float:
    """Seconds of ``90``, ``90.5``, ``1:30`` or ``0:01:30.5``; InputError for another form."""
    parts = text.strip().split(":")
    try:
        numbers = [float(part) for part in parts]
    except ValueError:
        numbers = [math.nan]
    whole = all(part.isdigit() for part in parts[:-1]) and all(number < 60 for number in numbers[1:])
    if len(parts) > 3 or not whole or not all(math.isfinite(number) and number >= 0 for number in numbers):
        raise InputError(f"a time of '{text}'", "seconds or HH:MM:SS, e.g. 90.5 or 0:01:30.5", "check the spelling")
    return reduce(lambda seconds, number: 60.0 * seconds + number, numbers, 0.0)


def format_time(seconds: float) -> str:
    """``H:MM:SS.mmm`` of seconds."""
    minutes, rest = divmod(round(seconds * 1000), 60_000)
    return f"{minutes // 60}:{minutes % 60:02d}:{rest // 1000:02d}.{rest % 1000:03d}"


@dataclass(frozen=True, eq=False)
class Frame:
    """One frame, or the reason why there is none."""

    name: str
    index: int  # its place in the source, from 0: with every N-th frame taken, its number in the input divided by N
    image: Image | None  # RGB uint8 [H, W, 3]; None where there is an error
    error: str | None = None  # one line that says why the frame could not be read
    time: float | None = None  # seconds since the video's first moment, by the container's time stamps; None for images
    stamp: str | None = None  # sampled_hash of an image's file; None for frames of a video


class FrameSource(ABC):
    """A stream of frames in a fixed order; it can be iterated again from the start."""

    kind: Kind
    path: Path  # absolute, that was opened; of a glob the pattern
    selection: Selection = ALL_FRAMES  # of the input's frames; names and places are of these
    fps: float | None = None  # mean frames a second of a video (29.97 is not 30), None for images
    length: int | None = None  # the exact number of frames, None where only the end of the stream tells
    length_hint: int | None = None  # the number of frames to expect, for a progress bar; None where unknown
    note: str = ""  # what was left out, in one line

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
        return {"input": str(self.path), **asdict(self.selection)}


class ImageSource(FrameSource):
    """Image files in the order of their names (:func:`segunc.core.files.frame_order`), each decoded when its turn comes; only
    relative paths are kept in memory. InputError for two images of one name, or a selection by time."""

    def __init__(
        self, kind: Kind, path: Path, root: Path, files: list[Path], selection: Selection = ALL_FRAMES
    ) -> None:
        if selection.timed:
            raise InputError(f"a start or end in time for the images {path}", "a video", "leave both out")
        self.kind, self.path, self.selection, self._root = kind, path, selection, root
        relative = sorted((file.relative_to(root).as_posix() for file in files), key=_order)
        named: dict[str, str] = {}
        for file in relative:
            # A letter with an accent may be written as one sign or as two.
            if (first := named.setdefault(composed(_stem(file)), file)) != file:
                given = f"{root / first} and {root / file} are both frame '{_stem(first)}'"
                expected = "one image for each name (the suffix is not part of it)"
                raise InputError(given, expected, "rename or remove one of them")
        self._files, self.depth = relative[:: selection.every], PixelDepth()
        self.length = self.length_hint = len(self._files)

    def identity(self) -> dict[str, Any]:
        return super().identity() | ({} if self.depth.bits is None else {"bits": self.depth.bits})

    def name_of(self, index: int) -> str | None:
        return _stem(self._files[index]) if index < len(self._files) else None

    def position(self, name: str) -> int | None:
        place = bisect.bisect_left(self._files, frame_order(name), key=_order)
        return place if self.name_of(place) == name else None

    def stamp(self, name: str) -> str | None:
        place = self.position(name)
        with contextlib.suppress(OSError):
            return None if place is None else stamp_of(self._root / self._files[place])
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
                        "no map can bear this name: only UTF-8 without backslashes, control characters and drive letters; rename it"
                    )
                # Before reading: a file that is replaced meanwhile is read again by the next run.
                stamp = stamp_of(file)
                frame = Frame(name, index, read_image(file, self.depth), stamp=stamp)
            except (OSError, ValueError, MemoryError) as error:
                why = f"not enough memory: {error}" if isinstance(error, MemoryError) else error
                frame = Frame(name, index, None, f"{shown}: {getattr(error, 'strerror', None) or why}")
            yield frame


def _stem(relative: str) -> str:
    """The name of a frame by its file's. One that no map may have (of other bytes than UTF-8, of several lines, with the drive letter of
    another system) is written in ASCII, with backslashes, which no other has."""
    stem = os.path.splitext(relative)[0]
    try:
        return safe_name(stem, "a file")
    except InputError:
        return ascii(stem)[1:-1].replace(":", "\\x3a")


def _order(relative: str) -> tuple[str, str]:
    return frame_order(_stem(relative))


def stamp_of(file: Path) -> str:
    """The :func:`sampled_hash` of an image file that frames carry."""
    return sampled_hash(file, STAMP_STRETCHES, STAMP_LENGTH)


def open_source(
    spec: str | Path,
    *,
    out: Path | None = None,
    selection: Selection = ALL_FRAMES,
    all_images: bool = True,
) -> FrameSource:
    """Open an image file, a folder (all images below it), a glob pattern (``**`` crosses folders) or a video.

    A path that exists is taken as it is, so names with ``[`` or ``*`` can be given. Files of other types in a folder
    or behind a pattern are left out.

    Args:
        spec: the path or pattern.
        out: where maps will be written; refused below the input, where they would become frames of the next run.
        selection: which frames are taken.
        all_images: take every image of a folder or pattern; else those that look like labels are left out, with a note
            (:func:`segunc.data.layout.without_labels`).

    InputError: nothing there, no image among it, two images of one name, a video that cannot be opened, or a selection
    that does not suit it.
    """
    path = Path(spec).expanduser()
    absolute = path.absolute()
    if path.is_dir():
        files = _images_of(path)
        _refuse_inside(absolute, out)
        return _frames_of("folder", absolute, absolute, files, selection, all_images=all_images)
    if path.is_file():
        if _is_video(path):
            from segunc.frames.video import VideoSource

            return VideoSource(absolute, selection)
        if _is_image(path):
            return ImageSource("image", absolute, absolute.parent, [absolute], selection)
        given = f"input {path} is neither an image nor a video by its name"
        raise InputError(
            given, f"a file ending in {', '.join((*IMAGE_SUFFIXES, *VIDEO_SUFFIXES))}", "convert or rename it"
        )
    if glob.has_magic(str(path)):
        files = _matching_images(path)
        if "**" in absolute.parts:
            _refuse_inside(_fixed_part(absolute), out)
        return _frames_of("glob", absolute, _fixed_part(absolute), files, selection, all_images=all_images)
    raise InputError(f"input {spec} does not exist", "an image, a folder, a glob pattern or a video", "check the path")


def _frames_of(
    kind: Kind, path: Path, root: Path, files: list[Path], selection: Selection, *, all_images: bool
) -> ImageSource:
    taken = files if all_images else without_labels(root, sorted(files))
    source = ImageSource(kind, path, root, taken, selection)
    if left := sorted(set(files) - set(taken)):
        example = left[0].relative_to(root).as_posix()
        source.note = (
            f"{path}: {len(taken)} images; {len(left)} others left out, which look like labels, e.g. {example} "
        )
        source.note += "(--all-images takes them)"
    return source


def _is_video(path: Path) -> bool:
    return path.suffix.lower() in VIDEO_SUFFIXES


def _is_image(path: Path) -> bool:
    return path.suffix.lower() in IMAGE_SUFFIXES


def _images_of(folder: Path) -> list[Path]:
    try:
        return list_images(folder.absolute())
    except InputError as error:
        videos = sorted(file.name for file in folder.iterdir() if _is_video(file) and not is_hidden(file, folder))
        if not videos:
            raise
        given = f"folder {folder} holds no image but the video {videos[0]}"
        remedy = f"give the video itself: {folder / videos[0]}"
        raise InputError(given, "a folder of images, or one video", remedy) from error


def _matching_images(pattern: Path) -> list[Path]:
    matches = _matches(pattern.absolute())
    files = list(set(filter(is_image_file, matches)))
    if files:
        return files
    given, expected = f"pattern {pattern} matches no image", f"at least one file ending in {', '.join(IMAGE_SUFFIXES)}"
    if video := next(filter(_is_video, matches), None):
        raise InputError(f"{given} but the video {video}", expected, f"give one video itself: {video}")
    raise InputError(given, expected, "check the pattern (and its quotes in the shell)")


def _matches(pattern: Path) -> list[Path]:
    """What a pattern with absolute path matches, as a shell has it, but that ``**`` follows no links: two that lead to folders above them
    would make more paths than can be listed."""
    root = _fixed_part(pattern)
    asked = pattern.relative_to(root).parts
    hidden = any(part.startswith(".") for part in asked)
    found = root.glob(str(Path(*asked, "*") if asked[-1] == "**" else Path(*asked)))
    return sorted((p for p in found if hidden or not is_hidden(p, root)), key=lambda path: frame_order(str(path)))


def recorded_images(spec: str, stamps: Mapping[str, str | None]) -> ImageSource | None:
    """The images of frames at the place that a manifest records, without listing a folder, or None where there is none.
    A manifest may come from anywhere and name any place of this disk, so an image is taken only where its bytes have
    the stamp (by frame name in ``stamps``) that was recorded of the frame: whoever wrote that has had the image."""
    path = Path(spec)
    root = path if path.is_dir() else path.parent if path.is_file() else _fixed_part(path)
    files = []
    for name, stamp in stamps.items():
        spellings = (root / f"{name}{cased}" for ending in IMAGE_SUFFIXES for cased in (ending, ending.upper()))
        files += [file for file in spellings if stamp and file.is_file() and stamp_of(file) == stamp][:1]
    return ImageSource("folder", root, root, files) if files else None


def _fixed_part(pattern: Path) -> Path:
    return Path(*takewhile(lambda part: not glob.has_magic(part), pattern.parts))


def _refuse_inside(root: Path, out: Path | None) -> None:
    if out is not None and out.resolve().is_relative_to(root.resolve()):
        expected = "an output folder outside the input (its maps would be taken for frames)"
        raise InputError(f"output {out} lies inside the input {root}", expected, "give another --out")


@dataclass(frozen=True)
class Input:
    """One input of a run: what :func:`open_source` takes, its maps folder, and its name in progress and messages."""

    spec: str
    out: Path
    label: str = ""  # of the only one


def plan_inputs(specs: Sequence[str], out: Path) -> list[Input]:
    """The inputs of a run and their maps folders.

    A folder or a pattern that holds videos and no image stands for its videos. A single input has ``out`` itself as its
    maps folder. Of several, each has a sub-folder with the name of the file (without its suffix) or folder; where two
    have one name, folders above it are joined in front with ``_`` until the names differ.

    InputError: one input is given twice, or names cannot be told apart.
    """
    expanded = [part for spec in specs for part in _expand(spec)]
    if len(expanded) == 1:
        return [Input(expanded[0], out)]
    names = _distinct_names(expanded)
    return [Input(spec, out / name, name) for spec, name in zip(expanded, names, strict=True)]


def _expand(spec: str) -> list[str]:
    path = Path(spec).expanduser()
    found: list[Path] = []
    if path.is_dir() and not any(_is_image(file) and not is_hidden(file, path) for file in path.rglob("*")):
        found = sorted(
            (file for file in path.iterdir() if not is_hidden(file, path)), key=lambda path: frame_order(path.name)
        )
    elif not path.exists() and glob.has_magic(str(path)):
        found = _matches(path.absolute())
    # Where there is no video either, opening the input says what is missing.
    return [spec] if any(map(_is_image, found)) else [str(file) for file in found if _is_video(file)] or [spec]


def _distinct_names(specs: Sequence[str]) -> list[str]:
    paths = [Path(spec).expanduser().absolute() for spec in specs]
    for path, count in Counter(paths).items():
        if count > 1:
            raise InputError(f"input {path} is given {count} times", "every input once", "remove one")
    parts = [_parts(path) for path in paths]
    depths = [1] * len(parts)
    while True:
        names = ["_".join(part[-depth:]) for part, depth in zip(parts, depths, strict=True)]
        repeated = {name for name, count in Counter(names).items() if count > 1}
        if not repeated:
            return names
        deeper = [d + (n in repeated and d < len(p)) for d, n, p in zip(depths, names, parts, strict=True)]
        if deeper == depths:
            given = f"several inputs would have the maps folder '{sorted(repeated)[0]}'"
            remedy = "rename one, or predict it in a run of its own"
            raise InputError(given, "names that differ in more than their suffix", remedy)
        depths = deeper


def _parts(path: Path) -> list[str]:
    """Parts of a name: wildcards, which no folder can be named by on every system, become ``x``."""
    whole = path.with_suffix("") if _is_video(path) or _is_image(path) else path
    return [re.sub(r'[*?\[\]<>:"|]', "x", part) for part in whole.parts[1:]]
