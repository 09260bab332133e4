"""The whole job through the command line on a tiny toy set."""

import json
import shutil
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import pytest
import torch
import torchvision
from safetensors.torch import load_file

import segunc
from segunc.maps.manifest import read_manifest
from segunc.posteriors.abnn import ABNN
from segunc.posteriors.model import load_model
from segunc.training.config import FinetuneConfig, parse_config
from tests.conftest import FINETUNE, Job
from tests.verbs.processes import FAST, refuse, succeed


def contents(path: Path) -> dict[str, Any]:
    return json.loads(path.read_text(encoding="utf-8"))


def test_weights_of_a_whole_network_need_none_of_its_encoder(trained: Job, tmp_path: Path) -> None:
    weights = trained.base / "network.safetensors"
    out = tmp_path / "again"
    network = ("--network.weights", weights, "--network.encoder_weights nowhere.pth")
    words = ("--config", trained.train_config, "--out", out)
    done = succeed("train --device cpu --trainer.max_epochs 0", *network, *words)
    assert "encoder_weights nowhere.pth not read" in done.stdout
    assert (out / weights.name).read_bytes() == weights.read_bytes()


def test_finetuning_leaves_a_bayesian_model_bound_to_its_base(finetuned: Job) -> None:
    model = load_model(finetuned.abnn)
    assert model.bayesian
    assert model.posterior.members == 2
    base = contents(finetuned.base / "network.json")
    assert model.record["base_sha256"] == base["sha256"]
    assert model.record["alpha"] == 0.1
    assert model.record["provenance"]["alpha"] == 0.1


def test_each_member_goes_its_own_way(finetuned: Job) -> None:
    gamma = load_file(finetuned.abnn / "posterior.safetensors")["gamma"]
    assert not np.allclose(gamma[0].numpy(), gamma[1].numpy())


def test_finetuning_leaves_its_configuration(finetuned: Job) -> None:
    config = parse_config(FinetuneConfig, finetuned.abnn / "finetune.yaml", [], ABNN)
    assert config.settings.members == 2


def assert_alpha(folder: Path, members: int) -> None:
    """The model has that many equal members, alpha 0.1."""
    model = load_model(folder)
    assert model.posterior.members == members
    assert model.posterior.settings()["alpha"] == 0.1
    assert model.record["alpha"] == 0.1
    assert torch.equal(model.posterior.gamma[0], model.posterior.gamma[-1])


def test_an_abnn_of_a_given_alpha_needs_no_data(trained: Job, tmp_path: Path) -> None:
    out = tmp_path / "out"
    words = ("--base", trained.base, "--out", out)
    done = succeed("finetune --device cpu --abnn.statistics frozen", *words)
    assert "nothing is trained" in done.stdout
    assert ": 1 member, alpha 0.1" in done.stdout
    assert_alpha(out, members=1)
    assert load_model(out).record["provenance"]["dataset"] is None


def test_data_that_a_file_names_are_not_read_for_a_given_alpha(
    trained: Job, tmp_path: Path
) -> None:
    config = tmp_path / "tune.yaml"
    config.write_text("data: {dataset: toy, root: nowhere}\nabnn: {members: 2}\n")
    out = tmp_path / "out"
    words = ("--base", trained.base, "--out", out, "--config", config)
    settings = "--abnn.statistics frozen --abnn.epochs 0 --abnn.alpha 0.1"
    done = succeed("finetune --device cpu", settings, *words)
    assert "nothing is trained" in done.stdout
    assert ": 2 members, alpha 0.1" in done.stdout
    assert_alpha(out, members=2)
    provenance = load_model(out).record["provenance"]
    assert provenance["dataset"] == "toy"
    assert provenance["seen_splits"] == []


def test_maps_hold_every_frame_and_score(predicted: Job) -> None:
    manifest = contents(predicted.maps / "manifest.json")
    assert manifest["status"] == "finished"
    assert manifest["run"]["draws"] == 4
    lines = (predicted.maps / "frames.jsonl").read_text().splitlines()
    assert len(lines) == 4
    for text in lines:
        line = json.loads(text)
        assert line["size"] == [64, 128]
        assert set(line["files"]) == {*manifest["maps"], "overlay"}
        assert all((predicted.maps / file).is_file() for file in line["files"].values())
        assert 0 < line["mean"]["epistemic"] < line["mean"]["entropy"] < 1


def test_both_ways_of_evaluating_classes_agree_exactly(predicted: Job, tmp_path: Path) -> None:
    from_maps = tmp_path / "maps.json"
    labels = ("--labels", predicted.data / "gtFine" / "anomaly")
    command = "evaluate --replicates 0 --dataset toy --out"
    succeed(command, from_maps, "--maps", predicted.maps, *labels)
    one_pass = tmp_path / "pass.json"
    data = ("--split anomaly --draws 4 --root", predicted.data, FAST)
    succeed(command, one_pass, "--model", predicted.abnn, *data)
    first = contents(from_maps)
    second = contents(one_pass)
    assert first["segmentation"] == second["segmentation"]
    assert first["segmentation"]["miou"] is not None
    assert first["calibration"]["ece"] == second["calibration"]["ece"]
    # Maps do not hold the likelihood, and the reason stands beside it.
    assert first["calibration"]["nll"] is None
    assert "mean probabilities" in first["reasons"]["calibration.nll"]
    assert second["calibration"]["nll"] > 0


