"""The whole job through the command line on a tiny toy set."""

import json
import shutil
from pathlib import Path

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


def test_weights_of_a_whole_network_need_none_of_its_encoder(trained: Job, tmp_path: Path) -> None:
    weights = trained.base / "network.safetensors"
    words = (
        "--network.weights",
        weights,
        "--network.encoder_weights",
        "nowhere.pth",
        "--trainer.max_epochs",
        0,
    )
    said = succeed(
        "train",
        "--config",
        trained.train_config,
        *words,
        "--out",
        tmp_path / "again",
        "--device",
        "cpu",
    )
    assert "encoder_weights nowhere.pth not read" in said.stdout
    assert (tmp_path / "again" / weights.name).read_bytes() == weights.read_bytes()


def test_finetuning_leaves_a_bayesian_model_bound_to_its_base(finetuned: Job) -> None:
    model = load_model(finetuned.abnn)
    assert model.bayesian
    assert model.posterior.members == 2
    assert (
        model.record["base_sha256"]
        == json.loads((finetuned.base / "network.json").read_text())["sha256"]
    )
    assert model.record["alpha"] == model.record["provenance"]["alpha"] == 0.1
    tensors = load_file(finetuned.abnn / "posterior.safetensors")
    assert not np.allclose(
        tensors["gamma"][0].numpy(), tensors["gamma"][1].numpy()
    )  # each member went its own way
    config = parse_config(FinetuneConfig, finetuned.abnn / "finetune.yaml", [], ABNN)
    assert config.settings.members == 2


@pytest.mark.parametrize("members", [1, 2])
def test_an_abnn_of_a_given_alpha_needs_no_data(trained: Job, tmp_path: Path, members: int) -> None:
    words: list[object] = [
        "--base",
        trained.base,
        "--out",
        tmp_path / "out",
        "--device cpu --abnn.statistics frozen",
    ]
    if members > 1:  # data that a file names and nothing reads
        (tmp_path / "tune.yaml").write_text(
            "data: {dataset: toy, root: nowhere}\nabnn: {members: 2}\n"
        )
        words += ["--config", tmp_path / "tune.yaml", "--abnn.epochs 0 --abnn.alpha 0.1"]
    printed = succeed("finetune", *words).stdout
    assert "nothing is trained" in printed
    assert {1: ": 1 member, alpha 0.1", 2: ": 2 members, alpha 0.1"}[members] in printed
    model = load_model(tmp_path / "out")
    assert model.posterior.members == members
    assert model.posterior.settings()["alpha"] == 0.1
    assert model.record["alpha"] == 0.1
    assert torch.equal(model.posterior.gamma[0], model.posterior.gamma[-1])
    assert model.record["provenance"]["dataset"] == ("toy" if members > 1 else None)


def test_maps_hold_every_frame_and_score(predicted: Job) -> None:
    manifest = json.loads((predicted.maps / "manifest.json").read_text())
    lines = [
        json.loads(line) for line in (predicted.maps / "frames.jsonl").read_text().splitlines()
    ]
    assert manifest["status"] == "finished"
    assert manifest["run"]["draws"] == 4
    assert len(lines) == 4
    for line in lines:
        assert line["size"] == [64, 128]
        assert set(line["files"]) == {*manifest["maps"], "overlay"}
        assert all((predicted.maps / file).is_file() for file in line["files"].values())
        assert 0 < line["mean"]["epistemic"] < line["mean"]["entropy"] < 1


def test_both_ways_of_evaluating_classes_agree_exactly(predicted: Job, tmp_path: Path) -> None:
    from_maps, one_pass = tmp_path / "maps.json", tmp_path / "pass.json"
    labels = predicted.data / "gtFine" / "anomaly"
    succeed(
        "evaluate --replicates 0 --dataset toy --maps",
        predicted.maps,
        "--labels",
        labels,
        "--out",
        from_maps,
    )
    words = (
        "--dataset toy --split anomaly --draws 4 --root",
        predicted.data,
        FAST,
        "--out",
        one_pass,
    )
    succeed("evaluate --replicates 0 --model", predicted.abnn, *words)
    first, second = (json.loads(path.read_text()) for path in (from_maps, one_pass))
    assert first["segmentation"] == second["segmentation"]
    assert first["segmentation"]["miou"] is not None
    assert first["calibration"]["ece"] == second["calibration"]["ece"]
    assert (
        first["calibration"]["nll"] is None
    )  # maps do not hold it, and the reason stands beside it
    assert "mean probabilities" in first["reasons"]["calibration.nll"]
    assert second["calibration"]["nll"] > 0


