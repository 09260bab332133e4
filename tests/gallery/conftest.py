"""The scene and its page, made once, and a browser to open it in."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from segunc.gallery.page import write_review
from tests.gallery.browser import Visit, open_browser
from tests.gallery.scenes import LABEL_MAP, Scene, write_scene

if TYPE_CHECKING:
    from playwright.sync_api import Browser


@pytest.fixture(scope="session")
def scene(tmp_path_factory: pytest.TempPathFactory) -> Scene:
    return write_scene(tmp_path_factory.mktemp("scene"))


@pytest.fixture(scope="session")
def full_page(scene: Scene, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The page of the scene with labels and a second model."""
    return write_review(
        scene.maps,
        tmp_path_factory.mktemp("full") / "review",
        labels=scene.labels,
        label_map=LABEL_MAP,
        anomaly_labels=scene.anomaly,
        compare=scene.other,
    )


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with open_browser() as opened:
        yield opened


@pytest.fixture
def visit(browser: Browser) -> Iterator[Visit]:
    """A visitor whose console must stay clean and whose requests must stay on this disk."""
    visitor = Visit(browser)
    yield visitor
    visitor.close()


@pytest.fixture
def copy(scene: Scene, tmp_path: Path) -> Path:
    """The maps of the scene, to be damaged."""
    return Path(shutil.copytree(scene.maps, tmp_path / "copy"))
