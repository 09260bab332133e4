"""Looking at maps needs no network: the verbs that read them start without the heavy libraries."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from tests.review.scenes import Scene

SCRIPT = """
import sys
from segunc.cli.main import main
maps, masks, out = sys.argv[1:]
for words in (
    ["review", "--maps", maps, "--anomaly-labels", masks, "--dataset", "toy", "--out", f"{out}/page"],
    ["overlay", "--maps", maps, "--dataset", "toy", "--panel", "--video", "--fps", "5", "--out", f"{out}/pictures"],
    ["summary", "--maps", maps],
    ["export", "--maps", maps, "--score", "entropy", "--to", "fishyscapes", "--out", f"{out}/fishyscapes"],
    ["export", "--maps", maps, "--to", "fiftyone", "--out", f"{out}/fiftyone"],
):
    assert main(words) == 0, words
    heavy = {"torch", "albumentations", "lightning"} & set(sys.modules)
    assert not heavy, (words, heavy)
"""


def test_verbs_on_maps_import_no_framework(scene: Scene, tmp_path: Path) -> None:
    command = [sys.executable, "-c", SCRIPT, str(scene.maps), str(scene.anomaly), str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
