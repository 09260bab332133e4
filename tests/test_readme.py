"""Every Python block of the README runs, and every command in it is one that the parser knows."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from pathlib import Path

import cv2
import numpy as np
import pytest

from segunc.cli.main import build_parser

README = Path(__file__).parents[1] / "README.md"
BLOCKS = re.findall(r"```python\n(.*?)```", README.read_text(encoding="utf-8"), re.DOTALL)
COMMANDS = re.findall(r"^\$ (segunc .*)$", README.read_text(encoding="utf-8"), re.MULTILINE)


@pytest.mark.parametrize("index", range(len(BLOCKS)))
def test_python_blocks_run(index: int, tmp_path: Path) -> None:
    stored = np.arange(12, dtype=np.uint16).reshape(3, 4)
    (tmp_path / "maps" / "epistemic").mkdir(parents=True)
    cv2.imwrite(str(tmp_path / "maps" / "epistemic" / "000000.png"), stored)
    done = subprocess.run(
        [sys.executable, "-c", BLOCKS[index]], cwd=tmp_path, capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stderr[-2000:]
    if "epistemic.png" in BLOCKS[index]:
        written = cv2.imread(str(tmp_path / "epistemic.png"), cv2.IMREAD_UNCHANGED)
        assert written.dtype == np.uint16
        assert written.shape == (128, 256)
        assert written.max() > 0
    if "mean epistemic" in BLOCKS[index]:
        assert float(done.stdout.split("mean epistemic")[1]) > 0


def test_the_examples_are_short() -> None:
    assert len(BLOCKS) == 3


@pytest.mark.parametrize("command", COMMANDS)
def test_commands_parse(command: str) -> None:
    words = shlex.split(command)[1:]
    arguments, rest = build_parser().parse_known_args(words)
    assert arguments.verb == words[0]
    if arguments.verb not in ("train", "finetune"):
        assert not rest
    for config in re.findall(r"configs/\S+\.yaml", command):
        assert (README.parent / config).is_file()
