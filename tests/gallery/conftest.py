"""The scene and its page, made once, and a browser to open it in."""

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.scenes import LABEL_MAP, Scene, write_page, write_scene
from tests.support.visits import Visit


@pytest.fixture(scope="session")
def scene(tmp_path_factory: pytest.TempPathFactory) -> Scene:
    return write_scene(tmp_path_factory.mktemp("scene"))


@pytest.fixture(scope="session")
def full_page(scene: Scene, tmp_path_factory: pytest.TempPathFactory) -> Path:
    labels = {
        "labels": scene.labels,
        "label_map": LABEL_MAP,
        "anomaly_labels": scene.anomaly,
    }
    out = tmp_path_factory.mktemp("full") / "review"
    return write_page(scene.maps, out, scores=["all"], **labels)


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    """A Chromium under Playwright's control; skips the test where either is missing."""
    api = pytest.importorskip("playwright.sync_api", reason="Playwright is not installed")
    path = next(
        filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None
    )
    if path is None:
        pytest.skip("no Chromium on this machine")
    switches = ["--no-sandbox", "--disable-gpu", "--disable-background-networking"]
    with api.sync_playwright() as playwright:
        opened = playwright.chromium.launch(executable_path=path, args=switches)
        yield opened
        opened.close()


@pytest.fixture
def visit(browser: Any) -> Iterator[Visit]:
    visitor = Visit(browser)
    yield visitor
    visitor.close()


@pytest.fixture
def copy(scene: Scene, tmp_path: Path) -> Path:
    return Path(shutil.copytree(scene.maps, tmp_path / "copy"))
