"""A reviewer's afternoon in Chromium: frames and regions judged by keyboard, undone, boxed,
exported, and compared with another's.
"""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from segunc import review
from segunc.decisions.flags import Threshold
from segunc.gallery.review_page import run_id, write_review
from segunc.maps.labelled import LabelSources
from segunc.maps.reader import MapsReader
from segunc.maps.verdicts import read_verdicts
from tests.support.scenes import (
    NAMES,
    SIZE,
    Scene,
    Widened,
    write_maps,
    write_page,
    write_video_scene,
)
from tests.support.visits import Visit, name_reviewer


def export(visit: Visit, ending: str, path: Path) -> Path:
    with visit.page.expect_download() as download:
        visit.page.click(f"#export-{ending}")
    download.value.save_as(path)
    return path


def test_sixty_frames_by_keyboard_alone(tmp_path: Path, visit: Visit) -> None:
    maps = write_video_scene(tmp_path, 60)
    index = write_page(maps, tmp_path / "review")
    reader = MapsReader(maps)
    page = visit.open(index, "view=frame&frame=000000&order=source")
    page.keyboard.press("q")  # on to the next after each
    page.keyboard.press("h")  # asks who judges
    page.keyboard.type("Ana")
    page.keyboard.press("Enter")
    for place, key in enumerate(("hamsu" * 12)[1:], start=1):
        visit.shown("#frame-name", f"{place:06d}")
        page.keyboard.press(key)
    visit.shown("#progress", "60 of 60 judged")
    visit.shown("#live", "every frame of the gallery has a verdict")
    page.keyboard.press("Control+z")
    visit.shown("#live", "Undone: unsure on frame 000059")
    assert not page.locator("#live.unseen").count()  # for everybody to read
    visit.shown("#progress", "59 of 60 judged")
    page.keyboard.press("Control+Shift+Z")
    visit.shown("#progress", "60 of 60 judged")
    page.reload()
    visit.shown("#progress", "60 of 60 judged")
    mine = export(visit, "json", tmp_path / "ana.json")
    verdicts = read_verdicts(mine, run_id(reader), reader.frames)
    first = [verdict.verdict for verdict in verdicts[:5]]
    assert first == ["nothing-wrong", "true-alarm", "missed", "false-alarm", "unsure"]
    # A second reviewer, who says of every fifth frame what the first did not.
    second = Visit(visit.page.context.browser)  # type: ignore[arg-type]
    second.open(index, "order=source")
    name_reviewer(second, "=Ben")
    second.page.locator("#cards a").first.focus()
    for place, key in enumerate("aamsu" * 12, start=1):  # on the cards of the gallery
        second.page.keyboard.press(key)
        second.shown("#progress", f"{place} of 60 judged")
        second.page.keyboard.press("ArrowRight")
    theirs = export(second, "json", tmp_path / "ben.json")
    second.page.set_input_files("#import-file", mine)
    second.shown("#notices", "60 verdicts taken. Reviewers disagree on 12 frames")
    second.shown("#progress", "60 of 60 judged")
    second.page.select_option("#filter-verdict", "disagree")
    second.shown("#count", "12 of 60 frames")
    badge = second.page.locator("#cards .badge").first.inner_text()
    assert badge in ("Ana: nothing wrong", "=Ben: true alarm")
    second.close()
    merged = review(maps=maps, verdicts=[mine, theirs], out=index.parent)
    assert "60 frames judged by both: 80.0% agree, Cohen's kappa 0.75" in merged.verdicts


def test_in_a_small_window_the_picture_wins(full_page: Path, visit: Visit) -> None:
    page = visit.page
    width = 800
    height = 600
    page.set_viewport_size({"width": width, "height": height})
    visit.open_frame(full_page, NAMES[0])
    seen = page.locator("#stage").bounding_box()
    assert seen["width"] * seen["height"] >= 0.45 * width * height
    for verdict in ("nothing-wrong", "true-alarm", "false-alarm", "missed", "unsure"):
        box = page.locator(f".buttons [data-verdict={verdict}]").bounding_box()
        assert 0 <= box["x"] <= width - box["width"], "in sight without scrolling"
        assert 0 <= box["y"] <= height - box["height"]
    assert not page.is_visible("#timeline")
    page.keyboard.press("c")
    assert page.is_visible("#timeline")


