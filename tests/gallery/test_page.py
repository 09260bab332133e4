"""The review page's folder: complete, escaped, without a network; what lacks is said, and the rest
is shown.
"""

import base64
import json
import re
import shutil
import subprocess
import sys
import zlib
from importlib import resources
from pathlib import Path
from typing import Any

import cv2
import hypothesis.extra.numpy as arrays
import numpy as np
import pytest
from hypothesis import given, strategies as st

from segunc.cli.main import main
from segunc.core.errors import InputError, PartialFailure
from segunc.core.removal import LEDGER, Ledger
from segunc.data.labels import LabelMap
from segunc.gallery.colours import page_ranges
from segunc.gallery.condensed import condense
from segunc.gallery.frame_files import labelled_objects
from segunc.maps.manifest import build_manifest
from segunc.maps.reader import MapsReader
from segunc.maps.regions import Region
from segunc.maps.store import MapsWriter
from segunc.metrics.objects import found_up_to
from tests.gallery.scenes import (
    LABEL_MAP,
    NAMES,
    SCORES,
    SIZE,
    Scene,
    carried,
    write_maps,
    write_page,
)
from tests.maps.fakes import edit_log, edit_manifest, folder_bytes


def table(index: Path, name: str) -> Any:
    text = (index.parent / "data" / f"{name}.js").read_text(encoding="utf-8")
    found = re.fullmatch(rf'segunc\.receive\("{name}", JSON\.parse\((".*")\)\);\n', text)
    return json.loads(json.loads(found[1]))


def column(index: Path, name: str) -> list[Any]:
    return [row[name] for row in table(index, "frames")]


def notices(index: Path) -> str:
    return "\n".join(table(index, "page")["notices"])


def test_page_is_self_contained_and_says_what_made_the_maps(full_page: Path) -> None:
    addresses = re.findall(r'\s(?:src|href|poster)="([^"#][^"]*)"', full_page.read_text())
    assert len(addresses) == len(
        [*(full_page.parent / "assets").iterdir(), *(full_page.parent / "data").iterdir()]
    )
    assert all((full_page.parent / address).is_file() for address in addresses)
    for path in (full_page, *(full_page.parent / "assets").iterdir()):
        assert not re.search(r"https?:(?!//www\.w3\.org/2000/svg)", path.read_text()), path
    rows, page = table(full_page, "frames"), table(full_page, "page")
    assert [row["name"] for row in rows] == list(NAMES)
    assert {"image", "prediction", *SCORES, "label/anomaly", "label/truth"} <= {
        *rows[0]["contents"]
    }
    assert "label/truth" not in rows[5]["contents"]
    for row in rows:
        for content in row["contents"]:
            assert (
                full_page.parent / "frames" / f"{row['place']:06d}" / f"{content}.js"
            ).is_file(), content
    assert page["line"] == "ABNN, 4 members, 24 draws"
    facts = dict(page["facts"])
    assert facts["model.parameters.alpha"] == "0.05"
    assert facts["run.input"].endswith("images")
    assert [page["scores"]["entropy"][end] for end in ("low", "high")] == [0, 1]
    assert page["scores"]["epistemic"]["ticks"] == ["0", "0.05", ">= 0.1"]


def test_maps_are_carried_in_steps_of_their_range(full_page: Path, scene: Scene) -> None:
    reader = MapsReader(scene.maps)
    for score in (*SCORES, "prediction"):
        text = (full_page.parent / "frames" / "000001" / f"{score}.js").read_text()
        found = re.fullmatch(
            r'segunc\.receive\("frames/000001/[\w-]+", (\{.*\}), "([^"]+)"\);\n', text
        )
        head, data = json.loads(found[1]), zlib.decompress(base64.b64decode(found[2]))
        differences = np.frombuffer(data, np.uint8).reshape(head["height"], head["width"])
        codes = np.cumsum(differences, axis=0, dtype=np.uint8)
        values = (
            reader.prediction(NAMES[1]) if score == "prediction" else reader.read(NAMES[1], score)
        )
        if score == "prediction":
            expected, ends = values, {}
        else:
            threshold = reader.manifest["maps"][score].get("component_threshold")
            expected, ends = condense(values, 960, threshold)
        np.testing.assert_array_equal(codes, expected)
        assert head == {"height": 30, "width": 40, **ends}
        if ends:
            assert (ends["low"], ends["high"]) == (values.min(), values.max())
            assert abs(carried(values, score) - values).max() <= np.ptp(values) / 508 * 1.001
    small, ends = condense(values := reader.read(NAMES[1], "entropy"), 20)
    blocks = values.reshape(15, 2, 20, 2).mean((1, 3))
    assert (
        abs(ends["low"] + small / 254 * (ends["high"] - ends["low"]) - blocks).max()
        <= np.ptp(blocks) / 500
    )
    assert (condense(np.full((3, 4), 0.5, np.float32), 960)[0] == 0).all()
    codes, ends = condense(np.array([[np.nan, -1, np.inf, 3]], np.float32), 960)
    assert (codes.tolist(), ends) == ([[255, 0, 255, 254]], {"low": -1, "high": 3, "shift": 0})


