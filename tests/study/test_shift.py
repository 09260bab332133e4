"""The study under shift on toy scenes: kept cells, its means, and other settings refused."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from segunc.cli.main import main
from tests.conftest import Job
from tests.study.conftest import Run
from tools import study_shift


def test_cells_are_kept_and_are_those_of_evaluate(
    trained: Job, tmp_path: Path, run: Run, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(study_shift, "CORRUPTIONS", {"noise": None, "jpeg": None})
    out = tmp_path / "shift.json"
    words = ("--model", f"base={trained.base}", "--dataset", "toy", "--data", trained.data, "--draws", 2)
    words = (*words, "--device", "cpu", "--precision", "float32", "--json", out, "--plot", tmp_path / "shift")
    assert run(study_shift, *words) == 0
    cells = json.loads(out.read_text())["cells"]["base"]
    assert list(cells) == ["none:0", *(f"{name}:{s}" for name in ("noise", "jpeg") for s in range(1, 6))]
    text = capsys.readouterr().out
    mean = np.mean([cells["noise:3"]["ece"], cells["jpeg:3"]["ece"]])
    line = next(line for line in text.split("ECE ↓, mean")[1].splitlines() if line.startswith("| base"))
    assert line.split("|")[5].strip() == f"{mean:.3f}".removeprefix("0")
    assert (tmp_path / "shift.pdf").exists()
    # The same cell by the verb.
    asked = ("--dataset", "toy", "--root", trained.data, "--corruption", "jpeg:3", "--draws", 2, "--replicates", 0)
    given = ("evaluate", "--model", trained.base, *asked, "--precision", "float32", "--device", "cpu")
    assert main([*map(str, given), "--out", str(tmp_path / "m.json")]) == 0
    result = json.loads((tmp_path / "m.json").read_text())
    expected = {"miou": result["segmentation"]["miou"], "aurc": result["selective"]["msp"]["aurc"]}
    assert cells["jpeg:3"] == expected | {name: result["calibration"][name] for name in ("ece", "nll")}
    # A killed study: what is there is not made again, what lacks is.
    content = json.loads(out.read_text())
    content["cells"]["base"]["noise:1"]["ece"] = 0.123
    del content["cells"]["base"]["jpeg:3"]
    out.write_text(json.dumps(content))
    assert run(study_shift, *words) == 0
    again = json.loads(out.read_text())["cells"]["base"]
    assert again["noise:1"]["ece"] == 0.123
    assert again["jpeg:3"] == cells["jpeg:3"]
    capsys.readouterr()
    assert run(study_shift, *words, "--strengths", "2,3") == 0
    text = capsys.readouterr().out  # nothing new to measure, and only what was asked for
    assert "base, " not in text
    assert "strength 0 | strength 2 | strength 3 |" in text
    with pytest.raises(SystemExit):
        run(study_shift, *words, "--strengths", "3,6")
    assert run(study_shift, *words, "--draws", 3) == 2
    assert "give another --json" in capsys.readouterr().err


def test_a_mean_lacks_while_one_corruption_does() -> None:
    cells: dict[str, dict[str, float | None]] = {"none:0": {"ece": 0.5}}
    cells |= {f"{name}:1": {"ece": 0.1} for name in study_shift.CORRUPTIONS}
    assert study_shift.mean_over_corruptions(cells, 0, "ece") == 0.5
    assert study_shift.mean_over_corruptions(cells, 1, "ece") == pytest.approx(0.1)
    cells["fog:1"]["ece"] = None
    assert study_shift.mean_over_corruptions(cells, 1, "ece") is None
    assert study_shift.mean_over_corruptions(cells, 2, "ece") is None


@pytest.mark.parametrize(("text", "name"), [("a=b/c", "a"), ("b/c", "c"), ("x=y=z", "x=y")])
def test_names_of_models(text: str, name: str) -> None:
    assert study_shift.named_model(text)[0] == name