@pytest.fixture
def flagged(scene: Scene, tmp_path: Path, visit: Visit) -> Visit:
    index = write_page(scene.maps, tmp_path / "review", anomaly_labels=scene.anomaly)
    visit.open_frame(index, NAMES[0], "&flags=1&threshold=0.6")
    name_reviewer(visit, "Ana")
    return visit


def test_undo_keeps_the_region_chosen(flagged: Visit) -> None:
    page = flagged.page
    page.keyboard.press("r")
    page.keyboard.press("s")
    flagged.shown("#regions", "false")
    for key in ("Control+z", "Control+Shift+Z"):
        page.keyboard.press(key)
        flagged.shown("#subject", "Judging region 1")
    page.keyboard.press("a")
    flagged.shown("#regions", "true")
    assert page.evaluate("segunc.verdicts.all().every(({ region }) => region)")


def test_undo_names_the_region_and_its_verdict(flagged: Visit) -> None:
    page = flagged.page
    page.keyboard.press("r")
    page.keyboard.press("s")
    flagged.shown("#regions", "false")
    page.keyboard.press("Control+z")
    flagged.shown("#live", f"Undone: false on region 1 of frame {NAMES[0]}")
    page.keyboard.press("Control+Shift+Z")
    flagged.shown("#live", f"Done again: false on region 1 of frame {NAMES[0]}")


def test_a_verdict_keeps_what_another_tab_has_stored(flagged: Visit) -> None:
    page = flagged.page
    key = "'segunc-review:' + segunc.data.page.run"
    other = {
        "frame": NAMES[1],
        "region": None,
        "reviewer": "Ana",
        "verdict": "missed",
        "note": "",
        "time": "2026-01-01T00:00:00.000Z",
    }
    # The event that tells this tab of it has not come yet.
    page.evaluate(f"localStorage.setItem({key}, JSON.stringify([{json.dumps(other)}]))")
    page.keyboard.press("a")
    flagged.shown("#progress", "2 of 6 judged")
    stored = page.evaluate(f"JSON.parse(localStorage.getItem({key})).map(({{ frame }}) => frame)")
    assert stored == list(NAMES[:2])


def test_undo_leads_back_to_the_region_of_another_frame(flagged: Visit) -> None:
    page = flagged.page
    page.keyboard.press("r")
    page.keyboard.press("s")
    flagged.shown("#regions", "false")
    page.evaluate(f"segunc.state.set({{ frame: {NAMES[5]!r}, region: null }})")
    flagged.until(f"segunc.table.name(segunc.stage.shown()) === {NAMES[5]!r}")
    page.keyboard.press("Control+z")
    flagged.shown("#live", f"Undone: false on a region of frame {NAMES[0]}")
    flagged.shown("#frame-name", NAMES[0])
    flagged.shown("#subject", "Judging region 1")


def test_a_region_is_judged_and_the_frame_follows(flagged: Visit) -> None:
    page = flagged.page
    page.keyboard.press("r")
    page.keyboard.press("s")
    flagged.shown("#regions", "false")
    flagged.shown("#progress", "1 of 6 judged")
    page.keyboard.press("Escape")
    assert page.locator("button.derived").inner_text().startswith("false alarm")
    assert page.is_visible("#frame-view")  # the region is left, not the frame
    page.keyboard.press("a")
    chosen = page.locator("button[data-verdict=true-alarm]").first
    assert chosen.get_attribute("aria-pressed") == "true"


