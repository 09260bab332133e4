"""Alarms: all flagged regions as one list, judged with one key; labels hidden until then; and the
view saved as a picture.
"""

from pathlib import Path
from typing import Any

import cv2
import numpy as np
import pytest

from segunc.baselines.verdict_features import read_judged
from segunc.decisions.flags import Threshold
from segunc.gallery.alarms import find_alarms
from segunc.gallery.review_page import run_id, write_review, write_verdicts
from segunc.maps.manifest import build_manifest
from segunc.maps.reader import MapsReader
from segunc.maps.regions import regions_of
from segunc.maps.store import MapsWriter
from segunc.maps.verdicts import Verdict
from tests.support.events import write_events_scene
from tests.support.scenes import NAMES, Scene, carried, write_maps, write_page
from tests.support.visits import Visit, inside_of, name_reviewer


@pytest.fixture
def flagged() -> Any:
    """A map ``[60, 80]`` with a large weak region, a small strong one, and a speck."""
    values = np.random.default_rng(0).uniform(0, 0.4, (60, 80)).astype(np.float32)
    values[5:15, 5:15] = 0.6  # 100 x 0.1
    values[30:34, 40:44] = 5.0  # 16 x 4.5
    values[50, 70] = 9.0
    values[31, 41] = 5.5
    return values


def test_regions_are_ranked_by_area_times_excess(flagged: Any) -> None:
    prediction = np.zeros((60, 80), np.uint8)
    prediction[20:] = 3
    scores = {"anomaly": flagged, "entropy": flagged / 10}
    strong, weak = find_alarms(scores, "anomaly", 0.5, prediction, 10)
    assert strong.box == (40, 30, 4, 4)
    assert strong.area == 16
    assert strong.peak == (41, 31)
    assert strong.class_id == 3
    assert strong.strength == pytest.approx(16 * 4.5 + 0.5)
    assert strong.values == {"anomaly": 5.5, "entropy": pytest.approx(0.55)}
    assert weak.box == (5, 5, 10, 10)
    assert weak.class_id == 0
    assert weak.strength == pytest.approx(10, rel=1e-4)


def test_a_region_has_its_area_and_its_strength(flagged: Any) -> None:
    _, boxes, strengths = regions_of(flagged, 0.5)
    areas = boxes[:, 4].tolist()
    pairs = sorted(zip(areas, strengths.round(3).tolist(), strict=True))
    assert pairs == [(1, 8.5), (16, 72.5), (100, 10.0)]


ALARMS_OF_ALL_FRAMES = """
    segunc.data.frames
        .flatMap(({ name, alarms }) => alarms.map(({ strength }) => [strength, name]))
        .sort((a, b) => b[0] - a[0])
"""
STORED_VERDICTS = """
    segunc.verdicts
        .all()
        .map(({ frame, region, verdict }) => [frame, region.score, region.threshold, verdict])
"""


def test_alarms_of_all_frames_are_listed_the_strongest_first(
    scene: Scene, tmp_path: Path, visit: Visit
) -> None:
    page = visit.open(write_page(scene.maps, tmp_path / "review", anomaly_labels=scene.anomaly))
    page.keyboard.press("w")
    items = page.locator("#alarm-list li")
    alarms = page.evaluate(ALARMS_OF_ALL_FRAMES)
    assert items.count() == len(alarms) >= 3
    _, strongest = alarms[0]
    assert strongest in items.first.inner_text()
    assert "taken for" in items.first.inner_text()


def test_alarms_are_judged_with_one_key_and_their_frames_follow(
    scene: Scene, tmp_path: Path, visit: Visit
) -> None:
    page = visit.open(write_page(scene.maps, tmp_path / "review", anomaly_labels=scene.anomaly))
    page.keyboard.press("w")
    page.keyboard.press("s")  # asks who judges
    page.keyboard.type("Ana")
    page.keyboard.press("Enter")
    visit.shown("#alarm-list li:first-child .verdict", "false")
    visit.until("document.activeElement.dataset.position === '1'")
    page.keyboard.press("a")
    visit.shown("#alarm-list li:nth-child(2) .verdict", "true")
    stored = page.evaluate(STORED_VERDICTS)
    assert sorted(verdict for *_, verdict in stored) == ["false-alarm", "true-alarm"]
    assert {(score, threshold) for _, score, threshold, _ in stored} == {("entropy", 0.5)}
    page.locator("#alarm-list li").first.locator(".alarm").click()
    visit.until("segunc.state.get().view === 'frame' && segunc.state.get().region !== null")
    assert page.evaluate("segunc.state.get().threshold") == 0.5
    visit.shown("#regions [aria-pressed=true]", "false")


