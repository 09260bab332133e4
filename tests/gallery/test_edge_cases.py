"""Colours, legends, alarms and pages where something lacks or does not fit."""

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import pytest

from segunc.colours import DisplayRange, display_range
from segunc.core.errors import InputError, PartialFailure
from segunc.gallery import pictures
from segunc.gallery.alarms import Alarm, join_alarms
from segunc.gallery.colours import class_colours, page_ranges
from segunc.gallery.condensed import shrink
from segunc.gallery.drawing import PAPER, Legend, Sheet
from segunc.gallery.page_facts import notices
from segunc.gallery.pictures import write_video
from segunc.gallery.review_page import PAGE_NAME
from segunc.maps.encoding import encode_jpeg
from segunc.maps.reader import MapsReader
from tests.support.scenes import LABEL_MAP, write_page

RAMP = np.arange(101, dtype=np.float32).reshape(1, 101)
EXTRAPOLATED = DisplayRange(0, 10, measured_to=2)


def test_a_range_that_falls_is_refused() -> None:
    with pytest.raises(InputError, match=r"range 1\.\.0 does not rise from low to high"):
        DisplayRange(1, 0)


def test_values_beyond_what_was_measured_share_the_upper_half_of_the_bar() -> None:
    # 0..2 is the lower half and 2..10 the upper one.
    shares = EXTRAPOLATED.share(np.array([0, 1, 2, 6, 10], np.float32))
    assert shares.tolist() == [0, 0.25, 0.5, 0.75, 1]


def test_a_score_of_another_tool_has_no_fixed_range() -> None:
    with pytest.raises(InputError, match="the score 'mine' has no fixed display range"):
        display_range("mine")


def write_foreign_maps(folder: Path, **frames: Any) -> Path:
    """Write maps of a score "mine" as another tool does, without a manifest."""
    (folder / "mine").mkdir(parents=True)
    for name, values in frames.items():
        np.save(folder / "mine" / f"{name}.npy", values)
    return folder


def range_of(maps: Path) -> DisplayRange:
    return page_ranges(MapsReader(maps), ["mine"])["mine"]


def test_an_unbounded_score_is_coloured_from_its_1st_to_its_99th_percentile(tmp_path: Path) -> None:
    # Of the values 0 to 100 these are 1 and 99, and the range is rounded outwards to whole numbers.
    maps = write_foreign_maps(tmp_path / "maps", a=RAMP)
    assert range_of(maps) == DisplayRange(1, 99, open_below=True, open_above=True)


def test_a_score_of_one_value_is_coloured_from_0_to_1(tmp_path: Path) -> None:
    maps = write_foreign_maps(tmp_path / "maps", a=np.full((2, 3), 7, np.float32))
    assert range_of(maps) == DisplayRange(0, 1, open_below=True, open_above=True)


def test_whole_numbers_of_another_tool_are_coloured_from_0_to_1(tmp_path: Path) -> None:
    maps = write_foreign_maps(tmp_path / "maps", a=np.full((2, 3), 7, np.uint8))
    assert range_of(maps) == DisplayRange(0, 1)


def test_a_map_that_cannot_be_read_does_not_change_a_range(tmp_path: Path) -> None:
    maps = write_foreign_maps(tmp_path / "maps", a=RAMP, b=RAMP)
    (maps / "mine" / "a.npy").write_bytes(b"torn")
    assert range_of(maps) == DisplayRange(1, 99, open_below=True, open_above=True)


def test_classes_of_foreign_maps_have_the_colours_of_the_label_map(tmp_path: Path) -> None:
    reader = MapsReader(write_foreign_maps(tmp_path / "maps", a=RAMP))
    classes = class_colours(reader, LABEL_MAP)
    assert [entry["name"] for entry in classes] == ["road", "car", "sky"]
    assert classes[1]["colour"] == [0, 0, 142]


def test_classes_of_a_page_without_a_palette_are_told_apart(tmp_path: Path) -> None:
    reader = MapsReader(write_foreign_maps(tmp_path / "maps", a=RAMP))
    rows = np.array([[entry["colour"] for entry in class_colours(reader)[:28]]], np.float32)
    lab = cv2.cvtColor(rows / 255, cv2.COLOR_RGB2Lab)[0]
    distances = np.linalg.norm(lab[:, None] - lab, axis=2)
    assert distances[~np.eye(28, dtype=bool)].min() > 20


@dataclass
class Row:
    name: str
    alarms: list[Alarm] = field(default_factory=list)


def alarm(left: int, strength: float) -> Alarm:
    return Alarm((left, 0, 10, 10), 100, strength, (left, 0), {}, None, {})


@pytest.fixture
def rows() -> list[Row]:
    """One thing in three frames, the strongest in the second, and another in the last frame."""
    return [
        Row("drive/0", [alarm(0, 1.0)]),
        Row("drive/1", [alarm(1, 3.0)]),
        Row("drive/2", [alarm(50, 5.0), alarm(2, 2.0)]),
    ]


def test_an_event_lies_where_its_alarms_do(rows: list[Row]) -> None:
    assert join_alarms(rows) == [
        {"start": 0, "end": 2, "peak": 1, "frames": 3},
        {"start": 2, "end": 2, "peak": 2, "frames": 1},
    ]


