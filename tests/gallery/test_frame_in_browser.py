"""The view of a frame in Chromium: layers, panes, threshold, values that are those on disk; and
what axe-core finds in every view.
"""

from pathlib import Path
from urllib.parse import urlencode

import numpy as np
import pytest
from axe_playwright_python.sync_playwright import Axe

from segunc.colours import colourise, display_range
from segunc.maps.encoding import threshold_text
from segunc.maps.reader import MapsReader
from tests.maps.fakes import CLASSES
from tests.support.scenes import NAMES, OBJECT, SCORES, SIZE, Scene, carried, write_page
from tests.support.visits import Visit, inside_of

CELLS = "cells => cells.map(({ dataset, textContent }) => [dataset.content, textContent])"
VALUES = "cells => cells.map(({ dataset }) => [dataset.content, dataset.value])"
PIXELS = ((0, 0), (SIZE[1] - 1, SIZE[0] - 1), (7, 12), (26, 21), (13, 29))


def point_at(visit: Visit, x: int, y: int) -> tuple[dict[str, str], dict[str, str]]:
    """Move the pointer to a pixel of the frame, and return the texts and the values below it."""
    box = visit.page.locator("#stage .world").bounding_box()
    assert box is not None
    across = (x + 0.5) / SIZE[1]
    down = (y + 0.5) / SIZE[0]
    visit.page.mouse.move(box["x"] + across * box["width"], box["y"] + down * box["height"])
    visit.valued()
    texts = visit.page.eval_on_selector_all("#values dd", CELLS)
    values = visit.page.eval_on_selector_all("#values dd", VALUES)
    return dict(texts), dict(values)


@pytest.mark.parametrize("name", NAMES)
def test_values_under_the_pointer_are_those_on_disk(
    name: str, full_page: Path, scene: Scene, visit: Visit
) -> None:
    visit.open_frame(full_page, name)
    reader = MapsReader(scene.maps)
    maps = {score: reader.read(name, score) for score in SCORES}
    for x, y in PIXELS:
        texts, values = point_at(visit, x, y)
        assert texts["pixel"] == f"{x}, {y}"
        for score, stored in maps.items():
            shown = np.float32(values[score])
            assert shown == pytest.approx(carried(stored, score)[y, x], rel=1e-6)
            number, _, half = texts[score].partition(" ± ")  # a map of one value says no half step
            half_step = float(half or 0)
            assert half_step <= np.ptp(stored) / 100
            assert float(number) == pytest.approx(stored[y, x], abs=2 * half_step, rel=1e-5)


@pytest.mark.parametrize("name", NAMES)
def test_classes_under_the_pointer_are_those_on_disk(
    name: str, full_page: Path, scene: Scene, visit: Visit
) -> None:
    visit.open_frame(full_page, name)
    prediction = MapsReader(scene.maps).prediction(name)
    for x, y in PIXELS:
        texts, _ = point_at(visit, x, y)
        assert texts["prediction"] == ("road", "car", "sky")[prediction[y, x]]
        assert (texts["label/anomaly"] != "–") == (name in NAMES[:4])
        if name in NAMES[:5]:
            truth = "road" if x < 20 else "sky"
            assert texts["label/truth"] == ("ignored" if y == 0 else truth)


@pytest.mark.parametrize("score", ["entropy", "epistemic"])
def test_layers_are_painted_in_their_fixed_colours(
    score: str, full_page: Path, scene: Scene, visit: Visit
) -> None:
    values = carried(MapsReader(scene.maps).read(NAMES[1], score), score)
    expected = colourise(values, display_range(score)).reshape(-1, 3).astype(int)
    visit.open_frame(full_page, NAMES[1], f"&layer={score}")
    painted = visit.pixels("#stage canvas")[:, :3]
    # One step of 256 where the browser rounds in float64 what the tool rounds in float32.
    assert np.abs(painted - expected).max() <= 8
    assert (painted == expected).all(axis=1).mean() > 0.99


def test_classes_are_painted_in_their_palette(full_page: Path, scene: Scene, visit: Visit) -> None:
    palette = np.array([(128, 64, 128), (0, 0, 142), (70, 130, 180)])
    prediction = MapsReader(scene.maps).prediction(NAMES[1])
    visit.open_frame(full_page, NAMES[1], "&layer=prediction")
    assert (visit.pixels("#stage canvas")[:, :3] == palette[prediction.ravel()]).all()


