"""What is locked: every file by its hash, from no index in particular, and all that pyproject.toml asks for."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).resolve().parents[2]
LOCKS = ("requirements.lock", "requirements-default.lock", "requirements-tools.lock")


def blocks(name: str) -> list[str]:
    return re.split(r"\n(?=\S)", (ROOT / name).read_text(encoding="utf-8").strip())


def requirement(block: str) -> Requirement:
    return Requirement(block.splitlines()[0].removesuffix("\\"))


@pytest.mark.parametrize("lock", LOCKS)
def test_every_line_is_a_version_with_hashes_and_nothing_else(lock: str) -> None:
    for block in blocks(lock):
        first, *hashes = block.splitlines()
        assert re.fullmatch(r"[a-z0-9-]+==[^\s;]+( ; [^\\]+)? \\", first)
        assert hashes
        assert all(re.fullmatch(r"    --hash=sha256:[0-9a-f]{64}( \\)?", line) for line in hashes)


def test_the_default_install_is_locked_as_it_is_tested() -> None:
    whole, default = (set(blocks(name)) for name in ("requirements.lock", "requirements-default.lock"))
    assert default < whole


def test_the_locks_have_what_is_asked_for() -> None:
    """Neither a dependency nor a bound was added to pyproject.toml without `make lock`."""
    table = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    asked = {
        "requirements.lock": [*table["project"]["dependencies"], *table["project"]["optional-dependencies"]["dev"]],
        "requirements-default.lock": table["project"]["dependencies"],
        "requirements-tools.lock": table["dependency-groups"]["tools"],
    }
    for lock, lines in asked.items():
        locked = [requirement(block) for block in blocks(lock)]
        for line in map(Requirement, lines):
            same = [found for found in locked if found.name == canonicalize_name(line.name)]
            versions = [str(found.specifier).removeprefix("==") for found in same]
            assert versions, f"{line} is not in {lock}"
            assert all(line.specifier.contains(version, prereleases=True) for version in versions), f"{line} in {lock}"


def test_make_installs_nothing_whose_hash_it_does_not_check() -> None:
    text = (ROOT / "Makefile").read_text(encoding="utf-8").replace("\\\n", " ")
    checked = "-m pip install --quiet --disable-pip-version-check --only-binary :all: --require-hashes"
    assert f"INSTALL := {checked}\n" in text
    others = [line for line in text.splitlines() if "pip install" in line and checked not in line]
    assert [re.findall(r"--no-\S+", line) for line in others] == [["--no-index", "--no-deps", "--no-build-isolation"]]
