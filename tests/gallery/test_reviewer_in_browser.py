"""Whose verdicts a browser shows, what it takes into them and gives out again, and what it says."""

import json
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import pytest

from segunc.decisions.flags import Threshold
from segunc.gallery.review_page import run_id, write_verdicts
from segunc.maps.reader import MapsReader
from segunc.maps.verdicts import JudgedRegion, Verdict, read_verdicts
from tests.support.scenes import (
    NAMES,
    SIZE,
    Scene,
    carried,
    write_maps,
    write_page,
    write_picture,
)
from tests.support.visits import Visit, name_reviewer

TIME = "2026-01-01T00:00:00.000Z"
FRAME = NAMES[0]
REGION = {
    "box": [1, 0, 2, 2],
    "area": 4,
    "size": list(SIZE),
    "mask": [1, 2, 41, 2],
}
REGION |= {"score": "entropy", "threshold": 0.5, "value": 0.7}
ENTRY = {
    "frame": FRAME,
    "verdict": "missed",
    "note": "",
    "time": TIME,
    "reviewer": "Ben",
}


@pytest.fixture(scope="module")
def index(scene: Scene, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("reviewer") / "review"
    return write_page(scene.maps, out, anomaly_labels=scene.anomaly)


@pytest.fixture
def second(scene: Scene, tmp_path: Path) -> Path:
    """A page that shows the verdict of another reviewer."""
    index = write_page(scene.maps, tmp_path / "review", anomaly_labels=scene.anomaly)
    verdict = Verdict(FRAME, "true-alarm", time=TIME, reviewer="Ben")
    write_verdicts(index.parent, run_id(MapsReader(scene.maps)), [verdict])
    return index


def export(visit: Visit, path: Path) -> Path:
    with visit.page.expect_download() as download:
        visit.page.click("#export-json")
    download.value.save_as(path)
    return path


def write_file(scene: Scene, path: Path, *verdicts: Any) -> Path:
    head = {
        "format": "segunc-verdicts",
        "version": 2,
        "run": run_id(MapsReader(scene.maps)),
    }
    path.write_text(json.dumps(head | {"verdicts": verdicts}))
    return path


def test_a_name_that_is_typed_at_once_is_kept(index: Path, visit: Visit) -> None:
    visit.open_frame(index, FRAME)
    visit.page.click("#verdict-bar [data-verdict='missed']")
    visit.page.keyboard.type("Ana")
    visit.page.keyboard.press("Enter")
    visit.shown("#reviewer-button", "Reviewer: Ana")
    visit.shown("#progress", "1 of 6 judged")


def test_a_name_that_is_not_given_judges_nothing_and_says_so(index: Path, visit: Visit) -> None:
    visit.open_frame(index, FRAME)
    visit.page.keyboard.press("m")
    visit.page.keyboard.press("Escape")
    visit.shown("#live", "no name was given, so nothing was judged")
    assert visit.page.evaluate("segunc.verdicts.all().length") == 0


def test_a_browser_without_a_name_has_no_verdict_of_its_own(second: Path, visit: Visit) -> None:
    visit.open_frame(second, FRAME)
    visit.shown("#progress", "0 of 6 judged")
    assert visit.page.locator("#verdict-bar [aria-pressed='true']").count() == 0
    visit.shown("#others", "Ben: true alarm")


def test_a_reader_without_a_name_filters_by_the_verdicts_of_others(
    second: Path, visit: Visit
) -> None:
    page = visit.open(second)
    page.select_option("#filter-verdict", "true-alarm")
    assert visit.names() == [FRAME]


def test_whoever_judges_sees_no_label_before(index: Path, visit: Visit) -> None:
    page = visit.open(index)
    assert "labelled" in page.inner_text("#cards")
    name_reviewer(visit, "Ana")
    assert "labelled" not in page.inner_text("#cards")
    visit.open_frame(index, FRAME)
    page.keyboard.press("a")
    page.keyboard.press("g")
    visit.shown("#cards", "1 of 1 labelled object flagged")


def test_filters_by_labels_wait_for_a_verdict_and_show_judged_frames(
    index: Path, visit: Visit
) -> None:
    page = visit.open(index)
    name_reviewer(visit, "Ana")
    missed = page.locator("#filter-show option[value='missed']")
    found = page.locator("#filter-show option[value='found']")
    assert missed.inner_text() == "a labelled object is not flagged (judge a frame first)"
    assert missed.is_disabled()
    visit.open_frame(index, FRAME)
    page.keyboard.press("a")
    page.keyboard.press("g")
    assert found.inner_text() == "all labelled objects are flagged (judged frames)"
    page.select_option("#filter-show", "found")
    assert visit.names() == [FRAME]  # of several frames whose objects are flagged
    page.select_option("#filter-show", "missed")
    visit.shown("#empty", "Labels of frames that you have not judged are hidden.")


def test_a_verdict_with_a_threshold_that_is_no_number_is_not_taken(
    index: Path, scene: Scene, tmp_path: Path, visit: Visit
) -> None:
    visit.open(index)
    entry = ENTRY | {"score": "entropy", "threshold": "0.5"}
    visit.page.set_input_files("#import-file", write_file(scene, tmp_path / "v.json", entry))
    visit.shown("#notices", "0 verdicts taken, 1 are damaged")


def test_the_label_is_outlined_once_the_frame_is_judged(index: Path, visit: Visit) -> None:
    visit.open_frame(index, FRAME)
    assert visit.page.locator("#stage .outline path").count() == 0
    visit.page.keyboard.press("a")
    visit.page.keyboard.type("Ana")
    visit.page.keyboard.press("Enter")
    visit.until("document.querySelector('#stage .outline path') !== null")


HIDDEN = "hidden until you judge this frame"


@pytest.mark.parametrize(("key", "layer"), [("8", "label/anomaly"), ("o", None)])
def test_a_key_to_a_hidden_label_says_that_it_is_hidden(
    key: str, layer: str | None, index: Path, visit: Visit
) -> None:
    visit.open_frame(index, FRAME)
    name_reviewer(visit, "Ana")
    page = visit.page
    page.keyboard.press(key)
    visit.shown("#live", f"anomaly label: {HIDDEN}")
    assert not page.locator("#live.unseen").count()
    assert page.evaluate("segunc.state.get().layer") == "overlay"
    assert page.evaluate("segunc.state.get().outline") is None
    assert page.locator("#show-outline").is_disabled()
    page.keyboard.press("a")
    visit.until("!document.getElementById('show-outline').disabled")
    page.keyboard.press(key)
    if layer:
        visit.until(f"segunc.state.get().layer === '{layer}'")
    else:
        visit.until("segunc.state.get().outline === false")


def test_a_hidden_label_is_said_on_the_next_frame_too(index: Path, visit: Visit) -> None:
    visit.open_frame(index, FRAME)
    name_reviewer(visit, "Ana")
    page = visit.page
    page.keyboard.press("a")
    visit.shown("#live", "true alarm")
    page.keyboard.press("8")
    visit.until("segunc.state.get().layer === 'label/anomaly'")
    assert page.locator("#stage .pane-message").is_hidden()
    page.keyboard.press("j")
    visit.shown("#stage .pane-message", f"anomaly label: {HIDDEN}")
    page.keyboard.press("a")
    visit.until("document.querySelector('#stage .pane-message').hidden")


def test_the_legend_of_the_timeline_says_of_which_frames_labels_are(
    index: Path, visit: Visit
) -> None:
    visit.open_frame(index, FRAME)
    visit.shown("#timeline-legend", "blue below: labelled anomaly")
    assert "of judged frames" not in visit.page.inner_text("#timeline-legend")
    name_reviewer(visit, "Ana")
    visit.shown("#timeline-legend", "blue below: labelled anomaly, of judged frames")
    for name in NAMES:
        visit.page.evaluate("(frame) => segunc.state.set({ frame })", name)
        visit.page.evaluate("segunc.verdicts.set(segunc.state.get().frame, { verdict: 'unsure' })")
    visit.until("!document.getElementById('timeline-legend').innerText.includes('of judged')")


def test_the_image_is_seen_through_the_first_layer(index: Path, visit: Visit) -> None:
    visit.open_frame(index, FRAME)
    assert visit.page.evaluate("segunc.state.get().layer") == "overlay"
    alpha = visit.pixels("#stage canvas")[:, 3]
    assert alpha.max() <= 128
    assert alpha.min() < 16


def test_two_outlines_are_told_apart_by_their_lines(index: Path, visit: Visit) -> None:
    visit.open_frame(index, FRAME, "&outline=1")
    visit.until("document.querySelector('#stage .outline path') !== null")
    widths = visit.page.evaluate(
        """['flags', 'outline'].map((name) =>
          [...document.querySelectorAll(`#stage .${name} path`)].map((path) =>
            parseFloat(getComputedStyle(path).strokeWidth)))"""
    )
    flagged, labelled = widths
    assert (len(flagged), len(labelled)) == (2, 3)  # one line on its edge; two with a core
    assert labelled[1] > 2 * flagged[1]


def test_the_tint_is_grey_where_the_label_ignores(index: Path, visit: Visit) -> None:
    visit.open_frame(index, FRAME, "&layer=overlay&outline=0")
    tinted = visit.pixels("#stage canvas.layer").reshape(*SIZE, 4)
    visit.open_frame(index, FRAME, "&layer=overlay&outline=1")
    shown = visit.pixels("#stage canvas.layer").reshape(*SIZE, 4)
    assert np.ptp(shown[0, :, :3]) <= 1  # the first row is ignored; premultiplied colours round
    assert not (tinted[0] == shown[0]).all()
    assert (tinted[1:] == shown[1:]).all()


def test_the_note_of_a_card_lies_within_it(second: Path, visit: Visit) -> None:
    """One card of a row is taller."""
    page = visit.open(second)
    page.locator("#cards a").first.evaluate("(card) => { card.style.paddingBottom = '80px'; }")
    for item in page.locator("#cards li").all()[:2]:
        card = item.locator("a").bounding_box()
        note = item.locator(".write-note").bounding_box()
        assert card is not None
        assert note is not None
        assert note["y"] + note["height"] <= card["y"] + card["height"]


def test_a_card_counts_the_flagged_objects(index: Path, visit: Visit) -> None:
    page = visit.open(index, "search=c%2520")
    # A bright object and a dark one, which no threshold of .5 reaches.
    assert "1 of 2 labelled objects flagged" in page.inner_text("#cards")


def test_a_card_calls_objects_specks_where_there_is_no_larger_one(
    scene: Scene, tmp_path: Path, visit: Visit
) -> None:
    bright = np.zeros(SIZE, np.uint8)
    bright[9, 9] = bright[12, 12] = bright[25, 2] = 1  # of the bright object, and of dark ground
    one = np.zeros(SIZE, np.uint8)
    one[9, 9] = 1
    write_picture(tmp_path / "masks", NAMES[0], bright)
    write_picture(tmp_path / "masks", NAMES[2], one)
    index = write_page(scene.maps, tmp_path / "review", anomaly_labels=tmp_path / "masks")
    cards = visit.open(index).inner_text("#cards")
    assert "2 of 3 labelled specks (under 10 px) flagged" in cards
    assert "1 of 1 labelled speck (under 10 px) flagged" in cards
    assert "labelled object" not in cards


def test_a_card_names_peak_and_area_of_the_strongest_region(
    index: Path, scene: Scene, visit: Visit
) -> None:
    values = MapsReader(scene.maps).read(FRAME, "entropy")
    _, numbers = cv2.connectedComponents((values >= 0.5).astype(np.uint8), connectivity=8)
    strengths = np.bincount(numbers.ravel(), (values - 0.5).ravel())
    strongest = numbers == 1 + strengths[1:].argmax()
    page = visit.open(index, "search=dark")
    peak = f"peak {float(values[strongest].max()):.3g}"
    assert f"{peak} · {strongest.sum()} px" in page.inner_text("#cards .value")


def test_alarms_follow_the_threshold_that_is_set(index: Path, scene: Scene, visit: Visit) -> None:
    reader = MapsReader(scene.maps)
    regions = 0
    for name in NAMES:
        high = (carried(reader.read(name, "entropy")) >= 0.8).astype(np.uint8)
        _, _, boxes, _ = cv2.connectedComponentsWithStats(high, connectivity=8)
        large = boxes[1:, cv2.CC_STAT_AREA] >= Threshold.smallest
        regions += min(5, int(large.sum()))
    page = visit.open(index, "view=alarms")
    recorded = page.locator("#alarm-list > li").count()
    page.fill("#alarm-threshold", "0.8")
    visit.shown("#alarm-note", "entropy ≥ 0.8")
    assert page.locator("#alarm-list > li").count() == regions != recorded
    page.click("#alarm-recorded")
    visit.shown("#alarm-note", "entropy ≥ 0.5")
    assert page.locator("#alarm-list > li").count() == recorded


def test_a_verdict_on_an_alarm_has_the_threshold_that_is_set(index: Path, visit: Visit) -> None:
    page = visit.open(index, "view=alarms&threshold=0.8")
    name_reviewer(visit, "Ana")
    page.locator("#alarm-list [data-verdict='true-alarm']").first.click()
    visit.shown("#alarm-list li:first-child .verdict", "true")
    (region,) = page.evaluate("segunc.verdicts.all().map(({ region }) => region)")
    assert region["threshold"] == 0.8
    assert region["area"] == sum(region["mask"][1::2])


def test_a_verdict_on_an_alarm_is_never_one_on_another_region(index: Path, visit: Visit) -> None:
    page = visit.open(index, "view=alarms")
    name_reviewer(visit, "Ana")
    page.evaluate(
        """segunc.regions.flaggedIn = () =>
          ({ found: [{ box: [0, 0, 1, 1], area: 1, value: 1, runs: [] }], small: 0 })"""
    )
    page.locator("#alarm-list [data-verdict='true-alarm']").first.click()
    visit.shown("#live", "too small to be judged by itself")
    assert page.evaluate("segunc.verdicts.all().length") == 0


def test_an_empty_search_has_a_way_back(index: Path, visit: Visit) -> None:
    page = visit.open(index)
    page.fill("#search", "nowhere")
    visit.shown("#empty", "No frame with “nowhere” in its name")
    page.click("#reset")
    assert len(visit.names()) == len(NAMES)
    assert page.input_value("#search") == ""


def test_a_notice_on_the_address_goes_with_it(index: Path, visit: Visit) -> None:
    page = visit.open(index, "frame=gone")
    visit.shown("#notices", "frame gone")
    page.evaluate("location.hash = ''")
    visit.until("!document.querySelector('#notices').textContent.includes('frame gone')")


def test_the_advice_to_give_a_name_goes_with_the_name(second: Path, visit: Visit) -> None:
    page = visit.open(second)
    visit.shown("#notices", "give your name first")
    name_reviewer(visit, "Ana")
    assert "give your name" not in page.inner_text("#notices")


def test_back_leads_to_the_card_of_the_frame(index: Path, visit: Visit) -> None:
    page = visit.open(index, "moments=all&order=source")
    page.locator("#cards a").nth(2).click()
    visit.shown("#frame-name", NAMES[2])
    page.keyboard.press("j")
    visit.shown("#frame-name", NAMES[3])
    page.wait_for_timeout(300)  # the address is written a little later
    page.go_back()
    visit.until("document.activeElement.closest('#cards') !== null")
    assert page.locator("#cards a:focus .name").inner_text() == NAMES[3]


def test_the_run_is_summed_up_before_its_record(index: Path, visit: Visit) -> None:
    page = visit.open(index, "view=run")
    headings = page.locator("#run-view section h2").all_inner_texts()
    assert headings[:4] == ["Model", "Run", "Frames", "Scores and their thresholds"]
    assert "FPN mobilenet_v2" in page.inner_text("#run-view section")
    assert page.get_attribute("#record", "open") is None


def test_the_run_view_says_where_the_bar_of_anomaly_ends(
    scene: Scene, tmp_path: Path, visit: Visit
) -> None:
    maps = write_maps(scene.images, tmp_path / "maps", scores=("entropy", "anomaly"))
    page = visit.open(write_page(maps, tmp_path / "review"), "view=run")
    assert page.evaluate("segunc.table.highest('anomaly')") < 6
    words = (
        "It ends at 6, or later, at a whole number, where this run has larger values: here at 6."
    )
    visit.shown("#run-view", words)
    assert "values beyond 3, up to which it was measured" in page.inner_text("#run-view")


@pytest.fixture
def shared(scene: Scene, tmp_path: Path) -> Path:
    """A page of two reviewers: Ben judged the region of a frame and boxed a missed object."""
    index = write_page(scene.maps, tmp_path / "review", anomaly_labels=scene.anomaly)
    values = carried(MapsReader(scene.maps).read(FRAME, "entropy"))
    high = (values >= 0.5).astype(np.uint8)
    _, _, boxes, _ = cv2.connectedComponentsWithStats(high, connectivity=8)
    x, y, width, height, _ = max(boxes[1:].tolist(), key=lambda box: box[cv2.CC_STAT_AREA])
    regions = {
        "false-alarm": JudgedRegion(
            (x, y, width, height), width, SIZE, (y * SIZE[1] + x, width), "entropy", 0.5, 0.7
        ),
        "missed": JudgedRegion((20, 3, 2, 1), 2, SIZE, (3 * SIZE[1] + 20, 2), None, None, None),
    }
    verdicts = [
        Verdict(FRAME, verdict, time=TIME, reviewer="Ben", region=region)
        for verdict, region in regions.items()
    ]
    write_verdicts(index.parent, run_id(MapsReader(scene.maps)), verdicts)
    return index


def test_what_others_said_of_a_region_stands_in_the_view_of_its_frame(
    shared: Path, visit: Visit
) -> None:
    visit.open_frame(shared, FRAME, "&flags=1")
    visit.shown("#regions li:first-child .badge", "Ben: false")
    visit.shown("#regions li:last-child", "drawn")
    visit.shown("#regions li:last-child .badge", "Ben: missed object")


def test_what_others_said_of_a_region_is_hidden_until_the_frame_is_judged(
    shared: Path, visit: Visit
) -> None:
    page = visit.open(shared)
    name_reviewer(visit, "Ana")
    visit.open_frame(shared, FRAME, "&flags=1")
    visit.shown("#regions", "px")
    assert "Ben" not in page.inner_text("#panel")
    assert "drawn" not in page.inner_text("#regions")
    page.keyboard.press("a")
    visit.shown("#regions", "Ben: missed object")


def words_of_saved_picture(visit: Visit) -> list[str]:
    """Save the view as a picture, and return the words in it."""
    visit.page.evaluate(
        """() => {
          const { fillText } = CanvasRenderingContext2D.prototype;
          globalThis.words = [];
          CanvasRenderingContext2D.prototype.fillText = function (text, ...rest) {
            globalThis.words.push(text);
            return fillText.call(this, text, ...rest);
          };
        }"""
    )
    with visit.page.expect_download():
        visit.page.keyboard.press("S")
    words: list[str] = visit.page.evaluate("words")
    return words


def test_the_legend_of_a_saved_picture_says_what_is_grey(index: Path, visit: Visit) -> None:
    """The label of the scene ignores the first row of a frame."""
    visit.open_frame(index, FRAME, "&layer=overlay&outline=1")
    assert "ignored by the label" in words_of_saved_picture(visit)
    visit.open_frame(index, FRAME, "&layer=entropy&outline=1")
    assert "ignored by the label" not in words_of_saved_picture(visit)
    visit.open_frame(index, FRAME, "&layer=overlay&outline=0")
    assert "ignored by the label" not in words_of_saved_picture(visit)


def test_a_box_of_another_reviewer_looks_like_a_missed_object(shared: Path, visit: Visit) -> None:
    visit.open_frame(shared, FRAME, "&flags=1")
    visit.shown("#regions", "Ben: missed object")
    colours = visit.page.evaluate(
        """['#stage .boxes .drawn.missed', '#stage .flags .edge-light'].map((selector) => {
          const drawing = document.querySelector(selector);
          return getComputedStyle(drawing.querySelector('rect:last-of-type') ?? drawing).stroke;
        })"""
    )
    violet, cyan = "rgb(215, 177, 227)", "rgb(0, 224, 224)"
    assert colours == [violet, cyan]
    number = visit.page.locator("#stage .boxes .drawn text").text_content()
    words = words_of_saved_picture(visit)
    assert f"dashed box {number}: missed object (Ben)" in words
    assert "dashed box: missed object (Ben)" in words


def test_a_box_that_two_reviewers_call_missed_is_the_readers_own(
    shared: Path, visit: Visit
) -> None:
    page = visit.open(shared)
    name_reviewer(visit, "Ana")
    visit.open_frame(shared, FRAME, "&flags=1")
    page.keyboard.press("a")
    visit.shown("#regions", "Ben: missed object")
    page.click("#regions li:last-child button")
    page.keyboard.press("m")
    visit.shown("#regions li:last-child button", "drawn · missed object")
    words = words_of_saved_picture(visit)
    assert "dashed box: missed object" in words
    assert not any("(Ben)" in text for text in words)


def test_a_box_of_another_reviewer_is_judged_as_the_same_region(shared: Path, visit: Visit) -> None:
    page = visit.open(shared)
    name_reviewer(visit, "Ana")
    visit.open_frame(shared, FRAME, "&flags=1")
    page.keyboard.press("a")
    visit.shown("#regions", "Ben: missed object")
    page.click("#regions li:last-child button")
    page.keyboard.press("m")
    visit.shown("#regions li:last-child button", "drawn · missed object")
    boxes = page.evaluate(
        "segunc.verdicts.all().filter(({ verdict, region }) => region && verdict === 'missed')"
        ".map(({ region, reviewer }) => [reviewer, region.box])"
    )
    assert sorted(boxes) == [["Ana", [20, 3, 2, 1]], ["Ben", [20, 3, 2, 1]]]


STRANGE = ["5", "null", "{}", "[null]", '[{"frame": 5}]', "not JSON", '[{"frame": "a dark"}]']


@pytest.mark.parametrize("text", STRANGE)
def test_any_text_in_the_browsers_storage_leaves_a_working_page(
    text: str, index: Path, visit: Visit
) -> None:
    page = visit.open(index)
    page.evaluate(f"localStorage.setItem('segunc-review:' + segunc.data.page.run, {text!r})")
    visit.open_frame(index, FRAME)
    visit.shown("#notices", "that this browser kept for the run are no verdicts")
    name_reviewer(visit, "Ana")
    page.keyboard.press("m")
    visit.shown("#progress", "1 of 6 judged")
    page.reload()
    visit.shown("#progress", "1 of 6 judged")
    assert "that this browser kept" not in page.inner_text("#notices")  # said once


# What `review --import` refuses, and what the page must not hand on.
DAMAGED = [
    {"verdict": "toString"},
    {"verdict": "nothing-wrong", "region": REGION},
    {"reviewer": 5},
    {"time": None},
    {"region": REGION | {"area": "4"}},
    {"region": REGION | {"area": -1}},
    {"region": REGION | {"score": 1}},
    {"region": REGION | {"threshold": "0.5"}},
    {"region": REGION | {"value": [0.7]}},
    {"region": REGION | {"mask": [1, 2.5]}},
    {"region": REGION | {"box": [1e300, 0, 2, 2]}},
    {"region": 5},
]


@pytest.mark.parametrize("change", DAMAGED)
def test_a_verdict_that_the_import_refuses_is_not_taken(
    change: dict[str, Any], index: Path, scene: Scene, tmp_path: Path, visit: Visit
) -> None:
    visit.open(index)
    file = write_file(scene, tmp_path / "damaged.json", ENTRY | change)
    visit.page.set_input_files("#import-file", file)
    visit.shown("#notices", "0 verdicts taken, 1 are damaged")
    assert visit.page.evaluate("segunc.verdicts.all().length") == 0


def test_what_the_page_takes_the_import_reads(
    index: Path, scene: Scene, tmp_path: Path, visit: Visit
) -> None:
    visit.open(index)
    half = "\ud83d"  # the first code of a pair of UTF-16
    taken = [
        ENTRY,
        ENTRY | {"region": REGION},
        ENTRY | {"reviewer": None, "note": half},
        ENTRY | {"reviewer": half, "region": REGION | {"score": None, "value": None}},
        ENTRY | {"frame": NAMES[1], "time": "yesterday"},
    ]
    file = write_file(scene, tmp_path / "taken.json", *taken)
    visit.page.set_input_files("#import-file", file)
    visit.shown("#notices", "5 verdicts taken.")
    run = run_id(MapsReader(scene.maps))
    verdicts = read_verdicts(export(visit, tmp_path / "out.json"), run, NAMES)
    region = JudgedRegion((1, 0, 2, 2), 4, SIZE, (1, 2, 41, 2), "entropy", 0.5, 0.7)
    drawn = JudgedRegion((1, 0, 2, 2), 4, SIZE, (1, 2, 41, 2), None, 0.5, None)
    assert verdicts == [
        Verdict(FRAME, "missed", "", TIME, "Ben"),
        Verdict(FRAME, "missed", "\ufffd", TIME, ""),
        Verdict(FRAME, "missed", "", TIME, "Ben", region),
        Verdict(FRAME, "missed", "", TIME, "\ufffd", drawn),
        Verdict(NAMES[1], "missed", "", "", "Ben"),
    ]


def test_a_correction_beats_a_verdict_that_is_dated_in_the_future(
    index: Path, scene: Scene, tmp_path: Path, visit: Visit
) -> None:
    visit.open_frame(index, FRAME)
    name_reviewer(visit, "Ben")
    file = write_file(scene, tmp_path / "future.json", ENTRY | {"time": "2999-01-01T00:00:00Z"})
    visit.page.set_input_files("#import-file", file)
    visit.shown("#notices", "1 verdict taken")
    visit.page.keyboard.press("s")
    visit.page.set_input_files("#import-file", file)
    visit.shown("#notices", "0 verdicts taken")
    (kept,) = visit.page.evaluate("segunc.verdicts.all().map(({ verdict }) => verdict)")
    assert kept == "false-alarm"


def test_a_verdict_of_another_that_is_of_a_region_alone_is_called_so(
    scene: Scene, tmp_path: Path, visit: Visit
) -> None:
    index = write_page(scene.maps, tmp_path / "review")
    region = JudgedRegion(
        score=None,
        threshold=None,
        value=None,
        box=(1, 0, 2, 2),
        area=4,
        size=SIZE,
        mask=(1, 2, 41, 2),
    )
    verdict = Verdict(FRAME, "missed", time=TIME, reviewer="Ben", region=region)
    write_verdicts(index.parent, run_id(MapsReader(scene.maps)), [verdict])
    visit.open_frame(index, FRAME)
    visit.shown("#others", "Ben: a region: missed object")


@pytest.fixture
def disputed(scene: Scene, tmp_path: Path) -> Path:
    """A page on which Ana called a region of a frame false, and Ben the frame a true alarm."""
    index = write_page(scene.maps, tmp_path / "review")
    region: Any = JudgedRegion(**REGION)
    verdicts = [
        Verdict(FRAME, "false-alarm", time=TIME, reviewer="Ana", region=region),
        Verdict(FRAME, "true-alarm", time=TIME, reviewer="Ben"),
    ]
    write_verdicts(index.parent, run_id(MapsReader(scene.maps)), verdicts)
    return index


def test_a_filter_that_hidden_verdicts_leave_empty_says_why(disputed: Path, visit: Visit) -> None:
    page = visit.open(disputed)
    page.select_option("#filter-verdict", "disagree")
    assert visit.names() == [FRAME]
    name_reviewer(visit, "Ana")
    visit.shown("#empty", "Verdicts of others on frames that you have not judged are hidden")
    option = page.locator("#filter-verdict option[value=disagree]")
    assert option.inner_text() == "reviewers disagree (judged frames)"
    visit.open_frame(disputed, FRAME, "&verdict=disagree")
    page.keyboard.press("s")
    page.keyboard.press("g")
    visit.shown("#count", "1 of 6 frames")


def test_the_count_says_how_many_disputed_frames_are_hidden(disputed: Path, visit: Visit) -> None:
    page = visit.open(disputed)
    page.select_option("#filter-verdict", "disagree")
    assert "hidden" not in page.inner_text("#count")
    name_reviewer(visit, "Ana")
    visit.shown("#count", "0 of 6 frames, 1 more is hidden until you judge the frame as a whole")
    page.fill("#search", NAMES[1])  # a filter does not say which frame it is
    visit.shown("#count", "1 more is hidden")
    page.select_option("#filter-verdict", "all")
    visit.until("!document.getElementById('count').textContent.includes('hidden')")
    visit.open_frame(disputed, FRAME, "&verdict=disagree")
    page.keyboard.press("s")
    page.keyboard.press("g")
    visit.shown("#count", "1 of 6 frames")
    assert "hidden" not in page.inner_text("#count")


def test_an_import_that_ends_blind_judging_says_so(
    index: Path, scene: Scene, tmp_path: Path, visit: Visit
) -> None:
    page = visit.open(index)
    name_reviewer(visit, "Ana")
    ben = write_file(scene, tmp_path / "ben.json", ENTRY)
    page.set_input_files("#import-file", ben)
    visit.shown("#notices", "1 verdict taken.")
    assert "Two other reviewers" not in page.inner_text("#notices")
    carl = write_file(scene, tmp_path / "carl.json", ENTRY | {"reviewer": "Carl"})
    page.set_input_files("#import-file", carl)
    visit.shown("#notices", "Two other reviewers have judged now")


def test_alarms_on_which_reviewers_disagree_are_counted_and_found(
    scene: Scene, tmp_path: Path, visit: Visit
) -> None:
    """Both call the frame a true alarm, and one of its regions differently."""
    maps = write_maps(scene.images, tmp_path / "maps")
    page = visit.open(write_page(maps, tmp_path / "review"))
    alarm = page.evaluate(
        "segunc.data.frames.flatMap(({ name, alarms }) => alarms.map(({ box, area }) =>"
        " ({ name, box, area })))[0]"
    )
    region = REGION | {"box": alarm["box"], "area": alarm["area"], "mask": []}
    judged = {"time": TIME, "note": "", "frame": alarm["name"]}
    files = []
    for name, verdict in (("Ben", "false-alarm"), ("Carl", "unsure")):
        of_region = judged | {"reviewer": name, "verdict": verdict, "region": region}
        of_frame = judged | {"reviewer": name, "verdict": "true-alarm"}
        files.append(write_file(scene, tmp_path / f"{name}.json", of_region, of_frame))
    run = run_id(MapsReader(maps))
    for file in files:
        file.write_text(file.read_text().replace(run_id(MapsReader(scene.maps)), run))
    page.set_input_files("#import-file", files)
    visit.shown("#notices", "Reviewers disagree on 1 region; both verdicts are kept")
    page.select_option("#filter-verdict", "disagree")
    assert visit.names() == [alarm["name"]]
    page.keyboard.press("w")
    visit.shown("#alarms-view", "only where reviewers disagree (1)")
    assert page.locator("#alarm-list li").count() > 1
    page.check("#alarm-disputed")
    assert page.locator("#alarm-list li").count() == 1
    visit.shown("#alarm-list li", "Ben: false")
    visit.shown("#alarm-note", "Reviewers disagree on 1 of ")


def test_a_disputed_alarm_is_not_told_before_its_frame_is_judged(
    scene: Scene, tmp_path: Path, visit: Visit
) -> None:
    index = write_page(scene.maps, tmp_path / "review", blind="yes")
    page = visit.open(index)
    box = page.evaluate(
        f"segunc.data.frames.find(({{ name }}) => name === '{FRAME}').alarms[0].box"
    )
    fields: dict[str, Any] = REGION | {"box": box}
    region = JudgedRegion(**fields)
    verdicts = [
        Verdict(FRAME, "false-alarm", time=TIME, reviewer="Ben", region=region),
        Verdict(FRAME, "true-alarm", time=TIME, reviewer="Carl", region=region),
    ]
    write_verdicts(index.parent, run_id(MapsReader(scene.maps)), verdicts)
    page = visit.open(index)
    name_reviewer(visit, "Ana")
    page.keyboard.press("w")
    assert page.locator("#alarm-disputed").is_hidden()
    visit.open_frame(index, FRAME)
    page.keyboard.press("u")
    page.keyboard.press("w")
    visit.shown("#alarms-view", "only where reviewers disagree (1)")
