"""The files of each frame on the review page, and the row of its table that describes the frame."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any, TypeVar, cast

import cv2
import numpy as np
import numpy.typing as npt

from segunc.colours import DisplayRange
from segunc.core.errors import InputError, one_line
from segunc.core.removal import Ledger
from segunc.data.images import Image
from segunc.data.labels import IGNORE
from segunc.decisions.flags import Threshold, ranking_score, smallest_object_of
from segunc.decisions.preparation import counted_pixels
from segunc.gallery.alarms import Alarm, find_alarms
from segunc.gallery.condensed import Values, condense, map_script, packed, picture_script, shrink
from segunc.gallery.drawing import score_colours
from segunc.maps import labelled
from segunc.maps.encoding import encode_jpeg
from segunc.maps.folder import PREDICTION
from segunc.maps.labelled import Label
from segunc.maps.reader import MapsReader
from segunc.maps.regions import map_statistics, regions_of, strongest_regions
from segunc.maps.shards import STATISTICS
from segunc.metrics.objects import SMALLEST_OBJECT, Objects, found_up_to, no_specks
from segunc.scores import SCORES

FRAMES = "frames"
THUMBNAILS = "thumbnails"
# What stands beside the scores and `prediction`. A score may be called anomaly, and none has a
# slash in its name.
IMAGE = "image"
ANOMALY = "label/anomaly"
TRUTH = "label/truth"
THUMBNAIL_WIDTH = 320
THUMBNAIL_HASH_LENGTH = 8  # hexadecimal digits of its SHA-256
IMAGE_QUALITY = 80  # of JPEG
MAX_REGIONS = 200  # of a shrunk map: one byte holds the number of each, and its line takes 60
LOWEST = np.finfo(np.float32).min  # what -inf becomes in a table of the page

Map = TypeVar("Map", Values, Label)


def labelled_objects(
    anomaly: Label, smallest: int = SMALLEST_OBJECT
) -> tuple[Objects, npt.NDArray[np.bool_]]:
    """Return the objects of an anomaly label ``[H, W]``, and which of them count, ``[N]``: those of
    at least ``smallest`` pixels, or all where none is so large.
    """
    objects = Objects.of(anomaly)
    return objects, no_specks(objects.pixels, smallest)


def region_threshold(reader: MapsReader, score: str) -> float | None:
    """Return the value from which on pixels of a score belong to a region, as its maps record it;
    None of maps that record none.
    """
    described = (reader.manifest or {}).get("maps", {}).get(score, {})
    threshold: float | None = described.get("component_threshold")
    return threshold


def flagged_map(reader: MapsReader, name: str, values: Values, threshold: Threshold) -> Values:
    """Return the map of a frame as a threshold sees it, float32 ``[H, W]``; -inf where nothing is
    flagged at any value.

    Args:
        reader: of the maps.
        name: of the frame.
        values: of the score, ``[H, W]``.
        threshold: of the score.
    """
    kept = reader.kept(values.shape)
    prepared = threshold.prepared(values, partial(reader.prediction_of, name), kept)
    if kept is not None and threshold.value <= 0:  # maps hold 0 where a mask leaves pixels out
        prepared = np.where(kept, prepared, -np.inf)
    return prepared.astype(np.float32, copy=False)


def strongest_sum(values: Values, threshold: float, smallest: int) -> float:
    """Return the strength of the strongest region of a map ``[H, W]`` of at least ``smallest``
    pixels, 0 where there is none.
    """
    _, boxes, strengths = regions_of(values, threshold)
    large = boxes[:, cv2.CC_STAT_AREA] >= smallest
    return float(max(strengths[large].tolist(), default=0.0))


@dataclass
class FrameRow:
    """What the page's table holds of a frame."""

    name: str
    place: int  # in the order of the source, names the frame's folder
    time: float | None = None  # seconds from the start of a video
    # Its image below the folder of the source, or the name that stands for a frame of a video.
    file: str | None = None
    image_hash: str | None = None  # see MapsReader.image_hash; verdicts carry it
    size: tuple[int, ...] | None = None  # height and width of its maps in pixels
    contents: list[str] = field(default_factory=list)  # image, prediction, scores, anomaly, truth
    # image or score -> hash in the name of its thumbnail
    thumbnails: dict[str, str] = field(default_factory=dict)
    # score -> statistic -> value
    statistics: dict[str, dict[str, float]] = field(default_factory=dict)
    objects: int | None = None  # labelled ones; None without an anomaly label
    specks: bool = False  # whether these are too small to count beside a larger one
    # score -> found_up_to of each labelled object that counts
    found: dict[str, list[float]] = field(default_factory=dict)
    # score -> peak and area (pixels) of its strongest region; none where nothing is flagged
    strongest: dict[str, dict[str, float]] = field(default_factory=dict)
    alarms: list[Alarm] = field(default_factory=list)  # of the score that ranks the frames
    regions: int = 0  # that are flagged and large enough; the alarms are the strongest of them
    # a line on each thing that could not be shown
    problems: list[str] = field(default_factory=list)

    def attempt(self, read: Callable[..., Any], *arguments: Any) -> Any:
        """Return what ``read`` returns, or None with a note of the problem where it raises
        InputError.
        """
        try:
            return read(*arguments)
        except InputError as error:
            self.problems.append(one_line(error))
            return None


