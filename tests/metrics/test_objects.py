"""Anomalous objects against SciPy's components and scikit-learn's curves, pixel by pixel."""

import numpy as np
import pytest
from scipy import ndimage
from sklearn import metrics as sklearn_metrics

from segunc.maps.encoding import score_keys
from segunc.metrics.counting import KEYS, count_scores
from segunc.metrics.objects import (
    KINDS,
    SMALLEST_OBJECT,
    ObjectBins,
    Objects,
    object_counts,
    object_numbers,
)
from segunc.options import ThresholdOptions
from tests.support.objects import object_scene

EIGHT = np.ones((3, 3))


def sizes(*edges: float) -> ObjectBins:
    return ObjectBins("size", edges, tuple(f"from {edge}" for edge in (0, *edges)))


Scenes = list[tuple[np.ndarray, np.ndarray]]
ObjectPixels = list[np.ndarray]  # the scores of the pixels of each object


def objects_by_bin(scenes: Scenes, bins: ObjectBins) -> list[ObjectPixels]:
    """The objects of each bin."""
    objects: list[ObjectPixels] = [[] for _ in bins.names]
    for stored, anomaly in scenes:
        labels, count = ndimage.label(anomaly == 1, EIGHT)
        for number in range(1, count + 1):
            mask = labels == number
            value = mask.sum()
            if bins.kind == "distance":
                rows = np.flatnonzero(mask.any(1))
                value = (rows.max() + 1) / len(mask)
            bin_number = sum(value >= edge for edge in bins.edges)
            objects[bin_number].append(stored[mask].astype(np.float64))
    return objects


def lowest_threshold(normal: np.ndarray, objects: list[ObjectPixels]) -> float:
    """The lowest score that flags at most 5 % of the normal pixels."""
    scores = [normal]
    for of_bin in objects:
        scores.extend(of_bin)
    for threshold in np.unique(np.concatenate(scores)):
        if (normal >= threshold).sum() * 20 <= len(normal):
            return float(threshold)
    return np.inf


def numbers_of_bin(
    normal: np.ndarray, of_bin: ObjectPixels, threshold: float
) -> list[float | None]:
    if not of_bin:
        return [None, None, None, None, 0, 0]
    pixels = np.concatenate(of_bin)
    labels = np.repeat([0, 1], [len(normal), len(pixels)])
    values = np.concatenate([normal, pixels])
    false, true, _ = sklearn_metrics.roc_curve(labels, values, drop_intermediate=False)
    found = [(scores >= threshold).sum() * 2 >= len(scores) for scores in of_bin]
    return [
        float(sklearn_metrics.roc_auc_score(labels, values)),
        float(sklearn_metrics.average_precision_score(labels, values)),
        float(false[true >= 0.95][0]),
        float(np.mean(found)),
        len(of_bin),
        len(pixels),
    ]


def by_hand(scenes: Scenes, bins: ObjectBins) -> list[list[float | None]]:
    """Every number from the pixels of each object, in a sweep over all thresholds there are."""
    of_scenes = [stored[anomaly == 0] for stored, anomaly in scenes]
    normal = np.concatenate(of_scenes).astype(np.float64)
    objects = objects_by_bin(scenes, bins)
    threshold = lowest_threshold(normal, objects)
    return [numbers_of_bin(normal, of_bin, threshold) for of_bin in objects]


def counted(scenes: Scenes, bins: ObjectBins) -> tuple[np.ndarray, np.ndarray]:
    """All normal pixels by key, and the counts of objects."""
    normal = np.zeros(KEYS, np.int64)
    counts = np.zeros((2 * len(bins.names), KEYS), np.int64)
    for stored, anomaly in scenes:
        normal += count_scores(stored, anomaly)[0]
        keys = score_keys(stored[anomaly == 1])
        counts += object_counts(keys, Objects.of(anomaly), bins, KEYS)
    return normal, counts


@pytest.mark.parametrize("stored", ["float", "codes"])
@pytest.mark.parametrize(
    "bins",
    [sizes(3, 10, 40), sizes(1000), *map(ObjectBins.of, KINDS)],
    ids=["many", "one", *KINDS],
)
def test_every_number_is_that_of_a_sweep_over_the_pixels(bins: ObjectBins, stored: str) -> None:
    scenes = [object_scene(seed, stored) for seed in range(3)]
    normal, counts = counted(scenes, bins)
    rows = object_numbers(normal, counts)
    expected = by_hand(scenes, bins)
    assert sum(row[4] or 0 for row in expected) > 20
    for row, right in zip(rows, expected, strict=True):
        assert [*row.values()] == (pytest.approx(right, rel=1e-12) if right[4] else right)


@pytest.mark.parametrize(
    ("above", "pixels", "found"),
    [
        (2, 4, 1.0),
        (1, 4, 0.0),
        (2, 5, 0.0),
        (3, 5, 1.0),
        (1, 1, 1.0),
    ],
)
def test_an_object_is_found_where_half_of_its_pixels_are_above(
    above: int, pixels: int, found: float
) -> None:
    stored = np.zeros((1, 100), np.float16)
    anomaly = np.zeros((1, 100), np.uint8)
    anomaly[0, :pixels] = 1
    stored[0, :above] = 2
    stored[0, 60:62] = 1  # 2 of at least 95 normal pixels: less than 5 %, with those at 0 more
    normal, counts = counted([(stored, anomaly)], sizes(50))
    row, _ = object_numbers(normal, counts)
    assert row["found"] == found


def with_specks() -> np.ndarray:
    """A label with an object of 9 pixels, one of 12, and three specks, of which one comes first."""
    label = np.zeros((20, 30), np.uint8)
    for speck in ((0, 0), (19, 29), (10, 2)):
        label[speck] = 1
    label[2:5, 5:8] = 1
    label[12:15, 10:14] = 1
    return label


@pytest.mark.parametrize(
    ("smallest", "sizes_left"),
    [
        (0, [1, 1, 1, 9, 12]),
        (9, [9, 12]),
        (10, [12]),
    ],
)
def test_specks_are_no_objects_beside_larger_ones(smallest: int, sizes_left: list[int]) -> None:
    objects = Objects.of(with_specks(), smallest)
    assert sorted(objects.pixels.tolist()) == sizes_left


@pytest.mark.parametrize("smallest", [0, 9, 10])
def test_objects_are_numbered_without_a_gap(smallest: int) -> None:
    objects = Objects.of(with_specks(), smallest)
    counts = np.bincount(objects.number.ravel(), minlength=len(objects.pixels) + 1)
    assert counts[1:].tolist() == objects.pixels.tolist()


@pytest.mark.parametrize("smallest", [0, 9, 10])
def test_the_box_of_an_object_holds_its_pixels(smallest: int) -> None:
    objects = Objects.of(with_specks(), smallest)
    last = objects.number == len(objects.pixels)
    left, top, width, height = objects.boxes[-1].tolist()
    in_box = last[top : top + height, left : left + width]
    assert in_box.sum() == objects.pixels[-1]


def test_a_small_region_is_an_object_where_the_frame_has_no_larger_one() -> None:
    label = np.zeros((20, 30), np.uint8)
    label[3, 3:6] = 1
    assert Objects.of(label, 10).pixels.tolist() == [3]


def test_a_frame_without_anomalies_has_no_object() -> None:
    label = np.zeros((4, 4), np.uint8)
    assert Objects.of(label, 10).pixels.tolist() == []


def test_options_and_rooms_have_one_smallest_object() -> None:
    options = ThresholdOptions(maps="m", out="t.json", control="missed-objects", level=0.1)
    assert options.smallest_object == SMALLEST_OBJECT
