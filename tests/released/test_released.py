"""Folders that released versions wrote: models and maps of users must stay of use."""

from __future__ import annotations

import shutil
from pathlib import Path

import cv2
import numpy as np
import pytest

import segunc
from segunc.maps.reader import MapsReader
from tests.conftest import succeed

FOLDERS = sorted(path for path in Path(__file__).parent.iterdir() if (path / "model").is_dir())


@pytest.fixture(params=FOLDERS, ids=lambda folder: folder.name)
def released(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """A copy of the folders of one version."""
    return Path(shutil.copytree(request.param, tmp_path / "released"))


def test_every_released_version_has_its_folders() -> None:
    assert [folder.name for folder in FOLDERS] == ["0.1.0"]


def test_a_model_loads(released: Path) -> None:
    model = segunc.load(released / "model")
    assert len(model.network.description.classes) == 11


def test_maps_are_read(released: Path) -> None:
    reader = MapsReader(released / "maps")
    assert list(reader.frames) == ["0", "1"]


def test_a_model_makes_the_maps_that_it_made_then(released: Path) -> None:
    words = ["--scores", "entropy,epistemic", "--draws", "8", "--precision", "float32"]
    frames = released / "frames"
    again = released / "again"
    succeed("predict", "--model", released / "model", "--input", frames, "--out", again, *words)
    for score in ("entropy", "epistemic"):
        for name in ("0.png", "1.png"):
            then = cv2.imread(str(released / "maps" / score / name), cv2.IMREAD_UNCHANGED)
            now = cv2.imread(str(again / score / name), cv2.IMREAD_UNCHANGED)
            assert np.abs(then.astype(int) - now.astype(int)).max() <= 2, (score, name)


def test_maps_are_evaluated(released: Path) -> None:
    result = released / "result.json"
    labels = released / "labels"
    labels.mkdir()
    mask = np.zeros((32, 48), np.uint8)
    mask[:8, :8] = 1
    for name in ("0.png", "1.png"):
        cv2.imwrite(str(labels / name), mask)
    words = ["--anomaly-labels", labels, "--replicates", "0", "--out", result]
    succeed("evaluate", "--maps", released / "maps", *words)
    assert result.is_file()
