"""A data set and a kind of network from outside go through the verbs like ours."""

from __future__ import annotations

import importlib
import json
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

import cv2
import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from segunc import NetworkDescription, build_network, load_network, save_network
from segunc.cli.main import main
from segunc.data.datasets import DATASETS
from segunc.data.labels import label_map
from segunc.networks.files import KINDS, network_sha256


@pytest.fixture(autouse=True, scope="module")
def theirs_for_a_while() -> Iterator[None]:
    for name in (
        "tests.outside.data_set",
        "tests.outside.network",
    ):  # not on import, which every worker does for every file
        sys.modules.pop(name, None)
        importlib.import_module(name)
    yield
    del DATASETS._entries["side-by-side"], KINDS._entries["tiny"]


def side_by_side(toy: Path, root: Path) -> Path:
    """The toy frames in the layout of the data set from outside."""
    for split in ("train", "val", "test"):
        (root / split).mkdir(parents=True)
        for image in (toy / "leftImg8bit" / split).rglob("*_leftImg8bit.png"):
            stem = image.name.removesuffix("_leftImg8bit.png")
            label = next((toy / "gtFine" / split).rglob(f"{stem}_gtFine_labelIds.png"))
            shutil.copy(image, root / split / f"{stem}_rgb.png")
            shutil.copy(label, root / split / f"{stem}_gt.png")
    return root


def tiny_network(folder: Path) -> Path:
    torch.manual_seed(0)
    toy = label_map("toy")
    description = NetworkDescription("Tiny", "", toy.classes, toy.palette, options={"width": 8}, kind="tiny")
    save_network(build_network(description).eval(), folder)
    return folder


def test_a_data_set_and_a_network_from_outside_go_through_finetune_predict_and_evaluate(
    toy_set: Path, tmp_path: Path
) -> None:
    root, base = side_by_side(toy_set, tmp_path / "data"), tiny_network(tmp_path / "base")
    assert json.loads((base / "network.json").read_text())["kind"] == "tiny"
    config = tmp_path / "tune.yaml"
    config.write_text(
        f"data: {{dataset: side-by-side, root: {root}, crop: [64, 64], batch_size: 4}}\n"
        "abnn: {members: 2, alpha: 0.1, epochs: 1}\ntrainer: {precision: 32-true}\n"
    )
    model, maps, result = tmp_path / "abnn", tmp_path / "maps", tmp_path / "metrics.json"
    cpu = ["--device", "cpu"]
    assert main(["finetune", "--base", str(base), "--config", str(config), "--out", str(model), *cpu]) == 0
    frames = str(root / "test")
    words = ["--model", str(model), "--input", f"{frames}/*_rgb.png", "--out", str(maps), "--draws", "2", *cpu]
    assert main(["predict", *words]) == 0
    names = sorted(path.name for path in (root / "test").glob("*_rgb.png"))
    assert sorted(path.name for path in (maps / "epistemic").iterdir()) == names
    assert any(cv2.imread(str(maps / "epistemic" / name), cv2.IMREAD_UNCHANGED).max() > 0 for name in names)
    words = ["--model", str(model), "--dataset", "side-by-side", "--root", str(root), "--out", str(result)]
    assert main(["evaluate", *words, "--draws", "2", *cpu]) == 0
    assert 0 <= json.loads(result.read_text())["segmentation"]["miou"] <= 1


def test_a_network_of_an_unknown_kind_is_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    base = tiny_network(tmp_path / "base")
    content = {**json.loads((base / "network.json").read_text()), "kind": "unheard-of"}
    described = NetworkDescription.from_json({k: v for k, v in content.items() if k != "sha256"}, "ours")
    content["sha256"] = network_sha256(load_file(base / "network.safetensors"), described)
    (base / "network.json").write_text(json.dumps(content))
    image = tmp_path / "image.png"
    cv2.imwrite(str(image), np.zeros((64, 64, 3), np.uint8))
    assert main(["predict", "--model", str(base), "--input", str(image), "--out", str(tmp_path / "maps")]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert "kind of network 'unheard-of'" in line
    assert load_network(tiny_network(tmp_path / "again")).description.kind == "tiny"
