"""Where frames come from: an image, a folder, a glob pattern or a video, as one stream with names: the path relative to the input without
the suffix, folders kept with ``/``; of a video the number of the frame, six digits from ``000000``."""

from __future__ import annotations

import contextlib
import glob
import os
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import takewhile
from pathlib import Path

from segunc.core.errors import InputError
from segunc.core.files import frame_order, inside, safe_name
from segunc.data.entry import (
    IMAGE_SUFFIXES,
    composed,
    image_files,
    is_hidden,
    is_image_file,
    without_labels,
)
from segunc.data.images import PixelDepth, read_image
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
# How many stretches of an image file, of how many bytes, its stamp reads: few, for a resumed run reads them of all frames.
STAMP_STRETCHES, STAMP_LENGTH = 4, 4096


class ImageSource(FrameSource):
    """Image files in the order of their names (:func:`segunc.core.files.frame_order`), each decoded when its turn comes; only
    relative paths are kept in memory. InputError for two images of one name, or a selection by time."""

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
                frame = Frame(name, index, read_image(file, self.depth), stamp=stamp)
            except (OSError, ValueError, MemoryError) as error:
                reason = "not enough memory" if isinstance(error, MemoryError) else error
                frame = Frame(
                    name, index, None, f"{shown}: {getattr(error, 'strerror', None) or reason}"
                )
            yield frame


def _stem(relative: str) -> str:
    """Return the name of a frame by its file's. One that no map may have (of other bytes than UTF-8, of several lines, with the drive
    letter of another system) is written in ASCII, with backslashes, which no other has."""
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
    """Open an image file, a folder (all images below it), a glob pattern (``**`` crosses folders) or a video. A path that exists is taken
    as it is, so names with ``[`` or ``*`` can be given. Files of other types in a folder or behind a pattern are left out and, unless
    ``all_images`` are taken, those that are named as labels, with a note. ``out`` is where maps will be written: not below the input, where
    they would become frames of the next run."""
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
    root, files, videos = _listed(path)
    if not files:
        hint = f"give a video itself: {min(videos)}" if videos else "check the path"
        raise InputError(f"{kind} {spec} holds no image", hint=hint)
    crosses_folders = kind == "folder" or "**" in path.parts
    if crosses_folders and out is not None and out.resolve().is_relative_to(root.resolve()):
        raise InputError(
            f"output {out} lies inside the input {root}, so its maps would be taken for frames",
            hint="give another --out",
        )
    frames = files if all_images else without_labels(root, files)
    source = ImageSource(kind, path, root, frames, selection)
    if left_out := sorted(set(files) - set(frames)):
        example = left_out[0].relative_to(root).as_posix()
        source.note = f"{path}: {len(frames)} images; {len(left_out)} others left out, which are named as labels, e.g. {example} "
        source.note += "(--all-images takes them)"
    return source


def _is_video(path: Path) -> bool:
    return path.suffix.lower() in VIDEO_SUFFIXES


def _listed(path: Path) -> tuple[Path, list[Path], list[Path]]:
    """Return the root, the images and the videos of an absolute path that is a folder, or a pattern as a shell has it. But ``**``
    follows no links: two that lead to folders above them would make more paths than can be listed."""
    if path.is_dir():
        root, images = path, image_files(path)
        paths = [file for file in path.iterdir() if not is_hidden(file, path)]
    elif path.exists() or not glob.has_magic(str(path)):
        return path, [], []
    else:
        root = _fixed_part(path)
        parts = path.relative_to(root).parts
        hidden = any(part.startswith(".") for part in parts)
        matches = set(root.glob(str(Path(*parts, "*") if parts[-1] == "**" else Path(*parts))))
        paths = [file for file in matches if hidden or not is_hidden(file, root)]
        images = list(filter(is_image_file, paths))
    return root, images, sorted(filter(_is_video, paths), key=lambda file: frame_order(str(file)))


def recorded_images(spec: str, stamps: Mapping[str, str | None]) -> ImageSource | None:
    """Return the images of frames at the place that a manifest records, without listing a folder, or None where there is none. A
    manifest may come from anywhere and name any place of this disk, so an image is taken only where its bytes have the stamp (by
    frame name in ``stamps``) that was recorded of the frame: whoever wrote that has had the image."""
    path = Path(spec)
    root = path if path.is_dir() else path.parent if path.is_file() else _fixed_part(path)
    files = []
    for name, stamp in stamps.items():
        spellings = (
            root / f"{name}{cased}"
            for ending in IMAGE_SUFFIXES
            for cased in (ending, ending.upper())
        )
        files += [
            file for file in spellings if stamp and file.is_file() and stamp_of(file) == stamp
        ][:1]
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
    """Return the inputs of a run and their maps folders. A folder or a pattern that holds videos and no image stands for its videos. A
    single input has ``out`` itself as its maps folder. Of several, each has a sub-folder with the name of the file (without its suffix) or
    folder; where two have one name, folders above it are joined in front with ``_`` until the names differ."""
    expanded: list[str] = []
    for spec in specs:
        _, images, videos = _listed(Path(spec).expanduser().absolute())
        expanded += map(str, videos) if videos and not images else [spec]
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
