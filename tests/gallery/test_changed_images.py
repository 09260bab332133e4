"""Verdicts belong to the image that was judged: predict makes the maps of a changed image again,
under the same name and in the same run.
"""

import json
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import pytest

import segunc
from segunc.core.errors import InputError
from segunc.gallery.review_page import run_id
from segunc.maps.reader import MapsReader
from segunc.maps.verdicts import Verdict, read_verdict_files
from tests.support.scenes import NAMES, SIZE, Scene, table, write_maps, write_page
from tests.support.visits import Visit, name_reviewer

CHANGED, KEPT = NAMES[0], NAMES[1]
LEFT_OUT = (
    f"1 verdict is left out, on 1 frame that had another image when judged, first frame {CHANGED}: "
    "the maps are of the new one"
)
UNSTATED = (
    "1 verdict names no image, as of an earlier version; taken as given on the images of these maps"
)


@dataclass(frozen=True)
class Runs:
    """The maps of a folder of images, and those of the same folder after one image changed."""

    before: Path
    after: Path

    def verdicts(self, path: Path, **changes: Any) -> Path:
        """Write verdicts on the images of before: on the changed one, and on one that was kept."""
        reader = MapsReader(self.before)
        entries = []
        for frame in (CHANGED, KEPT):
            entry = {
                "frame": frame,
                "verdict": "missed",
                "note": "",
                "time": "2026-01-01T00:00:00Z",
                "reviewer": "Ana",
                "image_hash": reader.image_hash(frame),
            }
            entries.append(entry | changes)
        content = {
            "format": "segunc-verdicts",
            "version": 2,
            "run": run_id(reader),
            "verdicts": entries,
        }
        path.write_text(json.dumps(content))
        return path


def change_image(folder: Path, size: tuple[int, int] = SIZE) -> None:
    assert cv2.imwrite(str(folder / f"{CHANGED}.png"), np.full((*size, 3), 99, np.uint8))


@pytest.fixture
def runs(scene: Scene, tmp_path: Path) -> Runs:
    images = Path(shutil.copytree(scene.images, tmp_path / "images"))
    before = write_maps(images, tmp_path / "before")
    change_image(images)
    after = write_maps(images, tmp_path / "after")
    assert run_id(MapsReader(before)) == run_id(MapsReader(after))
    return Runs(before, after)


def test_verdicts_on_another_image_are_left_out_and_noted(runs: Runs, tmp_path: Path) -> None:
    file = runs.verdicts(tmp_path / "ana.json")
    on_images = read_verdict_files([file], run_id(MapsReader(runs.after)), MapsReader(runs.after))
    assert [verdict.frame for verdict in on_images.lists[0]] == [KEPT]
    assert on_images.notes == [LEFT_OUT]
    of_before = read_verdict_files([file], run_id(MapsReader(runs.before)), MapsReader(runs.before))
    assert [verdict.frame for verdict in of_before.lists[0]] == [CHANGED, KEPT]
    assert of_before.notes == []


def test_verdicts_of_an_earlier_version_count_with_a_note(runs: Runs, tmp_path: Path) -> None:
    file = runs.verdicts(tmp_path / "ana.json", image_hash=None)
    content = json.loads(file.read_text())
    del content["verdicts"][0]["image_hash"]
    del content["verdicts"][1]
    file.write_text(json.dumps(content))
    reader = MapsReader(runs.after)
    on_images = read_verdict_files([file], run_id(reader), reader)
    (verdict,) = on_images.lists[0]
    assert verdict.image_hash is None
    assert on_images.notes == [UNSTATED]


