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

import segunc
from segunc.cli.main import main
from segunc.core.errors import InputError
from segunc.core.removal import LEDGER, Ledger
from segunc.data.images import read_image
from segunc.data.labels import LabelMap
from segunc.gallery.colours import page_ranges
from segunc.gallery.condensed import condense
from segunc.gallery.frame_files import labelled_objects
from segunc.gallery.page_facts import summarise
from segunc.gallery.review_page import run_id
from segunc.maps.labelled import NoLabelError
from segunc.maps.manifest import build_manifest
from segunc.maps.reader import MapsReader
from segunc.maps.regions import Region
from segunc.maps.store import MapsWriter
from segunc.metrics.objects import found_up_to
from tests.maps.fakes import edit_log, edit_manifest, folder_bytes
from tests.support.scenes import (
    LABEL_MAP,
    NAMES,
    SCORES,
    SIZE,
    Scene,
    carried,
    table,
    write_maps,
    write_page,
    write_picture,
)
from tests.support.visits import Visit

LOGIT = "deterministic-max-logit"


def column(index: Path, name: str) -> list[Any]:
    return [row[name] for row in table(index, "frames")]


def notices(index: Path) -> str:
    return "\n".join(table(index, "page")["notices"])


def test_the_page_is_self_contained(full_page: Path) -> None:
    folder = full_page.parent
    assets = [*(folder / "assets").iterdir()]
    addresses = re.findall(r'\s(?:src|href|poster)="([^"#][^"]*)"', full_page.read_text())
    assert len(addresses) == len(assets) + len([*(folder / "data").iterdir()])
    assert all((folder / address).is_file() for address in addresses)
    for path in (full_page, *assets):
        assert not re.search(r"https?:(?!//www\.w3\.org/2000/svg)", path.read_text()), path


def test_each_frame_has_the_files_of_its_row(full_page: Path) -> None:
    rows = table(full_page, "frames")
    assert [row["name"] for row in rows] == list(NAMES)
    first = {"image", "prediction", *SCORES, "label/anomaly", "label/truth"}
    assert first <= {*rows[0]["contents"]}
    assert "label/truth" not in rows[5]["contents"]
    for row in rows:
        folder = full_page.parent / "frames" / f"{row['place']:06d}"
        for content in row["contents"]:
            assert (folder / f"{content}.js").is_file(), content


def test_the_page_says_what_made_the_maps(full_page: Path) -> None:
    page = table(full_page, "page")
    assert page["line"] == "ABNN, 4 members, 24 draws"
    facts = dict(page["facts"])
    assert facts["model.parameters.alpha"] == "0.05"
    assert facts["run.input"].endswith("images")


def test_the_page_says_the_range_of_each_score(full_page: Path) -> None:
    scores = table(full_page, "page")["scores"]
    assert scores["entropy"]["low"] == 0
    assert scores["entropy"]["high"] == 1
    assert scores["epistemic"]["ticks"] == ["0", "0.05", ">= 0.1"]


def carried_codes(page: Path, content: str) -> tuple[dict[str, Any], Any]:
    """Return the head of the script of a map of the second frame, and its codes."""
    text = (page.parent / "frames" / "000001" / f"{content}.js").read_text()
    call = r'segunc\.receive\("frames/000001/[\w-]+", (\{.*\}), "([^"]+)"\);\n'
    match = re.fullmatch(call, text)
    assert match is not None
    head = json.loads(match[1])
    assert head.pop("stamp") == table(page, "page")["stamp"]
    differences = np.frombuffer(zlib.decompress(base64.b64decode(match[2])), np.uint8)
    rows = differences.reshape(head["height"], head["width"])
    return head, np.cumsum(rows, axis=0, dtype=np.uint8)


def test_a_label_is_carried_by_its_ids(full_page: Path, scene: Scene) -> None:
    head, codes = carried_codes(full_page, "prediction")
    np.testing.assert_array_equal(codes, MapsReader(scene.maps).prediction(NAMES[1]))
    assert head == {"height": 30, "width": 40}