def test_a_judged_region_is_exported_with_its_pixels(
    flagged: Visit, scene: Scene, tmp_path: Path
) -> None:
    values = MapsReader(scene.maps).read(NAMES[0], "entropy")
    over = np.argwhere(values >= 0.6)
    page = flagged.page
    page.keyboard.press("r")
    words = f"1 · {len(over)} px, max {float(values.max()):.3g}"
    flagged.shown("#regions [aria-pressed=true]", words[:8])
    page.keyboard.press("s")
    flagged.shown("#regions", "false")
    page.keyboard.press("Escape")
    page.keyboard.press("a")
    file = export(flagged, "json", tmp_path / "v.json")
    of_frame, of_region = read_verdicts(file, run_id(MapsReader(scene.maps)), NAMES)
    assert of_frame.verdict == "true-alarm"
    assert of_frame.region is None
    assert of_region.verdict == "false-alarm"
    region: Any = of_region.region
    pixels: set[int] = set()
    for start, length in zip(region.mask[::2], region.mask[1::2], strict=True):
        pixels.update(range(start, start + length))
    assert pixels <= {int(y * SIZE[1] + x) for y, x in over}
    assert region.area == len(pixels)
    assert region.score == "entropy"
    assert region.threshold == 0.6
    assert region.value == pytest.approx(float(values.max()), rel=1e-6)


def test_a_verdict_stays_on_its_region_at_another_threshold(flagged: Visit) -> None:
    flagged.page.keyboard.press("r")
    flagged.page.keyboard.press("s")
    flagged.shown("#regions", "false")
    flagged.page.fill("#threshold-number", "0.61")
    flagged.shown("#regions", "false")


def judged_area(page: Any) -> tuple[int, float]:
    """Return the area and the threshold of the only region that has a verdict."""
    (found,) = page.evaluate(
        "segunc.verdicts.all().map(({ region }) => [region.area, region.threshold])"
    )
    return tuple(found)


def shown_area(page: Any) -> int:
    """Return the area of the first region that is shown."""
    area: int = page.evaluate("segunc.regions.shown()[0].region.area")
    return area


def judge_a_region_at_another_threshold(visit: Visit) -> tuple[int, int]:
    """Judge the first region at .6 and go to .78; return its area at both."""
    page = visit.page
    page.keyboard.press("r")
    page.keyboard.press("s")
    visit.shown("#regions", "false")
    before = shown_area(page)
    page.evaluate("segunc.state.set({ threshold: 0.78 })")
    visit.until(f"segunc.regions.shown()[0].region.area !== {before}")
    after = shown_area(page)
    assert after > 0.5 * before, "one region at both thresholds, or this would be no test"
    return before, after


def test_a_verdict_that_is_carried_over_names_its_outline(flagged: Visit) -> None:
    before, after = judge_a_region_at_another_threshold(flagged)
    words = f"{after} px"
    flagged.shown("#regions button", words)
    flagged.shown("#regions button", f"false (judged at another outline: {before} px at ≥ 0.6)")
    assert judged_area(flagged.page) == (before, 0.6)
    flagged.page.evaluate("segunc.state.set({ threshold: 0.6 })")
    flagged.until(f"segunc.regions.shown()[0].region.area === {before}")
    assert "outline" not in flagged.page.inner_text("#regions")


def test_a_verdict_that_is_given_again_is_on_the_outline_that_is_seen(flagged: Visit) -> None:
    page = flagged.page
    before, after = judge_a_region_at_another_threshold(flagged)
    page.keyboard.press("s")
    flagged.until("!document.getElementById('regions').innerText.includes('outline')")
    assert judged_area(page) == (after, 0.78)
    page.keyboard.press("Control+z")
    flagged.shown("#regions", "judged at another outline")
    assert judged_area(page) == (before, 0.6)
    page.keyboard.press("Control+Shift+Z")
    flagged.until("!document.getElementById('regions').innerText.includes('outline')")
    assert judged_area(page) == (after, 0.78)


def test_a_verdict_on_the_same_box_takes_its_new_area(flagged: Visit) -> None:
    """As of a page of an earlier version, which counted the pixels of its own smaller map."""
    page = flagged.page
    page.keyboard.press("r")
    page.keyboard.press("s")
    flagged.shown("#regions", "false")
    area = shown_area(page)
    page.evaluate(
        "const [entry] = segunc.verdicts.all(); "
        "entry.region = { ...entry.region, area: entry.region.area - 1 }"
    )
    page.evaluate("segunc.state.set({ region: null })")
    flagged.shown("#regions", f"judged at another outline: {area - 1} px")
    page.keyboard.press("r")
    page.keyboard.press("s")
    flagged.until("!document.getElementById('regions').innerText.includes('outline')")
    assert judged_area(page) == (area, 0.6)


