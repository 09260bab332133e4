"""The table of runtimes: what it refuses before the work."""

from pathlib import Path

import pytest

from tools.runtime_table import make


def test_rows_that_are_there_stay(tmp_path: Path) -> None:
    (tmp_path / "net").mkdir()
    with pytest.raises(SystemExit, match=r"net exists; remove it, or give another OUT"):
        make(tmp_path, "net", "model", "64x64", "calibration", "check")
