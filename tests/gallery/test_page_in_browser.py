"""The page in Chromium: gallery, keys, verdicts, timeline, and what a screen reader meets."""

import re
import shutil
from itertools import combinations, pairwise
from pathlib import Path
from typing import Any

import pytest

from segunc.maps.reader import MapsReader
from tests.support.scenes import NAMES, SIZE, Scene, write_page, write_video_scene
from tests.support.visits import Visit

WORST_FIRST = list(reversed(NAMES))


def test_gallery_is_sorted_worst_first_by_any_statistic(
    full_page: Path, scene: Scene, visit: Visit
) -> None:
    page = visit.open(full_page)
    records = MapsReader(scene.maps).records
    strength = {
        name: (records[name]["region"]["entropy"], records[name]["mean"]["entropy"])
        for name in NAMES
    }
    # The object of the darkest frame stands before a brighter frame without one.
    assert visit.names() == sorted(NAMES, key=strength.__getitem__, reverse=True) != WORST_FIRST
    page.select_option("#filter-statistic", "mean")
    assert visit.names() == WORST_FIRST
    page.select_option("#filter-order", "lowest")
    assert visit.names() == list(NAMES)
    page.select_option("#filter-score", "epistemic")
    page.select_option("#filter-statistic", "p99")
    assert visit.names() == sorted(NAMES, key=lambda name: records[name]["p99"]["epistemic"])


def test_gallery_is_searched_and_filtered(full_page: Path, visit: Visit) -> None:
    page = visit.open(full_page)
    page.fill("#search", "SUB bright")
    assert visit.names() == ["sub/f bright"]
    visit.shown("#count", "1 of 6 frames")
    page.fill("#search", "")
    show = "#filter-show"
    page.select_option("#filter-statistic", "mean")
    page.select_option(show, "missed")
    visit.shown("#count", "threshold 0.5")  # as the maps record
    page.fill("#gallery-threshold", "0.6")
    assert visit.names() == [NAMES[2], NAMES[1]]  # of two objects one is enough to miss
    others = {
        "normal": NAMES[3:4],
        "unlabelled": NAMES[4:],
        "flagged": NAMES[4:],
        "below": NAMES[:4],
    }
    for kind, shown in {"found": NAMES[:1], **others}.items():
        page.select_option(show, kind)
        assert visit.names() == list(reversed(shown)), kind


def test_the_help_lists_keys_and_units(full_page: Path, visit: Visit) -> None:
    page = visit.open(full_page)
    page.keyboard.press("?")
    assert page.locator("#help[open] dt").count() > 25
    assert "entropy: share of ln C" in page.locator("#help").inner_text()


def test_every_step_has_a_key(full_page: Path, visit: Visit) -> None:
    page = visit.open(full_page)
    page.keyboard.press("?")
    page.keyboard.press("Escape")
    page.wait_for_timeout(300)  # the browser gives the focus back a little after a dialog closed
    page.keyboard.press("ArrowRight")  # on a fresh page, where nothing has the focus
    for key, place in (("Enter", 1), ("j", 2), ("k", 1), (".", 0)):
        page.keyboard.press(key)
        visit.shown("#frame-name", WORST_FIRST[place])


def test_layers_outline_and_threshold_have_keys(full_page: Path, visit: Visit) -> None:
    visit.open_frame(full_page, WORST_FIRST[0])
    page = visit.page
    page.keyboard.press("1")
    assert page.is_checked("input[value=prediction]")
    page.keyboard.press("3")
    assert page.is_checked("input[value=entropy]")
    for key, field in (("o", "outline"), ("t", "flags")):
        before = page.evaluate(f"segunc.state.get().{field}")
        page.keyboard.press(key)
        assert page.evaluate(f"segunc.state.get().{field}") is not before


def test_arrows_move_the_probe(full_page: Path, visit: Visit) -> None:
    visit.open_frame(full_page, WORST_FIRST[0])
    page = visit.page
    page.keyboard.press("ArrowDown")  # the picture has the focus since the frame was opened
    page.keyboard.press("Shift+ArrowLeft")
    x = SIZE[1] // 2 - 10
    y = SIZE[0] // 2 + 1
    assert page.evaluate("segunc.state.get().probe") == f"{x},{y}"
    visit.shown("#live", f"{x}, {y}: prediction")


def test_letters_belong_to_a_note_while_it_is_written(full_page: Path, visit: Visit) -> None:
    visit.open_frame(full_page, WORST_FIRST[0])
    page = visit.page
    page.keyboard.press("e")
    page.keyboard.type("Ana")  # whose note it is, asked once
    page.keyboard.press("Enter")
    # A dialog's close event comes a little after it.
    visit.until("document.activeElement.id === 'note'")
    page.keyboard.type("gm?")
    assert page.input_value("#note") == "gm?"
    page.keyboard.press("Escape")
    page.keyboard.press("i")
    assert page.is_visible("#run-view")