def test_a_verdict_that_is_given_again_takes_the_pixels_that_are_seen(flagged: Visit) -> None:
    """As of a page of an earlier version, whose masks held other regions."""
    page = flagged.page
    page.keyboard.press("r")
    page.keyboard.press("s")
    flagged.shown("#regions", "false")
    mask = page.evaluate("segunc.verdicts.all()[0].region.mask")
    page.evaluate(
        "const [entry] = segunc.verdicts.all(); entry.region = { ...entry.region, mask: [0, 9] }"
    )
    page.keyboard.press("s")
    flagged.until("segunc.verdicts.all()[0].region.mask.length !== 2")
    assert page.evaluate("segunc.verdicts.all()[0].region.mask") == mask
    page.keyboard.press("Control+z")
    flagged.shown("#live", "Undone: the outline")


def test_the_list_of_alarms_names_another_outline_and_judges_its_own(flagged: Visit) -> None:
    page = flagged.page
    before, _ = judge_a_region_at_another_threshold(flagged)
    page.evaluate("segunc.state.set({ view: 'alarms' })")
    flagged.shown("#alarm-list .verdict", f"(judged at another outline: {before} px at ≥ 0.6)")
    item = page.locator("#alarm-list > li", has_text="another outline")
    area = item.evaluate(
        "(item) => Number(/([\\d,]+) px/.exec(item.innerText)[1].replace(',', ''))"
    )
    assert area != before
    item.locator("[data-verdict='false-alarm']").click()
    flagged.until("!document.getElementById('alarm-list').innerText.includes('another outline')")
    assert judged_area(page) == (area, 0.78)
    page.evaluate("segunc.verdicts.undo()")
    flagged.shown("#alarm-list .verdict", "another outline")
    page.locator("#alarm-list > li", has_text="another outline").locator(
        "[data-verdict='']"
    ).click()
    flagged.until("segunc.verdicts.all().length === 0")


def box_by_hand(visit: Visit) -> None:
    """Drag a box from the pixel (20, 3) to (32, 11)."""
    page = visit.page
    box = page.locator("#stage .world").bounding_box()
    assert box is not None
    scale = box["width"] / SIZE[1]
    page.keyboard.press("l")
    page.mouse.move(box["x"] + 20 * scale, box["y"] + 3 * scale)
    page.mouse.down()
    page.mouse.move(box["x"] + 32 * scale, box["y"] + 11 * scale, steps=4)
    assert page.locator("#stage .boxes .drawn").count() == 1
    page.mouse.up()
    visit.shown("#regions", "drawn · missed object")


def test_a_missed_object_is_boxed_by_hand(flagged: Visit) -> None:
    box_by_hand(flagged)
    page = flagged.page
    assert page.locator("button.derived").inner_text().startswith("missed")
    page.keyboard.press("Control+z")
    flagged.shown("#progress", "0 of 6 judged")
    page.keyboard.press("Control+Shift+Z")
    flagged.shown("#progress", "1 of 6 judged")


def test_nothing_wrong_with_a_box_of_a_missed_object_is_remarked(flagged: Visit) -> None:
    box_by_hand(flagged)
    assert flagged.page.locator("#remark").is_hidden()
    flagged.page.locator("#verdict-bar [data-verdict='nothing-wrong']").click()
    flagged.shown("#remark", "But 1 region or box is marked as missed on this frame.")


def test_a_true_alarm_whose_judged_regions_are_all_false_is_remarked(flagged: Visit) -> None:
    page = flagged.page
    page.keyboard.press("r")
    page.keyboard.press("s")
    flagged.shown("#regions", "false")
    page.click("#whole")
    page.keyboard.press("a")
    flagged.shown("#remark", "But all its judged regions are called false.")
    page.keyboard.press("s")
    flagged.until("document.getElementById('remark').hidden")