@pytest.mark.parametrize("score", SCORES)
def test_maps_are_carried_in_steps_of_their_range(
    full_page: Path, scene: Scene, score: str
) -> None:
    reader = MapsReader(scene.maps)
    values = reader.read(NAMES[1], score)
    threshold = reader.manifest["maps"][score].get("component_threshold")
    expected, ends = condense(values, 960, threshold)
    head, codes = carried_codes(full_page, score)
    np.testing.assert_array_equal(codes, expected)
    assert head == {"height": 30, "width": 40, **ends}
    assert ends["low"] == values.min()
    assert ends["high"] == values.max()
    half_step = np.ptp(values) / 508
    assert abs(carried(values, score) - values).max() <= half_step * 1.001


def test_a_map_that_is_shrunk_holds_means(scene: Scene) -> None:
    values = MapsReader(scene.maps).read(NAMES[1], "entropy")
    codes, ends = condense(values, 20)
    blocks = values.reshape(15, 2, 20, 2).mean((1, 3))
    shown = ends["low"] + codes / 254 * (ends["high"] - ends["low"])
    assert abs(shown - blocks).max() <= np.ptp(blocks) / 500


def test_a_map_of_one_value_has_one_code() -> None:
    codes, _ = condense(np.full((3, 4), 0.5, np.float32), 960)
    assert (codes == 0).all()


def test_values_that_are_not_finite_have_a_code_of_their_own() -> None:
    codes, ends = condense(np.array([[np.nan, -1, np.inf, 3]], np.float32), 960)
    assert codes.tolist() == [[255, 0, 255, 254]]
    assert ends == {"low": -1, "high": 3, "shift": 0}


EIGHTHS = [i / 8 for i in range(9)]
GRIDS = arrays.arrays(np.float32, (6, 7), elements=st.sampled_from(EIGHTHS))
LABELS = arrays.arrays(np.uint8, (6, 7), elements=st.sampled_from([0, 1, 255]))


@given(GRIDS, LABELS)
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
    label[2:5, 2:5] = 1
    label[5:8, 5:8] = 1  # they touch at a corner
    label[15, 15] = 1
    label[10:14, 10:14] = 255
    objects, counted = labelled_objects(label)
    assert objects.pixels[counted].tolist() == [18]


def test_a_speck_counts_where_there_is_no_larger_object() -> None:
    label = np.zeros((20, 20), np.uint8)
    label[15, 15] = 1
    objects, counted = labelled_objects(label)
    assert objects.number[15, 15] == 1
    assert counted.tolist() == [True]


def test_a_frame_says_whether_its_objects_are_specks(scene: Scene, tmp_path: Path) -> None:
    specks = np.zeros(SIZE, np.uint8)
    specks[4, 4] = specks[9, 9] = 1
    labels = {
        NAMES[0]: specks,
        NAMES[1]: np.zeros(SIZE, np.uint8),
        NAMES[2]: specks.copy(),
    }
    labels[NAMES[2]][20:24, 20:24] = 1
    for name, label in labels.items():
        write_picture(tmp_path / "masks", name, label)
    page = write_page(scene.maps, tmp_path / "specks", anomaly_labels=tmp_path / "masks")
    said = [(frame["objects"], frame["specks"]) for frame in table(page, "frames")]
    assert said[:4] == [(2, True), (0, False), (1, False), (None, False)]


def test_the_usual_scores_are_shown(scene: Scene, tmp_path: Path) -> None:
    page = table(write_page(scene.maps, tmp_path / "usual"), "page")
    assert list(page["scores"]) == ["entropy", "epistemic"]
    assert dict(page["facts"])["Scores left out (review --scores all)"] == "deterministic-max-logit"


def test_all_scores_are_shown_where_they_are_asked_for(scene: Scene, tmp_path: Path) -> None:
    page = table(write_page(scene.maps, tmp_path / "all", scores=["all"]), "page")
    assert list(page["scores"]) == list(SCORES)


def test_a_score_without_maps_is_refused(scene: Scene, tmp_path: Path) -> None:
    with pytest.raises(InputError):
        write_page(scene.maps, tmp_path / "none", scores=["entropie"])


