"""The documentation builds without a warning, and holds every verb and every public name."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from pathlib import Path

import pytest

import segunc
from segunc.cli.main import VERBS

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
PAGE = (DOCS / "determinism.md").read_text("utf-8")
NAMED = sorted(set(re.findall(r"`(tests/[\w/]+\.py)::(\w+)`", PAGE)))


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    pytest.importorskip("sphinx", reason="Sphinx is not installed")
    out = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "sphinx", "-q", "-W", "--keep-going", "-E", "-d", str(out / "cache"), "-b", "html"]
    done = subprocess.run([*command, str(DOCS), str(out)], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr[-3000:]
    return out


def test_every_verb_and_every_public_name_has_its_place(site: Path) -> None:
    commands = (site / "reference" / "commands.html").read_text(encoding="utf-8")
    assert set(VERBS) <= set(re.findall(r'<section id="([\w-]+)">', commands))
    api = (site / "reference" / "api.html").read_text(encoding="utf-8")
    assert set(segunc.__all__) <= set(re.findall(r'id="segunc\.(\w+)"', api))


def test_nothing_is_loaded_from_elsewhere(site: Path) -> None:
    for page in site.rglob("*.html"):
        loaded = re.findall(
            r'<(?:script|img|link)[^>]*(?:src|href)="(https?://[^"]+)"', page.read_text(encoding="utf-8")
        )
        assert not loaded, page


def test_every_test_that_the_page_names_is_there() -> None:
    assert len(NAMED) > 20
    gone = [
        f"{file}::{name}"
        for file, name in NAMED
        if name not in {getattr(node, "name", None) for node in ast.parse((ROOT / file).read_text("utf-8")).body}
    ]
    assert gone == []


def test_every_line_of_a_table_names_one() -> None:
    promises = [
        line
        for line in PAGE.splitlines()
        if line.startswith("|") and not line.startswith(("| what |", "| what differs |", "|---"))
    ]
    assert len(promises) > 12
    assert [line for line in promises if "::test_" not in line.split("|")[-2]] == []
