"""Version and commit: each way of installing the package knows its commit, or says so."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest
from packaging.version import Version

from segunc.core import version

COMMIT = "0123456789abcdef0123456789abcdef01234567"


@pytest.fixture(autouse=True)
def nothing_remembered() -> Iterator[None]:
    version.tool_commit.cache_clear()
    yield
    version.tool_commit.cache_clear()


def installed_in(folder: Path, monkeypatch: pytest.MonkeyPatch, recorded: str | None) -> None:
    """Let the module lie in ``folder``, and pip have recorded ``direct_url.json`` of it."""
    module = folder / "segunc" / "core" / "version.py"
    module.parent.mkdir(parents=True)
    monkeypatch.setattr(version, "__file__", str(module))
    monkeypatch.setattr(version, "BUILT_FROM", module.with_name("commit.txt"))
    distribution = SimpleNamespace(version="0.2.0", read_text=lambda name: recorded)
    monkeypatch.setattr(version.metadata, "distribution", lambda name: distribution)


def git(folder: Path, *words: str) -> str:
    person = ["-c", "user.name=a", "-c", "user.email=a@example.org"]
    command = ["git", "-C", str(folder), *person, *words]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()


def checkout_in(folder: Path) -> str:
    git(folder, "init", "--quiet")
    (folder / "file").write_text("one", encoding="utf-8")
    git(folder, "add", "file")
    git(folder, "commit", "--quiet", "--message", "one")
    return git(folder, "rev-parse", "HEAD")


def test_a_checkout_reports_its_commit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    installed_in(tmp_path, monkeypatch, recorded=None)
    commit = checkout_in(tmp_path)
    (tmp_path / ".git" / "info" / "exclude").write_text("segunc\n", encoding="utf-8")
    assert version.tool_commit() == commit


def test_a_changed_checkout_is_dirty(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    installed_in(tmp_path, monkeypatch, recorded=None)
    commit = checkout_in(tmp_path)
    (tmp_path / "file").write_text("two", encoding="utf-8")
    assert version.tool_commit() == f"{commit}-dirty"
    assert version.full_version().endswith(f"+g{commit[:12]}.dirty")


def test_a_wheel_knows_what_it_was_built_from(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    installed_in(tmp_path, monkeypatch, recorded=None)
    version.BUILT_FROM.write_text(f"{COMMIT}\n", encoding="ascii")
    assert version.tool_commit() == COMMIT


def test_an_installation_from_a_repository_is_known_to_pip(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    recorded = {"url": "https://example.org/x", "vcs_info": {"vcs": "git", "commit_id": COMMIT}}
    installed_in(tmp_path, monkeypatch, recorded=json.dumps(recorded))
    assert version.tool_commit() == COMMIT


@pytest.mark.parametrize("recorded", [None, '{"url": "file:///x", "dir_info": {}}'])
def test_another_installation_has_a_version_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, recorded: str | None
) -> None:
    installed_in(tmp_path, monkeypatch, recorded=recorded)
    assert version.tool_commit() is None
    assert version.full_version() == version.tool_version()


def test_a_full_version_is_one_of_python(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(version, "tool_commit", lambda: f"{COMMIT}-dirty")
    full = version.full_version()
    assert Version(full).local == "g0123456789ab.dirty"
    assert version.release_of(full) == version.tool_version()


def test_a_changed_module_changes_the_sum_of_the_code(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two checkouts of a commit with other changes have one version."""
    module = tmp_path / "segunc" / "core" / "version.py"
    module.parent.mkdir(parents=True)
    monkeypatch.setattr(version, "__file__", str(module))
    sums = []
    for content in ("a = 1", "a = 2", "a = 1"):
        module.write_text(content)
        (module.parent / "notes.txt").write_text(f"{content} is no code")
        version.code_sha256.cache_clear()
        sums.append(version.code_sha256())
    version.code_sha256.cache_clear()
    assert sums[0] == sums[2] != sums[1]
