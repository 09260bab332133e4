"""A region of interest: what is outside is 0 on disk and in no statistic."""

from __future__ import annotations

import json
from pathlib import Path

import cv2
import numpy as np
import pytest

from segunc.core.errors import InputError
from segunc.frames.sources import Frame, open_source
from segunc.maps.pipeline import run_pipeline
from segunc.maps.reader import MapsReader
from segunc.maps.statistics import Region
from segunc.maps.store import Maps, MapsWriter
from tests.maps.fakes import SCORES, manifest, process, write_pictures


@pytest.fixture
def region(tmp_path: Path) -> Region:
    """The upper two thirds of 12x16."""
    mask = np.zeros((12, 16), np.uint8)
    mask[:8] = 1
    cv2.imwrite(str(tmp_path / "mask.png"), mask)
    return Region(tmp_path / "mask.png")


def predict(given: Path, out: Path, region: Region | None) -> MapsReader:
    writer = MapsWriter(out, manifest(mask=region.sha256 if region else None), region=region)
    run_pipeline(open_source(given), process, writer)
    return MapsReader(out)


def test_outside_is_0_and_counts_for_nothing(tmp_path: Path, region: Region) -> None:
    names = write_pictures(tmp_path / "in", 2)  # 24x32: twice the mask
    whole = predict(tmp_path / "in", tmp_path / "whole", None)
    masked = predict(tmp_path / "in", tmp_path / "masked", region)
    for score in ("prediction", *SCORES):
        stored = masked.read_stored(names[0], score)
        assert not stored[16:].any()
        np.testing.assert_array_equal(stored[:16], whole.read_stored(names[0], score)[:16])
    record = masked.records[names[0]]
    for score in SCORES:
        inside = whole.read(names[0], score)[:16].astype(np.float64)
        assert record["mean"][score] == pytest.approx(inside.mean(), rel=1e-6)
        assert record["max"][score] == pytest.approx(inside.max(), rel=1e-6)
    assert record["mean"]["max-logit"] != whole.records[names[0]]["mean"]["max-logit"]


def test_the_manifest_and_the_reader_know_the_region(tmp_path: Path, region: Region) -> None:
    write_pictures(tmp_path / "in", 1)
    reader = predict(tmp_path / "in", tmp_path / "out", region)
    assert reader.region is not None
    assert reader.region.sha256 == region.sha256
    np.testing.assert_array_equal(reader.region.at(24, 32), np.repeat([True] * 16 + [False] * 8, 32).reshape(24, 32))
    described = json.loads((tmp_path / "out/manifest.json").read_text())["mask"]
    assert (described["sha256"], described["kept"]) == (region.sha256, pytest.approx(2 / 3))
    assert predict(tmp_path / "in", tmp_path / "whole", None).region is None
    with pytest.raises(InputError, match="mask = "):
        predict(tmp_path / "in", tmp_path / "out", None)


def test_overlays_show_nothing_outside(tmp_path: Path, region: Region) -> None:
    write_pictures(tmp_path / "in", 1)
    seen: list[Maps] = []

    def draw(frame: Frame, maps: Maps) -> np.ndarray:
        seen.append(maps)
        assert frame.image is not None
        return frame.image

    writer = MapsWriter(tmp_path / "out", manifest(), region=region)
    run_pipeline(open_source(tmp_path / "in"), process, writer, draw_overlay=draw)
    assert not seen[0]["entropy"][16:].any()
    assert seen[0]["entropy"][:16].all()


def test_colours_and_encodings_do_not_matter(tmp_path: Path, region: Region) -> None:
    colour = np.zeros((12, 16, 3), np.uint8)
    colour[:8, :, 2] = 200
    cv2.imwrite(str(tmp_path / "red.png"), colour)
    assert Region(tmp_path / "red.png").sha256 == region.sha256


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
    with pytest.raises(InputError, match="a mask of 12x16 for a frame of 12x12"):
        region.at(12, 12)
    write_pictures(tmp_path / "in", 2, (20, 20))
    writer = MapsWriter(tmp_path / "out", manifest(), region=region)
    summary = run_pipeline(open_source(tmp_path / "in"), process, writer, raise_failures=False)
    assert len(summary.failed) == 2
