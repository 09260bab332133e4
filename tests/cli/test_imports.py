"""What a process loads: nothing heavy before a verb runs, and for a verb only what it needs."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import Job

REPOSITORY = Path(__file__).resolve().parents[2]
HEAVY = [
    "torch",
    "numpy",
    "cv2",
    "lightning",
    "torchmetrics",
    "jsonargparse",
    "albumentations",
    "segmentation_models_pytorch",
]
TRAINING = {"lightning", "torchmetrics", "jsonargparse", "albumentations"}
RUN = "from segunc.cli.main import main\nmain({!r})"


def imported_by(code: str) -> set[str]:
    """Heavy packages that a fresh interpreter has imported after running ``code``."""
    report = f"print('|'.join(m for m in {HEAVY!r} if m in sys.modules), file=sys.stderr)"
    command = [sys.executable, "-c", f"import atexit, sys\natexit.register(lambda: {report})\n{code}"]
    done = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, check=False)
    return set(filter(None, done.stderr.splitlines()[-1].split("|")))


@pytest.mark.parametrize("words", [["--help"], ["predict", "--help"], ["--version"], ["predict", "--size", "x"]])
def test_help_version_and_usage_errors_import_nothing_heavy(words: list[str]) -> None:
    assert imported_by(RUN.format(words)) == set()


def test_the_package_and_the_options_import_nothing_heavy() -> None:
    assert imported_by("import segunc\nsegunc.PredictOptions('model', 'input', 'out')") == set()
    assert imported_by("import numpy") == {"numpy"}  # the probe can see


def test_prediction_loads_nothing_of_a_training(finetuned: Job, tmp_path: Path) -> None:
    frame = next(finetuned.frames.rglob("*.png"))
    words = ["predict", "--model", finetuned.abnn, "--input", frame, "--out", tmp_path / "maps", "--draws", 2]
    found = imported_by(RUN.format([str(word) for word in [*words, "--device", "cpu"]]))
    assert (tmp_path / "maps" / "frames.jsonl").exists()
    assert "torch" in found
    assert not found & TRAINING
