"""A command whose standard error is closed, or read by nobody, still gives its result."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.maps.fakes import predict, write_pictures

RUN = (sys.executable, "-m", "segunc")


@pytest.fixture
def maps(tmp_path: Path) -> Path:
    write_pictures(tmp_path / "in", 2)
    predict(tmp_path / "in", tmp_path / "maps")
    return tmp_path / "maps"


@pytest.mark.parametrize("closed", ["2>&-", "0<&- 2>&-", "1>&- 2>&-"])
def test_a_closed_standard_error_ends_no_run(maps: Path, tmp_path: Path, closed: str) -> None:
    out = tmp_path / "summary.csv"
    words = (*RUN, "summary", "--maps", str(maps), "--flag", "entropy=0.5", "--out", str(out))
    command = f'"$@" {closed}'
    done = subprocess.run(
        ["sh", "-c", command, "sh", *words], stdout=subprocess.PIPE, timeout=60, check=False
    )
    assert done.returncode == 0
    assert out.read_text().startswith("list,rank,maps")


def test_a_standard_error_that_nobody_reads_ends_no_run(maps: Path, tmp_path: Path) -> None:
    read_end, write_end = os.pipe()
    os.close(read_end)
    out = tmp_path / "events.json"
    words = ("summary", "--maps", str(maps), "--fps", "5", "--flag", "entropy=0.5")
    done = subprocess.run(
        [*RUN, *words, "--events", str(out)],
        stdout=subprocess.PIPE,
        stderr=write_end,
        timeout=60,
        check=False,
    )
    os.close(write_end)
    assert done.returncode == 0
    assert out.exists()


def test_bad_input_is_still_bad_input_where_nobody_reads_it(tmp_path: Path) -> None:
    read_end, write_end = os.pipe()
    os.close(read_end)
    words = [*RUN, "summary", "--maps", str(tmp_path / "none")]
    done = subprocess.run(words, stdout=subprocess.PIPE, stderr=write_end, timeout=60, check=False)
    os.close(write_end)
    assert done.returncode == 2
    assert done.stdout == b""


@pytest.mark.parametrize("words", [("predict", "--help-all"), ("--print-completion", "bash")])
def test_a_help_that_nobody_reads_ends_without_a_traceback(words: tuple[str, ...]) -> None:
    read_end, write_end = os.pipe()
    os.close(read_end)
    done = subprocess.run(
        [*RUN, *words], stdout=write_end, stderr=subprocess.PIPE, timeout=60, check=False
    )
    os.close(write_end)
    assert done.stderr == b""
    assert done.returncode == 141