def test_the_gallery_and_its_search_have_keys(full_page: Path, visit: Visit) -> None:
    page = visit.open(full_page)
    page.keyboard.press("ArrowRight")
    page.keyboard.press("Enter")
    visit.shown("#frame-name", WORST_FIRST[1])
    page.keyboard.press(".")  # in source order, which is best first
    visit.shown("#frame-name", WORST_FIRST[0])
    page.keyboard.press("g")
    assert page.locator("#cards a:focus .name").inner_text() == WORST_FIRST[0]
    page.keyboard.press("/")
    assert page.evaluate("document.activeElement.id") == "search"


@pytest.fixture
def video(tmp_path: Path, visit: Visit) -> Visit:
    """The first frame of a video whose entropy has peaks at 10 and 30."""
    index = write_page(write_video_scene(tmp_path), tmp_path / "review")
    visit.open_frame(index, "000000")
    return visit


def test_the_timeline_jumps_to_peaks(video: Visit) -> None:
    assert video.page.evaluate("segunc.timeline.peaks()") == [10, 30]
    for key, name in (("]", "000010"), ("]", "000030"), ("[", "000010")):
        video.page.keyboard.press(key)
        video.shown("#frame-name", name)
    video.shown("#timeline-label", "0:00.50")


def test_the_timeline_is_scrubbed_and_played(video: Visit) -> None:
    page = video.page
    plot = page.locator(".plot").bounding_box()
    assert plot is not None
    page.mouse.click(plot["x"] + plot["width"] * 20 / 39, plot["y"] + 20)
    video.shown("#frame-name", "000020")
    page.locator("#chart").focus()
    page.keyboard.press("ArrowRight")
    assert page.get_attribute("#chart", "aria-valuenow") == "22"
    page.locator("#frame-name").click()
    page.evaluate("document.activeElement.blur()")
    page.keyboard.press("Space")
    video.until("Number(segunc.state.get().frame) >= 26")
    page.keyboard.press("Space")
    assert not page.evaluate("segunc.timeline.playing()")


def test_the_timeline_draws_every_frame(video: Visit) -> None:
    assert video.page.locator(".axis span").all_inner_texts() == ["0:00", "0:01"]
    path = video.page.locator(".plot .first").get_attribute("d") or ""
    points = re.findall(r"[ML](\d+) ([\d.]+)", path)
    assert [int(x) for x, _ in points] == list(range(40))
    heights = [float(y) for _, y in points]
    assert heights.index(min(heights)) == 30


@pytest.mark.parametrize("rate", [20, 30000 / 1001, "gaps"])
def test_labels_of_the_timeline_are_the_times_of_the_frames_at_their_places(
    tmp_path: Path, visit: Visit, rate: float | str
) -> None:
    if rate == "gaps":
        # As a watch keeps the frames of its alarms: some in a row, then none for a while.
        times = [0.4, *(7.5 + index / 10 for index in range(25)), *(61.3 + i for i in range(14))]
    else:
        times = [index / float(rate) for index in range(40)]
    index = write_page(write_video_scene(tmp_path, times=times), tmp_path / "review")
    visit.open_frame(index, "000000")
    page = visit.page
    labels = page.evaluate(
        "[...document.querySelectorAll('.axis span')].map((tick) =>"
        " [tick.style.left, tick.textContent])"
    )
    assert len(labels) >= 2
    for left, text in labels:
        number = float(left.rstrip("%")) / 100 * 39
        minutes, seconds = text.split(":")
        assert 60 * int(minutes) + float(seconds) == pytest.approx(times[round(number)], abs=0.0051)
    places = [float(left.rstrip("%")) for left, _ in labels]
    width = page.locator(".axis").bounding_box()["width"]
    assert min(b - a for a, b in pairwise(places)) / 100 * width > 50, "labels do not overlap"


def test_the_last_label_of_the_timeline_ends_within_the_chart(tmp_path: Path, visit: Visit) -> None:
    """A label of the last frame, of a watch that kept frames of alarms."""
    times = [0.4, *(7.5 + index / 10 for index in range(25)), *(3601.3 + i for i in range(15))]
    index = write_page(write_video_scene(tmp_path, 41, times=times), tmp_path / "review")
    visit.page.set_viewport_size({"width": 1200, "height": 900})
    visit.open_frame(index, "000000")
    page = visit.page
    labels = page.locator(".axis span")
    *_, before, last = [labels.nth(number).bounding_box() for number in range(labels.count())]
    chart = page.locator("#chart").bounding_box()
    plot = page.locator(".plot").bounding_box()
    assert labels.last.inner_text() == "60:15.30"
    assert last["x"] + last["width"] <= chart["x"] + chart["width"] - 1
    assert last["x"] > before["x"] + before["width"]
    first = labels.first.bounding_box()
    assert first["x"] + first["width"] / 2 == pytest.approx(plot["x"], abs=1), "others stay"


