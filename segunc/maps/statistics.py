"""What frames amount to, over the pixels that count: statistics, their table, and the frames that stand out."""

from __future__ import annotations

import bisect
import hashlib
import heapq
import io
import math
from array import array
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import numpy.typing as npt

from segunc.core.errors import InputError
from segunc.core.files import csv_text, inside, reading, replacing, write_atomically, write_rows
from segunc.data.images import read_image, resize_nearest
from segunc.maps.encoding import CODE_MAX, Array, decode_unit, keys_to_half, score_keys
from segunc.maps.manifest import Manifest, is_ours, read_manifest
from segunc.maps.shards import MANIFEST_NAME, STATISTICS, all_shards, iterate_records
from segunc.maps.sums import DamageError

MASK_NAME = "mask.png"
ASPECT_TOLERANCE = 0.02
"""By how much the ratio of a mask's sides may differ from that of a frame: another camera's mask is a mistake."""
PERCENT = 99
TABLE_NAME = "frames.csv"
SAME_LOOK = 10
"""Bits in which the hashes of one moment may differ."""

Mask = npt.NDArray[np.bool_]


class Region:
    """A region of interest: pixels outside of it (the vehicle's own bonnet, a time stamp burnt in) count for nothing.

    It comes from a PNG: black (0) is left out, any other value counts. A frame of another size gets it resized to the
    nearest pixel. InputError where the file cannot be read, is no PNG (a JPEG's black is not 0), or leaves nothing.

    Attributes:
        kept: bool ``[H, W]`` at the size of the file.
        sha256: of size and pixels, whatever the file's encoding.
    """

    def __init__(self, path: Path) -> None:
        if path.suffix.lower() != ".png":
            raise InputError(f"mask {path}", "a PNG, whose black is exactly 0", "convert it")
        with reading(f"mask {path}", "a PNG"):
            picture = read_image(path)
        self.kept: Mask = picture.max(axis=2) > 0
        if not self.kept.any():
            raise InputError(f"mask {path} is black all over", "white where pixels count", "invert it")
        self.sha256 = hashlib.sha256(repr(self.kept.shape).encode() + np.packbits(self.kept).tobytes()).hexdigest()
        self._resized: dict[tuple[int, int], Mask] = {}

    def at(self, height: int, width: int) -> Mask:
        """The region at a frame's size, bool ``[height, width]``; InputError for frames of another shape than the mask's, or so
        small that nothing of the region is left."""
        found = self._resized.get((height, width))
        if found is None:
            rows, columns = self.kept.shape
            if abs(columns / rows / (width / height) - 1.0) > ASPECT_TOLERANCE:
                given = f"a mask of {rows}x{columns} for a frame of {height}x{width}"
                raise InputError(given, "one shape", "give another --mask")
            found = resize_nearest(self.kept, width, height)
            if not found.any():
                raise InputError(f"a mask that leaves nothing of a frame of {height}x{width}", "a larger region", "")
            self._resized = {(height, width): found}  # of the last size only: sizes may be many
        return found

    def clear(self, maps: Mapping[str, Array]) -> dict[str, Array]:
        """Maps ``[H, W]`` of one frame with 0 outside of the region, each in its own type."""
        return {name: np.where(self.at(*values.shape), values, values.dtype.type(0)) for name, values in maps.items()}


def read_region(folder: Path, manifest: Manifest | None) -> Region | None:
    """The region of a maps folder, None where all pixels count; DamageError where its mask is not what was written."""
    described = (manifest or {}).get("mask")
    if described is None:
        return None
    region = Region(inside(folder, MASK_NAME))
    if region.sha256 != described.get("sha256"):
        given = f"{folder / MASK_NAME} was changed since it was written"
        raise DamageError(given, "the mask that the manifest tells of", "restore it, or predict into a new folder")
    return region