@pytest.mark.parametrize(
    ("region", "called", "milder", "as_grave"),
    [("a", "true", "shu", "am"), ("s", "false", "hu", "sm"), ("u", "unsure", "h", "usam")],
)
def test_a_frame_that_is_judged_milder_than_its_region_is_remarked(
    region: str, called: str, milder: str, as_grave: str, flagged: Visit
) -> None:
    page = flagged.page
    page.keyboard.press("r")
    page.keyboard.press(region)
    flagged.shown("#regions", called)
    page.click("#whole")
    for key in milder:
        page.keyboard.press(key)
        flagged.shown("#remark", f"But 1 region is called {called} on this frame.")
        page.keyboard.press("Backspace")
        flagged.until("document.getElementById('remark').hidden")
    for key in as_grave:
        page.keyboard.press(key)
        flagged.until("document.querySelector('#verdict-bar [aria-pressed=true]') !== null")
        assert page.locator("#remark").is_hidden()
        page.keyboard.press("Backspace")
        flagged.until("document.querySelector('#verdict-bar [aria-pressed=true]') === null")


@pytest.mark.parametrize("verdict", ["false-alarm", "true-alarm", "nothing-wrong", "unsure"])
def test_a_box_of_a_missed_object_contradicts_every_milder_verdict(
    verdict: str, flagged: Visit
) -> None:
    box_by_hand(flagged)
    flagged.page.locator(f"#verdict-bar [data-verdict='{verdict}']").click()
    flagged.shown("#remark", "But 1 region or box is marked as missed on this frame.")
    flagged.page.locator("#verdict-bar [data-verdict='missed']").click()
    flagged.until("document.getElementById('remark').hidden")


def test_undo_and_redo_of_a_drawn_box_have_the_same_words(flagged: Visit) -> None:
    box_by_hand(flagged)
    flagged.page.keyboard.press("Control+z")
    flagged.shown("#live", f"Undone: missed object on a drawn box of frame {NAMES[0]}")
    flagged.page.keyboard.press("Control+Shift+Z")
    flagged.shown("#live", f"Done again: missed object on a drawn box of frame {NAMES[0]}")


@pytest.mark.parametrize(
    ("judged", "said"),
    [
        (True, "1 verdict and 1 note without a verdict exported"),
        (False, "1 note without a verdict exported"),
    ],
)
def test_a_note_without_a_verdict_is_exported_as_a_note(
    flagged: Visit, tmp_path: Path, judged: bool, said: str
) -> None:
    page = flagged.page
    page.evaluate(f"segunc.verdicts.set({NAMES[1]!r}, {{ note: 'a shadow' }})")
    if judged:
        page.keyboard.press("a")
        flagged.shown("#progress", "1 of 6 judged")
    export(flagged, "json", tmp_path / "v.json")
    flagged.shown("#live", said)
    assert page.inner_text("#live") == said


UNFLAGGED = "judged at ≥ 0.6, not flagged as one region here"


def judge_what_another_threshold_flags(visit: Visit) -> None:
    """Judge the object at .6 and go to a threshold at which the whole frame is one region."""
    page = visit.page
    page.keyboard.press("r")
    page.keyboard.press("s")
    visit.shown("#regions", "false")
    page.evaluate("segunc.state.set({ threshold: 0, region: null })")
    visit.shown("#regions", "1 · 1,200 px")


def test_a_judged_region_that_is_not_flagged_here_says_so(flagged: Visit) -> None:
    boxes = flagged.page.locator("#stage .boxes .unflagged")
    judge_what_another_threshold_flags(flagged)
    flagged.shown("#regions li:nth-child(2) button", f"false · {UNFLAGGED}")
    flagged.shown("#regions-note", "1 flagged region, 1 judged and not flagged as one here")
    assert "judged at" not in flagged.page.inner_text("#regions li:first-child")
    assert boxes.locator("text").all_text_contents() == ["2"]
    dashes = boxes.locator("rect").last.evaluate("(box) => getComputedStyle(box).strokeDasharray")
    assert dashes != "none"
    flagged.page.evaluate("segunc.state.set({ threshold: 0.6 })")
    flagged.until("document.querySelectorAll('#regions li').length === 1")
    assert boxes.count() == 0
    flagged.page.evaluate("segunc.state.set({ score: 'epistemic', threshold: 0 })")
    flagged.shown("#regions", "judged at entropy ≥ 0.6, not flagged as one region here")


