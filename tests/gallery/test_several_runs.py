"""One page over several runs of one model."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from segunc.cli.main import main
from segunc.maps.reader import MapsReader
from tests.gallery.browser import Visit
from tests.gallery.scenes import NAMES, Scene, write_maps, write_page
from tests.gallery.test_page import table
from tests.maps.fakes import edit_manifest


@pytest.fixture
def runs(scene: Scene, tmp_path: Path) -> Path:
    """Two drives, of other pictures each: the second has the first three frames alone."""
    folder = tmp_path / "maps"
    second = tmp_path / "second"
    for name in NAMES[:3]:
        path = second / f"{name}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(scene.images / f"{name}.png", path)
    write_maps(scene.images, folder / "monday")
    write_maps(second, folder / "tuesday")
    return folder


def test_a_page_over_several_runs_has_their_frames_images_and_a_filter(
    runs: Path, scene: Scene, tmp_path: Path, visit: Visit
) -> None:
    index = write_page(runs, tmp_path / "review", exact=True)
    found, page = table(index, "frames"), table(index, "page")
    assert found["names"] == [*(f"monday/{name}" for name in NAMES), *(f"tuesday/{name}" for name in NAMES[:3])]
    assert page["runs"] == ["monday", "tuesday"]
    assert page["notices"] == []
    assert all("image" in found["kinds"][kind] for kind in found["kind"])
    visit.open(index, "moments=all&run=tuesday")
    assert visit.names() == [f"tuesday/{name}" for name in NAMES[2::-1]]
    visit.open_frame(index, f"tuesday/{NAMES[1]}", "&probe=7,12")
    value = MapsReader(runs / "tuesday").read(NAMES[1], "entropy")[12, 7]
    assert float(visit.page.locator("#values dd[data-content='entropy']").get_attribute("data-value") or "nan") == value
    visit.page.keyboard.press("h")
    visit.page.keyboard.type("Ana")
    visit.page.keyboard.press("Enter")
    visit.shown("#progress", "1 of 9 judged")
    with visit.page.expect_download() as download:
        visit.page.click("#export-json")
    download.value.save_as(tmp_path / "ana.json")
    assert (
        main(["review", "--maps", str(runs), "--import", str(tmp_path / "ana.json"), "--out", str(index.parent)]) == 0
    )
    out = tmp_path / "judged.json"
    words = ["evaluate", "--maps", str(runs), "--verdicts", str(tmp_path / "ana.json"), "--out", str(out)]
    assert main([*words, "--resample", "folder"]) == 0
    assert json.loads(out.read_text())["counts"]["judged_frames"] == 1


def test_runs_of_other_models_are_refused(runs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    edit_manifest(runs / "tuesday", lambda content: content["run"].update(draws=12))
    assert main(["review", "--maps", str(runs), "--out", str(tmp_path / "page")]) == 2
    assert "tuesday has other settings than" in capsys.readouterr().err
    assert main(["overlay", "--maps", str(runs), "--out", str(tmp_path / "pictures")]) == 2
    assert "holds 2 maps folders" in capsys.readouterr().err
