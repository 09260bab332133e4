"""What the command line promises before any work: help with examples that parse."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from segunc.cli.main import VERBS, build_parser, main

REPOSITORY = Path(__file__).resolve().parents[2]


def test_the_module_is_the_command() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "segunc", "--help"], cwd=REPOSITORY, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0
    assert done.stderr == ""
    assert all(f"\n    {verb} " in done.stdout for verb in VERBS)


@pytest.mark.parametrize("verb", VERBS)
def test_every_verb_has_help_with_an_example_that_parses(verb: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as end:
        main([verb, "--help"])
    assert end.value.code == 0
    text = capsys.readouterr().out
    examples = [line.strip() for line in text[text.index("example:") :].splitlines()[1:] if line.strip()]
    assert examples
    for example in examples:
        words = example.split()
        assert words[:2] == ["segunc", verb]
        known, rest = build_parser().parse_known_args(words[1:])
        assert known.verb == verb
        assert not rest or verb in ("train", "finetune")


def test_the_version_is_that_of_the_package(capsys: pytest.CaptureFixture[str]) -> None:
    from importlib.metadata import version

    assert main(["--version"]) == 0
    assert capsys.readouterr().out == f"segunc {version('segunc')}\n"
