"""The view of a frame in Chromium: layers, panes, threshold, values that are those on disk; and
what axe-core finds in every view.
"""

from pathlib import Path

import numpy as np
import pytest
from axe_playwright_python.sync_playwright import Axe

from segunc.gallery.colours import colourise, display_range
from segunc.maps.reader import MapsReader
from tests.maps.fakes import CLASSES
from tests.support.scenes import NAMES, OBJECT, SCORES, SIZE, Scene, carried, write_page
from tests.support.visits import Visit, inside_of


@pytest.mark.parametrize("name", NAMES)
def test_values_under_the_pointer_are_those_on_disk(
    name: str, full_page: Path, scene: Scene, visit: Visit
) -> None:
    visit.open_frame(full_page, name)
    page = visit.page
    box = page.locator("#stage .world").bounding_box()
    reader = MapsReader(scene.maps)
    for x, y in ((0, 0), (SIZE[1] - 1, SIZE[0] - 1), (7, 12), (26, 21), (13, 29)):
        page.mouse.move(
            box["x"] + (x + 0.5) * box["width"] / SIZE[1],
            box["y"] + (y + 0.5) * box["height"] / SIZE[0],
        )
        visit.valued()
        cells = dict(
            page.eval_on_selector_all(
                "#values dd",
                "cells => cells.map(c => [c.dataset.content, [c.textContent, c.dataset.value]])",
            )
        )
        assert cells["pixel"][0] == f"{x}, {y}"
        for score in SCORES:
            text, value = cells[score]
            values = reader.read(name, score)
            assert np.float32(value) == pytest.approx(carried(values, score)[y, x], rel=1e-6)
            shown, _, half = text.partition(" ± ")  # a map of one value says no half step
            assert float(half or 0) <= np.ptp(values) / 100
            assert float(shown) == pytest.approx(values[y, x], abs=2 * float(half or 0), rel=1e-5)
        assert cells["prediction"][0] == ("road", "car", "sky")[reader.prediction(name)[y, x]]
        if name in NAMES[:5]:
            assert cells["label/truth"][0] == ("ignored" if y == 0 else "road" if x < 20 else "sky")
        assert (cells["label/anomaly"][0] != "–") == (name in NAMES[:4])


def test_layers_are_painted_in_their_fixed_colours(
    full_page: Path, scene: Scene, visit: Visit
) -> None:
    reader, name = MapsReader(scene.maps), NAMES[1]
    for score in ("entropy", "epistemic"):
        visit.open_frame(full_page, name, f"&layer={score}")
        expected = (
            colourise(carried(reader.read(name, score), score), display_range(score))
            .reshape(-1, 3)
            .astype(int)
        )
        painted = visit.pixels("#stage canvas")[:, :3]
        # One step of 256 where the browser rounds in float64 what the tool rounds in float32.
        assert np.abs(painted - expected).max() <= 8
        assert (painted == expected).all(axis=1).mean() > 0.99
    visit.open_frame(full_page, name, "&layer=prediction")
    palette = np.array([(128, 64, 128), (0, 0, 142), (70, 130, 180)])
    assert (visit.pixels("#stage canvas")[:, :3] == palette[reader.prediction(name).ravel()]).all()
    visit.open_frame(full_page, name, "&layer=error")
    wrong = reader.prediction(name) != np.where(np.arange(SIZE[1]) < 20, 0, 2)
    wrong[0] = False
    assert (
        (visit.pixels("#stage canvas") == (213, 94, 0, 255)).all(axis=1) == wrong.ravel()
    ).all()  # vermillion
    visit.open_frame(full_page, NAMES[5])
    assert visit.page.is_disabled("input[value=error]")  # it has no label
    assert not visit.page.is_disabled("input[value=entropy]")


