"""What is printed can be seen: no text of a file commands the terminal, and no terminal's encoding stops a verb."""

from __future__ import annotations

import io
import unicodedata
import warnings
from pathlib import Path

import pytest

from segunc.cli.main import main
from segunc.core.progress import ConsoleProgress, Progress
from segunc.core.terminal import say, visible
from segunc.maps.verdicts import Verdict, agreement_table, summary_table

ATTACK = "\x1b[2Ja\x9bb\u202ec\u2066\u200f\x7f\r\nd\te"


def commands(text: str, layout: str = "\n\t") -> list[str]:
    """Characters that are controls (Cc), line separators (Zl, Zp) or of a bidirectional class that formats, by Unicode's own tables."""
    directed = ("LRE", "RLE", "LRO", "RLO", "PDF", "LRI", "RLI", "FSI", "PDI")
    kinds = ("Cc", "Zl", "Zp")
    return [
        each
        for each in text
        if each not in layout
        and (
            unicodedata.category(each) in kinds
            or unicodedata.bidirectional(each) in directed
            or each in "\u200e\u200f\u061c"
        )
    ]


def test_every_character_that_commands_is_shown_and_no_other_is_changed() -> None:
    for each in map(chr, (*range(0xD800), *range(0xE000, 0x11000))):
        shown = visible(each)
        assert shown == each if not commands(each, "") else shown.startswith("\\") and shown.isascii()
    assert visible(ATTACK, layout=True).count("\n") == 1
    assert not commands(visible(ATTACK), "")


@pytest.mark.parametrize(("encoding", "arrow"), [("ascii", r"\u2192"), ("latin-1", r"\u2192"), ("utf-8", "→")])
def test_a_terminal_of_another_encoding_gets_what_it_can_show(encoding: str, arrow: str) -> None:
    raw = io.BytesIO()
    stream = io.TextIOWrapper(raw, encoding=encoding)
    say(f"a → b {ATTACK} \udc80", stream=stream, flush=True)
    text = raw.getvalue().decode(encoding)
    assert text.startswith(f"a {arrow} b")
    assert not commands(text)


def test_tables_progress_arguments_and_warnings_are_shown_alike(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    verdicts = [Verdict("f", "missed", reviewer=name) for name in (ATTACK, "other")]
    assert not commands(summary_table(verdicts, 1) + agreement_table(verdicts))
    rows = summary_table(verdicts, 1).splitlines()
    assert all(not row or row.startswith("|") for row in rows)
    with ConsoleProgress(interval=0, label=ATTACK) as show:
        show(Progress(1, 0, 0, 2, 1.0))
    with pytest.raises(SystemExit):
        main(["summary", "--maps", "x", "--statistic", ATTACK])
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("segunc.cli.main.run", lambda *_: warnings.warn(ATTACK, UserWarning, stacklevel=1))
    (tmp_path / "maps").mkdir()
    assert main(["summary", "--maps", "maps"]) == 0
    assert main(["summary", "--maps", f"no{ATTACK}"]) == 2
    said = capsys.readouterr()
    assert "UserWarning" in said.err
    assert "2Ja" in said.err
    assert not commands(said.out + said.err)