GRIDS = arrays.arrays(
    np.float32, (6, 7), elements=st.sampled_from([float(np.float32(i / 8)) for i in range(9)])
)


@given(GRIDS, arrays.arrays(np.uint8, (6, 7), elements=st.sampled_from([0, 1, 255])))
def test_found_is_decided_exactly_at_the_threshold(values: Any, label: Any) -> None:
    objects, counted = labelled_objects(label)
    assert (objects.number > 0).sum() == (label == 1).sum()
    up_to = found_up_to(values[objects.number > 0], objects)
    assert counted.any() == (len(up_to) > 0) == (label == 1).any()
    for threshold in np.arange(0, 10, dtype=np.float32) / 8:
        reached = [
            values[objects.number == number + 1] >= threshold for number in range(len(up_to))
        ]
        assert (up_to >= threshold).tolist() == [over.sum() >= len(over) / 2 for over in reached]


def test_objects_are_8_connected_without_specks() -> None:
    label = np.zeros((20, 20), np.uint8)
    label[2:5, 2:5] = label[5:8, 5:8] = 1  # they touch at a corner
    label[15, 15] = 1
    label[10:14, 10:14] = 255
    objects, counted = labelled_objects(label)
    assert objects.pixels[counted].tolist() == [18]
    label[:12] = 0
    objects, counted = labelled_objects(label)  # there is no larger one
    assert (objects.number[15, 15], counted.tolist()) == (1, [True])


def test_scores_are_chosen_and_a_limit_keeps_the_worst(
    scene: Scene, copy: Path, tmp_path: Path
) -> None:
    page = table(write_page(scene.maps, tmp_path / "usual"), "page")
    assert list(page["scores"]) == ["entropy", "epistemic"]
    assert dict(page["facts"])["Scores left out (review --scores all)"] == "deterministic-max-logit"
    assert list(
        table(write_page(scene.maps, tmp_path / "all", scores=["all"]), "page")["scores"]
    ) == list(SCORES)
    index = write_page(scene.maps, tmp_path / "review", limit=2, scores=["epistemic", "epistemic"])
    assert (column(index, "name"), column(index, "place")) == (list(NAMES[4:]), [4, 5])
    assert column(index, "contents") == [["prediction", "epistemic", "image"]] * 2
    assert "the worst 2 of 6 frames" in notices(index)
    with pytest.raises(InputError):
        write_page(scene.maps, tmp_path / "none", scores=["entropie"])
    strange = write_maps(scene.images, tmp_path / "maps", scores=(*SCORES, "anomaly"))
    # The darkest frame is the strangest and the most certain.
    ranked = write_page(strange, tmp_path / "ranked", limit=1)
    assert (column(ranked, "name"), table(ranked, "page")["ranking"]) == ([NAMES[0]], "anomaly")
    edit_manifest(
        copy, lambda content: content["run"].update(draws=1)
    )  # nothing says how draws differ
    assert list(table(write_page(copy, tmp_path / "single"), "page")["scores"]) == ["entropy"]
    assert list(
        table(write_page(copy, tmp_path / "asked", scores=["epistemic"]), "page")["scores"]
    ) == ["epistemic"]


def test_a_limit_ranks_old_maps_as_the_page_does(tmp_path: Path) -> None:
    """By the strongest region, also where the maps do not record it; and by the mean where no frame
    has one.
    """
    manifest = build_manifest({}, ("entropy",), device="cpu", classes=["road"], palette=[(0, 0, 0)])
    with MapsWriter(tmp_path / "maps", manifest) as writer:
        for name, level, spot in (("even", 0.4, 0.4), ("spot", 0.1, 0.9), ("faint", 0.2, 0.2)):
            values = np.full(SIZE, level, np.float32)
            values[5:15, 5:15] = spot
            record = writer.store(name, {"entropy": values, "prediction": np.zeros(SIZE, np.uint8)})
            writer.commit(
                {key: value for key, value in record.items() if key not in ("region", "component")}
            )
    for limit, kept in ((1, ["spot"]), (2, ["even", "spot"])):
        assert (
            column(write_page(tmp_path / "maps", tmp_path / str(limit), limit=limit), "name")
            == kept
        )


