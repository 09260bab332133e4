"""Anomaly masks in their raw encodings."""

from __future__ import annotations

import numpy as np
import pytest

from segunc.core.errors import InputError
from segunc.data.entry import BINARY, ROAD_ANOMALY, AnomalyEncoding, classes_as_anomalies
from segunc.data.labels import label_map


@pytest.mark.parametrize("kind", [np.uint8, np.uint16, np.int32])
def test_raw_values_become_0_1_and_255(kind):
    np.testing.assert_array_equal(BINARY.encode(np.array([[0, 1, 255]], kind)), [[0, 1, 255]])
    encoded = ROAD_ANOMALY.encode(np.array([[0, 2, 2]], kind))
    np.testing.assert_array_equal(encoded, [[0, 1, 1]])
    assert encoded.dtype == np.uint8


@pytest.mark.parametrize(
    ("raw", "message"),
    [
        (
            np.array([[0, 2, 7]], np.uint8),
            r"mask.png holds the values \[2, 7\].*0 = normal, 1 = anomaly, 255 = ignored",
        ),
        (np.array([[0, 256]], np.uint16), r"holds the values \[256\]"),
        (np.array([[0, -1]], np.int16), r"holds the values \[-1\]"),
    ],
)
def test_unknown_values_are_refused_by_name(raw, message):
    with pytest.raises(InputError, match=message):
        BINARY.encode(raw, "mask.png")


def test_the_road_anomaly_value_is_not_taken_for_a_binary_one():
    with pytest.raises(InputError, match="name the data set that it belongs to"):
        BINARY.encode(np.array([[0, 2]], np.uint8))


def test_classes_become_the_anomaly():
    encoding = classes_as_anomalies(label_map("cityscapes"), ["rider", "bicycle"])
    raw = np.array([[7, 25, 33, 0, 29, 255, 24]], np.uint8)
    np.testing.assert_array_equal(encoding.encode(raw), [[0, 1, 1, 255, 255, 255, 0]])
    with pytest.raises(InputError, match=r"class 'bike' of label map 'cityscapes'; expected one of road, .*bicycle"):
        classes_as_anomalies(label_map("cityscapes"), ["bike"])


@pytest.mark.parametrize("sets", [({0, 1}, {1}, set()), ({0}, {300}, set())])
def test_a_value_has_one_meaning(sets):
    with pytest.raises(InputError, match="at most once"):
        AnomalyEncoding("own", *map(frozenset, sets))
