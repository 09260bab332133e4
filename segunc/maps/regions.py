"""Statistics of maps over the pixels that count, and the frames that stand out by them."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import cv2
import numpy as np
import numpy.typing as npt

from segunc.core.errors import InputError
from segunc.core.files import inside, reading
from segunc.data.images import read_image, resize_nearest
from segunc.maps.encoding import Array, decode_unit, is_flagged
from segunc.maps.manifest import Manifest
from segunc.maps.shards import DamageError

MASK_NAME = "mask.png"
ASPECT_TOLERANCE = 0.02
"""By how much the ratio of a mask's sides may differ from that of a frame: another camera's mask is
a mistake.
"""

MAX_LISTED_REGIONS = 5  # of a frame that are listed
SMALLEST_SHARE = 1e-4  # of the frame's pixels: smaller regions are not listed
Mask = npt.NDArray[np.bool_]


class Region:
    """A region of interest: pixels outside of it (the vehicle's own bonnet, a time stamp burnt in)
    count for nothing.

    It comes from a PNG (a JPEG's black is not 0): black is left out, any other value counts.
    ``kept`` is bool ``[H, W]`` at the size of the file; ``sha256`` is of size and pixels, whatever
    the file's encoding.
    """

    def __init__(self, path: Path) -> None:
        if path.suffix.lower() != ".png":
            raise InputError(f"mask {path} is no PNG, whose black is exactly 0", hint="convert it")
        with reading(f"mask {path}", "a PNG"):
            picture = read_image(path)
        self.kept: Mask = picture.max(axis=2) > 0
        if not self.kept.any():
            raise InputError(
                f"mask {path} is black all over", hint="make it white where pixels count"
            )
        self.sha256 = hashlib.sha256(
            repr(self.kept.shape).encode() + np.packbits(self.kept).tobytes()
        ).hexdigest()

    def at(self, height: int, width: int) -> Mask:
        """Return the region at a frame's size, bool ``[height, width]``; raise InputError where it
        does not fit the frame.
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
        """Return maps ``[H, W]`` of one frame, all of one size, with 0 outside of the region, each
        in its own type.
        """
        kept = self.at(*next(iter(maps.values())).shape)
        return {name: np.where(kept, values, values.dtype.type(0)) for name, values in maps.items()}


def read_region(folder: Path, manifest: Manifest | None) -> Region | None:
    """Return the region of a maps folder, None where all pixels count; raise DamageError where its
    mask was changed.
    """
    described = (manifest or {}).get("mask")
    if described is None:
        return None
    region = Region(path := inside(folder, MASK_NAME))
    if region.sha256 != described.get("sha256"):
        raise DamageError(
            f"{path} was changed since it was written",
            hint="restore it, or predict into a new folder",
        )
    return region


def map_statistics(
    stored: Array, threshold: float | None = None, kept: Mask | None = None
) -> dict[str, float]:
    """Compute the statistics of one map that ``frames.jsonl`` holds, in real units. ``mean``, the
    largest value ``max``, ``p99``, the smallest stored value that at least 99 % of the pixels do
    not exceed, and, where there is a threshold, of the connected regions (8 neighbours) of values
    at or above it: ``component``, the pixels of the largest, and ``region``, the excess of the
    strongest, see :func:`regions_of`. ``stored`` are uint16 codes of a score in 0..1 or float16
    values ``[H, W]``, ``kept`` the pixels that count.
    """
    values = decode_unit(stored) if stored.dtype == np.uint16 else stored
    pixels = values if kept is None else values[kept]
    last = -(-99 * pixels.size // 100) - 1  # of the 99 % that the percentile is not below
    percentile = np.partition(pixels, last, axis=None)[last]
    numbers = {"mean": pixels.mean(dtype=np.float64), "max": pixels.max(), "p99": percentile}
    # Nine digits hold a float32; more would be rounding noise of the summation. A zero has no sign.
    digits = 17 if values.dtype == np.float64 else 9
    statistics = {
        name: float(f"{float(number):.{digits}g}") + 0.0 for name, number in numbers.items()
    }
    if threshold is not None:
        _, boxes, strengths = regions_of(values, threshold, kept)
        statistics["component"] = max(boxes[:, cv2.CC_STAT_AREA].tolist(), default=0)
        statistics["region"] = float(f"{max(strengths.tolist(), default=0):.9g}")
    return statistics


def regions_of(
    values: npt.NDArray[np.floating], threshold: float, kept: Mask | None = None
) -> tuple[npt.NDArray[Any], npt.NDArray[Any], npt.NDArray[Any]]:
    """Return the connected regions (8 neighbours) of values ``[H, W]`` at or above a threshold: the
    number of each pixel's region ``[H, W]``, 0 for none, and of the regions 1, 2, ... left, top,
    width, height and area ``[R, 5]`` and strength ``[R]``. The strength is the sum over the pixels
    of a region of what they exceed the threshold by: area times mean excess. A mean over the frame
    hides a small object, and a maximum takes one pixel of noise for one.
    """
    high = is_flagged(values, threshold)
    if kept is not None:
        high &= kept
    _, numbers, boxes, _ = cv2.connectedComponentsWithStats(high.astype(np.uint8), connectivity=8)
    excess = values[high].astype(np.float64) - threshold
    return numbers, boxes[1:], np.bincount(numbers[high], weights=excess, minlength=len(boxes))[1:]


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
        return None if prediction is None else int(np.bincount(self.pixels(prediction)).argmax())


def strongest_regions(
    stored: Array,
    threshold: float,
    *,
    smallest: int = 1,
    kept: Mask | None = None,
    most: int | None = None,
) -> list[StrongRegion]:
    """Return the ``most`` strongest regions of a map ``[H, W]``, the strongest first: of pixels at
    or above a threshold, of at least ``smallest`` pixels. Without ``most`` at most
    :data:`MAX_LISTED_REGIONS`, and of at least :data:`SMALLEST_SHARE` of the frame. The map holds uint16
    codes or real values.
    """
    values = decode_unit(stored) if stored.dtype == np.uint16 else stored
    numbers, boxes, strengths = regions_of(values, threshold, kept)
    strongest = np.argsort(-strengths, kind="stable")
    smallest = smallest if most else max(smallest, int(SMALLEST_SHARE * values.size))
    regions = []
    for number in strongest[boxes[strongest, cv2.CC_STAT_AREA] >= smallest][
        : most or MAX_LISTED_REGIONS
    ].tolist():
        left, top, width, height, area = map(int, boxes[number])
        window = np.s_[top : top + height, left : left + width]
        inside = numbers[window] == number + 1
        y, x = np.unravel_index(np.argmax(np.where(inside, values[window], -np.inf)), inside.shape)
        peak = left + int(x), top + int(y)
        regions.append(
            StrongRegion((left, top, width, height), inside, area, float(strengths[number]), peak)
        )
    return regions
