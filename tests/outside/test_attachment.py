"""An attachment of another package, with a score over evidence of its own, goes through every verb; without it models are refused."""

from __future__ import annotations

import importlib
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
import torch

from segunc.cli.main import main
from segunc.core.errors import InputError
from segunc.data.images import load_image
from segunc.maps.reader import MapsReader
from segunc.posteriors.methods import METHODS
from segunc.posteriors.model import ATTACHMENTS, copy_model, load_model, model_files
from segunc.sampling.frames import network_input
from segunc.scores import EVIDENCE, SCORES
from tests.conftest import Job
from tests.records import change_record
from tests.training.overconfident import save_abnn

TABLES = (ATTACHMENTS, EVIDENCE, METHODS, SCORES)


@pytest.fixture(scope="module")
def outside() -> Iterator[ModuleType]:
    """The other package imported, and forgotten after the tests."""
    sys.modules.pop("tests.outside.attachment", None)
    with pytest.MonkeyPatch.context() as patch:
        for table in TABLES:
            patch.setattr(table, "_entries", {name: table._entries[name] for name in table})  # type: ignore[attr-defined]
        yield importlib.import_module("tests.outside.attachment")


def run(*words: object) -> int:
    return main([str(word) for word in words])


@pytest.fixture(scope="module")
def fitted(outside: ModuleType, trained: Job, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("outside")
    (folder / "shares.yaml").write_text(f"data: {{dataset: toy, root: {trained.data}}}\nclass_shares: {{frames: 4}}\n")
    base = save_abnn(trained.base, folder / "abnn")
    words = ("--base", base, "--config", folder / "shares.yaml", "--out", folder / "model", "--device", "cpu")
    assert run("finetune", "--method", "class-shares", *words) == 0
    return folder / "model"


FAST = ("--draws", 2, "--precision", "float32", "--device", "cpu", "--threads", 1)


def test_it_goes_through_load_predict_evaluate_and_doctor(
    fitted: Path, outside: ModuleType, trained: Job, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model = load_model(fitted)
    found = model.attachments["class_shares"]
    assert isinstance(found, outside.ClassShares)
    assert sum(found.shares) == pytest.approx(1, abs=1e-6)
    assert fitted / "class_shares.json" in model_files(fitted)
    maps, result = tmp_path / "maps", tmp_path / "metrics.json"
    scores = ("--scores", "rarity,entropy")
    assert run("predict", "--model", fitted, "--input", trained.frames, "--out", maps, *scores, *FAST) == 0
    reader = MapsReader(maps)
    assert reader.manifest["run"]["class_shares_sha256"] == found.record()["class_shares_sha256"]
    assert reader.frames
    for name in reader.frames:
        image = network_input([load_image(trained.frames / f"{name}.png")], (64, 128))
        with torch.inference_mode():
            expected = -np.log(np.float32(found.shares))[model.network(image).argmax(1)[0].numpy()]
        np.testing.assert_allclose(reader.read(name, "rarity"), expected, rtol=1e-3)
    data = ("--dataset", "toy-anomaly", "--root", trained.data, "--split", "anomaly", "--replicates", 0)
    assert run("evaluate", "--model", fitted, *data, *scores, "--out", result, *FAST) == 0
    assert 0 < json.loads(result.read_text())["scores"]["rarity"]["pooled"]["auroc"] < 1
    assert run("doctor", "--model", fitted, "--draws", 2, "--size", "64x128", "--device", "cpu") == 0
    capsys.readouterr()
    without = ("--input", trained.frames, "--out", tmp_path / "more", *scores, *FAST)
    assert run("predict", "--model", trained.base, *without) == 2
    said = capsys.readouterr().err
    assert "score rarity of a model without shares" in said
    assert "segunc finetune --method class-shares" in said


def test_a_new_one_takes_away_the_sum_and_another_base_is_refused(fitted: Path, trained: Job, tmp_path: Path) -> None:
    config = tmp_path / "sum.yaml"
    parts = "anomaly: {parts: [deterministic-energy, rarity], draws: 2}"
    config.write_text(f"data: {{dataset: toy, root: {trained.data}}}\n{parts}\n")
    words = ("--base", fitted, "--config", config, "--out", tmp_path / "model", "--device", "cpu")
    assert run("finetune", "--method", "anomaly", *words) == 0
    model = load_model(tmp_path / "model")
    assert list(model.attachments) == ["class_shares", "anomaly"], "what is fitted on others is loaded after them"
    assert {*model.attachments["anomaly"].parts} == {"deterministic-energy", "rarity"}
    config.write_text(f"data: {{dataset: toy, root: {trained.data}}}\n")
    words = ("--base", tmp_path / "model", "--config", config, "--out", tmp_path / "model", "--device", "cpu")
    assert run("finetune", "--method", "class-shares", *words) == 0
    assert list(load_model(tmp_path / "model").attachments) == ["class_shares"]
    change_record(tmp_path / "model" / "class_shares.json", base_sha256="0" * 64)
    with pytest.raises(
        InputError, match=r"class_shares\.json was fitted on another model, whose base_sha256 is 000000000000"
    ):
        load_model(tmp_path / "model")


def test_without_the_package_the_model_is_refused_in_one_line(
    fitted: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    copy_model(fitted, tmp_path)
    known = {name: entry for name, entry in ATTACHMENTS._entries.items() if name != "class_shares"}  # type: ignore[attr-defined]
    monkeypatch.setattr(ATTACHMENTS, "_entries", known)
    with pytest.raises(
        InputError, match=r"class_shares\.json.* a package that is not installed.*or remove the file"
    ) as caught:
        load_model(tmp_path)
    assert "\n" not in str(caught.value)
    (tmp_path / "class_shares.json").unlink()
    (tmp_path / "notes.json").write_text('{"base_sha256": "of somebody"}')
    (tmp_path / "broken.json").write_text("{")
    assert load_model(tmp_path).attachments == {}
