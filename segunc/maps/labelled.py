"""Open a maps folder together with its images, its labels and the times of its frames."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import numpy.typing as npt

from segunc.core.errors import InputError, PartialFailure
from segunc.data.frame_names import composed
from segunc.data.images import Image
from segunc.data.labels import IGNORE, LabelMap, check_label_files
from segunc.data.layouts import Layout, find_labels
from segunc.data.masks import BINARY, AnomalyEncoding, check_masks
from segunc.frames.source import FrameSource
from segunc.frames.sources import VIDEO_SUFFIXES, open_source, recorded_images, stamp_of
from segunc.frames.video import video_hash
from segunc.maps.manifest import is_ours
from segunc.maps.reader import MapsReader, check_classes
from segunc.maps.regions import Region
from segunc.maps.shards import MANIFEST_NAME
from segunc.scores import OF_DRAWS

Label = npt.NDArray[np.uint8]


@dataclass(frozen=True)
class LabelFolder:
    """A folder of label files, named as a data set's layouts say or in one of the usual ways."""

    path: Path
    layouts: tuple[Layout, ...] = ()

    def __str__(self) -> str:
        return str(self.path)


Labels = Path | LabelFolder | Mapping[str, Path]
"""A folder whose files are found by the frames' names, or the file of each frame by name."""


def open_maps(folder: Path) -> MapsReader:
    """Open a maps folder; a folder of several must not be read as maps of another tool."""
    if not (folder / MANIFEST_NAME).exists():
        inner = sorted(
            path.parent for path in folder.glob(f"*/{MANIFEST_NAME}") if is_ours(path.parent)
        )
        if inner:
            raise InputError(
                f"{folder} holds {len(inner)} maps folders",
                hint=f"give one of them: --maps {inner[0]}",
            )
    return MapsReader(folder)


def choose_scores(reader: MapsReader, scores: Sequence[str] | None) -> list[str]:
    """Return the scores asked for, each once; None asks for all that mean something: maps of a
    single draw, as a deterministic network has, say nothing of how draws differ.
    """
    if scores is None:
        single = ((reader.manifest or {}).get("run") or {}).get("draws") == 1
        return [name for name in reader.scores if not (single and name in OF_DRAWS)]
    if unknown := [score for score in scores if score not in reader.scores]:
        available = ", ".join(reader.scores) or "no scores"
        raise InputError(
            f"the score '{unknown[0]}' has no maps in {reader.folder}, which holds {available}"
        )
    return list(dict.fromkeys(scores))


def open_images(
    reader: MapsReader, images: str | Path | None, names: Sequence[str]
) -> tuple[FrameSource | None, str | None]:
    """Return the source of images for the frames named, ``images`` that are given or the recorded
    one, and a line on missing ones. The recorded one is shown only where it has the recorded bytes
    (the stamp of an image, the hash of a video): the maps of a stranger may name any place of this
    disk.
    """
    if images is not None:
        return open_source(images), None
    run = (reader.manifest or {}).get("run", {})
    if not (recorded := (reader.manifest or {}).get("moved_to") or run.get("input")):
        return (
            None,
            "The maps do not say where their images are, so only maps are shown; --images gives their place.",
        )
    source: FrameSource | None = None
    try:
        if Path(recorded).suffix.lower() not in VIDEO_SUFFIXES:
            source = recorded_images(
                recorded, {name: reader.records[name].get("stamp") for name in names}
            )
        elif Path(recorded).is_file() and video_hash(Path(recorded)) == run.get("input_hash"):
            source = open_source(recorded)
    except (InputError, OSError) as error:
        return (
            None,
            f"The source images could not be opened, so only maps are shown: {error}; see --images.",
        )
    opened = 0 if source is None else len(names) if source.length is None else source.length
    if opened == len(names):
        return source, None
    missing = f"{len(names) - opened} of {len(names)} frames have no image at the recorded place with the bytes that were predicted"
    return source, f"{missing}, so only maps are shown of them; --images gives their place."


def with_images(
    names: Sequence[str], source: FrameSource | None
) -> Iterator[tuple[str, Image | None, str | None]]:
    """Yield each frame with its image, or with the reason why it has none, one image in memory at a
    time.
    """
    waiting = {composed(name): name for name in names}
    for frame in (
        source.frames(lambda _, name: composed(name) not in waiting) if source is not None else ()
    ):
        if name := waiting.pop(composed(frame.name), None):
            yield name, frame.image, frame.error
        if not waiting:
            return
    for missing in waiting.values():
        yield missing, None, None


