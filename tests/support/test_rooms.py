"""Tests of different rooms share helpers only through modules that are no tests."""

import re
from pathlib import Path

TESTS = Path(__file__).parents[1]
IMPORT = re.compile(r"^\s*from tests\.(\w+)\.test_\w+ import", re.MULTILINE)


def test_no_test_file_imports_from_a_test_file_of_another_room() -> None:
    crossings: list[str] = []
    for path in sorted(TESTS.rglob("*.py")):
        own_room = path.relative_to(TESTS).parts[0]
        rooms = IMPORT.findall(path.read_text(encoding="utf-8"))
        crossings += [f"{path.name} imports from {room}" for room in rooms if room != own_room]
    assert crossings == []
