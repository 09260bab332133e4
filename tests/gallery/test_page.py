"""The review page's folder: complete, escaped, without a network; what lacks is said, and the rest is shown."""

from __future__ import annotations

import base64
import json
import re
import shutil
import subprocess
import sys
import zlib
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import pytest

from segunc.cli.main import main
from segunc.core.errors import InputError, PartialFailure
from segunc.data.labels import LabelMap
from segunc.gallery.frame_files import condense, condense_label
from segunc.maps.reader import MapsReader
from segunc.maps.statistics import Region
from tests.gallery.scenes import LABEL_MAP, NAMES, SCORES, Scene, write_maps, write_page
from tests.maps.fakes import edit_log, edit_manifest


def table(index: Path, name: str) -> dict[str, Any]:
    """What a script of data hands to the page."""
    text = (index.parent / "data" / f"{name}.js").read_text(encoding="utf-8")
    found = re.fullmatch(rf'segunc\.receive\("{name}", JSON\.parse\((".*")\)\);\n', text)
    return json.loads(json.loads(found[1]))


def notices(index: Path) -> str:
    return "\n".join(table(index, "page")["notices"])


def test_page_is_self_contained_and_escaped(full_page: Path) -> None:
    addresses = re.findall(r'\s(?:src|href|poster)="([^"#][^"]*)"', full_page.read_text())
    assert len(addresses) == 27
    assert all((full_page.parent / address).is_file() for address in addresses)
    for path in (full_page, *(full_page.parent / "assets").iterdir()):
        assert not re.search(r"https?:(?!//www\.w3\.org/2000/svg)", path.read_text()), path
    found = table(full_page, "frames")
    assert found["names"] == list(NAMES)
    kinds = [set(found["kinds"][kind]) for kind in found["kind"]]
    assert {"image", "prediction", *SCORES, "label/anomaly", "label/truth", "other/entropy"} <= kinds[0]
    assert "label/truth" not in kinds[5]
    for name, place, kind in zip(found["names"], found["places"], kinds, strict=True):
        for content in kind:
            ending = "jpg" if content == "image" else "js"
            assert (full_page.parent / "frames" / f"{place:06d}" / f"{content}.{ending}").is_file(), (name, content)


def test_header_says_what_made_the_maps(full_page: Path) -> None:
    page = table(full_page, "page")
    assert page["line"] == "FPN mobilenet_v2, ABNN, 4 members, 24 draws, seed 0, scope decoder"
    facts = dict(page["facts"])
    assert facts["model.parameters.alpha"] == "0.05"
    assert facts["run.input"].endswith("images")
    assert facts["tool.name"] == "segunc"
    assert page["compared"]["line"].endswith("seed 1, scope decoder")
    assert [page["scores"]["entropy"][end] for end in ("low", "high")] == [0, 1]
    assert page["scores"]["epistemic"]["ticks"] == ["0", "0.05", ">= 0.1"]


def test_a_map_is_carried_bit_by_bit(full_page: Path, scene: Scene) -> None:
    reader = MapsReader(scene.maps)
    for score in (*SCORES, "prediction"):
        text = (full_page.parent / "frames" / "000001" / f"{score}.js").read_text()
        found = re.fullmatch(r'segunc\.receive\("frames/000001/[\w-]+", (\{.*\}), "([^"]+)"\);\n', text)
        stored = reader.read_stored(NAMES[1], score) if score in SCORES else reader.prediction(NAMES[1])
        head = json.loads(found[1])
        assert (head["dtype"], head["height"], head["width"]) == (stored.dtype.name, *stored.shape)
        size = stored.dtype.itemsize
        planes = np.frombuffer(zlib.decompress(base64.b64decode(found[2])), np.uint8).reshape(size, *stored.shape)
        differences = sum(planes[i].astype(np.uint64) << (8 * i) for i in range(size))
        codes = np.cumsum(differences, axis=0).astype(f"<u{size}")
        assert (codes.view(stored.dtype) == stored).all()


