"""What pages, pictures and exports are made from: a maps folder, its images, its labels, the times of its frames."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from segunc.core.errors import InputError, PartialFailure
from segunc.data.entry import AnomalyEncoding
from segunc.data.images import Image
from segunc.data.labels import IGNORE, LabelMap, check_label_files
from segunc.data.layout import Layout, composed, find_labels, list_images, possible_labels
from segunc.frames.source import Frame, FrameSource, Skip
from segunc.frames.sources import VIDEO_SUFFIXES, ImageSource, open_source, recorded_images, stamp_of
from segunc.frames.video import video_hash
from segunc.maps.manifest import is_ours
from segunc.maps.reader import MapsReader
from segunc.maps.several import SeveralMaps
from segunc.maps.shards import MANIFEST_NAME
from segunc.maps.statistics import Region
from segunc.scores import SPREADS

Label = npt.NDArray[np.uint8]


@dataclass(frozen=True)
class LabelFolder:
    """A folder of label files, named as the layouts of a data set have them, or in one of the usual ways."""

    path: Path
    layouts: tuple[Layout, ...] = ()

    def __str__(self) -> str:
        return str(self.path)


Labels = Path | LabelFolder | Mapping[str, Path]
"""A folder of files found by the frames' names, or the file of each frame by name."""
_NUMBERED = re.compile(r"(\d{4})_.*_labels")  # of the label files of Fishyscapes


def open_maps(folder: Path, several: bool = False) -> MapsReader:
    """The maps of one folder or, where that is allowed, of the several that lie in it; InputError where there are none, or several,
    whose codes must not be read as another tool's."""
    if not (folder / MANIFEST_NAME).exists():
        inner = sorted(path.parent for path in folder.glob(f"*/{MANIFEST_NAME}") if is_ours(path.parent))
        if inner and several:
            return SeveralMaps(folder, inner)
        if inner:
            names = ", ".join(path.name for path in inner[:3])
            raise InputError(f"{folder} holds {len(inner)} maps folders ({names})", "one of them", f"--maps {inner[0]}")
    return MapsReader(folder)


def choose_scores(reader: MapsReader, scores: Sequence[str] | None) -> list[str]:
    """The scores asked for, each once; InputError where one of them has no maps. None is all, but of a single draw, which a
    deterministic network is, not those that say how draws differ: they are 0 everywhere."""
    if scores is None:
        single = ((reader.manifest or {}).get("run") or {}).get("draws") == 1
        return [name for name in reader.scores if not (single and name in SPREADS)]
    chosen = dict.fromkeys(scores)
    unknown = [score for score in chosen if score not in reader.scores]
    if unknown:
        known, remedy = ", ".join(reader.scores) or "(there is none)", "check the name, or predict with that score"
        raise InputError(f"score '{unknown[0]}' has no maps in {reader.folder}", f"one of {known}", remedy)
    return list(chosen)


@dataclass(frozen=True)
class JoinedSources:
    """The images of several runs, whose frames are named ``RUN/FRAME``."""

    sources: Mapping[str, FrameSource]
    path: Path  # of the runs

    @property
    def length(self) -> int | None:
        """The number of frames of all; None where one does not know."""
        lengths = [source.length for source in self.sources.values()]
        return None if None in lengths else sum(length for length in lengths if length is not None)

    def frames(self, skip: Skip) -> Iterator[Frame]:
        """As :meth:`segunc.frames.source.FrameSource.frames`."""

        def skip_of(run: str) -> Skip:
            return lambda index, name: skip(index, f"{run}/{name}")

        for run, source in self.sources.items():
            yield from (replace(frame, name=f"{run}/{frame.name}") for frame in source.frames(skip_of(run)))


