"""A maps folder as a data set of FiftyOne (https://docs.voxel51.com), and the verdicts that its
tags give.

Each frame is a sample with its image, the prediction and labels as masks, the scores as heat maps,
and the flagged regions as detections; regions of one event have one index. A tag that is a verdict,
such as ``false-alarm``, on a sample or on a detection is a verdict on the frame or on the region.

The data set is made by FiftyOne's own library and lies in its database. The files that it refers to
lie in the output folder.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from segunc.colours import DisplayRange
from segunc.core.errors import InputError, PartialFailure, failed_frames, one_line
from segunc.core.removal import Ledger
from segunc.data.images import Image
from segunc.data.labels import IGNORE
from segunc.decisions.events import Follower
from segunc.decisions.flags import Threshold, check_forms, check_promises
from segunc.gallery.colours import class_colours, page_ranges
from segunc.gallery.drawing import NO_LABELS
from segunc.gallery.frame_files import region_threshold
from segunc.gallery.review_page import choose_page_scores, run_id
from segunc.maps import labelled
from segunc.maps.encoding import encode_jpeg, encode_png
from segunc.maps.reader import MapsReader
from segunc.maps.regions import StrongRegion, mean_of_kept, strongest_regions
from segunc.maps.shards import frame_times
from segunc.maps.verdicts import GRAVEST, VERDICTS, JudgedRegion, Verdict

MAX_REGIONS = 32  # of a score in a frame, the strongest ones
FIRST_CLASS = 1  # the mask value of class 0, because FiftyOne draws nothing where a mask is 0
FLAGGED = "flagged"  # the fields of a sample
PREDICTION = "prediction"
CLASS_LABEL = "label"
ANOMALY_LABEL = "anomaly_label"
IMAGE_HASH = "image_hash"
PREPARATION = "preparation"  # a field of a detection
HINT = 'pip install "segunc[fiftyone]"'


@dataclass
class WrittenDataset:
    """What is in the data set.

    Attributes:
        name: of the data set in FiftyOne.
        samples: number of frames in it.
        failed: frame -> why it is not in it.
        notes: lines for the user.
    """

    name: str
    samples: int = 0
    failed: dict[str, str] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)

    @property
    def failure(self) -> str:
        """Say which frames failed, in one line; empty where none did."""
        return failed_frames(self.failed, "is not in the data set")


def import_fiftyone() -> Any:
    """Return FiftyOne's library, after it was seen that its database answers.

    Raises:
        InputError: it is not installed, or has no database.
    """
    # It would ask the network for what its makers count.
    os.environ.setdefault("FIFTYONE_DO_NOT_TRACK", "true")
    try:
        import fiftyone
    except ImportError as error:
        raise InputError(
            "FiftyOne needs the package fiftyone, which is not installed", hint=HINT
        ) from error
    try:
        fiftyone.list_datasets()
    except Exception as error:  # what a missing or dead database raises has no common type
        raise InputError(
            f"FiftyOne has no database ({one_line(error)})",
            hint="install MongoDB, or set FIFTYONE_DATABASE_URI to a running one",
        ) from error
    return fiftyone


def dataset_name(reader: MapsReader) -> str:
    """Return the name of the data set of a run in FiftyOne."""
    return f"segunc-{run_id(reader)}"


def write_dataset(  # noqa: PLR0913  each is an option of `segunc review`
    maps: Path,
    out: Path,
    labels: labelled.LabelSources = NO_LABELS,
    on_frame: Callable[[int, int], None] = lambda done, total: None,
    *,
    images: str | None = None,
    scores: Sequence[str] | None = None,
    fps: float | None = None,
    flag: Mapping[str, Threshold] | None = None,
    verdicts: Sequence[Verdict] = (),
) -> WrittenDataset:
    """Make a data set of FiftyOne of a maps folder, with its files below ``out``.

    A frame without an image, or with a damaged map, does not stop the others. The keyword settings
    are those of :class:`segunc.options.ReviewOptions`.

    Args:
        maps: a maps folder.
        out: the folder of the files that the data set refers to.
        labels: where the labels of frames come from.
        on_frame: is called with the number of frames done and their total.
        flag: score -> threshold from which on pixels belong to a flagged region, in place of that
            which the maps record.
        verdicts: that become tags.

    Raises:
        InputError: FiftyOne is not installed, has no database or has this data set already; or the
            maps, the images or the labels do not fit.
        PartialFailure: no frame could be put into the data set.
    """
    library = import_fiftyone()
    reader = labelled.open_maps(maps)
    _check_new(library, dataset_name(reader))
    flag = flag or {}
    shown = choose_page_scores(reader, scores, flag)
    check_promises(flag, (reader.manifest or {}).get("run", {}), reader.sizes())
    check_forms(flag, reader)
    frame_labels = labels.find(reader, reader.frames)
    source, missing = labelled.open_images(reader, images, reader.frames)
    if source is None:
        raise InputError(f"FiftyOne shows images ({missing})", hint="give --images PATH")
    writer = _SampleWriter(
        library, reader, page_ranges(reader, shown), frame_labels, flag, Ledger(out)
    )
    written = WrittenDataset(dataset_name(reader))
    written.notes += [text for text in (missing, reader.unfinished) if text]
    samples: list[Any] = []
    times = list(frame_times(reader.frames, reader.records, reader.manifest, fps))
    tags = _tags_of_frames(verdicts)
    for place, (frame, image, _) in enumerate(labelled.with_images(reader.frames, source)):
        try:
            sample = writer.sample(frame, image)
        except InputError as problem:
            written.failed[frame] = one_line(problem)
        else:
            sample["time"] = times[place]
            sample.tags = tags.get(frame, [])
            samples.append(sample)
        on_frame(place + 1, len(reader.frames))
    if not samples:
        raise PartialFailure(written.failure)
    _add_dataset(library, written.name, samples, class_colours(reader, labels.label_map))
    written.samples = len(samples)
    return written


def _check_new(library: Any, name: str) -> None:
    """Raise InputError where FiftyOne has a data set of this name."""
    if library.dataset_exists(name):
        raise InputError(
            f"FiftyOne has the data set {name} of these maps already, and its tags would be lost",
            hint=f"fiftyone datasets delete {name}",
        )


def _add_dataset(
    library: Any, name: str, samples: Sequence[Any], classes: Sequence[Mapping[str, Any]]
) -> None:
    """Put samples into a new data set; after an error there is none."""
    targets = {number + FIRST_CLASS: entry["name"] for number, entry in enumerate(classes)}
    dataset = library.Dataset(name, persistent=True)
    try:
        dataset.default_mask_targets = targets
        dataset.mask_targets = {ANOMALY_LABEL: {1: "anomaly", IGNORE: "ignored"}}
        dataset.add_samples(samples)
    except BaseException:
        library.delete_dataset(name)
        raise


def _tags_of_frames(verdicts: Sequence[Verdict]) -> dict[str, list[str]]:
    """Return the different verdicts on each frame as a whole."""
    tags: dict[str, list[str]] = {}
    for verdict in verdicts:
        if verdict.verdict and verdict.region is None:
            of_frame = tags.setdefault(verdict.frame, [])
            if verdict.verdict not in of_frame:
                of_frame.append(verdict.verdict)
    return tags


@dataclass
class _SampleWriter:
    """Makes a sample of each frame, and writes the files that it refers to."""

    library: Any  # the module fiftyone
    reader: MapsReader
    ranges: Mapping[str, DisplayRange]  # of each score
    labels: labelled.ReviewLabels
    flag: Mapping[str, Threshold]
    files: Ledger
    followers: dict[str, Follower] = field(default_factory=dict)  # of each score

    def sample(self, frame: str, image: Image | None) -> Any:
        """Return the sample of a frame.

        Raises:
            InputError: it has no image, or a map or a label cannot be read.
        """
        if image is None:
            raise InputError(f"frame {frame} has no image")
        library = self.library
        maps = {score: self.reader.read(frame, score) for score in self.ranges}
        prediction = self.reader.prediction_of(frame)
        classes = self.labels.classes(frame)
        anomaly = self.labels.anomaly(frame)
        sample = library.Sample(filepath=self._file("images", f"{frame}.jpg", encode_jpeg(image)))
        sample["frame"] = frame
        sample[IMAGE_HASH] = self.reader.image_hash(frame)
        for name, ids in ((PREDICTION, prediction), (CLASS_LABEL, classes)):
            if ids is not None:
                # Of whole numbers of eight bits, 255 (ignored) becomes 0, where nothing is drawn.
                sample[name] = self._mask(name, frame, ids + np.uint8(FIRST_CLASS))
        if anomaly is not None:
            sample[ANOMALY_LABEL] = self._mask(ANOMALY_LABEL, frame, anomaly)
        detections = []
        for score, values in maps.items():
            levels = np.nan_to_num(self.ranges[score].share(values), nan=0.0).clip(0, 1) * 255
            data = encode_png(np.rint(levels).astype(np.uint8))
            path = self._file(f"scores/{score}", f"{frame}.png", data)
            sample[field_name(score)] = library.Heatmap(map_path=path, range=[0, 255])
            mean = mean_of_kept(values, self.reader.kept(values.shape))
            sample[f"{field_name(score)}_mean"] = mean
            detections += self._detections(frame, score, values, prediction)
        sample[FLAGGED] = library.Detections(detections=detections)
        return sample

    def _detections(
        self,
        frame: str,
        score: str,
        values: npt.NDArray[np.floating],
        prediction: npt.NDArray[np.uint8] | None,
    ) -> list[Any]:
        """Return the flagged regions of a score."""
        threshold = self.flag.get(score)
        if threshold is None:
            recorded = region_threshold(self.reader, score)
            if recorded is None:
                return []
            threshold = Threshold(recorded)
        kept = self.reader.kept(values.shape)
        prepared = threshold.prepared(values, lambda: prediction, kept)
        regions = strongest_regions(
            prepared, threshold.value, smallest=threshold.smallest, kept=kept, most=MAX_REGIONS
        )
        follower = self.followers.setdefault(score, Follower())
        events = follower.follow(frame, [region.box for region in regions])
        detections = []
        for region, event in zip(regions, events, strict=True):
            detection = self._detection(region, prepared, score, event)
            detection["threshold"] = threshold.value
            detection[PREPARATION] = threshold.preparation.options
            detections.append(detection)
        return detections

    def _detection(
        self, region: StrongRegion, values: npt.NDArray[np.floating], score: str, event: int
    ) -> Any:
        """Return the detection of a region in the map of a score."""
        height, width = values.shape
        left, top, box_width, box_height = region.box
        x, y = region.peak
        detection = self.library.Detection(
            label=score,
            bounding_box=[left / width, top / height, box_width / width, box_height / height],
            index=event,
        )
        detection["peak"] = float(values[y, x])
        detection["area"] = region.area
        detection["pixels"] = _region_record(region, (height, width))
        return detection

    def _mask(self, name: str, frame: str, ids: npt.NDArray[np.uint8]) -> Any:
        path = self._file(name, f"{frame}.png", encode_png(ids))
        return self.library.Segmentation(mask_path=path)

    def _file(self, folder: str, name: str, data: bytes) -> str:
        """Write a file, and return its absolute path."""
        self.files.write(f"{folder}/{name}", data)
        return str((self.files.folder / folder / name).resolve())


def field_name(score: str) -> str:
    """Return the name of a score's field, which must be an identifier."""
    return "".join(character if character.isalnum() else "_" for character in score)


