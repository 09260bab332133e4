"""Where frames come from: an image, a folder, a glob pattern, a video or a camera of a recording,
on this machine or under a URL, as one stream with names: the path relative to the input without the
suffix, folders kept with ``/``; of a video or a recording the number of the frame, six digits from
``000000``.
"""

from __future__ import annotations

import glob
import os
import re
import warnings
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from segunc.core.errors import InputError, NoteWarning
from segunc.core.files import frame_order, inside, nearest_path, safe_name, shown_name
from segunc.core.terminal import counted
from segunc.core.urls import is_url, shown_url, split_topic
from segunc.data.channels import COLOUR, check_colour_file
from segunc.data.image_files import ARRAY_SUFFIXES, IMAGE_SUFFIXES, is_image_file
from segunc.data.layouts import without_labels
from segunc.frames.image_source import ImageSource, stamp_of
from segunc.frames.listing import (
    VIDEO_SUFFIXES,
    Listing,
    fixed_part,
    is_array_file,
    is_video,
    left_out,
    list_input,
    no_image,
)
from segunc.frames.recordings import RECORDING_SUFFIXES, is_recording, open_recording
from segunc.frames.remote import (
    RemoteImages,
    is_remote_recording,
    list_remote_input,
    local_input,
    rank_of_remote,
    remote_kind,
)
from segunc.frames.source import ALL_FRAMES, FrameSource, Kind, Selection
from segunc.frames.video import VideoSource


def open_source(
    spec: str | Path,
    *,
    out: Path | None = None,
    selection: Selection = ALL_FRAMES,
    all_images: bool = True,
    channels: int | None = COLOUR,
) -> FrameSource:
    """Open an image file, a folder (all images below it), a glob pattern, a video or a recording.

    A path that exists is taken as it is, so names with ``[`` or ``*`` can be given. ``**`` in a
    pattern crosses folders. Videos, pictures of formats that are not read and linked folders in a
    folder or behind a pattern are left out; the source has a note on each kind. Behind the path of
    a recording stands its topic, as in ``drive.mcap:/camera/front``.

    Args:
        spec: what to open, a path or a URL.
        out: where maps will be written. It must not lie below the input, where maps would become
            frames of the next run.
        selection: which frames are taken.
        all_images: also take images that :func:`segunc.data.layouts.without_labels` leaves out.
        channels: K of the network. Unless it is 3, frames are images and arrays ``[H, W, K]`` of
            exactly K channels, and no videos; see :func:`segunc.data.channels.read_frame`. None is
            not known yet, and opens the source to see whether it is there.

    Raises:
        InputError: the input does not exist, holds no image, holds the output, or has frames of
            three channels alone.
    """
    place, topic = split_topic(spec)
    if is_url(place):
        return _open_url(str(place), topic, selection, all_images, channels)
    path = Path(place).expanduser().absolute()
    if is_recording(path, topic):
        check_colour_file(f"recording {spec}", channels)
        return open_recording(path, topic, selection)
    if path.is_file():
        return _open_file(spec, path, selection, channels)
    if not path.exists() and not glob.has_magic(str(path)):
        raise InputError(
            f"input {spec} does not exist{nearest_path(Path(place).expanduser())}",
            hint="give an image, a folder, a glob pattern, a video or a recording",
        )
    kind: Kind = "folder" if path.is_dir() else "glob"
    listing = list_input(path)
    root = listing.root
    images = _images_in(listing, channels)
    if not images:
        raise no_image(f"{kind} {spec}", listing)
    crosses_folders = kind == "folder" or "**" in path.parts
    if crosses_folders and out is not None and out.resolve().is_relative_to(root.resolve()):
        raise InputError(
            f"output {out} lies inside the input {root}, so its maps would be taken for frames",
            hint="give another --out",
        )
    frames = images if all_images else without_labels(root, images)
    files = [frame.relative_to(root).as_posix() for frame in frames]
    source = ImageSource(kind, path, root, files, selection, channels or COLOUR)
    source.notes = _notes(path, listing, images, frames)
    return source


def _images_in(listing: Listing, channels: int | None) -> list[Path]:
    """Return the files of a listing that are frames of a network of so many channels."""
    if channels == COLOUR:
        return listing.images
    return sorted([*listing.images, *listing.arrays], key=lambda file: frame_order(str(file)))


def _open_file(
    spec: str | Path, path: Path, selection: Selection, channels: int | None
) -> FrameSource:
    """Open a file that is a video or an image by its name; messages call it ``spec``."""
    if is_video(path):
        check_colour_file(f"video {spec}", channels)
        return VideoSource(path, selection)
    if is_image_file(path) or (channels != COLOUR and is_array_file(path)):
        return ImageSource("image", path, path.parent, [path.name], selection, channels or COLOUR)
    if is_array_file(path):
        raise InputError(
            f"input {spec} is an array, and the network takes images of three channels",
            hint="write it as an image, for example as PNG",
        )
    raise InputError(
        f"input {spec} is neither an image, a video nor a recording by its name",
        hint=f"names end in {', '.join((*IMAGE_SUFFIXES, *VIDEO_SUFFIXES, *RECORDING_SUFFIXES))}",
    )


def _open_url(
    url: str,
    topic: str | None,
    selection: Selection,
    all_images: bool,
    channels: int | None,
) -> FrameSource:
    """Open what a URL names, as :func:`open_source` does."""
    kind = remote_kind(url)
    shown = shown_url(url)
    if is_remote_recording(url, topic):
        return _open_remote_recording(url, topic, selection, channels)
    if kind == "video":
        check_colour_file(f"video {shown}", channels)
        local, held = local_input(url)
        video = VideoSource(local, selection, shown)
        video.held = held
        return video
    listing, files = list_remote_input(url)
    if listing.is_bag:
        return _open_remote_recording(url, topic, selection, channels)
    images = _images_in(listing, channels)
    if not images:
        raise no_image(f"{kind} {shown}", listing)
    frames = images
    if not all_images:
        rank = partial(rank_of_remote, files)
        frames = without_labels(listing.root, images, rank)
    kept = {frame.as_posix(): files[frame.as_posix()] for frame in frames}
    source = RemoteImages(kind, shown, kept, selection, channels or COLOUR)
    source.notes = _notes(shown, listing, images, frames)
    return source


