"""Numbers of a whole frame, from the map of a score. A mean hides a small object; which number serves depends on the data (Guarino et al.
2026, "Better than average: spatially-aware aggregation of segmentation uncertainty", arXiv 2603.29941)."""

from __future__ import annotations

import cv2
import numpy as np
import numpy.typing as npt

from segunc.maps.statistics import regions_of

Floats = npt.NDArray[np.floating]
OF_ANY, OF_THRESHOLD = ("mean", "p99"), ("above", "component", "region")
MASSES = "edge-mass", "moran-mass", "entropy-mass"
EDGE, BINS = 0.2, 4  # gradient above which a pixel is an edge, and bins of the entropy, as in the study's package
MOST_PIXELS = 1 << 16  # of a map whose windows are looked at; a larger one is shrunk, or it would take longest of all
# Sobel's derivative and smoothing at the three places of a window, whose own values are mirrored at its ends.
_SLOPE = np.array([[-1.0, 1, 0], [-1, 0, 1], [0, -1, 1]])
_SMOOTH = np.array([[3.0, 1, 0], [1, 2, 1], [0, 1, 3]])


def aggregates(values: Floats, threshold: float | None = None, *, masses: bool = False) -> dict[str, float]:
    """Return the numbers of a map ``[H, W]`` in real units; pixels that are not finite count for none.

    ``mean`` and ``p99``; with a ``threshold`` the mean of the pixels at or ``above`` it (0 of none), and ``component`` and ``region`` as
    :func:`segunc.maps.statistics.map_statistics` has them; with ``masses``, of a map in 0..1, its :func:`mass_ratios`.
    """
    pixels = values[np.isfinite(values)]
    if not pixels.size:
        return {}
    last = -(-99 * pixels.size // 100) - 1  # of the 99 % that the percentile is not below
    numbers = {"mean": pixels.mean(dtype=np.float64), "p99": np.partition(pixels, last)[last]}
    if threshold is not None:
        high, (_, boxes, strengths) = pixels[pixels >= threshold], regions_of(values, threshold)
        numbers["above"] = high.mean(dtype=np.float64) if high.size else 0.0
        numbers["component"], numbers["region"] = boxes[:, cv2.CC_STAT_AREA].max(initial=0), strengths.max(initial=0.0)
    if masses:
        numbers |= mass_ratios(np.nan_to_num(values).clip(0, 1))
    return {name: float(number) for name, number in numbers.items()}


def mass_ratios(values: Floats) -> dict[str, float]:
    """Return the spatial mass ratios sum(u w) / sum(u) of a map u ``[H, W]`` in 0..1, by name of :data:`MASSES`; 0 of an empty map.

    The weights w are of the window of 3 x 3 pixels around each: the share of edges among them by a Sobel gradient of the window alone;
    Moran's I of its 12 pairs of neighbours, negative ones as 0 and 1 of a constant window; the entropy of its values in four bins.
    """
    values, factor = values.astype(np.float64), int(np.ceil(np.sqrt(values.size / MOST_PIXELS)))
    if factor > 1:
        size = [max(side // factor, 1) for side in values.shape[::-1]]
        values = np.asarray(cv2.resize(values, size, interpolation=cv2.INTER_AREA), np.float64)
    windows = np.lib.stride_tricks.sliding_window_view(np.pad(values, 1, mode="reflect"), (3, 3))
    edges = (np.hypot(_SLOPE @ windows @ _SMOOTH.T, _SMOOTH @ windows @ _SLOPE.T) > EDGE).mean((2, 3))
    offsets, constant = windows - windows.mean((2, 3), keepdims=True), np.ptp(windows, (2, 3)) == 0
    pairs = sum((offsets.take([0, 1], axis) * offsets.take([1, 2], axis)).sum((2, 3)) for axis in (2, 3))
    moran = np.maximum(9 / 12 * pairs / np.where(constant, 1.0, np.square(offsets).sum((2, 3))), constant)
    bins = np.minimum((windows * BINS).astype(np.int64), BINS - 1)
    shares = np.stack([(bins == place).mean((2, 3)) for place in range(BINS)])
    entropy = -(shares * np.log2(np.maximum(shares, 1e-12))).sum(0) / np.log2(BINS)
    total = values.sum() or 1.0
    return {name: float((values * w).sum() / total) for name, w in zip(MASSES, (edges, moran, entropy), strict=True)}