@dataclass(frozen=True)
class FrameFiles:
    """Writes frames, one at a time: their maps, labels, pictures and thumbnails."""

    files: Ledger  # of the page
    reader: MapsReader
    scores: list[str]
    ranges: dict[str, DisplayRange]  # of the thumbnails
    labels: labelled.ReviewLabels
    longest: int  # pixels of a map's longer side
    flag: Mapping[str, Threshold]  # of scores, in place of what the maps record
    # of the page, in each script: a page that is open while it is written again knows by it that a
    # script is no longer its own
    stamp: str

    def write(self, row: FrameRow, image: Image | None) -> None:
        """Write all files of a frame and fill in its row; a file that cannot be read is noted there
        and left out.
        """
        anomaly = row.attempt(self.labels.anomaly, row.name)
        truth = row.attempt(self.labels.classes, row.name)
        objects = None
        smallest = smallest_object_of(self.flag)
        if anomaly is not None:
            objects = labelled_objects(anomaly, smallest)
        self._write_prediction(row)
        maps: dict[str, Values] = {}
        for score in self.scores:
            values = self._write_score(row, score)
            if values is None:
                continue
            maps[score] = values
            if objects is not None and row.statistics[score]:
                self._describe_objects(row, score, values, *objects)
        self._find_alarms(row, maps)
        self._write_label(row, ANOMALY, "anomaly", anomaly)
        self._write_label(row, TRUTH, "class", truth)
        if objects is not None and ANOMALY in row.contents:
            all_objects, counted = objects
            row.objects = int(counted.sum())
            row.specks = bool(row.objects and (all_objects.pixels < smallest).all())
        if image is not None:
            self._write_image(row, image)

    def _write_prediction(self, row: FrameRow) -> None:
        if not self.reader.has(row.name, PREDICTION):
            return
        prediction = row.attempt(self.reader.prediction, row.name)
        if prediction is not None:
            self._write_map(row, PREDICTION, self._without_masked(prediction, IGNORE))

    def _write_score(self, row: FrameRow, score: str) -> Values | None:
        """Write map and thumbnail of a score and describe it in the row; return the map in real
        units, None where there is none that can be read.
        """
        if not self.reader.has(row.name, score):
            return None
        values: Values | None = row.attempt(self.reader.read, row.name, score)
        if values is None:
            return None
        prepared = row.attempt(self._prepared, row.name, score, values)
        row.statistics[score] = self._statistics(row.name, score, values, prepared)
        values = prepared
        if values is None:
            return None
        self._write_map(row, score, self._without_masked(values, np.nan))
        threshold = self._threshold(score)
        if threshold is not None:
            self._describe_strongest(row, score, values, threshold)
        if not row.statistics[score]:
            row.problems.append(f"{score} holds NaN or infinite values, so it has no statistics")
        small = shrink(values, THUMBNAIL_WIDTH)
        kept = self.reader.kept(small.shape)
        self._write_thumbnail(row, score, score_colours(small, self.ranges[score], kept))
        return values

    def _without_masked(self, values: Map, filling: float) -> Map:
        """Return a map ``[H, W]`` with a filling where a mask leaves pixels out. The 0 that maps
        hold there would look like a certain pixel of the first class.
        """
        kept = self.reader.kept(values.shape)
        if kept is None:
            return values
        return cast(Map, np.where(kept, values, values.dtype.type(filling)))

    def _prepared(self, name: str, score: str, values: Values) -> Values:
        """Return the map of a score as its threshold sees it, float32 ``[H, W]``.

        Without a threshold, one may be typed on the page. A mask leaves pixels out, and maps hold 0
        there, which is above most thresholds of a score that can be negative: such a map becomes
        -inf there.
        """
        threshold = self.flag.get(score)
        if threshold is None:
            kept = self.reader.kept(values.shape)
            entry = SCORES.get(score)
            may_be_negative = entry is None or entry.lower is None
            if kept is not None and may_be_negative:
                return np.where(kept, values, np.float32(-np.inf))
            return values
        return flagged_map(self.reader, name, values, threshold)

    def _statistics(
        self, name: str, score: str, values: Values, prepared: Values | None
    ) -> dict[str, float]:
        """Return the statistics of a map as its run recorded them, or else measured; empty where
        neither is possible, because the map holds values that are not finite.

        Args:
            name: of the frame.
            score: of the map.
            values: the map, ``[H, W]``.
            prepared: the map as its threshold sees it, in which regions lie; None where there is
                none.
        """
        given = self.flag.get(score)
        if given is not None and given.preparation:
            return self._prepared_statistics(values, prepared)
        record = self.reader.records.get(name, {})
        recorded: dict[str, float] = {}
        for statistic in STATISTICS:
            # Regions that the run recorded are not those of a threshold that was given.
            of_other_threshold = score in self.flag and statistic == "component"
            # The run records the strongest region of any size, see _describe_strongest.
            if statistic == "region" or of_other_threshold:
                continue
            if score in record.get(statistic, {}):
                recorded[statistic] = record[statistic][score]
        if recorded:
            return recorded
        return map_statistics(values) if np.isfinite(values).all() else {}

    def _prepared_statistics(self, values: Values, prepared: Values | None) -> dict[str, float]:
        """Return the statistics of a prepared map, which the page compares with the threshold: a
        level within the frame has another scale than the score that the run recorded.
        """
        if prepared is None or not np.isfinite(values).all():
            return {}
        inside = counted_pixels(np.isfinite(prepared), self.reader.kept(values.shape))
        if inside is None or not inside.any():
            return {}
        return map_statistics(prepared, kept=inside)

    def _describe_strongest(
        self, row: FrameRow, score: str, values: Values, threshold: float
    ) -> None:
        """Note the peak and the area of the strongest region of a frame that is large enough to be
        listed; a sum of excesses alone means nothing to a reader. The sum is the statistic by which
        the page sorts frames, so that it is of the region that is shown.
        """
        smallest = self._smallest_region(score)
        if row.statistics[score]:
            row.statistics[score]["region"] = strongest_sum(values, threshold, smallest)
        for region in strongest_regions(values, threshold, smallest=smallest, most=1):
            x, y = region.peak
            row.strongest[score] = {"peak": float(values[y, x]), "area": region.area}

    def _describe_objects(
        self,
        row: FrameRow,
        score: str,
        values: Values,
        objects: Objects,
        counted: npt.NDArray[np.bool_],
    ) -> None:
        """Note up to which threshold each labelled object that counts is found."""
        if not counted.any() or objects.number.shape != values.shape:
            return
        threshold = self.flag.get(score)
        share = Threshold.found_share if threshold is None else threshold.found_share
        up_to = found_up_to(values[objects.number > 0], objects, share)
        # No threshold finds an object outside of the place, and JSON holds no infinity.
        finite = np.maximum(up_to[counted], LOWEST)
        row.found[score] = [float(value) for value in finite]

    def _find_alarms(self, row: FrameRow, maps: Mapping[str, Values]) -> None:
        """List the alarms of the score that ranks the frames."""
        # That of the page, also where this frame lacks its map: alarms are listed as those of one
        # score.
        ranking = ranking_score(self.ranges, self.flag)
        if ranking not in maps:
            return
        threshold = self._threshold(ranking)
        if threshold is None:
            return
        prediction = self.reader.prediction(row.name) if PREDICTION in row.contents else None
        peaks = self.reader.records.get(row.name, {}).get("peaks", {}).get(ranking, [])
        finite_maps = {score: np.maximum(values, LOWEST) for score, values in maps.items()}
        _, boxes, _ = regions_of(finite_maps[ranking], threshold)
        smallest = self._smallest_region(ranking)
        row.regions = int(np.sum(boxes[:, cv2.CC_STAT_AREA] >= smallest))
        row.alarms = find_alarms(finite_maps, ranking, threshold, prediction, smallest, peaks)

    def _threshold(self, score: str) -> float | None:
        threshold = self.flag.get(score)
        return region_threshold(self.reader, score) if threshold is None else threshold.value

    def _smallest_region(self, score: str) -> int:
        threshold = self.flag.get(score)
        return Threshold.smallest if threshold is None else threshold.smallest

    def _write_label(self, row: FrameRow, content: str, kind: str, label: Label | None) -> None:
        """Write a label; one of another size than the maps is noted and left out."""
        if label is None:
            return
        if row.size is None or label.shape == row.size:
            self._write_map(row, content, label)
            return
        height, width = row.size
        row.problems.append(
            f"the {kind} label is {label.shape[1]} x {label.shape[0]} and the maps are "
            f"{width} x {height}, so it is not shown"
        )

    def _write_image(self, row: FrameRow, image: Image) -> None:
        jpeg = row.attempt(encode_jpeg, image, IMAGE_QUALITY)
        if jpeg is None:
            return
        key = _key(row, IMAGE)
        self.files.write(f"{key}.js", picture_script(key, jpeg, self.stamp))
        self._write_thumbnail(row, IMAGE, shrink(image, THUMBNAIL_WIDTH))
        row.contents.append(IMAGE)
        row.size = row.size or image.shape[:2]

    def _write_map(self, row: FrameRow, content: str, values: Values | Label) -> None:
        """Write a map or label as a script, of a score with the ends of its range."""
        threshold = self._threshold(content) if content in self.ranges else None
        codes, ends = condense(values, self.longest, threshold)
        head: dict[str, Any] = {**ends}
        if threshold is not None and codes.shape != values.shape:
            scored = cast(Values, values)  # a label has no threshold
            regions = listed_regions(scored, threshold, self._smallest_region(content))
            if regions is not None:
                head["regions"] = regions
        key = _key(row, content)
        self.files.write(f"{key}.js", map_script(key, codes, head, self.stamp))
        row.contents.append(content)
        row.size = row.size or values.shape

    def _write_thumbnail(self, row: FrameRow, content: str, picture: Image) -> None:
        """Write a thumbnail under a name with the hash of its bytes, so that neither the cache of a
        browser nor an earlier page that is still open shows the picture of another page.
        """
        jpeg = encode_jpeg(picture)
        digest = hashlib.sha256(jpeg).hexdigest()[:THUMBNAIL_HASH_LENGTH]
        row.thumbnails[content] = digest
        self.files.write(f"{THUMBNAILS}/{row.place:06d}/{content}-{digest}.jpg", jpeg)


