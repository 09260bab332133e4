"""``export`` and ``compare`` as commands: what they print and write, their exit codes and their one-line errors."""

from __future__ import annotations

import json
import re
from pathlib import Path

import cv2
import numpy as np
import pytest

from segunc.data.datasets import dataset_entry
from segunc.data.images import read_label_image
from tests.evaluation.evaluations import write_result
from tests.maps.foreign import write_map
from tests.verbs.processes import refuse, succeed


@pytest.fixture
def maps(tmp_path: Path) -> Path:
    for name in ("a", "b"):
        write_map(tmp_path / "maps" / "entropy" / f"{name}.npy", np.linspace(0, 1, 12).reshape(3, 4))
    return tmp_path / "maps"


def test_export_and_evaluate_what_was_exported(maps: Path, tmp_path: Path) -> None:
    words = "--score entropy --to smiyc --method Mine --dataset AnomalyTrack-all"
    done = succeed("export --maps", maps, words, "--out", tmp_path / "out")
    assert "2 of 2 frames of 'entropy' in" in done.stdout
    for name in ("a", "b"):
        write_map(tmp_path / "labels" / f"{name}.png", (np.arange(12).reshape(3, 4) > 5).astype(np.uint8))
    metrics = tmp_path / "metrics.json"
    succeed("evaluate", "--maps", tmp_path / "out", "--anomaly-labels", tmp_path / "labels", "--out", metrics)
    scores = json.loads(metrics.read_text())["scores"]
    assert list(scores) == ["Mine"]
    assert scores["Mine"]["pooled"]["auroc"] == pytest.approx(1.0)
    table = tmp_path / "tables" / "t.md"
    done = succeed("compare", metrics, "--keys", "*.auroc", "--names", "my run", "--out", table)
    assert f"wrote {table}" in done.stdout
    assert table.read_text() == done.stdout.split("wrote ")[0]
    assert re.search(r"scores\.Mine\.pooled\.auroc ↑ +\| +1\.000 \|", table.read_text())


def test_a_bad_frame_ends_an_export_with_1(maps: Path, tmp_path: Path) -> None:
    write_map(maps / "entropy" / "b.npy", np.full((3, 4), np.inf))
    words = ("export --score entropy --to fishyscapes --anomaly-only --maps", maps, "--out", tmp_path / "out")
    assert "1 of 2 frames could not be exported, first b (the map holds NaN" in refuse(*words, code=1)
    assert (tmp_path / "out" / "a_anomaly.npy").exists()


def test_a_viewer_gets_the_labels_of_a_data_set(toy_set: Path, tmp_path: Path) -> None:
    entry = dataset_entry("toy", anomaly_classes=["traffic sign"])
    samples, maps, out = entry.samples(toy_set, "val"), tmp_path / "maps", tmp_path / "out"
    for sample in samples:
        write_map(maps / "entropy" / f"{sample.name}.npy", np.zeros((2, 2), np.float32))
    command = ("export --to fiftyone --maps", maps, "--images", toy_set / "leftImg8bit" / "val", "--out", out)
    words = ("--dataset toy --split val --root", toy_set, "--anomaly-class", "traffic sign")
    assert f"{len(samples)} of {len(samples)} frames in" in succeed(*command, *words).stdout
    index = json.loads((out / "segunc.json").read_text())
    targets = {int(value): name for value, name in index["classes"].items()}
    assert list(targets.values()) == list(entry.label_map().classes)
    for written, sample in zip(index["samples"], samples, strict=True):
        field, meaning = (
            ("ground_truth", entry.label_map()) if sample.label else ("anomaly_truth", entry.anomaly_encoding)
        )
        label = meaning.encode(read_label_image(sample.label or sample.anomaly))
        shown = cv2.imread(str(out / written[field]), cv2.IMREAD_UNCHANGED)
        np.testing.assert_array_equal(shown, label + np.uint8(field == "ground_truth"))
        assert len({"ground_truth", "anomaly_truth"} & set(written)) == 1
    assert {bool(sample.label) for sample in samples} == {True, False}


def test_compare_writes_both_csv_tables(tmp_path: Path) -> None:
    smiyc = {"entropy": {"smiyc": {"aupr": 0.4, "fpr95": 0.5}}}
    result = write_result(tmp_path / "a.json", {}, scores=smiyc)
    fields = {"AnomalyTrack-test-PixBinaryClass-area_PRC": 0.3, "AnomalyTrack-test-PixBinaryClass-tpr95_fpr": 0.6}
    board = tmp_path / "leaderboard.json"
    board.write_text(json.dumps({"anomaly_track": [{"method": "theirs", **fields}]}))
    done = succeed("compare", result, "--leaderboard", board, "--out", tmp_path / "t.csv")
    assert "| **a:entropy** | .400 (1) |" in done.stdout
    assert (tmp_path / "t.csv").read_text().startswith("number,result,value")
    assert "a:entropy,1,0.4" in (tmp_path / "t.leaderboard.csv").read_text()


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("export --maps MAPS --score entropy --to kitti --out OUT", "invalid choice: 'kitti'"),
        ("export --maps nowhere --score entropy --to fishyscapes --out OUT", "nowhere does not exist"),
        (
            "export --maps MAPS --score entropy --to fishyscapes --anomaly-only --out FILE",
            "cannot be made (File exists)",
        ),
        ("export --maps MAPS --score entropy --to fishyscapes --out OUT", "no predictions, and the board takes"),
        ("export --maps MAPS --to fiftyone --labels x --out OUT", "--labels without the data set"),
        ("export --maps MAPS --to fiftyone --root x --out OUT", "expected --dataset beside it"),
        (
            "export --maps MAPS --to fiftyone --anomaly-labels x --anomaly-class car --out OUT",
            "--anomaly-class without",
        ),
        ("export --maps MAPS --to rerun --root x --out OUT", "with --to rerun; expected --to fiftyone"),
        ("export --maps MAPS --score entropy --to fishyscapes --images x --out OUT", "expected --to rerun or fiftyone"),
        ("export --maps MAPS --to fiftyone --anomaly-only --out OUT", "--anomaly-only with --to fiftyone"),
        ("compare", "required: JSON"),
        ("compare nowhere.json", "nowhere.json does not exist"),
        ("compare FILE --out table.txt", ".md or .csv"),
        ("compare FILE --leaderboard FILE", "has no table 'anomaly_track'"),
    ],
)
def test_bad_usage_is_one_line(maps: Path, tmp_path: Path, line: str, said: str) -> None:
    places = {"MAPS": str(maps), "OUT": str(tmp_path / "out"), "FILE": str(write_result(tmp_path / "a.json", {}))}
    assert said in refuse(*(places.get(word, word) for word in line.split()))
    assert not (tmp_path / "out").exists()
