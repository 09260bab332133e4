"""Statistics of frames over all pixels or those of a region, and the frames that stand out."""

from __future__ import annotations

import csv
import math
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import ndimage

import segunc
from segunc.core.errors import InputError
from segunc.frames.source import Frame
from segunc.frames.sources import open_source
from segunc.maps.encoding import decode_unit, encode_score
from segunc.maps.manifest import read_manifest
from segunc.maps.pipeline import run_pipeline
from segunc.maps.reader import MapsReader
from segunc.maps.shards import Shard
from segunc.maps.statistics import (
    Moment,
    Region,
    largest_component,
    map_statistics,
    maps_folders,
    separated_peaks,
    worst_moments,
)
from segunc.maps.store import Maps, MapsWriter
from tests.maps.fakes import SCORES, manifest, predict, process, write_pictures, write_timed_video

SIDES = st.tuples(st.integers(1, 40), st.integers(1, 40))


@given(st.integers(0, 10**6), SIDES, st.booleans(), st.sampled_from(["epistemic", "deterministic-energy"]))
def test_statistics_are_those_of_numpy(seed: int, size: tuple[int, int], masked: bool, score: str) -> None:
    generator = np.random.default_rng(seed)
    values = generator.random(size, np.float32) ** 3 * (1 if score == "epistemic" else -40)
    stored = encode_score(score, np.round(values, 2))  # with many ties
    real = (decode_unit(stored) if score == "epistemic" else stored).astype(np.float64)
    kept = generator.random(size) < 0.5 if masked else None
    if kept is not None:
        kept[0, 0] = True
    numbers = map_statistics(stored, 0.1, kept)
    pixels = real if kept is None else real[kept]
    assert numbers["mean"] == pytest.approx(pixels.mean(), rel=1e-7)
    assert numbers["max"] == pytest.approx(pixels.max(), rel=1e-7)
    assert numbers["p99"] == pytest.approx(np.percentile(pixels, 99, method="inverted_cdf"), rel=1e-7)
    high = (real >= 0.1) & (True if kept is None else kept)
    labels, count = ndimage.label(high, structure=np.ones((3, 3)))
    assert numbers["component"] == (np.bincount(labels.ravel())[1:].max() if count else 0)


def test_components_touch_at_corners_and_a_value_at_the_threshold_belongs_to_them() -> None:
    assert largest_component(np.eye(6, dtype=bool)) == 6
    stored = np.full((4, 4), -2.0, np.float16)
    numbers = [map_statistics(stored, threshold).get("component") for threshold in (-2.0, -1.99, None)]
    assert numbers == [16, 0, None]


@pytest.fixture
def region(tmp_path: Path) -> Region:
    """The upper two thirds of 12x16."""
    mask = np.zeros((12, 16), np.uint8)
    mask[:8] = 1
    cv2.imwrite(str(tmp_path / "mask.png"), mask)
    return Region(tmp_path / "mask.png")


def test_outside_is_0_and_counts_for_nothing(tmp_path: Path, region: Region) -> None:
    names = write_pictures(tmp_path / "in", 2)  # 24x32: twice the mask
    predict(tmp_path / "in", tmp_path / "whole")
    seen: list[Maps] = []

    def draw(frame: Frame, maps: Maps) -> Any:
        seen.append(maps)
        return frame.image

    writer = MapsWriter(tmp_path / "masked", manifest(mask=region.sha256), region=region)
    run_pipeline(open_source(tmp_path / "in"), process, writer, draw_overlay=draw)
    assert not seen[0]["entropy"][16:].any()  # nothing outside is drawn
    assert seen[0]["entropy"][:16].all()
    whole, masked = MapsReader(tmp_path / "whole"), MapsReader(tmp_path / "masked")
    for score in ("prediction", *SCORES):
        stored = masked.read_stored(names[0], score)
        assert not stored[16:].any()
        np.testing.assert_array_equal(stored[:16], whole.read_stored(names[0], score)[:16])
    record = masked.records[names[0]]
    for score in SCORES:
        inside = whole.read(names[0], score)[:16].astype(np.float64)
        assert record["mean"][score] == pytest.approx(inside.mean(), rel=1e-6)
        assert record["max"][score] == pytest.approx(inside.max(), rel=1e-6)
    colour = np.zeros((12, 16, 3), np.uint8)
    colour[:8, :, 2] = 200
    cv2.imwrite(str(tmp_path / "red.png"), colour)  # colours and encodings do not matter
    assert whole.region is None
    assert masked.region is not None
    assert masked.region.sha256 == region.sha256 == Region(tmp_path / "red.png").sha256
    np.testing.assert_array_equal(masked.region.at(24, 32), np.repeat([True] * 16 + [False] * 8, 32).reshape(24, 32))
    described = (read_manifest(tmp_path / "masked") or {})["mask"]
    assert (described["sha256"], described["kept"]) == (region.sha256, pytest.approx(2 / 3))
    with pytest.raises(InputError, match="mask = "):
        predict(tmp_path / "in", tmp_path / "masked")


