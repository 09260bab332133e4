"""The review page in Chromium: what a reviewer does in an afternoon, and that every value is the one on disk."""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path
from urllib.parse import quote

import numpy as np
import pytest

from segunc.maps.reader import MapsReader
from segunc.maps.store import encode_jpeg
from segunc.review.description import run_id
from segunc.review.page import write_review
from segunc.review.verdicts import read_verdicts, write_verdicts
from segunc.review.video import write_video
from tests.review.browser import Visit
from tests.review.scenes import NAMES, SCORES, SIZE, Scene, write_video_scene

pytest.importorskip("playwright.sync_api", reason="Playwright is not installed")
WORST_FIRST = list(reversed(NAMES))


def names(visit: Visit) -> list[str]:
    return visit.page.locator("#cards .name").all_inner_texts()


def open_frame(visit: Visit, index: Path, name: str, more: str = "") -> None:
    visit.open(index, f"view=frame&frame={quote(name, safe='')}{more}")
    visit.shown("#frame-name", name)
    visit.until("[...document.querySelectorAll('#values dd')].every((cell) => cell.textContent !== '…')")


def pixels(visit: Visit, canvas: str) -> list[list[int]]:
    """Colours of the pixels of a canvas as [red, green, blue, alpha], row by row."""
    data = visit.page.evaluate(
        f"(() => {{ const c = document.querySelector('{canvas}'); return c.width < 2 ? [] :"
        " [...c.getContext('2d').getImageData(0, 0, c.width, c.height).data]; })()"
    )
    return np.array(data).reshape(-1, 4).tolist()


def test_gallery_is_sorted_worst_first_by_any_statistic(full_page: Path, scene: Scene, visit: Visit) -> None:
    page = visit.open(full_page)
    assert names(visit) == WORST_FIRST
    page.select_option("#filter-order", "lowest")
    assert names(visit) == list(NAMES)
    reader = MapsReader(scene.maps)
    page.select_option("#filter-score", "epistemic")
    page.select_option("#filter-statistic", "p99")
    ranked = sorted(NAMES, key=lambda name: np.percentile(reader.read(name, "epistemic"), 99))
    assert names(visit) == ranked
    page.select_option("#filter-model", "difference")
    assert names(visit)[-1] == NAMES[5]  # the second model lacks it, so it has no difference
    other = MapsReader(scene.other)
    both = NAMES[:5]
    difference = {
        n: np.percentile(other.read(n, "epistemic"), 99) - np.percentile(reader.read(n, "epistemic"), 99) for n in both
    }
    assert names(visit)[:5] == sorted(both, key=lambda name: difference[name])
    assert "model=difference" in page.evaluate("segunc.state.link()")


def test_gallery_is_searched_and_filtered(full_page: Path, visit: Visit) -> None:
    page = visit.open(full_page)
    page.fill("#search", "SUB bright")
    assert names(visit) == ["sub/f bright"]
    visit.shown("#count", "1 of 6 frames")
    page.fill("#search", "")
    show = "#filter-show"
    page.select_option(show, "missed")
    visit.shown("#count", "Give a threshold")
    page.fill("#gallery-threshold", "0.6")
    assert names(visit) == [NAMES[2], NAMES[1]]  # of two objects one is enough to miss
    page.select_option(show, "found")
    assert names(visit) == [NAMES[0]]
    page.select_option(show, "normal")
    assert names(visit) == [NAMES[3]]
    page.select_option(show, "unlabelled")
    assert names(visit) == [NAMES[5], NAMES[4]]
    page.select_option(show, "flagged")
    assert names(visit) == [NAMES[5], NAMES[4]]
    page.select_option(show, "below")
    assert names(visit) == [NAMES[3], NAMES[2], NAMES[1], NAMES[0]]


def test_the_share_decides_what_is_found(full_page: Path, scene: Scene, visit: Visit) -> None:
    values = MapsReader(scene.maps).read(NAMES[0], "entropy")[8:18, 5:17]
    tenth = float(np.sort(values.ravel())[::-1][11])  # twelve of its 120 pixels reach it
    page = visit.open(full_page, f"show=found&threshold={tenth!r}")
    assert names(visit) == []
    page.select_option("#filter-share", "tenth")
    assert names(visit) == [NAMES[0]]
    page.fill("#gallery-threshold", repr(float(np.nextafter(np.float32(tenth), np.float32(1)))))
    assert names(visit) == []