def test_a_deterministic_network_has_no_epistemic_uncertainty(trained: Job, tmp_path: Path) -> None:
    words = ("--input", trained.frames, "--out", tmp_path)
    scores = "--maps entropy,epistemic,deterministic-entropy"
    done = succeed("predict --model", trained.base, *words, scores, FAST)
    assert "1 draw, " in done.stdout
    for text in (tmp_path / "frames.jsonl").read_text().splitlines():
        line = json.loads(text)
        assert line["max"]["epistemic"] < 1e-6
        drawn = stored_codes(tmp_path / line["files"]["entropy"])
        plain = stored_codes(tmp_path / line["files"]["deterministic-entropy"])
        # Up to the rounding of sums in another order.
        assert np.abs(drawn - plain).max() <= 1


def stored_codes(path: Path) -> np.ndarray:
    return cv2.imread(str(path), cv2.IMREAD_UNCHANGED).astype(int)


def test_another_noise_scale(finetuned: Job, tmp_path: Path) -> None:
    words = ("--input", finetuned.frames, "--out", tmp_path / "maps")
    command = "predict --alpha 0.2 --draws 2 --size 64x128 --model"
    succeed(command, finetuned.abnn, *words, FAST)
    run = read_manifest(tmp_path / "maps")["run"]
    assert run["alpha"] == 0.2
    assert run["draws"] == 2


def test_a_deterministic_network_has_no_noise_scale(finetuned: Job, tmp_path: Path) -> None:
    words = ("--input", finetuned.frames, "--out", tmp_path / "maps")
    command = "predict --alpha 0.1 --draws 2 --size 64x128 --model"
    assert "an ABNN" in refuse(command, finetuned.base, *words, FAST)


def test_the_doctor_prints_every_check(finetuned: Job) -> None:
    done = succeed("doctor --draws 4 --size 64x128 --model", finetuned.abnn, FAST)
    for check in ("conversion", "alpha = 0", "one by one", "epistemic above zero", "convergence"):
        assert check in done.stdout
    assert done.stdout.rstrip().endswith("the uncertainty is alive")


def test_the_doctor_refuses_a_deterministic_network(trained: Job) -> None:
    assert "deterministic" in refuse("doctor --model", trained.base, code=1)


def test_the_doctor_fails_where_the_uncertainty_is_dead(trained: Job, tmp_path: Path) -> None:
    dead = tmp_path / "dead"
    words = ("--base", trained.base, "--config", trained.finetune_config, "--out", dead)
    succeed("finetune --device cpu --abnn.epochs 0 --abnn.alpha 0", *words)
    refusal = refuse("doctor --draws 2 --size 64x128 --model", dead, FAST, code=1)
    assert "epistemic above zero" in refusal


DRAWS = "--draws 4 --precision float32 --device cpu"


@pytest.fixture(scope="module")
def imported(toy_set: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An ABNN of a network of torchvision."""
    folder = tmp_path_factory.mktemp("imported")
    torch.manual_seed(0)
    network = torchvision.models.get_model(
        "lraspp_mobilenet_v3_large", weights=None, weights_backbone=None, num_classes=9
    )
    for layer in (network.classifier.low_classifier, network.classifier.high_classifier):
        layer.weight.data *= 30  # fresh weights give logits that no noise moves
    weights = folder / "weights.pth"
    torch.save(network.state_dict(), weights)
    base = folder / "base"
    words = ("--weights", weights, "--classes toy --size 64x128 --out", base)
    succeed("import torchvision:lraspp_mobilenet_v3_large", *words)
    config = folder / "tune.yaml"
    config.write_text(FINETUNE.format(root=toy_set), encoding="utf-8")
    words = ("--base", base, "--config", config, "--out", folder / "abnn")
    succeed("finetune --device cpu --abnn.alpha 0.1 --abnn.max_steps 2", *words)
    return folder / "abnn"


@pytest.fixture(scope="module")
def imported_maps(imported: Path, toy_set: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    maps = tmp_path_factory.mktemp("imported") / "maps"
    words = ("--input", toy_set / "leftImg8bit" / "anomaly", "--out", maps)
    succeed("predict --scope decoder --model", imported, *words, DRAWS)
    return maps


def test_an_imported_network_is_examined(imported: Path) -> None:
    assert "47 normalisation layers" in succeed("doctor --model", imported, DRAWS).stdout


def test_labels_are_explained_by_a_data_set_or_by_a_label_map(
    imported_maps: Path, toy_set: Path, tmp_path: Path
) -> None:
    own_map = tmp_path / "mine.csv"
    shutil.copy(Path(segunc.__file__).parent / "data" / "labels" / "toy.csv", own_map)
    masks = ("--anomaly-labels", toy_set / "gtAnomaly" / "anomaly")
    labels = (*masks, "--labels", toy_set / "gtFine" / "anomaly")
    out = tmp_path / "metrics.json"
    command = ("evaluate --replicates 0 --maps", imported_maps, *labels, "--out", out)
    numbers = []
    for explained in (["--dataset toy"], ["--label-map toy"], ["--label-map", own_map]):
        succeed(*command, *explained)
        result = contents(out)
        assert result["scores"]["entropy"]["pooled"]["auroc"] is not None
        numbers.append(result["segmentation"])
    assert numbers[0] == numbers[1] == numbers[2]


def test_maps_of_an_imported_network_are_reviewed(imported_maps: Path, tmp_path: Path) -> None:
    succeed("review --maps", imported_maps, "--out", tmp_path / "review")
    assert (tmp_path / "review" / "index.html").is_file()
