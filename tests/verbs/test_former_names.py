"""Files and command lines of the version in which the base's scores were called max-logit and energy."""

from __future__ import annotations

import json
import re
from pathlib import Path

import numpy as np
import pytest
from numpy.testing import assert_array_equal

import segunc
from segunc.cli.main import main
from segunc.core.errors import FormerNameWarning, InputError
from segunc.evaluation.compare import compare, load_results
from segunc.maps.manifest import build_manifest, read_manifest
from segunc.maps.reader import MapsReader
from segunc.maps.store import MapsWriter
from segunc.scores import RENAMED, SCORES, check_scores, present_name
from tests.maps.fakes import edit_manifest
from tests.maps.foreign import write_map

pytestmark = pytest.mark.filterwarnings("ignore::segunc.core.errors.FormerNameWarning")
NAMES = ("entropy", *RENAMED.values())


def maps(shift: float = 0.0) -> dict[str, np.ndarray]:
    values = np.linspace(0, 1, 12, dtype=np.float32).reshape(3, 4)
    scores = {name: values - shift - place for place, name in enumerate(NAMES[1:])}
    return {"prediction": np.zeros((3, 4), np.uint8), "entropy": values, **scores}


def manifest(scores: tuple[str, ...] = NAMES) -> dict[str, object]:
    # A frame may bear such a name, too.
    run = {"seed": 0, "maps": list(scores), "component_thresholds": {scores[-1]: -4.0}, "input": "/energy"}
    return build_manifest(run, scores, device="cpu", classes=["road"], palette=[(0, 0, 0)])


@pytest.fixture
def old(tmp_path: Path) -> Path:
    """A folder with its first frame as the former version wrote it: the same but for the names, without sums."""
    out = tmp_path / "maps"
    with MapsWriter(out, manifest()) as writer:
        writer.write("energy", maps())
    for former, present in RENAMED.items():
        (out / present).rename(out / former)
        for file in ("manifest.json", "frames.jsonl"):
            content = json.loads((out / file).read_text().replace(present, former))
            content |= {} if file == "frames.jsonl" else {"format_version": 1}
            kept = {key: value for key, value in content.items() if key not in ("sum", "sums", "sha256")}
            (out / file).write_text(json.dumps(kept) + "\n")
    return out


def test_a_folder_of_the_former_version_is_read_and_continued_where_it_stands(old: Path) -> None:
    before = (old / "frames.jsonl").read_bytes()
    with pytest.warns(FormerNameWarning, match="score 'energy' is named 'deterministic-energy' now"):
        reader = MapsReader(old)
    assert (reader.scores, reader.frames) == (list(NAMES), ["energy"])
    with MapsWriter(old, manifest()) as writer:
        writer.write("two", maps(1))
    reader = MapsReader(old)
    for name, shift in (("energy", 0), ("two", 1)):
        for score in NAMES[1:]:
            assert_array_equal(reader.read(name, score), maps(shift)[score].astype(np.float16).astype(np.float32))
            assert score in reader.records[name]["mean"]
    assert (old / "frames.jsonl").read_bytes().startswith(before)
    assert sorted(path.name for path in old.iterdir() if path.is_dir()) == [
        "energy",
        "entropy",
        "max-logit",
        "prediction",
    ]
    assert ",deterministic-energy.mean," in (old / "frames.csv").read_text()
    # Other settings are other settings still.
    with pytest.raises(InputError, match=r"maps = .* \(now"):
        MapsWriter(old, manifest(NAMES[:2]))
    MapsWriter(old, manifest(), overwrite=True).close()
    assert not (old / "energy").exists()
    assert "folder" not in (read_manifest(old) or {})["maps"]["deterministic-energy"]


def test_a_folder_name_out_of_a_manifest_is_a_name(old: Path) -> None:
    edit_manifest(old, lambda content: content["maps"]["entropy"].update(folder="../elsewhere"))
    with pytest.raises(InputError, match="the folder of entropy"):
        MapsReader(old)


def test_verbs_take_former_names_with_one_note(old: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_map(tmp_path / "labels/energy.png", np.array([[0, 0, 1, 1]] * 3, np.uint8))
    metrics = tmp_path / "metrics.json"
    words = ["evaluate", "--maps", str(old), "--anomaly-labels", str(tmp_path / "labels"), "--out", str(metrics)]
    assert main([*words, "--scores", "energy"]) == 0
    note = "note: score 'energy' is named 'deterministic-energy' now\n"
    assert capsys.readouterr().out.count(note) == 1
    assert list(json.loads(metrics.read_text())["scores"]) == ["deterministic-energy"]
    assert main(["summary", "--maps", str(old), "--score", "energy", "--label-score", "max-logit"]) == 0
    assert "worst moments by deterministic-energy.mean" in capsys.readouterr().out
    export = [
        "export",
        "--maps",
        str(old),
        "--score",
        "energy",
        "--to",
        "fishyscapes",
        "--out",
        str(tmp_path / "export"),
    ]
    assert main(export) == 0
    assert main(["review", "--maps", str(old), "--scores", "energy", "--out", str(tmp_path / "page")]) == 0


def test_results_of_the_former_version_stand_beside_ours(old: Path, tmp_path: Path) -> None:
    write_map(tmp_path / "labels/energy.png", np.array([[0, 0, 1, 1]] * 3, np.uint8))
    new, former = tmp_path / "new.json", tmp_path / "former.json"
    segunc.evaluate(segunc.EvaluateOptions(maps=old, anomaly_labels=tmp_path / "labels", out=new, replicates=0))
    former.write_text(re.sub("deterministic-(energy|max-logit)", r"\1", new.read_text()))
    results = load_results([new, former])
    assert results[0].numbers == results[1].numbers
    table = compare(results, scores=["energy"], keys=["pooled.auroc"])
    assert table.columns == ("new:deterministic-energy", "former:deterministic-energy")
    assert table.rows[0].cells[0] == table.rows[0].cells[1]


def test_another_tools_folder_keeps_its_names(tmp_path: Path) -> None:
    write_map(tmp_path / "maps/energy/1.npy", np.ones((3, 4), np.float32))
    assert present_name("energy", MapsReader(tmp_path / "maps").scores) == "energy"
    assert check_scores(["energy", "deterministic-energy", "msp"]) == ("deterministic-energy", "msp")
    assert not RENAMED.keys() & SCORES.keys()
