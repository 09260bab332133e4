"""Statistics of frames and of labelled objects against their definitions."""

from __future__ import annotations

import hypothesis.extra.numpy as arrays
import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st

from segunc.gallery.frame_files import (
    SHARES,
    found_up_to,
    frame_statistics,
    labelled_objects,
    pack,
    recorded_statistics,
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
        for name, share in SHARES.items():
            reached = [(values.ravel()[pixels] >= threshold) for pixels in objects]
            found = all(over.any() if name == "any" else over.sum() >= share * len(over) - 1e-9 for over in reached)
            assert (up_to[name] >= threshold) == found


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


def test_what_a_record_holds_of_a_score() -> None:
    record = {"name": "a", "size": [1, 2], "files": {"entropy": "x"}}
    record |= {"mean": {"entropy": 0.5}, "component": {"entropy": 7}}
    assert recorded_statistics(record, "entropy") == {"mean": 0.5, "component": 7}
    assert recorded_statistics(record, "msp") == {}


def test_wider_numbers_are_packed_as_the_values_that_the_reader_gives() -> None:
    assert pack(np.ones((2, 2), np.float64))[0] == "float32"
    assert pack(np.ones((2, 2), ">f4"))[1] == pack(np.ones((2, 2), "<f4"))[1]
