"""The version and the commit of this package and the date, which records name so that they can be
traced.

One version has many commits while it is written, and two commits may count differently. So a record
holds both.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import subprocess
from datetime import UTC, datetime
from functools import cache
from importlib import metadata
from pathlib import Path

from segunc.core.files import read_bytes

PACKAGE = "segunc"
BUILT_FROM = Path(__file__).with_name("commit.txt")
"""Holds the commit in a wheel of ``tools/wheel.sh``; a checkout has no such file."""
SHORT_COMMIT = 12
"""Characters of a commit that tell it from all others of one project."""
DIRTY = "-dirty"


def tool_version() -> str:
    """Return the version of this package, ``unknown`` where it runs without being installed."""
    try:
        return metadata.version(PACKAGE)
    except metadata.PackageNotFoundError:
        return "unknown"


@cache
def tool_commit() -> str | None:
    """Return the commit of the code that runs, 40 characters, and ``-dirty`` with changes of it.

    It comes from the checkout that the code lies in, from the wheel, or from what pip recorded of
    an installation from a repository (PEP 610). None: none of them knows it.
    """
    checkout = Path(__file__).resolve().parents[2]
    # A virtual environment inside somebody's own repository must not report that repository.
    if (checkout / ".git").exists():
        return _commit_of_checkout(checkout)
    if BUILT_FROM.is_file():
        return BUILT_FROM.read_text(encoding="ascii").strip()
    return _commit_that_pip_recorded()


def full_version() -> str:
    """Return version and commit as one version (PEP 440): ``0.2.0+g1a2b3c4d5e6f.dirty``."""
    commit = tool_commit()
    if commit is None:
        return tool_version()
    changed = ".dirty" if commit.endswith(DIRTY) else ""
    return f"{tool_version()}+g{commit[:SHORT_COMMIT]}{changed}"


@cache
def code_sha256() -> str:
    """Return the first 16 digits of the SHA-256 of the modules of this package.

    Checkouts of one commit with different changes have the same :func:`full_version`.
    """
    folder = Path(__file__).parents[1]
    digest = hashlib.sha256()
    for path in sorted(folder.rglob("*")):
        if path.suffix in (".py", ".cpp"):
            content = read_bytes(path)
            digest.update(f"{path.relative_to(folder).as_posix()} {len(content)}\n".encode())
            digest.update(content)
    return digest.hexdigest()[:16]


def now() -> str:
    """Return the moment in UTC, to the second (ISO 8601), as records write it."""
    return datetime.now(UTC).isoformat(timespec="seconds")


def release_of(version: str) -> str:
    """Return a version of :func:`full_version` without its commit."""
    return version.partition("+")[0]


def _commit_of_checkout(checkout: Path) -> str | None:
    words = ["describe", "--always", "--dirty", "--abbrev=40", "--exclude=*"]
    with contextlib.suppress(OSError, subprocess.SubprocessError):
        described = subprocess.run(
            ["git", "-C", str(checkout), *words],
            capture_output=True,
            text=True,
            timeout=10,
            check=True,
        )
        return described.stdout.strip()
    return None


def _commit_that_pip_recorded() -> str | None:
    try:
        recorded = metadata.distribution(PACKAGE).read_text("direct_url.json")
    except metadata.PackageNotFoundError:
        return None
    if recorded is None:
        return None
    commit = json.loads(recorded).get("vcs_info", {}).get("commit_id")
    return None if commit is None else str(commit)
