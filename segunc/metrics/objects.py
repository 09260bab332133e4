"""Anomalous objects: which bin each belongs to, its pixels by score, and whether half of it stands
out.

An object is an 8-connected component of the pixels that are labelled as an anomaly, of at least
:data:`SMALLEST_OBJECT` pixels: smaller ones are specks of the labelling, unless a frame has no
larger one (:func:`no_specks`). All objects of a set fall into B bins, by their pixels or by where
they stand (:class:`ObjectBins`), and the pixels of a bin are set against *all* normal pixels of the
set; objects of other bins are left out. An object is **found** where at least half of its pixels
score at or above the lowest threshold that flags at most 5 % (:data:`FOUND_AT`) of the normal
pixels of the set: where its upper median, the ceil(n / 2)-th highest of its n scores, does. So each
object is counted at the key of its upper median, and the threshold of the whole set needs no second
pass.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import cv2
import numpy as np
import numpy.typing as npt

from segunc.core.errors import InputError
from segunc.core.terminal import agreeing, counted
from segunc.metrics.counting import Counts, at_or_above, numbers_of_many

KINDS = ("size", "distance")  # what objects can be sorted by
FOUND_AT = 0.05
NO_OBJECT = "no labelled object belongs here"
OBJECT_NUMBERS = ("auroc", "aupr", "fpr95", "found", "objects", "pixels")
SMALLEST_OBJECT = 10
"""Pixels of the smallest labelled object, at the size of the label. Every room takes it from
here."""
SIZES = (100.0, 500.0, 2_500.0, 10_000.0, 50_000.0)
"""Edges between bins of sizes in pixels: from specks to a tenth of the frame and more."""
BANDS = (0.6, 0.8)
"""Edges between far, middle and near, as shares of the frame's height from its top: on a flat road
a level camera with its horizon at 0.5 sees 0.6 three times as far away as 0.8.
"""


@dataclass(frozen=True)
class Objects:
    """The N objects of one frame.

    Attributes:
        number: of the object of each pixel, from 1; 0 outside, ``[H, W]``.
        pixels: of each object, ``[N]``.
        lowest: lower edge of the lowest row of each object, as a share of the frame's height in
            0..1, ``[N]``.
        boxes: left, top, width and height of each object in pixels, ``[N, 4]``.
    """

    number: npt.NDArray[np.int32]
    pixels: npt.NDArray[np.int64]
    lowest: npt.NDArray[np.float64]
    boxes: npt.NDArray[np.int64]

    @classmethod
    def of(
        cls, anomaly: npt.NDArray[np.uint8] | npt.NDArray[np.bool_], smallest: int = 0
    ) -> Objects:
        """Find the objects of an anomaly label or a mask ``[H, W]``.

        Specks of fewer than ``smallest`` pixels are left out; see :func:`no_specks`.
        """
        _, number, statistics, _ = cv2.connectedComponentsWithStats(
            (anomaly == 1).view(np.uint8), connectivity=8
        )
        ends = statistics[1:, cv2.CC_STAT_TOP] + statistics[1:, cv2.CC_STAT_HEIGHT]
        whole = statistics[1:].astype(np.int64)
        kept = no_specks(whole[:, cv2.CC_STAT_AREA], smallest)
        new_number = np.zeros(len(kept) + 1, np.int32)
        new_number[1:][kept] = np.arange(1, kept.sum() + 1)
        return cls(
            number=new_number[number],
            pixels=whole[kept, cv2.CC_STAT_AREA],
            lowest=(ends / len(anomaly))[kept],
            boxes=whole[kept, :4],
        )

    def smaller_than(self, smallest: int) -> int:
        """Return how many of the objects have fewer than ``smallest`` pixels."""
        return int(np.count_nonzero(self.pixels < smallest))


def no_specks(pixels: npt.NDArray[np.int64], smallest: int) -> npt.NDArray[np.bool_]:
    """Return which labelled regions of a frame are objects, ``[N]``, of their sizes ``[N]``.

    They are those of at least ``smallest`` pixels, or all where none is so large.
    """
    large = pixels >= smallest
    return large if large.any() else ~large


@dataclass(frozen=True)
class SmallObjects:
    """Objects that count only because their frames have no larger one: see :func:`no_specks`.

    Attributes:
        objects: number of all labelled objects.
        small: how many of them have fewer than ``smallest`` pixels.
        frames: number of frames that hold these.
        smallest: pixels of the smallest object of other frames.
    """

    objects: int
    small: int
    frames: int
    smallest: int

    @property
    def share(self) -> str:
        """How many of the objects are small, in words; empty where none is."""
        if not self.small:
            return ""
        have = agreeing("has", self.small)
        objects = f"{self.small:,} of {self.objects:,} labelled objects"
        return f"{objects} {have} fewer than {self.smallest} pixels"

    @property
    def warning(self) -> str:
        """A sentence, without its full stop, on what numbers of objects are of; empty where none is
        small.
        """
        if not self.small:
            return ""
        frames = counted(self.frames, "frame")
        return (
            f"{self.share}, in {frames} without a larger one, so numbers of objects may be of "
            "specks of the labelling"
        )


@dataclass(frozen=True)
class ObjectBins:
    """B bins of objects; a lower edge belongs to its bin.

    Attributes:
        kind: one of KINDS.
        edges: between the bins, ``[B - 1]``.
        names: of the bins, ``[B]``.
    """

    kind: str
    edges: tuple[float, ...]
    names: tuple[str, ...]

    @classmethod
    def of(cls, kind: str) -> ObjectBins:
        """Return the bins of a kind."""
        if kind not in KINDS:
            raise InputError(
                f"objects cannot be sorted by '{kind}'",
                hint=f"--by {', --by '.join(KINDS)} or --by none",
            )
        if kind == "distance":
            return cls(kind, BANDS, ("far", "middle", "near"))
        ends = [f"{edge:g}" for edge in (0, *SIZES)]
        names = [f"{low}-{high}" for low, high in pairwise(ends)]
        return cls(kind, SIZES, (*names, f"{ends[-1]}+"))

    def places(self, objects: Objects) -> npt.NDArray[np.intp]:
        """Return the bin of each object, ``[N]``."""
        values = objects.lowest if self.kind == "distance" else objects.pixels
        return np.searchsorted(self.edges, values, side="right")


def found_up_to(keys: npt.NDArray[Any], objects: Objects, share: float = 0.5) -> npt.NDArray[Any]:
    """Return the highest threshold at which each object is found, ``[N]``.

    It is found where at least this share of its pixels is at or above the threshold. ``keys`` or
    values are those of the pixels of objects, ``[n]`` in the order of the frame.
    """
    owner = objects.number[objects.number > 0]
    ranked = keys[np.lexsort((keys, owner))]  # by object and, within one, by key
    needed = np.maximum(np.ceil(share * objects.pixels - 1e-9), 1).astype(np.int64)
    return np.asarray(ranked[objects.pixels.cumsum() - needed])


def object_counts(
    keys: npt.NDArray[np.integer], objects: Objects, bins: ObjectBins, size: int
) -> Counts:
    """Count the anomalous pixels and the objects of one frame by bin and key, int64 ``[2 B, K]``.

    Rows 0 to B - 1 hold the pixels of the objects of a bin, the others its objects, each at the key
    of its upper median.

    Args:
        keys: in 0..K - 1, of the pixels of objects, ``[n]`` in the order of the frame.
        objects: of the frame.
        bins: B of them.
        size: K.
    """
    bin_of_object = bins.places(objects)
    owner = objects.number[objects.number > 0] - 1
    number = len(bins.names)
    pixel_cells = bin_of_object[owner] * size + keys
    object_cells = (number + bin_of_object) * size + found_up_to(keys, objects)
    cells = np.concatenate([pixel_cells, object_cells])
    return np.bincount(cells, minlength=2 * number * size).reshape(2 * number, size)


def object_numbers_of_many(counts: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """Return AUROC, AUPR, FPR95 and the share that is found of each bin, of many counts at once.

    ``[B, 4, R]`` of counts ``[R, 1 + 2 B, K]``, normal pixels first; NaN where the counts define
    none. See :func:`object_numbers`.
    """
    normal = counts[:, 0]
    bins = (counts.shape[1] - 1) // 2
    flagged = at_or_above(normal)
    threshold = np.count_nonzero(flagged * round(1 / FOUND_AT) > flagged[:, :1], axis=1)
    rows = []
    for row in range(1, bins + 1):
        pixels = counts[:, row]
        medians = counts[:, bins + row]  # objects at the keys of their upper medians
        keys = np.flatnonzero(medians.any(axis=0))
        flagged_objects = (medians[:, keys] * (keys >= threshold[:, None])).sum(1)
        with np.errstate(invalid="ignore", divide="ignore"):
            share = np.where(flagged[:, 0] > 0, flagged_objects / medians.sum(1), np.nan)
        areas = numbers_of_many(normal, pixels, flagged, f1=False)
        rows.append(np.stack([*areas, share]))
    return np.stack(rows)


def object_numbers(normal: npt.NDArray[np.int64], counts: Counts) -> list[dict[str, float | None]]:
    """Return the numbers of each bin by name of :data:`OBJECT_NUMBERS`; None where there is none.

    They are AUROC, AUPR and FPR95 of its pixels, the share of its objects that is found (all in
    0..1), objects and pixels.

    Args:
        normal: all normal pixels by key, ``[K]``.
        counts: those of :func:`object_counts`, ``[2 B, K]``.
    """
    one_set = np.concatenate([normal[None], counts])[None].astype(np.float64)
    fractions = object_numbers_of_many(one_set)[..., 0].tolist()
    bins = len(counts) // 2
    pixels = counts[:bins].sum(1).tolist()
    objects = counts[bins:].sum(1).tolist()
    rows: list[dict[str, float | None]] = []
    for number in range(bins):
        defined = [None if np.isnan(value) else value for value in fractions[number]]
        values = [*defined, objects[number], pixels[number]]
        rows.append(dict(zip(OBJECT_NUMBERS, values, strict=True)))
    return rows
