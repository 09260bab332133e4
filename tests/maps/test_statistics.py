"""Statistics of a map against NumPy and SciPy, over all pixels or over those of a mask."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import ndimage

from segunc.maps.encoding import decode_unit, encode_score
from segunc.maps.statistics import largest_component, map_statistics


@given(
    st.integers(0, 10**6),
    st.integers(1, 40),
    st.integers(1, 40),
    st.booleans(),
    st.sampled_from(["epistemic", "energy"]),
)
def test_statistics_are_those_of_numpy(seed: int, height: int, width: int, masked: bool, score: str) -> None:
    generator = np.random.default_rng(seed)
    values = generator.random((height, width), np.float32) ** 3 * (1 if score == "epistemic" else -40)
    stored = encode_score(score, np.round(values, 2))  # with many ties
    real = (decode_unit(stored) if score == "epistemic" else stored).astype(np.float64)
    kept = generator.random((height, width)) < 0.5 if masked else None
    if kept is not None:
        kept[0, 0] = True
    found = map_statistics(stored, 0.1, kept)
    pixels = real if kept is None else real[kept]
    assert found["mean"] == pytest.approx(pixels.mean(), rel=1e-7)
    assert found["max"] == pytest.approx(pixels.max(), rel=1e-7)
    assert found["p99"] == pytest.approx(np.percentile(pixels, 99, method="inverted_cdf"), rel=1e-7)
    high = (real >= 0.1) & (True if kept is None else kept)
    labels, count = ndimage.label(high, structure=np.ones((3, 3)))
    assert found["component"] == (np.bincount(labels.ravel())[1:].max() if count else 0)


def test_components_touch_at_corners_and_stop_at_the_mask() -> None:
    high = np.eye(6, dtype=bool)
    assert largest_component(high) == 6
    kept = np.ones((6, 6), bool)
    kept[2, 2] = False
    assert largest_component(high, kept) == 3
    assert largest_component(np.zeros((3, 3), bool)) == 0
    assert "component" not in map_statistics(np.zeros((3, 3), np.uint16))


def test_a_value_at_the_threshold_belongs_to_the_component() -> None:
    stored = np.full((4, 4), -2.0, np.float16)
    assert map_statistics(stored, -2.0)["component"] == 16
    assert map_statistics(stored, -1.99)["component"] == 0
