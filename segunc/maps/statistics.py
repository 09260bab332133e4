"""Statistics of maps over the pixels that count, and the frames that stand out by them."""

from __future__ import annotations

import bisect
import hashlib
import heapq
import math
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import cv2
import numpy as np
import numpy.typing as npt

from segunc.core.errors import InputError
from segunc.core.files import csv_text, inside, reading, write_atomically
from segunc.data.images import read_image, resize_nearest
from segunc.maps.encoding import CODE_MAX, Array, decode_unit, keys_to_half, score_keys
from segunc.maps.manifest import Manifest, is_ours, read_manifest
from segunc.maps.shards import MANIFEST_NAME, all_shards, iterate_records
from segunc.maps.sums import DamageError

MASK_NAME = "mask.png"
ASPECT_TOLERANCE = 0.02
"""By how much the ratio of a mask's sides may differ from that of a frame: another camera's mask is a mistake."""
PERCENT = 99

Mask = npt.NDArray[np.bool_]


class Region:
    """A region of interest: pixels outside of it (the vehicle's own bonnet, a time stamp burnt in) count for nothing.

    It comes from a PNG: black (0) is left out, any other value counts. A frame of another size gets it resized to the
    nearest pixel.

    Attributes:
        kept: bool ``[H, W]`` at the size of the file.
        sha256: of size and pixels, whatever the file's encoding.

    Raises:
        InputError: the file cannot be read, is no PNG (a JPEG's black is not 0), or leaves nothing.
    """

    def __init__(self, path: Path) -> None:
        if path.suffix.lower() != ".png":
            raise InputError(f"mask {path} is no PNG, whose black is exactly 0", hint="convert it")
        with reading(f"mask {path}", "a PNG"):
            picture = read_image(path)
        self.kept: Mask = picture.max(axis=2) > 0
        if not self.kept.any():
            raise InputError(f"mask {path} is black all over", hint="make it white where pixels count")
        self.sha256 = hashlib.sha256(repr(self.kept.shape).encode() + np.packbits(self.kept).tobytes()).hexdigest()

    def at(self, height: int, width: int) -> Mask:
        """Return the region at a frame's size, bool ``[height, width]``.

        Raises:
            InputError: the frame has another shape than the mask, or is so small that nothing of the region is left.
        """
        rows, columns = self.kept.shape
        if (height, width) == (rows, columns):
            return self.kept
        if abs(columns / rows / (width / height) - 1.0) > ASPECT_TOLERANCE:
            raise InputError(
                f"the mask of {rows}x{columns} does not fit a frame of {height}x{width}", hint="give another --mask"
            )
        resized: Mask = resize_nearest(self.kept, width, height)
        if not resized.any():
            raise InputError(f"the mask leaves nothing of a frame of {height}x{width}")
        return resized

    def clear(self, maps: Mapping[str, Array]) -> dict[str, Array]:
        """Return maps ``[H, W]`` of one frame, all of one size, with 0 outside of the region, each in its own type."""
        kept = self.at(*next(iter(maps.values())).shape)
        return {name: np.where(kept, values, values.dtype.type(0)) for name, values in maps.items()}


def read_region(folder: Path, manifest: Manifest | None) -> Region | None:
    """Return the region of a maps folder, None where all pixels count; DamageError where its mask was changed."""
    described = (manifest or {}).get("mask")
    if described is None:
        return None
    region = Region(inside(folder, MASK_NAME))
    if region.sha256 != described.get("sha256"):
        path = folder / MASK_NAME
        raise DamageError(f"{path} was changed since it was written", hint="restore it, or predict into a new folder")
    return region


