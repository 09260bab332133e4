"""What is printed can be seen: no text of a file commands the terminal, and no terminal's encoding
stops a verb.
"""

import io
import unicodedata
import warnings
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

from segunc.cli.main import main
from segunc.core.errors import InputError, is_out_of_memory
from segunc.core.progress import ConsoleProgress
from segunc.core.terminal import counted, say, visible
from segunc.maps.verdicts import Verdict, agreement_table, summary_table

ATTACK = "\x1b[2Ja\x9bb\u202ec\u2066\u200f\x7f\r\nd\te"


def commands(text: str, layout: str = "\n\t") -> list[str]:
    """Characters that are controls (Cc), line separators (Zl, Zp) or of a bidirectional class that
    formats, by Unicode's own tables.
    """
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
    for code in (*range(0xD800), *range(0xE000, 0x11000)):
        character = chr(code)
        shown = visible(character)
        if commands(character, ""):
            assert shown.startswith("\\"), hex(code)
            assert shown.isascii(), hex(code)
        else:
            assert shown == character, hex(code)


def test_a_text_of_several_lines_keeps_its_lines_where_that_is_asked_for() -> None:
    assert visible(ATTACK, layout=True).count("\n") == 1
    assert not commands(visible(ATTACK), "")


@pytest.mark.parametrize(
    ("encoding", "arrow"),
    [
        ("ascii", r"\u2192"),
        ("latin-1", r"\u2192"),
        ("utf-8", "→"),
    ],
)
def test_a_terminal_of_another_encoding_gets_what_it_can_show(encoding: str, arrow: str) -> None:
    raw = io.BytesIO()
    stream = io.TextIOWrapper(raw, encoding=encoding)
    say(f"a → b {ATTACK} \udc80", stream=stream, flush=True)
    text = raw.getvalue().decode(encoding)
    assert text.startswith(f"a {arrow} b")
    assert not commands(text)


def test_tables_show_the_characters_of_names() -> None:
    verdicts = [Verdict("f", "missed", reviewer=name) for name in (ATTACK, "other")]
    summary = summary_table(verdicts, 1)
    assert not commands(summary)
    assert not commands(agreement_table(verdicts))
    assert all(not row or row.startswith("|") for row in summary.splitlines())


def test_progress_arguments_and_warnings_are_shown_alike(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def warn(*_: object) -> None:
        warnings.warn(ATTACK, UserWarning, stacklevel=1)

    with ConsoleProgress(interval=0, label=ATTACK) as progress:
        progress.count(1, 2, ATTACK)
    with pytest.raises(SystemExit):
        main(["summary", "--maps", "x", "--statistic", ATTACK])
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("segunc.cli.main.run", warn)
    (tmp_path / "maps").mkdir()
    assert main(["summary", "--maps", "maps"]) == 0
    assert main(["summary", "--maps", f"no{ATTACK}"]) == 2
    printed = capsys.readouterr()
    assert "UserWarning" in printed.err
    assert "2Ja" in printed.err
    assert not commands(printed.out)
    assert not commands(printed.err)


@pytest.mark.parametrize(
    ("error", "is_one"),
    [
        (MemoryError(), True),
        (torch.OutOfMemoryError("too much"), True),
        (RuntimeError("could not create a primitive"), True),  # oneDNN
        (RuntimeError("could not create a memory object"), True),
        (RuntimeError("std::bad_alloc"), True),
        (ImportError("libx.so: failed to map segment from shared object"), True),
        (OSError(12, "Cannot allocate memory"), True),
        (
            RuntimeError(
                "OpenCV(4.10) error: (-4:Insufficient memory) Failed to allocate 9 bytes in"
                " function"
            ),
            True,
        ),
        (RuntimeError("memory format is not channels_last"), False),
        (RuntimeError("The size of tensor a must match"), False),
        (InputError("a memory of 3 is none"), False),
    ],
)
def test_a_lack_of_memory_is_known(error: Exception, is_one: bool) -> None:
    assert is_out_of_memory(error) is is_one


@pytest.mark.parametrize("allocate", [torch.empty, np.empty])
def test_torch_and_numpy_are_understood(allocate: Callable[[int], object]) -> None:
    with pytest.raises((RuntimeError, MemoryError)) as caught:
        allocate(2**50)
    assert is_out_of_memory(caught.value)


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_progress_on_a_terminal_is_a_line_that_changes() -> None:
    stream = Terminal()
    with ConsoleProgress(stream) as progress:
        progress.count(5, 10, "", 4)
        progress.count(10, 10, "1 failed", 4)
    assert "10 of 10 frames" in stream.getvalue()
    assert "1 failed" in stream.getvalue()


def test_progress_in_a_file_counts_from_an_earlier_run() -> None:
    stream = io.StringIO()
    with ConsoleProgress(stream, interval=0.0, label="chain 1/2", unit="step") as progress:
        progress.count(9, 10, "acceptance 0.80", 8)
    line = stream.getvalue()
    assert line.startswith("chain 1/2: 9 of 10 steps, ")
    # No time left yet: the first steps take longer.
    assert line.endswith(" steps/s, acceptance 0.80\n")


def test_progress_may_be_quiet() -> None:
    stream = Terminal()
    with ConsoleProgress(stream, interval=3600, quiet=True) as progress:
        progress.count(1, 2)
    assert stream.getvalue() == ""


@pytest.mark.parametrize(
    ("number", "text"),
    [
        (0, "0 members"),
        (1, "1 member"),
        (2, "2 members"),
    ],
)
def test_a_number_stands_with_its_noun(number: int, text: str) -> None:
    assert counted(number, "member") == text
