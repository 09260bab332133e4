"""The whole job through the command line on a tiny toy set."""

from __future__ import annotations

import json
from pathlib import Path

from tests.commands.processes import succeed
from tests.conftest import Job


def test_both_ways_of_evaluating_anomalies_agree_exactly(predicted: Job, tmp_path: Path) -> None:
    from_maps, one_pass = tmp_path / "maps.json", tmp_path / "pass.json"
    succeed("evaluate", "--maps", predicted.maps, "--anomaly-labels", predicted.masks, "--out", from_maps)
    words = ("--dataset", "toy-anomaly", "--root", predicted.data, "--split", "anomaly", "--draws", 4)
    succeed(
        "evaluate", "--model", predicted.abnn, *words, "--precision", "float32", "--device", "cpu", "--out", one_pass
    )
    first, second = (json.loads(path.read_text()) for path in (from_maps, one_pass))
    assert len(first["scores"]) == 8
    assert first["scores"] == second["scores"]
    assert first["counts"]["anomaly_pixels"] == second["counts"]["anomaly_pixels"] > 0
