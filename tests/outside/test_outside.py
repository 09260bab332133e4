"""What another package adds goes through the verbs like ours; without the package, what it made is
refused in one line.
"""

from __future__ import annotations

import importlib
import json
import shutil
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from segunc import NetworkDescription, build_network, load_model, load_network, save_network
from segunc.core.errors import InputError
from segunc.data.datasets import DATASETS
from segunc.data.images import load_image
from segunc.data.labels import label_map
from segunc.evaluation.parts import PARTS
from segunc.maps.reader import MapsReader
from segunc.networks.model_folder import KINDS, network_sha256
from segunc.posteriors.methods import METHODS
from segunc.posteriors.model import ATTACHMENTS, copy_model, model_files
from segunc.sampling.sampler import network_input
from segunc.scores import EVIDENCE, SCORES
from tests.conftest import Job, change_record
from tests.maps.fakes import edit_manifest
from tests.outside import metric_part, score
from tests.training.overconfident import save_abnn
from tests.verbs.processes import refuse, succeed

TABLES: tuple[Any, ...] = (ATTACHMENTS, DATASETS, EVIDENCE, KINDS, METHODS, PARTS, SCORES)
FAST = "--draws 2 --precision float32 --device cpu --threads 1"
NAMES = "entropy,msp,margin,logit-spread"


@pytest.fixture(autouse=True)
def forgetful() -> Iterator[None]:
    """Tables as they were before, whatever a test adds."""
    before = [(table, dict(table._entries), table._looked_outside) for table in TABLES]
    yield
    for table, entries, looked in before:
        table._entries, table._looked_outside = entries, looked


def bring(name: str) -> ModuleType:
    """Import the other package, however often."""
    sys.modules.pop(f"tests.outside.{name}", None)
    return importlib.import_module(f"tests.outside.{name}")


@pytest.fixture
def configured(trained: Job, tmp_path: Path) -> Callable[[str], Path]:
    def write(text: str) -> Path:
        (tmp_path / "config.yaml").write_text(
            f"data: {{dataset: toy, root: {trained.data}}}\n{text}\n"
        )
        return tmp_path / "config.yaml"

    return write


def lines_of(model: Path, job: Job, out: Path) -> list[dict[str, dict[str, float]]]:
    """The lines of the frames' log, after a look at the maps."""
    words = ("--model", model, "--input", job.frames, "--out", out)
    succeed("predict --draws 4 --device cpu --maps entropy,epistemic", *words)
    lines = [json.loads(line) for line in (out / "frames.jsonl").read_text().splitlines()]
    assert len(lines) == len(list((out / "epistemic").rglob("*.png"))) > 0
    return lines


def test_a_posterior(trained: Job, tmp_path: Path, configured: Callable[[str], Path]) -> None:
    outside, words = bring("posterior"), ("--base", trained.base, "--out", tmp_path / "model")
    tune = ("finetune --method uniform-noise --device cpu", *words, "--config")
    succeed(*tune, configured("uniform_noise: {width: 0.4, scope: decoder}"))
    model = load_model(tmp_path / "model")
    assert model.posterior == outside.UniformNoise(0.4, "decoder")
    assert model.record["provenance"]["settings"]["width"] == 0.4
    assert all(
        line["mean"]["epistemic"] > 0
        for line in lines_of(tmp_path / "model", trained, tmp_path / "maps")
    )
    said = refuse(*tune, configured(""), "--uniform_noise.width 0")
    assert "uniform_noise: width 0.0 is not a number above 0" in said
    with pytest.raises(InputError, match="a method 'abnn' already"):
        METHODS.register("abnn", METHODS["uniform-noise"])


