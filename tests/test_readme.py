"""Every Python block of the README and of the guides runs, and every command in them is one that the parser knows."""

from __future__ import annotations

import json
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import cv2
import numpy as np
import pytest

from segunc.cli.main import build_parser

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs/guides").glob("*.md"))]
TEXTS = {path.name: path.read_text(encoding="utf-8") for path in PAGES}
BLOCKS = [block for text in TEXTS.values() for block in re.findall(r"```python\n(.*?)```", text, re.DOTALL)]
COMMANDS = [line for text in TEXTS.values() for line in re.findall(r"^\$ (segunc .*)$", text, re.MULTILINE)]
MODULE, JOB = (
    next(i for i, block in enumerate(BLOCKS) if mark in block) for mark in ("# my_training.py", "segunc.review")
)


def run_block(index: int, folder: Path) -> str:
    (folder / "my_training.py").write_text(BLOCKS[MODULE], encoding="utf-8")
    done = subprocess.run(
        [sys.executable, "-c", BLOCKS[index]], cwd=folder, capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout


@pytest.mark.parametrize("index", [i for i in range(len(BLOCKS)) if i != JOB])
def test_python_blocks_run(index: int, tmp_path: Path) -> None:
    stored = np.arange(12, dtype=np.uint16).reshape(3, 4)
    (tmp_path / "maps" / "epistemic").mkdir(parents=True)
    cv2.imwrite(str(tmp_path / "maps" / "epistemic" / "000000.png"), stored)
    printed = run_block(index, tmp_path)
    if "ABNNCallback" in BLOCKS[index]:
        assert "from step 2 to 8, the end" in printed
        assert "3 members in a model folder" in printed
    if "maps.prediction.shape" in BLOCKS[index]:
        shape, entropy, epistemic = re.fullmatch(r"(\(\d+, \d+\)) (\S+) (\S+)\n", printed).groups()  # type: ignore[union-attr]
        assert shape == "(128, 256)"
        assert 0 < float(epistemic) < float(entropy) <= 1


def test_a_training_script_comes_to_maps_of_a_video_and_to_numbers(toy_set: Path, tmp_path: Path) -> None:
    shutil.copy(toy_set / "video" / "crossing.webm", tmp_path / "drive.webm")
    (tmp_path / "labels").mkdir()
    mask = np.zeros((64, 128), np.uint8)
    mask[40:50, 60:70] = 1
    for frame in range(3):
        cv2.imwrite(str(tmp_path / "labels" / f"{frame:06}.png"), mask)
    cv2.imwrite(str(tmp_path / "frame.png"), np.zeros((64, 128, 3), np.uint8))
    printed = re.search(r"(\d+) frames, AUROC of entropy (0\.\d+)", run_block(JOB, tmp_path))
    assert printed is not None
    assert int(printed[1]) == 12
    assert json.loads((tmp_path / "runs/abnn/posterior.json").read_text())["members"] == 3
    assert (tmp_path / "review/index.html").exists()


@pytest.mark.parametrize("page", PAGES, ids=lambda path: path.name)
def test_links_lead_to_files_and_headings(page: Path) -> None:
    for target in re.findall(r"\]\((?!https?:)([^)]*)\)", TEXTS[page.name]):
        name, _, heading = target.partition("#")
        path = page.parent / name if name else page
        assert path.is_file(), target
        if heading:
            headings = re.findall(r"^#+ (.*)$", path.read_text(encoding="utf-8"), re.MULTILINE)
            assert heading in [re.sub(r"[^\w -]", "", text).lower().replace(" ", "-") for text in headings]


@pytest.mark.parametrize("command", COMMANDS)
def test_commands_parse(command: str) -> None:
    words = shlex.split(command)[1:]
    arguments, rest = build_parser().parse_known_args(words)
    assert arguments.verb == words[0]
    if arguments.verb not in ("train", "finetune"):
        assert not rest
    for config in re.findall(r"configs/\S+\.yaml", command):
        assert (ROOT / config).is_file()
