"""One size for a region: the list of alarms, the frame and Python count the same pixels."""

import json
import re
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import numpy.typing as npt
import pytest

from segunc.decisions.flags import Threshold
from segunc.gallery.alarms import find_alarms
from segunc.gallery.condensed import condense, packed
from segunc.gallery.frame_files import listed_regions
from segunc.gallery.review_page import write_review
from segunc.maps.manifest import build_manifest
from segunc.maps.reader import MapsReader
from segunc.maps.store import MapsWriter
from tests.support.visits import Visit, name_reviewer

THRESHOLD = 0.37
SHAPE = (90, 120)


def textured() -> npt.NDArray[np.float32]:
    """Blobs of many sizes whose edges cross the threshold slowly, so that a step of the page's map
    which lies across the threshold changes areas."""
    noise = np.random.default_rng(5).random(SHAPE).astype(np.float32)
    smooth = cv2.GaussianBlur(noise, (0, 0), 2.5)
    low = float(smooth.min())
    return np.asarray((smooth - low) / (float(smooth.max()) - low) * 0.6, np.float32)


@pytest.fixture
def maps(tmp_path: Path) -> Path:
    out = tmp_path / "maps"
    write_frame(out, textured())
    return out


def write_frame(maps: Path, values: npt.NDArray[np.float32]) -> None:
    """Write the maps of one frame with this entropy, on which all is road."""
    manifest = build_manifest({}, ("entropy",), device="cpu", classes=["road"], palette=[(0, 0, 0)])
    with MapsWriter(maps, manifest) as writer:
        content = {"entropy": values, "prediction": np.zeros(values.shape, np.uint8)}
        writer.commit(writer.store("frame", content))


def areas_of(maps: Path, smallest: int) -> list[int]:
    """Count the pixels of each region of the stored map, the largest first."""
    flagged = MapsReader(maps).read("frame", "entropy").astype(np.float64) >= THRESHOLD
    _, _, boxes, _ = cv2.connectedComponentsWithStats(flagged.astype(np.uint8), connectivity=8)
    areas = boxes[1:, cv2.CC_STAT_AREA]
    return sorted(areas[areas >= smallest].tolist(), reverse=True)


def listed_areas(page: Any) -> list[int]:
    texts = page.locator("#alarm-list li").all_inner_texts()
    return [int(re.findall(r"([\d,]+) px", text)[0].replace(",", "")) for text in texts]


@pytest.mark.parametrize("smallest", [20, 100])
def test_list_frame_and_python_count_the_same_pixels(
    maps: Path, tmp_path: Path, visit: Visit, smallest: int
) -> None:
    flag = {"entropy": Threshold(THRESHOLD, smallest=smallest)}
    index = write_review(maps, tmp_path / "review", flag=flag)
    areas = areas_of(maps, smallest)
    values = MapsReader(maps).read("frame", "entropy")
    alarms = find_alarms({"entropy": values}, "entropy", THRESHOLD, None, smallest)
    page = visit.open(index, "view=alarms")
    visit.shown("#alarm-note", f"of at least {smallest} pixels")
    listed = listed_areas(page)
    assert listed == [alarm.area for alarm in alarms]
    assert set(listed) <= set(areas)
    assert len(listed) == min(5, len(areas))
    visit.open_frame(index, "frame")
    visit.until("segunc.regions.shown().length > 0")
    assert page.evaluate("segunc.regions.shown().map(({ region }) => region.area)") == areas


def test_a_large_frame_lists_what_the_alarms_list(tmp_path: Path, visit: Visit) -> None:
    """A ten-thousandth of this frame has 60 pixels."""
    values = np.zeros((600, 1000), np.float32)
    values[10:16, 10:16] = 0.9  # 36 pixels
    values[100:120, 100:120] = 0.9
    maps = tmp_path / "maps"
    write_frame(maps, values)
    flag = {"entropy": Threshold(THRESHOLD, smallest=20)}
    index = write_review(maps, tmp_path / "review", flag=flag)
    page = visit.open(index, "view=alarms")
    assert page.locator("#alarm-list > li").count() == 2
    visit.open_frame(index, "frame")
    visit.until("segunc.regions.shown().length > 0")
    assert page.locator("#regions li").count() == 2


