"""Two pages of one run in a browser: two tabs, or a page that is open while another takes its
place.
"""

import json
import shutil
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.gallery.test_judging_in_browser import export
from tests.support.scenes import NAMES, Scene, write_maps, write_page
from tests.support.visits import Visit, name_reviewer

if TYPE_CHECKING:
    from playwright.sync_api import Page

FIRST, LAST = NAMES[0], NAMES[-1]


@pytest.fixture
def index(scene: Scene, tmp_path: Path) -> Path:
    return write_page(scene.maps, tmp_path / "review")


def other_tab(visit: Visit) -> "Page":
    """Return another tab of the page that a visitor looks at."""
    tab = visit.page.context.new_page()
    tab.goto(visit.page.url)
    tab.wait_for_selector("html[data-ready]")
    return tab


def verdicts_on(page: "Page", frame: str) -> list[str]:
    entries = page.evaluate("segunc.verdicts.all()")
    return [entry["verdict"] for entry in entries if entry["frame"] == frame]


def test_a_page_that_was_written_again_is_not_mixed_with_the_new_one(
    index: Path, scene: Scene, visit: Visit
) -> None:
    """Its regions would be those of another threshold."""
    visit.open_frame(index, FIRST)
    write_page(scene.maps, index.parent, flag={"entropy": 0.9})
    visit.page.click("#next")
    visit.shown("#notices", "This page was written again after you opened it. Reload it")
    visit.shown("#stage .pane-message", "this page was written again: reload it")
    visit.page.reload()
    visit.until("document.documentElement.dataset.ready === 'yes'")
    assert not visit.page.locator("#notices", has_text="written again").count()
    assert visit.page.evaluate("segunc.table.recordedThreshold('entropy')") == 0.9


def test_an_older_page_keeps_verdicts_on_frames_that_it_does_not_have(
    scene: Scene, tmp_path: Path, visit: Visit
) -> None:
    """A run that goes on has new frames and the same id."""
    images = Path(shutil.copytree(scene.images, tmp_path / "images"))
    newest = write_page(write_maps(images, tmp_path / "all"), tmp_path / "new")
    (images / f"{LAST}.png").unlink()
    oldest = write_page(write_maps(images, tmp_path / "some"), tmp_path / "old")
    visit.open_frame(newest, LAST)
    name_reviewer(visit, "Ana")
    visit.page.keyboard.press("a")
    visit.shown("#progress", "1 of 6 judged")
    visit.open_frame(oldest, FIRST)
    visit.page.keyboard.press("s")
    visit.shown("#progress", "1 of 5 judged")
    file = json.loads(export(visit, "json", tmp_path / "v.json").read_text())
    assert [entry["frame"] for entry in file["verdicts"]] == [FIRST]
    visit.open_frame(newest, LAST)
    visit.shown("#progress", "2 of 6 judged")
    assert verdicts_on(visit.page, LAST) == ["true-alarm"]
    visit.open(oldest)
    words = "This browser keeps 1 verdict or note of the run on frames that this page does"
    visit.shown("#notices", words)


def test_undo_leaves_a_later_verdict_of_another_tab(index: Path, visit: Visit) -> None:
    visit.open_frame(index, FIRST)
    name_reviewer(visit, "Ana")
    visit.page.keyboard.press("a")
    visit.shown("#progress", "1 of 6 judged")
    tab = other_tab(visit)
    tab.keyboard.press("s")
    visit.until("segunc.verdicts.all()[0].verdict === 'false-alarm'")
    visit.page.bring_to_front()
    visit.page.keyboard.press("Control+z")
    visit.shown("#live", f"another tab or a file changed the verdict on frame {FIRST}")
    assert verdicts_on(visit.page, FIRST) == ["false-alarm"]
    assert verdicts_on(tab, FIRST) == ["false-alarm"]


def test_undo_of_a_note_goes_back_to_what_an_imported_file_said(
    index: Path, tmp_path: Path, visit: Visit
) -> None:
    """Letters of one note are undone together, and a file may change the note between two."""
    visit.open_frame(index, FIRST)
    name_reviewer(visit, "Ana")
    visit.page.fill("#note", "dusk")
    visit.until("segunc.verdicts.all().length === 1")
    file = export(visit, "json", tmp_path / "ana.json")
    content = json.loads(file.read_text())
    later = (datetime.now(UTC) + timedelta(hours=1)).strftime("%Y-%m-%dT%H:%M:%S.000Z")
    content["verdicts"][0] |= {"note": "dusk, rain", "time": later}
    file.write_text(json.dumps(content))
    visit.page.set_input_files("#import-file", file)
    visit.shown("#notices", "1 verdict taken")
    visit.page.fill("#note", "dusk, rain, wet road")
    visit.page.click("#undo")
    visit.shown("#live", "Undone: the note")
    (entry,) = visit.page.evaluate("segunc.verdicts.all()")
    assert entry["note"] == "dusk, rain"


def test_nobody_takes_back_what_another_reviewer_said(index: Path, visit: Visit) -> None:
    visit.open_frame(index, FIRST)
    name_reviewer(visit, "Ana")
    visit.page.keyboard.press("a")
    visit.shown("#progress", "1 of 6 judged")
    name_reviewer(visit, "Ben")
    visit.page.keyboard.press("Control+z")
    visit.shown("#live", "nothing to undo")
    assert verdicts_on(visit.page, FIRST) == ["true-alarm"]


def test_the_name_that_is_given_with_the_first_verdict_does_not_hinder_its_undo(
    index: Path, visit: Visit
) -> None:
    visit.open_frame(index, FIRST)
    visit.page.keyboard.press("a")
    visit.page.keyboard.type("Ana")
    visit.page.keyboard.press("Enter")
    visit.shown("#progress", "1 of 6 judged")
    visit.page.keyboard.press("Control+z")
    visit.shown("#progress", "0 of 6 judged")


@pytest.mark.parametrize("width", [1210, 1400])
def test_the_header_of_a_named_reviewer_has_one_line(index: Path, visit: Visit, width: int) -> None:
    visit.page.set_viewport_size({"width": width, "height": 900})
    visit.open(index)
    name_reviewer(visit, "Annegret Müller")
    middles = visit.page.evaluate(
        "['title', 'progress', 'export-json', 'help-button'].map((id) => {"
        " const box = document.getElementById(id).getBoundingClientRect();"
        " return box.y + box.height / 2; })"
    )
    assert max(middles) - min(middles) < 3
    assert visit.page.locator("#title").bounding_box()["height"] < 30


def test_the_panel_says_how_much_of_the_frame_the_label_ignores(
    scene: Scene, tmp_path: Path, visit: Visit
) -> None:
    index = write_page(scene.maps, tmp_path / "r", anomaly_labels=scene.anomaly, blind="no")
    visit.open_frame(index, FIRST, "&flags=1&threshold=0.5&outline=1")
    # The first of 30 rows.
    visit.shown("#flagged", "of the normal pixels, the label ignores 3.33 % of the frame")