def test_the_list_says_what_verdicts_change_in_the_bank(
    scene: Scene, tmp_path: Path, visit: Visit
) -> None:
    maps = write_maps(scene.images, tmp_path / "maps", recorded={"features_sha256": "0" * 64})
    page = visit.open(write_page(maps, tmp_path / "review"))
    name_reviewer(visit, "Ana")
    page.keyboard.press("w")
    assert page.locator("#alarm-learning").is_hidden()
    page.keyboard.press("s")
    visit.shown("#alarm-learning", "1 false alarm will enter the bank of features. Export")
    page.keyboard.press("a")
    visit.shown("#alarm-learning", "1 called true or part of a miss stays out")
    assert "segunc finetune --method features" in page.inner_text("#alarm-learning code")
    page.set_viewport_size({"width": 390, "height": 844})
    box = page.locator("#alarm-learning").bounding_box()
    assert box["x"] + box["width"] <= 390


def test_the_bank_is_counted_over_what_the_exported_file_holds(
    scene: Scene, tmp_path: Path, visit: Visit
) -> None:
    maps = write_maps(scene.images, tmp_path / "maps", recorded={"features_sha256": "0" * 64})
    index = write_page(maps, tmp_path / "review")
    page = visit.open(index, "view=alarms")
    name_reviewer(visit, "Ana")
    verdicts = [
        page.locator(f"#alarm-list li:nth-child({place}) [data-verdict='{kind}']")
        for place, kind in ((1, "false-alarm"), (2, "false-alarm"), (3, "true-alarm"))
    ]
    for button in verdicts:
        button.click()
    visit.shown("#alarm-learning", "2 false alarms will enter the bank of features. 1 called true")
    # Ben agrees on the first, calls the second true, and the third false.
    exported = page.evaluate("segunc.verdicts.all()")
    others = {"false-alarm": "true-alarm", "true-alarm": "false-alarm"}
    _, first = page.evaluate(ALARMS_OF_ALL_FRAMES)[0]
    assert [entry["frame"] for entry in exported].count(first) == 1
    for entry in exported:
        entry["reviewer"] = "Ben"
        if entry["frame"] != first:
            entry["verdict"] = others[entry["verdict"]]
    page.evaluate("(entries) => segunc.verdicts.add(entries.map(segunc.verdicts.clean))", exported)
    # Blind, so that no number tells what Ben said of a region.
    visit.shown(
        "#alarm-learning",
        "By the verdicts that you may see, 2 false alarms will enter the bank of features.",
    )
    visit.shown(
        "#alarm-learning", "3 verdicts of other reviewers are hidden until you judge the frame"
    )
    for frame in {entry["frame"] for entry in exported}:
        page.evaluate("(frame) => segunc.verdicts.set(frame, { verdict: 'unsure' })", frame)
    visit.shown(
        "#alarm-learning",
        "1 false alarm will enter the bank of features, counted with the verdicts of other "
        "reviewers. 2 called true or part of a miss stay out; reviewers disagree on 2 of them. "
        "Export",
    )
    with page.expect_download() as download:
        page.click("#export-json")
    file = tmp_path / "v.json"
    download.value.save_as(file)
    judged = read_judged([file], str(maps))
    assert (judged.false_alarms, judged.to_find) == (1, 2)


def test_maps_without_a_bank_say_nothing_of_it(scene: Scene, tmp_path: Path, visit: Visit) -> None:
    page = visit.open(write_page(scene.maps, tmp_path / "review"))
    name_reviewer(visit, "Ana")
    page.keyboard.press("w")
    page.keyboard.press("s")
    visit.shown("#alarm-list li:first-child .verdict", "false")
    assert page.locator("#alarm-learning").is_hidden()


def reasons_of(pixels: list[tuple[int, int]]) -> list[dict[str, Any]]:
    """Say why each pixel (x, y) is strange: weak in the upper half, strong in the lower."""
    reasons = []
    for _, y in pixels:
        parts = {"knn": 4.7, "deterministic-energy": 0.2}
        if y < 15:
            parts = {"deterministic-energy": 1.2, "knn": 3.4}
        nearest = {"frame": "town/<7>", "distance": 0.2146}
        reasons.append({"parts": parts, "nearest": nearest})
    return reasons


