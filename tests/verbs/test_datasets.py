"""``segunc evaluate`` on data sets by name: both labels, declared anomalies, and the same numbers from maps."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import numpy.typing as npt
import pytest

from segunc.cli.main import main
from segunc.data.datasets import dataset_entry
from segunc.data.images import read_label_image
from segunc.maps.encoding import encode_unit
from segunc.networks import NetworkDescription, build_network, save_network
from tests.data.miniatures import draw_miniature
from tests.data.test_datasets import COUNTS, EVERY_FORM

OPTIONS = {"decoder_pyramid_channels": 32, "decoder_segmentation_channels": 32}


def model(folder: Path, name: str, *anomaly_classes: str) -> Path:
    """An untrained network with the known classes of a data set."""
    labels = dataset_entry(name, anomaly_classes=anomaly_classes).label_map()
    description = NetworkDescription("FPN", "mobilenet_v2", labels.classes, labels.palette, OPTIONS)
    save_network(build_network(description), folder)
    return folder


def evaluate(out: Path, *words: object) -> dict[str, Any]:
    scoring = (
        *(("--scores", "entropy") if "--model" in words else ()),
        *(() if "--replicates" in words else ("--replicates", 0)),
    )
    assert main([str(word) for word in ("evaluate", *words, *scoring, "--out", out)]) == 0
    return json.loads(out.read_text(encoding="utf-8"))


def of_model(folder: Path, name: str, root: Path, split: str, *more: object) -> dict[str, Any]:
    words = ("--model", folder, "--dataset", name, "--root", root, "--split", split, "--size", "64x64", *more)
    return evaluate(folder / "metrics.json", *words, "--device", "cpu")


def test_a_declared_class_is_the_anomaly_of_the_frames_that_hold_it(tmp_path: Path) -> None:
    root, network = draw_miniature("camvid", tmp_path / "data"), model(tmp_path / "base", "camvid", "bicyclist")
    result = of_model(network, "camvid", root, "test", "--anomaly-class", "bicyclist")
    # One test frame of twelve stripes holds it (one of them, one void), one of eleven does not.
    assert result["counts"]["frames"] == 2
    pixels, known = 48 * 64, dataset_entry("camvid", anomaly_classes=["bicyclist"]).label_map().classes
    assert result["counts"]["anomaly_pixels"] == pytest.approx(pixels / 12, rel=0.15)
    assert result["counts"]["labelled_pixels"] == pytest.approx(pixels * 10 / 11, rel=0.02)
    assert list(result["segmentation"]["per_class"]) == list(known)
    assert 0 <= result["scores"]["entropy"]["pooled"]["auroc"] <= 1


def test_a_set_with_anomalies_of_its_own_reports_both(tmp_path: Path) -> None:
    root, network = draw_miniature("bdd-anomaly", tmp_path / "data"), model(tmp_path / "base", "bdd-anomaly")
    result = of_model(network, "bdd-anomaly", root, "test")
    assert result["counts"]["frames"] == 3
    assert result["scores"]["entropy"]["pooled"]["auroc"] is not None
    assert result["segmentation"]["miou"] is not None


def write_map(path: Path, content: npt.NDArray[Any]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    assert cv2.imwrite(str(path), content)


def test_maps_are_scored_by_the_files_of_the_data_set(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    root, maps = draw_miniature("camvid", tmp_path / "data"), tmp_path / "maps"
    entry = dataset_entry("camvid", anomaly_classes=["bicyclist"])
    for sample in entry.samples(root, "test"):
        raw = read_label_image(sample.anomaly or sample.label)
        truth = entry.label_map().encode(raw)
        score = np.where(raw == 10, 0.9, 0.1).astype(np.float32)
        write_map(maps / "entropy" / f"{sample.name}.png", encode_unit(score))
        write_map(maps / "prediction" / f"{sample.name}.png", np.where(truth == 255, 0, truth).astype(np.uint8))
    words = ("--maps", maps, "--dataset", "camvid", "--root", root, "--anomaly-class", "bicyclist")
    result = evaluate(tmp_path / "metrics.json", *words)
    assert result["scores"]["entropy"]["pooled"]["auroc"] == 1.0
    assert result["segmentation"]["miou"] == 1.0
    assert main([*map(str, ("evaluate", *words, "--labels", root, "--out", tmp_path / "m.json"))]) == 2
    assert "--root goes with --dataset" in capsys.readouterr().err
    assert main([*map(str, ("evaluate", "--maps", maps, "--anomaly-class", "car", "--out", tmp_path / "m.json"))]) == 2
    assert "--anomaly-class needs the data set" in capsys.readouterr().err


@pytest.mark.parametrize(("name", "form"), EVERY_FORM)
def test_every_published_layout_passes_through_evaluate(tmp_path: Path, name: str, form: int) -> None:
    """Maps that are right about every class and every anomaly have the best numbers, whatever the set's files look like."""
    root, maps = draw_miniature(name, tmp_path / "data", form), tmp_path / "maps"
    entry, split = dataset_entry(name), next(reversed(COUNTS[name]))
    both = False
    for sample in entry.samples(root, split):
        score, prediction = np.zeros((48, 64), np.float32), np.zeros((48, 64), np.uint8)
        if sample.anomaly is not None and entry.anomaly_encoding is not None:
            truth = entry.anomaly_encoding.encode(read_label_image(sample.anomaly))
            score[truth == 1] = 0.9
            both |= bool((truth == 1).any() and (truth == 0).any())
        if sample.label is not None:
            ids = entry.label_map().encode(read_label_image(sample.label))
            prediction = np.where(ids == 255, 0, ids).astype(np.uint8)
        write_map(maps / "own" / f"{sample.name}.png", encode_unit(score))
        write_map(maps / "prediction" / f"{sample.name}.png", prediction)
    words = ("--maps", maps, "--dataset", name, "--root", root, "--split", split, "--replicates", 0)
    result = evaluate(tmp_path / "metrics.json", *words, "--protocols", "pooled,per-image,smiyc")
    assert result["counts"]["frames_scored"] == COUNTS[name][split]
    if entry.labels is not None:
        assert result["segmentation"]["miou"] == 1.0
    if entry.anomaly_encoding is not None:
        assert both
        assert [result["scores"]["own"][p]["auroc"] for p in ("pooled", "per-image", "smiyc")] == [1.0] * 3