def test_an_attachment(trained: Job, tmp_path: Path, configured: Callable[[str], Path]) -> None:
    outside, fitted = bring("attachment"), tmp_path / "model"
    maps, result = tmp_path / "maps", tmp_path / "metrics.json"
    shares = (
        "finetune --method class-shares --device cpu --config",
        configured("class_shares: {frames: 4}"),
    )
    succeed(*shares, "--base", save_abnn(trained.base, tmp_path / "abnn"), "--out", fitted)
    model = load_model(fitted)
    record = model.attachments["class_shares"]
    assert isinstance(record, outside.ClassShares)
    assert sum(record.shares) == pytest.approx(1, abs=1e-6)
    assert fitted / "class_shares.json" in model_files(fitted)
    rarity = (FAST, "--scores rarity,entropy", "--model", fitted)
    succeed("predict", *rarity, "--input", trained.frames, "--out", maps)
    reader = MapsReader(maps)
    assert reader.manifest["run"]["class_shares_sha256"] == record.record()["class_shares_sha256"]
    assert reader.frames
    for name in reader.frames:
        image = network_input([load_image(trained.frames / f"{name}.png")], (64, 128))
        with torch.inference_mode():
            expected = -np.log(np.float32(record.shares))[model.network(image).argmax(1)[0].numpy()]
        np.testing.assert_allclose(reader.read(name, "rarity"), expected, rtol=1e-3)
    data = ("--dataset toy-anomaly --split anomaly --replicates 0", "--root", trained.data)
    succeed("evaluate", *rarity, *data, "--out", result)
    assert 0 < json.loads(result.read_text())["scores"]["rarity"]["pooled"]["auroc"] < 1
    succeed("doctor --draws 2 --size 64x128 --device cpu", "--model", fitted)
    said = refuse(
        "predict",
        *rarity,
        "--model",
        trained.base,
        "--input",
        trained.frames,
        "--out",
        tmp_path / "more",
    )
    assert "score rarity of a model without shares" in said
    assert "segunc finetune --method class-shares" in said
    # A new one takes away the sum, and another base is refused.
    config = configured("anomaly: {parts: [deterministic-energy, rarity], draws: 2}")
    succeed(
        "finetune --method anomaly --device cpu",
        "--base",
        fitted,
        "--config",
        config,
        "--out",
        fitted,
    )
    model = load_model(fitted)
    assert list(model.attachments) == ["class_shares", "anomaly"], (
        "what is fitted on others is loaded after them"
    )
    assert {*model.attachments["anomaly"].parts} == {"deterministic-energy", "rarity"}
    configured("")
    succeed(*shares, "--base", fitted, "--out", fitted)
    assert list(load_model(fitted).attachments) == ["class_shares"]
    copy_model(fitted, tmp_path / "other")
    change_record(fitted / "class_shares.json", base_sha256="0" * 64)
    with pytest.raises(
        InputError,
        match=r"class_shares\.json was fitted on another model, whose base_sha256 is 0{12}",
    ):
        load_model(fitted)
    del ATTACHMENTS._entries["class_shares"]  # type: ignore[attr-defined]
    with pytest.raises(
        InputError,
        match=r"class_shares\.json.* a package that is not installed.*or remove the file",
    ):
        load_model(tmp_path / "other")
    (tmp_path / "other" / "class_shares.json").unlink()
    (tmp_path / "other" / "notes.json").write_text('{"base_sha256": "of somebody"}')
    (tmp_path / "other" / "broken.json").write_text("{")
    assert load_model(tmp_path / "other").attachments == {}


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


def test_a_data_set_and_a_network(toy_set: Path, tmp_path: Path) -> None:
    bring("data_set")
    bring("network")
    torch.manual_seed(0)
    toy, root, base = label_map("toy"), side_by_side(toy_set, tmp_path / "data"), tmp_path / "base"
    description = NetworkDescription(
        "Tiny", "", toy.classes, toy.palette, options={"width": 8}, kind="tiny"
    )
    save_network(build_network(description).eval(), base)
    assert json.loads((base / "network.json").read_text())["kind"] == "tiny"
    config = tmp_path / "tune.yaml"
    config.write_text(
        f"data: {{dataset: side-by-side, root: {root}, crop: [64, 64], batch_size: 4}}\n"
        "abnn: {members: 2, alpha: 0.1, epochs: 1}\ntrainer: {precision: 32-true}\n"
    )
    model, maps, result = tmp_path / "abnn", tmp_path / "maps", tmp_path / "metrics.json"
    succeed("finetune --device cpu", "--base", base, "--config", config, "--out", model)
    succeed(
        "predict", FAST, "--model", model, "--input", f"{root / 'test'}/*_rgb.png", "--out", maps
    )
    reader = MapsReader(maps)
    assert reader.frames == sorted(path.stem for path in (root / "test").glob("*_rgb.png"))
    assert any(reader.read(name, "epistemic").max() > 0 for name in reader.frames)
    succeed(
        "evaluate --dataset side-by-side", FAST, "--model", model, "--root", root, "--out", result
    )
    assert 0 <= json.loads(result.read_text())["segmentation"]["miou"] <= 1
    content = {**json.loads((base / "network.json").read_text()), "kind": "unheard-of"}
    described = NetworkDescription.from_json(
        {k: v for k, v in content.items() if k != "sha256"}, "ours"
    )
    content["sha256"] = network_sha256(load_file(base / "network.safetensors"), described)
    (base / "network.json").write_text(json.dumps(content))
    with pytest.raises(InputError, match="kind of network 'unheard-of'"):
        load_network(base)


def predict(job: Job, out: Path, *words: object) -> tuple[object, ...]:
    return (
        "predict",
        FAST,
        "--scores",
        NAMES,
        "--model",
        job.base,
        "--input",
        job.frames,
        "--out",
        out,
        *words,
    )


