"""Messages count one thing in the singular: 1 frame, not 1 frames."""

import ast
import re
from pathlib import Path

import pytest

import segunc
from segunc.core.terminal import counted

PACKAGE = Path(segunc.__file__).parent
PLURAL = re.compile(
    r" ([a-z]+ )?(alarms|draws|files|frames|images|labels|layers|objects|pairs|regions|units|"
    r"verdicts|videos)\b"
)
OF_SEVERAL = re.compile(r"\b(all|of|the|these) $")
"""What stands before a number of things of which the message counts some."""


def plurals(source: str) -> list[int]:
    """Return the lines in which the length of something is followed by several things, unless a
    condition chooses the words.
    """
    tree = ast.parse(source)
    chosen: set[ast.AST] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.IfExp):
            chosen.update(ast.walk(node))
    lines = []
    for text in ast.walk(tree):
        if not isinstance(text, ast.JoinedStr) or text in chosen:
            continue
        before = ""
        for part, after in zip(text.values, text.values[1:], strict=False):
            if isinstance(part, ast.Constant):
                before = str(part.value)
                continue
            assert isinstance(part, ast.FormattedValue)
            is_length = ast.unparse(part.value).startswith("len(")
            is_plural = isinstance(after, ast.Constant) and PLURAL.match(str(after.value))
            if is_length and is_plural and not OF_SEVERAL.search(before):
                lines.append(text.lineno)
            before = ""
    return lines


def test_the_scan_finds_a_plural() -> None:
    assert plurals('f"leaves out {len(pairs)} pairs"') == [1]
    assert plurals('f"1 of {len(pairs)} pairs"') == []
    assert plurals('"1 pair" if len(pairs) == 1 else f"{len(pairs)} pairs"') == []


def test_counts_of_messages_have_a_singular() -> None:
    found = []
    for path in sorted(PACKAGE.rglob("*.py")):
        lines = plurals(path.read_text(encoding="utf-8"))
        found += [f"{path.relative_to(PACKAGE)}:{line}" for line in lines]
    assert found == [], "use segunc.core.terminal.counted"


@pytest.mark.parametrize(
    ("number", "verb", "said"),
    [
        (1, "", "1 frame"),
        (2, "", "2 frames"),
        (1, "has", "1 frame has"),
        (0, "has", "0 frames have"),
        (3, "is", "3 frames are"),
        (3, "was", "3 frames were"),
        (1, "holds", "1 frame holds"),
        (2, "holds", "2 frames hold"),
    ],
)
def test_a_number_has_its_noun_and_its_verb(number: int, verb: str, said: str) -> None:
    assert counted(number, "frame", verb) == said