def test_errors_are_painted_in_vermillion(full_page: Path, scene: Scene, visit: Visit) -> None:
    truth = np.where(np.arange(SIZE[1]) < 20, 0, 2)
    wrong = MapsReader(scene.maps).prediction(NAMES[1]) != truth
    wrong[0] = False  # ignored
    visit.open_frame(full_page, NAMES[1], "&layer=error")
    painted = (visit.pixels("#stage canvas") == (213, 94, 0, 255)).all(axis=1)
    assert (painted == wrong.ravel()).all()


def test_a_frame_without_a_label_has_no_layer_of_errors(full_page: Path, visit: Visit) -> None:
    visit.open_frame(full_page, NAMES[5])
    assert visit.page.is_disabled("input[value=error]")
    assert not visit.page.is_disabled("input[value=entropy]")


def test_a_class_of_the_legend_is_shown_alone(full_page: Path, scene: Scene, visit: Visit) -> None:
    """Palettes of data sets have colours that are one to some eyes; each class of the legend is a
    button with its name.
    """
    visit.open_frame(full_page, NAMES[0], "&layer=prediction")
    visit.until("document.querySelectorAll('#legends button').length >= 2")
    before = visit.pixels("#stage canvas")
    codes = MapsReader(scene.maps).prediction(NAMES[0]).ravel()
    names = visit.page.locator("#legends button").all_inner_texts()
    assert names == [CLASSES[code] for code in np.unique(codes)]
    visit.page.locator("#legends button").first.focus()
    visit.page.keyboard.press("Enter")
    visit.until("segunc.state.get().only !== null")
    visit.until("document.querySelector('#legends [aria-pressed=true]') !== null")
    alone = visit.pixels("#stage canvas")
    chosen = codes == codes.min()
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
        f"entropy ≥ {threshold_text(threshold)}: {100 * over.mean():.2f} % of the frame, "
        f"{100 * over[label].mean():.2f} % of the labelled anomaly, "
        f"{100 * over[normal].mean():.2f} % of the normal pixels, "
        "the label ignores 3.33 % of the frame"
    )
    path = page.locator("#stage .outline path").first.get_attribute("d")
    assert inside_of(path) == {(x, y) for y, x in np.argwhere(label)}


def test_zoom_and_pan_keep_the_point_under_the_pointer(full_page: Path, visit: Visit) -> None:
    visit.open_frame(full_page, NAMES[2])
    page = visit.page
    box = page.locator("#stage .world").bounding_box()
    x = box["x"] + 12.5 / 40 * box["width"]
    y = box["y"] + 11.5 / 30 * box["height"]
    page.mouse.move(x, y)
    before = page.inner_text("[data-content=pixel]")
    page.mouse.wheel(0, -900)
    visit.until("segunc.state.get().zoom > 2")
    page.mouse.move(x + 0.01, y)
    assert page.inner_text("[data-content=pixel]") == before
    page.mouse.down()
    page.mouse.move(x + 60, y + 30, steps=4)
    assert page.inner_text("[data-content=pixel]") == before  # the picture came along
    page.mouse.up()
    page.keyboard.press("f")
    assert page.evaluate("segunc.state.get().zoom") == 1


VIEW = {
    "layer": "epistemic",
    "score": "epistemic",
    "panes": "2",
    "second": "label/truth",
    "opacity": 0.5,
    "zoom": 3,
    "x": 0.4,
    "y": 0.6,
    "threshold": 0.03,
}


def test_a_link_leads_to_the_same_view(full_page: Path, visit: Visit) -> None:
    unknown = {"nonsense": 1, "statistic": "mode"}
    fragment = urlencode(VIEW | {"flags": 1, "probe": "12,7"} | unknown)
    visit.open_frame(full_page, NAMES[1], f"&{fragment}")
    state = visit.page.evaluate("segunc.state.get()")
    assert {name: state[name] for name in VIEW} == VIEW
    assert state["statistic"] == "region"  # there is no other of that name
    assert visit.page.inner_text("[data-content=pixel]") == "12, 7"
    link = visit.page.evaluate("segunc.state.link()")
    visit.page.goto("about:blank")
    visit.page.goto(link)
    visit.page.wait_for_selector("html[data-ready]")
    assert visit.page.evaluate("segunc.state.get()") == state


def test_back_leads_from_the_gallery_to_the_frame(full_page: Path, visit: Visit) -> None:
    visit.open_frame(full_page, NAMES[1])
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
    cell = visit.page.locator("#values dd[data-content='entropy']")
    shown = float(cell.get_attribute("data-value") or "nan")
    assert abs(shown - blocks[6, 3]) <= np.ptp(blocks) / 500
    visit.shown("#values dd[data-content='entropy']", f"{shown:.3f} ± 0.00")
    (region,) = visit.page.evaluate("segunc.regions.shown().map(({ region }) => region)")
    # The bright object, in blocks of two by two pixels that it fills.
    assert region["size"] == list(SIZE)
    assert region["box"] == [6, 8, 10, 10]
    filled = np.zeros(SIZE[0] * SIZE[1], bool)
    for start, length in zip(region["mask"][::2], region["mask"][1::2], strict=True):
        filled[start : start + length] = True
    expected = np.kron(blocks >= 0.6, np.ones((2, 2), bool))
    assert (filled.reshape(SIZE) == expected).all()
    assert region["area"] == expected.sum()