def map_statistics(stored: Array, threshold: float | None = None, kept: Mask | None = None) -> dict[str, float]:
    """Compute the statistics of one map that ``frames.jsonl`` holds, in real units.

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
    statistics: dict[str, float] = {name: float(f"{float(number):.9g}") for name, number in numbers.items()}
    if threshold is not None:
        statistics["component"] = largest_component(values >= threshold, kept)
    return statistics


def largest_component(high: Mask, kept: Mask | None = None) -> int:
    """Count the pixels of the largest 8-connected component of a mask ``[H, W]``, 0 where it is empty."""
    mask = (high if kept is None else high & kept).astype(np.uint8)
    if not mask.any():
        return 0
    return int(cv2.connectedComponentsWithStats(mask, connectivity=8)[2][1:, cv2.CC_STAT_AREA].max())


@dataclass(frozen=True)
class Moment:
    """A frame that stands out: its maps folder, name, time in seconds (None where unknown), and the statistic that chose it."""

    folder: Path
    name: str
    time: float | None
    value: float


def maps_folders(folder: Path) -> list[Path]:
    """Return the folder itself where it is a maps folder, else those directly below it, sorted; InputError for none."""
    if not folder.is_dir():
        raise InputError(f"maps folder {folder} does not exist")
    if (folder / MANIFEST_NAME).exists():
        return [folder]
    inner = sorted(path.parent for path in folder.glob(f"*/{MANIFEST_NAME}") if is_ours(path.parent))
    if not inner:
        raise InputError(
            f"{folder} holds no {MANIFEST_NAME}, nor does a folder in it", hint="give the --out of predict"
        )
    return inner


def worst_moments(
    folders: Sequence[Path],
    score: str,
    statistic: str = "mean",
    *,
    count: int = 10,
    apart: float = 5.0,
    fps: float | None = None,
) -> list[Moment]:
    """Return at most ``count`` frames of maps folders with the highest statistic of a score, worst first.

    Frames of one video less than ``apart`` seconds from one another are one moment, named by its highest frame. ``fps``
    gives images of a video their times, in each of their folders. Mean epistemic ranks frames for labelling as BALD does
    (Houlsby et al. 2011, arXiv 1112.5745; Gal et al. 2017, arXiv 1703.02910).

    Raises:
        InputError: a folder's lines do not hold the statistic for this score.
    """
    moments = [m for folder in folders for m in _worst_of_folder(folder, score, statistic, count, apart, fps)]
    return heapq.nsmallest(count, moments, key=lambda moment: -moment.value)


def separated_peaks(
    values: Sequence[float], times: Sequence[float | None], videos: Sequence[str], apart: float, count: int
) -> list[int]:
    """Return the places of the highest values, highest first, without those near a higher one of the same video.

    Of equal values the earlier comes first; a value of NaN is left out. A frame without a time is near no other.
    """
    peaks: list[int] = []
    chosen: dict[str, list[float]] = defaultdict(
        list
    )  # times by video, sorted: only the two beside a new one can be near
    for place in sorted((p for p in range(len(values)) if not math.isnan(values[p])), key=lambda p: -values[p]):
        if len(peaks) == count:
            break
        time, others = times[place], chosen[videos[place]]
        if time is not None:
            after = bisect.bisect_left(others, time)
            if any(abs(time - other) < apart for other in others[max(0, after - 1) : after + 1]):
                continue
            others.insert(after, time)
        peaks.append(place)
    return peaks


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
    names, videos = list[str](), list[str]()
    values, times = list[float](), list[float | None]()
    numbers: Counter[str] = Counter()
    for record in iterate_records(folder, all_shards(manifest)):
        names.append(record["name"])
        videos.append(record["name"].rpartition("/")[0])
        values.append(record.get(statistic, {}).get(score, math.nan))
        times.append(record.get("time", numbers[videos[-1]] / fps if fps else None))
        numbers[videos[-1]] += 1
    if values and all(map(math.isnan, values)):
        known = ", ".join(name for name in (manifest or {}).get("maps", {}) if name != "prediction")
        raise InputError(f"the frames of {folder} have no {statistic} of '{score}'; their scores are {known}")
    peaks = separated_peaks(values, times, videos, apart, count)
    return [Moment(folder, names[place], times[place], values[place]) for place in peaks]