def test_a_page_carries_condensed_maps_of_the_first_scores_unless_asked(scene: Scene, tmp_path: Path) -> None:
    index = write_page(scene.maps, tmp_path / "review", anomaly_labels=scene.anomaly)
    page = table(index, "page")
    assert list(page["scores"]) == ["entropy", "epistemic"]
    facts = dict(page["facts"])
    assert facts["Scores left out (review --scores all)"] == "deterministic-max-logit"
    assert "at most 960 on a side, in 255 steps" in facts["Maps on this page"]
    assert list(table(write_page(scene.maps, tmp_path / "all", scores=["all"]), "page")["scores"]) == list(SCORES)
    values = MapsReader(scene.maps).read(NAMES[1], "entropy")
    codes, ends = condense(values, 960)
    shown = ends["low"] + codes / 255 * (ends["high"] - ends["low"])
    assert (ends["low"], ends["high"]) == (values.min(), values.max())
    assert abs(shown - values).max() <= (values.max() - values.min()) / 510 * 1.001
    small, ends = condense(values, 20)
    blocks = values.reshape(15, 2, 20, 2).mean((1, 3))
    assert small.shape == (15, 20)
    assert abs(ends["low"] + small / 255 * (ends["high"] - ends["low"]) - blocks).max() <= np.ptp(blocks) / 500
    assert (condense(np.full((3, 4), 0.5, np.float32), 960)[0] == 0).all()
    assert condense_label(np.arange(12, dtype=np.uint8).reshape(3, 4), 2).shape == (2, 2)


def test_limit_keeps_the_worst_and_scores_can_be_chosen(scene: Scene, tmp_path: Path) -> None:
    index = write_page(scene.maps, tmp_path / "review", limit=2, scores=["epistemic", "epistemic"])
    found = table(index, "frames")
    assert found["names"] == list(NAMES[4:])
    assert found["places"] == [4, 5]
    assert list(found["statistics"]) == ["epistemic"]
    assert found["kinds"] == [["prediction", "epistemic", "image"]]
    assert "the worst 2 of 6 frames" in notices(index)
    with pytest.raises(InputError):
        write_page(scene.maps, tmp_path / "none", scores=["entropie"])


def test_recorded_times_are_carried(copy: Path, tmp_path: Path) -> None:
    assert table(write_page(copy, tmp_path / "without", scores=["entropy"]), "frames")["times"] is None
    edit_log(copy, lambda record: record.update(time=0.5 * record["index"] ** 2), slice(None))
    found = table(write_page(copy, tmp_path / "with", scores=["entropy"]), "frames")
    assert found["times"] == [0, 0.5, 2, 4.5, 8, 12.5]
    assert list(found["statistics"]["entropy"]) == ["mean", "max", "p99", "component"]


