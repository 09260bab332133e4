"""What a reviewer does by keyboard alone: notes in every view, and boxes around missed objects."""

from pathlib import Path

import pytest

from tests.support.scenes import NAMES, Scene, write_page
from tests.support.visits import Visit, name_reviewer

TYPED = "part of the road, false as usual"  # holds the key of every verdict


@pytest.fixture(scope="module")
def index(scene: Scene, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("keyboard") / "review"
    return write_page(scene.maps, out, flag={"entropy": 0.6})


def entries(visit: Visit) -> list[tuple[str, str, str]]:
    """Return frame, verdict and note of all that was said."""
    words = "segunc.verdicts.all().map(({frame, verdict, note}) => [frame, verdict, note])"
    return [tuple(entry) for entry in visit.page.evaluate(words)]


def wait_for_focus(visit: Visit, selector: str) -> None:
    """Wait: a dialog gives the focus back after the key that closes it."""
    visit.until(f"document.activeElement.matches('{selector}')")


def test_a_note_on_the_frame_of_an_alarm(index: Path, visit: Visit) -> None:
    page = visit.open(index, "view=alarms")
    name_reviewer(visit, "Ana")
    page.locator("#alarm-list .alarm").first.focus()
    page.keyboard.press("e")
    visit.shown("#note-dialog[open] h2", "Note on frame")
    page.keyboard.type(TYPED)
    page.keyboard.press("Escape")
    assert not page.locator("#note-dialog[open]").count()
    ((named, verdict, note),) = entries(visit)
    assert verdict == ""
    assert note == TYPED
    assert named in page.locator("#alarm-list .alarm").first.inner_text()
    wait_for_focus(visit, "#alarm-list li:first-child .alarm")
    visit.shown("#alarm-list li:first-child", f"your note on the frame: {TYPED}")
    page.keyboard.press("a")
    visit.shown("#live", "alarm 1: true")


def test_a_note_on_the_frame_of_a_card(index: Path, visit: Visit) -> None:
    page = visit.open(index, "order=source")
    name_reviewer(visit, "Ana")
    page.locator("#cards a").first.focus()
    page.keyboard.press("ArrowRight")
    page.keyboard.press("e")
    page.keyboard.type(TYPED)
    page.keyboard.press("Escape")
    assert entries(visit) == [(NAMES[1], "", TYPED)]
    wait_for_focus(visit, "#cards li:nth-child(2) a")
    page.keyboard.press("e")
    assert page.input_value("#note-field") == TYPED


def test_a_note_and_a_verdict_are_undone_one_by_one(index: Path, visit: Visit) -> None:
    """Also where the frame had a note before, to which letters are added."""
    visit.open_frame(index, NAMES[2])
    page = visit.page
    name_reviewer(visit, "Ana")
    for keys in ("e", "o", "l", "d", "Escape"):
        page.keyboard.press(keys)
    assert entries(visit) == [(NAMES[2], "", "old")]
    page.reload()
    page.wait_for_selector("html[data-ready]")
    for keys in ("a", "e", "e", "r", "Escape"):
        page.keyboard.press(keys)
    (written,) = entries(visit)
    assert written == (NAMES[2], "true-alarm", "older")
    page.keyboard.press("Control+z")
    assert entries(visit) == [(NAMES[2], "true-alarm", "old")]
    page.keyboard.press("Control+z")
    assert entries(visit) == [(NAMES[2], "", "old")]
    page.keyboard.press("Control+Shift+z")
    page.keyboard.press("Control+Shift+z")
    assert entries(visit) == [written]


def test_the_name_is_asked_for_before_a_note_on_a_card(index: Path, visit: Visit) -> None:
    page = visit.open(index, "order=source")
    page.locator("#cards a").first.focus()
    page.keyboard.press("e")
    page.keyboard.type("Ana")
    page.keyboard.press("Enter")
    visit.shown("#note-dialog[open] h2", f"Note on frame {NAMES[0]}")
    page.keyboard.type(TYPED)
    assert entries(visit) == [(NAMES[0], "", TYPED)]


def test_without_a_chosen_card_the_key_of_a_note_says_what_to_do(index: Path, visit: Visit) -> None:
    page = visit.open(index)
    page.keyboard.press("e")
    visit.shown("#live", "no frame is chosen: the arrows lead to one")


@pytest.fixture
def frame(index: Path, visit: Visit) -> Visit:
    visit.open_frame(index, NAMES[0], "&probe=20,3")
    name_reviewer(visit, "Ana")
    return visit


def press(visit: Visit, *keys: str) -> None:
    for key in keys:
        visit.page.keyboard.press(key)


def boxes(visit: Visit) -> list[list[int]]:
    return list(visit.page.evaluate("segunc.verdicts.all().map(({region}) => region.box)"))


def test_a_missed_object_is_boxed_by_keyboard(frame: Visit) -> None:
    press(frame, "l", "Enter")
    frame.shown("#live", "first corner at 20, 3")
    press(frame, "Shift+ArrowRight", "ArrowRight", *["ArrowDown"] * 7)
    frame.shown("#live", "box of 12 x 8 pixels")
    assert frame.page.locator("#stage .boxes .drawn").count() == 1
    press(frame, "Enter")
    frame.shown("#regions", "drawn · missed object")
    assert boxes(frame) == [[20, 3, 12, 8]]


def test_the_first_corner_may_be_any_corner(frame: Visit) -> None:
    press(frame, "d", "Shift+ArrowRight", "Enter", "Shift+ArrowLeft", *["ArrowDown"] * 4, "Enter")
    frame.shown("#regions", "drawn · missed object")
    assert boxes(frame) == [[20, 3, 11, 5]]


def test_escape_drops_a_box_and_its_first_corner(frame: Visit) -> None:
    press(frame, "l", "Enter", "Shift+ArrowRight", "Escape")
    frame.shown("#live", "no box was drawn")
    assert frame.page.locator("#stage .boxes .drawn").count() == 0
    assert frame.page.is_visible("#frame-view")
    press(frame, "l", "Enter", "Escape")
    assert boxes(frame) == []


def test_a_corner_stays_on_its_frame(frame: Visit) -> None:
    press(frame, "l", "Enter", "Shift+ArrowRight", "j")
    assert frame.page.locator("#stage .boxes .drawn").count() == 0
    press(frame, "Enter")
    frame.shown("#live", "first corner at")


def test_a_box_of_one_pixel_is_too_small_by_keyboard_too(frame: Visit) -> None:
    press(frame, "l", "Enter", "Enter")
    frame.shown("#live", "too small a box; nothing was marked")
    assert boxes(frame) == []


def test_the_button_of_boxes_leads_keys_to_the_picture(index: Path, visit: Visit) -> None:
    visit.open_frame(index, NAMES[0])
    visit.page.focus("#mark")
    visit.page.keyboard.press("Enter")
    wait_for_focus(visit, "#stage")
    assert visit.page.locator("#stage .probe:not([hidden])").count() == 1
    # A box by keys asks for a name, too.
    press(visit, "Enter", "Shift+ArrowRight", "Shift+ArrowDown", "Enter")
    visit.page.keyboard.type("Ana")
    visit.page.keyboard.press("Enter")
    visit.shown("#regions", "drawn · missed object")


def test_the_sheet_says_what_a_large_region_and_a_part_of_a_miss_are(
    full_page: Path, visit: Visit
) -> None:
    page = visit.open(full_page)
    page.keyboard.press("?")
    visit.shown("#help", "a region that covers an object is true, however large it is")
    visit.shown("#help", "on a flagged region: it covers only a part of an object")
