"""The page on a phone: judged, boxed, zoomed and taken back with fingers alone."""

from collections.abc import Iterator
from itertools import combinations
from pathlib import Path
from typing import Any

import pytest
from axe_playwright_python.sync_playwright import Axe

from tests.support.scenes import NAMES, SIZE, Scene, write_page
from tests.support.visits import Visit

VIEWS = ("gallery", "alarms", "frame", "run")
SMALLEST_TARGET = 40  # pixels on each side of what a finger touches
SMALL_TARGETS = """() => {
  const controls = document.querySelectorAll("button, select, input, textarea, a, summary");
  const small = [];
  for (const control of controls) {
    const { width, height } = control.getBoundingClientRect();
    const style = getComputedStyle(control);
    if (!width || style.visibility === "hidden" || control.id === "skip") continue;
    if (width >= SIDE && height >= SIDE) continue;
    small.push(`${control.id} ${control.textContent} ${width} x ${height}`);
  }
  return small;
}""".replace("SIDE", str(SMALLEST_TARGET))


@pytest.fixture(scope="module")
def index(scene: Scene, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("touch") / "review"
    return write_page(scene.maps, out, anomaly_labels=scene.anomaly)


@pytest.fixture
def phone(browser: Any) -> Iterator[Visit]:
    settings = {
        "viewport": {"width": 390, "height": 844},
        "has_touch": True,
        "is_mobile": True,
    }
    visitor = Visit(browser, **settings)
    yield visitor
    visitor.close()


class Fingers:
    """Touches of a page, as the browser gets them from a screen."""

    def __init__(self, visit: Visit) -> None:
        self._session = visit.page.context.new_cdp_session(visit.page)

    def put(self, kind: str, *places: tuple[float, float]) -> None:
        points = [{"x": x, "y": y, "id": number} for number, (x, y) in enumerate(places)]
        event: Any = {"type": f"touch{kind}", "touchPoints": points}
        self._session.send("Input.dispatchTouchEvent", event)


def give_name(visit: Visit, name: str) -> None:
    visit.page.keyboard.type(name)
    visit.page.tap("#reviewer button[type=submit]")


def open_judged(visit: Visit, index: Path) -> None:
    """Open the first frame, with a verdict on it."""
    visit.open_frame(index, NAMES[0])
    visit.page.tap("#verdict-bar [data-verdict='false-alarm']")
    give_name(visit, "Ana")
    visit.shown("#progress", "1 of 6 judged")


@pytest.mark.parametrize("width", [320, 360, 390, 430])
def test_nothing_is_wider_than_the_screen(width: int, index: Path, phone: Visit) -> None:
    phone.page.set_viewport_size({"width": width, "height": 740})
    for view in VIEWS:
        page = phone.open(index, f"view={view}")
        assert page.evaluate("document.documentElement.scrollWidth") <= width, view
        assert page.evaluate("innerWidth") == width, view


@pytest.mark.parametrize("view", VIEWS)
def test_every_control_has_room_for_a_finger(view: str, index: Path, phone: Visit) -> None:
    page = phone.open(index, f"view={view}&flags=1&region=0")
    page.tap("#menu")
    assert page.evaluate(SMALL_TARGETS) == []


def test_verdicts_stay_in_reach_while_the_panel_scrolls(index: Path, phone: Visit) -> None:
    phone.open_frame(index, NAMES[0])
    phone.page.evaluate("document.getElementById('frame-view').scrollTop = 1e6")
    for button in phone.page.locator("#verdict-bar .buttons button").all():
        box = button.bounding_box()
        assert 0 <= box["x"] <= 390 - box["width"]
        assert 0 <= box["y"] <= 844 - box["height"]


def test_a_frame_is_judged_and_left_for_the_next(index: Path, phone: Visit) -> None:
    open_judged(phone, index)
    pressed = "#verdict-bar [data-verdict='false-alarm'][aria-pressed='true']"
    assert phone.page.locator(pressed).count() == 1
    name = phone.page.inner_text("#frame-name")
    phone.page.tap("#next-open")
    phone.until(f"document.getElementById('frame-name').innerText !== {name!r}")
    assert phone.page.locator("#verdict-bar [aria-pressed='true']").count() == 0


def test_a_verdict_is_taken_back_at_its_frame(index: Path, phone: Visit) -> None:
    open_judged(phone, index)
    phone.page.tap("#verdict-bar [data-verdict='']")
    phone.shown("#progress", "0 of 6 judged")


def test_a_long_promise_leaves_the_threshold_of_the_alarms_in_sight(
    scene: Scene, tmp_path: Path, phone: Visit, monkeypatch: pytest.MonkeyPatch
) -> None:
    promise = "At most 10 % of the objects are missed on average, for frames like these. " * 8
    monkeypatch.setattr("segunc.gallery.review_page._promise_notices", lambda *_: [promise])
    index = write_page(scene.maps, tmp_path / "review")
    page = phone.page
    page.set_viewport_size({"width": 390, "height": 664})
    phone.open(index, "view=alarms")
    for opened in ("by its address", "by its button"):
        box = page.locator("#alarm-threshold").bounding_box()
        assert box is not None
        middle = [box["x"] + box["width"] / 2, box["y"] + box["height"] / 2]
        there = page.evaluate("([x, y]) => document.elementFromPoint(x, y)?.id", middle)
        assert there == "alarm-threshold", opened
        page.tap("nav [data-view=gallery]")
        page.tap("nav [data-view=alarms]")
    has_focus = "document.activeElement.closest('#alarm-list li:first-child') !== null"
    assert page.evaluate(has_focus)


@pytest.mark.parametrize("corner", [[0.75, 0.9], [0.92, 0.95]])
def test_no_zoom_button_covers_the_number_of_a_region(
    corner: list[float], index: Path, phone: Visit
) -> None:
    phone.open_frame(index, NAMES[0], "&flags=0")
    page = phone.page
    page.evaluate("segunc.verdicts.setName('Ana')")
    page.evaluate("segunc.data.page.objects.smallest = 1")
    page.evaluate("(corner) => segunc.regions.mark([corner, [1, 1]])", corner)
    beside = [corner[0] - 0.05, corner[1] + 0.02]  # a number beside the first
    page.evaluate("(corner) => segunc.regions.mark([corner, [1, 1]])", beside)
    phone.until("document.querySelectorAll('#stage .boxes text').length === 2")
    shown = boxes_of(page)
    page.evaluate(
        "document.querySelectorAll('#stage text').forEach((text) => text.removeAttribute('style'))"
    )
    assert overlapping(boxes_of(page)), "or this would be no test"
    assert not overlapping(shown)


def boxes_of(page: Any) -> list[dict[str, float]]:
    """Return the boxes of the zoom buttons and of the numbers of regions."""
    parts = page.locator(".zooms, #stage .boxes text").all()
    return [part.bounding_box() for part in parts]


def overlapping(boxes: list[dict[str, float]]) -> list[tuple[dict[str, float], dict[str, float]]]:
    """Return the pairs of boxes that overlap by more than a pixel."""
    pairs = []
    for one, other in combinations(boxes, 2):
        gaps = [
            max(one[start], other[start]) - min(one[start] + one[side], other[start] + other[side])
            for start, side in (("x", "width"), ("y", "height"))
        ]
        if max(gaps) < -1:
            pairs.append((one, other))
    return pairs


def test_the_last_verdict_is_undone_and_done_again(index: Path, phone: Visit) -> None:
    open_judged(phone, index)
    phone.page.tap("#undo")
    phone.shown("#progress", "0 of 6 judged")
    assert phone.page.is_disabled("#undo")
    phone.page.tap("#redo")
    phone.shown("#progress", "1 of 6 judged")


def test_a_region_is_chosen_judged_and_left(index: Path, phone: Visit) -> None:
    phone.open_frame(index, NAMES[0])
    page = phone.page
    page.tap("#regions button")
    phone.shown("#subject", "Judging region 1")
    assert page.is_disabled("#verdict-bar [data-verdict='nothing-wrong']")
    page.tap("#verdict-bar [data-verdict='true-alarm']")
    give_name(phone, "Ana")
    phone.shown("#regions", "true")
    page.tap("#whole")
    phone.shown("#subject", "Judging the frame")


def test_undo_by_touch_keeps_the_region_chosen(index: Path, phone: Visit) -> None:
    phone.open_frame(index, NAMES[0])
    page = phone.page
    page.tap("#regions button")
    page.tap("#verdict-bar [data-verdict='true-alarm']")
    give_name(phone, "Ana")
    phone.shown("#regions", "true")
    page.tap("#undo")
    phone.shown("#progress", "0 of 6 judged")
    phone.shown("#subject", "Judging region 1")
    page.tap("#redo")
    phone.shown("#progress", "1 of 6 judged")
    phone.shown("#subject", "Judging region 1")


def test_the_hint_of_a_box_names_no_keys(index: Path, phone: Visit) -> None:
    phone.open_frame(index, NAMES[0])
    phone.page.tap("#mark")
    phone.shown("#live", "drag a box around what was missed with a finger")
    assert "arrows" not in phone.page.inner_text("#live")


def test_a_missed_object_is_boxed(index: Path, phone: Visit) -> None:
    phone.open_frame(index, NAMES[0], "&flags=0")
    page = phone.page
    page.evaluate("document.getElementById('mark').scrollIntoView()")
    page.tap("#mark")  # below the picture, which comes back into sight
    box = page.locator("#stage .world").bounding_box()
    scale = box["width"] / SIZE[1]
    fingers = Fingers(phone)
    fingers.put("Start", (box["x"] + 4 * scale, box["y"] + 3 * scale))
    for step in range(1, 5):
        fingers.put("Move", (box["x"] + (4 + 3 * step) * scale, box["y"] + (3 + 2 * step) * scale))
    fingers.put("End")
    give_name(phone, "Ana")
    phone.shown("#regions", "drawn · missed object")
    assert page.evaluate("segunc.regions.shown()[0].region.box") == [4, 3, 12, 8]


def test_two_fingers_zoom(index: Path, phone: Visit) -> None:
    phone.open_frame(index, NAMES[0])
    box = phone.page.locator("#stage").bounding_box()
    x, y = box["x"] + box["width"] / 2, box["y"] + box["height"] / 2
    fingers = Fingers(phone)
    fingers.put("Start", (x - 20, y))
    fingers.put("Start", (x - 20, y), (x + 20, y))
    for apart in (30, 40, 50, 60):
        fingers.put("Move", (x - apart, y), (x + apart, y))
    fingers.put("End")
    phone.until("segunc.state.get().zoom > 2.5")
    assert phone.page.evaluate("segunc.state.get().zoom") == pytest.approx(3, abs=0.01)


def test_an_alarm_is_judged_and_taken_back(index: Path, phone: Visit) -> None:
    page = phone.open(index, "view=alarms")
    first = page.locator("#alarm-list > li").first
    first.locator("[data-verdict='true-alarm']").tap()
    give_name(phone, "Ana")
    phone.shown("#alarm-list li:first-child .verdict", "true")
    first.locator("[data-verdict='']").tap()
    phone.until("document.querySelector('#alarm-list .verdict').hidden")
    assert page.evaluate("segunc.verdicts.all().length") == 0


def test_undo_in_the_list_of_alarms_names_the_alarm(index: Path, phone: Visit) -> None:
    page = phone.open(index, "view=alarms")
    page.locator("#alarm-list [data-verdict='true-alarm']").nth(1).tap()
    give_name(phone, "Ana")
    phone.shown("#live", "alarm 2: true")
    page.tap("#undo")
    phone.shown("#live", "Undone: true on alarm 2, in frame ")


def write_note(visit: Visit, button: str) -> None:
    """Write a note by a button of the page, with the keyboard of the phone."""
    page = visit.page
    box = page.locator(button).first.bounding_box()
    assert box is not None
    assert box["height"] >= SMALLEST_TARGET
    assert 0 <= box["x"] <= 390 - box["width"]
    page.locator(button).first.tap()
    give_name(visit, "Ana")
    visit.shown("#note-dialog[open] h2", "Note on frame")
    page.keyboard.type("wet road")
    page.locator("#note-dialog button").tap()
    visit.until("!document.getElementById('note-dialog').open")


def test_the_note_of_an_alarm_is_written_by_its_button(index: Path, phone: Visit) -> None:
    phone.open(index, "view=alarms")
    phone.shown("#alarm-list .write-note", "note on frame")
    write_note(phone, "#alarm-list .write-note")
    phone.shown("#alarm-list li:first-child", "your note on the frame: wet road")
    assert phone.page.is_enabled("#alarm-list li:first-child .write-note")


def test_the_note_of_a_card_is_written_by_its_button(index: Path, phone: Visit) -> None:
    page = phone.open(index, "view=gallery")
    phone.shown("#cards .write-note", "Note")
    write_note(phone, "#cards .write-note")
    phone.shown("#cards li:first-child .badge", "note")
    assert page.is_visible("#gallery-view")  # the card was not opened


def test_the_button_of_a_note_covers_no_words_of_its_card(index: Path, phone: Visit) -> None:
    page = phone.open(index, "view=gallery")
    card = page.locator("#cards li").first
    left = card.locator(".write-note").bounding_box()["x"]
    ends = card.evaluate(
        """(item) => [...item.querySelectorAll(".name, .facts")].map((line) => {
          const { right } = line.getBoundingClientRect();
          return right - parseFloat(getComputedStyle(line).paddingRight);
        })"""
    )
    assert max(ends) <= left


def test_the_next_alarm_is_whole_after_a_verdict(index: Path, phone: Visit) -> None:
    page = phone.open(index, "view=alarms")
    page.locator("#alarm-list [data-verdict='false-alarm']").first.tap()
    give_name(phone, "Ana")
    for position in range(1, page.locator("#alarm-list > li").count()):
        item = page.locator("#alarm-list > li").nth(position)
        phone.shown("#alarm-list > li .verdict:not([hidden])", "false")
        bottom = page.evaluate(
            "document.getElementById('alarms-view').getBoundingClientRect().bottom"
        )
        box = item.bounding_box()
        message = page.locator("#live").bounding_box()
        assert box["y"] + box["height"] <= min(bottom, message["y"]) + 1
        item.locator("[data-verdict='false-alarm']").tap()
        phone.shown("#live", f"alarm {position + 1}: false")


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_axe_finds_nothing_where_a_region_is_judged(theme: str, index: Path, phone: Visit) -> None:
    phone.page.emulate_media(color_scheme=theme)
    phone.open_frame(index, NAMES[0], "&region=0")
    phone.page.tap("#verdict-bar [data-verdict='unsure']")
    give_name(phone, "Ana")
    phone.shown("#regions", "unsure")
    options = {"resultTypes": ["violations"], "preload": False}
    found = Axe().run(phone.page, options=options)
    assert not found.violations_count, found.generate_report()
