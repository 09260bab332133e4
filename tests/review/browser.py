"""A headless Chromium, where the machine has one."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest


def dump_dom(page: Path, profile: Path, *, budget_ms: int = 8000) -> str:
    """The DOM of a local page after its scripts ran; skips the test where no Chromium is installed."""
    browser = next(
        (found for name in ("chromium", "chromium-browser", "google-chrome") if (found := shutil.which(name))), None
    )
    if browser is None:
        pytest.skip("no Chromium on this machine")
    flags = ["--headless", "--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-background-networking"]
    flags += ["--disable-component-update", "--disable-sync", f"--user-data-dir={profile}"]
    flags += [f"--virtual-time-budget={budget_ms}", "--dump-dom"]
    done = subprocess.run([browser, *flags, page.as_uri()], capture_output=True, text=True, timeout=60, check=True)
    return done.stdout
