"""The documentation builds without a warning, and holds every verb and every public name."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

import segunc
from segunc.cli.main import VERBS

DOCS = Path(__file__).parents[1] / "docs"


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
    described = set(re.findall(r'id="segunc\.(\w+)"', api))
    assert set(segunc.__all__) <= described


def test_nothing_is_loaded_from_elsewhere(site: Path) -> None:
    for page in site.rglob("*.html"):
        loaded = re.findall(
            r'<(?:script|img|link)[^>]*(?:src|href)="(https?://[^"]+)"', page.read_text(encoding="utf-8")
        )
        assert not loaded, page
