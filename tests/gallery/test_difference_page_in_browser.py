"""The page of two folders' differences as a browser shows it."""

from pathlib import Path

import cv2
import numpy as np
import pytest

import segunc
from tests.support.map_folders import SIZE, maps_of, write_folder
from tests.support.shadows import backgrounds, shadows_where_nothing_scrolls
from tests.support.visits import Visit

# How far the names of rows lie from the left edge of each table that scrolls, after it scrolled.
NAMES_AFTER_SCROLLING = """
    [...document.querySelectorAll(".wide")].filter((box) => box.scrollWidth > box.clientWidth)
      .map((box) => {
        box.scrollLeft = 1e6;
        const name = box.querySelector("tbody th");
        return name.getBoundingClientRect().left - box.getBoundingClientRect().left;
      })
"""


@pytest.fixture
def page(tmp_path: Path) -> Path:
    """A page with two frames, of which one has no image."""
    images = tmp_path / "images"
    images.mkdir()
    assert cv2.imwrite(str(images / "a.png"), np.full((*SIZE, 3), 90, np.uint8))
    frames = {name: maps_of(number) for number, name in enumerate(("a", "b"))}
    others = {name: maps_of(9 + number) for number, name in enumerate(("a", "b"))}
    first = write_folder(tmp_path / "first", frames)
    second = write_folder(tmp_path / "second", others)
    written = tmp_path / "differences.html"
    segunc.compare([first, second], flag=["entropy=0.5"], page=written, images=str(images))
    return written


@pytest.mark.parametrize(("width", "columns"), [(1280, 3), (640, 2), (390, 1)])
def test_pictures_stand_side_by_side_and_nothing_leaves_the_screen(
    visit: Visit, page: Path, width: int, columns: int
) -> None:
    visit.page.set_viewport_size({"width": width, "height": 900})
    visit.page.goto(page.as_uri())
    assert visit.page.evaluate("document.documentElement.scrollWidth") <= width
    places = visit.page.evaluate(
        "[...document.querySelectorAll('.pictures')].map((grid) =>"
        " [...grid.children].map((figure) => figure.getBoundingClientRect().left))"
    )
    assert [len(figures) for figures in places] == [6, 6]
    assert [len(set(figures)) for figures in places] == [columns, columns]


def test_all_pictures_are_shown_and_nothing_is_asked_for(visit: Visit, page: Path) -> None:
    visit.page.goto(page.as_uri())
    broken = visit.page.evaluate(
        "[...document.images].filter((image) => !image.naturalWidth).length"
    )
    assert broken == 0
    assert visit.page.locator(".absent").all_inner_texts() == ["no image"]
    asked = [address for address in visit.requests if not address.startswith("data:")]
    assert asked == [page.as_uri()]
    assert visit.complaints == []


def test_no_shadow_stands_where_nothing_scrolls(visit: Visit, page: Path) -> None:
    visit.page.set_viewport_size({"width": 1400, "height": 900})
    visit.page.goto(page.as_uri())
    assert shadows_where_nothing_scrolls(visit.page, ".wide") == []
    visit.page.emulate_media(media="print")
    assert backgrounds(visit.page, ".wide") == {"none"}


LINES_OF_NAMES = """
    [...document.querySelectorAll(".wide tbody th")].map((name) => {
      const range = document.createRange();
      range.selectNodeContents(name);
      const tops = [...range.getClientRects()].map(({ top }) => Math.round(top));
      return [name.innerText, new Set(tops).size];
    })
"""


def test_no_name_of_a_row_is_broken_within_a_word_on_a_phone(visit: Visit, page: Path) -> None:
    visit.page.set_viewport_size({"width": 390, "height": 900})
    visit.page.goto(page.as_uri())
    lines = dict(visit.page.evaluate(LINES_OF_NAMES))
    assert lines["entropy"] == 1
    assert lines["threshold"] == 1
    assert lines["deterministic-energy *"] == 2


def test_a_table_that_scrolls_keeps_the_names_of_its_rows(visit: Visit, page: Path) -> None:
    visit.page.set_viewport_size({"width": 240, "height": 900})
    visit.page.goto(page.as_uri())
    moved = visit.page.evaluate(NAMES_AFTER_SCROLLING)
    assert moved
    assert all(left == pytest.approx(0, abs=1) for left in moved)