@dataclass(frozen=True)
class ReviewLabels:
    """The label files of frames, read one at a time; pixels outside of a region of interest are
    ignored.
    """

    anomaly_files: Mapping[str, Path]
    class_files: Mapping[str, Path]
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
        for kind, labelled in (
            ("an anomaly label", self.anomaly_files),
            ("a class label", self.class_files),
        ):
            if labelled and len(labelled) < frames:
                yield f"{len(labelled)} of {frames} frames have {kind}; the others show none."

    def _read(self, path: Path | None, meaning: AnomalyEncoding | LabelMap | None) -> Label | None:
        if path is None or meaning is None:
            return None
        label = meaning.read(path)
        return (
            label
            if self.region is None
            else np.where(self.region.at(*label.shape), label, np.uint8(IGNORE))
        )


@dataclass(frozen=True)
class LabelSources:
    """Where labels come from: anomaly masks with their encoding, and class labels with their label
    map; of the files of a data set also the images that they belong to.
    """

    anomaly_labels: Labels | None = None
    anomaly_encoding: AnomalyEncoding = BINARY
    labels: Labels | None = None
    label_map: LabelMap | None = None
    images: Mapping[str, Path] = field(default_factory=dict)  # by the names of the files' frames

    def find(self, reader: MapsReader, frames: Sequence[str]) -> ReviewLabels:
        """Find the labels of frames of maps; of a data set's files it is enough that one kind
        belongs to a frame. PartialFailure where none does.
        """
        if self.labels is not None and self.label_map is None:
            raise InputError(
                "class labels are given without the label map that explains their values"
            )
        both = self.anomaly_labels, self.labels
        files = [_label_files(labels, reader, frames, self.images) for labels in both]
        for labels, matched in zip(both, files, strict=True):
            if (
                labels is not None
                and not matched
                and not (isinstance(labels, Mapping) and any(files))
            ):
                where = (
                    f"named like {next(iter(labels))}"
                    if isinstance(labels, Mapping)
                    else f"in {labels}"
                )
                raise PartialFailure(
                    f"no label {where} belongs to a frame; the frames are named like {frames[0]}"
                )
        if self.label_map is not None:
            check_classes(reader, self.label_map)
            check_label_files(files[1].values(), self.label_map)
        check_masks(files[0].values(), self.anomaly_encoding)
        return ReviewLabels(
            files[0], files[1], self.anomaly_encoding, self.label_map, reader.region
        )


def _label_files(
    labels: Labels | None,
    reader: MapsReader,
    frames: Sequence[str],
    images: Mapping[str, Path],
) -> Mapping[str, Path]:
    """Return the label file of each frame that has one; never a frame's own image, which the maps
    know by its bytes.
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
    return find_labels(Path(str(labels)), frames, layouts, is_frame)


def _listed_labels(
    labels: Mapping[str, Path],
    reader: MapsReader,
    frames: Sequence[str],
    images: Mapping[str, Path],
) -> dict[str, Path]:
    """Return the label of each frame by its name. Where no frame has the name of a label, maps may
    be of a folder inside of the data set: a frame ``s/000`` is then ``images/val/s/000`` if the
    image there has the bytes that were predicted.
    """
    by_name = {composed(name): path for name, path in labels.items()}
    found = {name: by_name[composed(name)] for name in frames if composed(name) in by_name}
    if found:
        return found
    ends: dict[str, list[str]] = defaultdict(list)
    for name in images:
        ends[composed(name).rsplit("/", 1)[-1]].append(name)
    for frame in frames:
        stamp = reader.records.get(frame, {}).get("stamp")
        wanted = composed(frame)
        for name in ends[wanted.rsplit("/", 1)[-1]]:
            is_below = composed(name).endswith(f"/{wanted}")
            if stamp and is_below and name in labels and _stamp(images[name]) == stamp:
                found[frame] = labels[name]
    return found


def _stamp(image: Path) -> str | None:
    """Return the stamp of an image file; None where it cannot be read."""
    with suppress(OSError):
        return stamp_of(image)
    return None
