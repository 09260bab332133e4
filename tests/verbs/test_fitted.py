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
from tests.verbs.processes import FAST, succeed

SETTINGS = {
    "temperature": "--temperature.pixels 200 --temperature.draws 4",
    "features": "--features.frames 4 --features.layers [body.encoder.features.3]",
    "anomaly": "--anomaly.draws 2 --anomaly.weights [2,1] --anomaly.frames 4",
    "class-sets": "--class_sets.draws 4 --class_sets.level 0.25",
}


def fit(method: str, base: Path, out: Path, data: Path) -> str:
    words = (
        (
            f"finetune --device cpu --method {method} {SETTINGS[method]} --data.dataset toy"
            " --data.root"
        ),
        data,
    )
    return succeed(*words, "--base", base, "--out", out).stdout


@pytest.fixture(scope="module")
def fitted(overconfident: Job, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The ABNN with all of them, the last two fitted in place."""
    out = tmp_path_factory.mktemp("fitted") / "model"
    assert "temperature" in fit("temperature", overconfident.abnn, out, overconfident.data)
    assert "features of 4 frames" in fit("features", out, out, overconfident.data)
    assert "anomaly is 2 deterministic-energy + knn on 4 frames" in fit(
        "anomaly", out, out, overconfident.data
    )
    assert "9 classes on average" in fit("class-sets", out, out, overconfident.data)
    return out


def test_a_deterministic_model_is_calibrated_too_and_lowers_its_validation_nll(
    overconfident: Job, tmp_path: Path
) -> None:
    fit("temperature", overconfident.base, tmp_path / "model", overconfident.data)
    model = load_model(tmp_path / "model")
    assert (model.bayesian, model.calibrator, model.attachments["calibration"].draws) == (
        False,
        None,
        1,
    )
    results = []
    for folder in (overconfident.base, tmp_path / "model"):
        words = ("--root", overconfident.data, "--out", tmp_path / "m.json", FAST)
        succeed("evaluate --replicates 0 --dataset toy --split val --model", folder, *words)
        results.append(json.loads((tmp_path / "m.json").read_text()))
    before, after = results
    assert after["calibration"]["nll"] < before["calibration"]["nll"]
    assert (
        after["segmentation"]["miou"] == before["segmentation"]["miou"]
    )  # one temperature moves no maximum
    assert (before["run"]["temperature"], after["run"]["temperature"]) == (1.0, model.temperature)
    assert model.temperature == model.attachments["calibration"].temperature != 1.0


def test_maps_and_model_give_the_same_numbers_for_every_score(
    overconfident: Job, fitted: Path, tmp_path: Path
) -> None:
    maps = tmp_path / "maps"
    words = ("--input", overconfident.frames, "--out", maps, "--scores", ",".join(SCORES), FAST)
    succeed("predict --draws 4 --model", fitted, *words)
    from_maps, one_pass = tmp_path / "maps.json", tmp_path / "pass.json"
    objects, labels = "--components smiyc-obstacle", ("--anomaly-labels", overconfident.masks)
    succeed("evaluate --replicates 0 --maps", maps, *labels, "--out", from_maps, objects)
    words = (
        "--scores",
        ",".join(SCORES),
        "--draws 4 --root",
        overconfident.data,
        "--out",
        one_pass,
        FAST,
        objects,
    )
    succeed("evaluate --replicates 0 --dataset toy-anomaly --split anomaly --model", fitted, *words)
    manifest, first, second = (
        json.loads(p.read_text()) for p in (maps / "manifest.json", from_maps, one_pass)
    )
    assert (
        manifest["run"]["temperature"]
        == 1.0
        != (temperature := manifest["model"]["calibration"]["temperature"])
    )
    assert (
        manifest["run"]["calibrator"]
        == second["run"]["calibrator"]
        == f"temperature {temperature:.4f}"
    )
    assert manifest["run"]["calibrator_sha256"] == load_model(fitted).calibrator.sha256
    assert set(manifest["maps"]) == {"prediction", *SCORES}
    assert (
        manifest["maps"]["anomaly"]["measured_to"]
        == load_model(fitted).attachments["anomaly"].measured_to
        > 0
    )
    assert manifest["model"]["feature_encoder"] == "own"
    lines = map(json.loads, (maps / "frames.jsonl").read_text().splitlines())
    assert all(bool(line["peaks"]["anomaly"]) == (line["region"]["anomaly"] > 0) for line in lines)
    assert set(first["scores"]) == set(SCORES)
    assert first["scores"] == second["scores"]
    assert first["counts"]["anomaly_pixels"] == second["counts"]["anomaly_pixels"] > 0
    asked: dict[str, Any] = {
        "control": "flagged-pixels",
        "level": 0.5,
        "score": "anomaly",
        "anomaly_labels": overconfident.masks,
    }
    made = segunc.threshold(maps=maps, out=tmp_path / "threshold.json", **asked)
    segunc.export(
        model=fitted,
        to="pt2",
        size=(64, 128),
        draws=4,
        scores=["anomaly"],
        threshold=made.path,
        out=tmp_path,
    )


def test_a_new_bank_or_temperature_takes_away_the_sum_that_it_outdates(
    overconfident: Job, fitted: Path, tmp_path: Path
) -> None:
    for method in ("features", "temperature"):
        out = Path(shutil.copytree(fitted, tmp_path / method))
        said = fit(method, out, out, overconfident.data)
        assert "anomaly.json, which was fitted with a former" in said
        assert not {"anomaly", "class_sets"} & load_model(out).attachments.keys()
        assert (fitted / "anomaly.json").exists()