def test_a_class_of_the_legend_is_shown_alone(full_page: Path, scene: Scene, visit: Visit) -> None:
    """Palettes of data sets have colours that are one to some eyes; each class of the legend is a
    button with its name.
    """
    visit.open_frame(full_page, NAMES[0], "&layer=prediction")
    visit.until("document.querySelectorAll('#legends button').length >= 2")
    before, codes = (
        visit.pixels("#stage canvas"),
        MapsReader(scene.maps).prediction(NAMES[0]).ravel(),
    )
    names = visit.page.locator("#legends button").all_inner_texts()
    assert names == [CLASSES[code] for code in np.unique(codes)]
    visit.page.locator("#legends button").first.focus()
    visit.page.keyboard.press("Enter")
    visit.until(
        "segunc.state.get().only !== null && document.querySelector('#legends [aria-pressed=true]') !== null"
    )
    alone, chosen = visit.pixels("#stage canvas"), codes == codes.min()
    assert (alone[chosen] == before[chosen]).all()
    assert len(np.unique(alone[~chosen], axis=0)) == 1
    assert visit.page.evaluate("document.activeElement.textContent") == names[0]
    visit.page.keyboard.press("Enter")
    visit.until("segunc.state.get().only === null")
    assert (visit.pixels("#stage canvas") == before).all()


def test_threshold_shows_what_would_be_flagged(full_page: Path, scene: Scene, visit: Visit) -> None:
    visit.open_frame(full_page, NAMES[0], "&outline=1")
    page = visit.page
    values = carried(MapsReader(scene.maps).read(NAMES[0], "entropy"))
    threshold = float(values[12, 10])  # a value of the map itself: it is flagged too
    page.fill("#threshold-number", repr(threshold))
    visit.until("document.querySelector('#stage .flags path') !== null")
    over = values >= threshold
    assert 10 < over.sum() < 110
    path = page.locator("#stage .flags path").first.get_attribute("d")
    assert inside_of(path) == {(x, y) for y, x in np.argwhere(over)}
    label = np.zeros(SIZE, bool)
    label[OBJECT] = True
    normal = ~label & (np.arange(SIZE[0])[:, None] > 0)
    visit.shown("#flagged", "of the normal pixels")
    assert page.inner_text("#flagged") == (
        f"entropy ≥ {threshold:.6g}: {100 * over.mean():.2f} % of the frame, {100 * over[label].mean():.2f} % of the "
        f"labelled anomaly, {100 * over[normal].mean():.2f} % of the normal pixels"
    )
    path = page.locator("#stage .outline path").first.get_attribute("d")
    assert inside_of(path) == {(x, y) for y, x in np.argwhere(label)}


def test_zoom_and_pan_keep_the_point_under_the_pointer(full_page: Path, visit: Visit) -> None:
    visit.open_frame(full_page, NAMES[2])
    page = visit.page
    box = page.locator("#stage .world").bounding_box()
    at = (box["x"] + 12.5 / 40 * box["width"], box["y"] + 11.5 / 30 * box["height"])
    page.mouse.move(*at)
    before = page.inner_text("[data-content=pixel]")
    page.mouse.wheel(0, -900)
    visit.until("segunc.state.get().zoom > 2")
    page.mouse.move(at[0] + 0.01, at[1])
    assert page.inner_text("[data-content=pixel]") == before
    page.mouse.down()
    page.mouse.move(at[0] + 60, at[1] + 30, steps=4)
    assert page.inner_text("[data-content=pixel]") == before  # the picture came along
    page.mouse.up()
    page.keyboard.press("f")
    assert page.evaluate("segunc.state.get().zoom") == 1


def test_a_link_leads_to_the_same_view(full_page: Path, visit: Visit) -> None:
    state = "&layer=epistemic&score=epistemic&panes=2&second=label%2Ftruth&opacity=0.5&zoom=3&x=0.4&y=0.6&flags=1"
    visit.open_frame(
        full_page, NAMES[1], f"{state}&threshold=0.03&probe=12%2C7&nonsense=1&statistic=mode"
    )
    found = visit.page.evaluate("segunc.state.get()")
    keys = ("layer", "score", "panes", "second", "opacity", "zoom", "x", "y", "threshold")
    assert [found[k] for k in keys] == [
        "epistemic",
        "epistemic",
        "2",
        "label/truth",
        0.5,
        3,
        0.4,
        0.6,
        0.03,
    ]
    assert found["statistic"] == "region"  # there is no other of that name
    assert visit.page.inner_text("[data-content=pixel]") == "12, 7"
    link = visit.page.evaluate("segunc.state.link()")
    visit.page.goto("about:blank")
    visit.page.goto(link)
    visit.page.wait_for_selector("html[data-ready]")
    assert visit.page.evaluate("segunc.state.get()") == found
    visit.page.keyboard.press("g")
    visit.page.go_back()
    visit.shown("#frame-name", NAMES[1])