@pytest.mark.parametrize("name", NAMES)
def test_values_under_the_pointer_are_those_on_disk(name: str, full_page: Path, scene: Scene, visit: Visit) -> None:
    open_frame(visit, full_page, name)
    page = visit.page
    box = page.locator("#world").bounding_box()
    assert box is not None
    reader, other = MapsReader(scene.maps), MapsReader(scene.other)
    for x, y in ((0, 0), (SIZE[1] - 1, SIZE[0] - 1), (7, 12), (26, 21), (13, 29)):
        page.mouse.move(box["x"] + (x + 0.5) * box["width"] / SIZE[1], box["y"] + (y + 0.5) * box["height"] / SIZE[0])
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
            assert cells["truth"][0] == ("ignored" if y == 0 else "road" if x < 20 else "sky")
        assert (cells["anomaly"][0] != "–") == (name in NAMES[:4])


def test_layers_are_painted_in_their_fixed_colours(full_page: Path, scene: Scene, visit: Visit) -> None:
    from segunc.review.colormap import colourise, display_range

    reader, name = MapsReader(scene.maps), NAMES[1]
    for score in ("entropy", "epistemic"):
        open_frame(visit, full_page, name, f"&layer={score}")
        expected = colourise(reader.read(name, score), display_range(score)).reshape(-1, 3).astype(int)
        painted = np.array(pixels(visit, "#layer-left"))[:, :3]
        # One step of 256 where the browser rounds in float64 what the tool rounds in float32.
        assert np.abs(painted - expected).max() <= 8
        assert (painted == expected).all(axis=1).mean() > 0.99
    open_frame(visit, full_page, name, "&layer=prediction")
    palette = np.array([(128, 64, 128), (0, 0, 142), (70, 130, 180)])
    assert (np.array(pixels(visit, "#layer-left"))[:, :3] == palette[reader.prediction(name).ravel()]).all()
    open_frame(visit, full_page, name, "&layer=error")
    wrong = reader.prediction(name) != np.where(np.arange(SIZE[1]) < 20, 0, 2)
    wrong[0] = False
    vermillion = (np.array(pixels(visit, "#layer-left")) == (213, 94, 0, 255)).all(axis=1)
    assert (vermillion == wrong.ravel()).all()
    visit.page.evaluate("segunc.state.set({opacity: 0.3})")
    assert visit.page.eval_on_selector("#layer-left", "c => c.style.opacity") == "0.3"
    open_frame(visit, full_page, NAMES[5])
    assert visit.page.is_disabled("input[value=error]")  # it has no label
    assert not visit.page.is_disabled("input[value=entropy]")


def test_threshold_shows_what_would_be_flagged(full_page: Path, scene: Scene, visit: Visit) -> None:
    open_frame(visit, full_page, NAMES[0], "&outline=1")
    page = visit.page
    values = MapsReader(scene.maps).read(NAMES[0], "entropy")
    threshold = float(values[12, 10])  # a value of the map itself: it is flagged too
    page.fill("#threshold-number", repr(threshold))
    visit.until("document.querySelector('#flags-left').width > 1")
    over = values >= threshold
    assert 10 < over.sum() < 110
    flagged = np.array(pixels(visit, "#flags-left"))[:, 3] > 0
    assert (flagged == over.ravel()).all()
    label = np.zeros(SIZE, bool)
    label[8:18, 5:17] = True
    normal = ~label
    normal[0] = False
    visit.shown("#flagged", "of the normal pixels")
    assert page.inner_text("#flagged") == (
        f"entropy ≥ {threshold:.6g}: {100 * over.mean():.2f} % of the frame, {100 * over[label].mean():.2f} % of the "
        f"labelled anomaly, {100 * over[normal].mean():.2f} % of the normal pixels"
    )
    path = page.locator("#outline path").first.get_attribute("d")
    assert path is not None
    assert sorted(path.replace("M", " M").split(" M")) == sorted(["", "5 8H17", "5 18H17", "5 8V18", "17 8V18"])


def test_wipe_between_two_layers_and_two_models(full_page: Path, scene: Scene, visit: Visit) -> None:
    open_frame(visit, full_page, NAMES[2])
    page = visit.page
    page.check("#wipe")
    assert page.input_value("#right") == "other/entropy"
    visit.shown(".side-name.right", "entropy · second model")
    visit.until("!document.querySelector('#layer-right').hidden")
    left, right = np.array(pixels(visit, "#layer-left")), np.array(pixels(visit, "#layer-right"))
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
    visit.shown(".side-name.right", "prediction · first model")


def test_zoom_and_pan_keep_the_point_under_the_pointer(full_page: Path, visit: Visit) -> None:
    open_frame(visit, full_page, NAMES[2])
    page = visit.page
    box = page.locator("#world").bounding_box()
    assert box is not None
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


