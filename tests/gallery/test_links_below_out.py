"""A link in a sub-folder of ``--out`` leads no writer out of it: each verb refuses, and what the
link leads to stays as it is."""

import json
import shutil
from pathlib import Path

import pytest

from segunc.cli.main import main
from segunc.core.files import json_bytes
from segunc.core.removal import Ledger
from segunc.gallery.review_page import run_id
from segunc.maps.reader import MapsReader
from tests.support.scenes import Scene, write_page

REVIEW = "review --maps MAPS --anomaly-labels LABELS --out OUT"
OVERLAY = "overlay --maps MAPS --images IMAGES --out OUT"
EVENTS = "summary --maps MAPS --fps 5 --flag entropy=0.5 --events OUT/events.json"
WRITERS = (
    *((REVIEW, folder) for folder in ("frames", "frames/000000", "thumbnails", "data", "assets")),
    (OVERLAY, "overlay-entropy"),
    (f"{OVERLAY} --score entropy,epistemic", "overlay-epistemic"),
    (OVERLAY, "overlay-entropy/sub"),
    (EVENTS, "events_crops"),
)
"""The sub-folders that each verb writes into."""


def run(scene: Scene, out: Path, command: str) -> int:
    places = {
        "MAPS": scene.maps,
        "IMAGES": scene.images,
        "LABELS": scene.anomaly,
        "OUT": out,
    }
    for name, place in places.items():
        command = command.replace(name, str(place))
    return main(command.split())


def precious(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


@pytest.mark.parametrize(("command", "folder"), WRITERS)
def test_no_verb_writes_behind_a_link(
    scene: Scene, tmp_path: Path, command: str, folder: str, capsys: pytest.CaptureFixture[str]
) -> None:
    out, outside = tmp_path / "out", tmp_path / "outside"
    outside.mkdir()
    (outside / "000000.jpg").write_text("precious")
    if command == REVIEW:
        write_page(scene.maps, out)
        shutil.rmtree(out / folder)
    else:
        (out / folder).parent.mkdir(parents=True)
    (out / folder).symlink_to(outside)
    assert run(scene, out, command) == 2
    line = capsys.readouterr().err.splitlines()[-1]
    assert "leads out of" in line or "is no file of the run" in line
    assert precious(outside) == {"000000.jpg": b"precious"}


def test_an_import_of_verdicts_writes_behind_no_link(
    scene: Scene, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out, outside = tmp_path / "out", tmp_path / "outside"
    write_page(scene.maps, out)
    (out / "data").rename(outside)
    (out / "data").symlink_to(outside)
    before = precious(outside)
    run_of_maps = run_id(MapsReader(scene.maps))
    verdicts = {
        "format": "segunc-verdicts",
        "version": 2,
        "run": run_of_maps,
        "verdicts": [],
    }
    (tmp_path / "verdicts.json").write_text(json.dumps(verdicts))
    command = f"review --maps MAPS --out OUT --import {tmp_path / 'verdicts.json'}"
    assert run(scene, out, command) == 2
    assert "leads out of" in capsys.readouterr().err
    assert precious(outside) == before


def test_a_list_of_files_that_is_a_link_is_not_added_to(tmp_path: Path) -> None:
    (tmp_path / "mine").write_bytes(json_bytes({}))
    ledger = Ledger(tmp_path / "out")
    (tmp_path / "out").mkdir()
    ledger.path.symlink_to(tmp_path / "mine")
    with pytest.raises(ValueError, match="leads out of"):
        ledger.write("a", b"1")
    assert (tmp_path / "mine").read_bytes() == json_bytes({})