def test_a_limit_keeps_the_worst_frames(scene: Scene, tmp_path: Path) -> None:
    index = write_page(scene.maps, tmp_path / "review", limit=2, scores=["epistemic", "epistemic"])
    assert column(index, "name") == list(NAMES[4:])
    assert column(index, "place") == [4, 5]
    assert column(index, "contents") == [["prediction", "epistemic", "image"]] * 2
    assert "the worst 2 of 6 frames" in notices(index)


def test_anomaly_ranks_the_frames_where_it_is_written(scene: Scene, tmp_path: Path) -> None:
    maps = write_maps(scene.images, tmp_path / "maps", scores=(*SCORES, "anomaly"))
    index = write_page(maps, tmp_path / "ranked", limit=1)
    # The darkest frame is the strangest and the most certain.
    assert column(index, "name") == [NAMES[0]]
    assert table(index, "page")["ranking"] == "anomaly"


def test_the_score_of_a_threshold_ranks_the_frames(scene: Scene, tmp_path: Path) -> None:
    maps = write_maps(scene.images, tmp_path / "maps", scores=(*SCORES, "anomaly"))
    flag = {"epistemic": 0.01}
    index = write_page(maps, tmp_path / "ranked", limit=1, flag=flag)
    assert table(index, "page")["ranking"] == "epistemic"
    assert column(index, "name") == [NAMES[5]]


def test_frames_that_nothing_flags_are_ranked_by_their_highest_value(tmp_path: Path) -> None:
    manifest = build_manifest({}, ("entropy",), device="cpu", classes=["road"], palette=[(0, 0, 0)])
    with MapsWriter(tmp_path / "maps", manifest) as writer:
        for name, level, spot in (("even", 0.4, 0.4), ("spot", 0.1, 0.9)):
            values = np.full(SIZE, level, np.float32)
            values[5:15, 5:15] = spot
            prediction = np.zeros(SIZE, np.uint8)
            writer.commit(writer.store(name, {"entropy": values, "prediction": prediction}))
    flag = {"entropy": 0.95}
    index = write_page(tmp_path / "maps", tmp_path / "page", limit=1, flag=flag)
    assert column(index, "name") == ["spot"]


def test_a_single_draw_says_nothing_of_how_draws_differ(copy: Path, tmp_path: Path) -> None:
    edit_manifest(copy, lambda content: content["run"].update(draws=1))
    usual = table(write_page(copy, tmp_path / "single"), "page")
    assert list(usual["scores"]) == ["entropy"]
    asked = table(write_page(copy, tmp_path / "asked", scores=["epistemic"]), "page")
    assert list(asked["scores"]) == ["epistemic"]


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
            del record["region"]
            del record["component"]
            writer.commit(record)
    for limit, kept in ((1, ["spot"]), (2, ["even", "spot"])):
        index = write_page(tmp_path / "maps", tmp_path / str(limit), limit=limit)
        assert column(index, "name") == kept


@pytest.mark.parametrize(
    ("high", "measured_to"),
    [
        (6, 3),
        (2, None),
    ],
)
def test_a_range_that_is_asked_for_keeps_what_was_measured(
    scene: Scene, tmp_path: Path, high: float, measured_to: float | None
) -> None:
    reader = MapsReader(write_maps(scene.images, tmp_path / "maps", scores=("anomaly",)))
    shown = page_ranges(reader, ["anomaly"], {"anomaly": (0, high)})["anomaly"]
    assert shown.high == high
    assert shown.measured_to == measured_to


def write_verdict_file(path: Path, run: str) -> list[dict[str, Any]]:
    """Write one verdict as a page exports it, and return it as it is read."""
    verdict = {
        "frame": NAMES[1],
        "verdict": "missed",
        "note": "dark",
        "time": "2026-01-01T00:00:00Z",
    }
    content = {
        "format": "segunc-verdicts",
        "version": 2,
        "run": run,
        "verdicts": [verdict],
    }
    path.write_text(json.dumps(content))
    left_out = dict.fromkeys(("region", "score", "threshold", "preparation", "image_hash"))
    return [verdict | {"reviewer": ""} | left_out]