def test_without_outlines_no_region_is_said_to_be_unflagged(flagged: Visit) -> None:
    judge_what_another_threshold_flags(flagged)
    flagged.shown("#regions", UNFLAGGED)
    flagged.page.keyboard.press("t")
    flagged.until("document.querySelectorAll('#regions li').length === 1")
    assert "judged at" not in flagged.page.inner_text("#regions")


def test_a_region_of_another_reviewer_that_is_not_flagged_here_says_so(flagged: Visit) -> None:
    flagged.page.keyboard.press("a")  # the frame, so that the verdicts of others are seen
    judge_what_another_threshold_flags(flagged)
    name_reviewer(flagged, "Ben")
    flagged.page.keyboard.press("a")
    flagged.shown("#regions li:nth-child(2)", "Ana: false")
    flagged.shown("#regions li:nth-child(2) button", UNFLAGGED)


def test_the_caption_of_a_saved_picture_names_regions_that_are_not_flagged_here(
    flagged: Visit, tmp_path: Path
) -> None:
    judge_what_another_threshold_flags(flagged)
    flagged.shown("#regions", UNFLAGGED)
    flagged.page.evaluate(
        """() => {
          const { fillText } = CanvasRenderingContext2D.prototype;
          globalThis.written = [];
          CanvasRenderingContext2D.prototype.fillText = function (words, x, y, width) {
            globalThis.written.push([words, y]);
            return fillText.call(this, words, x, y, width);
          };
          globalThis.heights = [];
          const { toBlob } = HTMLCanvasElement.prototype;
          HTMLCanvasElement.prototype.toBlob = function (...rest) {
            globalThis.heights.push(this.height);
            return toBlob.call(this, ...rest);
          };
        }"""
    )
    with flagged.page.expect_download() as download:
        flagged.page.keyboard.press("S")
    download.value.save_as(tmp_path / "view.png")
    places = dict(flagged.page.evaluate("written"))
    line = f"dashed box 2: {UNFLAGGED}"
    assert line in places
    # No line lies on another, and the last one within the picture.
    of_caption = [y for y in places.values() if y > 100]
    assert len(set(of_caption)) >= 3
    assert max(of_caption) < flagged.page.evaluate("heights[0]")


def test_a_number_at_the_right_edge_is_not_cut(flagged: Visit) -> None:
    page = flagged.page
    box = page.locator("#stage .world").bounding_box()
    assert box is not None
    scale = box["width"] / SIZE[1]
    page.keyboard.press("l")
    page.mouse.move(box["x"] + 39 * scale, box["y"] + 10 * scale)
    page.mouse.down()
    page.mouse.move(box["x"] + 40 * scale, box["y"] + 30 * scale, steps=4)
    page.mouse.up()
    # A small picture, in which the number is wider than the box.
    page.set_viewport_size({"width": 320, "height": 240})
    page.wait_for_timeout(200)
    box = page.locator("#stage .world").bounding_box()
    number = page.locator("#stage .boxes .drawn text").bounding_box()
    assert box is not None
    assert number is not None
    assert box["width"] < 7 * SIZE[1]  # or this would be no test
    assert number["x"] + number["width"] <= box["x"] + box["width"]


def test_a_box_is_exported_as_an_annotation_of_coco(flagged: Visit, tmp_path: Path) -> None:
    box_by_hand(flagged)
    coco = json.loads(export(flagged, "coco", tmp_path / "coco.json").read_text())
    (annotation,) = coco["annotations"]
    assert annotation["bbox"] == [20, 3, 12, 8]
    counts = annotation["segmentation"]["counts"]
    columns = np.repeat(np.arange(len(counts)) % 2, counts).reshape(SIZE[1], SIZE[0])
    mask = columns.T
    assert mask.sum() == mask[3:11, 20:32].sum() == 96
    names = {category["id"]: category["name"] for category in coco["categories"]}
    assert names[annotation["category_id"]] == "missed"


