"""``export`` and ``compare`` as commands: what they print and write, their exit codes and their one-line errors."""

from __future__ import annotations

import json
import re
from pathlib import Path

import numpy as np
import pytest

from tests.maps.foreign import write_map
from tests.verbs.processes import succeed


@pytest.fixture
def maps(tmp_path: Path) -> Path:
    for name in ("a", "b"):
        write_map(tmp_path / "maps" / "entropy" / f"{name}.npy", np.linspace(0, 1, 12).reshape(3, 4))
    return tmp_path / "maps"


def test_export_and_evaluate_what_was_exported(maps: Path, tmp_path: Path) -> None:
    words = "--score entropy --to smiyc --method Mine --dataset AnomalyTrack-all"
    done = succeed("export --maps", maps, words, "--out", tmp_path / "out")
    assert "2 of 2 frames of 'entropy' in" in done.stdout
    for name in ("a", "b"):
        write_map(tmp_path / "labels" / f"{name}.png", (np.arange(12).reshape(3, 4) > 5).astype(np.uint8))
    metrics = tmp_path / "metrics.json"
    succeed(
        "evaluate --replicates 0", "--maps", tmp_path / "out", "--anomaly-labels", tmp_path / "labels", "--out", metrics
    )
    scores = json.loads(metrics.read_text())["scores"]
    assert list(scores) == ["Mine"]
    assert scores["Mine"]["pooled"]["auroc"] == pytest.approx(1.0)
    table = tmp_path / "tables" / "t.md"
    done = succeed("compare", metrics, "--keys", "*.auroc", "--names", "my run", "--out", table)
    assert f"wrote {table}" in done.stdout
    assert table.read_text() == done.stdout.split("wrote ")[0]
    assert re.search(r"scores\.Mine\.pooled\.auroc ↑ +\| +1\.000 \|", table.read_text())