def test_every_step_has_a_key(full_page: Path, visit: Visit) -> None:
    page = visit.open(full_page)
    page.keyboard.press("?")
    assert page.locator("#help[open] dt").count() > 25
    page.keyboard.press("Escape")
    page.locator("#cards a").first.focus()
    page.keyboard.press("ArrowRight")
    page.keyboard.press("Enter")
    visit.shown("#frame-name", WORST_FIRST[1])
    page.keyboard.press("j")
    visit.shown("#frame-name", WORST_FIRST[2])
    page.keyboard.press("k")
    page.keyboard.press(".")
    visit.shown("#frame-name", WORST_FIRST[0])
    page.keyboard.press("1")
    assert page.is_checked("input[value=prediction]")
    page.keyboard.press("Shift+Digit2")
    assert page.is_checked("#wipe")
    for key, field in (("o", "outline"), ("t", "flags"), ("w", "wipe")):
        before = page.evaluate(f"segunc.state.get().{field}")
        page.keyboard.press(key)
        assert page.evaluate(f"segunc.state.get().{field}") is not before
    page.keyboard.press("p")
    page.keyboard.press("ArrowDown")
    page.keyboard.press("Shift+ArrowLeft")
    assert page.evaluate("segunc.state.get().probe") == f"{SIZE[1] // 2 - 10},{SIZE[0] // 2 + 1}"
    visit.shown("#live", f"{SIZE[1] // 2 - 10}, {SIZE[0] // 2 + 1}: prediction")
    page.keyboard.press("e")
    page.keyboard.type("gm?")  # letters belong to the note while it is written
    assert page.input_value("#note") == "gm?"
    page.keyboard.press("Escape")
    page.keyboard.press("i")
    assert page.is_visible("#run-view")
    page.keyboard.press("g")
    assert page.locator("#cards a:focus .name").inner_text() == WORST_FIRST[0]
    page.keyboard.press("/")
    assert page.evaluate("document.activeElement.id") == "search"
    page.keyboard.press("Escape")
    page.keyboard.press("d")
    assert page.get_attribute("html", "data-theme") == "dark"


def test_a_link_leads_to_the_same_view(full_page: Path, visit: Visit) -> None:
    state = "&layer=epistemic&score=epistemic&wipe=1&right=truth&split=0.25&opacity=0.5&zoom=3&x=0.4&y=0.6&flags=1"
    open_frame(visit, full_page, NAMES[1], f"{state}&threshold=0.03&probe=12%2C7&nonsense=1&statistic=mode")
    found = visit.page.evaluate("segunc.state.get()")
    assert found["layer"] == found["score"] == "epistemic"
    assert (found["wipe"], found["right"], found["split"], found["opacity"]) == (True, "truth", 0.25, 0.5)
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


def test_verdicts_are_kept_exported_and_read_back(scene: Scene, tmp_path: Path, visit: Visit) -> None:
    index = write_review(scene.maps, tmp_path / "review", anomaly_labels=scene.anomaly)
    open_frame(visit, index, NAMES[1])
    page = visit.page
    page.keyboard.press("m")
    page.fill("#note", 'a dark "box",\nseen late')
    page.keyboard.press("Escape")
    page.keyboard.press("y")  # the next without a verdict, in the gallery's order
    visit.shown("#frame-name", NAMES[0])
    page.keyboard.press("a")
    page.keyboard.press("u")
    page.keyboard.press("u")  # taken back
    page.keyboard.press("s")
    visit.shown("#progress", "2 of 6 judged")
    page.reload()
    visit.shown("#progress", "2 of 6 judged")
    page.keyboard.press("g")
    page.select_option("#filter-verdict", "missed")
    assert names(visit) == [NAMES[1]]
    run = run_id(MapsReader(scene.maps))
    files = {}
    for button, ending in (("#export-json", "json"), ("#export-csv", "csv")):
        with page.expect_download() as download:
            page.click(button)
        files[ending] = tmp_path / f"verdicts.{ending}"
        download.value.save_as(files[ending])
        read = {verdict.frame: verdict for verdict in read_verdicts(files[ending], run, NAMES)}
        assert {name: verdict.verdict for name, verdict in read.items()} == {
            NAMES[0]: "false-alarm",
            NAMES[1]: "missed",
        }
        assert read[NAMES[1]].note == 'a dark "box",\nseen late'
    rows = list(csv.reader(io.StringIO(files["csv"].read_bytes().decode(), newline="")))
    assert rows[0] == ["run", "frame", "verdict", "note", "time"]
    # Another reviewer's browser knows nothing, until the file is imported into the page or laid beside it.
    second = Visit(visit.page.context.browser)  # type: ignore[arg-type]
    second.open(index)
    second.shown("#progress", "0 of 6 judged")
    second.page.set_input_files("#import-file", files["json"])
    second.shown("#notices", "2 verdicts taken")
    second.shown("#progress", "2 of 6 judged")
    strange = json.loads(files["json"].read_text()) | {"run": "0123456789abcdef"}
    (tmp_path / "strange.json").write_text(json.dumps(strange))
    second.page.set_input_files("#import-file", tmp_path / "strange.json")
    second.shown("#notices", "another run")
    second.close()
    write_verdicts(index.parent, run, read_verdicts(files["json"], run, NAMES))
    third = Visit(visit.page.context.browser)  # type: ignore[arg-type]
    third.open(index)
    third.shown("#progress", "2 of 6 judged")
    third.close()


