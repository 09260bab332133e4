"""Numbers of a whole frame, from the map of a score.

A mean hides a small object; which number serves depends on the data (Guarino et al. 2026, "Better than average: spatially-aware aggregation
of segmentation uncertainty", arXiv 2603.29941). Their spatial mass ratio is sum(u w) / sum(u) of a map u in 0..1: the share of its mass
that lies where windows of 3 x 3 pixels look alike in one way, by a weight w.
"""

from __future__ import annotations

import cv2
import numpy as np
import numpy.typing as npt

from segunc.maps.statistics import regions_of

Floats = npt.NDArray[np.floating]
OF_ANY, OF_THRESHOLD = ("mean", "p99"), ("above", "component", "region")
MASSES = ("edge-mass", "moran-mass", "entropy-mass")
EDGE, BINS = (
    0.2,
    4,
)  # gradient from which on a pixel is an edge; bins of the local entropy: both as the study's package has them
MOST_PIXELS = (
    1 << 16
)  # of a map whose windows are looked at; a larger one is shrunk by a whole factor, or it would take longest of all
# Sobel's kernels at the three places of a window of 3 whose own values are mirrored at its ends.
_DIFFERENCE = ((-1, 1, 0), (-1, 0, 1), (0, -1, 1))
_SMOOTHING = ((3, 1, 0), (1, 2, 1), (0, 1, 3))


def aggregates(values: Floats, threshold: float | None = None, *, masses: bool = False) -> dict[str, float]:
    """Return the numbers of a map ``[H, W]`` in real units; pixels that are not finite count for none.

    ``mean`` and ``p99``; with a ``threshold`` the mean of the pixels at or ``above`` it (0 of none), and ``component`` and ``region``, see
    :func:`segunc.maps.statistics.map_statistics`; with ``masses``, of a map in 0..1, the spatial mass ratios: ``edge-mass`` by the share
    of edges in the window, ``moran-mass`` by Moran's I, negative ones as 0, and ``entropy-mass`` by the entropy of its values in four bins.
    """
    pixels = values[np.isfinite(values)]
    if not pixels.size:
        return {}
    numbers = {"mean": pixels.mean(dtype=np.float64), "p99": np.quantile(pixels, 0.99, method="inverted_cdf")}
    if threshold is not None:
        high = pixels[pixels >= threshold]
        _, boxes, strengths = regions_of(values, threshold)
        numbers["above"] = high.mean(dtype=np.float64) if high.size else 0.0
        numbers["component"], numbers["region"] = boxes[:, cv2.CC_STAT_AREA].max(initial=0), strengths.max(initial=0.0)
    if masses:
        numbers |= mass_ratios(np.nan_to_num(values).clip(0, 1))
    return {name: float(number) for name, number in numbers.items()}


def mass_ratios(values: Floats) -> dict[str, float]:
    """Return the spatial mass ratios in 0..1 of a map ``[H, W]`` in 0..1, by name of :data:`MASSES`; 0 of an empty map."""
    factor = int(np.ceil(np.sqrt(values.size / MOST_PIXELS)))
    values = values.astype(np.float64)
    if factor > 1:
        size = max(values.shape[1] // factor, 1), max(values.shape[0] // factor, 1)
        values = cv2.resize(values, size, interpolation=cv2.INTER_AREA)
    total = values.sum()
    weights = zip(MASSES, (edge_density(values), local_moran(values), local_entropy(values)), strict=True)
    return {name: float((values * weight).sum() / total) if total else 0.0 for name, weight in weights}


def edge_density(values: Floats) -> Floats:
    """Return the share of the pixels of each window whose Sobel gradient, of the window alone, is above :data:`EDGE`, ``[H, W]``."""
    edges = np.zeros(values.shape)
    for row in range(3):
        for column in range(3):
            kernels = (_SMOOTHING[column], _DIFFERENCE[row]), (_DIFFERENCE[column], _SMOOTHING[row])
            slopes = (cv2.sepFilter2D(values, -1, np.array(x, float), np.array(y, float)) for x, y in kernels)
            edges += np.hypot(*slopes) > EDGE
    return edges / 9


def local_moran(values: Floats) -> Floats:
    """Return Moran's I of each window with its 12 pairs of neighbours, negative ones as 0, and 1 of a constant window, ``[H, W]``."""
    windows = np.lib.stride_tricks.sliding_window_view(np.pad(values, 1, mode="reflect"), (3, 3))
    offsets = windows - windows.mean((2, 3), keepdims=True)
    pairs = sum((offsets.take([0, 1], axis) * offsets.take([1, 2], axis)).sum((2, 3)) for axis in (2, 3))
    squares, constant = np.square(offsets).sum((2, 3)), np.ptp(windows, (2, 3)) == 0
    return np.where(constant, 1.0, np.maximum(9 / 12 * pairs / np.where(constant, 1.0, squares), 0.0))


def local_entropy(values: Floats) -> Floats:
    """Return the entropy of each window's values in :data:`BINS` bins of 0..1, as a share of its largest, ``[H, W]``."""
    places = np.minimum((values * BINS).astype(np.int64), BINS - 1)
    shares = np.stack([cv2.blur((places == place).astype(np.float64), (3, 3)) for place in range(BINS)])
    return np.asarray(-(shares * np.log2(np.maximum(shares, 1e-12))).sum(0) / np.log2(BINS))