def test_a_deterministic_network_has_no_epistemic_uncertainty(trained: Job, tmp_path: Path) -> None:
    words = (
        "--input",
        trained.frames,
        "--out",
        tmp_path,
        "--maps entropy,epistemic,deterministic-entropy",
        FAST,
    )
    done = succeed("predict --model", trained.base, *words)
    assert "1 draws" in done.stdout
    for line in map(json.loads, (tmp_path / "frames.jsonl").read_text().splitlines()):
        assert line["max"]["epistemic"] < 1e-6
        paths = [
            str(tmp_path / line["files"][name]) for name in ("entropy", "deterministic-entropy")
        ]
        drawn, plain = (cv2.imread(path, cv2.IMREAD_UNCHANGED).astype(int) for path in paths)
        assert (
            np.abs(drawn - plain).max() <= 1
        )  # codes, up to the rounding of sums in another order


def test_another_noise_scale(finetuned: Job, tmp_path: Path) -> None:
    ask = ("--input", finetuned.frames, "--draws 2 --size 64x128", FAST)
    succeed("predict --alpha 0.2 --model", finetuned.abnn, "--out", tmp_path / "given", *ask)
    run = read_manifest(tmp_path / "given")["run"]
    assert (run["alpha"], run["draws"]) == (0.2, 2)
    assert "an ABNN" in refuse(
        "predict --alpha 0.1 --model", finetuned.base, "--out", tmp_path / "not", *ask
    )


def test_the_doctor_prints_every_check_and_fails_where_the_uncertainty_is_dead(
    finetuned: Job, trained: Job, tmp_path: Path
) -> None:
    done = succeed("doctor --draws 4 --size 64x128 --model", finetuned.abnn, FAST)
    checks = ("conversion", "alpha = 0", "one by one", "epistemic above zero", "convergence")
    assert all(check in done.stdout for check in checks)
    assert done.stdout.rstrip().endswith("the uncertainty is alive")
    assert "deterministic" in refuse("doctor --model", trained.base, code=1)
    words = (
        "--base",
        trained.base,
        "--config",
        trained.finetune_config,
        "--out",
        tmp_path / "dead",
        "--device cpu",
    )
    succeed("finetune --abnn.epochs 0 --abnn.alpha 0", *words)
    message = refuse("doctor --draws 2 --size 64x128 --model", tmp_path / "dead", FAST, code=1)
    assert "epistemic above zero" in message


def test_an_imported_network_is_fine_tuned_examined_predicted_evaluated_and_reviewed(
    toy_set: Path, tmp_path: Path
) -> None:
    torch.manual_seed(0)
    fresh = {"weights": None, "weights_backbone": None, "num_classes": 9}
    network = torchvision.models.get_model("lraspp_mobilenet_v3_large", **fresh)
    for layer in (network.classifier.low_classifier, network.classifier.high_classifier):
        layer.weight.data *= 30  # fresh weights give logits that no noise moves
    torch.save(network.state_dict(), tmp_path / "weights.pth")
    base, model, maps = tmp_path / "base", tmp_path / "abnn", tmp_path / "maps"
    words = ("--weights", tmp_path / "weights.pth", "--classes toy --size 64x128 --out", base)
    succeed("import torchvision:lraspp_mobilenet_v3_large", *words)
    (tmp_path / "tune.yaml").write_text(FINETUNE.format(root=toy_set), encoding="utf-8")
    small = ("--abnn.alpha", 0.1, "--abnn.max_steps", 2, "--device", "cpu")
    succeed("finetune", "--base", base, "--config", tmp_path / "tune.yaml", "--out", model, *small)
    draws = ("--draws", 4, "--precision", "float32", "--device", "cpu")
    assert "47 normalisation layers" in succeed("doctor", "--model", model, *draws).stdout
    frames, masks = toy_set / "leftImg8bit" / "anomaly", toy_set / "gtAnomaly" / "anomaly"
    succeed(
        "predict", "--model", model, "--input", frames, "--out", maps, *draws, "--scope", "decoder"
    )
    metrics = tmp_path / "metrics.json"
    # Labels are explained by their data set, by a label map of its name, or by a file of one's own.
    shutil.copy(Path(segunc.__file__).parent / "data" / "labels" / "toy.csv", tmp_path / "mine.csv")
    labels, numbers = ("--anomaly-labels", masks, "--labels", toy_set / "gtFine" / "anomaly"), []
    for words in (
        ("--dataset", "toy"),
        ("--label-map", "toy"),
        ("--label-map", tmp_path / "mine.csv"),
    ):
        succeed("evaluate --replicates 0 --maps", maps, *labels, *words, "--out", metrics)
        result = json.loads(metrics.read_text())
        assert result["scores"]["entropy"]["pooled"]["auroc"] is not None
        numbers.append(result["segmentation"])
    assert numbers[0] == numbers[1] == numbers[2]
    succeed("review", "--maps", maps, "--out", tmp_path / "review")
    assert (tmp_path / "review" / "index.html").is_file()