def alarms_of(visit: Visit, maps: Path) -> list[str]:
    """Open the alarms of maps, and return their texts."""
    page = visit.open(write_page(maps, maps.parent / "review"))
    page.keyboard.press("w")
    return page.locator("#alarm-list li").all_inner_texts()


def test_an_alarm_says_why(scene: Scene, tmp_path: Path, visit: Visit) -> None:
    maps = write_maps(
        scene.images,
        tmp_path / "maps",
        scores=("entropy", "anomaly"),
        reasons=reasons_of,
        measured_to={"anomaly": 4.3},
    )
    texts = alarms_of(visit, maps)
    words = "\n".join(texts)
    assert "why: second encoder 3.4 decades (1 in 2,500), network 1.2 (1 in 16)" in words
    assert "why: second encoder 4.7 decades (< 1 in 20,000), network 0.2 (usual)" in words
    for text in texts:
        assert "most like training frame town/<7>, distance 0.21" in text
        assert "; there" not in text
    assert visit.page.evaluate("segunc.data.page.scores.anomaly.measured_to") == 4.3
    assert "3 decades: one in 1,000 pixels of normal scenes" in visit.page.inner_text("#alarm-note")


def test_an_alarm_of_older_maps_says_what_it_did(
    scene: Scene, tmp_path: Path, visit: Visit
) -> None:
    maps = write_maps(scene.images, tmp_path / "older", scores=("entropy", "anomaly"))
    texts = alarms_of(visit, maps)
    assert texts
    for text in texts:
        assert "; there entropy" in text
        assert "why" not in text
        assert "most like" not in text
    assert visit.page.evaluate("segunc.data.page.scores.anomaly.measured_to") == 3
    assert "decades" not in visit.page.inner_text("#alarm-note")


def test_an_alarm_without_a_recorded_peak_says_so_beside_one_that_says_why(
    scene: Scene, tmp_path: Path, visit: Visit
) -> None:
    maps = write_maps(
        scene.images, tmp_path / "maps", scores=("entropy", "anomaly"), reasons=reasons_of
    )
    # At a high threshold, the regions of the maps fall apart, and one piece has the peak.
    index = write_review(maps, tmp_path / "review", flag={"anomaly": Threshold(4.5, smallest=1)})
    page = visit.open(index, "view=alarms")
    texts = page.locator("#alarm-list li").all_inner_texts()
    silent = [text for text in texts if "why: not recorded for this region" in text]
    assert 0 < len(silent) < len(texts)
    assert all("; there entropy" in text and "most like" not in text for text in silent)
    assert all("why: " in text for text in texts)


SLOW_MAPS = """
    (() => {
        const get = segunc.maps.get;
        segunc.maps.get = (...key) =>
            new Promise((done) => setTimeout(() => done(get(...key)), 300));
    })()
"""


def test_quick_keys_judge_one_alarm_after_the_other_while_maps_load(
    scene: Scene, tmp_path: Path, visit: Visit
) -> None:
    page = visit.open(write_page(scene.maps, tmp_path / "review"))
    page.evaluate(SLOW_MAPS)
    page.keyboard.press("w")
    page.keyboard.press("s")
    assert page.evaluate("document.getElementById('reviewer').open"), (
        "the name is asked for before the next key"
    )
    page.keyboard.type("Ana")
    page.keyboard.press("Enter")
    visit.until("document.activeElement.dataset.position === '1'")
    page.keyboard.press("a")
    visit.shown("#alarm-list li:nth-child(2) .verdict", "true")
    visit.shown("#alarm-list li:first-child .verdict", "false")


def test_labels_are_hidden_until_a_frame_is_judged(
    scene: Scene, tmp_path: Path, visit: Visit
) -> None:
    index = write_page(scene.maps, tmp_path / "review", anomaly_labels=scene.anomaly, blind="yes")
    visit.open_frame(index, NAMES[0], "&layer=label%2Fanomaly&flags=1&threshold=0.6")
    page = visit.page
    assert page.locator("#stage .outline path").count() == 0
    assert page.locator("#layers input[value='label/anomaly']").is_disabled()
    assert page.inner_text("[data-content='label/anomaly']") == "–"
    name_reviewer(visit, "Ana")
    page.keyboard.press("g")
    assert "labelled" not in page.inner_text("#cards")
    visit.open_frame(index, NAMES[0], "&flags=1&threshold=0.6")
    page.keyboard.press("r")
    page.keyboard.press("s")
    page.keyboard.press("Escape")
    visit.shown("button.derived", "false alarm")
    assert page.locator("#layers input[value='label/anomaly']").is_disabled(), (
        "a verdict on a region reveals no frame"
    )
    page.keyboard.press("a")
    visit.until("document.querySelectorAll('#stage .outline path').length > 0")
    assert not page.locator("#layers input[value='label/anomaly']").is_disabled()


