"""A network of torchvision's goes the whole way that one of smp's goes."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import torch
import torchvision

import segunc
from tests.conftest import FINETUNE
from tests.verbs.processes import succeed


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
    assert "47 norm sites" in succeed("doctor", "--model", model, *draws).stdout
    frames, masks = toy_set / "leftImg8bit" / "anomaly", toy_set / "gtAnomaly" / "anomaly"
    succeed("predict", "--model", model, "--input", frames, "--out", maps, *draws, "--scope", "decoder")
    metrics = tmp_path / "metrics.json"
    # Labels are explained by their data set, by a label map of its name, or by a file of one's own.
    shutil.copy(Path(segunc.__file__).parent / "data" / "labels" / "toy.csv", tmp_path / "mine.csv")
    labels, numbers = ("--anomaly-labels", masks, "--labels", toy_set / "gtFine" / "anomaly"), []
    for words in (("--dataset", "toy"), ("--label-map", "toy"), ("--label-map", tmp_path / "mine.csv")):
        succeed("evaluate --replicates 0 --maps", maps, *labels, *words, "--out", metrics)
        result = json.loads(metrics.read_text())
        assert result["scores"]["entropy"]["pooled"]["auroc"] is not None
        numbers.append(result["segmentation"])
    assert numbers[0] == numbers[1] == numbers[2]
    succeed("review", "--maps", maps, "--out", tmp_path / "review")
    assert (tmp_path / "review" / "index.html").is_file()
