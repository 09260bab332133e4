"""Anomaly masks in their raw encodings."""

from __future__ import annotations

import numpy as np
import pytest

from segunc.data.anomaly_labels import BINARY, ROAD_ANOMALY, AnomalyEncoding, anomaly_encoding
from segunc.errors import InputError


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
    with pytest.raises(InputError, match=r"another encoding \(binary, road-anomaly\)"):
        BINARY.encode(np.array([[0, 2]], np.uint8))


def test_encodings_by_name():
    assert anomaly_encoding("road-anomaly") is ROAD_ANOMALY
    with pytest.raises(InputError, match="one of binary, road-anomaly"):
        anomaly_encoding("roads")


@pytest.mark.parametrize("sets", [({0, 1}, {1}, set()), ({0}, {300}, set())])
def test_a_value_has_one_meaning(sets):
    with pytest.raises(InputError, match="at most once"):
        AnomalyEncoding("own", *map(frozenset, sets))