@pytest.mark.parametrize(
    ("blind", "others", "hidden"),
    [
        ("auto", 1, True),
        ("auto", 2, False),
        ("no", 1, False),
    ],
)
def test_the_second_of_two_reviewers_is_not_led(
    blind: str, others: int, hidden: bool, scene: Scene, tmp_path: Path, visit: Visit
) -> None:
    index = write_page(scene.maps, tmp_path / "review", anomaly_labels=scene.anomaly, blind=blind)
    verdicts = [
        Verdict(NAMES[0], "true-alarm", "an elk", "2026-01-01T00:00:00Z", name)
        for name in ("Ben", "Cem")
    ]
    write_verdicts(index.parent, run_id(MapsReader(scene.maps)), verdicts[:others])
    page = visit.open(index)
    asks_first = blind == "auto" and others == 1
    assert ("give your name first" in page.inner_text("#notices")) == asks_first
    name_reviewer(visit, "Ana")
    assert ("true alarm" in page.inner_text("#cards")) is not hidden
    assert ("label" in page.inner_text("#cards")) is not hidden
    visit.open_frame(index, NAMES[0])
    assert ("an elk" in page.inner_text("#panel")) is not hidden
    page.keyboard.press("s")
    visit.shown("#panel", "Ben: true alarm (an elk)")
    page.keyboard.press("g")
    visit.shown("#cards", "Ana: false alarm")
    page.set_viewport_size({"width": 390, "height": 844})
    for badge in page.locator("#cards .badge.person").all():
        box = badge.bounding_box()
        assert box["x"] + box["width"] <= 390, f"{badge.inner_text()} is cut on a phone"


@pytest.mark.parametrize("width", [390, 960, 1400])
def test_verdicts_of_two_reviewers_are_not_cut_on_a_card(
    width: int, scene: Scene, tmp_path: Path, visit: Visit
) -> None:
    index = write_page(scene.maps, tmp_path / "review")
    verdicts = [
        Verdict(NAMES[0], "nothing-wrong", "", "2026-01-01T00:00:00Z", reviewer)
        for reviewer in ("Ana", "Benjamin")
    ]
    write_verdicts(index.parent, run_id(MapsReader(scene.maps)), verdicts)
    page = visit.open(index)
    page.set_viewport_size({"width": width, "height": 800})
    card = page.locator("#cards a", has_text=NAMES[0])
    edges = card.bounding_box()
    badges = card.locator(".badge.person").all()
    assert len(badges) == 2
    for badge in badges:
        box = badge.bounding_box()
        assert box["x"] + box["width"] <= edges["x"] + edges["width"]
        assert box["y"] + box["height"] <= edges["y"] + edges["height"]


def test_a_view_is_saved_as_a_picture_with_its_caption(
    scene: Scene, tmp_path: Path, visit: Visit
) -> None:
    index = write_page(scene.maps, tmp_path / "review", anomaly_labels=scene.anomaly)
    visit.open_frame(index, NAMES[0], "&layer=entropy&flags=1&threshold=0.6&opacity=1")
    with visit.page.expect_download() as download:
        visit.page.keyboard.press("S")
    assert download.value.suggested_filename.endswith("-a_dark-entropy.png")
    download.value.save_as(tmp_path / "view.png")
    picture = cv2.imread(str(tmp_path / "view.png"))[..., ::-1].astype(int)
    height, width = 480, 640  # the frame, enlarged, above the strip
    assert picture.shape[1] == width
    assert picture.shape[0] > height
    values = MapsReader(scene.maps).read(NAMES[0], "entropy")
    bright = np.kron(values >= 0.6, np.ones((16, 16), bool))
    shown = picture[:height].sum(2)
    assert shown[bright].mean() > shown[~bright].mean() + 100  # plasma rises in lightness
    # words and a bar of colours
    assert len(np.unique(picture[height:].reshape(-1, 3), axis=0)) > 50


