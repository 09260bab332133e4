"""Open a maps folder together with its images, its labels and the times of its frames."""

from __future__ import annotations

import shlex
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from segunc.core.errors import InputError, one_line
from segunc.core.urls import is_url, place_of, shown_url, split_topic
from segunc.data.channels import COLOUR, shown_colours
from segunc.data.datasets import data_words
from segunc.data.frame_names import composed
from segunc.data.image_files import list_images
from segunc.data.images import Image
from segunc.data.labels import IGNORE, LabelMap, check_label_files
from segunc.data.layouts import Layout, find_labels, possible_labels
from segunc.data.masks import BINARY, HINT_NO_ANOMALY, AnomalyEncoding, check_masks
from segunc.frames.image_source import stamp_of
from segunc.frames.listing import VIDEO_SUFFIXES
from segunc.frames.recordings import open_recording, recording_hash
from segunc.frames.source import FrameSource
from segunc.frames.sources import open_source, recorded_images
from segunc.frames.video import video_hash
from segunc.maps.manifest import is_ours
from segunc.maps.reader import MapsReader, check_classes
from segunc.maps.regions import Region
from segunc.maps.shards import MANIFEST_NAME
from segunc.scores import OF_DRAWS

Label = npt.NDArray[np.uint8]
IMAGE_KINDS = ("image", "folder", "glob")
"""Kinds of inputs in which each frame has a file of its own."""


class NoLabelError(InputError):
    """Labels are given, and none of them belongs to a frame of the maps."""


@dataclass(frozen=True)
class LabelFolder:
    """A folder of label files, named as a data set's layouts say or in one of the usual ways."""

    path: Path
    layouts: tuple[Layout, ...] = ()
    place: str = ""
    """Where the labels come from, for messages; empty for the folder itself."""

    def __str__(self) -> str:
        return shown_url(self.place) if is_url(self.place) else str(self.path)


Labels = Path | LabelFolder | Mapping[str, Path]
"""A folder whose files are found by the frames' names, or the file of each frame by name."""


def folder_of(labels: Path | LabelFolder) -> Path:
    """Return the folder on this machine that holds labels."""
    return labels.path if isinstance(labels, LabelFolder) else labels


def open_maps(folder: Path) -> MapsReader:
    """Open a maps folder.

    Raises:
        InputError: the folder holds several maps folders, or no maps.
    """
    if not (folder / MANIFEST_NAME).exists():
        inner = sorted(
            path.parent for path in folder.glob(f"*/{MANIFEST_NAME}") if is_ours(path.parent)
        )
        if inner:
            raise InputError(
                f"{place_of(folder)} holds {len(inner)} maps folders",
                hint=f"give one of them: --maps {place_of(inner[0])}",
            )
    return MapsReader(folder)


def choose_scores(reader: MapsReader, scores: Sequence[str] | None) -> list[str]:
    """Return the scores that are asked for, each once.

    Args:
        reader: of the maps.
        scores: None asks for all that mean something: maps of a single draw, as a deterministic
            network has, say nothing of how draws differ.

    Raises:
        InputError: a score has no maps.
    """
    if scores is None:
        run = (reader.manifest or {}).get("run") or {}
        if run.get("draws") == 1:
            return [name for name in reader.scores if name not in OF_DRAWS]
        return list(reader.scores)
    unknown = [score for score in scores if score not in reader.scores]
    if unknown:
        available = ", ".join(reader.scores) or "no scores"
        raise InputError(
            f"the score '{unknown[0]}' has no maps in {reader.place}, which holds {available}"
        )
    return list(dict.fromkeys(scores))


def open_images(
    reader: MapsReader, images: str | Path | None, names: Sequence[str]
) -> tuple[FrameSource | None, str | None]:
    """Return the source of the frames' images, and a sentence without its full stop on missing
    ones.

    Args:
        reader: of the maps.
        images: where the images are; None stands for the recorded place.
        names: of the frames.
    """
    manifest = reader.manifest or {}
    channels = channels_of_run(manifest)
    if images is not None:
        return open_source(images, channels=channels), None
    recorded = manifest.get("moved_to") or manifest.get("run", {}).get("input")
    if not recorded:
        return None, "The maps do not say where their images are; --images gives their place"
    url = recorded_url(reader)
    if url:
        # Maps of a stranger could make this machine call any server.
        return None, (
            "The images are under a URL, which is opened only where it is named; "
            f"--images {shlex.quote(url)} shows them"
        )
    try:
        source = _recorded_source(reader, recorded, names)
    except (InputError, OSError) as error:
        reason = one_line(error) if isinstance(error, InputError) else str(error)
        return None, f"The source images could not be opened: {reason}; --images gives their place"
    if source is None:
        opened = 0
    elif source.length is None:
        opened = len(names)
    else:
        opened = source.length
    if opened == len(names):
        return source, None
    return source, (
        f"{len(names) - opened} of {len(names)} frames have no image at the recorded place with "
        "the bytes that were predicted; --images gives their place"
    )