def map_statistics(stored: Array, threshold: float | None = None, kept: Mask | None = None) -> dict[str, float]:
    """The :data:`STATISTICS` of one map, of its stored values in real units.

    ``mean``, the largest value ``max``, ``p99``, the smallest stored value that at least 99 % of the pixels do not
    exceed, and, where there is a threshold, ``component``, the pixels of the :func:`largest_component` of values at or
    above it.

    Args:
        stored: uint16 codes of a score in 0..1 or float16 values ``[H, W]``.
        threshold: in the score's unit.
        kept: pixels that count ``[H, W]``; all where None.
    """
    pixels = stored if kept is None else stored[kept]
    counts = np.bincount(score_keys(pixels).ravel(), minlength=CODE_MAX + 1)
    present = np.flatnonzero(counts)
    needed = -(-PERCENT * pixels.size // 100)
    middle = int(np.searchsorted(np.cumsum(counts[present]), needed))
    keys = present[[middle, -1]].astype(np.uint16)
    percentile, maximum = decode_unit(keys) if stored.dtype == np.uint16 else keys_to_half(keys)
    values = decode_unit(stored) if stored.dtype == np.uint16 else stored
    mean = (values if kept is None else values[kept]).mean(dtype=np.float64)
    numbers = {"mean": mean, "max": maximum, "p99": percentile}
    # Nine digits hold a float32; more would be rounding noise of the summation.
    found: dict[str, float] = {name: float(f"{float(number):.9g}") for name, number in numbers.items()}
    return found if threshold is None else found | {"component": largest_component(values >= threshold, kept)}


def largest_component(high: Mask, kept: Mask | None = None) -> int:
    """Pixels of the largest 8-connected component of a mask ``[H, W]``, 0 where it is empty."""
    mask = (high if kept is None else high & kept).astype(np.uint8)
    if not mask.any():
        return 0
    return int(cv2.connectedComponentsWithStats(mask, connectivity=8)[2][1:, cv2.CC_STAT_AREA].max())


def write_frame_table(folder: Path, manifest: Manifest, scores: Sequence[str]) -> None:
    """Write the table of a maps folder, in source order, by atomic rename. The columns are name, index, time (seconds;
    empty for images), height, width, and ``SCORE.STATISTIC`` for each score; a statistic that a score does not have is
    empty."""
    columns = [(score, statistic) for score in scores for statistic in STATISTICS]
    with replacing(folder / TABLE_NAME) as file, io.TextIOWrapper(file, encoding="utf-8", newline="") as text:
        write_rows(text, [["name", "index", "time", "height", "width", *(".".join(column) for column in columns)]])
        for record in iterate_records(folder, all_shards(manifest)):
            numbers = [record.get(statistic, {}).get(score) for score, statistic in columns]
            size = record.get("size", (None, None))
            write_rows(text, [[record["name"], record.get("index"), record.get("time"), *size, *numbers]])


@dataclass(frozen=True)
class Moment:
    """A frame that stands out: its maps folder, name, time in seconds (None for images), the statistic that chose it, and whether the maps
    know how it looks."""

    folder: Path
    name: str
    time: float | None
    value: float
    look: bool = False


def maps_folders(folder: Path) -> list[Path]:
    """The folder itself where it is a maps folder, else those directly below it, sorted; InputError where there is none."""
    if not folder.is_dir():
        raise InputError(f"maps folder {folder} does not exist", "a folder of maps", "check the path")
    if (folder / MANIFEST_NAME).exists():
        return [folder]
    found = sorted(path.parent for path in folder.glob(f"*/{MANIFEST_NAME}") if is_ours(path.parent))
    if not found:
        given = f"{folder} holds no {MANIFEST_NAME}, nor does a folder in it"
        raise InputError(given, "maps that segunc predict has written", "give its --out")
    return found


@dataclass(frozen=True)
class Neighbours:
    """Which frames of a source show one moment: those less than ``apart`` seconds from one another or, where a time is not known (NaN),
    whose pictures look alike: their :func:`segunc.data.images.difference_hash` differ in at most :data:`SAME_LOOK` bits (0: no hash)."""

    times: Sequence[float]
    looks: Sequence[int]
    apart: float


def recorded_look(record: Mapping[str, Any]) -> int:
    """The hash of a frame's picture in its line of ``frames.jsonl``; 0 where it has none."""
    return int(record.get("look", "0"), 16)


def worst_moments(
    folders: Sequence[Path],
    score: str,
    statistic: str = "mean",
    *,
    count: int = 10,
    apart: float = 5.0,
    fps: float | None = None,
) -> list[Moment]:
    """At most ``count`` frames of maps folders with the highest of the :data:`STATISTICS` of a score, worst first.

    A moment of a source (:class:`Neighbours`) is named once, by its highest frame; ``fps`` gives images of a video, in each of their
    folders, their times. Mean epistemic ranks frames for labelling as BALD does (Houlsby et al. 2011, arXiv 1112.5745; Gal et al. 2017,
    arXiv 1703.02910).

    InputError: a folder whose lines do not hold the statistic for this score.
    """
    moments = [m for folder in folders for m in _worst_of_folder(folder, score, statistic, count, apart, fps)]
    return heapq.nsmallest(count, moments, key=lambda moment: -moment.value)


def separated_peaks(values: Sequence[float], frames: Neighbours, count: int) -> list[int]:
    """Places of the highest values, highest first, none near a higher one that was taken. Of equal values the earlier comes first; a
    value of NaN is left out."""
    chosen: list[int] = []
    # Of the chosen, in order, so that a new one is compared with the two beside it and not with all.
    times: list[float] = []
    looks, looks_without_time = array("Q"), array("Q")
    for place in sorted((p for p in range(len(values)) if not math.isnan(values[p])), key=lambda p: -values[p]):
        if len(chosen) == count:
            break
        time, look = frames.times[place], frames.looks[place]
        timed = not math.isnan(time)
        after = bisect.bisect_left(times, time) if timed else 0
        near = timed and any(abs(time - other) < frames.apart for other in times[max(0, after - 1) : after + 1])
        if near or _looks_like_any(look, looks_without_time if timed else looks):
            continue
        chosen.append(place)
        if timed:
            times.insert(after, time)
        for known in (looks,) if timed else (looks, looks_without_time):
            known.extend([look] if look else [])
    return chosen


def _looks_like_any(look: int, others: array[int]) -> bool:
    if not (look and others):
        return False
    return bool((np.bitwise_count(np.frombuffer(others, np.uint64) ^ np.uint64(look)) <= SAME_LOOK).any())


def write_moments(path: Path, lists: dict[str, tuple[str, list[Moment]]]) -> None:
    """Write lists of moments as CSV: name of a list -> the statistic (``SCORE.STATISTIC``) and its moments in order."""
    rows: list[list[object]] = [["list", "rank", "maps", "frame", "time", "statistic", "value"]]
    for name, (statistic, moments) in lists.items():
        ranked = enumerate(moments, start=1)
        rows += [[name, rank, m.folder.as_posix(), m.name, m.time, statistic, m.value] for rank, m in ranked]
    write_atomically(path, csv_text(rows).encode())


def _worst_of_folder(
    folder: Path, score: str, statistic: str, count: int, apart: float, fps: float | None
) -> list[Moment]:
    manifest = read_manifest(folder)
    values, times, looks = array("d"), array("d"), array("Q")
    names: list[str] = []
    known_times: list[float | None] = []
    inner, start = "", 0.0
    for record in iterate_records(folder, all_shards(manifest)):
        values.append(record.get(statistic, {}).get(score, math.nan))
        names.append(record["name"])
        known_times.append(record.get("time", record.get("index", len(known_times)) / fps if fps else None))
        time = record.get("time", math.nan)
        if fps is not None and math.isnan(time):
            if (of := record["name"].rpartition("/")[0]) != inner:
                inner, start = of, (times[-1] if times else 0.0) + apart  # nothing of another folder is near
            time = start + len(times) / fps
        times.append(time)
        looks.append(recorded_look(record))
    if len(values) and all(map(math.isnan, values)):
        known = ", ".join(name for name in (manifest or {}).get("maps", {}) if name != "prediction")
        given = f"the frames of {folder} have no {statistic} of '{score}'"
        raise InputError(given, f"a score of {known}", "choose another one")
    return [
        Moment(folder, names[place], known_times[place], values[place], bool(looks[place]))
        for place in separated_peaks(values, Neighbours(times, looks, apart), count)
    ]
