"""Temperature and max-logit statistics through the command line, and the scores that need them."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch

from segunc.core.errors import InputError
from segunc.maps.reader import MapsReader
from segunc.posteriors.model import load_model
from segunc.scores import DEFAULT_SCORES, SCORES, SUM
from tests.conftest import Job
from tests.training.overconfident import CONFIDENCE
from tests.verbs.processes import FAST, refuse, succeed

OF_FEATURES = [name for name, score in SCORES.items() if "frame" in score.sources]


@pytest.fixture(scope="module")
def configs(overconfident: Job, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("configs")
    groups = {
        "temperature": "temperature: {pixels: 200, draws: 4}",
        "standardized-max-logit": "max_logit: {frames: 4}",
        "features": f"features: {{frames: 4, layers: [body.encoder.features.3], scores: [{', '.join(OF_FEATURES)}]}}",
        "anomaly": "anomaly: {draws: 2, weights: [2, 1], frames: 4}",
    }
    for method, group in groups.items():
        data = f"data: {{dataset: toy, root: {overconfident.data}}}"
        (folder / method).write_text(f"{data}\n{group}\n", encoding="utf-8")
    return {method: folder / method for method in groups}


def fit(method: str, base: Path, out: Path, configs: dict[str, Path]) -> str:
    words = ("--base", base, "--config", configs[method], "--out", out)
    return succeed(f"finetune --device cpu --method {method}", *words).stdout


@pytest.fixture(scope="module")
def fitted(overconfident: Job, configs: dict[str, Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The ABNN with all of them, the second and the third fitted in place."""
    out = tmp_path_factory.mktemp("fitted") / "model"
    assert "temperature" in fit("temperature", overconfident.abnn, out, configs)
    assert "max-logit statistics" in fit("standardized-max-logit", out, out, configs)
    assert "features of 4 frames" in fit("features", out, out, configs)
    assert "anomaly is 2 deterministic-energy + knn on 4 frames" in fit("anomaly", out, out, configs)
    return out