def recorded_url(reader: MapsReader) -> str:
    """Return the URL that maps record as the place of their images; empty for another place."""
    manifest = reader.manifest or {}
    recorded = manifest.get("moved_to") or manifest.get("run", {}).get("input") or ""
    place, _ = split_topic(recorded)
    return shown_url(recorded) if is_url(place) else ""


def channels_of_run(manifest: Mapping[str, Any]) -> int:
    """Return the number of channels of the images that a run saw, by its manifest."""
    return int(manifest.get("run", {}).get("channels", COLOUR))


def _recorded_source(reader: MapsReader, recorded: str, names: Sequence[str]) -> FrameSource | None:
    """Open the images at the place that the maps record.

    Images are shown only if they have the recorded bytes (the stamp of an image, the hash of a
    video), because the maps of a stranger may name any place of this disk.
    """
    run = (reader.manifest or {}).get("run", {})
    place, topic = split_topic(recorded)
    path = Path(place)
    if topic is not None and not is_url(place):
        is_same = path.exists() and recording_hash(path) == run.get("input_hash")
        return open_recording(path, topic) if is_same else None
    if path.suffix.lower() not in VIDEO_SUFFIXES:
        stamps = {name: reader.records[name].get("stamp") for name in names}
        return recorded_images(recorded, stamps, channels_of_run(reader.manifest or {}))
    if path.is_file() and video_hash(path) == run.get("input_hash"):
        return open_source(recorded)
    return None


def image_files(source: FrameSource | None) -> dict[str, str]:
    """Return the file of each frame that has its own, below the folder of the source."""
    files: dict[str, str] = {}
    if source is None:
        return files
    for index in range(source.length or 0):
        name = source.name_of(index)
        file = source.file_of(index)
        if name is not None and file is not None:
            files[name] = file
    return files


def video_files(reader: MapsReader, names: Sequence[str]) -> dict[str, str]:
    """Return a file name for each frame of a video, empty for maps of images.

    A frame of a video has no file of its own. ``drive.mp4/000120.png`` names the video and the
    frame, and is where a user can put its picture.
    """
    manifest = reader.manifest or {}
    kind = manifest.get("source", {}).get("kind")
    video = input_name(reader)
    if not video or kind in (None, *IMAGE_KINDS):
        return {}
    return {name: f"{video}/{name}.png" for name in names}


def input_name(reader: MapsReader) -> str:
    """Return the last part of the input's path, with the topic of a recording; empty if the maps
    record no input.
    """
    manifest = reader.manifest or {}
    recorded = manifest.get("moved_to") or manifest.get("run", {}).get("input") or ""
    place, topic = split_topic(recorded)
    name = str(place).replace("\\", "/").rstrip("/").rpartition("/")[2]
    return f"{name}/{topic.strip('/')}" if topic else name


def with_images(
    names: Sequence[str], source: FrameSource | None
) -> Iterator[tuple[str, Image | None, str | None]]:
    """Yield each frame with its image as it is shown, or with the reason why it has none, one image
    in memory at a time.
    """
    waiting = {composed(name): name for name in names}
    if source is not None:
        for frame in source.frames(lambda _, name: composed(name) not in waiting):
            name = waiting.pop(composed(frame.name), None)
            if name:
                image = None if frame.image is None else shown_colours(frame.image)
                yield name, image, frame.error
            if not waiting:
                return
    for missing in waiting.values():
        yield missing, None, None


