"""Which frames ``segunc evaluate --model`` looks at: corrupted ones, and those that hyper-parameters are selected on."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import cv2
import pytest

from segunc.cli.main import main
from segunc.data.corruptions import Corruption
from segunc.data.datasets import dataset_entry
from segunc.data.images import load_image
from segunc.data.labels import label_map
from segunc.sampling.sampler import sample_frames
from tests.conftest import Job
from tests.data.miniatures import write_frame
from tests.verbs.test_datasets import model

FAST = ("--draws", 2, "--replicates", 0, "--precision", "float32", "--device", "cpu")


def evaluate(folder: Path, network: Path, *words: object) -> dict[str, Any]:
    out = folder / "metrics.json"
    assert main([str(word) for word in ("evaluate", "--model", network, *words, *FAST, "--out", out)]) == 0
    return json.loads(out.read_text())


def test_a_corruption_is_that_of_the_images_themselves(trained: Job, tmp_path: Path) -> None:
    words = ("--dataset", "toy", "--split", "test")
    clean = evaluate(tmp_path, trained.base, *words, "--root", trained.data)
    noisy = evaluate(tmp_path, trained.base, *words, "--root", trained.data, "--corruption", "noise:4")
    assert "corruption" not in clean["run"]
    assert noisy["run"]["corruption"] == "noise:4"
    assert noisy["calibration"]["nll"] != clean["calibration"]["nll"]
    copied = Path(shutil.copytree(trained.data, tmp_path / "data"))
    for sample in dataset_entry("toy").samples(copied, "test"):
        corrupted = Corruption("noise", 4)(load_image(sample.image), sample.name)
        assert cv2.imwrite(str(sample.image), corrupted[..., ::-1])
    stored = evaluate(tmp_path, trained.base, *words, "--root", copied)
    for section in ("segmentation", "calibration", "selective"):
        assert stored[section] == noisy[section]


def test_a_threshold_of_anomalies_flags_known_scenes_clean_and_corrupted(
    trained: Job, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ("--root", trained.data, "--scores", "entropy", "--threads", 1)
    first = evaluate(tmp_path, trained.base, "--dataset", "toy-anomaly", "--split", "anomaly", *words, "--groups", ".")
    earlier = shutil.move(tmp_path / "metrics.json", tmp_path / "earlier.json")
    flag = ("--dataset", "toy", "--split", "test", *words, "--flag", f"{earlier}:0.95")
    clean, noisy = (evaluate(tmp_path, trained.base, *flag, *more) for more in ((), ("--corruption", "noise:4")))
    pooled = first["scores"]["entropy"]["pooled"]
    for result in (clean, noisy):
        found = result["flagged"]["entropy"]
        assert found["threshold"] == pooled["thresholds"]["0.95"]
        assert 0 < found["share"] <= 1
    assert clean["flagged"] != noisy["flagged"]
    shown = capsys.readouterr().out
    assert "images corrupted by noise:4" in shown
    assert "of at least 50 pixels" in shown
    assert (
        sum(group["anomaly_pixels"] for group in first["counts"]["groups"].values())
        == first["counts"]["anomaly_pixels"]
    )
    assert (
        sum(size["pixels"] for size in first["scores"]["entropy"]["size"].values()) == first["counts"]["anomaly_pixels"]
    )


def test_the_selection_is_val_or_what_stands_in_for_it(trained: Job, tmp_path: Path) -> None:
    words = ("--dataset", "toy", "--root", trained.data, "--split")
    selection, val = (evaluate(tmp_path, trained.base, *words, split) for split in ("selection", "val"))
    assert selection["calibration"] == val["calibration"]
    # Every frame of val holds the anomaly: 30 frames of train stand in, of which a network has seen none.
    known = [value for value in sorted(label_map("camvid").raw_to_train) if value != 10]
    root = tmp_path / "camvid"
    for split, frames, values in (("train", 32, known), ("val", 2, [*known, 10])):
        for i in range(frames):
            name = f"0001TP_{i:06d}.png"
            write_frame(root / split / name, root / f"{split}annot" / name, values, seed=i)
    network = model(tmp_path / "base", "camvid", "bicyclist")
    words = ("--dataset", "camvid", "--root", root, "--anomaly-class", "bicyclist", "--split", "selection")
    result = evaluate(tmp_path, network, *words)
    assert result["counts"]["labelled_frames"] == 30
    assert result["calibration"]["nll"] > 0


def test_a_part_of_a_split(trained: Job, tmp_path: Path) -> None:
    words = ("--dataset", "toy", "--root", trained.data, "--split", "test")
    names = [sample.name for sample in dataset_entry("toy").samples(trained.data, "test")]
    last = names[-1]
    everything = evaluate(tmp_path, trained.base, *words)
    others = evaluate(tmp_path, trained.base, *words, "--frames", f"^(?!{last}$)")
    alone = evaluate(tmp_path, trained.base, *words, "--frames", f"^{last}$")
    assert (alone["counts"]["frames"], others["counts"]["frames"]) == (1, len(names) - 1)
    for count in ("labelled_pixels", "labelled_frames"):
        assert alone["counts"][count] + others["counts"][count] == everything["counts"][count]
    assert alone["run"]["frames"] == f"^{last}$"
    assert "frames" not in everything["run"]
    thinned = evaluate(tmp_path, trained.base, *words, "--every", 2)
    kept = "|".join(names[::2])
    matched = evaluate(tmp_path, trained.base, *words, "--frames", f"^({kept})$")
    assert thinned["counts"]["frames"] == len(names[::2]) < len(names)
    assert thinned["run"]["every"] == 2
    assert thinned["calibration"] == matched["calibration"]


def test_a_frame_that_memory_does_not_suffice_for_is_left_out(
    trained: Job, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    errors: list[Exception | None] = [None, MemoryError()]

    def limited(*given: Any, **settings: Any) -> Any:
        if errors and (error := errors.pop()):
            raise error
        return sample_frames(*given, **settings)

    monkeypatch.setattr("segunc.sampling.sampler.sample_frames", limited)
    out = tmp_path / "metrics.json"
    words = ("evaluate", "--model", trained.base, "--dataset", "toy", "--split", "test", "--root", trained.data)
    assert main([str(word) for word in (*words, *FAST, "--out", out)]) == 1
    assert "1 of 2 frames could not be counted" in capsys.readouterr().err
    result = json.loads(out.read_text())
    assert "not enough memory for a frame of 128 x 64 pixels" in result["left_out"][0]["reason"]
    assert result["counts"]["frames_scored"] == 1