def test_a_range_that_is_asked_for_keeps_what_was_measured(scene: Scene, tmp_path: Path) -> None:
    reader = MapsReader(write_maps(scene.images, tmp_path / "maps", scores=("anomaly",)))
    wide, narrow = (
        page_ranges(reader, ["anomaly"], {"anomaly": (0, high)})["anomaly"] for high in (6, 2)
    )
    assert (wide.measured_to, wide.high, narrow.measured_to, narrow.high) == (3, 6, None, 2)


def test_the_verb_writes_a_page_and_imports_verdicts(
    scene: Scene, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "review"
    words = ["review", "--maps", str(scene.maps)]
    assert main([*words, "--anomaly-labels", str(scene.anomaly), "--out", str(out)]) == 0
    run = table(out / "index.html", "page")["run"]
    verdicts = [
        {"frame": NAMES[1], "verdict": "missed", "note": "dark", "time": "2026-01-01T00:00:00Z"}
    ]
    path = tmp_path / "verdicts.json"
    path.write_text(
        json.dumps({"format": "segunc-verdicts", "version": 2, "run": run, "verdicts": verdicts})
    )
    capsys.readouterr()
    assert main([*words, "--import", str(path), "--out", str(out)]) == 0
    assert "| missed | 1 | 16.7% | 0 |" in capsys.readouterr().out
    kept = [verdict | {"reviewer": "", "region": None} for verdict in verdicts]
    assert table(out / "index.html", "verdicts")["verdicts"] == kept
    for more, said in (
        (["--import", str(path), "--out", str(tmp_path)], "is not a review page of the maps"),
        ([], "the page has no place"),
        (
            ["--labels", str(scene.labels), "--out", str(out)],
            "nothing says which values of --labels are which classes",
        ),
    ):
        assert main([*words, *more]) == 2
        assert said in capsys.readouterr().err


def test_a_run_under_way_shows_what_is_finished(copy: Path, tmp_path: Path) -> None:
    lines = (copy / "frames.jsonl").read_bytes().splitlines(keepends=True)
    (copy / "frames.jsonl").write_bytes(b"".join(lines[:3]) + lines[3][:40])
    failed = [{"name": "x<y", "reason": "the JPEG is truncated"}]
    edit_manifest(copy, lambda content: content.update(status="running", failed=failed))
    edit_log(copy, lambda record: record.update(time=0.5 * record["index"] ** 2), slice(0, 3))
    index = write_page(copy, tmp_path / "review")
    assert column(index, "name") == list(NAMES[:3])
    assert column(index, "time") == [0, 0.5, 2]
    assert {*column(index, "statistics")[0]["entropy"]} == {
        "region",
        "mean",
        "max",
        "p99",
        "component",
    }
    assert "has not finished (status running, 3 frames so far)" in notices(index)
    assert table(index, "page")["failed"] == failed


def test_missing_images_are_said_and_maps_are_shown(scene: Scene, tmp_path: Path) -> None:
    images = Path(shutil.copytree(scene.images, tmp_path / "images"))
    maps = write_maps(images, tmp_path / "maps")
    (images / f"{NAMES[0]}.png").unlink()
    assert "1 of 6 frames have no image" in notices(write_page(maps, tmp_path / "some"))
    shutil.rmtree(images)
    none = write_page(maps, tmp_path / "none")
    assert "only maps are shown" in notices(none)
    assert not any("image" in contents for contents in column(none, "contents"))
    assert notices(write_page(maps, tmp_path / "given", images=scene.images)) == ""


def test_a_damaged_map_leaves_the_others(copy: Path, tmp_path: Path) -> None:
    (copy / "entropy" / f"{NAMES[2]}.png").write_bytes(b"\x89PNG\r\n\x1a\nno more")
    index = write_page(copy, tmp_path / "review", scores=["all"])
    problems, contents = column(index, "problems"), column(index, "contents")[2]
    assert [len(lines) for lines in problems] == [0, 0, 1, 0, 0, 0]
    assert "entropy/c%20 100%.png was changed since it was written" in problems[2][0]
    assert "entropy" not in contents
    assert {"epistemic", "deterministic-max-logit", "prediction", "image"} <= {*contents}


def test_labels_that_lack_or_do_not_fit_are_said(scene: Scene, tmp_path: Path) -> None:
    labels = Path(shutil.copytree(scene.anomaly, tmp_path / "labels"))
    (labels / f"{NAMES[0]}.png").unlink()
    cv2.imwrite(str(labels / f"{NAMES[1]}.png"), np.zeros((10, 10), np.uint8))
    cv2.imwrite(str(labels / f"{NAMES[2]}.png"), np.full((30, 40), 7, np.uint8))
    index = write_page(scene.maps, tmp_path / "review", anomaly_labels=labels)
    problems = column(index, "problems")
    assert "3 of 6 frames have an anomaly label" in notices(index)
    assert column(index, "objects") == [None, None, None, 0, None, None]
    assert "10 x 10 and the maps are 40 x 30" in problems[1][0]
    assert "holds the values [7]" in problems[2][0]
    (tmp_path / "strangers").mkdir()
    shutil.copy(labels / f"{NAMES[3]}.png", tmp_path / "strangers" / "z.png")
    other = LabelMap(
        "two", LABEL_MAP.classes[:2], LABEL_MAP.palette[:2], {0: 0, 1: 1, 2: 255, 255: 255}
    )
    wrong: dict[str, dict[str, Any]] = {
        "no label in": {"anomaly_labels": tmp_path / "strangers"},
        "without the label map": {"labels": scene.labels},
        "does not fit the 3 classes": {"labels": scene.labels, "label_map": other},
    }
    for message, settings in wrong.items():
        with pytest.raises((InputError, PartialFailure), match=message):
            write_page(scene.maps, tmp_path / "none", **settings)


def test_maps_of_another_tool(tmp_path: Path) -> None:
    maps = tmp_path / "maps"
    (maps / "surprise").mkdir(parents=True)
    np.save(
        maps / "surprise" / "f.npy", np.linspace(-3, 5, 9 * 16, dtype=np.float64).reshape(9, 16)
    )
    np.save(maps / "surprise" / "g.npy", np.full((9, 16), np.nan, np.float32))
    index = write_page(maps, tmp_path / "review")
    assert column(index, "name") == ["f", "g"]
    assert [statistics["surprise"].get("max") for statistics in column(index, "statistics")] == [
        5,
        None,
    ]
    assert "NaN or infinite" in column(index, "problems")[1][0]
    page = table(index, "page")
    assert page["line"].startswith("maps of another tool")
    shown = page["scores"]["surprise"]
    assert -3 <= shown["low"] < shown["high"] <= 5
    with pytest.raises(InputError, match="is or lies inside"):
        write_page(maps, maps / "review")


def test_pixels_outside_a_mask_are_ignored_in_labels(
    copy: Path, scene: Scene, tmp_path: Path
) -> None:
    mask = np.full((30, 40), 255, np.uint8)
    mask[:, :20] = 0  # the first object of every frame
    cv2.imwrite(str(copy / "mask.png"), mask)
    record = {"file": "mask.png", "sha256": Region(copy / "mask.png").sha256}
    edit_manifest(copy, lambda content: content.update(mask=record))
    index = write_page(copy, tmp_path / "review", anomaly_labels=scene.anomaly)
    assert column(index, "objects") == [0, 0, 1, 0, None, None]
    assert "A mask was left out" in notices(index)


def test_an_object_is_found_at_the_share_of_the_threshold(scene: Scene, tmp_path: Path) -> None:
    given: Any = {"anomaly_labels": scene.anomaly, "flag": {"entropy": 0.5}}
    half, tenth = (
        write_page(scene.maps, tmp_path / str(share), share, **given) for share in (0.5, 0.1)
    )
    assert [
        table(index, "page")["scores"]["entropy"]["found_share"] for index in (half, tenth)
    ] == [0.5, 0.1]
    found = [column(index, "found") for index in (half, tenth)]
    assert [len(row.get("entropy", [])) for row in found[0]] == [1, 1, 2, 0, 0, 0]
    for strict, loose in zip(*found, strict=True):
        for a, b in zip(strict.get("entropy", []), loose.get("entropy", []), strict=True):
            assert a < b


def test_a_row_names_peak_and_area_of_its_strongest_region(scene: Scene, tmp_path: Path) -> None:
    index = write_page(scene.maps, tmp_path / "review")
    values = MapsReader(scene.maps).read(NAMES[0], "entropy")
    _, numbers = cv2.connectedComponents((values >= 0.5).astype(np.uint8), connectivity=8)
    strengths = np.bincount(numbers.ravel(), (values - 0.5).ravel())
    strongest = numbers == 1 + strengths[1:].argmax()
    found = column(index, "strongest")[0]["entropy"]
    assert found == {"peak": float(values[strongest].max()), "area": int(strongest.sum())}


def test_the_run_is_summed_up_in_words(full_page: Path) -> None:
    summary = {heading: dict(facts) for heading, facts in table(full_page, "page")["summary"]}
    assert summary["Model"] == {
        "Network": "FPN mobilenet_v2",
        "Method": "ABNN, 4 members, 24 draws",
        "Settings of the method": "alpha 0.05, noise channel",
    }
    assert summary["Run"]["Noisy layers"] == "decoder"
    assert summary["Run"]["Draws"] == "24"
    assert summary["Run"]["Seed"] == "0"


def test_lines_of_the_page_are_short() -> None:
    for asset in (resources.files("segunc.gallery") / "assets").iterdir():
        for line in asset.read_text(encoding="utf-8").splitlines():
            # What a policy says stands in one attribute.
            assert len(line) <= 100 or "default-src 'none'" in line, (asset.name, line)


def test_only_a_page_is_overwritten(scene: Scene, tmp_path: Path) -> None:
    out = tmp_path / "out"
    first = write_page(scene.maps, out)
    Ledger(out).write("frames/000099/image.js", b"of a frame that is gone")
    assert write_page(scene.maps, out) == first
    assert not (out / "frames" / "000099").exists()
    assert json.loads((out / "review.json").read_text())["status"] == "finished"
    (tmp_path / "index.html").write_text("dear")
    for to, message in ((tmp_path, "holds other files"), (scene.maps, "is or lies inside")):
        with pytest.raises(InputError, match=message):
            write_page(scene.maps, to)


@pytest.mark.parametrize(
    "name", ["frames/mine.png", "thumbnails/mine.png", "data/mine.csv", "assets/mine.js"]
)
def test_a_page_removes_nobodys_files(scene: Scene, tmp_path: Path, name: str) -> None:
    out = tmp_path / "out"
    write_page(scene.maps, out)
    (out / name).write_bytes(b"mine")
    before = folder_bytes(out)
    with pytest.raises(InputError, match=f"holds {name}, which is no file of the run"):
        write_page(scene.maps, out)
    assert folder_bytes(out) == before


def test_a_page_removes_no_file_that_has_changed_since(scene: Scene, tmp_path: Path) -> None:
    out = tmp_path / "out"
    write_page(scene.maps, out)
    changed = next((out / "thumbnails").rglob("*.jpg"))
    changed.write_bytes(b"mine")
    with pytest.raises(InputError, match="has changed since the run wrote it"):
        write_page(scene.maps, out)
    assert changed.read_bytes() == b"mine"


def test_verdicts_of_a_reviewer_beside_a_page_stay(scene: Scene, tmp_path: Path) -> None:
    out = tmp_path / "out"
    write_page(scene.maps, out)
    (out / "verdicts-ann.json").write_text("{}")
    write_page(scene.maps, out)
    assert (out / "verdicts-ann.json").read_text() == "{}"


def test_a_page_without_a_list_of_its_files_is_refused(scene: Scene, tmp_path: Path) -> None:
    out = tmp_path / "out"
    write_page(scene.maps, out)
    (out / LEDGER).unlink()
    with pytest.raises(InputError, match="of an earlier version, which lists none of its files"):
        write_page(scene.maps, out)
    assert (out / "index.html").exists()


VERBS = """
import sys
from segunc.cli.main import main
for words in (
    "review --anomaly-labels {masks} --dataset toy --out {out}/page", "summary",
    "overlay --dataset toy --video --fps 5 --out {out}/pictures",
):
    assert main([*words.split(), "--maps", "{maps}"]) == 0, words
    assert not {{"torch", "albumentations", "lightning"}} & set(sys.modules), words
"""


def test_looking_at_maps_imports_no_framework(scene: Scene, tmp_path: Path) -> None:
    code = VERBS.format(maps=scene.maps, masks=scene.anomaly, out=tmp_path)
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