def open_images(
    reader: MapsReader, images: str | Path | None, names: Sequence[str]
) -> tuple[FrameSource | JoinedSources | None, str | None]:
    """The source of images for the frames named and, where some are missing, one line for the page.

    ``images`` that were asked for must open, and are shown as they are. The source that the manifest records is shown only where it
    has the recorded bytes (the stamp of an image, the hash of a video): the maps of a stranger name any place of this disk.
    """
    if images is not None:
        return open_source(images), None
    if isinstance(reader, SeveralMaps):
        return _images_of_runs(reader, names)
    run = (reader.manifest or {}).get("run", {})
    recorded = run.get("input")
    if not isinstance(recorded, str) or not recorded or "\0" in recorded:
        return None, "The maps do not say where their images are, so only maps are shown; --images gives their place."
    try:
        if Path(recorded).suffix.lower() in VIDEO_SUFFIXES:
            same = Path(recorded).is_file() and video_hash(Path(recorded)) == run.get("input_hash")
            source: FrameSource | None = open_source(recorded) if same else None
        else:
            source = recorded_images(recorded, {name: reader.records[name].get("stamp") for name in names})
            if isinstance(source, ImageSource) and isinstance(run.get("bits"), int):
                source.depth.bits = run["bits"]
    except (InputError, OSError) as error:
        return None, f"The source images could not be opened, so only maps are shown: {error}; see --images."
    found = 0 if source is None else len(names) if source.length is None else source.length
    if found == len(names):
        return source, None
    lack = f"{len(names) - found} of {len(names)} frames have no image at the recorded place with the bytes that were predicted"
    return source, f"{lack}, so only maps are shown of them; --images gives their place."


def _images_of_runs(reader: SeveralMaps, names: Sequence[str]) -> tuple[JoinedSources | None, str | None]:
    sources, missing = {}, []
    for run, inner in reader.runs.items():
        own = [name.partition("/")[2] for name in names if name.partition("/")[0] == run]
        source, lack = open_images(inner, None, own) if own else (None, None)
        if isinstance(source, FrameSource):
            sources[run] = source
        if lack:
            missing.append(f"{run}: {lack}")
    return JoinedSources(sources, reader.folder) if sources else None, " ".join(missing) or None


def with_images(
    names: Sequence[str], source: FrameSource | JoinedSources | None
) -> Iterator[tuple[str, Image | None, str | None]]:
    """Each frame with its image, or with the reason why there is none, one image in memory at a time."""
    waiting, names_of = dict.fromkeys(names), {composed(name): name for name in names}

    def name_of(image: str) -> str | None:
        return image if image in waiting else names_of.get(composed(image))

    if source is not None:
        for frame in source.frames(lambda _, name: name_of(name) not in waiting):
            name = name_of(frame.name)
            if name is not None and name in waiting:
                del waiting[name]
                yield name, frame.image, frame.error
            if not waiting:
                return
    for missing in waiting:
        yield missing, None, None


def frame_times(reader: MapsReader, names: Sequence[str], rate: float | None = None) -> list[float | None]:
    """Seconds of each frame in its video: as recorded, else of its number at the recorded rate, else, of images that are a video, at
    ``rate`` frames a second from the first of their folder on."""
    source: dict[str, Any] = (reader.manifest or {}).get("source", {})
    fps = source.get("fps")
    # Maps of earlier versions hold no times; their frames are named by their numbers.
    recorded = [reader.records.get(name, {}).get("time") for name in names]
    counted = [int(name) / fps if fps and name.isdigit() else None for name in names]
    if rate:
        numbers: Counter[str] = Counter()
        places = {}
        for name in reader.frames:
            folder = name.rpartition("/")[0]
            places[name] = numbers[folder] / rate
            numbers[folder] += 1
        counted = [places[name] for name in names]
    return [other if time is None else float(time) for time, other in zip(recorded, counted, strict=True)]


@dataclass(frozen=True)
class ReviewLabels:
    """Label files by frame, read one at a time; labels are ignored outside of a region of pixels that count.

    Reading raises InputError where a file is damaged or holds values that its encoding or label map does not know.
    """

    anomaly_files: Mapping[str, Path]
    class_files: Mapping[str, Path]
    anomaly_encoding: AnomalyEncoding
    label_map: LabelMap | None
    region: Region | None

    def anomaly(self, name: str) -> Label | None:
        """0 normal, 1 anomaly, 255 ignored, uint8 ``[H, W]``; None for a frame without a mask."""
        return self._read(self.anomaly_files.get(name), self.anomaly_encoding)

    def classes(self, name: str) -> Label | None:
        """Train ids, 255 ignored, uint8 ``[H, W]``; None for a frame without class labels."""
        return self._read(self.class_files.get(name), self.label_map)

    def gaps(self, frames: int) -> Iterator[str]:
        """What a user should know where only some of the frames, of this number, have labels."""
        for kind, labelled in (("an anomaly label", self.anomaly_files), ("a class label", self.class_files)):
            if labelled and len(labelled) < frames:
                yield f"{len(labelled)} of {frames} frames have {kind}; the others show none."

    def _read(self, path: Path | None, meaning: AnomalyEncoding | LabelMap | None) -> Label | None:
        if path is None or meaning is None:
            return None
        label = meaning.read(path)
        if self.region is None:
            return label
        return np.where(self.region.at(label.shape[0], label.shape[1]), label, np.uint8(IGNORE))