CYAN = (0, 224, 224)


def legend_of(visit: Visit, path: Path) -> Any:
    """Save the view and return the strip below its frame, which is 480 pixels high."""
    with visit.page.expect_download() as download:
        visit.page.keyboard.press("S")
    download.value.save_as(path)
    return cv2.imread(str(path))[480:, :, ::-1]


def test_a_saved_picture_has_a_legend_of_its_outlines(
    scene: Scene, tmp_path: Path, visit: Visit
) -> None:
    index = write_page(scene.maps, tmp_path / "review", anomaly_labels=scene.anomaly)
    visit.open_frame(index, NAMES[0], "&layer=image&flags=1&threshold=0.6&outline=1")
    strip = legend_of(visit, tmp_path / "outlined.png")
    cyan = (strip == CYAN).all(2)
    assert cyan.sum() > 40
    white = (strip == (255, 255, 255)).all(2).sum(1)  # of each line of pixels
    assert (white > 20).sum() >= 2  # the two lines of the label
    visit.open_frame(index, NAMES[0], "&layer=image&flags=0&outline=0")
    plain = legend_of(visit, tmp_path / "plain.png")
    assert not (plain == CYAN).all(2).any()
    assert len(plain) < len(strip)


def test_a_frame_is_first_seen_with_what_the_shown_threshold_flags(
    scene: Scene, tmp_path: Path, visit: Visit
) -> None:
    index = write_page(scene.maps, tmp_path / "review")
    visit.open_frame(index, NAMES[0])
    assert float(visit.page.input_value("#threshold-number")) == 0.5  # as the maps record
    values = carried(MapsReader(scene.maps).read(NAMES[0], "entropy"))
    visit.until("document.querySelector('#stage .flags path') !== null")
    path = visit.page.locator("#stage .flags path").first.get_attribute("d") or ""
    assert inside_of(path) == {(x, y) for y, x in np.argwhere(values >= 0.5)}
    visit.page.keyboard.press("t")
    assert visit.page.evaluate("segunc.state.get().flags") is False


def test_one_event_is_no_plural(tmp_path: Path, visit: Visit) -> None:
    maps = write_events_scene(tmp_path / "maps")
    index = write_page(maps, tmp_path / "review", flag={"entropy": 0.9})
    visit.open(index, "view=alarms")
    visit.shown("#alarm-note", "1 event: alarms that are followed over frames")


def test_the_page_lists_an_event_once_and_its_bar_leads_to_the_peak(
    tmp_path: Path, visit: Visit
) -> None:
    maps = write_events_scene(tmp_path / "maps")
    page = visit.open(write_page(maps, tmp_path / "review", flag={"entropy": 0.5}))
    page.keyboard.press("w")
    items = page.locator("#alarm-list li")
    assert items.count() == 3
    assert "event 0:00.15 to 0:00.40, 5 frames" in " ".join(items.all_inner_texts())
    page.locator("#alarm-once").click()
    assert items.count() == 18 + 5 + 1
    page.evaluate("segunc.state.set({ view: 'frame', frame: '000000' })")
    bars = page.locator("#events i")
    assert bars.count() == 3
    bars.first.click()  # of the strongest
    visit.until("segunc.state.get().frame === '000004' && segunc.state.get().threshold === 0.5")


def test_images_without_times_have_no_events(tmp_path: Path, visit: Visit) -> None:
    maps = write_events_scene(tmp_path / "untimed", timed=False)
    page = visit.open(write_page(maps, tmp_path / "review", flag={"entropy": 0.5}))
    assert page.evaluate("segunc.data.page.events.length") == 0


MORE_REGIONS = "segunc.data.frames[0].regions += 9"
NO_MAPS = "void (segunc.maps.get = () => Promise.reject(new Error('gone')))"


def test_the_list_says_how_many_regions_it_leaves_out(
    scene: Scene, tmp_path: Path, visit: Visit
) -> None:
    index = write_page(scene.maps, tmp_path / "review")
    page = visit.open(index)
    page.keyboard.press("w")
    listed = page.locator("#alarm-list > li").count()
    visit.shown("#alarm-note", f"{listed} regions of entropy")
    assert "Open a frame" not in page.inner_text("#alarm-note")
    page = visit.open(index)
    page.evaluate(MORE_REGIONS)
    page.keyboard.press("w")
    visit.shown("#alarm-note", f"{listed} of {listed + 9} regions of entropy")
    visit.shown("#alarm-note", "Open a frame to judge its other regions.")