def _open_remote_recording(
    url: str, topic: str | None, selection: Selection, channels: int | None
) -> FrameSource:
    """Download a recording and open its topic."""
    shown = shown_url(url)
    check_colour_file(f"recording {shown}", channels)
    local, held = local_input(url)
    recording = open_recording(local, topic, selection, shown)
    recording.held = held
    return recording


def _notes(
    path: Path | str, listing: Listing, images: Sequence[Path], frames: Sequence[Path]
) -> tuple[str, ...]:
    """Return a line on each kind of thing of a listing that is no frame; ``images`` are its files
    that could be frames.
    """
    notes = left_out(path, listing)
    labels = sorted(set(images) - set(frames))
    if labels:
        example = labels[0].relative_to(listing.root).as_posix()
        notes.append(
            f"{path}: {counted(len(frames), 'image')}; {counted(len(labels), 'other')} left out "
            f"as labels, e.g. {example} (--all-images takes them)"
        )
    return tuple(notes)


def recorded_images(
    spec: str, stamps: Mapping[str, str | None], channels: int = COLOUR
) -> ImageSource | None:
    """Return the images of frames at the place that a manifest records, None if there are none.

    No folder is listed. A manifest may come from anywhere and name any place of this disk, so an
    image is taken only if its bytes have the stamp that was recorded of the frame: whoever wrote
    that has had the image.

    Args:
        spec: the place.
        stamps: the stamp of each frame by its name, None for a frame without one.
        channels: of the images.
    """
    if is_url(spec):  # maps of a stranger could make this machine call any server
        return None
    path = Path(spec)
    if path.is_dir():
        root = path
    elif path.is_file():
        root = path.parent
    else:
        root = fixed_part(path)
    files: list[str] = []
    for name, stamp in stamps.items():
        file = _image_of_stamp(root, name, stamp) if stamp else None
        if file is not None:
            files.append(file.relative_to(root).as_posix())
    return ImageSource("folder", root, root, files, channels=channels) if files else None


def _image_of_stamp(root: Path, name: str, stamp: str) -> Path | None:
    """Return the image of a frame below a root, if its bytes have the stamp."""
    for ending in (*IMAGE_SUFFIXES, *ARRAY_SUFFIXES):
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


@dataclass(frozen=True)
class Input:
    """One input of a run."""

    spec: str
    """What :func:`open_source` takes."""
    out: Path
    """Its maps folder."""
    label: str = ""
    """Its name in progress and messages; empty for a single input."""
    url: str = ""
    """Where the maps folder is uploaded to; empty if it stays on this machine."""

    @property
    def shown_out(self) -> Path | str:
        """Where the user finds the maps folder."""
        return shown_url(self.url) if self.url else self.out


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
        expanded += _expanded(spec)
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
        inputs.append(Input(spec, _maps_folder(out, name, spec), name))
    return inputs


def _maps_folder(out: Path, name: str, spec: str) -> Path:
    """Return the maps folder of an input, by its name among those of other inputs.

    Raises:
        InputError: no folder can have the name, or a link leads out of ``out``.
    """
    try:
        safe_name(name, "a folder")
    except InputError as error:
        raise InputError(
            f"no maps folder can have the name of the input {shown_name(spec)}",
            hint="rename the input in letters, digits, '-' and '_'",
        ) from error
    return inside(out, name)


def _expanded(spec: str) -> list[str]:
    """Return the videos of an input that holds videos and no image, otherwise the input itself."""
    place, topic = split_topic(spec)
    if is_url(place):
        if is_remote_recording(str(place), topic):
            return [spec]
        if remote_kind(str(place)) not in ("folder", "glob"):
            return [spec]
        shown: Path | str = shown_url(spec)
        listing, files = list_remote_input(spec)
        videos = [files[video.as_posix()].address() for video in listing.videos]
    else:
        shown = Path(place).expanduser().absolute()
        if is_recording(shown, topic):
            return [spec]
        listing = list_input(shown)
        videos = [str(video) for video in listing.videos]
    if listing.images or listing.arrays or not videos:
        return [spec]
    for note in left_out(shown, listing):
        warnings.warn(note, NoteWarning, stacklevel=3)
    return videos


def _name_parts(spec: str) -> list[str]:
    """Return the parts of an input's path, of which the name of its maps folder is made."""
    place, topic = split_topic(spec)
    shown = shown_url(str(place)) if is_url(place) else place
    path = Path(os.path.abspath(Path(shown).expanduser()))  # no folder can be named ".."
    endings = (*IMAGE_SUFFIXES, *ARRAY_SUFFIXES, *VIDEO_SUFFIXES, *RECORDING_SUFFIXES)
    if path.suffix.lower() in endings:
        path = path.with_suffix("")
    parts = [*path.parts]
    if topic:
        parts += [part for part in topic.split("/") if part]
    # Wildcards, which no folder can be named by on every system, become x.
    return [re.sub(r'[*?\[\]<>:"|]', "x", part) for part in parts]


def is_other_label(label: str, other: str) -> bool:
    """Return whether one input may have either name, beside different inputs: one of them has
    folders in front."""
    return label.endswith(f"_{other}") or other.endswith(f"_{label}")


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