def test_the_verb_writes_a_page_and_imports_verdicts(
    scene: Scene, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "review"
    words = ["review", "--maps", str(scene.maps), "--out", str(out)]
    assert main([*words, "--anomaly-labels", str(scene.anomaly)]) == 0
    index = out / "index.html"
    path = tmp_path / "verdicts.json"
    kept = write_verdict_file(path, table(index, "page")["run"])
    capsys.readouterr()
    assert main([*words, "--import", str(path)]) == 0
    assert "| missed | 1 | 16.7% | 0 |" in capsys.readouterr().out
    assert table(index, "verdicts")["verdicts"] == kept


def test_a_second_import_keeps_what_the_first_brought(scene: Scene, tmp_path: Path) -> None:
    out = tmp_path / "review"
    index = segunc.review(maps=scene.maps, out=out).page
    assert index is not None
    run = table(index, "page")["run"]
    files = []
    given = [("Ana", "missed", 1), ("Ben", "true-alarm", 1), ("Ana", "unsure", 2)]
    for number, (reviewer, verdict, day) in enumerate(given):
        path = tmp_path / f"{number}.json"
        write_verdict_file(path, run)
        content = json.loads(path.read_text())
        time = f"2026-01-0{day}T00:00:00Z"
        content["verdicts"][0] |= {"reviewer": reviewer, "verdict": verdict, "time": time}
        content["verdicts"][0]["image_hash"] = MapsReader(scene.maps).image_hash(NAMES[1])
        path.write_text(json.dumps(content))
        files.append(path)
    first = segunc.review(maps=scene.maps, verdicts=[files[2]], out=out)
    assert not first.notes
    second = segunc.review(maps=scene.maps, verdicts=[files[1]], out=out)
    assert "1 verdict of an earlier import is not in these files" in second.notes[-1]
    assert "1 frame judged by both" in second.verdicts
    # The first file holds an earlier verdict of Ana, which does not count.
    third = segunc.review(maps=scene.maps, verdicts=files[:2], out=out)
    assert not any("earlier import" in note for note in third.notes)
    shown = table(index, "verdicts")["verdicts"]
    assert sorted((row["reviewer"], row["verdict"]) for row in shown) == [
        ("Ana", "unsure"),
        ("Ben", "true-alarm"),
    ]


def test_verdicts_are_not_imported_into_the_page_of_other_maps(
    scene: Scene, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "page"
    words = ["review", "--maps", str(scene.maps), "--out", str(out)]
    assert main(words) == 0
    record = out / "review.json"
    record.write_text(record.read_text().replace(run_id(MapsReader(scene.maps)), "0" * 16))
    path = tmp_path / "verdicts.json"
    write_verdict_file(path, run_id(MapsReader(scene.maps)))
    assert main([*words, "--import", str(path)]) == 2
    assert "is a review page of other maps" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ([], "the page has no place"),
        (
            ["--labels", "labels", "--out", "review"],
            "nothing says which values of --labels are which classes",
        ),
    ],
)
def test_a_page_without_a_place_or_a_label_map_is_refused(
    scene: Scene, capsys: pytest.CaptureFixture[str], words: list[str], message: str
) -> None:
    given_words = [str(scene.labels) if word == "labels" else word for word in words]
    assert main(["review", "--maps", str(scene.maps), *given_words]) == 2
    assert message in capsys.readouterr().err


def test_a_run_under_way_shows_what_is_finished(copy: Path, tmp_path: Path) -> None:
    lines = (copy / "frames.jsonl").read_bytes().splitlines(keepends=True)
    (copy / "frames.jsonl").write_bytes(b"".join(lines[:3]) + lines[3][:40])
    failed = [{"name": "x<y", "reason": "the JPEG is truncated"}]
    edit_manifest(copy, lambda content: content.update(status="running", failed=failed))
    edit_log(copy, lambda record: record.update(time=0.5 * record["index"] ** 2), slice(0, 3))
    index = write_page(copy, tmp_path / "review")
    assert column(index, "name") == list(NAMES[:3])
    assert column(index, "time") == [0, 0.5, 2]
    statistics = {"region", "mean", "max", "p99", "component"}
    assert {*column(index, "statistics")[0]["entropy"]} == statistics
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