def test_timeline_plays_scrubs_and_jumps_to_peaks(tmp_path: Path, visit: Visit) -> None:
    index = write_review(write_video_scene(tmp_path), tmp_path / "review")
    open_frame(visit, index, "000000")
    page = visit.page
    assert page.evaluate("segunc.timeline.peaks()") == [10, 30]
    page.keyboard.press("]")
    visit.shown("#frame-name", "000010")
    visit.shown("#timeline-label", "0:00.50")
    page.keyboard.press("]")
    visit.shown("#frame-name", "000030")
    page.keyboard.press("[")
    visit.shown("#frame-name", "000010")
    chart = page.locator("#chart").bounding_box()
    assert chart is not None
    page.mouse.click(chart["x"] + 6 + (chart["width"] - 12) * 20 / 39, chart["y"] + 20)
    visit.shown("#frame-name", "000020")
    page.locator("#chart").focus()
    page.keyboard.press("ArrowRight")
    assert page.get_attribute("#chart", "aria-valuenow") == "22"
    page.locator("#frame-name").click()
    page.evaluate("document.activeElement.blur()")
    page.keyboard.press("Space")
    visit.until("Number(segunc.state.get().frame) >= 26")
    page.keyboard.press("Space")
    stopped = page.evaluate("segunc.state.get().frame")
    page.wait_for_timeout(200)
    assert page.evaluate("segunc.state.get().frame") == stopped
    page.keyboard.press("End")  # belongs to nobody here
    assert page.evaluate("segunc.state.get().frame") == stopped
    assert page.get_attribute("#play", "title") is not None
    assert "mean" in page.inner_text("#timeline-legend")


def test_the_overlay_video_follows_the_timeline(tmp_path: Path, visit: Visit) -> None:
    maps = write_video_scene(tmp_path)
    pictures = [tmp_path / f"{index:06d}.jpg" for index in range(40)]
    for index, path in enumerate(pictures):
        path.write_bytes(encode_jpeg(np.full((48, 64, 3), 5 * index, np.uint8)))
    write_video(pictures, maps / "overlay.webm", 20.0)
    page = visit.open(write_review(maps, tmp_path / "review"), "view=video&frame=000012")
    visit.until("document.querySelector('video').readyState >= 2 && !document.querySelector('video').seeking")
    assert page.evaluate("document.querySelector('video').currentTime") == pytest.approx(12.5 / 20)
    page.keyboard.press("]")
    visit.until("Math.abs(document.querySelector('video').currentTime - 30.5 / 20) < 0.01")
    visit.until("document.querySelector('video').readyState >= 2 && !document.querySelector('video').seeking")
    page.click("#open-frame")
    visit.shown("#frame-name", "000030")
    # Chromium ends its request for a video when it has what it needs, which is no failure of the page.
    visit.complaints = [text for text in visit.complaints if "overlay.webm: net::ERR_ABORTED" not in text]


def test_landmarks_names_and_focus_for_a_screen_reader(full_page: Path, visit: Visit) -> None:
    page = visit.open(full_page)
    for landmark in ("banner", "main", "navigation", "contentinfo"):
        assert page.get_by_role(landmark).count() == 1, landmark
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.id") == "skip"
    page.keyboard.press("Enter")
    assert page.locator("#cards a:focus .name").inner_text() == WORST_FIRST[0]
    first = page.locator("#cards li").first
    assert (first.get_attribute("aria-posinset"), first.get_attribute("aria-setsize")) == ("1", "6")
    assert all(page.locator("#cards img").evaluate_all("images => images.map(i => i.alt)"))
    page.keyboard.press("Enter")
    visit.shown("#frame-name", WORST_FIRST[0])
    nameless = page.eval_on_selector_all(
        "button, input, select, textarea, [role=slider]",
        "all => all.filter(e => !e.labels?.length && !e.getAttribute('aria-label') && !e.textContent.trim())"
        ".map(e => e.outerHTML)",
    )
    assert nameless == []