def test_maps_that_cannot_be_read_are_said_to_lack_alarms(
    scene: Scene, tmp_path: Path, visit: Visit
) -> None:
    page = visit.open(write_page(scene.maps, tmp_path / "review"), "view=alarms")
    visit.shown("#alarm-note", "regions of entropy")
    page.evaluate(NO_MAPS)
    page.fill("#alarm-threshold", "0.4")
    visit.shown("#alarm-note", "could not be read, so alarms are missing here.")


def test_frames_that_are_judged_by_their_regions_alone_are_told_apart(
    scene: Scene, tmp_path: Path, visit: Visit
) -> None:
    page = visit.open(write_page(scene.maps, tmp_path / "review"))
    name_reviewer(visit, "Ana")
    page.keyboard.press("w")
    last = page.locator("#alarm-list > li").count()
    page.keyboard.press("End")
    page.keyboard.press("s")
    open_words = f"{last - 1} of {last} alarms have no verdict yet"
    visit.shown("#live", f"alarm {last}: false. This is the end of the list. {open_words}")
    visit.shown("#progress", "1 of 6 judged, 1 by regions alone")
    page.keyboard.press("g")
    visit.shown("#cards .badge.person", "a region: false")


def test_an_alarm_is_named_by_words(scene: Scene, tmp_path: Path, visit: Visit) -> None:
    page = visit.open(write_page(scene.maps, tmp_path / "review"), "view=alarms")
    listed = page.locator("#alarm-list > li")
    name = page.evaluate("segunc.data.frames.find(({ alarms }) => alarms.length).name")
    titles = page.locator("#alarm-list b").all_inner_texts()
    assert titles[0].startswith(f"Alarm 1 of {listed.count()}, in frame ")
    assert any(title.endswith(f"in frame {name}") for title in titles)


VERDICTS = """segunc.verdicts.all().map(({ verdict }) => verdict)"""


def test_a_key_after_the_last_alarm_changes_no_verdict(
    scene: Scene, tmp_path: Path, visit: Visit
) -> None:
    page = visit.open(write_page(scene.maps, tmp_path / "review"), "view=alarms")
    name_reviewer(visit, "Ana")
    page.keyboard.press("w")
    total = page.locator("#alarm-list > li").count()
    for done in range(1, total + 1):
        page.keyboard.press("s")
        visit.shown("#alarm-progress", f"{done} of {total} alarms judged")
    visit.shown("#alarm-end", f"All {total} alarms have a verdict.")
    visit.shown("#live", f"All {total} alarms have a verdict.")
    for key in ("a", "Backspace"):
        page.keyboard.press(key)
        visit.shown("#live", "nothing was changed")
    page.keyboard.press("g")
    page.keyboard.press("w")  # back in the list, nothing has the focus that a key would judge
    page.keyboard.press("u")
    visit.shown("#live", "nothing was changed")
    assert page.evaluate(VERDICTS) == ["false-alarm"] * total
    page.keyboard.press("ArrowUp")
    page.keyboard.press("a")
    visit.shown("#live", f"alarm {total}: true")
    assert sorted(page.evaluate(VERDICTS)) == ["false-alarm"] * (total - 1) + ["true-alarm"]


def test_the_end_of_the_list_leads_to_the_first_alarm_without_a_verdict(
    scene: Scene, tmp_path: Path, visit: Visit
) -> None:
    page = visit.open(write_page(scene.maps, tmp_path / "review"), "view=alarms")
    name_reviewer(visit, "Ana")
    page.keyboard.press("w")
    page.keyboard.press("s")
    page.keyboard.press("End")
    page.keyboard.press("s")
    total = page.locator("#alarm-list > li").count()
    visit.shown("#alarm-end", f"{total - 2} of {total} alarms have no verdict yet.")
    page.click("#alarm-end button")
    focused = "[...document.querySelectorAll('#alarm-list li')]"
    focused += ".findIndex((item) => item.contains(document.activeElement))"
    assert page.evaluate(focused) == 1


FOCUSED = """[...document.querySelectorAll('#alarm-list li')]
  .findIndex((item) => item.contains(document.activeElement))"""