@dataclass(frozen=True)
class ReviewLabels:
    """The label files of frames, read one at a time; pixels outside of a region of interest are
    ignored.
    """

    anomaly_files: Mapping[str, Path]  # by frame
    class_files: Mapping[str, Path]  # by frame
    anomaly_encoding: AnomalyEncoding
    label_map: LabelMap | None
    region: Region | None

    def anomaly(self, name: str) -> Label | None:
        """Read 0 normal, 1 anomaly, 255 ignored, uint8 ``[H, W]``; None for a frame
        without a mask.
        """
        return self._read(self.anomaly_files.get(name), self.anomaly_encoding)

    def classes(self, name: str) -> Label | None:
        """Read train ids, 255 ignored, uint8 ``[H, W]``; None for a frame without class labels."""
        return self._read(self.class_files.get(name), self.label_map)

    def labelled(self, names: Sequence[str]) -> list[str]:
        """Return those of the frames that have a label of either kind."""
        return [name for name in names if name in self.anomaly_files or name in self.class_files]

    def gaps(self, frames: int) -> Iterator[str]:
        """Yield a line for each kind of label that only some of so many frames have."""
        files_by_kind = {"an anomaly label": self.anomaly_files, "a class label": self.class_files}
        for kind, labelled in files_by_kind.items():
            if labelled and len(labelled) < frames:
                yield f"{len(labelled)} of {frames} frames have {kind}; the others show none."

    def _read(self, path: Path | None, meaning: AnomalyEncoding | LabelMap | None) -> Label | None:
        if path is None or meaning is None:
            return None
        label = meaning.read(path)
        if self.region is None:
            return label
        height, width = label.shape
        return np.where(self.region.at(height, width), label, np.uint8(IGNORE))


@dataclass(frozen=True)
class LabelSources:
    """Where labels come from."""

    anomaly_labels: Labels | None = None
    anomaly_encoding: AnomalyEncoding = BINARY
    labels: Labels | None = None  # of classes
    label_map: LabelMap | None = None  # of the class labels
    # Of the files of a data set: the images that they belong to, by the names of their frames.
    images: Mapping[str, Path] = field(default_factory=dict)
    # Of class labels in which some classes are anomalies: whether a label file holds one. Such a
    # label says where the anomaly is, the others give the classes.
    holds_anomaly: Callable[[Path], bool] | None = None
    notes: tuple[str, ...] = ()
    """What a user should know of where the labels come from."""
    dataset: str = ""
    """The data set whose labels they are; empty for labels in folders."""
    split: str = ""
    """Its split; empty for labels in folders."""
    place: str = ""
    """The folders of the labels, without their place on this machine; empty if not known."""
    hint_no_anomaly: str | None = HINT_NO_ANOMALY
    """What to do where no mask holds an anomaly; None takes such masks."""

    @property
    def words(self) -> str:
        """What a reader calls these labels, see :func:`segunc.data.datasets.data_words`; empty
        where it is not known.
        """
        if not (self.dataset or self.place):
            return ""
        return data_words(self.dataset or None, self.split or None, self.place, None)

    def find(self, reader: MapsReader, frames: Sequence[str]) -> ReviewLabels:
        """Find the labels of frames of maps.

        Raises:
            InputError: labels do not fit their meaning or the maps.
            NoLabelError: no label of a kind belongs to a frame; of a data set's files it is enough
                that those of one kind do.
        """
        if self.labels is not None and self.label_map is None:
            raise InputError(
                "class labels are given without the label map that explains their values"
            )
        anomaly_files = _label_files(self.anomaly_labels, reader, frames, self.images)
        class_files = _label_files(self.labels, reader, frames, self.images)
        any_found = bool(anomaly_files or class_files)
        is_parted = any_found and self.holds_anomaly is not None
        if is_parted:
            anomaly_files, class_files = self._parted(class_files)
        if not class_files and not is_parted:
            _check_none_given(self.labels, frames, any_found, "--labels")
        if not anomaly_files and not is_parted:
            _check_none_given(self.anomaly_labels, frames, any_found, "--anomaly-labels")
        if self.label_map is not None:
            check_classes(reader, self.label_map)
            check_label_files(class_files.values(), self.label_map)
        check_masks(anomaly_files.values(), self.anomaly_encoding, hint=self.hint_no_anomaly)
        return ReviewLabels(
            anomaly_files=anomaly_files,
            class_files=class_files,
            anomaly_encoding=self.anomaly_encoding,
            label_map=self.label_map,
            region=reader.region,
        )

    def _parted(self, files: Mapping[str, Path]) -> tuple[dict[str, Path], dict[str, Path]]:
        """Return the files of one folder that are anomaly labels, and those that are class labels,
        by frame.
        """
        assert self.holds_anomaly is not None
        anomaly_files: dict[str, Path] = {}
        class_files: dict[str, Path] = {}
        for name, path in files.items():
            of_kind = anomaly_files if self.holds_anomaly(path) else class_files
            of_kind[name] = path
        return anomaly_files, class_files


