"""Several panes of one frame, playing, and what axe-core finds in every view."""

from __future__ import annotations

from pathlib import Path

import pytest
from axe_playwright_python.sync_playwright import Axe

from tests.gallery.browser import Visit
from tests.gallery.scenes import NAMES

# Styles are not asked for, which the page's policy forbids.
AXE = {"resultTypes": ["violations"], "preload": False}


def test_panes_share_frame_zoom_and_pointer(full_page: Path, visit: Visit) -> None:
    visit.open_frame(full_page, NAMES[1], "&layer=entropy&flags=1&threshold=0.5&probe=7,12")
    page = visit.page
    page.keyboard.press("P")
    page.keyboard.press("P")
    panes = page.locator(".pane:visible")
    assert panes.count() == 3
    shown = [pane.locator("select").input_value() for pane in panes.all()]
    assert shown[:2] == ["image", "prediction"]
    assert len({"entropy", *shown}) == 4
    page.keyboard.press("+")
    transforms = page.evaluate("[...document.querySelectorAll('#panes .world')].map((world) => world.style.transform)")
    assert len(set(transforms)) == 1
    crosses = page.evaluate("[...document.querySelectorAll('#panes .probe')].map((cross) => cross.style.transform)")
    assert len(set(crosses)) == 1
    # What is flagged is outlined in all of them.
    lines = "[...document.querySelectorAll('#panes .flags .edge-light')].filter((line) => line.closest('svg').style.display === '')"
    paths = page.evaluate(f"{lines}.map((line) => line.getAttribute('d'))")
    assert len(paths) == 4
    assert len(set(paths)) == 1
    # The pointer on one pane is a cross on the others, and tells the values below it.
    page.keyboard.press("f")
    box = panes.nth(1).bounding_box()
    page.mouse.move(box["x"] + box["width"] / 2 + 3, box["y"] + box["height"] / 2 + 3)
    visit.shown("#values dd[data-content='pixel']", "20, 15")
    at = page.evaluate(
        "[...document.querySelectorAll('.pane:not([hidden]) .probe')].map((cross) => cross.style.transform)"
    )
    assert len(set(at)) == 1
    assert at[0] != crosses[0]
    panes.nth(0).locator("select").select_option("other/entropy")
    visit.until("document.querySelector('.pane canvas').hidden === false")
    first, other = visit.pixels("#layer-left"), visit.pixels(".pane canvas")
    assert (first != other).any()
    visit.until("location.hash.includes('second=')")
    page.reload()
    page.wait_for_selector("html[data-ready]")
    assert page.locator(".pane:visible").first.locator("select").input_value() == "other/entropy"


def test_panes_of_two_models_show_a_layer_of_both_and_say_what_is_not_there(full_page: Path, visit: Visit) -> None:
    visit.open_frame(full_page, NAMES[1], "&layer=entropy&panes=2")
    (pane,) = visit.page.locator(".pane:visible").all()
    assert pane.locator("select").input_value() == "other/entropy"
    visit.page.keyboard.press("j")
    visit.open_frame(
        full_page, NAMES[5], "&layer=entropy&panes=2&second=other%2Fentropy"
    )  # which model 2 does not have
    visit.shown(".pane-message", "this frame has no entropy · model 2")
    # A box that is dragged on a pane lies on the frame.
    visit.page.keyboard.press("l")
    box = pane.bounding_box()
    visit.page.mouse.move(box["x"] + box["width"] / 2, box["y"] + box["height"] / 2)
    visit.page.mouse.down()
    visit.page.mouse.move(box["x"] + box["width"], box["y"] + box["height"])
    visit.page.mouse.up()
    visit.page.keyboard.type("Ana")
    visit.page.keyboard.press("Enter")
    visit.until("segunc.regions.shown().length === 1")
    assert visit.page.evaluate("segunc.regions.shown()[0].region.box") == [20, 15, 20, 15]


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_axe_finds_nothing_in_any_view(full_page: Path, visit: Visit, theme: str) -> None:
    fragments = (
        "",
        "view=run",
        "view=frame&frame=a%20dark&flags=1&threshold=0.4&region=0",
        "view=frame&frame=a%20dark&panes=4",
        "view=frame&wipe=1",
    )
    visit.page.emulate_media(color_scheme=theme)
    for width, height in ((1400, 900), (800, 600)):
        visit.page.set_viewport_size({"width": width, "height": height})
        for fragment in fragments:
            page = visit.open(full_page, fragment)
            page.wait_for_timeout(150)
            found = Axe().run(page, options=AXE)
            assert not found.violations_count, f"{fragment} at {width} x {height}: {found.generate_report()}"
    page.keyboard.press("?")
    assert not Axe().run(page, options=AXE).violations_count
