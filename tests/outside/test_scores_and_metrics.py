"""A score and a metric part of another package go through every verb; without the package our own maps are refused."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from segunc.cli.main import main
from segunc.core.registry import Registry
from segunc.evaluation.parts import PARTS
from segunc.maps.reader import MapsReader
from segunc.scores import SCORES
from tests.conftest import Job
from tests.maps.fakes import edit_manifest
from tests.outside import metric_part, score

NAMES = "entropy,msp,margin,logit-spread"


@pytest.fixture
def forgetful() -> Iterator[None]:
    """Registers as they were before, whatever a test adds."""
    before = [(table, dict(table._entries), table._looked_outside) for table in (SCORES, PARTS)]
    yield
    for table, entries, looked in before:
        table._entries, table._looked_outside = entries, looked


def register() -> None:
    SCORES.register("margin", score.MARGIN)
    SCORES.register("logit-spread", score.SPREAD)
    PARTS.register("labels", metric_part.parts)


def run(*words: object) -> int:
    return main([str(word) for word in words])


def predict(job: Job, out: Path, *words: object) -> int:
    fast = ("--draws", 3, "--precision", "float32", "--device", "cpu", "--threads", 1)
    return run("predict", "--model", job.base, "--input", job.frames, "--out", out, "--scores", NAMES, *fast, *words)


@pytest.fixture
def maps(trained: Job, tmp_path: Path, forgetful: None) -> Path:
    register()
    assert predict(trained, tmp_path / "maps", "--overlay") == 0
    return tmp_path / "maps"


def test_a_foreign_score_goes_through_every_verb(
    trained: Job, maps: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    described = json.loads((maps / "manifest.json").read_text())["maps"]
    assert described["margin"] == {
        "file": "png",
        "dtype": "uint16",
        "value": "(code / 65535)^2",
        "unit": score.MARGIN.unit,
        "range": [0.0, 1.0],
        "component_threshold": 0.7,
    }
    assert described["logit-spread"] == {
        "file": "npy",
        "dtype": "float16",
        "unit": score.SPREAD.unit,
        "range": None,
    }
    reader = MapsReader(maps)
    for name in reader.frames:
        found, msp = reader.read(name, "margin"), reader.read(name, "msp")
        # p2 lies in 0..1 - p1.
        assert (found > msp - 1e-4).all()
        assert (found < 2 * msp + 1e-4).all()
        assert found.std() > 0
        assert reader.read(name, "logit-spread").max() < 0
        assert (maps / "overlay" / f"{name}.jpg").is_file()
    out = ("--replicates", 0, "--out", tmp_path / "metrics.json")
    labels = ("--dataset", "toy", "--labels", trained.data / "gtFine" / "anomaly", "--anomaly-labels", trained.masks)
    assert run("evaluate", "--maps", maps, *labels, *out) == 0
    result = json.loads((tmp_path / "metrics.json").read_text())
    assert 0 < result["selective"]["margin"]["aurc"] < 1
    assert result["labels"]["pixels"] > 1000
    more = json.loads(json.dumps(result))
    more["labels"]["pixels"] += 1
    for name, content in (("fewer", result), ("more", more)):
        (tmp_path / f"{name}.json").write_text(json.dumps(content))
    capsys.readouterr()
    assert run("compare", tmp_path / "fewer.json", tmp_path / "more.json", "--keys", "labels.pixels") == 0
    row = next(line for line in capsys.readouterr().out.splitlines() if "labels.pixels" in line).split("|")
    assert row[1].strip() == "labels.pixels ↑"
    data = ("--dataset", "toy-anomaly", "--root", trained.data, "--split", "anomaly", "--precision", "float32")
    assert run("evaluate", "--model", trained.base, *data, "--scores", NAMES, "--threads", 1, *out) == 0
    one_pass = json.loads((tmp_path / "metrics.json").read_text())
    assert one_pass["scores"] == result["scores"]
    assert 0 < result["scores"]["margin"]["pooled"]["threshold"] <= 1
    assert result["scores"]["logit-spread"]["pooled"]["threshold"] < 0
    assert one_pass["reasons"]["labels.pixels"] == "no class labels were given"
    assert run("overlay", "--maps", maps, "--out", tmp_path / "figures", "--score", "margin,logit-spread") == 0
    assert len(list((tmp_path / "figures" / "overlay-margin").rglob("*.png"))) == len(reader.frames)
    shown = ("--out", tmp_path / "page", "--scores", "all")
    assert run("review", "--maps", maps, *shown) == 0
    page = "".join(path.read_text() for path in (tmp_path / "page").rglob("*.js"))
    assert score.MARGIN.unit in page
    assert ">= 0.8" in page
    assert run("summary", "--maps", maps, "--score", "margin", "--label-score", "margin") == 0
    capsys.readouterr()


def test_maps_of_a_score_that_nobody_registers_are_refused_and_of_another_tool_are_not(
    trained: Job, maps: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    del SCORES._entries["margin"]  # type: ignore[attr-defined]
    labels = ("--anomaly-labels", trained.masks, "--replicates", 0, "--out", tmp_path / "metrics.json")
    for words in (
        ("evaluate", "--maps", maps, *labels),
        ("overlay", "--maps", maps, "--out", tmp_path / "figures", "--score", "entropy"),
        ("review", "--maps", maps, "--out", tmp_path / "page"),
    ):
        assert run(*words) == 2
        assert "names the score 'margin', which is not known" in capsys.readouterr().err
    assert predict(trained, tmp_path / "more") == 2
    assert "there is no score 'margin'" in capsys.readouterr().err
    for name in ("entropy", "margin"):
        shutil.copytree(maps / name, tmp_path / "theirs" / name)
    assert run("evaluate", "--maps", tmp_path / "theirs", *labels) == 0
    assert run("review", "--maps", tmp_path / "theirs", "--out", tmp_path / "page") == 0
    # Codes are read linearly there: whose they are is not known.
    reader = MapsReader(tmp_path / "theirs")
    name = reader.frames[0]
    np.testing.assert_allclose(
        reader.read(name, "margin"), reader.read_stored(name, "margin") / np.float32(65535), rtol=1e-6
    )
    capsys.readouterr()


def test_values_in_a_form_that_is_not_known_are_refused(
    maps: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    edit_manifest(maps, lambda manifest: manifest["maps"]["entropy"].update(value="(code / 65535)^3"))
    assert run("review", "--maps", maps, "--out", tmp_path / "page") == 2
    assert "the values of 'entropy' are (code / 65535)^3" in capsys.readouterr().err


def test_an_installed_package_brings_its_score_and_its_part(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, forgetful: None
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
    tables: tuple[Registry[object], ...] = (SCORES, PARTS)  # type: ignore[assignment]
    for table in tables:
        table._looked_outside = False
    assert list(SCORES) == [*known, "margin"]
    assert SCORES["margin"].unit == score.MARGIN.unit
    assert PARTS["labels"]((), (), ())[0].section == ("labels",)