def test_a_reviewer_who_comes_back_goes_on_at_the_first_alarm_without_a_verdict(
    scene: Scene, tmp_path: Path, visit: Visit
) -> None:
    index = write_page(scene.maps, tmp_path / "review")
    page = visit.open(index, "view=alarms")
    assert page.locator("#alarms-view button", has_text="To the first").first.is_hidden()
    name_reviewer(visit, "Ana")
    page.keyboard.press("w")
    page.keyboard.press("s")
    page.keyboard.press("s")
    visit.shown("#alarm-progress", "2 of ")
    visit.open(index)
    page.keyboard.press("w")
    assert page.evaluate(FOCUSED) == 2
    page.keyboard.press("Home")
    assert page.evaluate(FOCUSED) == 0
    page.locator("#alarms-view button", has_text="To the first").first.click()
    assert page.evaluate(FOCUSED) == 2


def test_a_list_whose_alarms_are_all_judged_opens_at_its_end(
    scene: Scene, tmp_path: Path, visit: Visit
) -> None:
    index = write_page(scene.maps, tmp_path / "review")
    page = visit.open(index, "view=alarms")
    name_reviewer(visit, "Ana")
    page.keyboard.press("w")
    total = page.locator("#alarm-list > li").count()
    for done in range(1, total + 1):
        page.keyboard.press("s")
        visit.shown("#alarm-progress", f"{done} of {total} alarms judged")
    visit.open(index)
    page.keyboard.press("w")
    page.keyboard.press("a")
    visit.shown("#live", "nothing was changed")
    assert page.evaluate(VERDICTS) == ["false-alarm"] * total


def test_a_key_leads_to_the_next_alarm_without_a_verdict(
    scene: Scene, tmp_path: Path, visit: Visit
) -> None:
    page = visit.open(write_page(scene.maps, tmp_path / "review"), "view=alarms")
    name_reviewer(visit, "Ana")
    page.keyboard.press("w")
    total = page.locator("#alarm-list > li").count()
    page.keyboard.press("End")
    page.keyboard.press("s")  # behind the last alarm now
    visit.shown("#alarm-progress", f"1 of {total} alarms judged")
    page.keyboard.press("y")
    assert page.evaluate(FOCUSED) == 0
    page.keyboard.press("y")
    assert page.evaluate(FOCUSED) == 1


def test_the_sheet_of_keys_offers_no_verdict_that_an_alarm_cannot_have(
    scene: Scene, tmp_path: Path, visit: Visit
) -> None:
    page = visit.open(write_page(scene.maps, tmp_path / "review"))
    page.keyboard.press("?")
    visit.shown("#help", "nothing wrong: on the frame or a card")
    visit.shown("#help", "true alarm: on the frame, the chosen region, an alarm, or a card")


def write_many_alarms(folder: Path) -> Path:
    """Write maps of 15 frames with an image and two alarms each."""
    images = folder / "images"
    images.mkdir()
    out = folder / "maps"
    manifest = build_manifest({}, ("entropy",), device="cpu", classes=["road"], palette=[(0, 0, 0)])
    rng = np.random.default_rng(0)
    with MapsWriter(out, manifest) as writer:
        for number in range(15):
            name = f"{number:02}"
            picture = rng.integers(0, 255, (60, 80, 3), dtype=np.uint8)
            assert cv2.imwrite(str(images / f"{name}.png"), picture)
            values = np.zeros((60, 80), np.float32)
            values[5:15, 5:15] = 0.9
            values[30:40, 40:50] = 0.8
            content = {"entropy": values, "prediction": np.zeros((60, 80), np.uint8)}
            writer.commit(writer.store(name, content))
    return out


def test_a_printed_list_of_alarms_holds_all_crops(tmp_path: Path, visit: Visit) -> None:
    maps = write_many_alarms(tmp_path)
    index = write_review(maps, tmp_path / "review", images=str(tmp_path / "images"))
    page = visit.open(index, "view=alarms")
    visit.until("document.getElementById('alarm-drawing').hidden")
    pdf = page.pdf()
    assert pdf.count(b"/Subtype /Image") >= 30
    assert pdf.count(b"/Type /Page\n") > 1
    page.emulate_media(media="print")
    assert page.locator(".not-drawn:visible").count() == 0
    page.evaluate("document.querySelector('#alarm-list li').dataset.crop = 'begun'")
    assert page.locator(".not-drawn:visible").count() == 1
    assert page.locator("#alarm-list li:first-child canvas").is_hidden()