@pytest.mark.parametrize(
    ("smallest", "words"),
    [
        (1, "peak 0.9 · 36 px"),
        (50, "no region of 50 px ≥ 0.37, highest 0.9"),
    ],
)
def test_a_card_says_how_many_pixels_a_region_needs(
    tmp_path: Path, visit: Visit, smallest: int, words: str
) -> None:
    """Without the size, a card with a bright speck would contradict itself."""
    values = np.zeros(SHAPE, np.float32)
    values[10:16, 10:16] = 0.9
    maps = tmp_path / "maps"
    write_frame(maps, values)
    flag = {"entropy": Threshold(THRESHOLD, smallest=smallest)}
    index = write_review(maps, tmp_path / "review", flag=flag)
    page = visit.open(index)
    assert page.inner_text("#cards .value") == words


@pytest.mark.parametrize("view", ["alarms", "frame"])
def test_a_region_of_a_smaller_map_is_exported_as_it_is_shown(
    tmp_path: Path, visit: Visit, view: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("segunc.gallery.review_page.LONGEST_SIDE", SHAPE[1] // 2)
    rows, columns = np.mgrid[: SHAPE[0], : SHAPE[1]]
    squared = ((columns - 60) / 15) ** 2 + ((rows - 41) / 12) ** 2
    maps = tmp_path / "maps"
    write_frame(maps, (0.9 * np.exp(-squared / 2)).astype(np.float32))
    flag = {"entropy": Threshold(THRESHOLD, smallest=20)}
    index = write_review(maps, tmp_path / "review", flag=flag)
    values = MapsReader(maps).read("frame", "entropy")
    alarm = find_alarms({"entropy": values}, "entropy", THRESHOLD, None, 20)[0]
    page = visit.open(index, "view=alarms")
    name_reviewer(visit, "Ana")
    if view == "frame":
        visit.open_frame(index, "frame")
        visit.shown("#regions", f"{alarm.area:,} px")
        page.keyboard.press("r")
        page.keyboard.press("s")
    else:
        page.locator("#alarm-list [data-verdict='false-alarm']").first.click()
    visit.shown("#progress", "1 of 1 judged")
    (region,) = page.evaluate("segunc.verdicts.all().map(({ region }) => region)")
    assert region["area"] == alarm.area
    assert region["value"] == pytest.approx(alarm.values["entropy"], rel=1e-6)
    assert np.array_equal(pixels_of_mask(region["mask"]), values >= THRESHOLD)


def pixels_of_mask(mask: list[int]) -> Any:
    """Return the pixels of an exported mask as bool, of the shape of the frame."""
    inside = np.zeros(SHAPE, bool)
    for start, length in zip(mask[::2], mask[1::2], strict=True):
        inside.ravel()[start : start + length] = True
    return inside


def write_thin_shapes(maps: Path) -> None:
    """Write a map in which one region would split and two would merge at half the size."""
    values = np.zeros(SHAPE, np.float32)
    values[10:30, 10:30] = 0.6
    values[19, 30:50] = 0.4  # a bridge of one pixel
    values[10:30, 50:60] = 0.6
    values[50:70, 10:31] = 0.9
    values[50:70, 31] = 0.1  # a gap of one pixel
    values[50:70, 32:50] = 0.9
    values[80, 80] = 0.9
    write_frame(maps, values)


def shrunk_page(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Write a page that shows the map of thin shapes at half its size."""
    monkeypatch.setattr("segunc.gallery.review_page.LONGEST_SIDE", SHAPE[1] // 2)
    write_thin_shapes(folder / "maps")
    flag = {"entropy": Threshold(THRESHOLD, smallest=20)}
    return write_review(folder / "maps", folder / "review", flag=flag)


SHOWN_REGIONS = "segunc.regions.shown().map(({ region }) => [region.area, region.box])"


def test_regions_of_a_smaller_map_are_those_of_the_whole_one(
    tmp_path: Path, visit: Visit, monkeypatch: pytest.MonkeyPatch
) -> None:
    index = shrunk_page(tmp_path, monkeypatch)
    visit.open_frame(index, "frame")
    visit.until("segunc.regions.shown().length > 0")
    shown = visit.page.evaluate(SHOWN_REGIONS)
    assert shown == [
        [620, [10, 10, 50, 20]],
        [420, [10, 50, 21, 20]],
        [360, [32, 50, 18, 20]],
    ]
    visit.shown("#regions-note", "3 flagged regions, 1 smaller not listed")
    visit.shown("#flagged", "of the frame (counted on the page's map of 60 x 45 pixels)")
    masks = visit.page.evaluate("segunc.regions.shown().map(({ region }) => region.mask)")
    for (area, (left, top, width, height)), mask in zip(shown, masks, strict=True):
        inside = pixels_of_mask(mask)
        assert inside.sum() == area
        inside[top : top + height, left : left + width] = False
        assert not inside.any()


@pytest.mark.parametrize("view", ["alarms", "frame"])
def test_the_mask_of_a_region_does_not_hold_another_in_its_box(
    tmp_path: Path, visit: Visit, view: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A ring and what lies within it touch in the shrunk map of the page."""
    monkeypatch.setattr("segunc.gallery.review_page.LONGEST_SIDE", SHAPE[1] // 2)
    outer = np.zeros(SHAPE, bool)
    outer[10:70, 10:90] = True
    outer[21:60, 21:80] = False
    inner = np.zeros(SHAPE, bool)
    inner[22:59, 22:79] = True
    write_frame(tmp_path / "maps", np.where(outer | inner, 0.9, 0).astype(np.float32))
    flag = {"entropy": Threshold(THRESHOLD, smallest=20)}
    index = write_review(tmp_path / "maps", tmp_path / "review", flag=flag)
    page = visit.open(index, "view=alarms")
    name_reviewer(visit, "Ana")
    if view == "frame":
        visit.open_frame(index, "frame")
        visit.shown("#regions-note", "2 flagged regions")
        page.keyboard.press("r")
        page.keyboard.press("s")
        page.keyboard.press("r")
        page.keyboard.press("a")
    else:
        page.locator("#alarm-list [data-verdict='false-alarm']").first.click()
        page.locator("#alarm-list [data-verdict='true-alarm']").last.click()
    visit.until("segunc.verdicts.all().length === 2")
    with page.expect_download() as download:
        page.click("#export-json")
    exported = json.loads(download.value.path().read_text())
    regions = [verdict["region"] for verdict in exported["verdicts"]]
    regions.sort(key=lambda region: region["box"])
    assert [region["box"] for region in regions] == [[10, 10, 80, 60], [22, 22, 57, 37]]
    for region, expected in zip(regions, [outer, inner], strict=True):
        assert region["area"] == expected.sum()
        assert np.array_equal(pixels_of_mask(region["mask"]), expected)


def test_regions_at_another_threshold_of_a_smaller_map_are_called_so(
    tmp_path: Path, visit: Visit, monkeypatch: pytest.MonkeyPatch
) -> None:
    index = shrunk_page(tmp_path, monkeypatch)
    visit.open_frame(index, "frame", "&threshold=0.39")
    visit.shown("#regions-note", "of the shrunk map of this page, in which regions may split")
    visit.open(index, "view=alarms&threshold=0.39")
    visit.shown("#alarm-note", "of the shrunk map of this page, in which regions may split")


def test_a_map_of_very_many_regions_lists_none(monkeypatch: pytest.MonkeyPatch) -> None:
    values = np.zeros((20, 20), np.float32)
    values[::4, ::4] = 0.9  # 25 regions of one pixel
    values[1, 0] = 0.9
    numbers = np.zeros(values.shape, np.uint8)
    numbers[:2, 0] = 1
    assert listed_regions(values, 0.5, 2) == {
        "list": [[0, 0, 1, 2, 2, pytest.approx(0.9), 0, 0, pytest.approx(0.8)]],
        "small": 24,
        "width": 20,
        "numbers": packed(numbers),
    }
    monkeypatch.setattr("segunc.gallery.frame_files.MAX_REGIONS", 24)
    assert listed_regions(values, 0.5, 1) is None


def test_no_code_is_on_both_sides_of_the_threshold() -> None:
    generator = np.random.default_rng(0)
    for _ in range(50):
        low, span = generator.normal(size=2)
        values = np.float32(low) + np.float32(span) * generator.random((20, 30), np.float32)
        threshold = np.float32(generator.choice(values.ravel()))
        values[0, :3] = [np.nextafter(threshold, np.float32(-9)), threshold, threshold]
        codes, ends = condense(values, 960, float(threshold))
        above = values >= threshold
        assert not set(codes[above].tolist()) & set(codes[~above].tolist())
        shown = ends["low"] + (codes + ends["shift"]) / 254 * (ends["high"] - ends["low"])
        shown = np.clip(shown, ends["low"], ends["high"])
        assert ((shown >= threshold) == above).all()
        assert abs(shown - values).max() <= np.ptp(values) / 508 * 1.001