def _check_none_given(
    labels: Labels | None, frames: Sequence[str], any_found: bool, option: str
) -> None:
    """Raise NoLabelError where labels are given, none of which belongs to a frame.

    Args:
        labels: that are given.
        frames: names.
        any_found: whether labels of either kind belong to a frame.
        option: that names a folder of such labels.
    """
    if labels is None:
        return
    if isinstance(labels, Mapping):
        if any_found:
            return
        raise NoLabelError(
            f"no label named like {next(iter(labels))} belongs to a frame; the frames are named "
            f"like {frames[0]}",
            hint=_hint_of_names(labels, frames, option),
        )
    folder = folder_of(labels)
    files = list_images(folder)
    if not files:
        raise NoLabelError(f"{labels} holds no label files", hint="name the folder of the labels")
    readable = possible_labels(folder)
    if not readable:
        raise NoLabelError(
            f"{labels} holds no labels: its files, such as {_shown(folder, files[0])}, are JPEG or "
            "WebP, which change the values of labels",
            hint="name the folder of the labels, as PNG",
        )
    raise NoLabelError(
        f"no label in {labels} belongs to a frame: labels are named like "
        f"{_shown(folder, readable[0])}, and frames "
        f"like {frames[0]}",
        hint="give labels the names of their frames, or for class labels --config alone, with the "
        "file of segunc init, which lists the label of each image",
    )


def _hint_of_names(labels: Mapping[str, Path], frames: Sequence[str], option: str) -> str:
    """Return what to do where no frame has the name of one of a data set's labels."""
    ends = {composed(frame).rsplit("/", 1)[-1] for frame in frames}
    named_alike = [path for name, path in labels.items() if name.rsplit("/", 1)[-1] in ends]
    if not named_alike:
        return "--split names another split of the data set"
    return (
        "images of these names lie in other folders of the data set and have other bytes; if the "
        f"frames are changed copies of them, {option} {named_alike[0].parent} takes the labels "
        "by their names"
    )


def _shown(folder: Path, file: Path) -> str:
    """Return the name of a file below its folder."""
    return file.relative_to(folder).as_posix()


def _label_files(
    labels: Labels | None,
    reader: MapsReader,
    frames: Sequence[str],
    images: Mapping[str, Path],
) -> Mapping[str, Path]:
    """Return the label file of each frame that has one. A frame's own image, which the maps know by
    its bytes, is never taken for its label.
    """
    if labels is None:
        return {}
    if isinstance(labels, Mapping):
        return _listed_labels(labels, reader, frames, images)
    stamps = {record["stamp"] for record in reader.records.values() if record.get("stamp")}

    def is_frame(path: Path) -> bool:
        with suppress(OSError):  # the error comes when the file is read as a label
            return bool(stamps) and stamp_of(path) in stamps
        return False

    layouts = labels.layouts if isinstance(labels, LabelFolder) else ()
    return find_labels(folder_of(labels), frames, layouts, is_frame)


def _listed_labels(
    labels: Mapping[str, Path],
    reader: MapsReader,
    frames: Sequence[str],
    images: Mapping[str, Path],
) -> dict[str, Path]:
    """Return the label of each frame by its name.

    Where no frame has the name of a label, maps may be of a folder inside of the data set: a frame
    ``s/000`` is then ``images/val/s/000`` if the image there has the bytes that were predicted.
    """
    labels_of_names = {composed(name): path for name, path in labels.items()}
    matched = {}
    for frame in frames:
        if composed(frame) in labels_of_names:
            matched[frame] = labels_of_names[composed(frame)]
    if matched:
        return matched
    images_of_ends: dict[str, list[str]] = defaultdict(list)
    for name in images:
        images_of_ends[composed(name).rsplit("/", 1)[-1]].append(name)
    for frame in frames:
        stamp = reader.records.get(frame, {}).get("stamp")
        if not stamp:
            continue
        end = composed(frame)
        for name in images_of_ends[end.rsplit("/", 1)[-1]]:
            is_below = composed(name).endswith(f"/{end}")
            if is_below and name in labels and _stamp(images[name]) == stamp:
                matched[frame] = labels[name]
    return matched


def _stamp(image: Path) -> str | None:
    """Return the stamp of an image file; None where it cannot be read."""
    with suppress(OSError):
        return stamp_of(image)
    return None