def listed_regions(values: Values, threshold: float, smallest: int) -> dict[str, Any] | None:
    """Describe the regions of a map that the page holds shrunk, where they may split or merge.

    Returns:
        ``list``: of each region of at least ``smallest`` pixels left, top, width, height, area, the
        largest value, its column and row, and the strength; ``small``, the number of smaller
        regions; and of the map with the place in the list of each pixel's region, from 1 on, and 0
        for none, its ``width`` and its content, :func:`packed`, as ``numbers``. None where there
        are more than :data:`MAX_REGIONS`.
    """
    finite = np.nan_to_num(values, nan=float(LOWEST))
    _, boxes, _ = regions_of(finite, threshold)
    large = int(np.sum(boxes[:, cv2.CC_STAT_AREA] >= smallest))
    if large > MAX_REGIONS:
        return None
    listed = []
    numbers = np.zeros(values.shape, np.uint8)
    found = strongest_regions(finite, threshold, smallest=smallest, most=large) if large else []
    for number, region in enumerate(found, 1):
        x, y = region.peak
        left, top, width, height = region.box
        numbers[top : top + height, left : left + width][region.inside] = number
        strength = float(f"{region.strength:.6g}")
        listed.append([*region.box, region.area, float(finite[y, x]), x, y, strength])
    return {
        "list": listed,
        "small": len(boxes) - large,
        "width": values.shape[1],
        "numbers": packed(numbers),
    }


def _key(row: FrameRow, content: str) -> str:
    """Return the key of a script of a frame, which is its path on the page, too."""
    return f"{FRAMES}/{row.place:06d}/{content}"