def _region_record(region: StrongRegion, size: tuple[int, int]) -> dict[str, Any]:
    """Return what a verdict on a region says of its pixels.

    ``mask`` holds start and length of each run of pixels, row by row of the frame.
    """
    left, top, width, height = region.box
    mask = np.zeros(size, np.int8)
    mask[top : top + height, left : left + width] = region.inside
    changes = np.diff(mask.ravel(), prepend=0, append=0)
    starts = np.flatnonzero(changes == 1)
    ends = np.flatnonzero(changes == -1)
    runs = np.stack([starts, ends - starts], axis=1).ravel()
    return {"box": list(region.box), "size": list(size), "mask": runs.tolist()}


def read_tags(maps: Path) -> list[Verdict]:
    """Return the verdicts that the tags of a run's data set in FiftyOne give.

    A sample's tag is a verdict on the frame, a detection's tag one on the region. Other tags are
    left alone.

    Raises:
        InputError: FiftyOne is not installed, has no database or lacks the data set, or a frame or
            region has two verdicts.
    """
    library = import_fiftyone()
    reader = labelled.open_maps(maps)
    name = dataset_name(reader)
    if not library.dataset_exists(name):
        raise InputError(
            f"FiftyOne has no data set {name} of these maps",
            hint=f"segunc review --maps {maps} --to fiftyone --out DIR",
        )
    frames = set(reader.frames)
    verdicts: list[Verdict] = []
    for sample in library.load_dataset(name):
        frame = sample["frame"]
        if frame not in frames:
            raise InputError(f"the data set {name} has a frame {frame}, which the maps do not hold")
        date = _date_of(sample)
        judged_image = getattr(sample, IMAGE_HASH, None)  # earlier versions did not write it
        kind = _verdict_of(sample.tags, tuple(VERDICTS), f"frame {frame}")
        if kind:
            verdicts.append(Verdict(frame=frame, verdict=kind, time=date, image_hash=judged_image))
        flagged = sample[FLAGGED]
        for detection in [] if flagged is None else flagged.detections:
            kind = _verdict_of(detection.tags, GRAVEST, f"a region of frame {frame}")
            if kind:
                region = _judged_region(detection)
                verdicts.append(
                    Verdict(
                        frame=frame,
                        verdict=kind,
                        time=date,
                        region=region,
                        image_hash=judged_image,
                    )
                )
    return verdicts


