"""The table of costs of a tiny model: every row is there, and the numbers follow from one
another.
"""

import json
from pathlib import Path

import pytest
from safetensors.torch import load_file

from segunc.baselines.anomaly import AnomalyConfig, fit_sum
from segunc.baselines.features import FeaturesConfig, fit_features
from segunc.training.config import FitConfig
from tests.conftest import Job
from tests.study.conftest import Run
from tools import cost_table


@pytest.fixture(scope="module")
def model(overconfident: Job, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out, data = (
        tmp_path_factory.mktemp("model") / "model",
        {"dataset": "toy", "root": str(overconfident.data)},
    )
    features = FeaturesConfig(
        layers=["body.encoder.features.3", "body.encoder.features.6"], frames=2
    )
    fit_features(overconfident.abnn, FitConfig(features, data), out, device="cpu")
    fit_sum(out, FitConfig(AnomalyConfig(draws=2), data), out, device="cpu")
    return out


def test_a_table_of_costs_adds_up(
    model: Path, overconfident: Job, tmp_path: Path, run: Run, capsys: pytest.CaptureFixture[str]
) -> None:
    place = tmp_path / "cost.json"
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
        place,
        *words.split(),
    )
    printed, found = capsys.readouterr(), json.loads(place.read_text())
    rows, clip = found["rows"], found["video"]
    assert {
        "pass",
        "score entropy",
        "score knn",
        "score anomaly",
        "features 1.5",
        "search 2 200",
    } < set(rows)
    assert {"encoder test_vit", "places test_vit"} < set(rows)
    assert not {"encoder no_such"} & set(rows)
    assert "'no_such'" in printed.err
    for row in rows.values():
        assert row["ms"] > 0
        assert row["base_passes"] * rows["pass"]["ms"] == pytest.approx(row["ms"])
    stored = load_file(model / "features.safetensors")
    parts = [(stored[f"{layer}.bank"], stored[f"{layer}.origins"]) for layer in (0, 1)]
    megabytes = sum((bank.nbytes + origins.nbytes) / len(bank) for bank, origins in parts) / 1e6
    for count in (50, 200):
        assert rows[f"search 1 {count}"]["megabytes"] == pytest.approx(count * megabytes)
    assert clip["share_of_sum"] == pytest.approx(
        (clip["predict without"] + clip["second encoder"]) / clip["predict with"]
    )
    entropy = rows["score entropy"]
    assert f"| entropy | 2 | {entropy['base_passes']:.2f} | {entropy['ms']:.1f} |" in printed.out