def test_coco_names_the_files_of_images_and_counts_from_1(flagged: Visit, tmp_path: Path) -> None:
    box_by_hand(flagged)
    coco = json.loads(export(flagged, "coco", tmp_path / "coco.json").read_text())
    (image,) = coco["images"]
    assert image["file_name"] == f"{NAMES[0]}.png"
    (annotation,) = coco["annotations"]
    assert image["id"] == annotation["image_id"] == annotation["id"] == 1
    assert [category["id"] for category in coco["categories"]] == [1, 2, 3, 4]


def test_a_region_has_the_size_of_its_alarm(flagged: Visit) -> None:
    page = flagged.page
    page.evaluate("segunc.data.frames[0].alarms[0].area = 98765")
    page.evaluate("segunc.state.set({ threshold: null })")
    flagged.shown("#regions", "98,765 px")


def test_damaged_verdicts_and_those_on_another_run_are_not_taken(
    flagged: Visit, tmp_path: Path
) -> None:
    box_by_hand(flagged)
    path = tmp_path / "v.json"
    damaged = json.loads(export(flagged, "json", path).read_text())
    damaged["verdicts"][0]["region"]["box"][0] = 35
    path.write_text(json.dumps(damaged))
    flagged.page.set_input_files("#import-file", path)
    flagged.shown("#notices", "1 are damaged or of frames that are not here")
    path.write_text(json.dumps(damaged | {"run": "0123456789abcdef"}))
    flagged.page.set_input_files("#import-file", path)
    flagged.shown("#notices", "verdicts on another run")


def test_the_button_of_coco_counts_regions_and_names_what_it_leaves_out(
    flagged: Visit, tmp_path: Path
) -> None:
    box_by_hand(flagged)
    flagged.page.keyboard.press("Escape")
    flagged.page.keyboard.press("a")
    flagged.shown("#progress", "1 of 6 judged")
    file = export(flagged, "coco", tmp_path / "coco.json")
    words = "1 region exported; 1 verdict on a frame is in the JSON alone"
    flagged.shown("#live", words)
    assert len(json.loads(file.read_text())["annotations"]) == 1
    export(flagged, "json", tmp_path / "verdicts.json")
    flagged.shown("#live", "2 verdicts exported")


def test_a_verdict_on_a_frame_has_the_threshold_that_is_set(
    scene: Scene, tmp_path: Path, visit: Visit
) -> None:
    visit.open_frame(write_page(scene.maps, tmp_path / "review"), NAMES[0], "&threshold=0.6")
    name_reviewer(visit, "Ana")
    visit.page.keyboard.press("a")
    visit.shown("#progress", "1 of 6 judged")
    file = export(visit, "json", tmp_path / "verdicts.json")
    (verdict,) = read_verdicts(file, run_id(MapsReader(scene.maps)), NAMES)
    assert (verdict.score, verdict.threshold) == ("entropy", 0.6)


@pytest.mark.parametrize(("margin", "recorded"), [(True, "--margin 2"), (False, "")])
def test_a_verdict_records_the_preparation_of_the_map(
    margin: bool, recorded: str, scene: Scene, tmp_path: Path, visit: Visit
) -> None:
    threshold = Widened(0.5) if margin else Threshold(0.5)
    flag = {"entropy": threshold}
    written = write_review(scene.maps, tmp_path / "review", LabelSources(), flag=flag)
    visit.open_frame(written, NAMES[0])
    name_reviewer(visit, "Ana")
    for key in "ars":  # a verdict on the frame, and one on its first region
        visit.page.keyboard.press(key)
    visit.shown("#progress", "1 of 6 judged")
    visit.open_frame(written, NAMES[0])  # as this browser has kept it
    file = export(visit, "json", tmp_path / "verdicts.json")
    on_frame, on_region = read_verdicts(file, run_id(MapsReader(scene.maps)), NAMES)
    assert on_frame.given_at == on_region.given_at == ("entropy", 0.5, recorded)
    assert on_frame.names_preparation
    assert on_region.names_preparation


