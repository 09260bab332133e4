"""What lacks, is damaged or does not fit is said, and the rest is shown."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import cv2
import numpy as np
import pytest

from segunc.core.errors import InputError
from segunc.data.labels import LabelMap
from segunc.review.page import write_review
from tests.review.page_tables import notices, table
from tests.review.scenes import LABEL_MAP, NAMES, Scene, write_maps


def test_a_run_under_way_shows_what_is_finished(copy: Path, tmp_path: Path) -> None:
    lines = (copy / "frames.jsonl").read_bytes().splitlines(keepends=True)
    (copy / "frames.jsonl").write_bytes(b"".join(lines[:3]) + lines[3][:40])
    manifest = json.loads((copy / "manifest.json").read_text()) | {"status": "running"}
    manifest["failed"] = [{"name": "x<y", "reason": "the JPEG is truncated"}]
    (copy / "manifest.json").write_text(json.dumps(manifest))
    index = write_review(copy, tmp_path / "review")
    assert table(index, "frames")["names"] == list(NAMES[:3])
    assert "has not finished (status running, 3 frames so far)" in notices(index)
    assert table(index, "page")["failed"] == manifest["failed"]


def test_another_format_version_is_refused(copy: Path, tmp_path: Path) -> None:
    manifest = json.loads((copy / "manifest.json").read_text()) | {"format_version": 99}
    (copy / "manifest.json").write_text(json.dumps(manifest))
    with pytest.raises(InputError, match="format version 99"):
        write_review(copy, tmp_path / "review")
    assert not (tmp_path / "review").exists()


def test_missing_images_are_said_and_maps_are_shown(scene: Scene, tmp_path: Path) -> None:
    images = Path(shutil.copytree(scene.images, tmp_path / "images"))
    maps = write_maps(images, tmp_path / "maps")
    (images / f"{NAMES[0]}.png").unlink()
    some = write_review(maps, tmp_path / "some")
    assert "1 of 6 frames have no image" in notices(some)
    shutil.rmtree(images)
    none = write_review(maps, tmp_path / "none")
    assert "only maps are shown" in notices(none)
    assert not any("image" in kind for kind in table(none, "frames")["kinds"])
    given = write_review(maps, tmp_path / "given", images=scene.images)
    assert notices(given) == ""
    with pytest.raises(InputError, match="does not exist"):
        write_review(maps, tmp_path / "refused", images=images)


def test_a_damaged_map_leaves_the_others(copy: Path, tmp_path: Path) -> None:
    (copy / "entropy" / f"{NAMES[2]}.png").write_bytes(b"\x89PNG\r\n\x1a\nno more")
    found = table(write_review(copy, tmp_path / "review"), "frames")
    assert list(found["problems"]) == ["2"]
    assert "cannot be read" in found["problems"]["2"][0]
    kind = found["kinds"][found["kind"][2]]
    assert "entropy" not in kind
    assert {"epistemic", "max-logit", "prediction", "image"} <= set(kind)


def test_labels_that_lack_or_do_not_fit_are_said(scene: Scene, tmp_path: Path) -> None:
    labels = Path(shutil.copytree(scene.anomaly, tmp_path / "labels"))
    (labels / f"{NAMES[0]}.png").unlink()
    cv2.imwrite(str(labels / f"{NAMES[1]}.png"), np.zeros((10, 10), np.uint8))
    cv2.imwrite(str(labels / f"{NAMES[2]}.png"), np.full((30, 40), 7, np.uint8))
    index = write_review(scene.maps, tmp_path / "review", anomaly_labels=labels)
    found = table(index, "frames")
    assert "3 of 6 frames have an anomaly label" in notices(index)
    assert found["objects"] == [None, None, None, 0, None, None]
    assert "10 x 10 and the maps are 40 x 30" in found["problems"]["1"][0]
    assert "holds the values [7]" in found["problems"]["2"][0]
    (tmp_path / "strangers").mkdir()
    shutil.copy(labels / f"{NAMES[3]}.png", tmp_path / "strangers" / "z.png")
    with pytest.raises(InputError, match="no label in"):
        write_review(scene.maps, tmp_path / "none", anomaly_labels=tmp_path / "strangers")
    with pytest.raises(InputError, match="without a label map"):
        write_review(scene.maps, tmp_path / "none", labels=scene.labels)
    other = LabelMap("two", LABEL_MAP.classes[:2], LABEL_MAP.palette[:2], {0: 0, 1: 1, 2: 255, 255: 255})
    with pytest.raises(InputError, match="does not fit the maps"):
        write_review(scene.maps, tmp_path / "none", labels=scene.labels, label_map=other)


def test_compared_maps_of_other_frames_are_said(scene: Scene, tmp_path: Path) -> None:
    index = write_review(scene.maps, tmp_path / "review", compare=scene.other)
    assert "The compared maps hold 5 of 6 frames" in notices(index)
    index = write_review(scene.other, tmp_path / "reverse", compare=scene.maps)
    assert "1 frames stand only in the compared maps" in notices(index)
    lone = tmp_path / "images"
    lone.mkdir()
    shutil.copy(scene.images / f"{NAMES[0]}.png", lone / "alone.png")
    with pytest.raises(InputError, match="no frame in common"):
        write_review(scene.maps, tmp_path / "none", compare=write_maps(lone, tmp_path / "lone-maps"))


def test_maps_of_another_tool(tmp_path: Path) -> None:
    maps = tmp_path / "maps"
    (maps / "surprise").mkdir(parents=True)
    values = np.linspace(-3, 5, 9 * 16, dtype=np.float64).reshape(9, 16)
    np.save(maps / "surprise" / "f.npy", values)
    np.save(maps / "surprise" / "g.npy", np.full((9, 16), np.nan, np.float32))
    index = write_review(maps, tmp_path / "review")
    found = table(index, "frames")
    assert found["names"] == ["f", "g"]
    assert found["statistics"]["surprise"]["max"] == [5, None]
    assert "NaN or infinite" in found["problems"]["1"][0]
    assert table(index, "page")["line"].startswith("maps of another tool")
    assert '"dtype": "float32"' in (index.parent / "frames/000000/surprise.js").read_text()[:200]
    with pytest.raises(InputError, match="lies inside"):
        write_review(maps, maps / "review")


def test_pixels_outside_a_mask_are_ignored_in_labels(copy: Path, scene: Scene, tmp_path: Path) -> None:
    mask = np.full((30, 40), 255, np.uint8)
    mask[:, :20] = 0  # the first object of every frame
    cv2.imwrite(str(copy / "mask.png"), mask)
    manifest = json.loads((copy / "manifest.json").read_text()) | {"mask": {"file": "mask.png"}}
    (copy / "manifest.json").write_text(json.dumps(manifest))
    index = write_review(copy, tmp_path / "review", anomaly_labels=scene.anomaly)
    assert table(index, "frames")["objects"] == [0, 0, 1, 0, None, None]
    assert "A mask was left out" in notices(index)


def test_one_of_several_maps_folders_must_be_named(scene: Scene) -> None:
    with pytest.raises(InputError, match=r"holds 2 maps folders \(maps, other\)"):
        write_review(scene.maps.parent, scene.maps.parent / "review")


def test_only_a_page_is_overwritten(scene: Scene, tmp_path: Path) -> None:
    out = tmp_path / "out"
    first = write_review(scene.maps, out)
    stale = out / "frames" / "000099"
    stale.mkdir()
    assert write_review(scene.maps, out) == first
    assert not stale.exists()
    assert json.loads((out / "review.json").read_text())["status"] == "finished"
    (tmp_path / "thesis").mkdir()
    (tmp_path / "thesis" / "chapter.tex").write_text("dear")
    with pytest.raises(InputError, match="holds other files"):
        write_review(scene.maps, tmp_path / "thesis")
    with pytest.raises(InputError, match="is the maps folder"):
        write_review(scene.maps, scene.maps)
