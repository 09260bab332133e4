"""Standardized max-logit against scipy's morphology and filters, and against loops over pixels."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import torch
from hypothesis import given, settings, strategies as st
from scipy import ndimage

from segunc.baselines.max_logit import (
    MaxLogitStatistics,
    find_boundaries,
    smooth,
    standardized_max_logit,
    suppress_boundaries,
)

Array = npt.NDArray[np.float64]
CROSS = ndimage.generate_binary_structure(2, 1)


def scipy_boundaries(ids: npt.NDArray[np.int64]) -> npt.NDArray[np.bool_]:
    largest = ndimage.grey_dilation(ids.astype(float), footprint=CROSS, mode="constant", cval=-np.inf)
    smallest = ndimage.grey_erosion(ids.astype(float), footprint=np.ones((3, 3)), mode="constant", cval=np.inf)
    return np.asarray(largest != smallest)


def suppress_by_loops(score: Array, ids: npt.NDArray[np.int64]) -> Array:
    """Pixel by pixel: each of a band takes the mean of its neighbours outside of it, edges repeated."""
    border = scipy_boundaries(ids)
    height, width = score.shape
    for radius in (3, 2, 1, 0):
        band = ndimage.binary_dilation(border, CROSS, iterations=radius) if radius else border
        result = score.copy()
        for y, x in zip(*np.nonzero(band), strict=True):
            near = np.ix_(np.clip([y - 1, y, y + 1], 0, height - 1), np.clip([x - 1, x, x + 1], 0, width - 1))
            values = score[near][~band[near]]
            if values.size:
                result[y, x] = values.mean()
        score = result
    return score


def blobs(seed: int, size: tuple[int, int], classes: int) -> npt.NDArray[np.int64]:
    """Class ids in patches of several pixels."""
    rng = np.random.default_rng(seed)
    coarse = rng.integers(0, classes, ((size[0] + 6) // 7, (size[1] + 6) // 7))
    return np.kron(coarse, np.ones((7, 7), np.int64))[: size[0], : size[1]]


@settings(max_examples=25, deadline=None)
@given(st.integers(0, 10_000), st.integers(1, 24), st.integers(1, 24), st.integers(1, 5))
def test_boundaries_and_suppression_equal_the_loops(seed: int, height: int, width: int, classes: int) -> None:
    ids = blobs(seed, (height, width), classes)
    score = np.random.default_rng(seed).normal(size=(height, width))
    found = find_boundaries(torch.from_numpy(ids)[None])[0].numpy()
    np.testing.assert_array_equal(found, scipy_boundaries(ids))
    suppressed = suppress_boundaries(torch.from_numpy(score).float()[None], torch.from_numpy(ids)[None])[0]
    np.testing.assert_allclose(suppressed.numpy(), suppress_by_loops(score, ids), atol=1e-5)


def test_smoothing_equals_scipy() -> None:
    score = np.random.default_rng(0).normal(size=(25, 40))
    taps = np.exp(-(np.arange(-3, 4) ** 2) / 2)
    kernel = np.zeros((37, 37))
    kernel[::6, ::6] = np.outer(taps, taps)
    expected = ndimage.correlate(score, kernel / kernel.sum(), mode="nearest")
    np.testing.assert_allclose(smooth(torch.from_numpy(score)[None])[0].numpy(), expected, atol=1e-12)


def statistics(mean: tuple[float, ...], std: tuple[float, ...]) -> MaxLogitStatistics:
    return MaxLogitStatistics(mean, std, (1,) * len(mean), {}, 1, "")


def test_each_class_has_its_own_scale() -> None:
    """Two frames of one class each: no border, and a smoothed constant is the constant."""
    logits = torch.zeros(2, 3, 8, 8)
    logits[0, 1], logits[1, 2] = 7.0, 7.0
    found = standardized_max_logit(logits.bfloat16(), statistics((0.0, 9.0, 4.0), (1.0, 2.0, 0.5)))
    torch.testing.assert_close(found[0], torch.full((8, 8), (9.0 - 7.0) / 2.0))
    torch.testing.assert_close(found[1], torch.full((8, 8), (4.0 - 7.0) / 0.5))