def _verdict_of(tags: Sequence[str], kinds: Sequence[str], what: str) -> str:
    """Return the one tag that is a verdict; empty where there is none."""
    given = [kind for kind in kinds if kind in tags]
    if len(given) > 1:
        raise InputError(
            f"{what} has the tags {given[0]} and {given[1]}, which are two verdicts",
            hint="remove one of them in FiftyOne",
        )
    return given[0] if given else ""


def _date_of(sample: Any) -> str:
    """Return when a sample was changed last, ISO 8601; empty where FiftyOne does not say."""
    changed = getattr(sample, "last_modified_at", None)
    return changed.isoformat() if changed is not None else ""


def _judged_region(detection: Any) -> JudgedRegion:
    """Return the region that a detection stands for."""
    pixels = detection["pixels"]
    left, top, width, height = (int(side) for side in pixels["box"])
    rows, columns = (int(side) for side in pixels["size"])
    return JudgedRegion(
        box=(left, top, width, height),
        area=int(detection["area"]),
        size=(rows, columns),
        mask=tuple(int(number) for number in pixels["mask"]),
        score=detection.label,
        threshold=float(detection["threshold"]),
        value=float(detection["peak"]),
        preparation=getattr(detection, PREPARATION, None),  # earlier versions did not write it
    )