def test_unfit_masks_are_one_line(tmp_path: Path, region: Region) -> None:
    cv2.imwrite(str(tmp_path / "black.png"), np.zeros((4, 4), np.uint8))
    (tmp_path / "broken.png").write_bytes(b"no PNG")
    for name, said in (
        ("black.png", "black all over"),
        ("broken.png", "cannot be read"),
        ("missing.png", "cannot be read"),
        ("mask.jpg", "exactly 0"),
    ):
        with pytest.raises(InputError, match=said):
            Region(tmp_path / name)
    with pytest.raises(InputError, match="mask of 12x16 does not fit a frame of 12x12"):
        region.at(12, 12)
    write_pictures(tmp_path / "in", 2, (20, 20))
    assert len(predict(tmp_path / "in", tmp_path / "out", region=region).failed) == 2


FRAMES = st.tuples(
    st.one_of(st.floats(-5, 5), st.just(math.nan)),
    st.sampled_from([0.0, 0.5, 1.0, 2.5, 3.0, 7.0, None]),
    st.sampled_from(["day", "night"]),
)


@given(st.lists(FRAMES, max_size=30), st.integers(1, 8), st.sampled_from([0.0, 0.5, 1.0, 2.5, 100.0]))
def test_peaks_are_those_of_the_plain_comparison_of_all_with_all(
    frames: list[tuple[float, float | None, str]], count: int, apart: float
) -> None:
    moments = [Moment(Path(video), f"v/{place}", time, value) for place, (value, time, video) in enumerate(frames)]

    def near(one: Moment, other: Moment) -> bool:
        known = one.time is not None and other.time is not None and one.folder == other.folder
        return known and abs(one.time - other.time) < apart

    plain: list[Moment] = []
    for moment in sorted((m for m in moments if not math.isnan(m.value)), key=lambda m: -m.value):
        if not any(near(moment, other) for other in plain):
            plain.append(moment)
    assert separated_peaks(moments, apart, count) == plain[:count]


def test_moments_of_several_folders_and_of_shards_are_one_ranking(tmp_path: Path) -> None:
    for name in ("monday", "tuesday"):
        write_timed_video(tmp_path / f"{name}.mkv", [0.0, 0.1, 3.0, 3.1, 9.0])
        for number in (2, 1):
            predict(tmp_path / f"{name}.mkv", tmp_path / "maps" / name, shard=Shard(number, 2))
    folders = maps_folders(tmp_path / "maps")
    assert [folder.name for folder in folders] == ["monday", "tuesday"]
    moments = worst_moments(folders, "entropy", "mean", count=5, apart=1.0)
    # The bar grows from frame to frame, so each cluster's last frame is its brightest, its entropy the highest.
    assert [(m.folder.name, m.time) for m in moments] == [
        ("monday", 9.0), ("tuesday", 9.0), ("monday", 3.1), ("tuesday", 3.1), ("monday", 0.1)
    ]  # fmt: skip
    assert [m.value for m in moments] == sorted((m.value for m in moments), reverse=True)
    assert len(worst_moments(folders[:1], "entropy", apart=0.0)) == 5


def test_images_get_times_from_a_rate(tmp_path: Path) -> None:
    names, out = write_pictures(tmp_path / "in", 6), tmp_path / "out"
    predict(tmp_path / "in", out)
    timed = worst_moments([out], "epistemic", "p99", count=20, fps=2.0, apart=5.0)
    assert sorted(m.name[0] for m in timed) == ["a", "b"]  # of each folder one
    assert all(m.time == 0.5 * (names.index(m.name) % 3) for m in timed)
    result = segunc.summary(out, score="epistemic", top=20, out=tmp_path / "summary.csv")
    assert [m.name for m in result.moments] == [m.name for m in worst_moments([out], "epistemic", count=20)]
    assert "neighbours may be listed" in result.notes[0]
    rows = list(csv.DictReader((tmp_path / "summary.csv").open(newline="")))
    assert [(row["list"], row["rank"], row["frame"], float(row["value"])) for row in rows] == [
        (part, str(rank), m.name, m.value)
        for part in ("moments", "label")
        for rank, m in enumerate(result.moments, start=1)
    ]
    assert segunc.summary(out, fps=2).notes == ()
    for score, statistic, said in (
        ("entropie", "mean", "no mean of 'entropie'.*entropy, epistemic, deterministic-max-logit"),
        ("deterministic-max-logit", "component", "no component of 'deterministic-max-logit'"),
    ):
        with pytest.raises(InputError, match=said):
            worst_moments([out], score, statistic)
    with pytest.raises(InputError, match=r"holds no manifest\.json"):
        maps_folders(tmp_path / "in")
