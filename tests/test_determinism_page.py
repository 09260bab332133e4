"""Each promise of docs/determinism.md names tests that are there."""

from __future__ import annotations

import ast
import re
from pathlib import Path

ROOT = Path(__file__).parent.parent
NAMED = sorted(set(re.findall(r"`(tests/[\w/]+\.py)::(\w+)`", (ROOT / "docs" / "determinism.md").read_text("utf-8"))))


def test_every_test_that_the_page_names_is_there() -> None:
    assert len(NAMED) > 20
    gone = [
        f"{file}::{name}"
        for file, name in NAMED
        if name not in {getattr(node, "name", None) for node in ast.parse((ROOT / file).read_text("utf-8")).body}
    ]
    assert gone == []