@pytest.fixture
def maps(trained: Job, tmp_path: Path) -> Path:
    SCORES.register("margin", score.MARGIN)
    SCORES.register("logit-spread", score.SPREAD)
    PARTS.register("labels", metric_part.parts)
    succeed(*predict(trained, tmp_path / "maps"), "--overlay")
    return tmp_path / "maps"


def test_a_score_and_a_section_of_metrics(trained: Job, maps: Path, tmp_path: Path) -> None:
    described = json.loads((maps / "manifest.json").read_text())["maps"]
    assert (described["margin"]["value"], described["margin"]["component_threshold"]) == (
        "(code / 65535)^2",
        0.7,
    )
    assert (described["logit-spread"]["dtype"], described["logit-spread"]["unit"]) == (
        "float16",
        score.SPREAD.unit,
    )
    reader = MapsReader(maps)
    for name in reader.frames:
        margin, msp = reader.read(name, "margin"), reader.read(name, "msp")
        # p2 lies in 0..1 - p1.
        assert (margin > msp - 1e-4).all()
        assert (margin < 2 * msp + 1e-4).all()
        assert margin.std() > 0
        assert reader.read(name, "logit-spread").max() < 0
        assert (maps / "overlay" / f"{name}.jpg").is_file()
    out = ("--replicates 0", "--out", tmp_path / "metrics.json")
    labels = (
        "--dataset toy",
        "--labels",
        trained.data / "gtFine" / "anomaly",
        "--anomaly-labels",
        trained.masks,
    )
    succeed("evaluate", "--maps", maps, *labels, *out)
    result = json.loads((tmp_path / "metrics.json").read_text())
    assert 0 < result["selective"]["margin"]["aurc"] < 1
    assert result["labels"]["pixels"] > 1000
    files = [tmp_path / "fewer.json", tmp_path / "more.json"]
    for path in files:
        path.write_text(json.dumps(result))
        result["labels"]["pixels"] += 1
    assert "labels.pixels ↑" in succeed("compare", *files, "--keys labels.pixels").stdout
    data = (
        "--dataset toy-anomaly --split anomaly --precision float32 --threads 1",
        "--root",
        trained.data,
    )
    succeed("evaluate", "--model", trained.base, *data, "--scores", NAMES, *out)
    one_pass = json.loads((tmp_path / "metrics.json").read_text())
    assert one_pass["scores"] == result["scores"]
    assert 0 < result["scores"]["margin"]["pooled"]["threshold"] <= 1
    assert result["scores"]["logit-spread"]["pooled"]["threshold"] < 0
    assert one_pass["reasons"]["labels.pixels"] == "no class labels were given"
    succeed("overlay --score margin,logit-spread", "--maps", maps, "--out", tmp_path / "figures")
    assert len(list((tmp_path / "figures" / "overlay-margin").rglob("*.png"))) == len(reader.frames)
    succeed("review --scores all", "--maps", maps, "--out", tmp_path / "page")
    page = "".join(path.read_text() for path in (tmp_path / "page").rglob("*.js"))
    assert score.MARGIN.unit in page
    assert ">= 0.8" in page
    succeed("summary --score margin", "--maps", maps)


def test_maps_of_a_score_that_nobody_registers_are_refused(
    trained: Job, maps: Path, tmp_path: Path
) -> None:
    del SCORES._entries["margin"]  # type: ignore[attr-defined]
    labels = (
        "--replicates 0",
        "--anomaly-labels",
        trained.masks,
        "--out",
        tmp_path / "metrics.json",
    )
    for words in (
        ("evaluate", "--maps", maps, *labels),
        ("overlay --score entropy", "--maps", maps, "--out", tmp_path / "figures"),
        ("review", "--maps", maps, "--out", tmp_path / "page"),
    ):
        assert "names the score 'margin', which is not known" in refuse(*words)
    assert "there is no score 'margin'" in refuse(*predict(trained, tmp_path / "more"))
    SCORES.register("margin", score.MARGIN)
    edit_manifest(
        maps, lambda manifest: manifest["maps"]["entropy"].update(value="(code / 65535)^3")
    )
    said = refuse("review", "--maps", maps, "--out", tmp_path / "second")
    assert "the values of 'entropy' are (code / 65535)^3" in said


def test_an_installed_package_brings_its_score_and_its_part(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module, name in ((score, "their_margin"), (metric_part, "their_part")):
        shutil.copy(str(module.__file__), tmp_path / f"{name}.py")
    info = tmp_path / "their_package-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: their-package\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(
        "[segunc.scores]\nmargin = their_margin:MARGIN\n[segunc.metrics]\nlabels = their_part:parts\n"
    )
    known = [*SCORES]
    monkeypatch.syspath_prepend(str(tmp_path))
    for table in TABLES:
        table._looked_outside = False
    assert list(SCORES) == [*known, "margin"]
    assert SCORES["margin"].unit == score.MARGIN.unit
    assert PARTS["labels"]((), (), ())[0].section == ("labels",)