def every_label(given: Labels) -> Collection[Path]:
    """The files among which labels of frames are looked for."""
    return given.values() if isinstance(given, Mapping) else possible_labels(Path(str(given)))


def label_files(given: Labels | None, reader: MapsReader, frames: Sequence[str]) -> Mapping[str, Path]:
    """The label file of each frame that has one; never a frame's own image, which the maps know by its bytes. Frames that bear nothing
    but the numbers of Fishyscapes (``0003``), as a submission's do, get the labels of these numbers (``0003_..._labels.png``). InputError
    where two labels claim one frame."""
    if given is None:
        return {}
    if isinstance(given, Mapping):
        by_name = {composed(name): path for name, path in given.items()}
        found = {name: by_name[composed(name)] for name in frames if composed(name) in by_name}
    else:
        stamps = {record["stamp"] for record in reader.records.values() if record.get("stamp")}
        layouts = given.layouts if isinstance(given, LabelFolder) else ()

        def is_frame(path: Path) -> bool:
            with suppress(OSError):  # whoever reads it as a label says what is wrong
                return bool(stamps) and stamp_of(path) in stamps
            return False

        found = find_labels(Path(str(given)), frames, layouts, is_frame)
    bare = [name for name in frames if name not in found and re.fullmatch(r"\d{4}", name)]
    if not bare:
        return found
    numbered: dict[str, Path] = {}
    for path in every_label(given):
        if match := _NUMBERED.fullmatch(path.stem):
            other = numbered.setdefault(match[1], path)
            if other != path:
                raise InputError(f"{other} and {path} have one number", "the labels of one set", "give its folder")
    return found | {name: numbered[name] for name in bare if name in numbered}


def find_review_labels(
    reader: MapsReader,
    frames: Sequence[str],
    anomaly: Labels | None,
    anomaly_encoding: AnomalyEncoding,
    classes: Labels | None = None,
    label_map: LabelMap | None = None,
) -> ReviewLabels:
    """Find the labels of frames of maps, for whatever reads labels; of a data set's files it is enough that one kind fits.

    InputError: class labels come without a map, or not one was drawn with it. PartialFailure: no label of those given belongs to a frame.
    """
    if classes is not None and label_map is None:
        raise InputError("class labels are given without a label map", "the label map that explains their values")
    both = anomaly, classes
    found = [label_files(given, reader, frames) for given in both]
    for given, files in zip(both, found, strict=True):
        if given is not None and not files and not (isinstance(given, Mapping) and any(found)):
            where = "of the data set" if isinstance(given, Mapping) else f"in {given}"
            why = f"expected labels named like the frames, e.g. {frames[0]}; {_instead(given)}"
            raise PartialFailure(f"no label {where} belongs to a frame; {why}")
    if label_map is not None:
        check_label_files(found[1].values(), label_map)
    return ReviewLabels(found[0], found[1], anomaly_encoding, label_map, reader.region)


def _instead(given: Labels) -> str:
    """What is there where no label belongs to a frame."""
    if isinstance(given, Mapping):
        return f"its frames are named like {next(iter(given))}"
    folder = Path(str(given))
    every, possible = list_images(folder), set(every_label(given))
    pictures = [path.relative_to(folder).as_posix() for path in every if path not in possible]
    if not pictures:
        return "check the path"
    return f"{len(pictures)} of {len(every)} images there are JPEG or in colour, which no label is, e.g. {pictures[0]}"