def test_the_gallery_shows_one_frame_of_each_moment(tmp_path: Path, visit: Visit) -> None:
    maps = write_video_scene(tmp_path, 60, 20.0)  # three seconds
    index = write_page(maps, tmp_path / "review", apart=1.0)
    page = visit.open(index)
    # Peaks at 10 and 30, 1 s apart; nothing else is a second from both but for the end.
    assert visit.names()[:2] == ["000030", "000010"]
    heads = [int(name) for name in visit.names()]
    assert all(abs(a - b) >= 20 for a, b in combinations(heads, 2))
    visit.shown("#count", f"{len(heads)} moments, 60 of 60 frames")
    page.locator("#cards li").first.locator(".moment").click()
    opened = [int(name) for name in visit.names()]
    assert opened[0] == 30
    assert all(0 < abs(member - 30) < 20 for member in opened[1:6])
    set_size = page.locator("#cards li").first.get_attribute("aria-setsize")
    assert int(set_size or 0) == len(heads) + 38
    page.keyboard.press("Home")
    page.keyboard.press("x")
    assert [int(name) for name in visit.names()] == heads
    page.select_option("#filter-moments", "all")
    assert page.locator("#cards li").first.get_attribute("aria-setsize") == "60"
    page.select_option("#filter-order", "source")
    assert page.locator("#filter-moments").is_disabled()


def test_a_page_without_its_folder_says_so(full_page: Path, tmp_path: Path, browser: Any) -> None:
    shutil.copy(full_page, tmp_path / "index.html")
    page = browser.new_page()
    page.goto((tmp_path / "index.html").as_uri())
    assert page.locator("#lost").is_visible()
    assert "needs the folders beside it" in page.inner_text("body")
    page.close()


PROMISE = (
    "On average, at most 10 % of the anomalous objects of a frame are missed; an object is found "
    "where 50 % of its pixels are flagged. It holds where frames come as those of the calibration "
    "did, from the same roads, camera, weather, labels, model and settings; another domain or "
    "corrupted images void it. Each frame counts as independent of every other frame."
)


def test_a_promise_is_whole_on_a_phone(full_page: Path, browser: Any) -> None:
    page = browser.new_page(viewport={"width": 390, "height": 844})
    page.goto(full_page.as_uri())
    strip = page.locator("#notices")
    strip.evaluate("(strip, text) => { strip.innerHTML = `<p class=notice>${text}</p>`; }", PROMISE)
    seen, whole = strip.evaluate("(element) => [element.clientHeight, element.scrollHeight]")
    assert seen == whole
    page.close()


def test_a_link_without_its_frame_says_so(full_page: Path, browser: Any) -> None:
    page = browser.new_page()
    page.goto(f"{full_page.as_uri()}#view=frame&frame=gone&score=entropy")
    assert not page.locator("#lost").is_visible()
    notices = page.inner_text("#notices")
    assert "asks for what this page does not hold: frame gone. The rest of it is shown." in notices
    assert page.is_visible("#gallery-view")
    page.close()


@pytest.mark.parametrize(
    "size",
    [
        (1400, 900),
        (960, 600),
        (390, 844),
    ],
)
def test_the_first_screen_explains_itself(
    size: tuple[int, int], full_page: Path, visit: Visit
) -> None:
    width, height = size
    visit.page.set_viewport_size({"width": width, "height": height})
    page = visit.open(full_page)
    assert page.locator("#intro li").count() == 3
    assert page.locator("#cards li").first.bounding_box()["y"] < 0.6 * height
    if size == (1400, 900):
        visit.shown("#model", "ABNN, 4 members, 24 draws")
    page.click("#intro-close")
    page.reload()
    assert page.locator("#intro").is_hidden(), "closed for good"
    page.keyboard.press("?")
    assert page.evaluate("document.getElementById('help').scrollTop") == 0
    assert page.locator("#help-title").is_visible()


@pytest.mark.parametrize(
    "size",
    [
        (1400, 900),
        (960, 600),
        (390, 844),
    ],
)
def test_a_toast_covers_nothing(size: tuple[int, int], full_page: Path, visit: Visit) -> None:
    width, height = size
    visit.page.set_viewport_size({"width": width, "height": height})
    page = visit.open(full_page)
    page.click("#intro-close")
    page.keyboard.press("q")  # what is said of it is a toast
    toast = page.locator("#live:not(.unseen)").bounding_box()
    for control in page.locator("header button:visible, #values dd:visible").all():
        box = control.bounding_box()
        apart = box["y"] + box["height"] <= toast["y"] or toast["y"] + toast["height"] <= box["y"]
        beside = box["x"] + box["width"] <= toast["x"] or toast["x"] + toast["width"] <= box["x"]
        assert apart or beside, f"{control.inner_text()} is covered"