def test_maps_that_record_no_image_take_every_verdict(
    runs: Runs, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Frames of a video have no image of their own; the video is part of the run."""
    monkeypatch.setattr(MapsReader, "image_hash", lambda self, name: None)
    reader = MapsReader(runs.after)
    file = runs.verdicts(tmp_path / "ana.json")
    on_images = read_verdict_files([file], run_id(reader), reader)
    assert len(on_images.lists[0]) == 2
    assert on_images.notes == []


def test_evaluate_counts_verdicts_on_the_images_of_the_maps(runs: Runs, tmp_path: Path) -> None:
    file = runs.verdicts(tmp_path / "ana.json")
    result = segunc.evaluate(maps=runs.after, verdicts=[file], out=tmp_path / "judged.json")
    assert result.numbers["counts"]["judged_frames"] == 1
    assert LEFT_OUT in result.notes
    content = json.loads(file.read_text())
    content["verdicts"] = content["verdicts"][:1]
    file.write_text(json.dumps(content))
    with pytest.raises(InputError, match="no verdict counts: 1 verdict is left out") as refusal:
        segunc.evaluate(maps=runs.after, verdicts=[file], out=tmp_path / "judged.json")
    assert "judge the new images" in refusal.value.hint


def test_a_page_takes_verdicts_on_its_images_alone(runs: Runs, tmp_path: Path) -> None:
    file = runs.verdicts(tmp_path / "ana.json")
    page = tmp_path / "review"
    result = segunc.review(maps=runs.after, verdicts=[file], out=page)
    assert LEFT_OUT in result.notes
    shown = table(page / "index.html", "verdicts")["verdicts"]
    assert [entry["frame"] for entry in shown] == [KEPT]


def test_a_page_that_is_made_again_keeps_verdicts_on_the_images_that_are_left(
    runs: Runs, tmp_path: Path
) -> None:
    page = tmp_path / "review"
    segunc.review(maps=runs.before, verdicts=[runs.verdicts(tmp_path / "ana.json")], out=page)
    assert len(table(page / "index.html", "verdicts")["verdicts"]) == 2
    result = segunc.review(maps=runs.after, out=page)
    shown = table(page / "index.html", "verdicts")["verdicts"]
    assert [entry["frame"] for entry in shown] == [KEPT]
    assert "The page keeps 1 verdict that was imported into the earlier one." in result.notes
    assert (
        "The page leaves out 1 verdict that was imported into the earlier one, because their "
        "frames have other images now."
    ) in result.notes


def test_verdicts_are_not_imported_into_a_page_of_earlier_images(
    runs: Runs, tmp_path: Path
) -> None:
    page = tmp_path / "review"
    segunc.review(maps=runs.before, out=page)
    file = runs.verdicts(tmp_path / "ana.json")
    with pytest.raises(InputError, match=f"shows 1 frame, first {CHANGED}, of other images"):
        segunc.review(maps=runs.after, verdicts=[file], out=page)


def test_a_verdict_is_of_the_image_that_the_page_shows(
    runs: Runs, tmp_path: Path, visit: Visit
) -> None:
    visit.open_frame(write_page(runs.after, tmp_path / "page"), CHANGED)
    name_reviewer(visit, "Ana")
    visit.page.keyboard.press("a")
    visit.shown("#progress", "1 of 6 judged")
    (entry,) = visit.page.evaluate("segunc.verdicts.all()")
    assert Verdict(**entry).image_hash == MapsReader(runs.after).image_hash(CHANGED)


@pytest.mark.parametrize("size", [SIZE, (60, 80)])
def test_a_browser_keeps_verdicts_on_an_earlier_image_apart(
    size: tuple[int, int], scene: Scene, tmp_path: Path, visit: Visit
) -> None:
    """Also on a region, where the new image has another size."""
    images = Path(shutil.copytree(scene.images, tmp_path / "images"))
    before = write_maps(images, tmp_path / "before")
    earlier = write_page(before, tmp_path / "earlier", flag={"entropy": 0.5})
    change_image(images, size)
    after = write_maps(images, tmp_path / "after")
    later = write_page(after, tmp_path / "later", flag={"entropy": 0.5})
    visit.open_frame(earlier, CHANGED)
    name_reviewer(visit, "Ana")
    for key in "ars":  # on the frame, and on its first region
        visit.page.keyboard.press(key)
    visit.shown("#regions", "false")
    visit.page.click("#next")
    visit.page.keyboard.press("m")
    visit.shown("#progress", "2 of 6 judged")
    file = tmp_path / "ana.json"
    with visit.page.expect_download() as download:
        visit.page.click("#export-json")
    download.value.save_as(file)

    visit.open_frame(later, CHANGED)
    visit.shown("#progress", "1 of 6 judged")
    visit.shown("#notices", "2 verdicts or notes on frames that had another image")
    assert "are no verdicts" not in visit.page.inner_text("#notices")
    visit.page.set_input_files("#import-file", file)
    visit.shown("#notices", "2 are on other images of these frames")
    visit.page.keyboard.press("h")
    visit.shown("#progress", "2 of 6 judged")
    visit.page.keyboard.press("Control+z")
    visit.shown("#progress", "1 of 6 judged")
    visit.page.keyboard.press("h")
    visit.shown("#progress", "2 of 6 judged")

    visit.open_frame(earlier, CHANGED)
    visit.shown("#notices", "1 verdict or note on frames that had another image")
    entries = visit.page.evaluate("segunc.verdicts.all()")
    said = [entry["verdict"] for entry in entries if entry["frame"] == CHANGED]
    assert said == ["true-alarm", "false-alarm"]


def test_verdicts_of_an_earlier_version_are_said_until_they_are_given_again(
    runs: Runs, tmp_path: Path, visit: Visit
) -> None:
    index = write_page(runs.after, tmp_path / "page")
    visit.open_frame(index, CHANGED)
    name_reviewer(visit, "Ana")
    entry = {
        "frame": CHANGED,
        "verdict": "true-alarm",
        "note": "",
        "reviewer": "Ana",
        "time": "2026-01-01T00:00:00.000Z",
    }
    key = "'segunc-review:' + segunc.data.page.run"
    visit.page.evaluate(f"localStorage.setItem({key}, JSON.stringify([{json.dumps(entry)}]))")
    visit.open_frame(index, CHANGED)
    visit.shown("#notices", "1 verdict names no image, as of an earlier version")
    visit.shown("#progress", "1 of 6 judged")
    visit.page.keyboard.press("a")
    visit.until("segunc.verdicts.all()[0].image_hash !== null")
    visit.page.keyboard.press("Control+z")
    visit.shown("#live", "Undone: ")
    visit.until("segunc.verdicts.all()[0].image_hash === null")


def test_no_thumbnail_of_a_page_that_was_written_again_stands_on_the_open_one(
    runs: Runs, tmp_path: Path, visit: Visit
) -> None:
    index = write_page(runs.before, tmp_path / "page")
    visit.open(index, "search=sub")  # the changed frame is not among these
    write_page(runs.after, index.parent)
    visit.page.evaluate("segunc.state.set({ search: '' })")
    visit.shown("#notices", "This page was written again after you opened it")
    visit.complaints.clear()  # that thumbnails are gone
    visit.page.reload()
    visit.until("document.documentElement.dataset.ready === 'yes'")
    visit.until(
        "[...document.querySelectorAll('#cards img')].every((image) => image.naturalWidth > 0)"
    )