def test_each_alarm_has_the_number_of_its_event(rows: list[Row]) -> None:
    join_alarms(rows)
    assert [[alarm.event for alarm in row.alarms] for row in rows] == [[0], [0], [1, 0]]


def test_a_map_is_shrunk_by_means() -> None:
    values = np.array([[0, 2, 4, 6], [1, 3, 5, 7]], np.float32)
    assert shrink(values, 2).tolist() == [[1.5, 5.5]]


def test_no_words_draw_nothing() -> None:
    sheet = Sheet(20, 40)
    sheet.write("", 0, 15, 12, 40)
    assert (sheet.pixels == PAPER).all()


@pytest.mark.parametrize(
    ("shown", "is_hatched"),
    [(DisplayRange(0, 10), False), (EXTRAPOLATED, True)],
    ids=["measured", "extrapolated"],
)
def test_the_upper_half_of_a_bar_is_hatched_where_it_is_extrapolated(
    shown: DisplayRange, is_hatched: bool
) -> None:
    sheet = Sheet(60, 300)
    white = np.full((1, 3), 255, np.uint8)
    sheet.scale(white, Legend("anomaly", "", shown), left=20, top=10, width=200, size=12)
    bar = sheet.pixels[10:23, 20:220]  # 1.1 times the size of the text is 13 pixels
    assert (bar[:, :100] == 255).all()
    assert (bar[:, 100:] != 255).any() == is_hatched


@dataclass
class Maps:
    unfinished: str
    frames: list[str]
    region: object | None = None
    manifest: dict[str, Any] | None = None
    records: tuple[Any, ...] = ()


class NoGaps:
    def gaps(self, frames: int) -> list[str]:
        return []


def notices_of(maps: Any, names: list[str]) -> list[str]:
    labels: Any = NoGaps()
    return list(notices(maps, labels, names))


def test_a_page_of_an_unfinished_run_says_so() -> None:
    (notice,) = notices_of(Maps("1 of 2 frames lack maps", ["a"]), ["a"])
    assert notice == "This page shows what is there: 1 of 2 frames lack maps."


def test_a_page_of_some_frames_says_how_many() -> None:
    (notice,) = notices_of(Maps("", ["a", "b", "c"]), ["a", "b"])
    assert notice == "The page carries the worst 2 of 3 frames."


def test_a_page_of_masked_maps_says_so() -> None:
    (notice,) = notices_of(Maps("", ["a"], region=object()), ["a"])
    assert notice.startswith("A mask was left out of these maps")


def record_of(out: Path) -> Any:
    return json.loads((out / PAGE_NAME).read_text(encoding="utf-8"))


def test_a_limit_keeps_the_frames_of_the_largest_mean(tmp_path: Path) -> None:
    values = {"a": 0.1, "b": 0.9, "c": 0.5}
    maps = write_foreign_maps(
        tmp_path / "maps", **{name: np.full((4, 6), value) for name, value in values.items()}
    )
    write_page(maps, tmp_path / "page", limit=2)
    folder = tmp_path / "page" / "data"
    frames = (folder / "frames.js").read_text(encoding="utf-8")
    assert record_of(tmp_path / "page")["frames"] == 2
    assert [rf"\"name\":\"{name}\"" in frames for name in values] == [False, True, True]


def test_a_map_with_nan_has_no_statistics(tmp_path: Path) -> None:
    values = RAMP.copy()
    values[0, 3] = np.nan
    maps = write_foreign_maps(tmp_path / "maps", a=values)
    write_page(maps, tmp_path / "page")
    (reason,) = record_of(tmp_path / "page")["problems"]["a"]
    assert reason == "mine holds NaN or infinite values, so it has no statistics"


def test_a_label_of_another_size_is_not_shown(tmp_path: Path) -> None:
    maps = write_foreign_maps(tmp_path / "maps", a=np.full((4, 6), 0.5))
    (tmp_path / "labels").mkdir()
    assert cv2.imwrite(str(tmp_path / "labels" / "a.png"), np.ones((8, 12), np.uint8))
    write_page(maps, tmp_path / "page", anomaly_labels=tmp_path / "labels")
    (reason,) = record_of(tmp_path / "page")["problems"]["a"]
    assert reason == "the anomaly label is 12 x 8 and the maps are 6 x 4, so it is not shown"


def test_a_page_inside_of_foreign_maps_is_refused(tmp_path: Path) -> None:
    maps = write_foreign_maps(tmp_path / "maps", a=RAMP)
    with pytest.raises(InputError, match="is or lies inside the maps folder"):
        write_page(maps, maps / "page")


def test_a_video_that_fills_the_disk_keeps_its_pictures(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fill(*arguments: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(pictures, "encode_video", fill)
    picture = tmp_path / "frame.jpg"
    picture.write_bytes(encode_jpeg(np.zeros((4, 6, 3), np.uint8)))
    out = tmp_path / "overlay.webm"
    with pytest.raises(PartialFailure, match=r"cannot be written \(No space left on device\)"):
        write_video([picture], out, fps=10)
    assert [path.name for path in tmp_path.iterdir()] == ["frame.jpg"]
