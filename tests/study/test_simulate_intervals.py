"""The simulation that chose the interval, on a few trials: it runs, repeats itself, and tells a wide interval from a narrow one."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.study.conftest import Run
from tools import simulate_intervals

pytestmark = pytest.mark.usefixtures("few_units")


def test_a_few_trials(run: Run, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = []
    for name in ("one.json", "two.json"):
        run(simulate_intervals, "--trials", 6, "--units", 15, "--json", tmp_path / name)
        found.append(json.loads((tmp_path / name).read_text())["tables"])
    assert found[0] == found[1]
    table = found[0]["15 units"]
    assert {len(row) for row in table.values()} == {10}
    for name, ours in table["segunc"].items():
        assert ours["width"] > table["percentile, expanded"][name]["width"] >= table["percentile"][name]["width"] == 1
        assert ours["coverage"] >= table["percentile"][name]["coverage"]
    seeds = found[0]["4 seeds, 30 units"]
    assert seeds["segunc"]["difference"]["width"] > 1.5
    assert "| segunc, units alone |" in capsys.readouterr().out
