"""The gallery on paper: whole cards, all of them, and nothing to press."""

import re
import zlib
from contextlib import suppress
from pathlib import Path

import cv2
import numpy as np

from segunc.gallery.review_page import run_id
from segunc.maps.reader import MapsReader
from tests.support.scenes import SIZE, write_maps, write_page, write_video_scene
from tests.support.visits import Visit, name_reviewer


def write_many_frames(folder: Path) -> Path:
    """Write the page of 60 frames, each with another picture."""
    images = folder / "images"
    images.mkdir()
    rng = np.random.default_rng(0)
    for number in range(60):
        picture = rng.integers(0, 255, (*SIZE, 3), dtype=np.uint8)
        assert cv2.imwrite(str(images / f"{number:02}.png"), picture)
    return write_page(write_maps(images, folder / "maps"), folder / "review")


def pictures_in(pdf: bytes) -> list[int]:
    """Return how many pictures each page of a PDF shows."""
    counts = []
    for part in re.findall(rb"stream\r?\n(.*?)\r?\nendstream", pdf, re.DOTALL):
        with suppress(zlib.error):
            content = zlib.decompress(part)
            if re.search(rb"\bBT\b", content):
                counts.append(len(re.findall(rb"/X\d+ Do", content)))
    return counts


def test_a_printed_gallery_holds_all_cards_whole(tmp_path: Path, visit: Visit) -> None:
    page = visit.open(write_many_frames(tmp_path), "moments=all")
    filled = page.locator("#cards li:not(:empty)").count()
    assert filled < 60, "cards out of sight are empty, or this would be no test"
    pictures = pictures_in(page.pdf())
    assert len(pictures) > 1
    # A card has two pictures. One that is parted would be shown on two pages.
    assert sum(pictures) == 2 * 60
    assert all(count % 2 == 0 for count in pictures)


def test_a_printed_gallery_has_no_controls(tmp_path: Path, visit: Visit) -> None:
    page = visit.open(write_many_frames(tmp_path))
    page.emulate_media(media="print")
    assert page.locator("button:visible, input:visible, select:visible").count() == 0
    assert page.is_visible("#count")
    assert page.locator("#cards .name").first.is_visible()


def test_a_printed_page_names_what_it_is_of(tmp_path: Path, visit: Visit) -> None:
    index = write_many_frames(tmp_path)
    visit.open_frame(index, "00")
    name_reviewer(visit, "Ana")
    visit.page.keyboard.press("a")
    write_page(tmp_path / "maps", tmp_path / "review", flag={"entropy": 0.7}, limit=50)
    page = visit.open(index, "view=gallery")
    while page.locator("#notices button").count():
        page.locator("#notices button").first.click()  # what is closed holds for the paper, too
    head = page.locator("#printed-head")
    for view in ("gallery", "alarms"):
        page.emulate_media(media="screen")
        page.evaluate(f"segunc.state.set({{ view: '{view}' }})")
        assert head.is_hidden()
        page.evaluate("dispatchEvent(new Event('beforeprint'))")
        page.emulate_media(media="print")
        words = head.inner_text()
        assert "Uncertainty review: maps" in words
        assert "ABNN" in words
        assert "score: entropy, flagged from 0.7 on\n" in words
        date = MapsReader(tmp_path / "maps").manifest["date"][:10]  # type: ignore[index]
        assert f"maps of {date}, run {run_id(MapsReader(tmp_path / 'maps'))}" in words
        assert "The page carries the worst 50 of 60 frames." in words
        assert "1 verdict was given at entropy ≥ 0.5 (here 0.7)." in words
    page.evaluate("segunc.state.set({ threshold: 0.6 })")
    page.evaluate("dispatchEvent(new Event('beforeprint'))")
    assert "flagged from 0.6 on (recorded: 0.7)" in head.inner_text()


def test_a_printed_gallery_says_how_many_cards_it_leaves_out(tmp_path: Path, visit: Visit) -> None:
    index = write_page(write_video_scene(tmp_path, 503), tmp_path / "review")
    page = visit.open(index, "order=source")
    page.evaluate("dispatchEvent(new Event('beforeprint'))")
    page.emulate_media(media="print")
    visit.shown("#unprinted", "3 of 503 cards are not printed.")
    assert page.locator("#cards li:visible").count() == 500
