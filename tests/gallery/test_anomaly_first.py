"""Where maps of the score ``anomaly`` are, it is what a reviewer sees first; everything else stays beside it."""

from __future__ import annotations

from pathlib import Path
from urllib.parse import quote

import numpy as np
import pytest

from segunc.data.images import read_image
from segunc.gallery.colormap import display_range
from segunc.gallery.overlay import Legend, draw_panel
from segunc.maps.reader import MapsReader
from segunc.options import SummaryOptions
from segunc.verbs.results import summary
from tests.gallery.browser import Visit
from tests.gallery.scenes import LABEL_MAP, NAMES, SCORES, Scene, draw, write_maps, write_page
from tests.maps.fakes import CLASSES, PALETTE


@pytest.fixture(scope="module")
def maps(scene: Scene, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The maps of the scene with the score; the darkest frame has the most of it and the least entropy."""
    return write_maps(scene.images, tmp_path_factory.mktemp("anomaly") / "maps", scores=(*SCORES, "anomaly"))


@pytest.fixture(scope="module")
def page(scene: Scene, maps: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    given = {"labels": scene.labels, "label_map": LABEL_MAP, "anomaly_labels": scene.anomaly, "exact": True}
    return write_page(maps, tmp_path_factory.mktemp("page") / "review", **given)


def test_overlays_and_panels_begin_with_it(maps: Path, scene: Scene, tmp_path: Path) -> None:
    assert list(draw(maps, tmp_path, frames=[NAMES[0]]).pictures) == ["overlay-anomaly"]
    assert list(draw(scene.maps, tmp_path, frames=[NAMES[0]]).pictures) == ["overlay-entropy"]
    (drawn,) = draw(maps, tmp_path, frames=[NAMES[0]], panel=True).pictures["panel"]
    reader, image = MapsReader(maps), read_image(scene.images / f"{NAMES[0]}.png")
    scores = [
        (Legend.of(reader.manifest, name, display_range(name)), reader.read(NAMES[0], name))
        for name in ("anomaly", "entropy", "epistemic")
    ]
    classes = list(zip(CLASSES, PALETTE, strict=True))
    caption = f"frame {NAMES[0]}"
    panel = draw_panel(image, reader.prediction(NAMES[0]), scores, classes=classes, caption=caption)
    np.testing.assert_array_equal(read_image(drawn), panel)


def test_frames_are_ranked_by_it(maps: Path, scene: Scene, tmp_path: Path) -> None:
    for folder, statistic, worst in ((maps, "anomaly.mean", NAMES[0]), (scene.maps, "entropy.mean", NAMES[5])):
        found = summary(SummaryOptions(maps=folder, top=1))
        assert (found.statistic, found.moments[0].name, found.label_statistic) == (statistic, worst, "epistemic.mean")
        text = write_page(folder, tmp_path / folder.name, limit=1).with_name("data").joinpath("frames.js").read_text()
        assert [name in text for name in (NAMES[0], NAMES[5])] == [worst == NAMES[0], worst == NAMES[5]]


def test_the_page_shows_the_score_and_the_label_of_one_name(page: Path, maps: Path, visit: Visit) -> None:
    visit.open(page)
    assert visit.page.locator("#filter-score").input_value() == "anomaly"
    assert visit.names()[0] == NAMES[0]
    visit.open_frame(page, NAMES[0], "&flags=1&threshold=3&probe=7,12")
    assert visit.page.locator("input[name=layer]:checked").get_attribute("value") == "anomaly"
    values = MapsReader(maps).read(NAMES[0], "anomaly")
    cells = {
        name: visit.page.locator(f"#values dd[data-content='{name}']").get_attribute("data-value")
        for name in ("anomaly", "label/anomaly")
    }
    assert np.float32(cells["anomaly"]) == values[12, 7]
    assert cells["label/anomaly"] == "1"
    share = 100 * np.mean(values >= 3)
    visit.shown("#flagged", f"anomaly ≥ 3: {share:.2f} % of the frame")
    visit.open_frame(page, NAMES[0], f"&layer={quote('label/anomaly', safe='')}")
    assert len(np.unique(visit.pixels("#layer-left"), axis=0)) == 3  # anomaly, normal, ignored