def test_verdicts_at_another_threshold_than_that_of_the_page_are_said(
    scene: Scene, tmp_path: Path, visit: Visit
) -> None:
    index = write_page(scene.maps, tmp_path / "review")
    visit.open_frame(index, NAMES[0])
    page = visit.page
    name_reviewer(visit, "Ana")
    page.keyboard.press("a")
    page.keyboard.press("j")
    page.keyboard.press("s")
    visit.shown("#progress", "2 of 6 judged")
    visit.open_frame(index, NAMES[0])
    assert "verdicts were given" not in page.inner_text("#notices")
    write_page(scene.maps, tmp_path / "review", flag={"entropy": 0.7})
    visit.open_frame(index, NAMES[0])
    visit.shown("#notices", "2 verdicts were given at entropy ≥ 0.5 (here 0.7).")
    page.keyboard.press("a")  # the same verdict, at the threshold of now
    visit.shown("#live", "already true alarm")
    visit.open_frame(index, NAMES[0])
    visit.shown("#notices", "1 verdict was given at entropy ≥ 0.5 (here 0.7).")


def test_verdicts_on_a_map_of_another_preparation_are_said(
    scene: Scene, tmp_path: Path, visit: Visit
) -> None:
    """At the same value, a margin flags other regions."""
    index = write_page(scene.maps, tmp_path / "review", flag={"entropy": 0.5})
    visit.open_frame(index, NAMES[0])
    name_reviewer(visit, "Ana")
    visit.page.keyboard.press("a")
    visit.shown("#progress", "1 of 6 judged")
    flag = {"entropy": Widened(0.5)}
    write_review(scene.maps, tmp_path / "review", LabelSources(), flag=flag)
    visit.open_frame(index, NAMES[0])
    here = Widened(0.5).preparation.options
    visit.shown("#notices", f"1 verdict was given at entropy ≥ 0.5 (here 0.5 after {here}).")


def test_a_verdict_that_is_given_again_at_another_threshold_can_be_undone(
    scene: Scene, tmp_path: Path, visit: Visit
) -> None:
    visit.open_frame(write_page(scene.maps, tmp_path / "review"), NAMES[0])
    name_reviewer(visit, "Ana")
    visit.page.keyboard.press("a")
    visit.page.evaluate("segunc.state.set({ threshold: 0.6 })")
    visit.page.keyboard.press("a")
    threshold = "segunc.verdicts.all()[0].threshold"
    assert visit.page.evaluate(threshold) == 0.6
    visit.page.keyboard.press("Control+z")
    visit.shown("#live", f"Undone: the threshold on frame {NAMES[0]}")
    assert visit.page.evaluate(threshold) == 0.5


@pytest.fixture
def judged_run(scene: Scene, tmp_path: Path, visit: Visit) -> Visit:
    """A browser that holds a verdict on the run of the scene, of a page in ``review``."""
    visit.open_frame(write_page(scene.maps, tmp_path / "review"), NAMES[0])
    name_reviewer(visit, "Ana")
    visit.page.keyboard.press("a")
    visit.shown("#progress", "1 of 6 judged")
    return visit


HELD = "This browser holds 1 verdict on another run"


@pytest.mark.parametrize(
    ("maps", "out"),
    [("maps", "other"), ("other", "review")],
    ids=["same title", "same folder"],
)
def test_verdicts_on_another_run_of_the_page_are_said(
    judged_run: Visit, scene: Scene, tmp_path: Path, maps: str, out: str
) -> None:
    other = write_maps(scene.images, tmp_path / maps, recorded={"seed": 1})
    judged_run.open(write_page(other, tmp_path / out))
    judged_run.shown("#progress", "0 of 6 judged")
    judged_run.shown("#notices", HELD)


def test_verdicts_on_a_page_of_another_title_and_folder_are_not_said(
    judged_run: Visit, scene: Scene, tmp_path: Path
) -> None:
    other = write_maps(scene.images, tmp_path / "other-maps", recorded={"seed": 1})
    page = judged_run.open(write_page(other, tmp_path / "other"))
    assert page.evaluate("Object.keys(localStorage).filter((key) => /:[0-9a-f]{16}$/.test(key))")
    assert "another run" not in page.inner_text("#notices")
