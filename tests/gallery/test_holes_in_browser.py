"""Holes in what is flagged, on the page and in its saved picture."""

from pathlib import Path

import cv2
import numpy as np
import pytest

from tests.support.scenes import OBJECT, SIZE, write_maps, write_page
from tests.support.visits import Visit, inside_of

HOLE = (slice(11, 15), slice(8, 14))
CORNER = (slice(0, 9), slice(30, 40))
DASHED = "#stage .flags .edge-light.hole"
SOLID = "#stage .flags .edge-light:not(.hole)"


@pytest.fixture(scope="module")
def index(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A page of three frames: a region with a hole, a region without one, and one region that is
    flagged everywhere but in a corner.
    """
    folder = tmp_path_factory.mktemp("holes")
    images = folder / "images"
    images.mkdir()
    for name in ("ring", "whole", "most"):
        picture = np.full((*SIZE, 3), 20, np.uint8)
        picture[OBJECT] = 250
        if name == "ring":
            picture[HOLE] = 20
        if name == "most":
            picture[:] = 250
            picture[CORNER] = 20
        cv2.imwrite(str(images / f"{name}.png"), picture)
    return write_page(write_maps(images, folder / "maps"), folder / "review")


def open_flagged(visit: Visit, index: Path, name: str) -> None:
    visit.open_frame(index, name, "&score=entropy&flags=1&threshold=0.5")
    visit.until("document.querySelector('#stage .flags path') !== null")


def path_of(visit: Visit, selector: str) -> str:
    return visit.page.locator(selector).get_attribute("d") or ""


def pixels_of(*areas: tuple[slice, slice]) -> set[tuple[int, int]]:
    """Return the pixels (x, y) of rectangles."""
    pixels = np.zeros(SIZE, bool)
    for area in areas:
        pixels[area] = True
    return {(x, y) for y, x in np.argwhere(pixels)}


def test_the_line_around_a_hole_is_dashed(index: Path, visit: Visit) -> None:
    open_flagged(visit, index, "ring")
    assert inside_of(path_of(visit, SOLID)) == pixels_of(OBJECT)
    # One closed line, or the dashes would begin anew at each corner.
    assert path_of(visit, DASHED) == "M8 11H14V15H8V11Z"
    dashes = visit.page.evaluate(
        f"getComputedStyle(document.querySelector({DASHED!r})).strokeDasharray"
    )
    assert dashes != "none"


def test_a_region_without_a_hole_has_no_dashes(index: Path, visit: Visit) -> None:
    open_flagged(visit, index, "whole")
    assert inside_of(path_of(visit, SOLID)) == pixels_of(OBJECT)
    assert visit.page.locator(DASHED).count() == 0


def test_where_most_is_flagged_what_is_not_is_dashed_at_the_border(
    index: Path, visit: Visit
) -> None:
    open_flagged(visit, index, "most")
    assert path_of(visit, SOLID) == ""
    assert path_of(visit, DASHED) == "M30 0H40V9H30V0Z"


def test_the_threshold_says_what_dashes_mean(index: Path, visit: Visit) -> None:
    open_flagged(visit, index, "ring")
    visit.shown("#threshold-panel", "dashed: a hole, not flagged")


@pytest.mark.parametrize(("name", "expected"), [("ring", True), ("whole", False)])
def test_the_saved_picture_dashes_holes_and_says_so(
    name: str, expected: bool, index: Path, tmp_path: Path, visit: Visit
) -> None:
    open_flagged(visit, index, name)
    visit.page.evaluate(
        """() => {
          const { fillText } = CanvasRenderingContext2D.prototype;
          globalThis.written = [];
          CanvasRenderingContext2D.prototype.fillText = function (words, ...rest) {
            globalThis.written.push(words);
            return fillText.call(this, words, ...rest);
          };
        }"""
    )
    with visit.page.expect_download() as download:
        visit.page.keyboard.press("S")
    path = tmp_path / "view.png"
    download.value.save_as(path)
    assert ("dashed: a hole, not flagged" in visit.page.evaluate("written")) is expected
    # Along the upper edge of the hole, in pixels of the picture (640 for 40 columns).
    picture = cv2.imread(str(path)).astype(int)
    edge = picture[11 * 16 - 1 : 11 * 16 + 1, 8 * 16 + 4 : 14 * 16 - 4].max(axis=0)
    cyan = (edge[:, 0] > 150) & (edge[:, 2] < 100)
    changes = int(np.abs(np.diff(cyan.astype(int))).sum())
    assert (changes > 3) is expected
