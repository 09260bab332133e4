"""Each promise of docs/determinism.md names tests that are there."""

from __future__ import annotations

import ast
import re
from pathlib import Path

ROOT = Path(__file__).parent.parent
PAGE = (ROOT / "docs" / "determinism.md").read_text("utf-8")
NAMED = sorted(set(re.findall(r"`(tests/[\w/]+\.py)::(\w+)`", PAGE)))


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
