"""What the command line promises before any work: instant help with examples, nothing heavy imported."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from segunc.cli.main import VERBS, build_parser, main

REPOSITORY = Path(__file__).resolve().parents[2]
HEAVY = ("torch", "numpy", "cv2", "lightning", "albumentations", "segmentation_models_pytorch", "jsonargparse")


def imported_by(code: str) -> set[str]:
    """Heavy packages that a fresh interpreter has imported after running ``code``."""
    report = f"print('|'.join(m for m in {HEAVY!r} if m in sys.modules), file=sys.stderr)"
    command = [sys.executable, "-c", f"import atexit, sys\natexit.register(lambda: {report})\n{code}"]
    done = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, check=False)
    return set(filter(None, done.stderr.splitlines()[-1].split("|")))


def test_help_version_and_usage_errors_import_nothing_heavy() -> None:
    run = "from segunc.cli.main import main\nmain({!r})"
    assert imported_by(run.format(["--help"])) == set()
    assert imported_by(run.format(["predict", "--help"])) == set()
    assert imported_by(run.format(["--version"])) == set()
    assert imported_by(run.format(["predict", "--size", "x"])) == set()
    assert imported_by("import numpy") == {"numpy"}  # the probe can see


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
