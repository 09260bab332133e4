"""Regions of maps: the region of interest whose pixels count, and the connected regions of pixels
above a threshold, with the statistics that a frame's line holds of them.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import cv2
import numpy as np
import numpy.typing as npt

from segunc.core.errors import InputError
from segunc.core.files import inside, read_bytes, reading
from segunc.data.images import decode, resize_nearest
from segunc.maps.encoding import Array, decode_unit, is_flagged
from segunc.maps.manifest import Manifest
from segunc.maps.shards import DamageError

MASK_NAME = "mask.png"
ASPECT_TOLERANCE = 0.02
"""By how much the ratio of a mask's sides may differ from that of a frame: another camera's mask is
a mistake.
"""

MIN_SURFACE_SHARE = 0.01  # of a frame, that a connected piece of drivable surface covers
MAX_LISTED_REGIONS = 5  # of a frame
MIN_REGION_SHARE = 1e-4  # of the frame's pixels: smaller regions are not listed
Mask = npt.NDArray[np.bool_]


class Region:
    """A region of interest: pixels outside of it (the vehicle's own bonnet, a time stamp burnt in)
    count for nothing.

    Attributes:
        kept: which pixels count, bool ``[H, W]`` at the size of the file.
        sha256: hash of size and pixels, whatever the file's encoding.
    """

    def __init__(self, path: Path) -> None:
        """Read a mask: black is left out, any other value counts.

        It must be a PNG, because a JPEG's black is not exactly 0.
        """
        if path.suffix.lower() != ".png":
            raise InputError(
                f"mask {path} is not a PNG, whose black is exactly 0", hint="convert it to PNG"
            )
        with reading(f"mask {path}", "a PNG"):
            # At the full depth: the high byte of a small 16-bit value is black.
            picture = decode(read_bytes(path), cv2.IMREAD_COLOR | cv2.IMREAD_ANYDEPTH)
        self.kept: Mask = picture.max(axis=2) > 0
        if not self.kept.any():
            raise InputError(
                f"mask {path} is black all over", hint="make it white where pixels count"
            )
        self.sha256 = hashlib.sha256(
            repr(self.kept.shape).encode() + np.packbits(self.kept).tobytes()
        ).hexdigest()

    def at(self, height: int, width: int) -> Mask:
        """Return the region at a frame's size, bool ``[height, width]``.

        Raises:
            InputError: its sides have another ratio than the frame's, or it leaves no pixel.
        """
        rows, columns = self.kept.shape
        if abs(columns / rows / (width / height) - 1.0) > ASPECT_TOLERANCE:
            message = f"the mask of {rows}x{columns} does not fit a frame of {height}x{width}"
            raise InputError(message, hint="give another --mask")
        resized: Mask = resize_nearest(self.kept, width, height)
        if not resized.any():
            raise InputError(f"the mask leaves nothing of a frame of {height}x{width}")
        return resized

    def clear(self, maps: Mapping[str, Array]) -> dict[str, Array]:
        """Return maps ``[H, W]`` of one frame, all of one size, with 0 outside of the region; each
        keeps its type.
        """
        height, width = next(iter(maps.values())).shape
        kept = self.at(height, width)
        cleared = {}
        for name, values in maps.items():
            zero = values.dtype.type(0)
            cleared[name] = np.where(kept, values, zero)
        return cleared


def read_region(folder: Path, manifest: Manifest | None) -> Region | None:
    """Return the region of a maps folder; None where all pixels count.

    Raises:
        DamageError: its mask was changed.
    """
    described = (manifest or {}).get("mask")
    if described is None:
        return None
    path = inside(folder, MASK_NAME)
    region = Region(path)
    if region.sha256 != described.get("sha256"):
        raise DamageError(
            f"{path} was changed since it was written",
            hint="restore it, or predict into a new folder",
        )
    return region


def surface_hull(prediction: npt.NDArray[np.integer], classes: Sequence[int]) -> Mask:
    """Return the convex hull of the large connected pieces of some classes.

    Args:
        prediction: class ids ``[H, W]``.
        classes: ids of the classes of the surface, such as road and pavement.

    Returns:
        bool ``[H, W]``; all True where no piece covers 1 % of the frame.

    >>> import numpy as np
    >>> prediction = np.array([[1, 1, 1, 1], [1, 0, 1, 0], [0, 0, 0, 0]])
    >>> surface_hull(prediction, [0]).astype(int)
    array([[0, 0, 0, 0],
           [0, 1, 1, 1],
           [1, 1, 1, 1]])
    """
    surface = np.isin(prediction, classes).astype(np.uint8)
    _, pieces, statistics, _ = cv2.connectedComponentsWithStats(surface, connectivity=8)
    areas = statistics[1:, cv2.CC_STAT_AREA]  # 0 is what is not surface
    large = np.flatnonzero(areas >= MIN_SURFACE_SHARE * surface.size) + 1
    if not len(large):
        return np.ones(surface.shape, np.bool_)
    points = cv2.findNonZero(np.isin(pieces, large).astype(np.uint8))
    hull = np.zeros_like(surface)
    cv2.fillConvexPoly(hull, cv2.convexHull(points), 1)
    return np.asarray(hull > 0)


def map_statistics(
    stored: Array, threshold: float | None = None, kept: Mask | None = None
) -> dict[str, float]:
    """Compute the statistics of one map that ``frames.jsonl`` holds, in real units.

    Args:
        stored: uint16 codes of a score in 0..1, or float values, ``[H, W]``.
        threshold: from which on pixels form regions; None for no regions.
        kept: which pixels count, bool ``[H, W]``; None for all.

    Returns:
        ``mean``; ``max``, the largest value; ``p99``, the smallest stored value that at least 99 %
        of the pixels do not exceed; and with a threshold, of the connected regions (8 neighbours)
        of values at or above it: ``component``, the pixels of the largest, and ``region``, the
        excess of the strongest, see :func:`regions_of`.
    """
    values = decode_unit(stored) if stored.dtype == np.uint16 else stored
    pixels = values if kept is None else values[kept]
    last = -(-99 * pixels.size // 100) - 1  # index of the percentile among the sorted pixels
    percentile = np.partition(pixels, last, axis=None)[last]
    # Nine digits hold a float32; more would be rounding noise of the summation.
    digits = 17 if values.dtype == np.float64 else 9
    statistics = {
        "mean": _rounded(pixels.mean(dtype=np.float64), digits),
        "max": _rounded(pixels.max(), digits),
        "p99": _rounded(percentile, digits),
    }
    if threshold is not None:
        _, boxes, strengths = regions_of(values, threshold, kept)
        statistics["component"] = max(boxes[:, cv2.CC_STAT_AREA].tolist(), default=0)
        statistics["region"] = float(f"{max(strengths.tolist(), default=0):.9g}")
    return statistics


def mean_of_kept(values: npt.NDArray[np.floating], kept: Mask | None) -> float:
    """Return the mean of a map ``[H, W]`` over the pixels that count, as statistics hold it."""
    pixels = values if kept is None else values[kept]
    return float(pixels.mean(dtype=np.float64))


def _rounded(number: np.floating, digits: int) -> float:
    """Return a number with so many significant digits; a zero has no sign."""
    return float(f"{float(number):.{digits}g}") + 0.0


def regions_of(
    values: npt.NDArray[np.floating], threshold: float, kept: Mask | None = None
) -> tuple[npt.NDArray[Any], npt.NDArray[Any], npt.NDArray[Any]]:
    """Find the connected regions (8 neighbours) of values at or above a threshold.

    The strength of a region is the sum over its pixels of what they exceed the threshold by: area
    times mean excess. A mean over the frame hides a small object, and a maximum takes one pixel of
    noise for one.

    Args:
        values: of a score, ``[H, W]``.
        threshold: the smallest value of a region's pixels.
        kept: which pixels count, bool ``[H, W]``; None for all.

    Returns:
        The number of each pixel's region ``[H, W]``, 0 for none; and of the regions 1, 2, ... left,
        top, width, height and area ``[R, 5]``, and their strengths ``[R]``.
    """
    high = is_flagged(values, threshold)
    if kept is not None:
        high &= kept
    _, numbers, boxes, _ = cv2.connectedComponentsWithStats(high.astype(np.uint8), connectivity=8)
    excess = values[high].astype(np.float64) - threshold
    strengths = np.bincount(numbers[high], weights=excess, minlength=len(boxes))
    return numbers, boxes[1:], strengths[1:]  # without the background, which is number 0


class StrongRegion(NamedTuple):
    """One connected region (8 neighbours) of pixels at or above a threshold."""

    box: tuple[int, int, int, int]  # left, top, width and height in pixels of the frame
    inside: Mask  # [height, width], which pixels of the box belong to it
    area: int  # pixels
    strength: float  # sum of what its pixels exceed the threshold by
    peak: tuple[int, int]  # (x, y) of its largest value

    def pixels(self, values: Array) -> Array:
        """Return the values of its pixels in an array ``[H, W]``."""
        left, top, width, height = self.box
        return np.asarray(values[top : top + height, left : left + width][self.inside])

    def class_of(self, prediction: npt.NDArray[np.uint8] | None) -> int | None:
        """Return the class id that most of its pixels have in a prediction ``[H, W]``; None without
        one.
        """
        if prediction is None:
            return None
        return int(np.bincount(self.pixels(prediction)).argmax())


def strongest_regions(
    stored: Array,
    threshold: float,
    *,
    smallest: int = 1,
    kept: Mask | None = None,
    most: int | None = None,
) -> list[StrongRegion]:
    """Return the strongest regions of a map, the strongest first.

    Args:
        stored: uint16 codes of a score in 0..1, or real values, ``[H, W]``.
        threshold: the smallest value of a region's pixels.
        smallest: pixels that a region has at least.
        kept: which pixels count, bool ``[H, W]``; None for all.
        most: number of regions at most. None stands for :data:`MAX_LISTED_REGIONS`, of at least
            :data:`MIN_REGION_SHARE` of the frame each.
    """
    values = decode_unit(stored) if stored.dtype == np.uint16 else stored
    numbers, boxes, strengths = regions_of(values, threshold, kept)
    if not most:
        most = MAX_LISTED_REGIONS
        smallest = max(smallest, int(MIN_REGION_SHARE * values.size))
    strongest_first = np.argsort(-strengths, kind="stable")
    areas = boxes[strongest_first, cv2.CC_STAT_AREA]
    chosen = strongest_first[areas >= smallest][:most]
    return [
        _region_in_box(values, numbers, place + 1, boxes[place], strengths[place])
        for place in chosen.tolist()
    ]


def _region_in_box(
    values: Array, numbers: npt.NDArray[Any], number: int, box: Array, strength: float
) -> StrongRegion:
    """Return a region cut out of its frame.

    Args:
        values: of the score, ``[H, W]``.
        numbers: the number of each pixel's region, ``[H, W]``.
        number: of this region.
        box: its left, top, width, height and area.
        strength: of this region.
    """
    left, top, width, height, area = map(int, box)
    window = np.s_[top : top + height, left : left + width]
    inside = numbers[window] == number
    highest = np.argmax(np.where(inside, values[window], -np.inf))
    row, column = np.unravel_index(highest, inside.shape)
    return StrongRegion(
        box=(left, top, width, height),
        inside=inside,
        area=area,
        strength=float(strength),
        peak=(left + int(column), top + int(row)),
    )
