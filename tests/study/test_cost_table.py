"""The table of costs of a tiny model: every row is there, and the numbers follow from one
another.
"""

import json
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file

from segunc.baselines.anomaly import Anomaly
from segunc.baselines.features import FeatureDensity
from tests.conftest import Job
from tests.study.conftest import Run
from tests.support.fits import fit_folder
from tools import cost_table


@pytest.fixture(scope="module")
def model(overconfident: Job, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("model") / "model"
    data = {"dataset": "toy", "root": str(overconfident.data)}
    layers = ["body.encoder.features.3", "body.encoder.features.6"]
    features = FeatureDensity(layers=layers, frames=2)
    fit_folder(features, overconfident.abnn, out, data)
    fit_folder(Anomaly(draws=2), out, out, data)
    return out


def assert_rows_are_there(rows: dict[str, Any]) -> None:
    expected = {
        "pass",
        "score entropy",
        "score knn",
        "score anomaly",
        "features 1.5",
        "search 2 200",
        "encoder test_vit",
        "places test_vit",
    }
    assert expected < rows.keys()
    assert "encoder no_such" not in rows


def megabytes_of_feature(model: Path) -> float:
    """Return the size of one feature of both layers with its origin."""
    stored = load_file(model / "features.safetensors")
    size = 0.0
    for layer in (0, 1):
        bank = stored[f"{layer}.bank"]
        origins = stored[f"{layer}.origins"]
        size += (bank.nbytes + origins.nbytes) / len(bank)
    return size / 1e6


def test_a_table_of_costs_adds_up(
    model: Path, overconfident: Job, tmp_path: Path, run: Run, capsys: pytest.CaptureFixture[str]
) -> None:
    table = tmp_path / "cost.json"
    words = (
        "--size 64x128 --draws 2 --banks 50 200 --encoders test_vit no_such --rounds 2 --device cpu"
        " --no-memory --end 0.3"
    )
    run(
        cost_table,
        "--model",
        model,
        "--video",
        overconfident.video,
        "--json",
        table,
        *words.split(),
    )
    printed = capsys.readouterr()
    costs = json.loads(table.read_text())
    rows = costs["rows"]
    assert_rows_are_there(rows)
    assert "'no_such'" in printed.err
    for row in rows.values():
        assert row["ms"] > 0
        assert row["base_passes"] * rows["pass"]["ms"] == pytest.approx(row["ms"])
    megabytes = megabytes_of_feature(model)
    for count in (50, 200):
        assert rows[f"search 1 {count}"]["megabytes"] == pytest.approx(count * megabytes)
    video = costs["video"]
    apart = video["predict without"] + video["second encoder"]
    assert video["share_of_sum"] == pytest.approx(apart / video["predict with"])
    entropy = rows["score entropy"]
    assert f"| entropy | 2 | {entropy['base_passes']:.2f} | {entropy['ms']:.1f} |" in printed.out
