"""Statistics of frames and of labelled objects against their definitions."""

from __future__ import annotations

import hypothesis.extra.numpy as arrays
import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st

from segunc.gallery.frame_files import (
    found_up_to,
    frame_statistics,
    labelled_objects,
)

GRIDS = arrays.arrays(np.float32, (6, 7), elements=st.sampled_from([float(np.float32(i / 8)) for i in range(9)]))


@given(GRIDS, arrays.arrays(np.uint8, (6, 7), elements=st.sampled_from([0, 1, 255])))
def test_found_is_decided_exactly_at_the_threshold(
    values: npt.NDArray[np.float32], label: npt.NDArray[np.uint8]
) -> None:
    objects = labelled_objects(label)
    assert sum(len(pixels) for pixels in objects) <= (label == 1).sum()
    if not objects:
        assert not (label == 1).any()
        return
    up_to = found_up_to(values, objects)
    for threshold in np.arange(0, 10, dtype=np.float32) / 8:
        reached = [(values.ravel()[pixels] >= threshold) for pixels in objects]
        assert (up_to >= threshold) == all(over.sum() >= len(over) / 2 for over in reached)


def test_objects_are_8_connected_and_specks_do_not_count() -> None:
    label = np.zeros((20, 20), np.uint8)
    label[2:5, 2:5] = label[5:8, 5:8] = 1  # they touch at a corner
    label[15, 15] = 1
    label[10:14, 10:14] = 255
    (pixels,) = labelled_objects(label)
    assert len(pixels) == 18
    label[:12] = 0
    (speck,) = labelled_objects(label)  # there is no larger one
    assert speck.tolist() == [15 * 20 + 15]
    assert labelled_objects(np.zeros((3, 3), np.uint8)) == []


def test_statistics_are_those_of_numpy() -> None:
    values = np.random.default_rng(0).random((30, 40), np.float32)
    found = frame_statistics(values)
    assert found == {
        "mean": pytest.approx(values.mean(dtype=np.float64), rel=1e-8),
        "p99": pytest.approx(np.sort(values.ravel())[-(-1200 * 99 // 100) - 1], rel=1e-7),
        "max": pytest.approx(values.max(), rel=1e-8),
    }
    values[0, 0] = np.nan
    assert frame_statistics(values) == {}
