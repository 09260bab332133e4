"""``pip install -e .`` shows the package with its types to mypy and pyright."""

import shutil
import subprocess
import sys
import sysconfig
import venv
from pathlib import Path
from zipfile import ZipFile

import pytest

from tests.support.type_checkers import NO_PYRIGHT, find_pyright

ROOT = Path(__file__).resolve().parents[2]
SCRIPT = """\
import segunc

result = segunc.compare(["a.json"], out="table.md")
text: int = result.text
segunc.compare(["a.json"], outt="table.md")
"""
pytestmark = pytest.mark.skipif(not (ROOT / ".git").exists(), reason="this is no checkout")


@pytest.fixture(scope="module")
def python(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An environment with an editable install of a copy of this checkout, and nothing else."""
    folder = tmp_path_factory.mktemp("editable")
    checkout = folder / "checkout"
    checkout.mkdir()
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, checkout)
    ignored = shutil.ignore_patterns("__pycache__")
    shutil.copytree(ROOT / "segunc", checkout / "segunc", ignore=ignored)
    code = "import sys; from setuptools import build_meta; build_meta.build_editable(sys.argv[1])"
    command = [sys.executable, "-c", code, str(folder)]
    built = subprocess.run(command, cwd=checkout, capture_output=True, text=True, timeout=120)
    assert built.returncode == 0, built.stderr[-2000:]
    environment = folder / "environment"
    venv.create(environment, symlinks=True)
    place = {"base": str(environment), "platbase": str(environment)}
    (wheel,) = folder.glob("*.whl")
    with ZipFile(wheel) as archive:
        archive.extractall(sysconfig.get_path("purelib", "venv", place))
    return Path(sysconfig.get_path("scripts", "venv", place)) / "python"


def check(command: list[str], folder: Path) -> str:
    """Return what a type checker prints of the script."""
    (folder / "script.py").write_text(SCRIPT, encoding="utf-8")
    done = subprocess.run(
        [*command, "script.py"], cwd=folder, capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 1, done.stdout + done.stderr
    return done.stdout


def test_mypy_knows_results_and_options(python: Path, tmp_path: Path) -> None:
    mypy = [sys.executable, "-m", "mypy", "--strict", "--python-executable", str(python)]
    printed = check([*mypy, "--cache-dir", str(tmp_path)], tmp_path)
    assert 'script.py:4: error: Incompatible types in assignment (expression has type "str"' in (
        printed
    )
    assert 'script.py:5: error: Unexpected keyword argument "outt"' in printed
    assert "script.py:1" not in printed
    assert "script.py:3" not in printed


def test_pyright_knows_results_and_options(python: Path, tmp_path: Path) -> None:
    pyright = find_pyright()
    if pyright is None:
        pytest.skip(NO_PYRIGHT)
    printed = check([pyright, "--pythonpath", str(python)], tmp_path)
    assert 'script.py:4:13 - error: Type "str" is not assignable to declared type "int"' in printed
    assert "script.py:5:1 - error: No overloads" in printed
    assert "script.py:1" not in printed
    assert "script.py:3" not in printed