# Styles are not asked for, which the page's policy forbids.
AXE = {"resultTypes": ["violations"], "preload": False}


def values_of(visit: Visit, selector: str, value: str) -> list[str]:
    """Return a value of each element that a selector finds; ``value`` is an expression of it."""
    elements = f"[...document.querySelectorAll('{selector}')]"
    values: list[str] = visit.page.evaluate(f"{elements}.map((element) => element.{value})")
    return values


@pytest.fixture
def four_panes(full_page: Path, visit: Visit) -> Visit:
    visit.open_frame(full_page, NAMES[1], "&layer=entropy&flags=1&threshold=0.5&probe=7,12")
    visit.page.keyboard.press("P")
    visit.page.keyboard.press("P")
    return visit


def test_four_panes_show_four_layers(four_panes: Visit) -> None:
    panes = four_panes.page.locator(".pane:visible")
    assert panes.count() == 3
    shown = [pane.locator("select").input_value() for pane in panes.all()]
    assert shown[:2] == ["image", "prediction"]
    assert len({"entropy", *shown}) == 4


def test_panes_share_zoom_probe_and_what_is_flagged(four_panes: Visit) -> None:
    four_panes.page.keyboard.press("+")
    assert len({*values_of(four_panes, "#panes .world", "style.transform")}) == 1
    assert len({*values_of(four_panes, "#panes .probe", "style.transform")}) == 1
    paths = values_of(four_panes, "#panes .flags .edge-light", "getAttribute('d')")
    assert len(paths) == 4
    assert len(set(paths)) == 1


def test_the_pointer_on_one_pane_is_a_cross_on_the_others(four_panes: Visit) -> None:
    page = four_panes.page
    pinned = values_of(four_panes, "#panes .probe", "style.transform")
    box = page.locator(".pane:visible").nth(1).bounding_box()
    assert box is not None
    page.mouse.move(box["x"] + box["width"] / 2 + 3, box["y"] + box["height"] / 2 + 3)
    four_panes.shown("#values dd[data-content='pixel']", "20, 15")
    crosses = values_of(four_panes, ".pane:not([hidden]) .probe", "style.transform")
    assert len(set(crosses)) == 1
    assert crosses[0] != pinned[0]


def test_a_pane_paints_the_layer_that_is_chosen_for_it(four_panes: Visit) -> None:
    choice = four_panes.page.locator(".pane:visible").nth(0).locator("select")
    choice.select_option("epistemic")
    four_panes.until("document.querySelector('.pane canvas').hidden === false")
    assert (four_panes.pixels("#stage canvas") != four_panes.pixels(".pane canvas")).any()


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


VIEWS = (
    "",
    "view=alarms",
    "view=run",
    "view=frame&frame=a%20dark&flags=1&threshold=0.4&region=0",
    "view=frame&frame=a%20dark&panes=4",
)


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_axe_finds_nothing_in_any_view(full_page: Path, visit: Visit, theme: str) -> None:
    visit.page.emulate_media(color_scheme=theme)
    for width, height in ((1400, 900), (960, 600), (390, 844)):
        visit.page.set_viewport_size({"width": width, "height": height})
        for fragment in VIEWS:
            page = visit.open(full_page, fragment)
            page.wait_for_timeout(150)
            result = Axe().run(page, options=AXE)
            where = f"{fragment} at {width} x {height}"
            assert not result.violations_count, f"{where}: {result.generate_report()}"
    page.keyboard.press("?")
    assert not Axe().run(page, options=AXE).violations_count


def test_a_threshold_is_shown_whole(scene: Scene, tmp_path: Path, visit: Visit) -> None:
    threshold = -2.60546875  # in six digits it would flag more
    score = "deterministic-max-logit"
    index = write_page(scene.maps, tmp_path / "review", scores=["all"], flag={score: threshold})
    visit.open_frame(index, NAMES[0], f"&score={score}")
    box = visit.page.locator("#threshold-number")
    assert box.input_value() == threshold_text(threshold)
    assert box.evaluate("box => box.scrollWidth <= box.clientWidth")
    box.fill("-3")
    visit.shown("#recorded", f"Back to the recorded {threshold_text(threshold)}")