@pytest.fixture(scope="module")
def maps(overconfident: Job, fitted: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Every score of the anomaly split."""
    out = tmp_path_factory.mktemp("maps") / "out"
    words = ("--input", overconfident.frames, "--out", out, "--scores", ",".join(SCORES), FAST)
    succeed("predict --draws 4 --model", fitted, *words)
    return out


def test_the_model_is_the_same_with_what_was_fitted_beside_it(
    overconfident: Job, fitted: Path, configs: dict[str, Path]
) -> None:
    before, after = load_model(overconfident.abnn), load_model(fitted)
    assert (after.sha256, after.posterior_sha256) == (before.sha256, before.posterior_sha256)
    assert before.attachments == {}
    found = after.attachments["calibration"]
    assert found.temperature == pytest.approx(CONFIDENCE, rel=0.3)
    assert (found.applies, after.temperature, after.calibrator.weight) == ("mean", 1.0, (1 / found.temperature,))
    assert found.nll_after < found.nll_before
    assert (found.frames, found.pixels, found.draws) == (4, 800, 4)
    assert found.fitted_on["dataset"] == "toy"
    assert sum(after.attachments["max_logit_statistics"].pixels) == 4 * 64 * 128
    bank = after.attachments["features"]
    assert (bank.encoder, len(bank.frames)) == ("own", 4)
    assert {path.name for path in fitted.glob("*.yaml")} == {f"{method}.yaml" for method in configs}


def test_a_deterministic_model_is_calibrated_too_and_lowers_its_validation_nll(
    overconfident: Job, configs: dict[str, Path], tmp_path: Path
) -> None:
    fit("temperature", overconfident.base, tmp_path / "model", configs)
    model = load_model(tmp_path / "model")
    assert not model.bayesian
    assert model.attachments["calibration"].draws == 1
    measured = []
    for folder in (overconfident.base, tmp_path / "model"):
        words = ("--root", overconfident.data, "--out", tmp_path / "m.json", FAST)
        succeed("evaluate --replicates 0 --dataset toy --split val --model", folder, *words)
        result = json.loads((tmp_path / "m.json").read_text())
        measured.append((result["calibration"]["nll"], result["segmentation"]["miou"], result["run"]["temperature"]))
    assert measured[1][0] < measured[0][0]
    assert measured[1][1] == measured[0][1]  # one temperature for all classes moves no maximum
    assert (measured[0][2], measured[1][2]) == (1.0, model.temperature)
    assert model.temperature == model.attachments["calibration"].temperature != 1.0
    assert model.calibrator is None


def test_maps_and_model_give_the_same_numbers_for_every_score(
    overconfident: Job, fitted: Path, maps: Path, tmp_path: Path
) -> None:
    from_maps, one_pass = tmp_path / "maps.json", tmp_path / "pass.json"
    objects = "--components smiyc-obstacle"
    succeed(
        "evaluate --replicates 0 --maps", maps, "--anomaly-labels", overconfident.masks, "--out", from_maps, objects
    )
    words = ("--scores", ",".join(SCORES), "--draws 4 --root", overconfident.data, "--out", one_pass, FAST, objects)
    succeed("evaluate --replicates 0 --dataset toy-anomaly --split anomaly --model", fitted, *words)
    manifest, first, second = (json.loads(p.read_text()) for p in (maps / "manifest.json", from_maps, one_pass))
    temperature = manifest["model"]["calibration"]["temperature"]
    assert manifest["run"]["temperature"] == 1.0 != temperature
    assert manifest["run"]["calibrator"] == f"temperature {temperature:.4f}"
    assert manifest["run"]["calibrator_sha256"] == load_model(fitted).calibrator.sha256
    assert json.loads(one_pass.read_text())["run"]["calibrator"] == manifest["run"]["calibrator"]
    assert set(manifest["maps"]) == {"prediction", *SCORES}
    assert set(first["scores"]) == set(SCORES)
    assert first["scores"] == second["scores"]
    assert first["counts"]["anomaly_pixels"] == second["counts"]["anomaly_pixels"] > 0


def test_the_sum_is_written_and_shown_by_default(overconfident: Job, fitted: Path, tmp_path: Path) -> None:
    for model, shown in ((fitted, "anomaly"), (overconfident.abnn, "entropy")):
        out = tmp_path / shown
        succeed("predict --draws 2 --overlay --model", model, "--input", overconfident.frames, "--out", out, FAST)
        manifest = json.loads((out / "manifest.json").read_text())
        assert manifest["run"]["overlay"] == shown
        assert set(manifest["maps"]) == {"prediction", *DEFAULT_SCORES, shown}
        words = ("--root", overconfident.data, "--out", tmp_path / "m.json", FAST)
        succeed("evaluate --dataset toy-anomaly --split anomaly --draws 2 --replicates 0 --model", model, *words)
        assert set(json.loads((tmp_path / "m.json").read_text())["scores"]) == {*DEFAULT_SCORES, shown}


def test_the_anomaly_score_is_the_surprise_of_the_sum_of_its_parts(fitted: Path, maps: Path, tmp_path: Path) -> None:
    total, reader = load_model(fitted).attachments["anomaly"], MapsReader(maps)
    assert (total.parts, total.weights, total.frames) == (("deterministic-energy", "knn"), (2.0, 1.0), 4)
    for frame in reader.frames:
        stored = {name: reader.read(frame, name) for name in total.parts}
        # The maps are float16: what half a step of each may move.
        step = {
            name: np.spacing(np.abs(values).max().astype(np.float16)).astype(np.float32)
            for name, values in stored.items()
        }
        bounds = [
            total({n: torch.from_numpy(v + sign * step[n]) for n, v in stored.items()})[SUM].numpy() for sign in (-1, 1)
        ]
        found = reader.read(frame, "anomaly")
        assert (bounds[0] - 2e-3 <= found).all()
        assert (found <= bounds[1] * 1.001 + 2e-3).all()
        assert np.abs(bounds[1] - bounds[0]).mean() < 0.1
    (Path(shutil.copytree(fitted, tmp_path / "other")) / "features.json").unlink()
    with pytest.raises(InputError, match="was fitted with other features"):
        load_model(tmp_path / "other")


def test_classes_are_calibrated_one_by_one(
    overconfident: Job, fitted: Path, configs: dict[str, Path], tmp_path: Path
) -> None:
    out = tmp_path / "model"
    for kind, said in (("vector", "mu"), ("dirichlet", "lambda")):
        options = f"--temperature.kind {kind} --temperature.pixels 100"
        words = ("--base", fitted, "--config", configs["temperature"], "--out", out, options)
        done = succeed("finetune --device cpu --method temperature", *words).stdout
        assert re.search(rf"{kind} of \d+ classes, of the mean, NLL .* on frames held out \(.*{said}", done)
        assert "(temperature alone)" in done
    words = ("--root", overconfident.data, "--out", tmp_path / "m.json", FAST)
    nll = {}
    for folder in (overconfident.abnn, out):
        succeed("evaluate --replicates 0 --draws 4 --dataset toy --split val --model", folder, *words)
        result = json.loads((tmp_path / "m.json").read_text())
        nll[folder] = result["calibration"]["nll"]
    assert result["run"]["calibrator"].startswith("dirichlet of ")
    assert nll[out] < nll[overconfident.abnn]
    shown = succeed("doctor --draws 4 --device cpu --size 64x128 --model", out).stdout
    assert "calibration: dirichlet of" in shown
    # A sum of scores belongs to the calibrator that it was fitted with, too.
    shutil.copy(fitted / "anomaly.json", out)
    with pytest.raises(InputError, match="whose calibrator_sha256 is"):
        load_model(out)


def test_a_new_bank_or_temperature_takes_away_the_sum_that_it_outdates(
    fitted: Path, configs: dict[str, Path], tmp_path: Path
) -> None:
    for method in ("features", "temperature", "standardized-max-logit"):
        out = Path(shutil.copytree(fitted, tmp_path / method))
        said = fit(method, out, out, configs)
        assert "anomaly.json, which was fitted with a former" in said
        assert "anomaly" not in load_model(out).attachments
        assert (fitted / "anomaly.json").exists()


def test_another_set_of_scores_or_temperature_does_not_continue_a_folder(
    overconfident: Job, fitted: Path, configs: dict[str, Path], tmp_path: Path
) -> None:
    out = ("--input", overconfident.frames, "--out", tmp_path / "maps", "--draws 2", FAST)
    succeed("predict --scores variance,deterministic-energy --model", fitted, *out)
    assert "maps = ['variance', 'deterministic-energy']" in refuse("predict --scores variance --model", fitted, *out)
    message = refuse("predict --scores variance,deterministic-energy --model", overconfident.abnn, *out)
    assert re.search(r"calibrator = 'temperature .*' \(now None\)", message)
    done = succeed("predict --scores variance,deterministic-energy --model", fitted, *out)
    assert "4 were finished before" in done.stdout
