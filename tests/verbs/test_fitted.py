"""Temperature, features, a sum of scores and sets of classes through the command line, and the
scores that need them.
"""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

import segunc
from segunc.posteriors.model import load_model
from segunc.scores import SCORES
from tests.conftest import Job
from tests.verbs.processes import FAST, refuse, succeed

SETTINGS = {
    "temperature": "--temperature.pixels 200 --temperature.draws 4",
    "features": "--features.frames 4 --features.layers [body.encoder.features.3]",
    "anomaly": "--anomaly.parts [deterministic-energy,knn] --anomaly.draws 2"
    " --anomaly.weights [2,1] --anomaly.frames 4",
    "class-sets": "--class_sets.draws 4 --class_sets.level 0.25",
}


def fit(method: str, base: Path, out: Path, data: Path) -> str:
    command = f"finetune --device cpu --method {method} {SETTINGS[method]}"
    words = ("--data.dataset toy --data.root", data, "--base", base, "--out", out)
    return succeed(command, *words).stdout


def contents(path: Path) -> dict[str, Any]:
    return json.loads(path.read_text(encoding="utf-8"))


@pytest.fixture(scope="module")
def fitted(overconfident: Job, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The ABNN with all of them, the last two fitted in place."""
    out = tmp_path_factory.mktemp("fitted") / "model"
    data = overconfident.data
    assert "temperature" in fit("temperature", overconfident.abnn, out, data)
    assert "features of 4 frames" in fit("features", out, out, data)
    assert "anomaly is 2 deterministic-energy + knn on 4 frames" in fit("anomaly", out, out, data)
    assert "9 classes on average" in fit("class-sets", out, out, data)
    return out


@pytest.fixture(scope="module")
def calibrated(overconfident: Job, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The deterministic network with a temperature."""
    out = tmp_path_factory.mktemp("calibrated") / "model"
    fit("temperature", overconfident.base, out, overconfident.data)
    return out


def test_the_doctor_finds_a_flipped_bit_of_the_bank(fitted: Path, tmp_path: Path) -> None:
    command = "doctor --draws 4 --size 64x128 --model"
    done = succeed(command, fitted, FAST)
    (line,) = (line for line in done.stdout.splitlines() if "files of what was fitted" in line)
    assert line.startswith("  ok")
    records = ("features.json", "anomaly.json", "calibration.json", "class_sets.json")
    for name in (*records, "features.safetensors"):
        assert name in line
    model = tmp_path / "model"
    shutil.copytree(fitted, model)
    bank = model / "features.safetensors"
    content = bytearray(bank.read_bytes())
    content[-1] ^= 1
    bank.unlink()  # it may be a link
    bank.write_bytes(content)
    refusal = refuse(command, model, FAST, code=1)
    assert "not sound: files of what was fitted" in refusal


def test_a_deterministic_model_is_calibrated_too(calibrated: Path) -> None:
    model = load_model(calibrated)
    assert not model.bayesian
    assert model.calibrator is None
    calibration = model.attachments["calibration"]
    assert calibration.draws == 1
    assert model.temperature == calibration.temperature != 1.0


def test_a_temperature_lowers_the_validation_nll_and_moves_no_maximum(
    overconfident: Job, calibrated: Path, tmp_path: Path
) -> None:
    out = tmp_path / "metrics.json"
    words = ("--root", overconfident.data, "--out", out, FAST)
    command = "evaluate --replicates 0 --dataset toy --split val --model"
    succeed(command, overconfident.base, *words)
    before = contents(out)
    succeed(command, calibrated, *words)
    after = contents(out)
    assert before["run"]["temperature"] == 1.0
    assert after["run"]["temperature"] == load_model(calibrated).temperature
    assert after["calibration"]["nll"] < before["calibration"]["nll"]
    assert after["segmentation"]["miou"] == before["segmentation"]["miou"]


# rba is of networks that classify masks.
OF_PIXELS = [name for name in SCORES if name != "rba"]
EVERY_SCORE = ("--scores", ",".join(OF_PIXELS), "--draws 4", FAST)


@pytest.fixture(scope="module")
def maps(overconfident: Job, fitted: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Maps of every score."""
    out = tmp_path_factory.mktemp("fitted") / "maps"
    words = ("--input", overconfident.frames, "--out", out)
    succeed("predict --model", fitted, *words, *EVERY_SCORE)
    return out


def test_maps_and_model_give_the_same_numbers_for_every_score(
    overconfident: Job, fitted: Path, maps: Path, tmp_path: Path
) -> None:
    from_maps = tmp_path / "maps.json"
    one_pass = tmp_path / "pass.json"
    command = "evaluate --replicates 0 --components smiyc-obstacle --out"
    succeed(command, from_maps, "--maps", maps, "--anomaly-labels", overconfident.masks)
    data = ("--dataset toy-anomaly --split anomaly --root", overconfident.data)
    succeed(command, one_pass, *data, "--model", fitted, *EVERY_SCORE)
    first = contents(from_maps)
    second = contents(one_pass)
    assert set(first["scores"]) == set(OF_PIXELS)
    assert first["scores"] == second["scores"]
    assert first["counts"]["anomaly_pixels"] == second["counts"]["anomaly_pixels"] > 0
    manifest = contents(maps / "manifest.json")
    assert manifest["run"]["calibrator"] == second["run"]["calibrator"]


def test_a_manifest_names_the_calibrator_of_its_maps(fitted: Path, maps: Path) -> None:
    manifest = contents(maps / "manifest.json")
    run = manifest["run"]
    temperature = manifest["model"]["calibration"]["temperature"]
    assert run["temperature"] == 1.0 != temperature
    assert run["calibrator"] == f"temperature {temperature:.4f}"
    assert run["calibrator_sha256"] == load_model(fitted).calibrator.sha256


def test_a_manifest_describes_its_maps(fitted: Path, maps: Path) -> None:
    manifest = contents(maps / "manifest.json")
    assert set(manifest["maps"]) == {"prediction", *OF_PIXELS}
    measured_to = load_model(fitted).attachments["anomaly"].measured_to
    assert manifest["maps"]["anomaly"]["measured_to"] == measured_to > 0
    assert manifest["model"]["feature_encoder"] == "own"


def test_a_frame_has_peaks_where_its_region_is_above_zero(maps: Path) -> None:
    for text in (maps / "frames.jsonl").read_text().splitlines():
        line = json.loads(text)
        assert bool(line["peaks"]["anomaly"]) == (line["region"]["anomaly"] > 0)


def test_a_threshold_of_the_sum_is_exported_with_the_model(
    overconfident: Job, fitted: Path, maps: Path, tmp_path: Path
) -> None:
    chosen = segunc.threshold(
        maps=maps,
        out=tmp_path / "threshold.json",
        control="flagged-pixels",
        level=0.5,
        score="anomaly",
        anomaly_labels=overconfident.masks,
    )
    segunc.export(
        model=fitted,
        to="pt2",
        size=(64, 128),
        draws=4,
        scores=["anomaly"],
        threshold=chosen.path,
        out=tmp_path,
    )


@pytest.mark.parametrize("method", ["features", "temperature"])
def test_a_new_bank_or_temperature_takes_away_the_sum_that_it_outdates(
    overconfident: Job, fitted: Path, tmp_path: Path, method: str
) -> None:
    out = tmp_path / method
    shutil.copytree(fitted, out)
    printed = fit(method, out, out, overconfident.data)
    assert "anomaly.json, which was fitted with a former" in printed
    assert not {"anomaly", "class_sets"} & load_model(out).attachments.keys()
    assert (fitted / "anomaly.json").exists()