def test_labels_of_no_frame_are_refused(scene: Scene, tmp_path: Path) -> None:
    labels = tmp_path / "strangers"
    labels.mkdir()
    shutil.copy(scene.anomaly / f"{NAMES[3]}.png", labels / "z.png")
    with pytest.raises(NoLabelError, match="no label in"):
        write_page(scene.maps, tmp_path / "none", anomaly_labels=labels)


def test_class_labels_need_a_label_map(scene: Scene, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="without the label map"):
        write_page(scene.maps, tmp_path / "none", labels=scene.labels)


def test_a_label_map_of_other_classes_is_refused(scene: Scene, tmp_path: Path) -> None:
    ids = {0: 0, 1: 1, 2: 255, 255: 255}
    two = LabelMap("two", LABEL_MAP.classes[:2], LABEL_MAP.palette[:2], ids)
    with pytest.raises(InputError, match="does not fit the 3 classes"):
        write_page(scene.maps, tmp_path / "none", labels=scene.labels, label_map=two)


@pytest.fixture
def foreign_maps(tmp_path: Path) -> Path:
    """Maps of another tool; the second has no number."""
    maps = tmp_path / "maps"
    (maps / "surprise").mkdir(parents=True)
    rising = np.linspace(-3, 5, 9 * 16, dtype=np.float64).reshape(9, 16)
    np.save(maps / "surprise" / "f.npy", rising)
    np.save(maps / "surprise" / "g.npy", np.full((9, 16), np.nan, np.float32))
    return maps


def test_maps_of_another_tool(foreign_maps: Path, tmp_path: Path) -> None:
    index = write_page(foreign_maps, tmp_path / "review")
    assert column(index, "name") == ["f", "g"]
    largest = [row["surprise"].get("max") for row in column(index, "statistics")]
    assert largest == [5, None]
    assert "NaN or infinite" in column(index, "problems")[1][0]
    page = table(index, "page")
    assert page["line"].startswith("maps of another tool")
    shown = page["scores"]["surprise"]
    assert -3 <= shown["low"] < shown["high"] <= 5


def test_a_page_inside_of_foreign_maps_is_refused(foreign_maps: Path) -> None:
    with pytest.raises(InputError, match="is or lies inside"):
        write_page(foreign_maps, foreign_maps / "review")


@pytest.fixture
def speckled(tmp_path: Path) -> Path:
    """Maps of a frame with a bright speck of 36 pixels, and of one with a large, weak region."""
    images = tmp_path / "images"
    for name, box, level in (("speck", slice(2, 8), 255), ("weak", slice(2, 13), 155)):
        picture = np.zeros((30, 40, 3), np.uint8)
        picture[box, box] = level
        write_picture(images, name, picture)
    return write_maps(images, tmp_path / "maps")


@pytest.mark.parametrize("flag", [{}, {"entropy": 0.5}])
def test_frames_are_sorted_by_the_region_that_their_cards_show(
    speckled: Path, tmp_path: Path, flag: dict[str, float]
) -> None:
    """A card shows no region below 50 pixels, however strong."""
    reader = MapsReader(speckled)
    recorded = [reader.records[name]["region"]["entropy"] for name in ("speck", "weak")]
    assert recorded[0] > recorded[1] > 0, "of regions of any size"
    index = write_page(speckled, tmp_path / "page", flag=flag)
    speck, weak = (row["entropy"] for row in column(index, "statistics"))
    assert column(index, "strongest")[0].get("entropy") is None
    assert speck["region"] == 0
    (alarm,) = column(index, "alarms")[1]
    assert weak["region"] == pytest.approx(alarm["strength"])
    of_one = write_page(speckled, tmp_path / "one", flag=flag, limit=1)
    assert column(of_one, "name") == ["weak"]