def test_condensed_maps_are_shown_in_pixels_of_the_frame(
    scene: Scene, tmp_path: Path, visit: Visit, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("segunc.gallery.review_page.LONGEST_SIDE", 20)
    index = write_page(scene.maps, tmp_path / "review", anomaly_labels=scene.anomaly)
    values = MapsReader(scene.maps).read(NAMES[0], "entropy")
    blocks = values.reshape(15, 2, 20, 2).mean((1, 3))
    visit.open_frame(index, NAMES[0], "&flags=1&score=entropy&threshold=0.6&probe=7,12")
    shown = float(
        visit.page.locator("#values dd[data-content='entropy']").get_attribute("data-value")
        or "nan"
    )
    assert abs(shown - blocks[6, 3]) <= np.ptp(blocks) / 500
    visit.shown("#values dd[data-content='entropy']", f"{shown:.3f} ± 0.00")
    (region,) = visit.page.evaluate("segunc.regions.shown().map(({ region }) => region)")
    # The bright object, in blocks of two by two pixels that it fills.
    assert (region["size"], region["box"]) == (list(SIZE), [6, 8, 10, 10])
    filled = np.zeros(SIZE[0] * SIZE[1], bool)
    for start, length in zip(region["mask"][::2], region["mask"][1::2], strict=True):
        filled[start : start + length] = True
    expected = np.kron(blocks >= 0.6, np.ones((2, 2), bool))
    assert (filled.reshape(SIZE) == expected).all()
    assert region["area"] == expected.sum()


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
    transforms = page.evaluate(
        "[...document.querySelectorAll('#panes .world')].map((world) => world.style.transform)"
    )
    assert len(set(transforms)) == 1
    crosses = page.evaluate(
        "[...document.querySelectorAll('#panes .probe')].map((cross) => cross.style.transform)"
    )
    assert len(set(crosses)) == 1
    # What is flagged is outlined in all of them.
    paths = page.evaluate(
        "[...document.querySelectorAll('#panes .flags .edge-light')].map((line) => line.getAttribute('d'))"
    )
    assert (len(paths), len(set(paths))) == (4, 1)
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
    panes.nth(0).locator("select").select_option("epistemic")
    visit.until("document.querySelector('.pane canvas').hidden === false")
    first, other = visit.pixels("#stage canvas"), visit.pixels(".pane canvas")
    assert (first != other).any()


def test_a_second_pane_shows_another_layer_and_says_what_is_not_there(
    full_page: Path, visit: Visit
) -> None:
    visit.open_frame(full_page, NAMES[1], "&layer=entropy&panes=2")
    (pane,) = visit.page.locator(".pane:visible").all()
    assert pane.locator("select").input_value() == "image"
    visit.open_frame(full_page, NAMES[5], "&layer=entropy&panes=2&second=label%2Ftruth&flags=0")
    visit.shown(".pane .pane-message", "this frame has no ground truth")
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
    frame = "view=frame&frame=a%20dark"
    visit.page.emulate_media(color_scheme=theme)
    for width, height in ((1400, 900), (960, 600), (390, 844)):
        visit.page.set_viewport_size({"width": width, "height": height})
        for fragment in (
            "",
            "view=alarms",
            "view=run",
            f"{frame}&flags=1&threshold=0.4&region=0",
            f"{frame}&panes=4",
        ):
            page = visit.open(full_page, fragment)
            page.wait_for_timeout(150)
            found = Axe().run(page, options=AXE)
            assert not found.violations_count, (
                f"{fragment} at {width} x {height}: {found.generate_report()}"
            )
    page.keyboard.press("?")
    assert not Axe().run(page, options=AXE).violations_count
