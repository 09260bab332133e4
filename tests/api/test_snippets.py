"""mypy and pyright read the documented snippets and a user's program as strict as they can."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.type_checkers import NO_PYRIGHT, find_pyright

ROOT = Path(__file__).parents[2]
PROGRAM = Path(__file__).with_name("test_public_api.py")
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
MYPY = """\
[mypy]
strict = true
# The classes and functions of the snippets are the reader's own, which need no types.
disallow_untyped_defs = false
disallow_incomplete_defs = false
disallow_untyped_calls = false
# What libraries lack is not the reader's fault, and this package is checked by itself.
ignore_missing_imports = true
follow_imports = silent
"""
PYRIGHT = {
    "extraPaths": [str(ROOT)],
    "typeCheckingMode": "standard",
    "reportUnnecessaryTypeIgnoreComment": "error",
    # A user who types `segunc.` in an editor sees these.
    "reportPrivateImportUsage": "error",
}


def snippets() -> dict[str, str]:
    """Return the Python snippets of all pages by the names of their modules."""
    sources = {}
    for page in PAGES:
        blocks = re.findall(r"^```python\n(.*?)^```", page.read_text("utf-8"), re.M | re.S)
        for number, block in enumerate(blocks):
            named = re.match(r"# (\w+)\.py\n", block)
            name = named[1] if named else f"{page.stem.replace('-', '_')}_{number}"
            sources[name] = block
    return sources


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The snippets and the program as modules that import nothing of the tests."""
    folder = tmp_path_factory.mktemp("snippets")
    for name, source in snippets().items():
        (folder / f"{name}.py").write_text(source, encoding="utf-8")
    shutil.copy(PROGRAM, folder / "program.py")
    return folder


def test_there_are_snippets_and_the_program_uses_nothing_but_public_names() -> None:
    assert {"README_0", "my_training"} <= snippets().keys()
    source = PROGRAM.read_text("utf-8")
    imported = re.findall(r"^(?:from|import) (\S+)", source, re.M)
    assert {name for name in imported if name.split(".")[0] in ("segunc", "tests")} == {"segunc"}
    assert "from segunc" not in source


@pytest.mark.slow
def test_mypy_finds_nothing(folder: Path) -> None:
    settings = folder / "mypy.ini"
    settings.write_text(MYPY, encoding="utf-8")
    modules = sorted(path.name for path in folder.glob("*.py"))
    done = subprocess.run(
        [sys.executable, "-m", "mypy", "--config-file", str(settings), *modules],
        cwd=folder,
        env={**os.environ, "MYPYPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert done.stdout.startswith("Success: "), done.stdout + done.stderr


@pytest.mark.slow
def test_pyright_finds_nothing(folder: Path) -> None:
    pyright = find_pyright()
    if pyright is None:
        pytest.skip(NO_PYRIGHT)
    (folder / "pyrightconfig.json").write_text(json.dumps(PYRIGHT), encoding="utf-8")
    done = subprocess.run(
        [pyright, "--project", str(folder), "--pythonpath", sys.executable],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert done.returncode == 0, done.stdout + done.stderr