def test_a_page_of_the_worst_frames_reads_few_maps(
    scene: Scene, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    read: list[str] = []
    original = MapsReader.read

    def counting(self: MapsReader, name: str, score: str) -> Any:
        read.append(name)
        return original(self, name, score)

    monkeypatch.setattr(MapsReader, "read", counting)
    index = write_page(scene.maps, tmp_path / "page", scores=["entropy"], limit=1)
    (name,) = column(index, "name")
    assert set(read) == {name}


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


def half_masked(scene: Scene, tmp_path: Path) -> Path:
    """Write maps of the scene of which a mask leaves out the left half."""
    kept = np.full(SIZE, 255, np.uint8)
    kept[:, :20] = 0
    assert cv2.imwrite(str(tmp_path / "mask.png"), kept)
    return write_maps(scene.images, tmp_path / "maps", region=Region(tmp_path / "mask.png"))


def test_thumbnails_stripe_what_a_mask_leaves_out(scene: Scene, tmp_path: Path) -> None:
    """Its colour alone is that of a score of 0, which says that the network is certain."""
    maps = half_masked(scene, tmp_path)
    write_page(maps, tmp_path / "page")
    (thumbnail,) = (tmp_path / "page/thumbnails/000005").glob("entropy-*.jpg")
    masked = read_image(thumbnail)[:, :16].astype(int)
    assert masked.max() < 100
    assert np.ptp(masked[..., 2]) > 20


def test_the_frame_view_shows_no_value_outside_a_mask(
    scene: Scene, tmp_path: Path, visit: Visit
) -> None:
    """Maps hold 0 there, which would look like a certain pixel of the first class."""
    maps = half_masked(scene, tmp_path)
    index = write_page(maps, tmp_path / "page")
    for content in ("entropy", "prediction"):
        _, codes = carried_codes(index, content)
        assert (codes[:, :20] == 255).all()
        assert (codes[:, 20:] != 255).all()
    visit.open_frame(index, NAMES[5], "&layer=entropy&probe=5,5")
    visit.shown("#values [data-content=entropy]", "no value")
    visit.shown("#values [data-content=prediction]", "ignored")
    visit.shown("figure.legend", "grey: no value")


def test_pixels_outside_a_mask_are_no_alarm_at_threshold_0(copy: Path, tmp_path: Path) -> None:
    """Maps hold 0 there, which is above a threshold of an energy, too."""
    mask = np.full((30, 40), 255, np.uint8)
    mask[:, :20] = 0
    cv2.imwrite(str(copy / "mask.png"), mask)
    record = {"file": "mask.png", "sha256": Region(copy / "mask.png").sha256}
    edit_manifest(copy, lambda content: content.update(mask=record))
    index = write_page(copy, tmp_path / "review", flag={"entropy": 0.0})
    for (alarm,) in column(index, "alarms"):
        assert (alarm["box"], alarm["area"]) == ([20, 0, 20, 30], 600)


def test_pixels_outside_a_mask_are_never_above_a_negative_threshold(
    scene: Scene, tmp_path: Path, visit: Visit
) -> None:
    """A threshold of a logit is typed on the page; maps hold 0 outside of a mask."""
    maps = half_masked(scene, tmp_path)
    assert MapsReader(maps).read(NAMES[5], LOGIT)[:, :20].max() == 0
    index = write_page(maps, tmp_path / "page", scores=["all"])
    # The range of the colours is that of the pixels that count.
    assert table(index, "page")["scores"][LOGIT]["high"] < -3
    visit.open_frame(index, NAMES[5], f"&score={LOGIT}&layer={LOGIT}&flags=1&threshold=-5")
    boxes = visit.page.evaluate("segunc.regions.shown().map(({ region }) => region.box)")
    assert boxes == [[20, 0, 20, 30]]
    visit.shown("#flagged", "100.00 % of the pixels with a value")


def test_an_object_is_found_at_the_share_of_the_threshold(scene: Scene, tmp_path: Path) -> None:
    pages = {}
    for share in (0.5, 0.1):
        pages[share] = write_page(
            scene.maps,
            tmp_path / str(share),
            share,
            anomaly_labels=scene.anomaly,
            flag={"entropy": 0.5},
        )
        assert table(pages[share], "page")["scores"]["entropy"]["found_share"] == share
    strict = [row.get("entropy", []) for row in column(pages[0.5], "found")]
    loose = [row.get("entropy", []) for row in column(pages[0.1], "found")]
    assert [len(limits) for limits in strict] == [1, 1, 2, 0, 0, 0]
    for strict_limits, loose_limits in zip(strict, loose, strict=True):
        assert len(strict_limits) == len(loose_limits)
        assert all(a < b for a, b in zip(strict_limits, loose_limits, strict=True))


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


def test_a_page_is_overwritten(scene: Scene, tmp_path: Path) -> None:
    out = tmp_path / "out"
    first = write_page(scene.maps, out)
    Ledger(out).write("frames/000099/image.js", b"of a frame that is gone")
    assert write_page(scene.maps, out) == first
    assert not (out / "frames" / "000099").exists()
    assert json.loads((out / "review.json").read_text())["status"] == "finished"


def test_only_a_page_is_overwritten(scene: Scene, tmp_path: Path) -> None:
    (tmp_path / "index.html").write_text("dear")
    with pytest.raises(InputError, match="holds other files"):
        write_page(scene.maps, tmp_path)
    with pytest.raises(InputError, match="is or lies inside"):
        write_page(scene.maps, scene.maps)


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


@pytest.mark.parametrize(
    ("run", "model", "words"),
    [
        ({"size": [64, 128]}, {"inference_size": [32, 64]}, "128 x 64"),
        ({"size": None}, {"inference_size": [32, 64]}, "about 64 x 32, the size of the model"),
        ({"size": None}, {"inference_size": None}, "as the images"),
        ({"size": None}, {}, "the size of the model"),
    ],
)
def test_the_page_says_at_which_size_the_network_saw_the_frames(
    run: dict[str, Any], model: dict[str, Any], words: str
) -> None:
    facts = dict(dict(summarise({"run": run, "model": model}))["Run"])
    assert facts["Size of the network's input"].startswith(words)


def test_regions_are_counted_beyond_those_that_are_listed(scene: Scene, tmp_path: Path) -> None:
    index = write_page(scene.maps, tmp_path / "review", flag={"entropy": 0.05})
    smallest = table(index, "page")["scores"]["entropy"]["smallest_region"]
    reader = MapsReader(scene.maps)
    regions = column(index, "regions")
    for name, alarms, counted in zip(NAMES, column(index, "alarms"), regions, strict=True):
        high = (reader.read(name, "entropy") >= 0.05).astype(np.uint8)
        _, _, boxes, _ = cv2.connectedComponentsWithStats(high, connectivity=8)
        large = int((boxes[1:, cv2.CC_STAT_AREA] >= smallest).sum())
        assert counted == large
        assert len(alarms) == min(5, large)


def test_moments_without_any_region_are_no_order(scene: Scene, copy: Path) -> None:
    assert not any("order means nothing" in note for note in segunc.summary(scene.maps).notes)
    edit_log(copy, lambda line: line["region"].update(entropy=0.0), slice(None))
    (note,) = [note for note in segunc.summary(copy).notes if "order means nothing" in note]
    assert note.startswith("no frame has a region above the threshold")


def test_a_page_names_frames_that_the_bank_of_features_seems_to_hold(
    scene: Scene, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    recorded = {"features_sha256": "0" * 64}
    maps = write_maps(
        scene.images, tmp_path / "m", scores=("entropy", "anomaly"), recorded=recorded
    )
    usual = table(write_page(maps, tmp_path / "usual"), "page")["notices"]
    assert not any("bank of features" in notice for notice in usual)
    monkeypatch.setattr("segunc.maps.known_frames.KNOWN_BELOW", 100.0)
    (notice,) = [
        notice
        for notice in table(write_page(maps, tmp_path / "all"), "page")["notices"]
        if "bank of features" in notice
    ]
    assert notice.startswith("6 of 6 frames have no pixel of anomaly from 100.0 on, first a dark")


def test_frames_have_the_names_of_their_files(full_page: Path, scene: Scene) -> None:
    files = [row["file"] for row in table(full_page, "frames")]
    assert files == [f"{name}.png" for name in NAMES]