def test_the_verb_writes_a_page_and_imports_verdicts(
    scene: Scene, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "review"
    words = ["review", "--maps", str(scene.maps)]
    assert main([*words, "--anomaly-labels", str(scene.anomaly), "--out", str(out)]) == 0
    run = table(out / "index.html", "page")["run"]
    verdicts = [{"frame": NAMES[1], "verdict": "missed", "note": "dark", "time": "2026-01-01T00:00:00Z"}]
    path = tmp_path / "verdicts.json"
    path.write_text(json.dumps({"format": "segunc-verdicts", "version": 2, "run": run, "verdicts": verdicts}))
    capsys.readouterr()
    assert main([*words, "--import", str(path), "--out", str(out)]) == 0
    assert "| missed | 1 | 16.7% | 0 |" in capsys.readouterr().out
    kept = [verdict | {"reviewer": "", "region": None} for verdict in verdicts]
    assert table(out / "index.html", "verdicts")["verdicts"] == kept
    for more, said in (
        (["--import", str(path), "--out", str(tmp_path)], "is no review page of the maps"),
        ([], "the page has no place"),
        (["--labels", str(scene.labels), "--out", str(out)], "nothing says which values of --labels are which classes"),
    ):
        assert main([*words, *more]) == 2
        assert said in capsys.readouterr().err


def test_a_run_under_way_shows_what_is_finished(copy: Path, tmp_path: Path) -> None:
    lines = (copy / "frames.jsonl").read_bytes().splitlines(keepends=True)
    (copy / "frames.jsonl").write_bytes(b"".join(lines[:3]) + lines[3][:40])
    failed = [{"name": "x<y", "reason": "the JPEG is truncated"}]
    edit_manifest(copy, lambda content: content.update(status="running", failed=failed))
    index = write_page(copy, tmp_path / "review")
    assert table(index, "frames")["names"] == list(NAMES[:3])
    assert "has not finished (status running, 3 frames so far)" in notices(index)
    assert table(index, "page")["failed"] == failed


def test_missing_images_are_said_and_maps_are_shown(scene: Scene, tmp_path: Path) -> None:
    images = Path(shutil.copytree(scene.images, tmp_path / "images"))
    maps = write_maps(images, tmp_path / "maps")
    (images / f"{NAMES[0]}.png").unlink()
    some = write_page(maps, tmp_path / "some")
    assert "1 of 6 frames have no image" in notices(some)
    shutil.rmtree(images)
    none = write_page(maps, tmp_path / "none")
    assert "only maps are shown" in notices(none)
    assert not any("image" in kind for kind in table(none, "frames")["kinds"])
    given = write_page(maps, tmp_path / "given", images=scene.images)
    assert notices(given) == ""
    with pytest.raises(InputError, match="does not exist"):
        write_page(maps, tmp_path / "refused", images=images)


def test_a_damaged_map_leaves_the_others(copy: Path, tmp_path: Path) -> None:
    (copy / "entropy" / f"{NAMES[2]}.png").write_bytes(b"\x89PNG\r\n\x1a\nno more")
    found = table(write_page(copy, tmp_path / "review", scores=["all"]), "frames")
    assert list(found["problems"]) == ["2"]
    assert "entropy/c%20 100%.png was changed since it was written" in found["problems"]["2"][0]
    kind = found["kinds"][found["kind"][2]]
    assert "entropy" not in kind
    assert {"epistemic", "deterministic-max-logit", "prediction", "image"} <= set(kind)


def test_labels_that_lack_or_do_not_fit_are_said(scene: Scene, tmp_path: Path) -> None:
    labels = Path(shutil.copytree(scene.anomaly, tmp_path / "labels"))
    (labels / f"{NAMES[0]}.png").unlink()
    cv2.imwrite(str(labels / f"{NAMES[1]}.png"), np.zeros((10, 10), np.uint8))
    cv2.imwrite(str(labels / f"{NAMES[2]}.png"), np.full((30, 40), 7, np.uint8))
    index = write_page(scene.maps, tmp_path / "review", anomaly_labels=labels)
    found = table(index, "frames")
    assert "3 of 6 frames have an anomaly label" in notices(index)
    assert found["objects"] == [None, None, None, 0, None, None]
    assert "10 x 10 and the maps are 40 x 30" in found["problems"]["1"][0]
    assert "holds the values [7]" in found["problems"]["2"][0]
    (tmp_path / "strangers").mkdir()
    shutil.copy(labels / f"{NAMES[3]}.png", tmp_path / "strangers" / "z.png")
    other = LabelMap("two", LABEL_MAP.classes[:2], LABEL_MAP.palette[:2], {0: 0, 1: 1, 2: 255, 255: 255})
    wrong: dict[str, dict[str, Any]] = {
        "no label in": {"anomaly_labels": tmp_path / "strangers"},
        "without the label map": {"labels": scene.labels},
        "does not fit the 3 classes": {"labels": scene.labels, "label_map": other},
    }
    for message, given in wrong.items():
        with pytest.raises((InputError, PartialFailure), match=message):
            write_page(scene.maps, tmp_path / "none", **given)


def test_compared_maps_of_other_frames_are_said(scene: Scene, tmp_path: Path) -> None:
    index = write_page(scene.maps, tmp_path / "review", compare=scene.other)
    assert "The compared maps hold 5 of 6 frames" in notices(index)
    lone = tmp_path / "images"
    lone.mkdir()
    shutil.copy(scene.images / f"{NAMES[0]}.png", lone / "alone.png")
    with pytest.raises(InputError, match="no frame in common"):
        write_page(scene.maps, tmp_path / "none", compare=write_maps(lone, tmp_path / "lone-maps"))


def test_maps_of_another_tool(tmp_path: Path) -> None:
    maps = tmp_path / "maps"
    (maps / "surprise").mkdir(parents=True)
    values = np.linspace(-3, 5, 9 * 16, dtype=np.float64).reshape(9, 16)
    np.save(maps / "surprise" / "f.npy", values)
    np.save(maps / "surprise" / "g.npy", np.full((9, 16), np.nan, np.float32))
    index = write_page(maps, tmp_path / "review", exact=True)
    found = table(index, "frames")
    assert found["names"] == ["f", "g"]
    assert found["statistics"]["surprise"]["max"] == [5, None]
    assert "NaN or infinite" in found["problems"]["1"][0]
    assert table(index, "page")["line"].startswith("maps of another tool")
    assert '"dtype": "float32"' in (index.parent / "frames/000000/surprise.js").read_text()[:200]
    with pytest.raises(InputError, match="is or lies inside"):
        write_page(maps, maps / "review")


def test_pixels_outside_a_mask_are_ignored_in_labels(copy: Path, scene: Scene, tmp_path: Path) -> None:
    mask = np.full((30, 40), 255, np.uint8)
    mask[:, :20] = 0  # the first object of every frame
    cv2.imwrite(str(copy / "mask.png"), mask)
    region = Region(copy / "mask.png").sha256
    edit_manifest(copy, lambda content: content.update(mask={"file": "mask.png", "sha256": region}))
    index = write_page(copy, tmp_path / "review", anomaly_labels=scene.anomaly)
    assert table(index, "frames")["objects"] == [0, 0, 1, 0, None, None]
    assert "A mask was left out" in notices(index)


def test_only_a_page_is_overwritten(scene: Scene, tmp_path: Path) -> None:
    out = tmp_path / "out"
    first = write_page(scene.maps, out)
    stale = out / "frames" / "000099"
    stale.mkdir()
    assert write_page(scene.maps, out) == first
    assert not stale.exists()
    assert json.loads((out / "review.json").read_text())["status"] == "finished"
    (tmp_path / "thesis").mkdir()
    (tmp_path / "thesis" / "index.html").write_text("dear")
    for maps, to, message in (
        (scene.maps, tmp_path / "thesis", "holds other files"),
        (scene.maps, scene.maps, "is or lies inside"),
        (scene.maps.parent, tmp_path / "review", "holds 2 maps folders"),
    ):
        with pytest.raises(InputError, match=message):
            write_page(maps, to)


VERBS = """
import sys
from segunc.cli.main import main
maps, masks, out = sys.argv[1:]
for words in (
    ["review", "--maps", maps, "--anomaly-labels", masks, "--dataset", "toy", "--out", f"{out}/page"],
    ["overlay", "--maps", maps, "--dataset", "toy", "--panel", "--video", "--fps", "5", "--out", f"{out}/pictures"],
    ["summary", "--maps", maps],
    ["export", "--maps", maps, "--score", "entropy", "--to", "fishyscapes", "--out", f"{out}/fishyscapes"],
):
    assert main(words) == 0, words
    heavy = {"torch", "albumentations", "lightning"} & set(sys.modules)
    assert not heavy, (words, heavy)
"""


def test_looking_at_maps_imports_no_framework(scene: Scene, tmp_path: Path) -> None:
    command = [sys.executable, "-c", VERBS, str(scene.maps), str(scene.anomaly), str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr


def test_a_single_draw_has_no_layer_of_how_draws_differ(copy: Path, tmp_path: Path) -> None:
    edit_manifest(copy, lambda content: content["run"].update(draws=1))
    found = table(write_page(copy, tmp_path / "page"), "page")["scores"]
    assert "entropy" in found
    assert "epistemic" not in found
    assert "epistemic" in table(write_page(copy, tmp_path / "asked", scores=["epistemic"]), "page")["scores"]
