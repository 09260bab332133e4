"""The view of a frame in Chromium: layers, wipe, threshold, and values that are those on disk."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest

from segunc.maps.reader import MapsReader
from tests.gallery.browser import Visit
from tests.gallery.scenes import NAMES, OBJECT, SCORES, SIZE, Scene, write_page

WORST_FIRST = list(reversed(NAMES))


@pytest.mark.parametrize("name", NAMES)
def test_values_under_the_pointer_are_those_on_disk(name: str, full_page: Path, scene: Scene, visit: Visit) -> None:
    visit.open_frame(full_page, name)
    page = visit.page
    box = page.locator("#world").bounding_box()
    reader, other = MapsReader(scene.maps), MapsReader(scene.other)
    for x, y in ((0, 0), (SIZE[1] - 1, SIZE[0] - 1), (7, 12), (26, 21), (13, 29)):
        page.mouse.move(box["x"] + (x + 0.5) * box["width"] / SIZE[1], box["y"] + (y + 0.5) * box["height"] / SIZE[0])
        visit.valued()
        cells = dict(
            page.eval_on_selector_all(
                "#values dd", "cells => cells.map(c => [c.dataset.content, [c.textContent, c.dataset.value]])"
            )
        )
        assert cells["pixel"][0] == f"{x}, {y}"
        for prefix, maps in (("", reader), ("other/", other)):
            if name not in maps.frames:
                assert cells[f"{prefix}entropy"][0] == "–"
                continue
            for score in SCORES:
                value = maps.read(name, score)[y, x]
                assert np.float32(cells[f"{prefix}{score}"][1]) == value
                assert float(cells[f"{prefix}{score}"][0]) == pytest.approx(float(value), rel=1e-5)
            assert cells[f"{prefix}prediction"][0] == ("road", "car", "sky")[maps.prediction(name)[y, x]]
        if name in NAMES[:5]:
            assert cells["label/truth"][0] == ("ignored" if y == 0 else "road" if x < 20 else "sky")
        assert (cells["label/anomaly"][0] != "–") == (name in NAMES[:4])


def test_layers_are_painted_in_their_fixed_colours(full_page: Path, scene: Scene, visit: Visit) -> None:
    from segunc.gallery.colormap import colourise, display_range

    reader, name = MapsReader(scene.maps), NAMES[1]
    for score in ("entropy", "epistemic"):
        visit.open_frame(full_page, name, f"&layer={score}")
        expected = colourise(reader.read(name, score), display_range(score)).reshape(-1, 3).astype(int)
        painted = visit.pixels("#layer-left")[:, :3]
        # One step of 256 where the browser rounds in float64 what the tool rounds in float32.
        assert np.abs(painted - expected).max() <= 8
        assert (painted == expected).all(axis=1).mean() > 0.99
    visit.open_frame(full_page, name, "&layer=prediction")
    palette = np.array([(128, 64, 128), (0, 0, 142), (70, 130, 180)])
    assert (visit.pixels("#layer-left")[:, :3] == palette[reader.prediction(name).ravel()]).all()
    visit.open_frame(full_page, name, "&layer=error")
    wrong = reader.prediction(name) != np.where(np.arange(SIZE[1]) < 20, 0, 2)
    wrong[0] = False
    vermillion = (visit.pixels("#layer-left") == (213, 94, 0, 255)).all(axis=1)
    assert (vermillion == wrong.ravel()).all()
    visit.page.evaluate("segunc.state.set({opacity: 0.3})")
    assert visit.page.eval_on_selector("#layer-left", "c => c.style.opacity") == "0.3"
    visit.open_frame(full_page, NAMES[5])
    assert visit.page.is_disabled("input[value=error]")  # it has no label
    assert not visit.page.is_disabled("input[value=entropy]")


def inside_of(path: str) -> set[tuple[int, int]]:
    """The pixels that an outline of horizontal and vertical steps encloses: those with an odd number of vertical ones to the left."""
    walls: set[tuple[int, int]] = set()
    for x, top, bottom in re.findall(r"M(\d+) (\d+)V(\d+)", path):
        walls |= {(int(x), y) for y in range(int(top), int(bottom))}
    found = set()
    for y in range(SIZE[0]):
        odd = False
        for x in range(SIZE[1]):
            odd ^= (x, y) in walls
            if odd:
                found.add((x, y))
    return found


def test_threshold_shows_what_would_be_flagged(full_page: Path, scene: Scene, visit: Visit) -> None:
    visit.open_frame(full_page, NAMES[0], "&outline=1")
    page = visit.page
    values = MapsReader(scene.maps).read(NAMES[0], "entropy")
    threshold = float(values[12, 10])  # a value of the map itself: it is flagged too
    page.fill("#threshold-number", repr(threshold))
    visit.until("document.querySelector('#flags-left path') !== null")
    over = values >= threshold
    assert 10 < over.sum() < 110
    path = page.locator("#flags-left path").first.get_attribute("d")
    assert inside_of(path) == {(x, y) for y, x in np.argwhere(over)}
    label = np.zeros(SIZE, bool)
    label[OBJECT] = True
    normal = ~label
    normal[0] = False
    visit.shown("#flagged", "of the normal pixels")
    assert page.inner_text("#flagged") == (
        f"entropy ≥ {threshold:.6g}: {100 * over.mean():.2f} % of the frame, {100 * over[label].mean():.2f} % of the "
        f"labelled anomaly, {100 * over[normal].mean():.2f} % of the normal pixels"
    )
    path = page.locator("#outline path").first.get_attribute("d")
    assert sorted(path.replace("M", " M").split(" M")) == sorted(["", "5 8H17", "5 18H17", "5 8V18", "17 8V18"])


def test_wipe_between_two_layers_and_two_models(full_page: Path, scene: Scene, visit: Visit) -> None:
    visit.open_frame(full_page, NAMES[2])
    page = visit.page
    page.check("#wipe")
    assert page.input_value("#right") == "other/entropy"
    visit.shown(".side-name.right", "entropy · model 2")
    visit.until("!document.querySelector('#layer-right').hidden")
    left, right = visit.pixels("#layer-left"), visit.pixels("#layer-right")
    first, second = (MapsReader(folder).read(NAMES[2], "entropy") for folder in (scene.maps, scene.other))
    brighter = (second - first).ravel() > 0.05
    assert (left[brighter] != right[brighter]).any(axis=1).mean() > 0.95
    page.locator("#wipe-handle").focus()
    page.keyboard.press("End")
    assert page.get_attribute("#wipe-handle", "aria-valuenow") == "100"
    page.keyboard.press("Home")
    clip = page.eval_on_selector("#layer-left", "c => c.style.clipPath")
    assert clip.startswith("inset(0px 40px") or clip.startswith("inset(0 40px")
    page.select_option("#right", "prediction")
    visit.shown(".side-name.right", "prediction · model 1")


def test_zoom_and_pan_keep_the_point_under_the_pointer(full_page: Path, visit: Visit) -> None:
    visit.open_frame(full_page, NAMES[2])
    page = visit.page
    box = page.locator("#world").bounding_box()
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
    state = (
        "&layer=epistemic&score=epistemic&wipe=1&right=label%2Ftruth&split=0.25&opacity=0.5&zoom=3&x=0.4&y=0.6&flags=1"
    )
    visit.open_frame(full_page, NAMES[1], f"{state}&threshold=0.03&probe=12%2C7&nonsense=1&statistic=mode")
    found = visit.page.evaluate("segunc.state.get()")
    assert found["layer"] == found["score"] == "epistemic"
    assert (found["wipe"], found["right"], found["split"], found["opacity"]) == (True, "label/truth", 0.25, 0.5)
    assert (found["zoom"], found["x"], found["y"], found["threshold"]) == (3, 0.4, 0.6, 0.03)
    assert found["statistic"] == "mean"  # there is no other of that name
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
    monkeypatch.setattr("segunc.gallery.frame_files.LONGEST_SIDE", 20)
    index = write_page(scene.maps, tmp_path / "review", anomaly_labels=scene.anomaly)
    values = MapsReader(scene.maps).read(NAMES[0], "entropy")
    blocks = values.reshape(15, 2, 20, 2).mean((1, 3))
    visit.open_frame(index, NAMES[0], "&flags=1&score=entropy&threshold=0.6&probe=7,12")
    shown = float(visit.page.locator("#values dd[data-content='entropy']").get_attribute("data-value") or "nan")
    assert abs(shown - blocks[6, 3]) <= np.ptp(blocks) / 500
    visit.shown("#values dd[data-content='pixel']", "7, 12")
    text = visit.page.locator("#values dd[data-content='entropy']").inner_text()
    assert re.fullmatch(rf"{shown:.3f} ± 0.00\d", text)
    (region,) = visit.page.evaluate("segunc.regions.shown().map(({ region }) => region)")
    assert region["size"] == list(SIZE)
    left, top, width, height = region["box"]
    # The bright object, in blocks of two by two pixels that it fills.
    assert (left, top, left + width, top + height) == (6, 8, 16, 18)
    filled = np.zeros(SIZE[0] * SIZE[1], bool)
    for start, length in zip(region["mask"][::2], region["mask"][1::2], strict=True):
        filled[start : start + length] = True
    expected = np.kron(blocks >= 0.6, np.ones((2, 2), bool))
    assert (filled.reshape(SIZE) == expected).all()
    assert region["area"] == expected.sum()
    box = visit.page.evaluate(
        "(({ x, y, width, height }) => [x, y, width, height])(document.querySelector('#flags-left path').getBBox())"
    )
    assert box == [6, 8, 10, 10]
